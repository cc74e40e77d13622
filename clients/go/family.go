package counterfoil

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// family is what the kinds have in common.
type family struct {
	*kind
	client  *Client
	path    string
	table   [3]string // the application's table, its id and value columns
	readRow func(ctx context.Context, id string) (int64, error)
	later   later
	asks    flights[*epoch]
	rows    flights[int64]

	mu     sync.Mutex
	latest *epoch            // the last one of any home: kind, partitions and settings
	epochs map[uint32]*epoch // by home
	queues map[uint32]*queue
	isSeen bool // the family was configured once, so it will be again
	isOurs bool // its database is the one of Options.Database
}

// A FamilyOption is an option of a single family. The first call of a Client for the family sets its options.
type FamilyOption func(*family)

// epoch is a reply of family_epoch.
type epoch struct {
	now, before string
	partitions  uint32
	settings    settings
	zone        *time.Location
	until       time.Time
}

// settings are those that clients need; times are in milliseconds.
type settings struct {
	Wide             bool
	Retain, Remember int64
	Min, Max         *int64
	Windows          []window
	Keep             []string
	TimeZone         string `json:"time_zone"`
	Window, Layer    int64
	Stripes          uint32
	KeepMinutes      bool `json:"keep_minutes"`
	Visitors         string
}

func (c *Client) family(kind *kind, family string, options []FamilyOption) (*family, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.families[kind.name+" "+family]
	if f == nil {
		f = newFamily(c, kind, family)
		if !name.MatchString(family) {
			return nil, f.fail(ErrMisconfigured, "BADKEY", fmt.Errorf("the family's name does not match %s", name))
		}
		for _, option := range options {
			option(f)
		}
		c.families[kind.name+" "+family] = f
	}
	return f, nil
}

func newFamily(c *Client, kind *kind, name string) *family {
	f := &family{client: c, kind: kind, path: c.namespace + "/" + name, epochs: map[uint32]*epoch{}, queues: map[uint32]*queue{}}
	f.later.pass, f.later.sums = make(chan struct{}, 1), map[string]int64{}
	return f
}

func (f *family) keys(partition uint32, names ...string) []string {
	keys, prefix := make([]string, len(names)), "cf1:{"+f.path+"/"+strconv.FormatUint(uint64(partition), 10)+"}:"
	for i, name := range names {
		keys[i] = prefix + name
	}
	return keys
}

// home returns the partition whose memory has the callers of this partition.
func (f *family) home(partition uint32) uint32 {
	if f.client.isCluster {
		return partition
	}
	return 0
}

func crc(text string) uint32 { return crc32.ChecksumIEEE([]byte(text)) }

func (e *epoch) partitionOf(id string) uint32 { return crc(id) % e.partitions }

// describe returns the last epoch of any home, whose partitions are compared again before the call is sent.
func (f *family) describe(ctx context.Context) (*epoch, error) {
	f.mu.Lock()
	latest := f.latest
	f.mu.Unlock()
	if latest != nil && ctx.Err() == nil {
		return latest, nil
	}
	return f.ask(ctx, 0)
}

// ask returns the epoch of a home, for new calls: the server was asked less than 30 s ago.
func (f *family) ask(ctx context.Context, home uint32) (*epoch, error) {
	f.mu.Lock()
	known := f.epochs[home]
	f.mu.Unlock()
	if ctx.Err() != nil {
		return nil, f.failTemporarily("canceled", ctx.Err())
	}
	if known != nil && time.Now().Before(known.until) {
		return known, nil
	}
	return f.asks.do(ctx, f, fmt.Sprint(home), func(ctx context.Context) (*epoch, error) { return f.askServer(ctx, home) })
}

func (f *family) askServer(ctx context.Context, home uint32) (*epoch, error) {
	f.mu.Lock()
	partitions, isSeen := "", f.isSeen
	if f.latest != nil {
		partitions = fmt.Sprint(f.latest.partitions)
	}
	f.mu.Unlock()
	r := &request{"family_epoch", f.keys(home, "calls", "calls_before"), []any{f.kind.name, partitions, "", ""}}
	for start := time.Now(); ; {
		asked := time.Now()
		words, err := f.call(ctx, r, new(sends))
		switch {
		case errors.Is(uncounted(err), ErrNotCounted):
			return nil, f.failTemporarily("no epoch", err)
		case err != nil:
			return nil, err
		case words[0] == "OK":
			return f.learn(home, words, asked)
		case words[0] == "MISMATCH":
			f.forget()
			return nil, f.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("counts as %s, and Redis has %v", f.kind.name, words[1:]))
		}
		// the daemon configures an emptied Redis again within about a second
		if !isSeen || time.Since(start) > 3*time.Second || !sleep(ctx, 100*time.Millisecond) {
			e := f.fail(ErrMisconfigured, fmt.Sprint(words[0]), errors.New("declare the family in the daemon's counterfoil.toml, "+
				"create its tables with `counterfoil init`, and start the daemon"))
			e.isTemporary = isSeen
			return nil, e
		}
	}
}

func (f *family) learn(home uint32, words []any, asked time.Time) (*epoch, error) {
	e := &epoch{now: textAt(words, 1), before: textAt(words, 2), partitions: uint32(numberAt(words, 4)), until: asked.Add(30 * time.Second)}
	err := json.Unmarshal([]byte(textAt(words, 5)), &e.settings)
	if err == nil {
		e.zone, err = time.LoadLocation(e.settings.TimeZone)
	}
	if err != nil || e.partitions == 0 {
		return nil, f.fail(ErrMisconfigured, "settings", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epochs[home], f.latest, f.isSeen = e, e, true
	return e, nil
}

// expire forgets an epoch that the server does not know.
func (f *family) expire(home uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.epochs, home)
}

// forget forgets all that is known of the family: it is another one now.
func (f *family) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.latest, f.epochs, f.isOurs = nil, map[uint32]*epoch{}, false
}

// check refuses an id, a name, a page or a visitor before anything is sent.
func (f *family) check(text string, most int, isText bool) error {
	if text == "" || len(text) > most || isText && !utf8.ValidString(text) {
		return f.fail(ErrNotCounted, "BADID", fmt.Errorf("%.40q: expected UTF-8 of 1 to %d bytes", text, most))
	}
	return nil
}

// flights lets callers that need the same result share one call.
type flights[V any] struct {
	mu sync.Mutex
	by map[string]*flight[V]
}

type flight[V any] struct {
	done  chan struct{}
	value V
	err   error
}

// do returns the result of the call under that key which is in flight, or else of a new one. The call continues if ctx ends.
func (all *flights[V]) do(ctx context.Context, f *family, key string, call func(context.Context) (V, error)) (none V, _ error) {
	all.mu.Lock()
	one := all.by[key]
	if one == nil {
		one = &flight[V]{done: make(chan struct{})}
		if all.by == nil {
			all.by = map[string]*flight[V]{}
		}
		all.by[key] = one
		go func() {
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.client.options.RetryFor)
			defer cancel()
			one.value, one.err = call(limited)
			all.mu.Lock()
			defer all.mu.Unlock()
			delete(all.by, key)
			close(one.done)
		}()
	}
	all.mu.Unlock()
	select {
	case <-one.done:
		return one.value, one.err
	case <-ctx.Done():
		return none, f.failTemporarily("canceled", ctx.Err())
	}
}
