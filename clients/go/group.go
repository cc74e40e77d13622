package counterfoil

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// kind is what differs between the kinds of families.
type kind struct {
	name         string
	maxID, limit int  // bytes of an id, and items of a call
	spans        bool // one call may count in several partitions of a standalone server
	// place returns the partition of an item.
	place func(e *epoch, it *item) uint32
	// encode completes the call for a batch, which it may sort.
	encode func(f *family, e *epoch, batch []*item, r *request)
	// results returns the word of each item in a reply, OK or DUP, and nil where the reply does not have it.
	results func(words []any, batch []*item) []any
}

// item is one change of one counter: an id and a delta, a name and a number of hits, or a page or day and its visitor.
type item struct {
	id, visitor    string
	delta          int64
	change         string // of a cached counter, in place of delta
	request, epoch string // of AddOnce

	partition, partitions uint32
	isLost                bool   // an earlier call for it may have been executed
	place                 string // STRIPE:PAGE of an activity
	start                 time.Time
	state                 atomic.Int32
	outcome               // once it is settled
	share                 *share
}

// The states of an item.
const (
	waiting int32 = iota
	sent
	settled
	left // its caller has returned
)

// outcome is the result of an item: its value if it is known, or else the script's word, or an error.
type outcome struct {
	Pending
	word string
	err  error
}

func (it *item) settle(o outcome) {
	if e, isError := o.err.(*Error); isError && it.isLost && o.word == "" { // refused now, but perhaps not before
		unknown := *e
		unknown.Kind, o.err = ErrOutcomeUnknown, &unknown
	}
	it.outcome = o
	it.state.Store(settled)
}

// count counts items and returns their outcomes. If ctx ends, what is not sent yet is not counted.
func (f *family) count(ctx context.Context, items ...*item) []outcome {
	if ctx.Err() == nil && len(items) > 0 {
		until(ctx, func() { f.distribute(ctx, items) })
	}
	outcomes := make([]outcome, len(items))
	for i, it := range items {
		switch {
		case it.state.Load() == settled:
			outcomes[i] = it.outcome
		case it.state.CompareAndSwap(waiting, left):
			outcomes[i].err = f.fail(ErrNotCounted, "canceled", ctx.Err())
		default:
			outcomes[i].err = f.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
		}
	}
	return outcomes
}

// distribute settles items, those of each queue at the same time.
func (f *family) distribute(ctx context.Context, items []*item) {
	e, err := f.describe(ctx)
	valid := make([]*item, 0, len(items))
	for _, it := range items {
		if err := cmp.Or(f.check(it.id, f.maxID, true), err); err != nil {
			it.settle(outcome{err: err})
			continue
		}
		it.partition, it.partitions, it.start = f.kind.place(e, it), e.partitions, time.Now()
		valid = append(valid, it)
	}
	shares := groups(valid, f.queueOf)
	if len(shares) == 1 {
		f.queue(shares[0][0]).settle(ctx, shares[0])
		return
	}
	var running sync.WaitGroup
	for _, own := range shares {
		running.Add(1)
		go func() {
			defer running.Done()
			f.queue(own[0]).settle(ctx, own)
		}()
	}
	running.Wait()
}

// callsInFlight is how many calls a queue makes at a time.
const callsInFlight = 2

// queue has two calls in flight: Redis executes one while the callers of the other take its results and count again. What
// arrives meanwhile shares the next one.
type queue struct {
	family  *family
	home    uint32
	fence   []string     // the keys of the home
	callers chan *caller // those without a call in flight

	mu       sync.Mutex
	waiting  []*item
	inFlight int // items
}

// caller is a name that Redis remembers, with the number of its last call.
type caller struct {
	name string
	n    int64
}

// queueOf returns the number of an item's queue.
func (f *family) queueOf(it *item) uint32 {
	if f.spans {
		return f.home(it.partition)
	}
	return it.partition
}

func (f *family) queue(it *item) *queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[f.queueOf(it)]
	if q == nil || it.request != "" {
		home := f.home(it.partition)
		q = &queue{family: f, home: home, fence: f.keys(home, "calls", "calls_before"), callers: make(chan *caller, callsInFlight)}
		if it.request != "" {
			q.callers <- &caller{name: fmt.Sprintf("request:%d:%s:%s", len(it.request), it.request, it.id)}
			return q
		}
		for range callsInFlight {
			q.callers <- &caller{}
		}
		f.queues[f.queueOf(it)] = q
	}
	return q
}

// share is what one goroutine has in one queue.
type share struct {
	open atomic.Int64 // items
	done chan struct{}
}

// settle returns when the items are settled or their caller has left. It makes the next calls, unless others do.
func (q *queue) settle(ctx context.Context, items []*item) {
	own := &share{done: make(chan struct{})}
	own.open.Store(int64(len(items)))
	for _, it := range items {
		it.share = own
	}
	q.mu.Lock()
	q.waiting = append(q.waiting, items...)
	q.mu.Unlock()
	for isWaiting := true; isWaiting && own.open.Load() > 0; {
		select {
		case <-own.done:
			return
		case c := <-q.callers:
			isWaiting = q.next(ctx, c)
			q.callers <- c
		}
	}
	<-own.done
}

// next makes a call for what is waiting, and returns false if nothing is.
func (q *queue) next(ctx context.Context, c *caller) bool {
	items := q.take()
	if len(items) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.family.client.options.RetryFor)
	defer cancel()
	q.call(ctx, c, items)
	q.mu.Lock()
	q.inFlight -= len(items)
	q.mu.Unlock()
	for _, it := range items {
		if it.share.open.Add(-1) == 0 {
			close(it.share.done)
		}
	}
	if len(items) > 1 { // the callers first add what they count next, so that the next call has more of it
		runtime.Gosched()
	}
	return true
}

// take returns the items of the next call: its part of what several goroutines count, or all of what one does.
func (q *queue) take() []*item {
	q.mu.Lock()
	defer q.mu.Unlock()
	end := min(len(q.waiting), q.family.limit)
	if end > 0 && q.waiting[0].share != q.waiting[end-1].share {
		end = min(end, (len(q.waiting)+q.inFlight+callsInFlight-1)/callsInFlight)
	}
	items := q.waiting[:end]
	q.waiting = q.waiting[end:]
	q.inFlight += end
	return items
}

// call settles items, those whose callers have not left.
func (q *queue) call(ctx context.Context, c *caller, items []*item) {
	f := q.family
	isLate := func(it *item) bool { return time.Since(it.start) > f.client.options.RetryFor }
	var e *epoch
	var err error = f.failTemporarily("BUSY", nil)
	if !isLate(items[len(items)-1]) { // the last to arrive: otherwise each call would wait for an epoch
		e, err = f.ask(ctx, q.home)
	}
	if err == nil && !e.knows(items[0].epoch) { // it may be newer
		f.epochs.Delete(q.home)
		e, err = f.ask(ctx, q.home)
	}
	batch := make([]*item, 0, len(items))
	for _, it := range items {
		switch {
		case !it.isLost && !it.state.CompareAndSwap(waiting, sent):
		case err != nil:
			it.settle(outcome{err: err})
		case it.partitions != e.partitions:
			f.epochs.Delete(q.home)
			it.settle(outcome{err: f.fail(ErrMisconfigured, "MISMATCH", nil)})
		case !e.knows(it.epoch): // Redis may have forgotten the request
			it.settle(outcome{err: f.fail(ErrOutcomeUnknown, "EXPIRED", nil)})
		case isLate(it):
			it.settle(outcome{err: f.failTemporarily("BUSY", nil)})
		default:
			batch = append(batch, it)
		}
	}
	if len(batch) > 0 {
		q.send(ctx, c, e, batch)
	}
}

// send makes the caller's next call, for a batch, and settles it.
func (q *queue) send(ctx context.Context, c *caller, e *epoch, batch []*item) {
	f, status, epoch, isRequest := q.family, any(""), e.now, batch[0].request != ""
	if isRequest {
		c.n, epoch = 1, e.before // which is looked up in both memories
	} else {
		c.step()
	}
	r := &request{keys: append(make([]string, 0, 8), q.fence...)}
	r.args = append(make([]any, 0, 16), c.name, c.n, epoch, r)
	f.encode(f, e, batch, r)
	words, err := f.call(ctx, r)
	if err == nil {
		status = words[0]
	}
	isDone := status == "OK" || status == "DUP"
	if !isDone && !isRequest {
		c.name = "" // another process may have it
	}
	if isDone {
		for i, word := range f.results(words, batch) {
			batch[i].settle(f.outcomeOf(word))
		}
		return
	}
	isOnly := r.sent > 0 && r.lost == 0
	isAnew := isOnly && (status == "OUTSIDE" || status == "EXPIRED") || isRequest && status == "EXPIRED"
	switch status {
	case "OUTSIDE":
		f.client.setClock(words[1])
	case "EXPIRED":
		f.epochs.Delete(q.home)
	}
	var failure *Error
	isOfOne := errors.As(err, &failure) && failure.Kind != ErrOutcomeUnknown && in(" WRONGTYPE BADSTATE BADARG ", failure.Reason)
	switch {
	case isAnew:
		if isRequest && r.lost > 0 {
			batch[0].isLost, batch[0].epoch = true, cmp.Or(batch[0].epoch, e.now)
		}
		q.again(ctx, c, batch)
	case isOfOne && len(batch) > 1: // perhaps because of a single item
		for i := range batch {
			q.again(ctx, c, batch[i:i+1])
		}
	default:
		for _, it := range batch {
			it.settle(outcome{err: cmp.Or(err, error(f.fail(ErrOutcomeUnknown, fmt.Sprint(status), nil)))})
		}
	}
}

// again settles items of a call that counted nothing, or a request of unknown outcome, with a new one.
func (q *queue) again(ctx context.Context, c *caller, items []*item) {
	for _, it := range items {
		if !it.isLost {
			it.state.Store(waiting)
		}
	}
	q.call(ctx, c, items)
}

// outcomeOf reads the word of an item: a number, or why it was not counted, or nil if it was counted and nothing else is known.
func (f *family) outcomeOf(word any) outcome {
	switch word := word.(type) {
	case nil:
		return outcome{}
	case int64:
		return outcome{Pending: Pending{word, true}}
	}
	text := fmt.Sprint(word)
	if value, err := strconv.ParseInt(text, 10, 64); err == nil {
		return outcome{Pending: Pending{value, true}}
	}
	reason, rest, _ := strings.Cut(text, ":")
	e := f.fail(ErrNotCounted, reason, nil)
	if value, err := strconv.ParseInt(rest, 10, 64); err == nil && reason == "RANGE" {
		e.Value = &value
	}
	return outcome{word: text, err: e}
}

// refusals returns the words in a text such as "3:FULL 7:RANGE": those of the third and the seventh item.
func refusals(text any, batch []*item) []any {
	words, results := map[string]any{}, make([]any, len(batch))
	for _, one := range strings.Fields(fmt.Sprint(text)) {
		number, word, _ := strings.Cut(one, ":")
		words[number] = word
	}
	for i := range results {
		results[i] = words[strconv.Itoa(i+1)]
	}
	return results
}

// groups sorts items by a key and returns those with the same one together.
func groups[K cmp.Ordered](items []*item, key func(*item) K) (all [][]*item) {
	slices.SortStableFunc(items, func(a, b *item) int { return cmp.Compare(key(a), key(b)) })
	start := 0
	for i := range items {
		if i+1 == len(items) || key(items[i+1]) != key(items[i]) {
			all, start = append(all, items[start:i+1]), i+1
		}
	}
	return all
}

func byPartition(items []*item) [][]*item {
	return groups(items, func(it *item) uint32 { return it.partition })
}
