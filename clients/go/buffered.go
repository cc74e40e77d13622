package counterfoil

import (
	"context"
	"fmt"
	"math"
	"math/rand"
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
}

var bufferedKind = &kind{name: "buffered", maxID: 255, limit: 1000, spans: true,
	place: func(e *epoch, it *item) uint32 {
		switch {
		case e.settings.Wide && it.request != "":
			return e.partitionOf(it.request)
		case e.settings.Wide:
			return rand.Uint32() % e.partitions
		}
		return e.partitionOf(it.id)
	},
	encode: func(f *family, _ *epoch, batch []*item, r *request) {
		r.script = "buffered_add"
		at := 0
		for i, it := range batch {
			if i == 0 || it.partition != batch[i-1].partition {
				r.keys = append(r.keys, f.keys(it.partition, "buffer", "meta")...)
				at, r.args = len(r.args), append(r.args, int64(0), int64(0))
			}
			// how many hits the pairs stand for only says when a save is due
			size := max(min(it.delta, 1000), -max(it.delta, -1000), 1)
			r.args[at] = min(r.args[at].(int64)+size, 1000)
			bump(r.args, at+1, 1)
			r.args = append(r.args, it.id, it.delta)
		}
	},
	results: func(words []any, batch []*item) (results []any) {
		if words[0] == "DUP" {
			return nil
		}
		words = words[1:]
		for i, it := range batch {
			if i == 0 || it.partition != batch[i-1].partition {
				words = words[1:] // the partition's total
			}
			results, words = append(results, words[0]), words[1:]
		}
		return results
	},
}

// Buffered returns the family of that name. The only option that concerns it is [InTable].
func (c *Client) Buffered(name string, options ...FamilyOption) (*Buffered, error) {
	f, err := c.family(bufferedKind, name, options)
	return &Buffered{f}, err
}

// Add adds delta to the counter and returns what it has pending.
func (b *Buffered) Add(ctx context.Context, id string, delta int64) (Pending, error) {
	result := b.count(ctx, &item{id: id, delta: delta})[0]
	return Pending{result.value, result.known}, result.err
}

// AddMany adds up to 1000 pairs. They fail separately: there is a result for each, in their order, and the error is the first
// one in them.
func (b *Buffered) AddMany(ctx context.Context, pairs []Pair) (results []Result, first error) {
	if len(pairs) > 1000 {
		return nil, b.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d pairs, 1000 at most", len(pairs)))
	}
	items := make([]*item, len(pairs))
	for i, pair := range pairs {
		items[i] = &item{id: pair.ID, delta: pair.Delta}
	}
	for _, result := range b.count(ctx, items...) {
		results = append(results, Result{Pending{result.value, result.known}, result.err})
		if first == nil {
			first = result.err
		}
	}
	return results, first
}

// AddOnce adds delta to the counter once for all calls with this request (1 to 64 bytes) and id, from any process. It returns
// false if another call has counted. The epoch is that of [Buffered.RequestEpoch], stored with the job: if it is over, the
// outcome is unknown and nothing is sent. If it is "", that of now is used, and the call must not be repeated later.
func (b *Buffered) AddOnce(ctx context.Context, request, id string, delta int64, epoch string) (bool, error) {
	if err := b.check(request, 64, true); err != nil {
		return false, err
	}
	result := b.count(ctx, &item{id: id, delta: delta, request: request, epoch: epoch})[0]
	return result.known, result.err
}

// RequestEpoch returns the epoch to be stored with a job before the first AddOnce of it.
func (b *Buffered) RequestEpoch(ctx context.Context, request, id string) (string, error) {
	e, err := b.describe(ctx)
	if err != nil {
		return "", err
	}
	home := b.home(b.place(e, &item{id: id, request: request}))
	b.expire(home) // a new one is valid for longer
	if e, err = b.ask(ctx, home); err != nil {
		return "", err
	}
	return e.now, nil
}

const maxLater = 100_000

// later sums in the process. One pass at a time sends the sums.
type later struct {
	pass chan struct{} // has room for one pass

	mu       sync.Mutex
	sums     map[string]int64
	sending  int // ids of the current pass
	isTimed  bool
	first    error // since the last flush
	failures int
}

// Later adds delta to a sum in the process, which a goroutine sends within [Options].LaterEvery. What is not sent yet is lost
// if the process is killed: call [Client.Close] before it exits. Sums that Redis did not receive stay and are sent again;
// those that were refused, or whose outcome is unknown, are dropped and reported by the next [Buffered.Flush] and to
// [Options].OnError. If 100,000 ids are waiting the error's reason is BUSY.
func (b *Buffered) Later(id string, delta int64) error {
	if err := b.check(id, 255, true); err != nil {
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
	case !l.add(id, delta):
		return b.fail(ErrNotCounted, "RANGE", nil)
	}
	b.schedule()
	return nil
}

// Flush sends what Later took before, and returns when all of it is settled. Its error is the first one since the last flush,
// and says how many ids are concerned.
func (b *Buffered) Flush(ctx context.Context) error { return b.flush(ctx) }

// add returns false if the sum would be beyond i64.
func (l *later) add(id string, delta int64) bool {
	sum := l.sums[id]
	if delta > 0 && sum > math.MaxInt64-delta || delta < 0 && sum < math.MinInt64-delta {
		return false
	}
	l.sums[id] = sum + delta
	return true
}

// schedule starts the next pass in a while, if there is none to come. The caller holds the lock.
func (f *family) schedule() {
	if !f.later.isTimed && len(f.later.sums) > 0 && !f.client.isClosed.Load() {
		f.later.isTimed = true
		time.AfterFunc(f.client.options.LaterEvery, func() { f.sendSums() })
	}
}

func (f *family) flush(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		kept, why := f.sendSums()
		l := &f.later
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.first != nil {
			why = l.first
		}
		if why != nil {
			e := *why.(*Error)
			e.cause = fmt.Errorf("%d ids, of which %d are kept and sent again: %w", l.failures+kept, kept, why)
			why = &e
		}
		l.first, l.failures = nil, 0
		done <- why
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return f.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
	}
}

// sendSums sends all sums. It returns how many are kept for the next pass, and why.
func (f *family) sendSums() (kept int, why error) {
	l := &f.later
	l.pass <- struct{}{}
	defer func() { <-l.pass }()
	l.mu.Lock()
	sums := l.sums
	l.sums, l.sending, l.isTimed = make(map[string]int64, len(sums)), len(sums), false
	l.mu.Unlock()
	items := make([]*item, 0, len(sums))
	for id, sum := range sums {
		items = append(items, &item{id: id, delta: sum})
	}
	for i, result := range f.count(context.Background(), items...) {
		if result.err == nil {
			continue
		}
		id, delta, err := items[i].id, items[i].delta, result.err.(*Error)
		l.mu.Lock()
		isKept := err.isTemporary && l.add(id, delta)
		if isKept {
			kept, why = kept+1, err
		} else if l.failures++; l.first == nil {
			l.first = err
		}
		l.mu.Unlock()
		if onError := f.client.options.OnError; !isKept && onError != nil {
			onError(f.path, id, delta, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sending = 0
	f.schedule()
	return kept, why
}
