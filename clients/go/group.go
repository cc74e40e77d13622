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
	name, script string
	maxID, limit int      // bytes of an id, and items of a call
	keys         []string // of each partition in a call
	homeKeys     []string // before these, at the home
	spans        bool     // one call may count in several partitions of a standalone server
	hasTotals    bool     // the reply OK has a total before the words of each partition
	hasRefusals  bool     // the reply DUP is a text such as "3:FULL 7:RANGE": the words of the third and the seventh item
	sharesWords  bool     // items of a place have one word in the reply
	// place returns the partition of an item.
	place func(e *epoch, it *item) uint32
	// head returns the arguments before those of the partitions.
	head func(f *family, e *epoch, requests int) []any
	// encode adds the items of a partition to a call.
	encode func(f *family, e *epoch, items []*item, r *request)
}

// item is one change of one counter: an id and a delta, a name and a number of hits, or a page or day and its visitor.
type item struct {
	id, visitor    string
	delta          int64
	at             string // of a series, in Unix milliseconds; "" for now
	change         string // of a cached counter, in place of delta
	request, epoch string // its name, and the generation that is stored with it

	*share
	partition, partitions uint32
	place                 string // STRIPE:PAGE of an activity
	state                 atomic.Int32
	Result                // once it is settled
}

// The states of an item.
const (
	waiting int32 = iota
	taken         // by a call, or by its caller, who has left
	settled
)

// share is what one goroutine counts at a time.
type share struct {
	ctx   context.Context
	start time.Time
	open  sync.WaitGroup
}

func (it *item) settle(r Result) {
	it.Result = r
	it.state.Store(settled)
}

// count counts items and returns their outcomes. If ctx ends, what is not sent yet is not counted.
func (f *family) count(ctx context.Context, items ...*item) []Result {
	if len(items) == 0 {
		return nil
	}
	e, err := f.describe(ctx)
	if ctx.Err() != nil {
		err = f.fail(ErrNotCounted, "canceled", ctx.Err())
	}
	own, queues := &share{ctx: context.WithoutCancel(ctx), start: time.Now()}, map[*queue][]*item{}
	for _, it := range items {
		err := cmp.Or(f.check(it.id, f.maxID, true), err)
		if err == nil {
			err = f.checkRow(e, it.id)
		}
		if err != nil {
			it.settle(Result{Err: err})
			continue
		}
		it.share, it.partition, it.partitions = own, f.place(e, it), e.partitions
		own.open.Add(1)
		q := f.queue(it)
		queues[q] = append(queues[q], it)
	}
	until(ctx, func() {
		for q, items := range queues {
			c := q.add(items)
			if c != nil && (len(queues) > 1 || q.next(c)) { // a single call is made in the goroutine of its caller
				go q.work(c)
			}
		}
		own.open.Wait()
	})
	results := make([]Result, len(items))
	for i, it := range items {
		switch {
		case it.state.CompareAndSwap(waiting, taken):
			results[i].Err = f.fail(ErrNotCounted, "canceled", ctx.Err())
		case it.state.Load() == settled:
			results[i] = it.Result
		default:
			results[i].Err = f.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
		}
	}
	return results
}

// countAnew counts an item, again if the family has changed in Redis: it may belong to another partition then.
func (f *family) countAnew(ctx context.Context, make func() *item) Result {
	for attempt := 0; ; attempt++ {
		result := f.count(ctx, make())[0]
		e, isError := result.Err.(*Error)
		if !isError || e.Kind != ErrNotCounted || e.Reason != "MISMATCH" || attempt == rounds {
			return result
		}
	}
}

// queue has two calls in flight: Redis executes one while the callers of the other take its results and count again. What
// arrives meanwhile shares the next one.
type queue struct {
	family *family
	home   uint32

	mu      sync.Mutex
	waiting []*item
	idle    []*caller // those without a call in flight
}

// caller is a name that Redis remembers, with the number of its last call.
type caller struct {
	name string
	n    int64
}

// queue returns the queue of an item.
func (f *family) queue(it *item) *queue {
	home, key := f.home(it.partition), it.partition
	if f.spans {
		key = home
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[key]
	if q == nil {
		q = &queue{family: f, home: home, idle: []*caller{{}, {}}}
		f.queues[key] = q
	}
	return q
}

// add adds items, and returns a caller to make calls with if there is an idle one.
func (q *queue) add(items []*item) *caller {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, items...)
	if len(q.idle) == 0 {
		return nil
	}
	c := q.idle[0]
	q.idle = q.idle[1:]
	return c
}

// work makes calls until nothing is waiting.
func (q *queue) work(c *caller) {
	for q.next(c) {
	}
}

// next makes a call, and returns false if nothing else is waiting: the caller is idle again.
func (q *queue) next(c *caller) bool {
	q.mu.Lock()
	end := min(len(q.waiting), q.family.limit)
	items := q.waiting[:end]
	q.waiting = q.waiting[end:]
	q.mu.Unlock()
	if end > 0 {
		ctx, cancel := context.WithDeadline(items[0].ctx, items[end-1].start.Add(q.family.client.options.RetryFor))
		defer cancel()
		q.call(ctx, c, items)
	}
	for _, it := range items {
		it.open.Done()
	}
	if end > 1 { // the callers first add what they count next, so that the next call has more of it
		runtime.Gosched()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.idle = append(q.idle, c)
	}
	return len(q.waiting) > 0
}

// call settles items, those whose callers have not left.
func (q *queue) call(ctx context.Context, c *caller, items []*item) {
	f := q.family
	e, err := f.ask(ctx, q.home)
	batch := make([]*item, 0, len(items))
	for _, it := range items {
		switch {
		case !it.state.CompareAndSwap(waiting, taken):
		case err != nil:
			it.settle(Result{Err: err})
		case it.partitions != e.partitions:
			f.epochs.Delete(q.home)
			it.settle(Result{Err: f.fail(ErrMisconfigured, "MISMATCH", nil)})
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
	f := q.family
	c.step()
	r := &request{script: f.script, keys: f.keys(q.home, "calls", "calls_before")}
	r.args = append(r.args, c.name, c.n, e.now, r)
	r.keys = append(r.keys, f.keys(q.home, f.homeKeys...)...)
	sorted, requests := groups(batch, func(it *item) uint32 { return it.partition }), []any{}
	for i, it := range batch {
		if it.request != "" {
			requests = append(requests, i+1, it.request, cmp.Or(it.epoch, e.generation))
		}
	}
	r.args = append(r.args, f.head(f, e, len(requests)/3)...)
	for _, items := range sorted {
		r.keys = append(r.keys, f.keys(items[0].partition, f.kind.keys...)...)
		f.encode(f, e, items, r)
	}
	if r.args = append(r.args, requests...); len(requests) > 0 {
		r.keys = append(r.keys, f.keys(q.home, "requests", "requests_before")...)
	}
	words, err := f.call(ctx, r)
	status := ""
	if err == nil {
		status = words[0].(string)
		err = f.fail(ErrOutcomeUnknown, status, nil)
	}
	if status == "OK" || status == "DUP" {
		for i, word := range f.words(words, batch) {
			if word == "EXPIRED" {
				f.epochs.Delete(q.home) // there is another generation
			}
			batch[i].settle(f.resultOf(word))
		}
		return
	}
	c.name = "" // another process may have it
	isOnly, failure := r.sent > 0 && r.lost == 0, err.(*Error)
	switch status {
	case "MISMATCH":
		f.latest.Store(nil)
		f.epochs.Delete(q.home)
	case "EXPIRED":
		f.epochs.Delete(q.home)
	}
	switch {
	case isOnly && status == "EXPIRED":
		q.again(ctx, c, batch)
	case isOnly && status == "MISMATCH":
		for _, it := range batch {
			it.settle(Result{Err: f.failTemporarily(status, nil)})
		}
	case len(batch) > 1 && failure.Kind != ErrOutcomeUnknown && in(ofOne, failure.Reason):
		for i := range batch { // perhaps because of a single item
			q.again(ctx, c, batch[i:i+1])
		}
	default:
		for _, it := range batch {
			it.settle(Result{Err: err})
		}
	}
}

// again settles items of a call that counted nothing, with a new one.
func (q *queue) again(ctx context.Context, c *caller, items []*item) {
	for _, it := range items {
		it.state.Store(waiting)
	}
	q.call(ctx, c, items)
}

// resultOf reads the word of an item: a number, or why it was not counted, or nil if it was counted and nothing else is known.
func (f *family) resultOf(word any) Result {
	if word == nil {
		return Result{}
	}
	text := fmt.Sprint(word)
	if value, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Result{Pending: Pending{value, true}}
	}
	reason, rest, _ := strings.Cut(text, ":")
	switch reason {
	case "BEFORE": // of a request that was counted before
		before := f.resultOf(rest)
		before.isBefore = true
		return before
	case "EXPIRED":
		return Result{Err: f.fail(ErrOutcomeUnknown, reason, errors.New("Redis may have forgotten the request"))}
	}
	e := f.fail(ErrNotCounted, reason, nil)
	e.isTemporary = reason == noCalendar
	if value, err := strconv.ParseInt(rest, 10, 64); err == nil && reason == "RANGE" {
		e.Value = &value
	}
	return Result{Err: e, word: text}
}

// words returns the word of each item in a reply, OK or DUP, and nil where the reply does not have it.
func (f *family) words(reply []any, batch []*item) []any {
	at, count := make([]int, len(batch)), 0 // which word is that of an item
	var words []any
	rest := reply[1:]
	for i, it := range batch {
		isNew := i == 0 || it.partition != batch[i-1].partition
		if i > 0 && (isNew || !f.sharesWords || it.place != batch[i-1].place) {
			count++
		}
		at[i] = count
		if reply[0] == "DUP" || count < len(words) {
			continue
		}
		if f.hasTotals && isNew {
			rest = rest[1:]
		}
		if len(rest) > 0 {
			words, rest = append(words, rest[0]), rest[1:]
		}
	}
	if reply[0] == "DUP" {
		words = make([]any, count+1)
		for at, word := range strings.Fields(fmt.Sprintln(rest...)) {
			if number, refusal, _ := strings.Cut(word, ":"); f.hasRefusals {
				at, _ = strconv.Atoi(number)
				at, word = at-1, refusal
			}
			words[at] = word
		}
	}
	all := make([]any, len(batch))
	for i := range batch {
		if at[i] < len(words) {
			all[i] = words[at[i]]
		}
	}
	return all
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
