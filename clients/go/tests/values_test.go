package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
)

const nobody = "http://127.0.0.1:1"

func viewsBy(t *testing.T, options counterfoil.Options) *counterfoil.Buffered {
	t.Helper()
	options.RetryFor = max(options.RetryFor, 300*time.Millisecond)
	counters, err := counterfoil.Connect("unix://"+socket+"?read_timeout=100ms", namespace, options)
	must(t, err)
	t.Cleanup(func() { _ = counters.Close(ctx) })
	return buffered(t, counters, "views")
}

// stub is a daemon that gives one reply to all requests: 7 for each id by default.
type stub struct {
	*httptest.Server
	requests, connections atomic.Int32
	last                  atomic.Value
}

func stubOf(t *testing.T, status int, headers http.Header) *stub {
	s := &stub{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		var list struct{ IDs []string }
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &list)
		s.last.Store(r.Header.Get("Authorization") + " " + string(body))
		for name, values := range headers {
			w.Header()[name] = values
		}
		w.WriteHeader(status)
		sevens := make([]int, len(list.IDs))
		for i := range sevens {
			sevens[i] = 7
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"family": "f", "values": sevens})
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// Values are exact while the daemon saves.
func TestValues(t *testing.T) {
	counters := given(t, socket, counterfoil.Options{Daemons: []string{nobody, daemon + "/"}})
	for _, name := range []string{"views", "wide"} {
		views, id := buffered(t, counters, name), newID()
		for i := int64(1); i <= 100; i++ {
			_, err := views.Add(ctx, id, 3)
			must(t, err)
			value, err := views.Value(ctx, id)
			must(t, err)
			equal(t, value, 3*i)
		}
		pairs, ids, expected := []counterfoil.Pair{}, []string{}, []int64{}
		for i := int64(0); i < 2100; i++ {
			pairs = append(pairs, counterfoil.Pair{ID: fmt.Sprint(id, "/<é> ", i), Delta: i})
			ids, expected = append(ids, pairs[i].ID), append(expected, i)
		}
		_, err := views.AddMany(ctx, pairs)
		must(t, err)
		slices.Reverse(ids)
		slices.Reverse(expected)
		values, err := views.Values(ctx, ids)
		must(t, err)
		if !slices.Equal(values, expected) {
			t.Error(values)
		}
		values, err = views.Values(ctx, nil)
		must(t, err)
		equal(t, len(values), 0)
	}
	daily, err := counters.Visitors("daily")
	must(t, err)
	scope := newID()
	_, err = daily.FirstVisit(ctx, scope, "2014-09-20", "a")
	must(t, err)
	values, err := daily.Values(ctx, []counterfoil.ScopeDay{{Scope: scope, Day: "2014-09-21"}, {Scope: scope, Day: "2014-09-20"}})
	must(t, err)
	if !slices.Equal(values, []int64{0, 1}) {
		t.Error(values)
	}
}

func TestConnectionsToADaemonAreKept(t *testing.T) {
	s := stubOf(t, http.StatusOK, nil)
	views := viewsBy(t, counterfoil.Options{Daemons: []string{s.URL}, Token: "secret", RetryFor: 5 * time.Second})
	for i := 0; i < 20; i++ {
		value, err := views.Value(ctx, "a")
		must(t, err)
		equal(t, value, 7)
	}
	equal(t, s.requests.Load(), 20)
	equal(t, s.connections.Load(), 1)
	equal(t, s.last.Load().(string), fmt.Sprintf(`Bearer secret {"family":"%s/views","ids":["a"]}`, namespace))
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 50; j++ {
				_, err := views.Value(ctx, "a")
				must(t, err)
			}
		}()
	}
	all.Wait()
	if s.connections.Load() > 20 { // net/http also opens connections that it needs no more once they are open
		t.Error(s.connections.Load())
	}
	s.CloseClientConnections()
	_, err := views.Value(ctx, "a")
	must(t, err)
}

func TestTheNextDaemon(t *testing.T) {
	second := http.Header{"Retry-After": {"1"}}
	busy, s := stubOf(t, http.StatusServiceUnavailable, second), stubOf(t, http.StatusOK, nil)
	views := viewsBy(t, counterfoil.Options{Daemons: []string{nobody, busy.URL, s.URL}, RetryFor: 5 * time.Second})
	for i := 0; i < 10; i++ {
		value, err := views.Value(ctx, "a")
		must(t, err)
		equal(t, value, 7)
	}
	equal(t, busy.requests.Load(), 1)
	equal(t, s.requests.Load(), 10)
	_, err := viewsBy(t, counterfoil.Options{Daemons: []string{busy.URL, nobody}, RetryFor: 4 * time.Second}).Value(ctx, "a")
	fails(t, err, counterfoil.ErrNotCounted, "daemon")
	// the daemon is not asked again before its Retry-After is over
	busy.requests.Store(0)
	_, err = viewsBy(t, counterfoil.Options{Daemons: []string{busy.URL}, RetryFor: 4 * time.Second}).Value(ctx, "a")
	fails(t, err, counterfoil.ErrNotCounted, "daemon")
	if count := busy.requests.Load(); count < 2 || count > 5 {
		t.Error(count)
	}
}

func TestASilentDaemon(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	s := stubOf(t, http.StatusOK, nil)
	daemons := []string{"http://" + silent.Addr().String(), s.URL}
	views, start := viewsBy(t, counterfoil.Options{Daemons: daemons, RetryFor: 2 * time.Second}), time.Now()
	for i := 0; i < 2; i++ {
		value, err := views.Value(ctx, "a")
		must(t, err)
		equal(t, value, 7)
	}
	if time.Since(start) > 1800*time.Millisecond {
		t.Error(time.Since(start))
	}
	limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = viewsBy(t, counterfoil.Options{Daemons: daemons[:1]}).Value(limited, "a")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestAValueOfAFamilyThatNoDaemonHasConfigured(t *testing.T) {
	counters := given(t, socket, counterfoil.Options{Daemons: []string{daemon}})
	none := buffered(t, counters, "none")
	_, err := none.Value(ctx, "a")
	fails(t, err, counterfoil.ErrNotCounted, "UNCONFIGURED")
	if !strings.Contains(err.Error(), "no daemon has configured "+namespace+"/none: declare it in counterfoil.toml") {
		t.Error(err)
	}
	values, err := none.ValuesOr(ctx, []string{"a", "b"}, []int64{3, 4})
	fails(t, err, counterfoil.ErrNotCounted, "UNCONFIGURED")
	if !slices.Equal(values, []int64{3, 4}) {
		t.Error(values)
	}
}

func TestRepliesThatDoNotPass(t *testing.T) {
	other := stubOf(t, http.StatusOK, nil)
	for _, status := range []int{302, 400, 401, 404, 409} {
		s := stubOf(t, status, http.Header{"Location": {other.URL}})
		_, err := viewsBy(t, counterfoil.Options{Daemons: []string{s.URL, other.URL}, RetryFor: 5 * time.Second}).Value(ctx, "a")
		fails(t, err, counterfoil.ErrMisconfigured, fmt.Sprint("daemon: ", status))
	}
	equal(t, other.requests.Load(), 0)
	for _, status := range []int{429, 500, 502} {
		_, err := viewsBy(t, counterfoil.Options{Daemons: []string{stubOf(t, status, nil).URL}}).Value(ctx, "a")
		fails(t, err, counterfoil.ErrNotCounted, "daemon")
	}
}
