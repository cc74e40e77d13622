package counterfoil

import (
	"context"
	"fmt"
	"math/big"
	"strings"
	"sync"
)

// Cached is a family of counters whose value is in Redis while they are in use, within the family's bounds. An id is 1 to 255
// bytes of UTF-8.
type Cached struct{ *family }

// ticketMillis is how long a ticket is kept, and with it the time to read a row.
const ticketMillis = 30_000

var cachedKind = &kind{name: "cached", maxID: 255, limit: 1000, spans: true,
	place: func(e *epoch, it *item) uint32 { return e.partitionOf(it.id) },
	encode: func(f *family, e *epoch, batch []*item, r *request) {
		r.script, r.args = "cached_incr", append(r.args, ticketMillis, e.settings.Min.String(), e.settings.Max.String())
		for _, group := range byPartition(batch) {
			r.keys = append(r.keys, f.keys(group[0].partition, "base", "buffer", "batch", "meta")...)
			r.args = append(r.args, len(group))
			for _, it := range group {
				r.args = append(r.args, it.id, it.change)
			}
		}
	},
	results: func(words []any, _ []*item) (results []any) {
		if words[0] == "OK" {
			return words[1:]
		}
		for _, word := range strings.Fields(words[1].(string)) {
			results = append(results, word)
		}
		return results
	},
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
		e, err := c.askFor(ctx, id)
		if err != nil {
			return outcome{err: err}
		}
		keys := c.keys(e.partitionOf(id), "base", "buffer", "batch")
		words, err := c.reply(ctx, "cached_get", keys, ticketMillis, "", newCaller(), id)
		if err != nil {
			return outcome{err: err}
		}
		return c.outcomeOf(words[1])
	})
}

// seeding makes a call again after it has seeded a counter that the call missed.
func (c *Cached) seeding(ctx context.Context, id string, call func() outcome) (int64, error) {
	result := call()
	for range 10 {
		code, rest, _ := strings.Cut(result.word, ":")
		switch code {
		case "MISS":
			if err := c.seed(ctx, id, rest); err != nil {
				return 0, err
			}
			result = call()
		case "SUM": // of base, batch and buffer
			return c.total(strings.Split(rest, ":")...)
		default:
			return result.Value, result.err
		}
	}
	return result.Value, result.err
}

// total adds numbers that may each be near an end of i64.
func (f *family) total(numbers ...string) (int64, error) {
	sum := new(big.Int)
	for _, text := range numbers {
		number, isNumber := new(big.Int).SetString(text, 10)
		if !isNumber {
			return 0, f.fail(ErrNotCounted, "BADSTATE", fmt.Errorf("%q is not an integer", text))
		}
		sum.Add(sum, number)
	}
	if !sum.IsInt64() {
		return 0, f.fail(ErrNotCounted, "RANGE", nil)
	}
	return sum.Int64(), nil
}

// seed gives the counter a base, once for all callers that have the same ticket.
func (c *Cached) seed(ctx context.Context, id, ticket string) error {
	key := id + " " + ticket
	shared, _ := c.seeds.LoadOrStore(key, sync.OnceValue(func() error {
		defer c.seeds.Delete(key)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.client.options.RetryFor)
		defer cancel()
		return c.readAndSeed(limited, id, ticket)
	}))
	var err error
	if !until(ctx, func() { err = shared.(func() error)() }) {
		return c.fail(ErrNotCounted, "canceled", ctx.Err())
	}
	return err
}

// row calls the application's function, whose panic would otherwise end the process: it is not in the caller's goroutine.
func (c *Cached) row(ctx context.Context, id string) (value int64, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("ReadRow panicked: %v", problem)
		}
	}()
	return c.readRow(ctx, id)
}

func (c *Cached) readAndSeed(ctx context.Context, id, ticket string) (err error) {
	var value int64
	if c.readRow == nil {
		value, err = c.askDaemon(ctx, id) // the row's, as nothing is pending
	} else if value, err = c.row(ctx, id); err != nil {
		err = c.fail(ErrNotCounted, "no row", err)
	}
	if err != nil {
		return err
	}
	e, err := c.ask(ctx, 0)
	if err != nil {
		return err
	}
	_, err = c.reply(ctx, "cached_seed", c.keys(e.partitionOf(id), "base"), e.settings.Retain, "", id, ticket, value)
	return err
}
