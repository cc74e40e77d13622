package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/redis/go-redis/v9"
)

// defaults returns a client with the default limits.
func defaults(t *testing.T, socket string, daemons ...string) *counterfoil.Client {
	t.Helper()
	counters, err := counterfoil.Connect("unix://"+socket, namespace, counterfoil.Options{Daemons: daemons})
	must(t, err)
	t.Cleanup(func() { _ = counters.Close(ctx) })
	return counters
}

// takes fails if a call takes longer, on a busy machine.
func takes(t *testing.T, most time.Duration, call func() error) error {
	t.Helper()
	start := time.Now()
	err := call()
	if took := time.Since(start); took > most+100*time.Millisecond {
		t.Errorf("it took %s: %v", took, err)
	}
	return err
}

// add returns a call that counts once.
func add(views *counterfoil.Buffered, id string) func() error {
	return func() error { _, err := views.Add(ctx, id, 1); return err }
}

// breakDown makes a call until one was not sent.
func breakDown(t *testing.T, call func() error) {
	t.Helper()
	err := takes(t, time.Second, call)
	if errors.Is(err, counterfoil.ErrOutcomeUnknown) { // it wrote to the connection that was closed
		err = call()
	}
	fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
}

func TestNothingWaitsInAnOutage(t *testing.T) {
	goroutines, p := runtime.NumGoroutine(), startProxy(t)
	counters, id := defaults(t, p.socket), newID()
	views := buffered(t, counters, "views")
	must(t, add(views, id)())
	votes, err := counters.Cached("votes")
	must(t, err)
	hits, err := counters.Series("hits")
	must(t, err)
	daily, err := counters.Visitors("daily")
	must(t, err)
	p.stop()
	breakDown(t, add(views, id))
	for _, call := range []func() error{
		add(views, id),
		func() error { _, err := votes.Get(ctx, id); return err },
		func() error { _, err := hits.Get(ctx, id, "60s"); return err },
		func() error { _, err := daily.FirstVisit(ctx, id, "2014-09-20", "a"); return err },
		func() error { _, err := views.RequestEpoch(ctx, "request", id); return err },
	} {
		err := takes(t, 10*time.Millisecond, call)
		fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
		if !strings.Contains(err.Error(), "UNREACHABLE: Redis is unavailable: ") {
			t.Error(err)
		}
	}
	eventually(t, func() error {
		err := add(views, id)()
		if strings.Contains(err.Error(), "Redis has been unavailable for 1s: ") {
			return nil
		}
		return err
	})
	p.listen(t)
	eventually(t, add(views, id))
	p.stop()
	breakDown(t, add(views, id))
	must(t, counters.Close(ctx))
	eventually(t, func() error { // the one that probes has ended
		if left := runtime.NumGoroutine(); left > goroutines {
			return fmt.Errorf("%d goroutines of %d", left, goroutines)
		}
		return nil
	})
}

type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// replying is a hook that replies to scripts.
type replying struct {
	prefix
	reply func(redis.Cmder) error
}

func (r replying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if command.Name() != "evalsha" {
			return next(ctx, command)
		}
		err := r.reply(command)
		command.SetErr(err)
		return err
	}
}

func repliesWith(t *testing.T, reply func(redis.Cmder) error) *counterfoil.Buffered {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: socket})
	t.Cleanup(func() { client.Close() })
	client.AddHook(replying{reply: reply})
	counters := with(t, client, counterfoil.Options{RetryFor: 300 * time.Millisecond})
	t.Cleanup(func() { _ = counters.Close(ctx) })
	return buffered(t, counters, "views")
}

func TestWhichRepliesBeginAnOutage(t *testing.T) {
	for reply, isOutage := range map[string]bool{"LOADING data": true, "BUSY script": true, "READONLY replica": false, "TRYAGAIN": false} {
		views := repliesWith(t, func(redis.Cmder) error { return refusal(reply) })
		code, _, _ := strings.Cut(reply, " ")
		fails(t, add(views, "a")(), counterfoil.ErrNotCounted, code)
		start := time.Now()
		fails(t, add(views, "a")(), counterfoil.ErrNotCounted, code)
		equal(t, time.Since(start) < 200*time.Millisecond, isOutage)
	}
}

func TestAFamilyThatTheDaemonRefuses(t *testing.T) {
	views := repliesWith(t, func(command redis.Cmder) error {
		command.(*redis.Cmd).SetVal([]any{"UNCONFIGURED", "table wp_views: column views is latin1"})
		return nil
	})
	err := takes(t, 10*time.Millisecond, add(views, "a"))
	fails(t, err, counterfoil.ErrMisconfigured, "UNCONFIGURED")
	if !strings.Contains(err.Error(), "the daemon refuses "+namespace+"/views: table wp_views: column views is latin1") {
		t.Error(err)
	}
	must(t, views.Later("a", 1))
	for range 2 { // the sum stays
		fails(t, views.Flush(ctx), counterfoil.ErrMisconfigured, "UNCONFIGURED")
	}
}

func TestAFamilyThatNoDaemonHasConfigured(t *testing.T) {
	made := &attempts{}
	client := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: time.Second})
	defer client.Close()
	client.AddHook(made)
	counters, name := with(t, client, counterfoil.Options{RetryFor: time.Second}), newID()
	defer counters.Close(ctx)
	views := buffered(t, counters, name)
	must(t, direct.Del(ctx, "cf1:wanted").Err())
	first := add(views, "a")()
	fails(t, first, counterfoil.ErrNotCounted, "UNCONFIGURED")
	if calls := made.begin(); calls > 13 { // every 200 ms, and the load of two scripts
		t.Error(calls)
	}
	for range 50 {
		equal(t, add(views, "a")().Error(), first.Error())
		_, err := views.RequestEpoch(ctx, "request", "a")
		fails(t, err, counterfoil.ErrNotCounted, "UNCONFIGURED")
	}
	if calls := made.begin(); calls > 4 { // of probes
		t.Error(calls)
	}
	source, err := direct.HGetAll(ctx, home).Result()
	must(t, err)
	key := fmt.Sprintf("cf1:{%s/%s/0}:calls", namespace, name)
	defer direct.Del(ctx, key)
	for field, value := range source {
		if strings.HasPrefix(field, "=") {
			must(t, direct.HSet(ctx, key, field, value).Err())
		}
	}
	eventually(t, func() error { _, err := views.RequestEpoch(ctx, "request", "a"); return err })
}

func TestAContextEndsACallBeforeItsLimit(t *testing.T) {
	p := startProxy(t)
	views := buffered(t, defaults(t, p.socket), "views")
	must(t, add(views, newID())())
	p.always(hold)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := views.Add(short, newID(), 1)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "canceled")
	err = takes(t, time.Second, add(views, newID()))
	fails(t, err, counterfoil.ErrOutcomeUnknown, "no reply")
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// When the time of a call is over go-redis is still connecting, and would send the call afterwards.
func TestACallThatWasGivenUpIsNotSent(t *testing.T) {
	var isSlow atomic.Bool
	client := redis.NewClient(&redis.Options{
		ConnMaxIdleTime: time.Millisecond,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			if isSlow.Load() {
				time.Sleep(600 * time.Millisecond)
			}
			return net.Dial("unix", socket)
		},
	})
	defer client.Close()
	views, id := buffered(t, with(t, client, counterfoil.Options{RetryFor: 300 * time.Millisecond}), "views"), newID()
	must(t, add(views, id)())
	isSlow.Store(true)
	time.Sleep(20 * time.Millisecond)
	fails(t, takes(t, 300*time.Millisecond, add(views, id)), counterfoil.ErrNotCounted, "UNREACHABLE")
	time.Sleep(time.Second)
	equal(t, exact(t, id), 1)
}

func TestDaemonsThatAreDown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	views := buffered(t, defaults(t, socket, nobody, "http://"+address), "views")
	value := func() error { _, err := views.Value(ctx, "a"); return err }
	fails(t, takes(t, 500*time.Millisecond, value), counterfoil.ErrNotCounted, "UNREACHABLE")
	fails(t, takes(t, 10*time.Millisecond, value), counterfoil.ErrNotCounted, "UNREACHABLE")
	shown, err := views.ValueOr(ctx, "a", 41)
	fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
	equal(t, shown, 41)
	_, err = views.ValuesOr(ctx, []string{"a", "b"}, []int64{41})
	fails(t, err, counterfoil.ErrNotCounted, "BADARG")
	all, err := views.ValuesOr(ctx, []string{"a", "b"}, []int64{41, 42})
	fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
	if !slices.Equal(all, []int64{41, 42}) {
		t.Error(all)
	}
	must(t, add(views, newID())()) // Redis is not down
	listener.Close()
	listener, err = net.Listen("tcp", address)
	must(t, err)
	server := &http.Server{Handler: stubOf(t, http.StatusOK, nil).Config.Handler}
	defer server.Close()
	go server.Serve(listener)
	eventually(t, value)
	shown, err = views.ValueOr(ctx, "a", 41)
	must(t, err)
	equal(t, shown, 7)
}

func TestADaemonThatIsBusyIsNotDown(t *testing.T) {
	busy := stubOf(t, http.StatusServiceUnavailable, nil)
	views := viewsBy(t, counterfoil.Options{Daemons: []string{busy.URL}})
	for range 2 {
		before := busy.requests.Load()
		_, err := views.Value(ctx, "a")
		fails(t, err, counterfoil.ErrNotCounted, "daemon")
		equal(t, busy.requests.Load() > before, true)
	}
}

func TestLaterInAnOutage(t *testing.T) {
	p, made := startProxy(t), &attempts{}
	client := redis.NewClient(&redis.Options{Addr: p.socket, ReadTimeout: 200 * time.Millisecond, MaxRetries: -1})
	defer client.Close()
	client.AddHook(made)
	views, id := buffered(t, with(t, client, counterfoil.Options{RetryFor: 300 * time.Millisecond}), "views"), newID()
	p.stop()
	breakDown(t, add(views, id))
	made.begin()
	for range 100 {
		must(t, takes(t, 0, func() error { return views.Later(id, 1) }))
		time.Sleep(25 * time.Millisecond)
	}
	made.mu.Lock()
	if calls := len(made.at); calls > 3 { // the probes
		t.Error(calls)
	}
	made.mu.Unlock()
	p.listen(t)
	for start := time.Now(); exact(t, id) != 100; { // without a flush
		if time.Since(start) > 20*time.Second {
			t.Fatal("not sent")
		}
	}
}

func TestCloseTakesFiveSecondsAtMost(t *testing.T) {
	p := startProxy(t)
	client := redis.NewClient(&redis.Options{Addr: p.socket, ReadTimeout: 20 * time.Second})
	defer client.Close()
	var lost int64
	counters := with(t, client, counterfoil.Options{
		RetryFor: 30 * time.Second, OnError: func(_, _ string, n int64, _ error) { lost += n },
	})
	views := buffered(t, counters, "views")
	must(t, add(views, "a")())
	p.always(hold)
	must(t, views.Later("a", 0))
	time.Sleep(100 * time.Millisecond) // it is being sent
	must(t, views.Later("b", 2))
	fails(t, takes(t, 5*time.Second, func() error { return counters.Close(ctx) }), counterfoil.ErrOutcomeUnknown, "")
	p.cut()
}

func TestCloseTriesAgain(t *testing.T) {
	p, id := startProxy(t), newID()
	idle, counters := defaults(t, p.socket), defaults(t, p.socket)
	views := buffered(t, counters, "views")
	for _, client := range []*counterfoil.Client{idle, counters} {
		must(t, add(buffered(t, client, "views"), id)())
	}
	p.stop()
	breakDown(t, add(buffered(t, idle, "views"), id))
	breakDown(t, add(views, id))
	must(t, views.Later(id, 5))
	closed := make(chan error)
	go func() { closed <- counters.Close(ctx) }()
	must(t, idle.Close(ctx))           // without sums, at once
	time.Sleep(700 * time.Millisecond) // an attempt fails
	p.listen(t)
	must(t, <-closed)
	equal(t, exact(t, id), 7)
}

func TestCloseReportsWhetherAnOutcomeIsKnown(t *testing.T) {
	for _, isSent := range []bool{false, true} {
		p, lost := startProxy(t), map[string]int64{}
		options := counterfoil.Options{LaterEvery: time.Hour, OnError: func(_, id string, n int64, err error) {
			lost[fmt.Sprint(id, " ", errors.Is(err, counterfoil.ErrOutcomeUnknown))] = n
		}}
		counters, err := counterfoil.Connect("unix://"+p.socket, namespace, options)
		must(t, err)
		views := buffered(t, counters, "views")
		must(t, add(views, "a")())
		if isSent {
			p.always(hold)
		} else {
			p.stop()
			breakDown(t, add(views, "a"))
		}
		for range 3 {
			must(t, views.Later("a", 1))
		}
		err = counters.Close(ctx)
		equal(t, errors.Is(err, counterfoil.ErrOutcomeUnknown), isSent)
		equal(t, len(lost), 1)
		equal(t, lost[fmt.Sprint("a ", isSent)], 3)
	}
}

func TestFlushOfAllFamilies(t *testing.T) {
	counters, id := given(t, socket, counterfoil.Options{LaterEvery: time.Hour, Daemons: []string{daemon}}), newID()
	views, wide := buffered(t, counters, "views"), buffered(t, counters, "wide")
	must(t, views.Later(id, 1))
	must(t, wide.Later(id, 1))
	must(t, counters.Flush(ctx))
	for _, family := range []*counterfoil.Buffered{views, wide} {
		value, err := family.Value(ctx, id)
		must(t, err)
		equal(t, value, 1)
	}
	must(t, buffered(t, counters, "votes").Later(id, 1)) // which is cached
	fails(t, counters.Flush(ctx), counterfoil.ErrMisconfigured, "MISMATCH")
	must(t, counters.Flush(ctx))
}

func TestLaterOfAllKinds(t *testing.T) {
	counters, id := given(t, socket, counterfoil.Options{Daemons: []string{daemon}}), newID()
	hits, err := counters.Series("hits")
	must(t, err)
	before := time.Now().Add(-time.Hour)
	for range 3 {
		must(t, hits.Later(id, 2))
		must(t, hits.LaterAt(id, 1, before))
	}
	fails(t, hits.Later(id, 0), counterfoil.ErrNotCounted, "BADARG")
	must(t, hits.Flush(ctx))
	window, err := hits.Get(ctx, id, "day")
	must(t, err)
	equal(t, window[len(window)-1].Count+window[len(window)-2].Count, 9)
	readers, err := counters.Activity("readers")
	must(t, err)
	for i := range 40 {
		must(t, readers.Later(id, fmt.Sprint(i%5)))
	}
	fails(t, readers.Later(id, ""), counterfoil.ErrNotCounted, "BADID")
	must(t, readers.Flush(ctx))
	views, visitors, err := readers.Now(ctx, id)
	must(t, err)
	equal(t, views, 40)
	equal(t, visitors, 5)
	daily, err := counters.Visitors("daily")
	must(t, err)
	for i := range 40 {
		must(t, daily.Later(id, "2014-09-20", fmt.Sprint(i%3)))
	}
	fails(t, daily.Later(id, "2014-9-20", "a"), counterfoil.ErrNotCounted, "BADID")
	must(t, daily.Flush(ctx))
	value, err := daily.Value(ctx, id, "2014-09-20")
	must(t, err)
	equal(t, value, 3)
}

// OnError receives the name of a sum as the application knows it.
func TestWhatLaterOfOtherKindsLoses(t *testing.T) {
	lost := map[string]int64{}
	options := counterfoil.Options{LaterEvery: time.Hour, OnError: func(_, id string, n int64, _ error) { lost[id] = n }}
	counters := given(t, socket, options)
	hits, err := counters.Series("hits")
	must(t, err)
	must(t, hits.LaterAt("site", 3, time.Unix(1, 0)))
	fails(t, hits.Flush(ctx), counterfoil.ErrNotCounted, "BADTIME")
	daily, err := counters.Visitors("daily")
	must(t, err)
	must(t, daily.Later(strings.Repeat("x", 250), "2014-09-20", "a"))
	fails(t, daily.Flush(ctx), counterfoil.ErrNotCounted, "BADID")
	equal(t, lost["site"], 3)
	equal(t, lost[strings.Repeat("x", 250)+"/2014-09-20"], 1)
}
