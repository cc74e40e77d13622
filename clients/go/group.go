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

// writer counts the changes of a family. T is the type of their targets. Changes that arrive while calls are in flight share the
// next call (group commit).
type writer[T target] struct {
	*family
	kind kind[T]
	sums sums[T]

	mu     sync.Mutex
	queues map[uint32]*queue[T] // by partition or, where a call spans partitions, by home
}

// change is a change of a target by a number: a sum, or of Cached.Set the new value.
type change[T target] struct {
	target T
	n      int64
}

// entry is a change in a queue.
type entry[T target] struct {
	change[T]
	*submission
	known     *description // that the partition was chosen with; its keys are made with it too, as settings may change meanwhile
	partition uint32
	state     atomic.Int32
	Result    // once it is settled
}

// The states of an entry.
const (
	waiting int32 = iota
	taken         // by a call
	settled
)

// submission is the entries that one goroutine waits for.
type submission struct {
	ctx      context.Context // has the values of the caller's, and does not end
	deadline time.Time
	open     atomic.Int32  // entries that are not settled, and one more until all are in their queues
	done     chan struct{} // is closed when nothing is open
}

func (s *submission) add() { s.open.Add(1) }

func (s *submission) finish() {
	if s.open.Add(-1) == 0 {
		close(s.done)
	}
}

func (e *entry[T]) settle(r Result) {
	e.Result = r
	e.state.Store(settled)
	e.finish()
}

// count counts changes and returns the result of each. If ctx ends, what is not sent yet is not counted.
func (w *writer[T]) count(ctx context.Context, changes ...change[T]) []Result {
	ctx = limitTo(ctx, w.client.retryFor())
	d, err := w.known(ctx)
	if ctx.Err() != nil {
		err = cmp.Or(err, error(w.ended(ctx)))
	}
	if closed := w.closed(); closed != nil {
		err = closed
	}
	own := &submission{ctx: context.WithoutCancel(ctx), deadline: limitOf(ctx), done: make(chan struct{})}
	own.add()
	queues := map[*queue[T]][]*entry[T]{}
	entries, results := make([]entry[T], len(changes)), make([]Result, len(changes))
	for i := range changes {
		e := &entries[i]
		e.change, e.submission = changes[i], own
		if results[i].Err = w.admit(e, d, err); results[i].Err != nil {
			e.state.Store(taken)
			continue
		}
		own.add()
		if w.client.memory != nil {
			e.settle(w.countInMemory(e))
			continue
		}
		q := w.queue(e)
		queues[q] = append(queues[q], e)
	}
	for q, some := range queues {
		c := q.add(some)
		// a single call that nothing cancels needs no goroutine of its own
		if c != nil && (len(queues) > 1 || ctx.Done() != nil || q.next(c)) {
			go q.work(c)
		}
	}
	own.finish()
	select {
	case <-own.done:
	case <-ctx.Done():
		for i := range entries {
			if entries[i].state.CompareAndSwap(waiting, taken) {
				entries[i].settle(Result{Err: w.ended(ctx)})
			}
		}
		if isOver(ctx) {
			<-own.done // the calls end as well, with a more exact error
		}
	}
	for i := range entries {
		switch {
		case results[i].Err != nil:
		case entries[i].state.Load() == settled:
			results[i] = entries[i].Result
		default:
			results[i].Err = w.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
		}
	}
	return results
}

// admit chooses the partition of an entry. It returns why the entry cannot be sent: because of its id, of err, or of an outage.
func (w *writer[T]) admit(e *entry[T], d *description, err error) error {
	if err != nil {
		return cmp.Or(w.check(e.target.given(), w.maxID, true), err)
	}
	id := e.target.rowID(d.Separator)
	if err := w.check(id, w.maxID, true); err != nil {
		return err
	}
	if err := w.checkRow(d, id); err != nil {
		return err
	}
	e.known, e.partition = d, e.target.partition(d)
	if outage := w.down(w.serverOf(w.home(e.partition))); outage != nil {
		return outage
	}
	return nil
}

// countInMemory counts an entry in package counterfoiltest.
func (w *writer[T]) countInMemory(e *entry[T]) Result {
	hit := e.target.inMemory(e.n)
	hit.ID, hit.At = e.target.rowID(e.known.Separator), cmp.Or(hit.At, time.Now())
	return w.resultOf(w.client.memory.Count(w.path, hit))
}

// countAnew counts a change. If the family has changed in Redis it counts it again: the change may belong to another partition.
func (w *writer[T]) countAnew(ctx context.Context, target T, n int64) Result {
	ctx = limitTo(ctx, w.client.retryFor())
	for attempt := 0; ; attempt++ {
		result := w.count(ctx, change[T]{target, n})[0]
		e, isError := result.Err.(*Error)
		if !isError || e.Kind != ErrNotCounted || e.Reason != "MISMATCH" || attempt == rounds {
			return result
		}
	}
}

// queue has two calls in flight: Redis executes one while the goroutines of the other take their results and count again. What
// arrives meanwhile shares the next call.
type queue[T target] struct {
	writer *writer[T]
	home   uint32

	mu      sync.Mutex
	waiting []*entry[T]
	idle    []*caller // those without a call in flight
}

// caller is a name that Redis remembers, with the number of its last call.
type caller struct {
	name string
	n    int64
}

// queue returns the queue of an entry.
func (w *writer[T]) queue(e *entry[T]) *queue[T] {
	home, key := w.home(e.partition), e.partition
	if w.spansPartitions {
		key = home
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[key]
	if q == nil {
		q = &queue[T]{writer: w, home: home, idle: []*caller{{}, {}}}
		w.queues[key] = q
	}
	return q
}

// add adds entries. It returns a caller that is idle, if there is one, which then makes calls.
func (q *queue[T]) add(entries []*entry[T]) *caller {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, entries...)
	if len(q.idle) == 0 {
		return nil
	}
	c := q.idle[0]
	q.idle = q.idle[1:]
	return c
}

// work makes calls until nothing is waiting.
func (q *queue[T]) work(c *caller) {
	for q.next(c) {
	}
}

// next makes a call, and returns false if nothing else is waiting: the caller is idle again.
func (q *queue[T]) next(c *caller) bool {
	q.mu.Lock()
	end := min(len(q.waiting), q.writer.limit)
	entries := slices.DeleteFunc(q.waiting[:end], func(e *entry[T]) bool { return e.state.Load() != waiting })
	q.waiting = q.waiting[end:]
	q.mu.Unlock()
	if len(entries) > 0 {
		first := slices.MinFunc(entries, func(a, b *entry[T]) int { return a.deadline.Compare(b.deadline) })
		ctx, cancel := limited(first.ctx, q.writer.client.retryFor())
		defer cancel()
		q.commit(ctx, c, entries)
	}
	if end > 1 { // their goroutines first add what they count next, so that more of it shares the next call
		runtime.Gosched()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.idle = append(q.idle, c)
	}
	return len(q.waiting) > 0
}

// commit settles entries by a call, but for those whose goroutines wait no more.
func (q *queue[T]) commit(ctx context.Context, c *caller, entries []*entry[T]) {
	w := q.writer
	d, err := w.describe(ctx, q.home)
	own := make([]*entry[T], 0, len(entries))
	for _, e := range entries {
		switch {
		case !e.state.CompareAndSwap(waiting, taken):
		case err != nil:
			e.settle(Result{Err: err})
		case e.known.partitions != d.partitions:
			w.descriptions.Delete(q.home)
			e.settle(Result{Err: w.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("it has %d partitions now", d.partitions))})
		default:
			own = append(own, e)
		}
	}
	if len(own) > 0 {
		q.send(ctx, c, newBatch(d, own))
	}
}

// send makes the caller's next call, for a batch, and settles its entries. Their goroutines get:
//
//	reply                  if each send has its reply          if a reply was lost
//	OK, DUP                the result of the entry's word      the result of the entry's word
//	EXPIRED                the result of another call          ErrOutcomeUnknown
//	MISMATCH               ErrNotCounted, see countAnew        ErrOutcomeUnknown
//	PASSED and any other   ErrOutcomeUnknown                   ErrOutcomeUnknown
//	WRONGTYPE, BADSTATE    the result of a call of its own     ErrOutcomeUnknown
//	or BADARG for several
//	any other error        the error of execute                the error of execute
//
// The results of words:
//
//	a number               counted: what is pending, the new value, or 1; 0 for a visitor who was there before
//	none                   counted, but the reply with the number was lost: Known is false
//	BEFORE:WORD            the result of WORD: an earlier call has counted the request
//	EXPIRED                ErrOutcomeUnknown: Redis may have forgotten the request
//	MISS:TICKET            the result of another call, after the counter is seeded
//	RANGE:VALUE            ErrNotCounted with the value of the counter
//	NOCALENDAR             ErrNotCounted, and Later keeps its sum
//	FULL, RANGE, BADID...  ErrNotCounted
func (q *queue[T]) send(ctx context.Context, c *caller, b *batch[T]) {
	w := q.writer
	c.step()
	call := &scriptCall{family: w.family, script: w.script, home: q.home, isCounting: true}
	call.addKeys(q.home, "calls", "calls_before")
	call.addArgs(c.name, c.n, b.epoch, call)
	w.kind.write(call, b)
	reply, err := w.execute(ctx, call)
	status := ""
	if err == nil {
		status = reply[0].(string)
		err = w.fail(ErrOutcomeUnknown, status, nil)
	}
	if status == "OK" || status == "DUP" {
		words := w.kind.words(reply, b)
		for i, e := range b.entries {
			if words[i] == "EXPIRED" {
				w.descriptions.Delete(q.home) // Redis has another generation
			}
			e.settle(w.resultOf(words[i]))
		}
		return
	}
	c.name = "" // another process may have it
	switch status {
	case "MISMATCH":
		w.latest.Store(nil)
		w.descriptions.Delete(q.home)
	case "EXPIRED":
		w.descriptions.Delete(q.home)
	}
	// if each send has its reply, none of them was executed
	isAnswered, failure := call.sent.Load() > 0 && call.lost() == 0, err.(*Error)
	switch {
	case isAnswered && status == "EXPIRED":
		q.again(ctx, c, b.entries)
	case isAnswered && status == "MISMATCH":
		for _, e := range b.entries {
			e.settle(Result{Err: w.failTemporarily(status, nil)})
		}
	case len(b.entries) > 1 && failure.Kind != ErrOutcomeUnknown && in(ofOne, failure.Reason):
		for i := range b.entries { // perhaps Redis refuses only one of them
			q.again(ctx, c, b.entries[i:i+1])
		}
	default:
		for _, e := range b.entries {
			e.settle(Result{Err: err})
		}
	}
}

// again settles the entries of a call that counted nothing, by another call.
func (q *queue[T]) again(ctx context.Context, c *caller, entries []*entry[T]) {
	for _, e := range entries {
		e.state.Store(waiting)
	}
	q.commit(ctx, c, entries)
}

// resultOf returns the result of an entry's word, or of the word of cached_get.
func (f *family) resultOf(word any) Result {
	if word == nil {
		return Result{}
	}
	text := fmt.Sprint(word)
	if value, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Result{Pending: Pending{value, true}}
	}
	reason, rest, _ := strings.Cut(text, ":")
	if reason == "BEFORE" {
		before := f.resultOf(rest)
		before.isBefore = true
		return before
	}
	if reason == "EXPIRED" {
		return Result{Err: f.fail(ErrOutcomeUnknown, reason, errors.New("Redis may have forgotten the request"))}
	}
	refused := f.fail(ErrNotCounted, reason, nil)
	refused.isTemporary = reason == noCalendar
	if value, err := strconv.ParseInt(rest, 10, 64); err == nil && reason == "RANGE" {
		refused.Value, refused.cause = &value, fmt.Errorf("the value is %d, and would leave its bounds", value)
	}
	if reason == "MISS" {
		return Result{Err: refused, ticket: rest}
	}
	return Result{Err: refused}
}
