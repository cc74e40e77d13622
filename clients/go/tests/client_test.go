// Package tests tests the installed package on a Redis and a daemon with these families in COUNTERFOIL_TEST_NAMESPACE: views,
// wide, votes (0 to 1000), hits, readers and daily.
package tests

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/redis/go-redis/v9"
)

var (
	ctx       = context.Background()
	socket    = os.Getenv("COUNTERFOIL_TEST_SOCKET")
	namespace = os.Getenv("COUNTERFOIL_TEST_NAMESPACE")
	daemon    = os.Getenv("COUNTERFOIL_TEST_DAEMON")
	direct    = redis.NewClient(&redis.Options{Addr: socket})
	home      = fmt.Sprintf("cf1:{%s/views/0}:calls", namespace) // of the calls in views
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[V comparable](t *testing.T, is, should V) {
	t.Helper()
	if is != should {
		t.Fatalf("%v, should be %v", is, should)
	}
}

// fails checks kind and reason.
func fails(t *testing.T, err, kind error, reason string) {
	t.Helper()
	var e *counterfoil.Error
	if !errors.Is(err, kind) || !errors.As(err, &e) || !strings.Contains(e.Reason, reason) {
		t.Fatalf("%v, should be %v: %s", err, kind, reason)
	}
}

// eventually waits for a call to succeed, as after an outage.
func eventually(t *testing.T, call func() error) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		if time.Since(start) > 20*time.Second {
			t.Fatal(err)
		}
	}
}

func newID() string {
	random := make([]byte, 8)
	_, _ = rand.Read(random)
	return hex.EncodeToString(random)
}

func isCall(request []byte) bool { return bytes.Contains(bytes.ToLower(request[:40]), []byte("eval")) }

// given returns a client over an application's go-redis client, which has the default options and a short timeout.
func given(t *testing.T, socket string, options counterfoil.Options) *counterfoil.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: 200 * time.Millisecond})
	t.Cleanup(func() { client.Close() })
	return with(t, client, options)
}

func with(t *testing.T, client redis.UniversalClient, options counterfoil.Options) *counterfoil.Client {
	t.Helper()
	if options.RetryFor == 0 {
		options.RetryFor = 2 * time.Second
	}
	counters, err := counterfoil.New(client, namespace, options)
	must(t, err)
	return counters
}

// own returns a client with connections of its own.
func own(t *testing.T, socket string) *counterfoil.Client {
	t.Helper()
	options := counterfoil.Options{RetryFor: 2 * time.Second}
	counters, err := counterfoil.Connect("unix://"+socket+"?read_timeout=200ms", namespace, options)
	must(t, err)
	t.Cleanup(func() { counters.Close(ctx) })
	return counters
}

func buffered(t *testing.T, counters *counterfoil.Client, name string) *counterfoil.Buffered {
	t.Helper()
	family, err := counters.Buffered(name)
	must(t, err)
	return family
}

// exact returns the value that the daemon knows.
func exact(t *testing.T, id string) int64 {
	t.Helper()
	value, err := buffered(t, given(t, socket, counterfoil.Options{Daemons: []string{daemon}}), "views").Value(ctx, id)
	must(t, err)
	return value
}

func TestALostReplyIsNotCountedAgain(t *testing.T) {
	for _, isOwn := range []bool{false, true} {
		for _, lost := range []fate{loseRequest, loseReply, hold} {
			p := startProxy(t)
			counters := given(t, p.socket, counterfoil.Options{})
			if isOwn {
				counters = own(t, p.socket)
			}
			views, id := buffered(t, counters, "views"), newID()
			_, err := views.Add(ctx, id, 1)
			must(t, err)
			p.next(lost)
			pending, err := views.Add(ctx, id, 1)
			must(t, err)
			equal(t, pending.Known, lost == loseRequest)
			p.next(lost)
			isFirst, err := views.AddOnce(ctx, newID(), id, 1, "")
			must(t, err)
			equal(t, isFirst, true)
			equal(t, exact(t, id), 3)
		}
	}
}

func TestWithoutAReplyTheOutcomeIsUnknown(t *testing.T) {
	p := startProxy(t)
	views, id := buffered(t, given(t, p.socket, counterfoil.Options{RetryFor: 500 * time.Millisecond}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	p.always(loseReply)
	_, err = views.Add(ctx, id, 1)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "no reply")
	p.always(pass)
	eventually(t, func() error { _, err = views.Add(ctx, id, 1); return err })
	equal(t, exact(t, id), 3)
}

func TestWhatWasNeverSentIsNotCounted(t *testing.T) {
	p := startProxy(t)
	views, id := buffered(t, given(t, p.socket, counterfoil.Options{RetryFor: 500 * time.Millisecond}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	p.stop()
	_, err = views.Add(ctx, id, 1) // go-redis has tried several times, and never sent it
	if errors.Is(err, counterfoil.ErrOutcomeUnknown) {
		_, err = views.Add(ctx, id, 1) // it wrote to the connection that was closed
	}
	fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
	p.listen(t)
	eventually(t, func() error { _, err = views.Add(ctx, id, 1); return err })
	equal(t, exact(t, id), 2)
}

// A call may wait until others have used up their time. The time that it waited is part of its own: it ends soon after them.
func TestACallThatWaitsForOthers(t *testing.T) {
	p := startProxy(t)
	views, id := buffered(t, given(t, p.socket, counterfoil.Options{RetryFor: 2 * time.Second}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	var start, end time.Time // of the sends
	p.set(func() fate {
		end = time.Now()
		start = cmp.Or(start, end)
		return hold
	})
	var all sync.WaitGroup
	for i := 0; i < 6; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := views.Add(ctx, id, 1)
			var e *counterfoil.Error
			if !errors.As(err, &e) || e.Reason != "no reply" && e.Reason != "UNREACHABLE" {
				t.Error(err)
			}
		}()
		time.Sleep(20 * time.Millisecond)
	}
	all.Wait()
	p.always(pass)
	if waited := end.Sub(start); waited > 3*time.Second {
		t.Error(waited)
	}
}

func TestAContextThatEndsBeforeTheEpochIsKnown(t *testing.T) {
	p := startProxy(t)
	views, id := buffered(t, given(t, p.socket, counterfoil.Options{}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	must(t, direct.HSet(ctx, home, "=now", newID(), "=before", newID()).Err())
	p.next(pass, hold, hold) // the reply is EXPIRED, and then nothing replies to the question for the epoch
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = views.Add(short, id, 1)
	fails(t, err, counterfoil.ErrNotCounted, "canceled")
	equal(t, exact(t, id), 1)
}

func TestContext(t *testing.T) {
	p := startProxy(t)
	client := redis.NewClient(&redis.Options{Addr: p.socket, ReadTimeout: 9 * time.Second})
	defer client.Close()
	views, id := buffered(t, with(t, client, counterfoil.Options{RetryFor: 10 * time.Second}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)

	ended, end := context.WithCancel(ctx)
	end()
	_, err = views.Add(ended, id, 10)
	fails(t, err, counterfoil.ErrNotCounted, "canceled")
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	arrived := make(chan bool, 2) // the two calls in flight
	p.set(func() fate {
		select {
		case arrived <- true:
			return hold
		default:
			return pass
		}
	})
	var all sync.WaitGroup
	add := func(delta int64) {
		all.Add(1)
		go func() { // it does not end with the context of a caller that shares its call
			defer all.Done()
			_, err := views.Add(ctx, id, delta)
			must(t, err)
		}()
	}
	await := func(calls int) {
		for len(arrived) < calls {
			time.Sleep(time.Millisecond)
		}
	}
	add(100_000)
	await(1) // so that the next caller does not share this call
	leaving, leave := context.WithCancel(ctx)
	left := make(chan error)
	go func() {
		_, err := views.Add(leaving, id, 10_000)
		left <- err
	}()
	await(2)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = views.Add(short, id, 100) // its context ends while it is in the queue
	fails(t, err, counterfoil.ErrNotCounted, "canceled")
	add(1000)
	start := time.Now()
	leave()
	fails(t, <-left, counterfoil.ErrOutcomeUnknown, "canceled")
	if time.Since(start) > 5*time.Second {
		t.Error("returned late")
	}
	p.cut()
	all.Wait()
	equal(t, exact(t, id), 111_001)
}

func TestManyCallersThatLeave(t *testing.T) {
	p := startProxy(t)
	views, id := buffered(t, given(t, p.socket, counterfoil.Options{RetryFor: 20 * time.Second}), "views"), newID()
	var number, counted, unknown atomic.Int64
	p.set(func() fate { return [9]fate{3: loseReply, 6: loseRequest}[number.Add(1)%9] })
	var all sync.WaitGroup
	for i := 0; i < 16; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 50; j++ {
				short, cancel := context.WithTimeout(ctx, time.Duration(j%10)*300*time.Microsecond)
				_, err := views.Add(short, id, 1)
				cancel()
				switch {
				case err == nil:
					counted.Add(1)
				case errors.Is(err, counterfoil.ErrOutcomeUnknown):
					unknown.Add(1)
				default:
					fails(t, err, counterfoil.ErrNotCounted, "")
				}
			}
		}()
	}
	all.Wait()
	_, err := views.Add(ctx, id, 0)
	must(t, err)
	if value := exact(t, id); value < counted.Load() || value > counted.Load()+unknown.Load() {
		t.Errorf("%d, with %d counted and %d unknown", value, counted.Load(), unknown.Load())
	}
}

func TestReadsReturnWhenTheirContextEnds(t *testing.T) {
	p := startProxy(t)
	client := redis.NewClient(&redis.Options{Addr: p.socket, ReadTimeout: 9 * time.Second})
	defer client.Close()
	counters := with(t, client, counterfoil.Options{RetryFor: 10 * time.Second})
	votes, err := counters.Cached("votes", counterfoil.ReadRow(func(context.Context, string) (int64, error) { return 7, nil }))
	must(t, err)
	id := newID()
	_, err = votes.Incr(ctx, id, 1)
	must(t, err)
	hits, err := counters.Series("hits")
	must(t, err)
	p.always(hold)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = votes.Get(short, id) // needs no question for the epoch
	fails(t, err, counterfoil.ErrNotCounted, "canceled")
	_, err = hits.Get(short, id, "60s")
	fails(t, err, counterfoil.ErrNotCounted, "canceled")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if time.Since(start) > 5*time.Second {
		t.Error("returned late")
	}
	p.always(pass)
	value, err := votes.Get(ctx, id)
	must(t, err)
	equal(t, value, 8)
}

func TestExpired(t *testing.T) {
	for _, isOwn := range []bool{false, true} {
		counters := given(t, socket, counterfoil.Options{})
		if isOwn {
			counters = own(t, socket)
		}
		views, id := buffered(t, counters, "views"), newID()
		_, err := views.Add(ctx, id, 1)
		must(t, err)
		// Redis loses its memory
		must(t, direct.HSet(ctx, home, "=now", newID(), "=before", newID()).Err())
		_, err = views.Add(ctx, id, 1)
		must(t, err)
		must(t, direct.HSet(ctx, home, "=now", newID(), "=before", newID()).Err())
		isFirst, err := views.AddOnce(ctx, newID(), id, 1, "")
		must(t, err)
		equal(t, isFirst, true)
		_, err = views.AddOnce(ctx, newID(), id, 1, "0123456789abcdef")
		fails(t, err, counterfoil.ErrOutcomeUnknown, "EXPIRED")
	}
}

func TestExpiredAfterALostReply(t *testing.T) {
	p := startProxy(t)
	views, id := buffered(t, own(t, p.socket), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	calls := 0
	p.set(func() fate {
		if calls++; calls == 1 {
			return loseReply
		}
		if calls == 2 { // before the repeat Redis loses its memory
			direct.HSet(ctx, home, "=now", newID(), "=before", newID())
		}
		return pass
	})
	_, err = views.Add(ctx, id, 1)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "EXPIRED")
	equal(t, exact(t, id), 2)
}

// A request with an unknown outcome may be made again as long as Redis has its generation, also if it has lost the epoch.
func TestARequestAfterALostReply(t *testing.T) {
	p := startProxy(t)
	views, id, request := buffered(t, own(t, p.socket), "views"), newID(), newID()
	epoch, err := views.RequestEpoch(ctx, request, id)
	must(t, err)
	calls := 0
	p.set(func() fate {
		if calls++; calls == 1 {
			return loseReply
		}
		if calls == 2 { // before the repeat
			direct.HSet(ctx, home, "=now", newID(), "=before", newID())
		}
		return pass
	})
	_, err = views.AddOnce(ctx, request, id, 1, epoch)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "EXPIRED")
	isFirst, err := views.AddOnce(ctx, request, id, 1, epoch)
	must(t, err)
	equal(t, isFirst, false)
	equal(t, exact(t, id), 1)
	must(t, direct.HDel(ctx, strings.Replace(home, "calls", "requests", 1), "=now", "=before", "=began_at").Err()) // as after a reset
	_, err = views.AddOnce(ctx, request, id, 1, epoch)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "EXPIRED")
}

func TestRequestsOfACachedCounter(t *testing.T) {
	counters, id := own(t, socket), newID()
	votes, err := counters.Cached("votes", counterfoil.ReadRow(func(context.Context, string) (int64, error) { return 5, nil }))
	must(t, err)
	epoch, err := votes.RequestEpoch(ctx, "order", id)
	must(t, err)
	for range 3 {
		value, err := votes.IncrOnce(ctx, "order", id, 2, epoch)
		must(t, err)
		equal(t, value, 7)
		_, err = votes.Incr(ctx, id, 1)
		must(t, err)
	}
}

// A new connection that is refused does not reply to the call, which was sent over the connection before.
func TestAWrongPasswordAfterALostReply(t *testing.T) {
	p, user := startProxy(t), "user-"+newID()
	set := func(password string) {
		direct.Do(ctx, "ACL", "SETUSER", user, "on", "resetpass", ">"+password, "~*", "+@all")
	}
	set("right")
	defer direct.Do(ctx, "ACL", "DELUSER", user)
	client := redis.NewClient(&redis.Options{Addr: p.socket, Username: user, Password: "right", ReadTimeout: 200 * time.Millisecond})
	defer client.Close()
	views, id := buffered(t, with(t, client, counterfoil.Options{}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	p.set(func() fate {
		set("another")
		return loseReply
	})
	_, err = views.Add(ctx, id, 1)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "WRONGPASS")
	equal(t, exact(t, id), 2)
}

type loading struct{}

func (loading) Error() string { return "LOADING Redis is loading the dataset in memory" }
func (loading) RedisError()   {}

// What a PING in OnConnect returns is not a reply to the call, which was sent over the connection before.
func TestAServerThatLoadsAfterALostReply(t *testing.T) {
	p := startProxy(t)
	var isLoading atomic.Bool
	client := redis.NewClient(&redis.Options{
		Addr: p.socket, ReadTimeout: 200 * time.Millisecond,
		OnConnect: func(context.Context, *redis.Conn) error {
			if isLoading.Load() {
				return loading{}
			}
			return nil
		},
	})
	defer client.Close()
	views, id := buffered(t, with(t, client, counterfoil.Options{}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	p.set(func() fate {
		isLoading.Store(true)
		return loseReply
	})
	_, err = views.Add(ctx, id, 1)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "no reply")
	equal(t, exact(t, id), 2)
}

// constant stands for a random generator in the process, which returns the same in each copy of the process.
type constant struct{}

func (constant) Read(random []byte) (int, error) {
	copy(random, bytes.Repeat([]byte{0xab}, len(random)))
	return len(random), nil
}

func TestNamesAreDrawnFromTheSystem(t *testing.T) {
	views, id := buffered(t, given(t, socket, counterfoil.Options{}), "views"), newID()
	system := rand.Reader
	rand.Reader = constant{}
	defer func() { rand.Reader = system }()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	isThere, err := direct.HExists(ctx, home, "abababababababab").Result()
	must(t, err)
	equal(t, isThere, true)
}

func TestAnotherNumberOfPartitions(t *testing.T) {
	views := buffered(t, given(t, socket, counterfoil.Options{}), "views")
	_, err := views.Add(ctx, newID(), 1)
	must(t, err)
	must(t, direct.HSet(ctx, home, "=partitions", 8, "=now", newID(), "=before", newID()).Err())
	defer direct.HSet(ctx, home, "=partitions", 4)
	_, err = views.Add(ctx, newID(), 1)
	fails(t, err, counterfoil.ErrMisconfigured, "MISMATCH")
	must(t, direct.HSet(ctx, home, "=partitions", 4).Err())
	_, err = views.Add(ctx, newID(), 1)
	must(t, err)
}

func TestResultsAreSeparate(t *testing.T) {
	views, id := buffered(t, given(t, socket, counterfoil.Options{}), "views"), newID()
	pairs := []counterfoil.Pair{{ID: id, Delta: 1}, {ID: "", Delta: 1}, {ID: id + "max", Delta: 1<<63 - 1}, {ID: id + "max", Delta: 1}, {ID: id, Delta: 2}}
	results, err := views.AddMany(ctx, pairs)
	fails(t, err, counterfoil.ErrNotCounted, "BADID")
	equal(t, results[0].Value, 1)
	equal(t, results[2].Value, 1<<63-1)
	fails(t, results[3].Err, counterfoil.ErrNotCounted, "RANGE")
	equal(t, results[4], counterfoil.Result{Pending: counterfoil.Pending{Value: 3, Known: true}})
	_, err = views.Add(ctx, id+"max", -(1<<63 - 1)) // takes the largest sum back
	must(t, err)

	votes, err := given(t, socket, counterfoil.Options{}).Cached("votes", counterfoil.ReadRow(func(context.Context, string) (int64, error) { return 998, nil }))
	must(t, err)
	var all sync.WaitGroup
	var refused atomic.Int64
	for i := 0; i < 10; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := votes.Incr(ctx, id, 1)
			var e *counterfoil.Error
			if errors.As(err, &e) {
				equal(t, e.Reason, "RANGE")
				equal(t, *e.Value, 1000)
				refused.Add(1)
			}
		}()
	}
	all.Wait()
	equal(t, refused.Load(), 8)
}

// Each caller's pairs are in several calls, which it shares with other callers. It receives the result of each pair.
func TestManyPairsOfManyCallers(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: socket}) // with time for a busy machine
	defer client.Close()
	views, id := buffered(t, with(t, client, counterfoil.Options{RetryFor: 20 * time.Second}), "views"), newID()
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 3; j++ {
				pairs := make([]counterfoil.Pair, 700)
				for k := range pairs {
					pairs[k] = counterfoil.Pair{ID: fmt.Sprint(id, k%50), Delta: 1}
				}
				results, err := views.AddMany(ctx, pairs)
				must(t, err)
				for _, result := range results {
					equal(t, result.Known, true)
				}
			}
		}()
	}
	all.Wait()
	equal(t, exact(t, id+"7"), 8*3*14)
}

var errNoRow = errors.New("no row")

func TestCallersShareARead(t *testing.T) {
	var reads atomic.Int64
	votes, err := given(t, socket, counterfoil.Options{}).Cached("votes", counterfoil.ReadRow(func(context.Context, string) (int64, error) {
		reads.Add(1)
		time.Sleep(500 * time.Millisecond) // until all have a ticket, also on a busy machine
		return 5, nil
	}))
	must(t, err)
	var all sync.WaitGroup
	id := newID()
	for i := 0; i < 20; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := votes.Incr(ctx, id, 1)
			must(t, err)
		}()
	}
	all.Wait()
	value, err := votes.Get(ctx, id)
	must(t, err)
	equal(t, value, 25)
	equal(t, reads.Load(), 1)
	failing, err := given(t, socket, counterfoil.Options{}).Cached("votes", counterfoil.ReadRow(func(context.Context, string) (int64, error) {
		return 0, errNoRow
	}))
	must(t, err)
	_, err = failing.Incr(ctx, newID(), 1)
	fails(t, err, counterfoil.ErrNotCounted, "no row")
	if !errors.Is(err, errNoRow) {
		t.Error(err)
	}
	panicking, err := given(t, socket, counterfoil.Options{}).Cached("votes", counterfoil.ReadRow(func(context.Context, string) (int64, error) {
		panic("a fault of the application")
	}))
	must(t, err)
	_, err = panicking.Incr(ctx, newID(), 1)
	fails(t, err, counterfoil.ErrNotCounted, "no row")
}
