package counterfoil

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// codec translates a batch of items to a call of the kind's script, and its reply to their results.
type codec interface {
	// place sets the partition of an item, and what else depends on the settings.
	place(e *epoch, it *item)
	// spans is true if one call may count in several partitions of a standalone server.
	spans() bool
	// limit is the maximum number of items in a call.
	limit() int
	// encode returns the call's script, its keys after calls and calls_before, and its arguments after the fence. It may
	// change the order of the batch.
	encode(f *family, e *epoch, batch []*item) (script string, keys []string, args []any, err error)
	// decode stores the results of OK or DUP in the batch.
	decode(f *family, words []any, batch []*item)
}

// item is one change of one counter: an id and a delta, a name and a number of hits, or a page or day and its visitor.
type item struct {
	id, visitor string
	delta       int64
	change      string // of a cached counter, in place of delta

	partition, partitions, stripe uint32
	queued                        time.Time
	queue                         *queue
	wait                          *waiter
	state                         state // under the lock of its queue
	outcome                             // of the queue until the item is settled
}

// outcome is the result of an item: its value if it is known, the script's word, or an error.
type outcome struct {
	value int64
	known bool
	word  string
	err   error
}

type state int

const (
	waiting state = iota
	sent
	settled
	left // its caller has returned
)

// waiter is a caller that waits for its items.
type waiter struct {
	ctx  context.Context
	left atomic.Int32
	done chan struct{}
}

// queue has one call in flight, under its own caller's name. What arrives meanwhile shares the next one.
type queue struct {
	family *family
	home   uint32
	caller string
	n      int64

	mu      sync.Mutex
	waiting []*item
	isBusy  bool
}

// count counts items and returns their outcomes. If ctx ends, those that wait leave the queue.
func (f *family) count(ctx context.Context, items ...*item) []outcome {
	outcomes := make([]outcome, len(items))
	e, err := f.describe(ctx)
	if err != nil || len(items) == 0 {
		for i := range outcomes {
			outcomes[i].err = err
		}
		return outcomes
	}
	w := &waiter{ctx: ctx, done: make(chan struct{})}
	w.left.Store(int32(len(items)))
	now := time.Now()
	for _, it := range items {
		f.codec.place(e, it)
		it.partitions, it.wait, it.queued = e.partitions, w, now
		it.queue = f.queue(it.partition)
	}
	for start := 0; start < len(items); { // neighbours of one queue at once
		q, end := items[start].queue, start+1
		for end < len(items) && items[end].queue == q {
			end++
		}
		if q.push(items[start:end]) {
			q.lead(ctx)
		}
		start = end
	}
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	for i, it := range items {
		outcomes[i] = it.queue.collect(it)
	}
	return outcomes
}

func (f *family) queue(partition uint32) *queue {
	if f.codec.spans() {
		partition = f.home(partition)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[partition]
	if q == nil {
		q = &queue{family: f, home: f.home(partition), caller: newCaller()}
		f.queues[partition] = q
	}
	return q
}

// push returns whether no call is in flight: then the caller leads the next one.
func (q *queue) push(items []*item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, items...)
	leads := !q.isBusy
	q.isBusy = true
	return leads
}

// lead makes the next call, and leaves those after it to a goroutine. So it does with the next call if its caller may have to
// return earlier.
func (q *queue) lead(ctx context.Context) {
	if ctx.Done() != nil || q.next() {
		go q.drain()
	}
}

// collect returns the outcome of an item whose caller returns now.
func (q *queue) collect(it *item) outcome {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch it.state {
	case settled:
		return it.outcome
	case waiting:
		it.state = left
		return outcome{err: q.family.fail(ErrNotCounted, "canceled", it.wait.ctx.Err())}
	default:
		return outcome{err: q.family.fail(ErrOutcomeUnknown, "canceled", it.wait.ctx.Err())}
	}
}

// drain makes one call after the other until nothing waits.
func (q *queue) drain() {
	for q.next() {
	}
}

// next makes a call with what is waiting. It returns whether anything waits then; if not, no call is in flight.
func (q *queue) next() bool {
	batch := q.take()
	if len(batch) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].wait.ctx), q.family.client.options.RetryFor)
		q.call(ctx, batch)
		cancel()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range batch {
		it.state = settled
		if it.wait.left.Add(-1) == 0 {
			close(it.wait.done)
		}
	}
	q.isBusy = len(q.waiting) > 0
	return q.isBusy
}

// take returns the items of the next call, without those whose callers have left.
func (q *queue) take() []*item {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*item
	for len(q.waiting) > 0 && len(batch) < q.family.codec.limit() {
		it := q.waiting[0]
		q.waiting[0], q.waiting = nil, q.waiting[1:]
		if it.state == waiting {
			it.state = sent
			batch = append(batch, it)
		}
	}
	return batch
}

// call sends a batch and stores the outcomes.
func (q *queue) call(ctx context.Context, batch []*item) {
	f, fresh := q.family, batch[:0:0]
	e, err := f.ask(ctx, q.home)
	for _, it := range batch {
		switch {
		case err != nil:
			it.err = err
		case it.partitions != e.partitions:
			it.err = f.fail(ErrMisconfigured, "MISMATCH", nil)
		case time.Since(it.queued) > f.client.options.RetryFor:
			it.err = &Error{Kind: ErrNotCounted, Reason: "BUSY", Family: f.path, temporary: true}
		default:
			fresh = append(fresh, it)
		}
	}
	if len(fresh) == 0 {
		return
	}
	if words, err := q.send(ctx, e, fresh); err == nil {
		f.codec.decode(f, words, fresh)
	} else if len(fresh) > 1 && isOfOne(err) {
		for _, it := range fresh {
			q.call(ctx, []*item{it})
		}
	} else {
		for _, it := range fresh {
			it.err = err
		}
	}
}

// isOfOne returns whether a call was refused, perhaps because of a single item in it.
func isOfOne(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind != ErrOutcomeUnknown && in(" WRONGTYPE BADSTATE BADARG ", e.Reason)
}

// send sends a batch as the caller's next call and returns the reply, OK or DUP.
func (q *queue) send(ctx context.Context, e *epoch, batch []*item) ([]any, error) {
	f := q.family
	for {
		script, keys, args, err := f.codec.encode(f, e, batch)
		if err != nil {
			return nil, err
		}
		q.n++
		fence := &sends{}
		keys = append(f.keys(q.home, "calls", "calls_before"), keys...)
		words, err := f.call(ctx, script, keys, append([]any{q.caller, q.n, e.now, fence}, args...), fence)
		if err != nil {
			q.caller, q.n = newCaller(), 0 // an arrival of the call may still come
			return nil, err
		}
		switch words[0] {
		case "OK", "DUP":
			return words, nil
		case "EXPIRED":
			f.expire(q.home)
			if fence.lost > 0 || !f.client.isOwn {
				return nil, f.fail(ErrOutcomeUnknown, "EXPIRED", nil)
			}
			if e, err = f.ask(ctx, q.home); err != nil {
				return nil, err
			}
		case "OUTSIDE":
			if fence.lost > 0 {
				return nil, f.fail(ErrOutcomeUnknown, "OUTSIDE", nil)
			}
			f.client.setClock(words)
		default:
			q.caller, q.n = newCaller(), 0
			return nil, f.fail(ErrOutcomeUnknown, fmt.Sprint(words[0]), nil)
		}
		if ctx.Err() != nil {
			return nil, f.fail(ErrNotCounted, fmt.Sprint(words[0]), ctx.Err())
		}
	}
}
