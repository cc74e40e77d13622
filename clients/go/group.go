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

	"github.com/counterfoil/counterfoil-go/internal/memory"
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

// target is what a hit counts in: a counter, a series or a page, or the visitors of a scope and a day.
type target struct {
	id, day string // the id of visitors is SCOPE, separator and DAY
	visitor string
	at      string // of a series, in Unix milliseconds; "" for now
}

// key is different for all targets of a family.
func (t target) key() string {
	if rest := t.day + t.at + t.visitor; rest != "" {
		return strconv.Itoa(len(t.id)) + " " + t.id + rest
	}
	return t.id
}

// name returns the id of the target.
func (t target) name(separator string) string {
	if t.day == "" {
		return t.id
	}
	return t.id + separator + t.day
}

// hit is one change.
type hit struct {
	target
	n              int64
	change         string // of a cached counter, in place of n
	request, epoch string // its name, and the generation that is stored with it
}

func (h hit) inMemory(id string) memory.Hit {
	at := time.Now()
	if h.at != "" {
		at = time.UnixMilli(number(h.at))
	}
	return memory.Hit{ID: id, Visitor: h.visitor, Change: h.change, Request: h.request, Epoch: h.epoch, N: h.n, At: at}
}

// item is a hit on its way.
type item struct {
	hit
	*share
	partition, partitions uint32
	place                 string // STRIPE:PAGE of an activity
	state                 atomic.Int32
	Result                // once it is settled
}

// The states of an item.
const (
	waiting int32 = iota
	taken         // by a call
	settled
)

// share is what one goroutine counts at a time.
type share struct {
	ctx   context.Context // does not end
	until time.Time       // its limit
	open  atomic.Int32
	done  chan struct{} // is closed when nothing is open
}

func (s *share) add() { s.open.Add(1) }

func (s *share) finish() {
	if s.open.Add(-1) == 0 {
		close(s.done)
	}
}

func (it *item) settle(r Result) {
	it.Result = r
	it.state.Store(settled)
	it.finish()
}

// count counts hits and returns their outcomes. If ctx ends, what is not sent yet is not counted.
func (f *family) count(ctx context.Context, hits ...hit) []Result {
	ctx = limitTo(ctx, f.client.retryFor())
	e, err := f.describe(ctx)
	if ctx.Err() != nil {
		err = cmp.Or(err, error(f.ended(ctx)))
	}
	if e := f.closed(); e != nil {
		err = e
	}
	own := &share{ctx: context.WithoutCancel(ctx), until: limitOf(ctx), done: make(chan struct{})}
	own.add()
	queues := map[*queue][]*item{}
	items, results := make([]item, len(hits)), make([]Result, len(hits))
	for i, h := range hits {
		it := &items[i]
		it.hit, it.share = h, own
		if err == nil {
			it.id, it.day = h.name(e.Separator), ""
		}
		if results[i].Err = f.refuse(it, e, err); results[i].Err != nil {
			it.state.Store(taken)
			continue
		}
		own.add()
		if f.client.memory != nil {
			it.settle(f.resultOf(f.client.memory.Count(f.path, h.inMemory(it.id))))
			continue
		}
		q := f.queue(it)
		queues[q] = append(queues[q], it)
	}
	for q, items := range queues {
		c := q.add(items)
		if c != nil && (len(queues) > 1 || ctx.Done() != nil || q.next(c)) { // a single call is made here if nothing cancels it
			go q.work(c)
		}
	}
	own.finish()
	select {
	case <-own.done:
	case <-ctx.Done():
		for i := range items {
			if items[i].state.CompareAndSwap(waiting, taken) {
				items[i].settle(Result{Err: f.ended(ctx)})
			}
		}
		if isOver(ctx) {
			<-own.done // the calls end as well, with a more exact error
		}
	}
	for i := range items {
		switch {
		case results[i].Err != nil:
		case items[i].state.Load() == settled:
			results[i] = items[i].Result
		default:
			results[i].Err = f.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
		}
	}
	return results
}

// refuse returns why an item cannot be sent: because of its id, of an error, or of an outage. It sets its partition.
func (f *family) refuse(it *item, e *epoch, err error) error {
	if err = cmp.Or(f.check(it.id, f.maxID, true), err); err != nil {
		return err
	}
	if err = f.checkRow(e, it.id); err != nil {
		return err
	}
	it.partition, it.partitions = f.place(e, it), e.partitions
	if e := f.down(f.serverOf(f.home(it.partition))); e != nil {
		return e
	}
	return nil
}

// countAnew counts a hit, again if the family has changed in Redis: it may belong to another partition then.
func (f *family) countAnew(ctx context.Context, h hit) Result {
	ctx = limitTo(ctx, f.client.retryFor())
	for attempt := 0; ; attempt++ {
		result := f.count(ctx, h)[0]
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
	items := slices.DeleteFunc(q.waiting[:end], func(it *item) bool { return it.state.Load() != waiting })
	q.waiting = q.waiting[end:]
	q.mu.Unlock()
	if len(items) > 0 {
		first := slices.MinFunc(items, func(a, b *item) int { return a.until.Compare(b.until) })
		ctx, cancel := limited(first.ctx, q.family.client.retryFor())
		defer cancel()
		q.call(ctx, c, items)
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
			it.settle(Result{Err: f.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("it has %d partitions now", e.partitions))})
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
	r := &request{script: f.script, home: q.home, isCounting: true, keys: f.keys(q.home, "calls", "calls_before")}
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
	isOnly, failure := r.sent.Load() > 0 && r.lost() == 0, err.(*Error)
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
		e.Value, e.cause = &value, fmt.Errorf("the value is %d, and would leave its bounds", value)
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
