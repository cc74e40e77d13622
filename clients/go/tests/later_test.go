package tests

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/redis/go-redis/v9"
)

func TestLater(t *testing.T) {
	views, id := buffered(t, given(t, socket, counterfoil.Options{}), "views"), newID()
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 1000; j++ {
				must(t, views.Later(fmt.Sprint(id, j%10), 1))
			}
		}()
	}
	all.Wait()
	must(t, views.Flush(ctx))
	equal(t, exact(t, id+"7"), 800)
	must(t, views.Later(id, 1))
	for start := time.Now(); exact(t, id) == 0; { // without a flush
		if time.Since(start) > 20*time.Second {
			t.Fatal("not sent")
		}
	}
}

func TestLaterKeepsWhatWasNotSent(t *testing.T) {
	p := startProxy(t)
	counters := given(t, p.socket, counterfoil.Options{RetryFor: 300 * time.Millisecond})
	views, id := buffered(t, counters, "views"), newID()
	p.stop()
	must(t, views.Later(id, 1))
	fails(t, views.Flush(ctx), counterfoil.ErrNotCounted, "UNREACHABLE")
	must(t, views.Later(id, 1))
	p.listen(t)
	eventually(t, func() error { return views.Flush(ctx) })
	equal(t, exact(t, id), 2)
}

func TestLaterReportsWhatIsLost(t *testing.T) {
	var mu sync.Mutex
	lost := map[string]int64{}
	options := counterfoil.Options{OnError: func(_, id string, delta int64, err error) {
		mu.Lock()
		defer mu.Unlock()
		lost[id] = delta
	}}
	counters := given(t, socket, options)
	views, id := buffered(t, counters, "views"), newID()
	_, err := views.Add(ctx, id, 1<<63-1)
	must(t, err)
	must(t, views.Later(id, 1))
	must(t, views.Later(id+"b", 1))
	err = views.Flush(ctx)
	fails(t, err, counterfoil.ErrNotCounted, "RANGE")
	mu.Lock()
	equal(t, lost[id], 1)
	equal(t, len(lost), 1)
	mu.Unlock()
	must(t, views.Flush(ctx))
	equal(t, exact(t, id+"b"), 1)
	_, err = views.Add(ctx, id, -(1<<63 - 1))
	must(t, err)
}

func TestLaterIsBounded(t *testing.T) {
	p := startProxy(t)
	views := buffered(t, given(t, p.socket, counterfoil.Options{LaterEvery: time.Hour}), "views")
	for i := 0; i < 100_000; i++ {
		must(t, views.Later(fmt.Sprint(i), 0))
	}
	fails(t, views.Later("more", 0), counterfoil.ErrNotCounted, "BUSY")
	must(t, views.Later("1", 0))
}

func TestCloseReportsWhatItCannotSend(t *testing.T) {
	p, reported := startProxy(t), 0
	var counters *counterfoil.Client
	counters = given(t, p.socket, counterfoil.Options{LaterEvery: time.Hour, RetryFor: 300 * time.Millisecond, OnError: func(_, _ string, delta int64, _ error) {
		buffered(t, counters, "wide") // Close does not hold the families
		reported += int(delta)
	}})
	views, id := buffered(t, counters, "views"), newID()
	must(t, views.Later(id, 1))
	must(t, views.Later(id+"b", 2))
	p.stop()
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fails(t, counters.Close(short), counterfoil.ErrNotCounted, "UNREACHABLE")
	equal(t, reported, 3)
}

// attempts is a hook that notes when calls are made, except those whose time is over.
type attempts struct {
	prefix
	mu sync.Mutex
	at []time.Time
}

// begin returns how many were made before, and forgets them.
func (a *attempts) begin() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	made := len(a.at)
	a.at = nil
	return made
}

func (a *attempts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		a.mu.Lock()
		if ctx.Err() == nil {
			a.at = append(a.at, time.Now())
		}
		a.mu.Unlock()
		return next(ctx, command)
	}
}

func TestLaterPausesWhileRedisIsFull(t *testing.T) {
	made := &attempts{}
	client := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: time.Second})
	defer client.Close()
	client.AddHook(made)
	views, id := buffered(t, with(t, client, counterfoil.Options{}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	must(t, direct.ConfigSet(ctx, "maxmemory", "1").Err())
	defer direct.ConfigSet(ctx, "maxmemory", "0")
	must(t, views.Later(id, 1))
	time.Sleep(500 * time.Millisecond)
	fails(t, views.Flush(ctx), counterfoil.ErrNotCounted, "OOM")
	made.mu.Lock()
	if calls := len(made.at); calls > 10 {
		t.Error(calls)
	}
	made.mu.Unlock()
	must(t, direct.ConfigSet(ctx, "maxmemory", "0").Err())
	must(t, views.Flush(ctx))
	equal(t, exact(t, id), 2)
}

func TestCloseProbesForAllFamiliesAndIDs(t *testing.T) {
	p, made := startProxy(t), &attempts{}
	client := redis.NewClient(&redis.Options{Addr: p.socket, ReadTimeout: 200 * time.Millisecond})
	defer client.Close()
	client.AddHook(made)
	counters := with(t, client, counterfoil.Options{LaterEvery: time.Hour, RetryFor: time.Second})
	for _, name := range []string{"views", "wide", "small", "product_views"} {
		family := buffered(t, counters, name)
		_, err := family.Add(ctx, "a", 0)
		must(t, err)
		for i := 0; i < 4000; i++ {
			must(t, family.Later(fmt.Sprint(i), 1))
		}
	}
	p.stop()
	_, err := buffered(t, counters, "views").RequestEpoch(ctx, "request", "a") // and no epoch is known, as after 30 s
	fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
	made.begin()
	fails(t, counters.Close(ctx), counterfoil.ErrNotCounted, "")
	if probes := made.begin(); probes < 2 || probes > 12 {
		t.Error(probes)
	}
}

func TestCloseSends(t *testing.T) {
	counters := own(t, socket)
	views, id := buffered(t, counters, "views"), newID()
	must(t, views.Later(id, 3))
	must(t, counters.Close(ctx))
	equal(t, exact(t, id), 3)
	readers, err := counters.Activity("readers")
	must(t, err)
	for _, call := range []func() error{
		add(views, id),
		func() error { return views.Later(id, 3) },
		func() error { return buffered(t, counters, "wide").Later(id, 3) },
		func() error { _, err := views.Value(ctx, id); return err },
		func() error { _, err := views.RequestEpoch(ctx, "request", id); return err },
		func() error { _, _, err := readers.Now(ctx, id); return err },
		func() error { return views.Flush(ctx) },
		func() error { return counters.Flush(ctx) },
	} {
		err := call()
		fails(t, err, counterfoil.ErrNotCounted, "CLOSED")
		if !strings.Contains(err.Error(), "CLOSED: the client is closed") {
			t.Error(err)
		}
	}
	must(t, counters.Close(ctx))
}
