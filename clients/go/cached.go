package counterfoil

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/counterfoil/counterfoil-go/internal/memory"
)

// Cached is a family of counters whose value is in Redis while they are in use, within the family's bounds. An id is 1 to 255
// bytes of UTF-8.
type Cached struct {
	exact
	writer *writer[update]
}

// update is the target of a cached family, together with what is done to it.
type update struct {
	counter
	isSet bool // to the number, which is added otherwise
}

// argument returns the number as cached_incr takes it.
func (u update) argument(n int64) string {
	if u.isSet {
		return fmt.Sprint("=", n)
	}
	return fmt.Sprint(n)
}

func (u update) inMemory(n int64) memory.Hit {
	return memory.Hit{Change: u.argument(n), Request: u.request.name, Epoch: u.request.generation}
}

// cachedKind writes calls of cached_incr.
type cachedKind struct{}

func (cachedKind) traits() traits {
	return traits{kindName: "cached", script: "cached_incr", maxID: 255, limit: 1000, spansPartitions: true}
}

func (cachedKind) write(call *scriptCall, b *batch[update]) {
	requests := requestsOf(b)
	call.addArgs(len(requests) / 3)
	for _, updates := range b.parts {
		call.addKeys(updates[0].partition, "base", "buffer", "batch", "meta")
		call.addArgs(len(updates))
		for _, e := range updates {
			call.addArgs(e.target.id, e.target.argument(e.n))
		}
	}
	call.addRequests(requests)
}

func (cachedKind) words(reply []any, b *batch[update]) []any {
	words := reply[1:]
	if reply[0] == "DUP" {
		words = fields(words)
	}
	words, _ = cut(words, len(b.entries))
	return words
}

// Cached returns the family of that name. Its option is [ReadRow].
func (c *Client) Cached(name string, options ...FamilyOption) (*Cached, error) {
	f, w, err := openFamily(c, cachedKind{}, name, options)
	return &Cached{exact{f}, w}, err
}

// ReadRow sets the function that reads the row of a counter that is not in Redis. It must not read in an open transaction, whose
// snapshot may be old: the counter would forget hits. It is for an application that cannot reach a daemon, and returns the value
// on the primary, or [sql.ErrNoRows].
func ReadRow(read func(ctx context.Context, id string) (int64, error)) FamilyOption {
	return func(f *family) { f.readRow.Store(&read) }
}

// Incr adds delta and returns the new value. Where it would leave the family's bounds the error's reason is RANGE, and its
// Value is the current one.
func (c *Cached) Incr(ctx context.Context, id string, delta int64) (int64, error) {
	return c.update(ctx, update{counter: counter{subject: subject{id}}}, delta)
}

// IncrOnce adds delta once for all calls with this request (1 to 64 bytes) and id, from any process, and returns the value that
// the counter had then. A refusal by the bounds stays, too. The epoch is that of RequestEpoch, see [Buffered.AddOnce].
func (c *Cached) IncrOnce(ctx context.Context, request, id string, delta int64, epoch string) (int64, error) {
	if err := c.check(request, 64, true); err != nil {
		return 0, err
	}
	return c.update(ctx, update{counter: counter{subject{id}, namedRequest{request, epoch}}}, delta)
}

// Set changes the counter to that value and returns it.
func (c *Cached) Set(ctx context.Context, id string, value int64) (int64, error) {
	return c.update(ctx, update{counter{subject: subject{id}}, true}, value)
}

func (c *Cached) update(ctx context.Context, target update, n int64) (int64, error) {
	ctx = limitTo(ctx, c.client.options.RetryFor)
	return c.seeding(ctx, target.id, func() Result { return c.writer.count(ctx, change[update]{target, n})[0] })
}

// Get returns the value.
func (c *Cached) Get(ctx context.Context, id string) (int64, error) {
	ctx = limitTo(ctx, c.client.options.RetryFor/2)
	return c.seeding(ctx, id, func() Result {
		d, err := c.described(ctx, id)
		if err != nil {
			return Result{Err: err}
		}
		partition := d.partitionOf(id)
		keys := c.keys(partition, "base", "buffer", "batch", "meta")
		words, err := c.reply(ctx, c.home(partition), "cached_get", keys, 1, "", newCaller(), "", id)
		if err != nil {
			return Result{Err: err}
		}
		if words[1] == "UNCONFIGURED" {
			return Result{Err: c.failTemporarily("UNCONFIGURED", fmt.Errorf("in the partition of %q", id))}
		}
		return c.resultOf(words[1])
	})
}

// seeding makes a call. While the counter is not in Redis it seeds it, and makes the call again.
func (c *Cached) seeding(ctx context.Context, id string, call func() Result) (int64, error) {
	for seeds := 0; ; seeds++ {
		result := call()
		if result.ticket == "" || seeds == 10 {
			return result.Value, result.Err
		}
		if err := c.seed(ctx, id, result.ticket); err != nil {
			return 0, err
		}
	}
}

// seed stores the value of the counter's row in Redis. Callers with the same ticket share one read of the row.
func (c *Cached) seed(ctx context.Context, id, ticket string) error {
	key := id + " " + ticket
	shared, _ := c.seeds.LoadOrStore(key, sync.OnceValue(func() error {
		defer c.seeds.Delete(key)
		limited, cancel := limited(context.WithoutCancel(ctx), c.client.options.RetryFor)
		defer cancel()
		return c.readAndSeed(limited, id, ticket)
	}))
	seeded, err := within(ctx, func() (error, error) { return shared.(func() error)(), nil })
	if err != nil {
		return c.ended(ctx)
	}
	return seeded
}

func (c *Cached) readAndSeed(ctx context.Context, id, ticket string) error {
	row, err := c.row(ctx, id)
	if err != nil {
		return err
	}
	d, err := c.describe(ctx, 0)
	if err != nil {
		return err
	}
	partition := d.partitionOf(id)
	home := c.home(partition)
	keys := append(c.keys(home, "calls"), c.keys(partition, "base")...)
	words, err := c.reply(ctx, home, "cached_seed", keys, "", "", id, ticket, row)
	if err != nil {
		return err
	}
	if word := fmt.Sprint(words[1]); word == "NOROW" || word == "BEYOND" {
		return c.fail(ErrNotCounted, word, nil)
	}
	return nil
}

// row reads the value of the counter's row. It returns "-" if there is no row.
func (c *Cached) row(ctx context.Context, id string) (any, error) {
	readRow := c.readRow.Load()
	if readRow == nil {
		found, err := c.find(ctx, []string{id}) // the row's value: a counter that is not in Redis has nothing pending
		if err != nil || found[0] == nil {
			return "-", err
		}
		return *found[0], nil
	}
	value, err := within(ctx, func() (int64, error) { return (*readRow)(ctx, id) })
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "-", nil
	case err != nil:
		return nil, c.fail(ErrNotCounted, "no row", err)
	}
	return value, nil
}
