// Package counterfoiltest counts in memory, for tests without servers.
//
//	counters, err := counterfoiltest.New("shop", map[string]counterfoiltest.Family{"hits": {Windows: []string{"60s", "day"}}})
//
// The client is a [counterfoil.Client], with all calls and errors, so an application takes it in place of its own. A family has
// the kind of its first use. Its value is what was counted, requests are remembered for ever, windows have 60 slices (in UTC),
// and [counterfoil.Activity.Now] is that of the last five minutes. It is neither the protocol of Redis nor its faults: for
// these, run the tests in `counterfoil sandbox`.
package counterfoiltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/counterfoil/counterfoil-go/internal/memory"
	"github.com/redis/go-redis/v9"
)

// Family has settings of a family, which counterfoil.toml has in production.
type Family struct {
	IDs       string   // a regular expression for ids, by default any
	Separator string   // of the scope and the day of visitors, by default "/"
	Min, Max  *int64   // of a cached family
	Windows   []string // the labels of a series, such as 60s, day or month
}

// New returns a client that counts in memory, in these and all other families.
func New(namespace string, families map[string]Family) (*counterfoil.Client, error) {
	s := &store{families: map[string]*family{}}
	for name, settings := range families {
		s.family(namespace + "/" + name).Family = settings
	}
	return counterfoil.New(s, namespace, counterfoil.Options{})
}

// store implements memory.Memory.
type store struct {
	redis.UniversalClient // nil

	mu       sync.Mutex
	families map[string]*family
}

type family struct {
	Family
	kind string
	sums map[string]int64
	done map[string]any          // the word of a request or a visitor
	hits map[string][]memory.Hit // of series and pages
}

const epoch = "memory"

func (s *store) family(path string) *family {
	if s.families[path] == nil {
		s.families[path] = &family{sums: map[string]int64{}, done: map[string]any{}, hits: map[string][]memory.Hit{}}
	}
	return s.families[path]
}

func (s *store) Value(path, id string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.family(path).sums[id]
}

func (s *store) Reply(path, script, key string, args []any) []any {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.family(path)
	switch names := strings.SplitN(key, ":", 5); script { // cf1:{...}:series:LABEL:NAME, cf1:{...}:visitors:STRIPE:PAGE
	case "cached_get":
		return []any{"OK", f.sums[fmt.Sprint(args[4])]}
	case "series_get":
		return f.window(names[3], names[4])
	case "activity_now":
		return f.now(names[4])
	}
	if f.kind = cmp.Or(f.kind, fmt.Sprint(args[0])); f.kind != args[0] {
		return []any{"MISMATCH", f.kind, 1, ""}
	}
	ids := cmp.Or(f.IDs, `[\s\S]+`)
	settings, _ := json.Marshal(map[string]any{ // it can always be encoded
		"labels": f.Windows, "stripes": 1, "separator": cmp.Or(f.Separator, "/"), "ids": ids, "ids_in_words": ids,
	})
	return []any{"OK", epoch, epoch, f.kind, 1, string(settings)}
}

func (s *store) Count(path string, h memory.Hit) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, key := s.family(path), fmt.Sprintf("%s %q %s", h.Request, h.ID, h.Visitor)
	word, isDone := f.done[key]
	switch {
	case f.kind == "series" && !f.takes(h.At):
		return "BADTIME"
	case f.kind == "series", f.kind == "activity":
		f.hits[h.ID] = append(f.hits[h.ID], h)
		return 1
	case f.kind == "visitors" && isDone:
		return 0
	case h.Request != "" && h.Epoch != "" && h.Epoch != epoch:
		return "EXPIRED"
	case h.Request != "" && isDone:
		return fmt.Sprint("BEFORE:", word)
	}
	word = f.change(h)
	f.done[key] = word
	if f.kind == "visitors" {
		return 1
	}
	return word
}

// change changes a cached counter by its Change, and any other by N.
func (f *family) change(h memory.Hit) any {
	value, after := f.sums[h.ID], f.sums[h.ID]+h.N
	if f.kind == "cached" {
		change, isSet := strings.CutPrefix(h.Change, "=")
		after, _ = strconv.ParseInt(change, 10, 64)
		if !isSet {
			after += value
		}
		if after >= 1<<53 || after <= -1<<53 || f.Min != nil && after < *f.Min || f.Max != nil && after > *f.Max {
			return fmt.Sprint("RANGE:", value)
		}
	} else if (after < value) != (h.N < 0) {
		return "RANGE"
	}
	f.sums[h.ID] = after
	return after
}

// takes returns true if a window has that time, or will have it within a minute.
func (f *family) takes(at time.Time) bool {
	has := func(label string) bool { return at.Unix() >= starts(label)[0] && time.Until(at) <= time.Minute }
	return len(f.Windows) == 0 || slices.ContainsFunc(f.Windows, has)
}

// starts returns when the slices of a window begin, the oldest first.
func starts(label string) []int64 {
	all, at := make([]int64, 60), time.Now().UTC()
	length, _ := time.ParseDuration(strings.Replace(label, "day", "24h", 1))
	for i := len(all) - 1; i >= 0; i-- {
		start := at.Truncate(length)
		if label == "month" {
			start = time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
		}
		all[i], at = start.Unix(), start.Add(-1)
	}
	return all
}

func (f *family) window(label, name string) []any {
	all := starts(label)
	counts := make([]int64, 1+len(all)) // the first is of what is older
	for _, h := range f.hits[name] {
		at, _ := slices.BinarySearch(all, h.At.Unix()+1)
		counts[at] += h.N
	}
	return []any{"OK", strings.Trim(fmt.Sprint(all), "[]"), strings.Trim(fmt.Sprint(counts[1:]), "[]")}
}

func (f *family) now(page string) []any {
	views, visitors := int64(0), map[string]bool{}
	for _, h := range f.hits[page] {
		if time.Since(h.At) < 5*time.Minute {
			views += h.N
			visitors[h.Visitor] = true
		}
	}
	return []any{"OK", views, len(visitors)}
}
