package counterfoil

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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

var seriesKind = &kind{
	name: "series", script: "series_add", maxID: 200, limit: 100, keys: []string{"open", "schedule", "names", "idle"},
	hasRefusals: true,
	place:       (*epoch).placeOf,
	head: func(f *family, e *epoch) []any {
		args := []any{len(e.Windows)}
		for _, w := range e.Windows {
			args = append(args, w.precision(e.Keep, f.client.now()/1000, e.zone))
		}
		return args
	},
	encode: func(f *family, e *epoch, items []*item, r *request) {
		for _, it := range items {
			for _, w := range e.Windows {
				r.keys = append(r.keys, f.keys(it.partition, "series:"+w.label+":"+it.id)...)
			}
			r.args = append(r.args, it.id, it.delta)
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
	if n < 1 {
		return s.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d hits", n))
	}
	return s.count(ctx, &item{id: name, delta: n})[0].Err
}

// Get returns the window with that label, such as 60s or day: all its slices, the oldest first. The last one is not over.
func (s *Series) Get(ctx context.Context, name, label string) ([]Slice, error) {
	e, err := s.askFor(ctx, name)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(e.Windows, func(w window) bool { return w.label == label })
	if i < 0 {
		return nil, s.fail(ErrNotCounted, "BADARG", fmt.Errorf("the family has no window %s", label))
	}
	words, err := s.reply(ctx, "series_get", s.keys(e.partitionOf(name), "series:"+label+":"+name), "")
	if err != nil {
		return nil, err
	}
	counts, fields := map[string]int64{}, strings.Fields(words[2].(string))
	for i := 0; i+1 < len(fields); i += 2 {
		counts[fields[i]] = number(fields[i+1])
	}
	w, at := e.Windows[i], number(words[1])/1000
	all := make([]Slice, w.slices)
	for i := len(all) - 1; i >= 0; i-- {
		start, _ := w.slice(at, e.zone)
		all[i], at = Slice{time.Unix(start, 0), counts[fmt.Sprint(start)]}, start-1
	}
	return all, nil
}

// window is ["60s", 120] in the settings: label and number of slices.
type window struct {
	label  string
	slices int64
}

// UnmarshalJSON implements json.Unmarshaler.
func (w *window) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&w.label, &w.slices})
}

// slice returns start and end of the slice that contains the time, in Unix seconds.
func (w window) slice(at int64, zone *time.Location) (start, end int64) {
	year, month, day := time.Unix(at, 0).In(zone).Date()
	switch w.label {
	case "day":
		return midnight(year, month, day, zone), midnight(year, month, day+1, zone)
	case "month":
		return midnight(year, month, 1, zone), midnight(year, month+1, 1, zone)
	}
	length, _ := time.ParseDuration(w.label) // the server has checked it
	seconds := int64(length.Seconds())
	start = at - (at%seconds+seconds)%seconds
	return start, start + seconds
}

// midnight returns when a day begins: where the clocks are changed at midnight, the first time of the day.
func midnight(year int, month time.Month, day int, zone *time.Location) int64 {
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	_, before := date.AddDate(0, 0, -1).In(zone).Zone()
	_, after := date.AddDate(0, 0, 1).In(zone).Zone()
	start := date.Unix() - int64(max(before, after))
	if time.Unix(start, 0).In(zone).Day() != date.Day() {
		return date.Unix() - int64(min(before, after))
	}
	return start
}

// precision describes a window to series_add: "LABEL SLICE SLICES KEEP".
func (w window) precision(keep []string, now int64, zone *time.Location) string {
	start, end := w.slice(now, zone)
	slice, kept := strings.TrimSuffix(w.label, "s"), "*/"
	if w.label == "day" || w.label == "month" {
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
