package counterfoil

import (
	"cmp"
	"context"
	"math/rand/v2"
)

// Buffered is a family of sums. An id is 1 to 255 bytes of UTF-8.
type Buffered struct{ exact }

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
			hits = min(hits+min(max(it.n, -it.n, 1), 1000), 1000) // they only say when a save is due
			pairs = append(pairs, it.id, it.n)
		}
		r.args = append(append(r.args, hits, len(items)), pairs...)
	},
}

// Buffered returns the family of that name.
func (c *Client) Buffered(name string) (*Buffered, error) {
	f, err := c.family(bufferedKind, name, nil)
	return &Buffered{exact{f}}, err
}

// Add adds delta to the counter and returns what it has pending.
func (b *Buffered) Add(ctx context.Context, id string, delta int64) (Pending, error) {
	result := b.count(ctx, hit{target: target{id: id}, n: delta})[0]
	return result.Pending, result.Err
}

// AddMany adds pairs, up to 1000 in a call. They fail separately: there is a result for each, in their order, and the error is
// the first one in them.
func (b *Buffered) AddMany(ctx context.Context, pairs []Pair) (results []Result, first error) {
	hits := make([]hit, len(pairs))
	for i, pair := range pairs {
		hits[i] = hit{target: target{id: pair.ID}, n: pair.Delta}
	}
	results = b.count(ctx, hits...)
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
	result := b.count(ctx, hit{target: target{id: id}, n: delta, request: request, epoch: epoch})[0]
	return result.Err == nil && !result.isBefore, result.Err
}

// Later adds delta to a sum in the process, which a goroutine sends within [Options].LaterEvery. What is not sent yet is lost
// if the process is killed: call [Client.Close] before it exits. Sums that Redis did not receive, or refused for a reason that
// passes, stay and are sent again, each second during an outage; others that were refused, or whose outcome is unknown, are
// dropped and reported by the next Flush and to [Options].OnError. If 100,000 are waiting the error's reason is BUSY.
func (b *Buffered) Later(id string, delta int64) error { return b.addLater(target{id: id}, delta) }

// Flush sends what Later took before, and returns when all of it is settled. Its error is the first one since the last flush,
// or why sums are kept, which are sent again.
func (b *Buffered) Flush(ctx context.Context) error { return b.flush(ctx) }
