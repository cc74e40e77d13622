package counterfoil

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	probeEvery  = time.Second
	probeWithin = 400 * time.Millisecond
	// daemons is the name of all daemons together, beside the names of servers of Redis.
	daemons = "daemons"
)

// server is what calls need: a Redis, the node of a home in a cluster, all daemons together, or the daemon that configures a
// family. During its outage calls fail before anything is sent.
type server struct{ outage atomic.Pointer[outage] }

// outage begins when the time of a call is over without a usable reply. It ends when a probe succeeds.
type outage struct {
	what   string // the name of what is unavailable; "" if the cause has it
	since  time.Time
	reason string
	cause  error
	probe  func(context.Context) bool
}

func (c *Client) server(name string) *server {
	known, isKnown := c.servers.Load(name)
	if !isKnown {
		known, _ = c.servers.LoadOrStore(name, &server{})
	}
	return known.(*server)
}

// serverOf returns the name of the server of a home.
func (f *family) serverOf(home uint32) string {
	if f.client.isCluster {
		return fmt.Sprint(f.path, "/", home)
	}
	return ""
}

// down returns the error of calls during an outage, or nil.
func (f *family) down(name string) *Error {
	o := f.client.server(name).outage.Load()
	if o == nil {
		return nil
	}
	since := time.Since(o.since).Truncate(time.Second)
	switch {
	case o.what == "":
		return f.failTemporarily(o.reason, o.cause)
	case since == 0:
		return f.failTemporarily(o.reason, fmt.Errorf("%s is unavailable: %w", o.what, o.cause))
	}
	return f.failTemporarily(o.reason, fmt.Errorf("%s has been unavailable for %s: %w", o.what, since, o.cause))
}

// begin begins an outage with an error, unless one has begun. A goroutine probes until it is over, or the client is closed.
func (f *family) begin(name, what string, e *Error, probe func(context.Context) bool) {
	ctx, s := f.client.open, f.client.server(name)
	o := &outage{what: what, since: time.Now(), reason: e.Reason, cause: e.cause, probe: probe}
	if ctx.Err() != nil || !s.outage.CompareAndSwap(nil, o) {
		return
	}
	go func() {
		for s.outage.Load() == o && sleep(ctx, probeEvery) {
			s.try(ctx)
		}
		s.outage.CompareAndSwap(o, nil)
	}()
}

// try makes one probe, if there is an outage.
func (s *server) try(ctx context.Context) {
	o := s.outage.Load()
	if o == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	if isUp, _ := within(ctx, func() (bool, error) { return o.probe(ctx), nil }); isUp {
		s.outage.CompareAndSwap(o, nil)
	}
}

// tryAll makes one probe of each server that is down, all at the same time.
func (c *Client) tryAll(ctx context.Context) {
	var all sync.WaitGroup
	c.servers.Range(func(_, known any) bool {
		all.Add(1)
		go func() {
			defer all.Done()
			known.(*server).try(ctx)
		}()
		return true
	})
	all.Wait()
}

// errLimit is the cause of a context that ended with the time for a call, and not with the caller's context.
var errLimit = errors.New("no reply in time")

// limit is the key of the time at which a call ends, in its context and those of the calls that it makes.
type limit struct{}

func limitTo(ctx context.Context, most time.Duration) context.Context {
	end := time.Now().Add(most)
	if outer := limitOf(ctx); !outer.IsZero() && outer.Before(end) {
		return ctx
	}
	return context.WithValue(ctx, limit{}, end)
}

func limitOf(ctx context.Context) time.Time {
	end, _ := ctx.Value(limit{}).(time.Time)
	return end
}

// limited returns a context that ends with the time for a call.
func limited(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx = limitTo(ctx, most)
	return context.WithDeadlineCause(ctx, limitOf(ctx), errLimit)
}

// ended returns the error of a call that was not sent before its context ended.
func (f *family) ended(ctx context.Context) *Error {
	if isOver(ctx) {
		return f.failTemporarily(unreachable, errLimit)
	}
	return f.fail(ErrNotCounted, "canceled", ctx.Err())
}

// isOver returns true if the time for the call is over.
func isOver(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errLimit) }

// within returns what a function returns, or the cause of the end of ctx if the function continues after that.
func within[T any](ctx context.Context, run func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := protected(run)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done: // most functions end with ctx as well, and their own error explains more
		return r.value, r.err
	case <-time.After(10 * time.Millisecond):
		var none T
		return none, context.Cause(ctx)
	}
}

// protected returns a panic as an error, because others wait for the result.
func protected[T any](run func() (T, error)) (result T, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("panic: %v", problem)
		}
	}()
	return run()
}

// sleep returns false if ctx ends before the pause is over.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
