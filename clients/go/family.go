package counterfoil

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// family is what the kinds have in common.
type family struct {
	client     *Client
	kind, path string
	codec      codec
	table      *table
	readRow    func(ctx context.Context, id string) (int64, error)
	later      *later
	asking     flights[*epoch]
	rows       flights[int64]

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
	until       time.Time
}

// settings are those that clients need; times are in milliseconds.
type settings struct {
	Wide                   bool
	Retain, Remember       int64
	Min, Max               *int64
	Windows                []window
	Keep                   []string
	TimeZone               string `json:"time_zone"`
	Window, Layer, Stripes int64
	KeepMinutes            bool `json:"keep_minutes"`
	Visitors               string
}

func (c *Client) family(kind, family string, codec codec, options []FamilyOption) (*family, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.families[kind+" "+family]
	if f == nil {
		f = newFamily(c, kind, family, codec)
		if !name.MatchString(family) {
			return nil, f.fail(ErrMisconfigured, "BADKEY", fmt.Errorf("the family's name does not match %s", name))
		}
		for _, option := range options {
			option(f)
		}
		c.families[kind+" "+family] = f
	}
	return f, nil
}

func newFamily(c *Client, kind, name string, codec codec) *family {
	f := &family{client: c, kind: kind, path: c.namespace + "/" + name, codec: codec}
	f.epochs, f.queues = map[uint32]*epoch{}, map[uint32]*queue{}
	f.later = newLater(f)
	return f
}

func (f *family) keys(partition uint32, names ...string) []string {
	keys := make([]string, len(names), len(names)+4)
	prefix := "cf1:{" + f.path + "/" + strconv.FormatUint(uint64(partition), 10) + "}:"
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

// describe returns the last epoch of any home, for its partitions and settings.
func (f *family) describe(ctx context.Context) (*epoch, error) {
	f.mu.Lock()
	latest := f.latest
	f.mu.Unlock()
	if ctx.Err() != nil {
		return nil, f.fail(ErrNotCounted, "canceled", ctx.Err())
	}
	if latest != nil {
		return latest, nil
	}
	return f.ask(ctx, 0)
}

// ask returns the epoch of a home, for new calls: the server was asked less than 30 s ago.
func (f *family) ask(ctx context.Context, home uint32) (*epoch, error) {
	f.mu.Lock()
	known := f.epochs[home]
	f.mu.Unlock()
	if known != nil && time.Now().Before(known.until) {
		return known, nil
	}
	asked, err := f.asking.do(ctx, fmt.Sprint(home), func(ctx context.Context) (*epoch, error) {
		ctx, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
		defer cancel()
		return f.askServer(ctx, home)
	})
	if _, isOurs := err.(*Error); err != nil && !isOurs { // ctx has ended
		return nil, &Error{Kind: ErrNotCounted, Reason: "canceled", Family: f.path, cause: err, temporary: true}
	}
	return asked, err
}

func (f *family) askServer(ctx context.Context, home uint32) (*epoch, error) {
	f.mu.Lock()
	partitions := ""
	if f.latest != nil {
		partitions = fmt.Sprint(f.latest.partitions)
	}
	isSeen := f.isSeen
	f.mu.Unlock()
	for start := time.Now(); ; {
		asked := time.Now()
		words, err := f.read(ctx, "family_epoch", f.keys(home, "calls", "calls_before"), f.kind, partitions, "", "")
		if err != nil {
			if e := err.(*Error); e.Kind == ErrNotCounted {
				return nil, &Error{Kind: ErrNotCounted, Reason: "no epoch", Family: f.path, cause: e, temporary: true}
			}
			return nil, err
		}
		switch {
		case words[0] == "OK" && len(words) >= 6:
			return f.learn(home, words, asked)
		case words[0] == "UNCONFIGURED":
			// the daemon configures an emptied Redis again within about a second
			if isSeen && time.Since(start) < 3*time.Second && sleep(ctx, 100*time.Millisecond) {
				continue
			}
			e := f.fail(ErrMisconfigured, "UNCONFIGURED", nil)
			e.temporary = isSeen
			e.detail = "declare the family in the daemon's counterfoil.toml, create its tables with `counterfoil init`, and start the daemon"
			return nil, e
		default:
			f.forget()
			e := f.fail(ErrMisconfigured, "MISMATCH", nil)
			e.detail = fmt.Sprintf("the application counts in a family of kind %s, and Redis has %v", f.kind, words[1:])
			return nil, e
		}
	}
}

func (f *family) learn(home uint32, words []any, asked time.Time) (*epoch, error) {
	e := &epoch{until: asked.Add(30 * time.Second)}
	e.now, e.before = fmt.Sprint(words[1]), fmt.Sprint(words[2])
	_, err := fmt.Sscan(fmt.Sprint(words[4]), &e.partitions)
	if err == nil {
		err = json.Unmarshal([]byte(fmt.Sprint(words[5])), &e.settings)
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

func (e *epoch) partitionOf(id string) uint32 { return crc32.ChecksumIEEE([]byte(id)) % e.partitions }

// checkID refuses an id, a name or a page before anything is sent.
func (f *family) checkID(id string, most int) error {
	if id == "" || len(id) > most || !utf8.ValidString(id) {
		e := f.fail(ErrNotCounted, "BADID", nil)
		e.detail = fmt.Sprintf("%.40q is not UTF-8 of 1 to %d bytes", id, most)
		return e
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
func (all *flights[V]) do(ctx context.Context, key string, call func(context.Context) (V, error)) (V, error) {
	all.mu.Lock()
	one := all.by[key]
	if one == nil {
		one = &flight[V]{done: make(chan struct{})}
		if all.by == nil {
			all.by = map[string]*flight[V]{}
		}
		all.by[key] = one
		go func() {
			one.value, one.err = call(context.WithoutCancel(ctx))
			all.mu.Lock()
			delete(all.by, key)
			all.mu.Unlock()
			close(one.done)
		}()
	}
	all.mu.Unlock()
	select {
	case <-one.done:
		return one.value, one.err
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}
