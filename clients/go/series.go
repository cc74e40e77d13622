package counterfoil

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil-go/internal/memory"
)

// Series is a family that counts over time. A name is 1 to 200 bytes of UTF-8.
type Series struct {
	*family
	writer *writer[moment]
}

// Slice is the count of a slice of time.
type Slice struct {
	Start time.Time
	Count int64
}

var calendars = []string{"calendar:day", "calendar:month"}

// moment is the target of a series: a name, and when it was hit.
type moment struct {
	subject
	at string // in Unix milliseconds; "" for now
}

func (m moment) inMemory(n int64) memory.Hit {
	if m.at == "" {
		return memory.Hit{N: n}
	}
	return memory.Hit{N: n, At: time.UnixMilli(number(m.at))}
}

// seriesKind writes calls of series_add.
type seriesKind struct{}

func (seriesKind) traits() traits {
	return traits{kindName: "series", script: "series_add", maxID: 200, limit: 100}
}

func (seriesKind) write(call *scriptCall, b *batch[moment]) {
	call.addKeys(call.home, calendars...)
	call.addKeys(b.partition(), "buffer", "meta", "names", "idle")
	for _, e := range b.entries {
		name := e.target.id
		for _, label := range b.Labels {
			call.addKeys(b.partition(), "series:"+label+":"+name)
		}
		call.addArgs(name, e.n, e.target.at)
	}
}

func (seriesKind) words(reply []any, b *batch[moment]) []any {
	return wordsAfterTotals(reply, len(b.entries))
}

// Series returns the family of that name.
func (c *Client) Series(name string) (*Series, error) {
	f, w, err := openFamily(c, seriesKind{}, name, nil)
	return &Series{f, w}, err
}

// Add counts n hits, 1 or more, in the current slice of every window.
func (s *Series) Add(ctx context.Context, name string, n int64) error {
	return s.add(ctx, moment{subject: subject{name}}, n)
}

// AddAt counts n hits that happened at this time: in the slices of that time, as far as windows or what is kept still take it.
// A time up to a minute ahead counts as now; for any other, the error's Reason is BADTIME.
func (s *Series) AddAt(ctx context.Context, name string, n int64, at time.Time) error {
	return s.add(ctx, moment{subject{name}, millis(at)}, n)
}

func (s *Series) add(ctx context.Context, m moment, n int64) error {
	if err := s.checkHits(m, n); err != nil {
		return err
	}
	return s.writer.countAnew(ctx, m, n).Err
}

// Later is Add with a sum in the process, as [Buffered.Later]. Hits count in the slice in which Redis takes them.
func (s *Series) Later(name string, n int64) error {
	return s.addAtLater(moment{subject: subject{name}}, n)
}

// LaterAt is AddAt with a sum in the process for each name and time.
func (s *Series) LaterAt(name string, n int64, at time.Time) error {
	return s.addAtLater(moment{subject{name}, millis(at)}, n)
}

func (s *Series) addAtLater(m moment, n int64) error {
	if err := s.checkHits(m, n); err != nil {
		return err
	}
	return s.writer.addLater(m, n)
}

// Flush sends what Later and LaterAt took before, as [Buffered.Flush].
func (s *Series) Flush(ctx context.Context) error { return s.writer.flush(ctx) }

func millis(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }

func (s *Series) checkHits(m moment, n int64) error {
	if n < 1 {
		return s.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d hits", n))
	}
	if strings.HasPrefix(m.at, "-") {
		return s.fail(ErrNotCounted, "BADTIME", fmt.Errorf("%s ms", m.at))
	}
	return nil
}

// Get returns the window with that label, such as 60s or day: all its slices, the oldest first. The last one is not over.
func (s *Series) Get(ctx context.Context, name, label string) ([]Slice, error) {
	ctx, cancel := limited(ctx, s.client.options.RetryFor/2)
	defer cancel()
	d, err := s.described(ctx, name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(d.Labels, label) {
		return nil, s.fail(ErrNotCounted, "BADARG", fmt.Errorf("the family has no window %s", label))
	}
	partition := d.partitionOf(name)
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
