package counterfoil

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Buffered is a family of sums. An id is 1 to 255 bytes of UTF-8.
type Buffered struct{ *family }

// Pending is what an id has pending in Redis right after a change: what is not in MySQL yet.
type Pending struct {
	Value int64
	// Known is false if the change was counted, but the reply with the value was lost.
	Known bool
}

// Pair is an id and what is added to it.
type Pair struct {
	ID    string
	Delta int64
}

// Result is the result of a [Pair].
type Result struct {
	Pending
	Err error

	word     string // of the script, if it is the reason of the error
	isBefore bool   // of a request: an earlier call counted it
}

var bufferedKind = &kind{
	name: "buffered", script: "buffered_add", maxID: 255, limit: 1000, keys: []string{"buffer", "meta"},
	spans: true, hasTotals: true, hasRefusals: true,
	place: func(e *epoch, it *item) uint32 {
		switch {
		case e.Wide && it.request != "":
			return e.partitionOf(it.request)
		case e.Wide:
			return rand.Uint32N(e.partitions)
		}
		return e.partitionOf(it.id)
	},
	head: func(_ *family, _ *epoch, requests int) []any { return []any{requests} },
	encode: func(_ *family, _ *epoch, items []*item, r *request) {
		hits, pairs := int64(0), []any{}
		for _, it := range items {
			hits = min(hits+min(max(it.delta, -it.delta, 1), 1000), 1000) // they only say when a save is due
			pairs = append(pairs, it.id, it.delta)
		}
		r.args = append(append(r.args, hits, len(items)), pairs...)
	},
}

// Buffered returns the family of that name.
func (c *Client) Buffered(name string) (*Buffered, error) {
	f, err := c.family(bufferedKind, name, nil)
	return &Buffered{f}, err
}

// Add adds delta to the counter and returns what it has pending.
func (b *Buffered) Add(ctx context.Context, id string, delta int64) (Pending, error) {
	result := b.count(ctx, &item{id: id, delta: delta})[0]
	return result.Pending, result.Err
}

// AddMany adds pairs, up to 1000 in a call. They fail separately: there is a result for each, in their order, and the error is
// the first one in them.
func (b *Buffered) AddMany(ctx context.Context, pairs []Pair) (results []Result, first error) {
	items := make([]*item, len(pairs))
	for i, pair := range pairs {
		items[i] = &item{id: pair.ID, delta: pair.Delta}
	}
	results = b.count(ctx, items...)
	for _, result := range results {
		first = cmp.Or(first, result.Err)
	}
	return results, first
}

// AddOnce adds delta to the counter once for all calls with this request (1 to 64 bytes) and id, from any process. It returns
// false if another call has counted. Redis remembers a request for an hour, or as long as the family's remember_requests. The
// epoch is that of [Buffered.RequestEpoch], stored with the job: then it never counts twice, and the outcome is unknown if Redis
// may have forgotten the request. If it is "", that of now is used.
func (b *Buffered) AddOnce(ctx context.Context, request, id string, delta int64, epoch string) (bool, error) {
	if err := b.check(request, 64, true); err != nil {
		return false, err
	}
	result := b.count(ctx, &item{id: id, delta: delta, request: request, epoch: epoch})[0]
	return result.Err == nil && !result.isBefore, result.Err
}

// RequestEpoch returns the epoch to be stored with a job before the first AddOnce of it.
func (b *Buffered) RequestEpoch(ctx context.Context, request, id string) (string, error) {
	return b.requestEpoch(ctx, request, id)
}

// requestEpoch returns the generation of requests. A job that runs later needs the one that Redis has now.
func (f *family) requestEpoch(ctx context.Context, request, id string) (string, error) {
	e, err := f.describe(ctx)
	if err == nil {
		err = f.checkRow(e, id)
	}
	if err = cmp.Or(f.check(request, 64, true), f.check(id, f.maxID, true), err); err != nil {
		return "", err
	}
	if e, err = f.askRedis(ctx, f.home(f.place(e, &item{id: id, request: request}))); err != nil {
		return "", err
	}
	return e.generation, nil
}

const maxLater = 100_000

// later sums in the process. One pass at a time sends the sums.
type later struct {
	pass sync.Mutex

	mu      sync.Mutex
	sums    map[string]int64
	sending int   // ids of the current pass
	lost    error // the first one since the last flush
}

// Later adds delta to a sum in the process, which a goroutine sends within [Options].LaterEvery. What is not sent yet is lost
// if the process is killed: call [Client.Close] before it exits. Sums that Redis did not receive, or refused by OOM or
// MISCONF, stay and are sent again; others that were refused, or whose outcome is unknown, are dropped and reported by the
// next [Buffered.Flush] and to [Options].OnError. If 100,000 ids are waiting the error's reason is BUSY.
func (b *Buffered) Later(id string, delta int64) error {
	err := b.check(id, b.maxID, true)
	if latest := b.latest.Load(); err == nil && latest != nil {
		err = b.checkRow(latest, id)
	}
	if err != nil {
		return err
	}
	l := &b.later
	l.mu.Lock()
	defer l.mu.Unlock()
	_, isThere := l.sums[id]
	switch {
	case b.client.isClosed.Load():
		return b.fail(ErrNotCounted, "closed", nil)
	case !isThere && len(l.sums)+l.sending >= maxLater:
		return b.fail(ErrNotCounted, "BUSY", nil)
	case !b.sum(id, delta):
		return b.fail(ErrNotCounted, "RANGE", nil)
	}
	return nil
}

// Flush sends what Later took before, and returns when all of it is settled. Its error is the first one since the last flush,
// or why sums are kept, which are sent again.
func (b *Buffered) Flush(ctx context.Context) error { return b.flush(ctx) }

func (f *family) flush(ctx context.Context) error {
	var kept error
	if !until(ctx, func() { kept = f.sendSums() }) {
		return f.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
	}
	f.later.mu.Lock()
	defer f.later.mu.Unlock()
	lost := f.later.lost
	f.later.lost = nil
	return cmp.Or(lost, kept)
}

// sum adds to a sum, the first of which starts a pass in a while. It returns false if the sum would be beyond i64.
func (f *family) sum(id string, delta int64) bool {
	l, before := &f.later, f.later.sums[id]
	if (before+delta < before) != (delta < 0) {
		return false
	}
	if len(l.sums) == 0 {
		time.AfterFunc(f.client.options.LaterEvery, func() { _ = f.sendSums() })
	}
	l.sums[id] = before + delta
	return true
}

// sendSums sends all sums. Its error is why some are kept for the next pass.
func (f *family) sendSums() (kept error) {
	l := &f.later
	l.pass.Lock()
	defer l.pass.Unlock()
	l.mu.Lock()
	var items []*item
	for id, sum := range l.sums {
		items = append(items, &item{id: id, delta: sum})
	}
	l.sums, l.sending = map[string]int64{}, len(items)
	l.mu.Unlock()
	for i, result := range f.count(context.Background(), items...) {
		err, isFailed := result.Err.(*Error)
		l.mu.Lock()
		l.sending--
		isKept := isFailed && err.isTemporary && !f.client.isClosed.Load() && f.sum(items[i].id, items[i].delta)
		switch {
		case isKept:
			kept = err
		case isFailed:
			l.lost = cmp.Or(l.lost, result.Err)
		}
		l.mu.Unlock()
		if onError := f.client.options.OnError; isFailed && !isKept && onError != nil {
			onError(f.path, items[i].id, items[i].delta, err)
		}
	}
	if kept != nil { // Redis may have refused them at once
		time.Sleep(50 * time.Millisecond)
	}
	return kept
}
