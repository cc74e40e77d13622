package counterfoil

import (
	"context"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// ticketMillis is how long a ticket is kept, and with it the time to read a row.
const ticketMillis = 30_000

// Cached is a family of counters whose value is in Redis while they are in use, within the family's bounds. An id is 1 to 255
// bytes of UTF-8.
type Cached struct{ *family }

// Cached returns the family of that name, whose options are [ReadRow] and [InTable].
func (c *Client) Cached(name string, options ...FamilyOption) (*Cached, error) {
	f, err := c.family("cached", name, incrCodec{}, options)
	return &Cached{f}, err
}

// ReadRow sets the function that reads the value of a counter's row, 0 without a row, for a counter that is not in Redis. It
// must read from the primary, outside of any open transaction. Without it the client asks the daemon.
func ReadRow(read func(ctx context.Context, id string) (int64, error)) FamilyOption {
	return func(f *family) { f.readRow = read }
}

// Incr adds delta and returns the new value. Where it would leave the family's bounds the error's reason is RANGE, and its
// Value is the current one.
func (c *Cached) Incr(ctx context.Context, id string, delta int64) (int64, error) {
	return c.change(ctx, id, strconv.FormatInt(delta, 10))
}

// Set changes the counter to that value and returns it.
func (c *Cached) Set(ctx context.Context, id string, value int64) (int64, error) {
	return c.change(ctx, id, "="+strconv.FormatInt(value, 10))
}

func (c *Cached) change(ctx context.Context, id, change string) (int64, error) {
	return c.seeding(ctx, id, func() (outcome, error) {
		result := c.count(ctx, &item{id: id, change: change})[0]
		return result, result.err
	})
}

// Get returns the value.
func (c *Cached) Get(ctx context.Context, id string) (int64, error) {
	return c.seeding(ctx, id, func() (outcome, error) {
		e, err := c.describe(ctx)
		if err != nil {
			return outcome{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, c.client.options.RetryFor)
		defer cancel()
		keys := c.keys(e.partitionOf(id), "base", "buffer", "batch")
		words, err := c.read(ctx, "cached_get", keys, ticketMillis, "", newCaller(), id)
		if err != nil {
			return outcome{}, err
		}
		return c.cachedOutcome(wordAt(words, 1)), nil
	})
}

// seeding makes a call again after it has seeded a counter that the call missed.
func (c *Cached) seeding(ctx context.Context, id string, call func() (outcome, error)) (int64, error) {
	if err := c.checkID(id, 255); err != nil {
		return 0, err
	}
	for tries := 0; tries < 10; tries++ {
		result, err := call()
		ticket, isMiss := strings.CutPrefix(result.word, "MISS:")
		if !isMiss {
			if err == nil {
				err = result.err
			}
			return result.value, err
		}
		if err := c.seed(ctx, id, ticket); err != nil {
			return 0, err
		}
	}
	return 0, c.fail(ErrNotCounted, "MISS", nil)
}

// seed reads the row, once for all callers that have the same ticket, and gives the counter its value as the base.
func (c *Cached) seed(ctx context.Context, id, ticket string) error {
	_, err := c.rows.do(ctx, id+" "+ticket, func(ctx context.Context) (int64, error) {
		ctx, cancel := context.WithTimeout(ctx, c.client.options.RetryFor)
		defer cancel()
		value, err := c.row(ctx, id)
		if err != nil {
			return 0, err
		}
		e, err := c.describe(ctx)
		if err != nil {
			return 0, err
		}
		keys := c.family.keys(e.partitionOf(id), "base")
		_, err = c.read(ctx, "cached_seed", keys, e.settings.Retain, "", id, ticket, value)
		return value, err
	})
	if _, isOurs := err.(*Error); err != nil && !isOurs {
		return c.fail(ErrNotCounted, "no row", err)
	}
	return err
}

func (f *family) row(ctx context.Context, id string) (int64, error) {
	if f.readRow != nil {
		return f.readRow(ctx, id)
	}
	return f.askDaemon(ctx, "rows", id)
}

// incrCodec encodes calls of cached_incr.
type incrCodec struct{}

func (incrCodec) spans() bool              { return true }
func (incrCodec) limit() int               { return 1000 }
func (incrCodec) place(e *epoch, it *item) { it.partition = e.partitionOf(it.id) }

func (incrCodec) encode(f *family, e *epoch, batch []*item) (string, []string, []any, error) {
	var keys []string
	args := []any{ticketMillis, bound(e.settings.Min), bound(e.settings.Max)}
	for _, some := range byPartition(batch) {
		keys = append(keys, f.keys(some[0].partition, "base", "buffer", "batch", "meta")...)
		args = append(args, len(some))
		for _, it := range some {
			args = append(args, it.id, it.change)
		}
	}
	return "cached_incr", keys, args, nil
}

func bound(value *int64) any {
	if value == nil {
		return ""
	}
	return *value
}

func (incrCodec) decode(f *family, words []any, batch []*item) {
	results := words[1:]
	if words[0] == "DUP" {
		results = nil
		for _, word := range strings.Fields(fmt.Sprint(wordAt(words, 1))) {
			results = append(results, word)
		}
	}
	at := 0
	for _, some := range byPartition(batch) {
		for _, it := range some {
			it.outcome = f.cachedOutcome(wordAt(results, at))
			at++
		}
	}
}

// cachedOutcome reads the results of cached counters: RANGE:value, MISS:ticket and SUM:base:batch:buffer besides numbers.
func (f *family) cachedOutcome(word any) outcome {
	result := f.outcomeOf(word)
	code, rest, _ := strings.Cut(result.word, ":")
	switch code {
	case "MISS":
		result.err = nil
	case "RANGE":
		e := f.fail(ErrNotCounted, code, nil)
		if value, err := strconv.ParseInt(rest, 10, 64); err == nil {
			e.Value = &value
		}
		result.err = e
	case "SUM":
		sum := new(big.Int)
		for _, part := range strings.Split(rest, ":") {
			if value, ok := new(big.Int).SetString(part, 10); ok {
				sum.Add(sum, value)
			}
		}
		result = outcome{value: sum.Int64(), known: true}
		if !sum.IsInt64() {
			result.err = f.fail(ErrNotCounted, "RANGE", nil)
		}
	}
	return result
}
