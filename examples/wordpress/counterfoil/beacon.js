// Counts the view of a page that is shown, however old its HTML is, and lets visitors like it.
(() => {
  const { views, likes, nonce } = counterfoil;
  const count = () => navigator.sendBeacon(views);
  if (document.prerendering) document.addEventListener('prerenderingchange', count, { once: true });
  else count();

  const buttons = document.querySelectorAll('.counterfoil-like');
  if (buttons.length === 0) return;
  const headers = { 'Content-Type': 'application/json', ...(nonce && { 'X-WP-Nonce': nonce }) };
  const show = async (options) => {
    const response = await fetch(likes, { headers, ...options });
    if (!response.ok) return;
    const state = await response.json();
    for (const button of buttons) {
      button.querySelector('span').textContent = state.likes.toLocaleString();
      button.setAttribute('aria-pressed', state.liked);
      button.hidden = false;
    }
  };
  for (const button of buttons) {
    button.addEventListener('click', () => {
      const liked = button.getAttribute('aria-pressed') !== 'true';
      show({ method: 'POST', body: JSON.stringify({ liked }) });
    });
  }
  show();
})();
