package counterfoil

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// family is what the kinds have in common.
type family struct {
	*kind
	client  *Client
	path    string
	readRow atomic.Pointer[func(ctx context.Context, id string) (int64, error)]
	seeds   sync.Map // by id and ticket: functions that read a row and seed its counter
	later   later

	latest atomic.Pointer[epoch] // the last one of any home: partitions and settings
	epochs sync.Map              // by home

	mu     sync.Mutex
	queues map[uint32]*queue
}

// A FamilyOption is an option of a single family. It holds for all that the Client returns of the family.
type FamilyOption func(*family)

// epoch is a reply of family_epoch.
type epoch struct {
	now        string
	generation string // of requests
	partitions uint32
	settings
	ids   *regexp.Regexp // matches the ids that can have a row
	until time.Time
}

// settings are those that clients need; times are in milliseconds.
type settings struct {
	Wide       bool
	Labels     []string // of the windows of a series
	Stripes    uint32   // of a page of an activity
	Separator  string
	IDs        string
	IDsInWords string `json:"ids_in_words"`
}

func (c *Client) family(kind *kind, id string, options []FamilyOption) (*family, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.families[kind.name+" "+id]
	if f == nil {
		f = &family{client: c, kind: kind, path: c.namespace + "/" + id, queues: map[uint32]*queue{}}
		f.later.sums = map[string]*hit{}
		if !name.MatchString(id) {
			return nil, f.fail(ErrMisconfigured, "BADKEY", fmt.Errorf("the family's name does not match %s", name))
		}
		c.families[kind.name+" "+id] = f
	}
	for _, option := range options {
		option(f)
	}
	return f, nil
}

func (f *family) fail(kind error, reason string, cause error) *Error {
	return &Error{Kind: kind, Reason: reason, Family: f.path, cause: cause}
}

func (f *family) failTemporarily(reason string, cause error) *Error {
	e := f.fail(ErrNotCounted, reason, cause)
	e.isTemporary = true
	return e
}

// check refuses an id, a name, a page or a visitor before anything is sent.
func (f *family) check(text string, most int, isText bool) error {
	if text == "" || len(text) > most || isText && !utf8.ValidString(text) {
		return f.fail(ErrNotCounted, "BADID", fmt.Errorf("%.40q: expected UTF-8 of 1 to %d bytes", text, most))
	}
	return nil
}

// checkRow refuses an id, a name or a page that can have no row.
func (f *family) checkRow(e *epoch, id string) error {
	if e.ids.MatchString(id) {
		return nil
	}
	return f.fail(ErrNotCounted, "BADID", fmt.Errorf("%q can have no row, expected %s", id, e.IDsInWords))
}

func (f *family) keys(partition uint32, names ...string) []string {
	keys, prefix := make([]string, len(names)), "cf1:{"+f.path+"/"+strconv.Itoa(int(partition))+"}:"
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

func (e *epoch) placeOf(it *item) uint32 { return e.partitionOf(it.id) }

// describe returns the last epoch of any home, whose partitions are compared again before a call is sent.
func (f *family) describe(ctx context.Context) (*epoch, error) {
	if latest := f.latest.Load(); latest != nil {
		return latest, nil
	}
	return f.ask(ctx, 0)
}

// askFor returns the epoch to read a counter with.
func (f *family) askFor(ctx context.Context, id string) (*epoch, error) {
	if err := f.check(id, f.maxID, true); err != nil {
		return nil, err
	}
	e, err := f.ask(ctx, 0)
	if err == nil {
		err = f.checkRow(e, id)
	}
	return e, err
}

// ask returns the epoch of a home, for new calls: the server was asked less than 30 s ago.
func (f *family) ask(ctx context.Context, home uint32) (*epoch, error) {
	if known, isKnown := f.epochs.Load(home); isKnown && time.Now().Before(known.(*epoch).until) {
		return known.(*epoch), nil
	}
	return f.askRedis(ctx, home)
}

func (f *family) askRedis(ctx context.Context, home uint32) (*epoch, error) {
	latest, partitions := f.latest.Load(), ""
	if latest != nil {
		partitions = fmt.Sprint(latest.partitions)
	}
	if e := f.down(f.configuration(home)); e != nil {
		return nil, e
	}
	keys := f.epochKeys(home)
	for start := time.Now(); ; {
		asked := time.Now()
		words, err := f.reply(ctx, home, "family_epoch", keys, f.name, partitions, "", "")
		switch {
		case err != nil:
			return nil, err
		case words[0] == "OK":
			e := &epoch{now: words[1].(string), generation: words[2].(string), until: asked.Add(30 * time.Second)}
			e.partitions = uint32(number(words[4]))
			err := json.Unmarshal([]byte(words[5].(string)), &e.settings)
			if err == nil {
				e.ids, err = regexp.Compile(`\A(?:` + e.IDs + `)\z`)
			}
			if err != nil {
				return nil, f.fail(ErrMisconfigured, "settings", err)
			}
			f.epochs.Store(home, e)
			f.latest.Store(e)
			return e, nil
		case words[0] == "MISMATCH": // it is another family now
			f.latest.Store(nil)
			f.epochs.Delete(home)
			if words[1] != f.name {
				return nil, f.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("%s is %s, not %s", f.path, words[1], f.name))
			}
			return nil, f.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("it has %v partitions now", words[2]))
		case len(words) > 1 && words[1] != "":
			e := f.fail(ErrMisconfigured, "UNCONFIGURED", fmt.Errorf("the daemon refuses %s: %s", f.path, words[1]))
			e.isTemporary = true
			return nil, e
		}
		why := f.announce(ctx)
		if time.Since(start)+wantedEvery > configuredWithin || time.Until(limitOf(ctx)) < wantedEvery {
			e := f.unconfigured(why)
			f.begin(f.configuration(home), "", e, func(ctx context.Context) bool { return f.isConfigured(ctx, home) })
			return nil, e
		}
		if !sleep(ctx, wantedEvery) {
			return nil, f.ended(ctx)
		}
	}
}

// configuration is the name of what configures a family at a home, beside the names of servers.
func (f *family) configuration(home uint32) string {
	return fmt.Sprint("configuration of ", f.path, "/", home)
}

// isConfigured announces the family and asks for it once, and returns true if calls should ask again.
func (f *family) isConfigured(ctx context.Context, home uint32) bool {
	if f.announce(ctx) != nil {
		return false
	}
	words, err := f.reply(ctx, home, "family_epoch", f.epochKeys(home), f.name, "", "", "")
	return err == nil && (words[0] != "UNCONFIGURED" || len(words) > 1 && words[1] != "")
}

// unconfigured returns the error of a family that no daemon has configured, with what else is known.
func (f *family) unconfigured(why error) *Error {
	missing := fmt.Errorf("no daemon has configured %s: declare it in counterfoil.toml, and run the daemon", f.path)
	if why != nil {
		missing = fmt.Errorf("%w; %w", missing, why)
	}
	return f.failTemporarily("UNCONFIGURED", missing)
}

// epochKeys returns the keys of family_epoch.
func (f *family) epochKeys(home uint32) []string {
	return f.keys(home, "calls", "calls_before", "requests", "requests_before")
}

const (
	// configuredWithin is how long a daemon may take.
	configuredWithin = 3 * time.Second
	// wantedEvery is how often the daemon takes what is wanted.
	wantedEvery = 200 * time.Millisecond
)

// announce announces the family to the daemon, which may know it. It returns why that failed.
func (f *family) announce(ctx context.Context) error {
	words, err := f.reply(ctx, 0, "family_want", []string{"cf1:wanted"}, f.path)
	if err == nil && words[0] != "OK" {
		return errors.New("cf1:wanted is full, since no daemon takes names")
	}
	return err
}
