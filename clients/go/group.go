package counterfoil

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// encode completes the call for a batch, which is sorted by partition and may be sorted further.
	encode func(f *family, e *epoch, batch []*item, r *request)
	// results returns the word of each item in a reply, or nil where the reply only has what was refused.
	results func(words []any, batch []*item) []any
}

// item is one change of one counter: an id and a delta, a name and a number of hits, or a page or day and its visitor.
type item struct {
	id, visitor    string
	delta          int64
	change         string // of a cached counter, in place of delta
	request, epoch string // of AddOnce

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
	fence  []string // the keys of the home
	caller string
	n      int64

	mu      sync.Mutex
	waiting []*item
	isBusy  bool
}

// count counts items and returns their outcomes. If ctx ends, those that wait leave the queue.
func (f *family) count(ctx context.Context, items ...*item) []outcome {
	outcomes, w := make([]outcome, len(items)), &waiter{ctx: ctx, done: make(chan struct{})}
	valid := make([]*item, 0, len(items))
	var e *epoch
	var err error
	for i, it := range items {
		outcomes[i].err = f.check(it.id, f.maxID, true)
		if outcomes[i].err == nil && e == nil && err == nil {
			e, err = f.describe(ctx)
		}
		if outcomes[i].err = cmp.Or(outcomes[i].err, err); outcomes[i].err == nil {
			it.partition, it.partitions, it.wait, it.queued = f.place(e, it), e.partitions, w, time.Now()
			it.queue, valid = f.queue(it), append(valid, it)
		}
	}
	w.left.Store(int32(len(valid)))
	if len(valid) > 1 {
		slices.SortStableFunc(valid, byPartition)
	}
	for start, end := 0, 0; start < len(valid); start = end { // those of one queue at once
		q := valid[start].queue
		for end < len(valid) && valid[end].queue == q {
			end++
		}
		q.push(valid[start:end], ctx.Done() == nil && end == len(valid))
	}
	if len(valid) > 0 {
		select {
		case <-w.done:
		case <-ctx.Done():
		}
	}
	for i, it := range items {
		if it.queue != nil {
			outcomes[i] = it.queue.collect(it)
		}
	}
	return outcomes
}

func (f *family) queue(it *item) *queue {
	number := it.partition
	if f.spans {
		number = f.home(it.partition)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.queues[number]; known != nil && it.request == "" {
		return known
	}
	home := f.home(it.partition)
	q := &queue{family: f, home: home, fence: f.keys(home, "calls", "calls_before"), caller: newCaller()}
	if it.request != "" {
		q.caller = fmt.Sprintf("request:%d:%s:%s", len(it.request), it.request, it.id)
		return q
	}
	f.queues[number] = q
	return q
}

// push adds items. If no call is in flight the next one is made here, if this goroutine need not return earlier, or else in
// a goroutine of its own, like those after it.
func (q *queue) push(items []*item, mayWait bool) {
	q.mu.Lock()
	q.waiting = append(q.waiting, items...)
	isBusy := q.isBusy
	q.isBusy = true
	q.mu.Unlock()
	if !isBusy && !(mayWait && !q.next()) {
		go func() {
			for q.next() {
			}
		}()
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

// next makes a call with what is waiting. It returns whether anything waits then; if not, no call is in flight.
func (q *queue) next() bool {
	batch := q.take()
	if len(batch) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].wait.ctx), q.family.client.options.RetryFor)
		defer cancel()
		q.call(ctx, batch)
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
func (q *queue) take() (batch []*item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 && len(batch) < q.family.limit {
		if q.waiting[0].state == waiting {
			batch = append(batch, q.waiting[0])
		}
		q.waiting[0], q.waiting = nil, q.waiting[1:]
	}
	return batch
}

// call sends a batch and stores the outcomes.
func (q *queue) call(ctx context.Context, batch []*item) {
	f := q.family
	e, err := f.ask(ctx, q.home)
	q.mu.Lock()
	batch = slices.DeleteFunc(slices.Clone(batch), func(it *item) bool {
		switch {
		case it.state == left:
			return true
		case err != nil:
			it.err = err
		case it.partitions != e.partitions:
			it.err = f.fail(ErrMisconfigured, "MISMATCH", nil)
		case time.Since(it.queued) > f.client.options.RetryFor:
			it.err = f.failTemporarily("BUSY", nil)
		default:
			it.state = sent
		}
		return it.err != nil
	})
	q.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	slices.SortStableFunc(batch, byPartition)
	words, err := q.send(ctx, e, batch)
	var refusal *Error
	isOfOne := errors.As(err, &refusal) && refusal.Kind != ErrOutcomeUnknown && in(" WRONGTYPE BADSTATE BADARG ", refusal.Reason)
	switch {
	case err == nil:
		f.decode(words, batch)
	case isOfOne && len(batch) > 1: // perhaps because of a single item
		for _, it := range batch {
			q.call(ctx, []*item{it})
		}
	default:
		for _, it := range batch {
			it.err = err
		}
	}
}

func byPartition(a, b *item) int { return cmp.Compare(a.partition, b.partition) }

// send sends a batch as the caller's next call and returns the reply, OK or DUP.
func (q *queue) send(ctx context.Context, e *epoch, batch []*item) ([]any, error) {
	f, first := q.family, batch[0]
	for {
		q.n++
		n, epoch, fence := q.n, e.now, &sends{}
		if first.request != "" {
			first.epoch = cmp.Or(first.epoch, e.now)
			if first.epoch != e.now && first.epoch != e.before {
				return nil, f.fail(ErrOutcomeUnknown, "EXPIRED", nil)
			}
			n, epoch = 1, e.before // which is looked up in both memories
		}
		r := &request{keys: append(make([]string, 0, 8), q.fence...), args: append(make([]any, 0, 16), q.caller, n, epoch, fence)}
		f.encode(f, e, batch, r)
		words, err := f.call(ctx, r, fence)
		if err == nil && (words[0] == "OK" || words[0] == "DUP") {
			return words, nil
		}
		status := textAt(words, 0)
		isAnew := status == "OUTSIDE" && fence.lost == 0 || status == "EXPIRED" && (first.request != "" || fence.lost == 0 && f.client.isOwn)
		switch {
		case status == "EXPIRED":
			f.expire(q.home)
		case status == "OUTSIDE":
			f.client.setClock(words)
		default: // an arrival of the call may still come
			q.caller, q.n = newCaller(), 0
		}
		if err != nil {
			return nil, err
		}
		if !isAnew || ctx.Err() != nil {
			return nil, f.fail(ErrOutcomeUnknown, status, ctx.Err())
		}
		if e, err = f.ask(ctx, q.home); err == nil && e.partitions != first.partitions {
			err = f.fail(ErrMisconfigured, "MISMATCH", nil)
		}
		if err != nil && first.request != "" { // an earlier arrival, of any process, may have been executed
			err = f.fail(ErrOutcomeUnknown, status, err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// decode stores the results in a reply, OK or DUP.
func (f *family) decode(words []any, batch []*item) {
	if results := f.results(words, batch); results != nil {
		for i, it := range batch {
			it.outcome = f.outcomeOf(textAt(results, i))
		}
		return
	}
	// such as "3:FULL 7:RANGE": what was refused when the call was executed, counted from 1
	for _, word := range strings.Fields(textAt(words, 1)) {
		number, reason, _ := strings.Cut(word, ":")
		if i, err := strconv.Atoi(number); err == nil && i >= 1 && i <= len(batch) {
			batch[i-1].err = f.fail(ErrNotCounted, reason, nil)
		}
	}
}

// outcomeOf reads a result: a number, or why the item was not counted.
func (f *family) outcomeOf(word string) outcome {
	if value, err := strconv.ParseInt(word, 10, 64); err == nil {
		return outcome{value: value, known: true}
	}
	return outcome{word: word, err: f.fail(ErrNotCounted, word, nil)}
}

// textAt returns a part of a reply, integers as text, since those beyond 2^53 are strings.
func textAt(words []any, at int) string {
	if at >= len(words) {
		return ""
	}
	switch word := words[at].(type) {
	case string:
		return word
	case int64:
		return strconv.FormatInt(word, 10)
	}
	return fmt.Sprint(words[at])
}

func numberAt(words []any, at int) int64 {
	number, _ := strconv.ParseInt(textAt(words, at), 10, 64) // the scripts return numbers
	return number
}

// bump adds to an argument that counts what follows it.
func bump(args []any, at int, more int64) { args[at] = args[at].(int64) + more }
