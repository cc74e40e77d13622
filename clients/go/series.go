package counterfoil

import (
	"context"
	"encoding/json"
	"fmt"
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

// window is ["60s", 120] in the settings: label and number of slices.
type window struct {
	label  string
	slices int64
}

func (w *window) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&w.label, &w.slices})
}

// Series returns the family of that name.
func (c *Client) Series(name string) (*Series, error) {
	f, err := c.family("series", name, seriesCodec{}, nil)
	return &Series{f}, err
}

// Add counts n hits, 1 or more, in the current slice of every window.
func (s *Series) Add(ctx context.Context, name string, n int64) error {
	if err := s.checkID(name, 200); err != nil {
		return err
	}
	if n < 1 {
		return s.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d hits", n))
	}
	return s.count(ctx, &item{id: name, delta: n})[0].err
}

// Get returns the window with that label, such as 60s or day: all its slices, the oldest first. The last one is not over.
func (s *Series) Get(ctx context.Context, name, label string) ([]Slice, error) {
	if err := s.checkID(name, 200); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.client.options.RetryFor)
	defer cancel()
	e, err := s.describe(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range e.settings.Windows {
		if w.label == label {
			return s.get(ctx, e, name, w)
		}
	}
	return nil, s.fail(ErrMisconfigured, "no window "+label, nil)
}

func (s *Series) get(ctx context.Context, e *epoch, name string, w window) ([]Slice, error) {
	words, err := s.read(ctx, "series_get", s.keys(e.partitionOf(name), "series:"+w.label+":"+name), "")
	if err != nil {
		return nil, err
	}
	zone, err := s.zone(e)
	if err != nil {
		return nil, err
	}
	now, err := strconv.ParseInt(fmt.Sprint(wordAt(words, 1)), 10, 64)
	counts, fields := map[int64]int64{}, strings.Fields(fmt.Sprint(wordAt(words, 2)))
	for i := 0; i+1 < len(fields) && err == nil; i += 2 {
		var start, count int64
		if start, err = strconv.ParseInt(fields[i], 10, 64); err == nil {
			count, err = strconv.ParseInt(fields[i+1], 10, 64)
		}
		counts[start] = count
	}
	if err != nil {
		return nil, s.fail(ErrNotCounted, "BADSTATE", err)
	}
	slices, at := make([]Slice, w.slices), time.UnixMilli(now).Unix()
	for i := len(slices) - 1; i >= 0; i-- {
		start, _, err := sliceAt(w.label, at, zone)
		if err != nil {
			return nil, s.fail(ErrMisconfigured, "settings", err)
		}
		slices[i] = Slice{time.Unix(start, 0), counts[start]}
		at = start - 1
	}
	return slices, nil
}

func (f *family) zone(e *epoch) (*time.Location, error) {
	zone, err := time.LoadLocation(e.settings.TimeZone)
	if err != nil {
		e := f.fail(ErrMisconfigured, "time zone", err)
		e.detail = "install tzdata, or import time/tzdata"
		return nil, e
	}
	return zone, nil
}

// sliceAt returns start and end of the slice that contains the time, in Unix seconds.
func sliceAt(label string, at int64, zone *time.Location) (start, end int64, err error) {
	date := time.Unix(at, 0).In(zone)
	switch label {
	case "day":
		return midnight(date, date.Day(), zone), midnight(date, date.Day()+1, zone), nil
	case "month":
		return midnight(date, 1, zone), midnight(date.AddDate(0, 1, 1-date.Day()), 1, zone), nil
	}
	length, err := strconv.ParseInt(strings.TrimSuffix(label, "s"), 10, 64)
	if err != nil || length < 1 {
		return 0, 0, fmt.Errorf("unknown label %q", label)
	}
	start = at - (at%length+length)%length
	return start, start + length, nil
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

// seriesCodec encodes calls of series_add.
type seriesCodec struct{}

func (seriesCodec) spans() bool              { return false }
func (seriesCodec) limit() int               { return 100 }
func (seriesCodec) place(e *epoch, it *item) { it.partition = e.partitionOf(it.id) }

func (seriesCodec) encode(f *family, e *epoch, batch []*item) (string, []string, []any, error) {
	zone, err := f.zone(e)
	if err != nil {
		return "", nil, nil, err
	}
	windows, partition := e.settings.Windows, batch[0].partition
	keys, args := f.keys(partition, "open", "schedule", "names", "idle"), []any{len(windows)}
	for _, w := range windows {
		words, err := precision(w, e.settings.Keep, f.client.now()/1000, zone)
		if err != nil {
			return "", nil, nil, f.fail(ErrMisconfigured, "settings", err)
		}
		args = append(args, words)
	}
	for _, it := range batch {
		for _, w := range windows {
			keys = append(keys, f.keys(partition, "series:"+w.label+":"+it.id)...)
		}
		args = append(args, it.id, it.delta)
	}
	return "series_add", keys, args, nil
}

// precision describes a window to series_add: "LABEL SLICE SLICES KEEP".
func precision(w window, keep []string, now int64, zone *time.Location) (string, error) {
	start, end, err := sliceAt(w.label, now, zone)
	slice, called := strings.TrimSuffix(w.label, "s"), "*/"
	if w.label == "day" || w.label == "month" {
		slice, called = fmt.Sprintf("%d-%d", start, end), time.Unix(start, 0).In(zone).Format(time.DateOnly)+"/"
	}
	kept := "-"
	for _, label := range keep {
		if label == w.label {
			kept = called
			if len(keep) > 1 {
				kept = label + "/" + called
			}
		}
	}
	return fmt.Sprintf("%s %s %d %s", w.label, slice, w.slices, kept), err
}

func (seriesCodec) decode(f *family, words []any, batch []*item) {
	if words[0] == "DUP" {
		f.decodeRefused(words, batch)
		return
	}
	for i, it := range batch {
		it.outcome = f.outcomeOf(wordAt(words, i+1))
	}
}
