const html = [{ type: 'header', key: 'accept', value: '.*text/html.*' }];

export default {
  output: 'standalone',
  outputFileTracingRoot: import.meta.dirname,
  rewrites: async () => ({ beforeFiles: [{ source: '/products', has: html, destination: '/list' }] }),
};
