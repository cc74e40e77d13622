package counterfoil

import (
	"context"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Cached is a family of counters whose value is in Redis while they are in use, within the family's bounds. An id is 1 to 255
// bytes of UTF-8.
type Cached struct{ *family }

// ticketMillis is how long a ticket is kept, and with it the time to read a row.
const ticketMillis = 30_000

var cachedKind = &kind{name: "cached", maxID: 255, limit: 1000, spans: true,
	place: func(e *epoch, it *item) uint32 { return e.partitionOf(it.id) },
	encode: func(f *family, e *epoch, batch []*item, r *request) {
		r.script, r.args = "cached_incr", append(r.args, ticketMillis, bound(e.settings.Min), bound(e.settings.Max))
		at := 0
		for i, it := range batch {
			if i == 0 || it.partition != batch[i-1].partition {
				r.keys = append(r.keys, f.keys(it.partition, "base", "buffer", "batch", "meta")...)
				at, r.args = len(r.args), append(r.args, int64(0))
			}
			bump(r.args, at, 1)
			r.args = append(r.args, it.id, it.change)
		}
	},
	results: func(words []any, _ []*item) (results []any) {
		if words[0] == "OK" {
			return words[1:]
		}
		for _, word := range strings.Fields(textAt(words, 1)) {
			results = append(results, word)
		}
		return results
	},
}

func bound(value *int64) any {
	if value == nil {
		return ""
	}
	return *value
}

// Cached returns the family of that name, whose options are [ReadRow] and [InTable].
func (c *Client) Cached(name string, options ...FamilyOption) (*Cached, error) {
	f, err := c.family(cachedKind, name, options)
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
	return c.seeding(ctx, id, func() outcome { return c.count(ctx, &item{id: id, change: fmt.Sprint(delta)})[0] })
}

// Set changes the counter to that value and returns it.
func (c *Cached) Set(ctx context.Context, id string, value int64) (int64, error) {
	return c.seeding(ctx, id, func() outcome { return c.count(ctx, &item{id: id, change: fmt.Sprint("=", value)})[0] })
}

// Get returns the value.
func (c *Cached) Get(ctx context.Context, id string) (int64, error) {
	return c.seeding(ctx, id, func() outcome {
		words, err := c.read(ctx, func(e *epoch) *request {
			return &request{"cached_get", c.keys(e.partitionOf(id), "base", "buffer", "batch"), []any{ticketMillis, "", newCaller(), id}}
		})
		if err != nil {
			return outcome{err: err}
		}
		return c.outcomeOf(textAt(words, 1))
	})
}

// seeding makes a call again after it has seeded a counter that the call missed.
func (c *Cached) seeding(ctx context.Context, id string, call func() outcome) (int64, error) {
	if err := c.check(id, 255, true); err != nil {
		return 0, err
	}
	for range 10 {
		result := call()
		code, rest, _ := strings.Cut(result.word, ":")
		switch code {
		case "MISS":
			if err := c.seed(ctx, id, rest); err != nil {
				return 0, err
			}
			continue
		case "RANGE":
			e := c.fail(ErrNotCounted, code, nil)
			if value, err := strconv.ParseInt(rest, 10, 64); err == nil {
				e.Value = &value
			}
			return 0, e
		case "SUM": // of base, batch and buffer
			return c.sum(strings.Split(rest, ":")...)
		}
		return result.value, result.err
	}
	return 0, c.fail(ErrNotCounted, "MISS", nil)
}

// sum adds numbers that may each be near an end of i64.
func (f *family) sum(numbers ...string) (int64, error) {
	sum := new(big.Int)
	for _, text := range numbers {
		if number, isNumber := new(big.Int).SetString(text, 10); isNumber {
			sum.Add(sum, number)
		}
	}
	if !sum.IsInt64() {
		return 0, f.fail(ErrNotCounted, "RANGE", nil)
	}
	return sum.Int64(), nil
}

// seed reads the row, once for all callers that have the same ticket, and gives the counter its value as the base.
func (c *Cached) seed(ctx context.Context, id, ticket string) error {
	_, err := c.rows.do(ctx, c.family, id+" "+ticket, func(ctx context.Context) (value int64, err error) {
		if c.readRow == nil {
			value, err = c.askDaemon(ctx, id) // the row's, as nothing is pending
		} else if value, err = c.readRow(ctx, id); err != nil {
			err = c.fail(ErrNotCounted, "no row", err)
		}
		if err != nil {
			return 0, err
		}
		_, err = c.read(ctx, func(e *epoch) *request {
			return &request{"cached_seed", c.family.keys(e.partitionOf(id), "base"), []any{e.settings.Retain, "", id, ticket, value}}
		})
		return value, err
	})
	return err
}
