package tests

import (
	"strings"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/counterfoil/counterfoil-go/counterfoiltest"
)

func TestInMemory(t *testing.T) {
	most := int64(10)
	counters, err := counterfoiltest.New("shop", map[string]counterfoiltest.Family{
		"votes":  {Max: &most},
		"hits":   {Windows: []string{"60s", "day", "month"}},
		"stores": {IDs: "[1-9][0-9]*"},
	})
	must(t, err)
	views := buffered(t, counters, "views")
	for range 3 {
		must(t, views.Later("a", 2))
	}
	must(t, views.Flush(ctx))
	epoch, err := views.RequestEpoch(ctx, "request", "a")
	must(t, err)
	for i := range 2 {
		isFirst, err := views.AddOnce(ctx, "request", "a", 1, epoch)
		must(t, err)
		equal(t, isFirst, i == 0)
	}
	_, err = views.AddOnce(ctx, "request", "a", 1, "another")
	fails(t, err, counterfoil.ErrOutcomeUnknown, "EXPIRED")
	value, err := views.ValueOr(ctx, "a", 0)
	must(t, err)
	equal(t, value, 7)
	_, err = buffered(t, counters, "stores").Add(ctx, "07", 1)
	fails(t, err, counterfoil.ErrNotCounted, "BADID")

	votes, err := counters.Cached("votes")
	must(t, err)
	value, err = votes.Set(ctx, "a", 9)
	must(t, err)
	equal(t, value, 9)
	_, err = votes.Incr(ctx, "a", 2)
	fails(t, err, counterfoil.ErrNotCounted, "RANGE")
	if !strings.Contains(err.Error(), "RANGE: the value is 9, and would leave its bounds") {
		t.Error(err)
	}
	_, err = buffered(t, counters, "votes").Add(ctx, "a", 1)
	fails(t, err, counterfoil.ErrMisconfigured, "MISMATCH")

	hits, err := counters.Series("hits")
	must(t, err)
	must(t, hits.Add(ctx, "site", 2))
	must(t, hits.AddAt(ctx, "site", 1, time.Now().AddDate(0, 0, -40)))
	fails(t, hits.AddAt(ctx, "site", 1, time.Unix(1, 0)), counterfoil.ErrNotCounted, "BADTIME")
	for label, sum := range map[string]int64{"60s": 2, "day": 3, "month": 3} {
		window, err := hits.Get(ctx, "site", label)
		must(t, err)
		for _, slice := range window {
			sum -= slice.Count
		}
		equal(t, sum, 0)
	}
	readers, err := counters.Activity("readers")
	must(t, err)
	must(t, readers.Touch(ctx, "front", "a"))
	must(t, readers.Touch(ctx, "front", "a"))
	must(t, readers.Later("front", "b"))
	must(t, counters.Flush(ctx))
	seen, visitors, err := readers.Now(ctx, "front")
	must(t, err)
	equal(t, seen, 3)
	equal(t, visitors, 2)
	must(t, counters.Close(ctx))
	_, err = views.Value(ctx, "a")
	fails(t, err, counterfoil.ErrNotCounted, "CLOSED")
	fails(t, readers.Later("front", "b"), counterfoil.ErrNotCounted, "CLOSED")
}
