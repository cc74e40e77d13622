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

// family is a family of any kind: what is known about it, and the reads that its kinds have in common.
type family struct {
	traits
	client *Client
	path   string // NAMESPACE/FAMILY

	latest       atomic.Pointer[description] // the last one of any home: partitions and settings
	descriptions sync.Map                    // by home

	// of a cached family: the function of ReadRow; and functions that read a row and seed its counter, by id and ticket
	readRow atomic.Pointer[func(ctx context.Context, id string) (int64, error)]
	seeds   sync.Map
}

// A FamilyOption is an option of a single family. It holds for all that the Client returns of the family.
type FamilyOption func(*family)

// description is a reply of family_epoch: the family, and the epoch of a home.
type description struct {
	epoch      string // that counting calls name
	generation string // of requests
	partitions uint32
	settings
	ids   *regexp.Regexp // matches the ids that can have a row
	until time.Time      // after that Redis is asked again
}

// settings are those of a family that clients need.
type settings struct {
	Wide       bool     // a change of a buffered family may count in any partition
	Labels     []string // of the windows of a series
	Stripes    uint32   // of a page of an activity
	Separator  string   // of the parts of an id
	IDs        string   // a regular expression
	IDsInWords string   `json:"ids_in_words"`
}

// openFamily returns a family and its writer, the same ones each time, and sets options of the family.
func openFamily[T target](c *Client, k kind[T], id string, options []FamilyOption) (*family, *writer[T], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := k.traits().kindName + " " + id
	w, isKnown := c.families[key].(*writer[T])
	if !isKnown {
		f := &family{traits: k.traits(), client: c, path: c.namespace + "/" + id}
		if !name.MatchString(id) {
			return nil, nil, f.fail(ErrMisconfigured, "BADKEY", fmt.Errorf("the family's name does not match %s", name))
		}
		w = &writer[T]{family: f, kind: k, queues: map[uint32]*queue[T]{}}
		w.sums.waiting = map[T]int64{}
		c.families[key] = w
	}
	for _, option := range options {
		option(w.family)
	}
	return w.family, w, nil
}

func (f *family) fail(kind error, reason string, cause error) *Error {
	return &Error{Kind: kind, Reason: reason, Family: f.path, cause: cause}
}

func (f *family) failTemporarily(reason string, cause error) *Error {
	e := f.fail(ErrNotCounted, reason, cause)
	e.isTemporary = true
	return e
}

// check refuses an id, a name, a page or a visitor that is empty or too long, or that is not text but should be.
func (f *family) check(text string, most int, isText bool) error {
	if text == "" || len(text) > most || isText && !utf8.ValidString(text) {
		return f.fail(ErrNotCounted, "BADID", fmt.Errorf("%.40q: expected UTF-8 of 1 to %d bytes", text, most))
	}
	return nil
}

// checkRow refuses an id, a name or a page that can have no row.
func (f *family) checkRow(d *description, id string) error {
	if d.ids.MatchString(id) {
		return nil
	}
	return f.fail(ErrNotCounted, "BADID", fmt.Errorf("%q can have no row, expected %s", id, d.IDsInWords))
}

func (f *family) keys(partition uint32, names ...string) []string {
	keys, prefix := make([]string, len(names)), "cf1:{"+f.path+"/"+strconv.Itoa(int(partition))+"}:"
	for i, name := range names {
		keys[i] = prefix + name
	}
	return keys
}

// home returns the partition that remembers the callers of calls in this one.
func (f *family) home(partition uint32) uint32 {
	if f.client.isCluster {
		return partition
	}
	return 0
}

func crc(text string) uint32 { return crc32.ChecksumIEEE([]byte(text)) }

func (d *description) partitionOf(id string) uint32 { return crc(id) % d.partitions }

// known returns the last description of any home, which may be out of date. The number of partitions is compared again before a
// call is sent.
func (f *family) known(ctx context.Context) (*description, error) {
	if latest := f.latest.Load(); latest != nil {
		return latest, nil
	}
	return f.describe(ctx, 0)
}

// described checks an id, a name or a page, and returns the description to read it with.
func (f *family) described(ctx context.Context, id string) (*description, error) {
	if err := f.check(id, f.maxID, true); err != nil {
		return nil, err
	}
	d, err := f.describe(ctx, 0)
	if err == nil {
		err = f.checkRow(d, id)
	}
	return d, err
}

// describe returns the description that new calls at a home are made with: Redis was asked for it less than 30 s ago.
func (f *family) describe(ctx context.Context, home uint32) (*description, error) {
	if known, isKnown := f.descriptions.Load(home); isKnown && time.Now().Before(known.(*description).until) {
		return known.(*description), nil
	}
	return f.ask(ctx, home)
}

// ask asks Redis for the family. If Redis does not know it the daemon has some time to configure it.
func (f *family) ask(ctx context.Context, home uint32) (*description, error) {
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
		words, err := f.reply(ctx, home, "family_epoch", keys, f.kindName, partitions, "", "")
		switch {
		case err != nil:
			return nil, err
		case words[0] == "OK":
			d := &description{epoch: words[1].(string), generation: words[2].(string), until: asked.Add(30 * time.Second)}
			d.partitions = uint32(number(words[4]))
			err := json.Unmarshal([]byte(words[5].(string)), &d.settings)
			if err == nil {
				d.ids, err = regexp.Compile(`\A(?:` + d.IDs + `)\z`)
			}
			if err != nil {
				return nil, f.fail(ErrMisconfigured, "settings", err)
			}
			f.descriptions.Store(home, d)
			f.latest.Store(d)
			return d, nil
		case words[0] == "MISMATCH": // it was configured anew, as another kind or with other partitions
			f.latest.Store(nil)
			f.descriptions.Delete(home)
			if words[1] != f.kindName {
				return nil, f.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("%s is %s, not %s", f.path, words[1], f.kindName))
			}
			return nil, f.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("it has %v partitions now", words[2]))
		case len(words) > 1 && words[1] != "": // UNCONFIGURED, with a reason
			refused := f.fail(ErrMisconfigured, "UNCONFIGURED", fmt.Errorf("the daemon refuses %s: %s", f.path, words[1]))
			refused.isTemporary = true
			return nil, refused
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

// configuration names the daemon's part in an outage: a family that is not configured at a home.
func (f *family) configuration(home uint32) string {
	return fmt.Sprint("configuration of ", f.path, "/", home)
}

// isConfigured announces the family and asks for it once. It returns true if there is a reply that calls should see.
func (f *family) isConfigured(ctx context.Context, home uint32) bool {
	if f.announce(ctx) != nil {
		return false
	}
	words, err := f.reply(ctx, home, "family_epoch", f.epochKeys(home), f.kindName, "", "", "")
	return err == nil && (words[0] != "UNCONFIGURED" || len(words) > 1 && words[1] != "")
}

// unconfigured returns the error of a family that no daemon has configured. The cause why, which may be nil, follows.
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
	// configuredWithin is how long a daemon may take to configure a family.
	configuredWithin = 3 * time.Second
	// wantedEvery is how often a daemon reads which families are announced.
	wantedEvery = 200 * time.Millisecond
)

// announce announces the family to the daemon, which configures it if counterfoil.toml declares it. It returns why that failed.
func (f *family) announce(ctx context.Context) error {
	words, err := f.reply(ctx, 0, "family_want", []string{"cf1:wanted"}, f.path)
	if err == nil && words[0] != "OK" {
		return errors.New("cf1:wanted is full, since no daemon takes names")
	}
	return err
}
