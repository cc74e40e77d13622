package counterfoil

import (
	"context"
	"encoding/json"
	"errors"
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

var seriesKind = &kind{name: "series", maxID: 200, limit: 100,
	place: func(e *epoch, it *item) uint32 { return e.partitionOf(it.id) },
	encode: func(f *family, e *epoch, batch []*item, r *request) {
		partition, windows := batch[0].partition, e.settings.Windows
		r.script, r.keys = "series_add", append(r.keys, f.keys(partition, "open", "schedule", "names", "idle")...)
		r.args = append(r.args, len(windows))
		for _, w := range windows {
			r.args = append(r.args, w.precision(e.settings.Keep, f.client.now()/1000, e.zone))
		}
		for _, it := range batch {
			for _, w := range windows {
				r.keys = append(r.keys, f.keys(partition, "series:"+w.label+":"+it.id)...)
			}
			r.args = append(r.args, it.id, it.delta)
		}
	},
	results: func(words []any, _ []*item) []any {
		if words[0] == "DUP" {
			return nil
		}
		return words[1:]
	},
}

// Series returns the family of that name.
func (c *Client) Series(name string) (*Series, error) {
	f, err := c.family(seriesKind, name, nil)
	return &Series{f}, err
}

// Add counts n hits, 1 or more, in the current slice of every window.
func (s *Series) Add(ctx context.Context, name string, n int64) error {
	if n < 1 {
		return s.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d hits", n))
	}
	return s.count(ctx, &item{id: name, delta: n})[0].err
}

// Get returns the window with that label, such as 60s or day: all its slices, the oldest first. The last one is not over.
func (s *Series) Get(ctx context.Context, name, label string) ([]Slice, error) {
	if err := s.check(name, 200, true); err != nil {
		return nil, err
	}
	var asked *epoch
	words, err := s.read(ctx, func(e *epoch) *request {
		asked = e
		return &request{"series_get", s.keys(e.partitionOf(name), "series:"+label+":"+name), []any{""}}
	})
	if err != nil {
		return nil, err
	}
	windows := asked.settings.Windows
	i := slices.IndexFunc(windows, func(w window) bool { return w.label == label })
	if i < 0 {
		return nil, s.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("the family has no window %s", label))
	}
	counts, fields := map[int64]int64{}, strings.Fields(textAt(words, 2))
	for i := 0; i+1 < len(fields); i += 2 {
		start, err := strconv.ParseInt(fields[i], 10, 64)
		count, err2 := strconv.ParseInt(fields[i+1], 10, 64)
		if err = errors.Join(err, err2); err != nil {
			return nil, s.fail(ErrNotCounted, "BADSTATE", err)
		}
		counts[start] = count
	}
	all, at := make([]Slice, windows[i].slices), numberAt(words, 1)/1000
	for number := len(all) - 1; number >= 0; number-- {
		start, _ := windows[i].slice(at, asked.zone)
		all[number], at = Slice{time.Unix(start, 0), counts[start]}, start-1
	}
	return all, nil
}

// window is ["60s", 120] in the settings: label and number of slices.
type window struct {
	label           string
	slices, seconds int64
}

// UnmarshalJSON implements json.Unmarshaler.
func (w *window) UnmarshalJSON(text []byte) error {
	err := json.Unmarshal(text, &[]any{&w.label, &w.slices})
	if err == nil && w.label != "day" && w.label != "month" {
		w.seconds, err = strconv.ParseInt(strings.TrimSuffix(w.label, "s"), 10, 64)
	}
	return err
}

// slice returns start and end of the slice that contains the time, in Unix seconds.
func (w window) slice(at int64, zone *time.Location) (start, end int64) {
	date := time.Unix(at, 0).In(zone)
	switch w.label {
	case "day":
		return midnight(date, date.Day(), zone), midnight(date, date.Day()+1, zone)
	case "month":
		return midnight(date, 1, zone), midnight(date.AddDate(0, 1, 1-date.Day()), 1, zone)
	}
	start = at - (at%w.seconds+w.seconds)%w.seconds
	return start, start + w.seconds
}

// midnight returns when a day of the date's month begins. Where the clocks are changed at midnight, that is the first time of
// the day.
func midnight(date time.Time, day int, zone *time.Location) int64 {
	right := time.Date(date.Year(), date.Month(), day, 0, 0, 0, 0, time.UTC)
	start := time.Date(date.Year(), date.Month(), day, 0, 0, 0, 0, zone)
	if start.Day() != right.Day() { // there is no midnight: the day begins with the new offset
		_, start = start.ZoneBounds()
	}
	if before := start.Add(-time.Nanosecond); before.Day() == right.Day() { // it is there twice
		_, offset := start.Zone()
		_, offsetBefore := before.Zone()
		start = start.Add(time.Duration(offset-offsetBefore) * time.Second)
	}
	return start.Unix()
}

// precision describes a window to series_add: "LABEL SLICE SLICES KEEP".
func (w window) precision(keep []string, now int64, zone *time.Location) string {
	start, end := w.slice(now, zone)
	slice, kept := fmt.Sprint(w.seconds), "*/"
	if w.seconds == 0 {
		slice, kept = fmt.Sprintf("%d-%d", start, end), time.Unix(start, 0).In(zone).Format(time.DateOnly)+"/"
	}
	if len(keep) > 1 {
		kept = w.label + "/" + kept
	}
	if !slices.Contains(keep, w.label) {
		kept = "-"
	}
	return fmt.Sprintf("%s %s %d %s", w.label, slice, w.slices, kept)
}
