package counterfoilhttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/counterfoil/counterfoil-go/counterfoilhttp"
	"github.com/counterfoil/counterfoil-go/counterfoiltest"
)

var (
	byName = counterfoilhttp.IsBot(func(agent string) bool { return strings.Contains(agent, "bot") })
	id     = counterfoilhttp.PathValue("id")
)

func inMemory(t *testing.T) *counterfoil.Client {
	t.Helper()
	counters, err := counterfoiltest.New("shop", nil)
	if err != nil {
		t.Fatal(err)
	}
	return counters
}

type options = []counterfoilhttp.Option

func newViews(t *testing.T, counters *counterfoil.Client, family string, more ...counterfoilhttp.Option) *counterfoilhttp.Views {
	t.Helper()
	views, err := counterfoilhttp.New(counters, family, append(options{byName}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return views
}

func request(method, path string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("User-Agent", "Mozilla/5.0")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func counts(t *testing.T, views *counterfoilhttp.Views, r *http.Request) bool {
	t.Helper()
	counted, err := views.CountView(r, "7")
	if err != nil {
		t.Fatal(err)
	}
	return counted
}

func value(t *testing.T, counters *counterfoil.Client, id string) int64 {
	t.Helper()
	family, err := counters.Buffered("views")
	if err != nil {
		t.Fatal(err)
	}
	value, err := family.Value(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestWhatIsLeftOut(t *testing.T) {
	isStaff := counterfoilhttp.IsStaff(func(r *http.Request) bool { return r.Header.Get("X-Staff") != "" })
	views := newViews(t, inMemory(t), "views", isStaff)
	all := newViews(t, inMemory(t), "views", isStaff, counterfoilhttp.Bots(true), counterfoilhttp.Staff(true))
	for _, one := range []struct {
		request       *http.Request
		counts, inAll bool
	}{
		{request("GET", "/"), true, true},
		{request("POST", "/"), true, true},
		{request("HEAD", "/"), false, false},
		{request("GET", "/", "User-Agent", "Googlebot"), false, true},
		{request("GET", "/", "User-Agent", ""), false, true},
		{request("GET", "/", "X-Staff", "1"), false, true},
		{request("GET", "/", "Sec-Purpose", "prefetch;prerender"), false, false},
		{request("GET", "/", "Purpose", "prefetch"), false, false},
	} {
		if counts(t, views, one.request) != one.counts || counts(t, all, one.request) != one.inAll {
			t.Error(one.request.Method, one.request.Header)
		}
	}
}

func TestOptionsThatAreMissing(t *testing.T) {
	once := counterfoilhttp.Repeats(false)
	for _, given := range []options{{}, {byName, once}, {byName, once, counterfoilhttp.Secret("")}} {
		if _, err := counterfoilhttp.New(inMemory(t), "views", given...); err == nil {
			t.Error("no error")
		}
	}
}

func TestRepeats(t *testing.T) {
	counters := inMemory(t)
	visits := newViews(t, counters, "visits", counterfoilhttp.Repeats(false), counterfoilhttp.Secret("secret"),
		counterfoilhttp.Proxies(netip.MustParsePrefix("10.0.0.0/8")))
	visit := func(address string, headers ...string) bool {
		r := request("GET", "/", headers...)
		r.RemoteAddr = address
		return counts(t, visits, r)
	}
	for i, one := range []struct{ isFirst, counted bool }{
		{true, visit("192.0.2.1:1000")},
		{false, visit("192.0.2.1:2000")},
		{false, visit("[::ffff:192.0.2.1]:2000")},
		{true, visit("192.0.2.1:1000", "User-Agent", "Mozilla/6.0")},
		{true, visit("192.0.2.2:1000", "X-Forwarded-For", "192.0.2.1")}, // it is no proxy: the header is not used
		{false, visit("192.0.2.2:1000")},
		{false, visit("10.0.0.1:1000", "X-Forwarded-For", "203.0.113.9, 192.0.2.1, 10.0.0.2")},
		{false, visit("@", "X-Forwarded-For", "192.0.2.1:1234")},
		{true, visit("10.0.0.1:1000", "X-Forwarded-For", "2001:db8::1")},
		{true, visit("10.0.0.1:1000")},
		{false, visit("10.0.0.1:1000", "X-Forwarded-For", "192.0.2.1, unknown")},
	} {
		if one.counted != one.isFirst {
			t.Error("visit", i)
		}
	}
	byHeader := newViews(t, counters, "visits", counterfoilhttp.Repeats(false),
		counterfoilhttp.Visitor(func(r *http.Request) string { return r.Header.Get("X-Visitor") }))
	if counts(t, byHeader, request("GET", "/")) || !counts(t, byHeader, request("GET", "/", "X-Visitor", "a")) ||
		counts(t, byHeader, request("GET", "/", "X-Visitor", "a")) {
		t.Error("by header")
	}
}

func TestMiddleware(t *testing.T) {
	counters := inMemory(t)
	views := newViews(t, counters, "views")
	serve := func(handler http.HandlerFunc) {
		mux := http.NewServeMux()
		mux.Handle("GET /{id}", handler)
		served := views.Middleware(id)(mux) // a mux sets the path's values in the request that the middleware has
		defer func() { _ = recover() }()
		served.ServeHTTP(httptest.NewRecorder(), request("GET", "/7"))
	}
	serve(func(http.ResponseWriter, *http.Request) {})
	serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })
	serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(304) })
	if counted := value(t, counters, "7"); counted != 3 {
		t.Error(counted)
	}
	serve(func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	serve(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); w.WriteHeader(503) })
	serve(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(101) })
	serve(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "pa"); w.WriteHeader(500) })
	serve(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if counted := value(t, counters, "7"); counted != 3 {
		t.Error(counted)
	}
}

func TestClientsThatDisconnect(t *testing.T) {
	counters := inMemory(t)
	views := newViews(t, counters, "views")
	ctx, cancel := context.WithCancel(context.Background())
	page := views.Middleware(id)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() }))
	r := request("GET", "/7").WithContext(ctx)
	r.SetPathValue("id", "7")
	page.ServeHTTP(httptest.NewRecorder(), r)
	if counted := value(t, counters, "7"); counted != 1 {
		t.Error(counted)
	}
}

func TestAnErrorIsLoggedAndChangesNoResponse(t *testing.T) {
	var lines bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&lines, nil)))
	defer slog.SetDefault(before)
	counters, err := counterfoil.Connect("redis://127.0.0.1:1", "shop", counterfoil.Options{RetryFor: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer counters.Close(context.Background())
	views := newViews(t, counters, "views")
	created := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	page := views.Middleware(func(r *http.Request) string { return strings.Trim(r.URL.Path, "/") })(created)
	w := httptest.NewRecorder()
	page.ServeHTTP(w, request("GET", "/")) // a page without an id does not count
	page.ServeHTTP(w, request("GET", "/7"))
	text := lines.String()
	if w.Code != http.StatusCreated || strings.Count(text, "\n") != 1 || !strings.Contains(text, "family=views id=7") {
		t.Error(w.Code, text)
	}
	if _, err := views.CountView(request("GET", "/"), "7"); !errors.Is(err, counterfoil.ErrNotCounted) {
		t.Error(err)
	}
}

func TestFlushAndHijack(t *testing.T) {
	counters := inMemory(t)
	pages := newViews(t, counters, "views").Middleware(func(r *http.Request) string { return r.URL.Path })
	server := httptest.NewServer(pages(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hijacked":
			connection, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(connection, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			connection.Close()
		case "/flushed":
			w.(http.Flusher).Flush()
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("page"))
		}
	})))
	for _, path := range []string{"/hijacked", "/flushed"} {
		response, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	server.Close() // waits for the handlers
	if value(t, counters, "/hijacked") != 0 || value(t, counters, "/flushed") != 1 {
		t.Error(value(t, counters, "/hijacked"), value(t, counters, "/flushed"))
	}
	// a writer that can do neither
	page := pages(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Error(err)
		}
	}))
	page.ServeHTTP(plain{httptest.NewRecorder()}, request("GET", "/"))
}

type plain struct{ http.ResponseWriter }
