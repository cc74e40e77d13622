package counterfoil

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Series is a family that counts over time. A name is 1 to 200 bytes of UTF-8.
type Series struct{ *family }

// Slice is the count of a slice of time.
type Slice struct {
	Start time.Time
	Count int64
}

var calendars = []string{"calendar:day", "calendar:month"}

var seriesKind = &kind{
	name: "series", script: "series_add", maxID: 200, limit: 100, keys: []string{"buffer", "meta", "names", "idle"},
	homeKeys: calendars, hasTotals: true, hasRefusals: true,
	place: (*epoch).placeOf,
	head:  func(*family, *epoch, int) []any { return nil },
	encode: func(f *family, e *epoch, items []*item, r *request) {
		for _, it := range items {
			for _, label := range e.Labels {
				r.keys = append(r.keys, f.keys(it.partition, "series:"+label+":"+it.id)...)
			}
			r.args = append(r.args, it.id, it.n, it.at)
		}
	},
}

// Series returns the family of that name.
func (c *Client) Series(name string) (*Series, error) {
	f, err := c.family(seriesKind, name, nil)
	return &Series{f}, err
}

// Add counts n hits, 1 or more, in the current slice of every window.
func (s *Series) Add(ctx context.Context, name string, n int64) error {
	return s.add(ctx, target{id: name}, n)
}

// AddAt counts n hits that happened at this time: in the slices of that time, as far as windows or what is kept still take it.
// A time up to a minute ahead counts as now; for any other, the error's Reason is BADTIME.
func (s *Series) AddAt(ctx context.Context, name string, n int64, at time.Time) error {
	return s.add(ctx, target{id: name, at: millis(at)}, n)
}

func (s *Series) add(ctx context.Context, t target, n int64) error {
	if err := s.checkHits(t, n); err != nil {
		return err
	}
	return s.countAnew(ctx, hit{target: t, n: n}).Err
}

// Later is Add with a sum in the process, as [Buffered.Later]. Hits count in the slice in which Redis takes them.
func (s *Series) Later(name string, n int64) error { return s.addAtLater(target{id: name}, n) }

// LaterAt is AddAt with a sum in the process for each name and time.
func (s *Series) LaterAt(name string, n int64, at time.Time) error {
	return s.addAtLater(target{id: name, at: millis(at)}, n)
}

func (s *Series) addAtLater(t target, n int64) error {
	if err := s.checkHits(t, n); err != nil {
		return err
	}
	return s.addLater(t, n)
}

// Flush sends what Later and LaterAt took before, as [Buffered.Flush].
func (s *Series) Flush(ctx context.Context) error { return s.flush(ctx) }

func millis(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

func (s *Series) checkHits(t target, n int64) error {
	if n < 1 {
		return s.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d hits", n))
	}
	if strings.HasPrefix(t.at, "-") {
		return s.fail(ErrNotCounted, "BADTIME", fmt.Errorf("%s ms", t.at))
	}
	return nil
}

// Get returns the window with that label, such as 60s or day: all its slices, the oldest first. The last one is not over.
func (s *Series) Get(ctx context.Context, name, label string) ([]Slice, error) {
	ctx, cancel := limited(ctx, s.client.options.RetryFor/2)
	defer cancel()
	e, err := s.askFor(ctx, name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(e.Labels, label) {
		return nil, s.fail(ErrNotCounted, "BADARG", fmt.Errorf("the family has no window %s", label))
	}
	partition := e.partitionOf(name)
	words, err := s.readOfHome(ctx, "series_get", partition, calendars, s.keys(partition, "series:"+label+":"+name), label)
	if err != nil {
		return nil, err
	}
	starts, counts := strings.Fields(words[1].(string)), strings.Fields(words[2].(string))
	all := make([]Slice, len(starts))
	for i := range all {
		all[i] = Slice{time.Unix(number(starts[i]), 0), number(counts[i])}
	}
	return all, nil
}
