package counterfoil

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand"
	"sort"
	"strconv"
	"strings"
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

// Buffered returns the family of that name. The only option that concerns it is [InTable].
func (c *Client) Buffered(name string, options ...FamilyOption) (*Buffered, error) {
	f, err := c.family("buffered", name, addCodec{}, options)
	return &Buffered{f}, err
}

// Add adds delta to the counter and returns what it has pending.
func (b *Buffered) Add(ctx context.Context, id string, delta int64) (Pending, error) {
	if err := b.checkID(id, 255); err != nil {
		return Pending{}, err
	}
	result := resultOf(b.count(ctx, &item{id: id, delta: delta})[0])
	return result.Pending, result.Err
}

// AddMany adds up to 1000 pairs. They fail separately: there is a result for each, in their order, and the error is the first
// one in them.
func (b *Buffered) AddMany(ctx context.Context, pairs []Pair) ([]Result, error) {
	if len(pairs) > 1000 {
		return nil, b.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d pairs, 1000 at most", len(pairs)))
	}
	results := make([]Result, len(pairs))
	items, places := make([]*item, 0, len(pairs)), make([]int, 0, len(pairs))
	for i, pair := range pairs {
		if results[i].Err = b.checkID(pair.ID, 255); results[i].Err == nil {
			items, places = append(items, &item{id: pair.ID, delta: pair.Delta}), append(places, i)
		}
	}
	for i, outcome := range b.count(ctx, items...) {
		results[places[i]] = resultOf(outcome)
	}
	for _, result := range results {
		if result.Err != nil {
			return results, result.Err
		}
	}
	return results, nil
}

func resultOf(o outcome) Result { return Result{Pending{o.value, o.known}, o.err} }

// addCodec encodes calls of buffered_add.
type addCodec struct{}

func (addCodec) spans() bool { return true }
func (addCodec) limit() int  { return 1000 }

func (addCodec) place(e *epoch, it *item) {
	it.partition = e.partitionOf(it.id)
	if e.settings.Wide {
		it.partition = rand.Uint32() % e.partitions
	}
}

func (addCodec) encode(f *family, _ *epoch, batch []*item) (string, []string, []any, error) {
	var keys []string
	args := make([]any, 0, 4+4*len(batch))
	for _, some := range byPartition(batch) {
		keys = append(keys, f.keys(some[0].partition, "buffer", "meta")...)
		args = append(args, hits(some), len(some))
		for _, it := range some {
			args = append(args, it.id, it.delta)
		}
	}
	return "buffered_add", keys, args, nil
}

// hits returns how many hits the deltas stand for; the reconciler uses it only to decide when to save.
func hits(batch []*item) int64 {
	sum := int64(0)
	for _, it := range batch {
		if it.delta > 1000 || it.delta < -1000 {
			return 1000
		}
		sum += max(it.delta, -it.delta)
	}
	return min(max(sum, 1), 1000)
}

func (addCodec) decode(f *family, words []any, batch []*item) {
	if words[0] == "DUP" {
		f.decodeRefused(words, batch)
		return
	}
	at := 1
	for _, some := range byPartition(batch) {
		at++ // the partition's total
		for _, it := range some {
			it.outcome = f.outcomeOf(wordAt(words, at))
			at++
		}
	}
}

// byPartition sorts the batch by partition and returns the items of each.
func byPartition(batch []*item) [][]*item {
	if len(batch) > 1 {
		sort.SliceStable(batch, func(i, j int) bool { return batch[i].partition < batch[j].partition })
	}
	return runs(batch, func(a, b *item) bool { return a.partition == b.partition })
}

// runs splits a sorted batch into runs of items that belong together.
func runs(batch []*item, together func(a, b *item) bool) [][]*item {
	all, start := make([][]*item, 0, 4), 0
	for i := 1; i <= len(batch); i++ {
		if i == len(batch) || !together(batch[start], batch[i]) {
			all, start = append(all, batch[start:i]), i
		}
	}
	return all
}

func wordAt(words []any, at int) any {
	if at < len(words) {
		return words[at]
	}
	return "no result"
}

// outcomeOf reads a result: a number, which is a string beyond 2^53, or why the item was not counted.
func (f *family) outcomeOf(word any) outcome {
	if value, isNumber := word.(int64); isNumber {
		return outcome{value: value, known: true}
	}
	text := fmt.Sprint(word)
	if value, err := strconv.ParseInt(text, 10, 64); err == nil {
		return outcome{value: value, known: true}
	}
	return outcome{word: text, err: f.fail(ErrNotCounted, text, nil)}
}

// decodeRefused reads the reply to a repeated call, such as "3:FULL 7:RANGE": what was refused then, counted from 1.
func (f *family) decodeRefused(words []any, batch []*item) {
	for _, word := range strings.Fields(fmt.Sprint(wordAt(words, 1))) {
		number, reason, _ := strings.Cut(word, ":")
		if i, err := strconv.Atoi(number); err == nil && i >= 1 && i <= len(batch) {
			batch[i-1].err = f.fail(ErrNotCounted, reason, nil)
		}
	}
}

// RequestEpoch returns the epoch to be stored with a job before the first AddOnce of it.
func (b *Buffered) RequestEpoch(ctx context.Context, request, id string) (string, error) {
	it, err := b.request(ctx, request, id, 0)
	if err != nil {
		return "", err
	}
	b.expire(b.home(it.partition)) // a new one is valid for longer
	e, err := b.ask(ctx, b.home(it.partition))
	if err != nil {
		return "", err
	}
	return e.now, nil
}

// AddOnce adds delta to the counter once for all calls with this request (1 to 64 bytes) and id, from any process. It returns
// false if another call has counted. The epoch is that of [Buffered.RequestEpoch], stored with the job: if it is over, the
// outcome is unknown and nothing is sent. If it is "", that of now is used, and the call must not be repeated later.
func (b *Buffered) AddOnce(ctx context.Context, request, id string, delta int64, epoch string) (bool, error) {
	it, err := b.request(ctx, request, id, delta)
	if err != nil {
		return false, err
	}
	type reply = []any
	done := make(chan func() (reply, error), 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.client.options.RetryFor)
		defer cancel()
		words, err := b.sendRequest(ctx, request, epoch, it)
		done <- func() (reply, error) { return words, err }
	}()
	select {
	case <-ctx.Done():
		return false, b.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
	case result := <-done:
		words, err := result()
		if err != nil {
			return false, err
		}
		b.codec.decode(b.family, words, []*item{it})
		return words[0] == "OK" && it.err == nil, it.err
	}
}

func (b *Buffered) request(ctx context.Context, request, id string, delta int64) (*item, error) {
	if err := b.checkID(id, 255); err != nil {
		return nil, err
	}
	if err := b.checkID(request, 64); err != nil {
		return nil, err
	}
	e, err := b.describe(ctx)
	if err != nil {
		return nil, err
	}
	it := &item{id: id, delta: delta, partition: e.partitionOf(id)}
	if e.settings.Wide {
		it.partition = crc32.ChecksumIEEE([]byte(request)) % e.partitions
	}
	return it, nil
}

func (b *Buffered) sendRequest(ctx context.Context, request, epoch string, it *item) ([]any, error) {
	home, fence := b.home(it.partition), &sends{}
	for {
		e, err := b.ask(ctx, home)
		if err != nil {
			if fence.written > 0 {
				err = b.fail(ErrOutcomeUnknown, "no epoch", err)
			}
			return nil, err
		}
		if epoch == "" {
			epoch = e.now
		}
		if epoch != e.now && epoch != e.before {
			return nil, b.fail(ErrOutcomeUnknown, "EXPIRED", nil)
		}
		script, keys, args, err := b.codec.encode(b.family, e, []*item{it})
		if err != nil {
			return nil, err
		}
		caller := fmt.Sprintf("request:%d:%s:%s", len(request), request, it.id)
		keys = append(b.keys(home, "calls", "calls_before"), keys...)
		words, err := b.call(ctx, script, keys, append([]any{caller, 1, e.before, fence}, args...), fence)
		if err != nil || words[0] == "OK" || words[0] == "DUP" {
			return words, err
		}
		if words[0] != "EXPIRED" || ctx.Err() != nil {
			return nil, b.fail(ErrOutcomeUnknown, fmt.Sprint(words[0]), ctx.Err())
		}
		b.expire(home) // the other memory may still be there
	}
}
