package counterfoil

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Activity is a family that counts the views and visitors of pages within the last minutes. A page is 1 to 200 bytes of UTF-8,
// and a visitor 1 to 255 bytes of any kind.
type Activity struct{ *family }

var activityKind = &kind{name: "activity", maxID: 200, limit: 400,
	place: func(e *epoch, it *item) uint32 {
		it.stripe = crc(it.visitor) % e.settings.Stripes
		return e.placeOf(it.id, it.stripe)
	},
	encode: func(f *family, e *epoch, batch []*item, r *request) {
		own, partition, layer := e.settings, batch[0].partition, f.client.now()/e.settings.Layer
		keeps := map[bool]int{true: 1}[own.KeepMinutes]
		r.script, r.keys = "activity_touch", append(r.keys, f.keys(partition, "open", "schedule")...)
		r.args = append(r.args, own.Layer, own.Window/own.Layer, keeps)
		if own.isEstimated() {
			r.script, r.args = "activity_touch_hll", append(r.args, layer)
		}
		places, at := len(r.args), 0
		r.args = append(r.args, int64(0))
		slices.SortFunc(batch, func(a, b *item) int {
			return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.stripe, b.stripe), cmp.Compare(a.visitor, b.visitor))
		})
		for i, it := range batch {
			isNewPlace := i == 0 || it.id != batch[i-1].id || it.stripe != batch[i-1].stripe
			if isNewPlace {
				r.keys = append(r.keys, f.keys(partition, own.placeKeys(it, layer)...)...)
				at, r.args = len(r.args)+1, append(r.args, it.id, int64(0), int64(0))
				bump(r.args, places, 1)
			}
			bump(r.args, at, 1)
			if isNewPlace || it.visitor != batch[i-1].visitor {
				bump(r.args, at+1, 1)
				r.args = append(r.args, it.visitor)
			}
		}
	},
	results: func([]any, []*item) []any { return nil },
}

func (s *settings) isEstimated() bool { return s.Visitors == "hyperloglog" }

// placeKeys returns the names of the keys of a stripe of a page.
func (s *settings) placeKeys(it *item, layer int64) []string {
	place := fmt.Sprintf("%d:%s", it.stripe, it.id)
	switch {
	case !s.isEstimated():
		return []string{"views:" + place, "visitors:" + place}
	case !s.KeepMinutes:
		return []string{"views:" + place, fmt.Sprintf("layer:%d:%s", layer, place)}
	}
	minute := layer * s.Layer / 60_000 * 60
	return []string{"views:" + place, fmt.Sprintf("layer:%d:%s", layer, place), fmt.Sprintf("minute:%d:%s", minute, place)}
}

// placeOf returns the partition of a stripe of a page.
func (e *epoch) placeOf(page string, stripe uint32) uint32 {
	return uint32((uint64(crc(page)) + uint64(stripe)) % uint64(e.partitions))
}

// Activity returns the family of that name.
func (c *Client) Activity(name string) (*Activity, error) {
	f, err := c.family(activityKind, name, nil)
	return &Activity{f}, err
}

// Touch counts a view of the page by the visitor.
func (a *Activity) Touch(ctx context.Context, page, visitor string) error {
	if err := a.check(visitor, 255, false); err != nil {
		return err
	}
	return a.count(ctx, &item{id: page, visitor: visitor})[0].err
}

// Now returns the views of the page within the family's window, and its distinct visitors.
func (a *Activity) Now(ctx context.Context, page string) (views, visitors int64, err error) {
	if err := a.check(page, 200, true); err != nil {
		return 0, 0, err
	}
	for stripe, stripes := uint32(0), uint32(1); stripe < stripes; stripe++ {
		words, err := a.read(ctx, func(e *epoch) *request {
			own, partition := e.settings, e.placeOf(page, stripe)
			stripes = own.Stripes
			place, layers := fmt.Sprintf("%d:%s", stripe, page), own.Window/own.Layer
			r := &request{"activity_now", a.keys(partition, "views:"+place), []any{"", own.Layer, layers}}
			if !own.isEstimated() {
				r.keys = append(r.keys, a.keys(partition, "visitors:"+place)...)
				return r
			}
			now := a.client.now() / own.Layer
			for layer := now - layers + 1; layer <= now; layer++ {
				r.keys = append(r.keys, a.keys(partition, fmt.Sprintf("layer:%d:%s", layer, place))...)
			}
			r.script, r.args = "activity_now_hll", append(r.args, now)
			return r
		})
		if err != nil {
			return 0, 0, err
		}
		views, visitors = views+numberAt(words, 1), visitors+numberAt(words, 2)
	}
	return views, visitors, nil
}

// Visitors is a family that counts each visitor of a scope, such as a shop, once a day. A visitor is 1 to 255 bytes of any kind.
type Visitors struct{ *family }

var visitorsKind = &kind{name: "visitors", maxID: 255, limit: 400,
	place: func(e *epoch, it *item) uint32 { return e.partitionOf(it.id) },
	encode: func(f *family, e *epoch, batch []*item, r *request) {
		partition := batch[0].partition
		r.script, r.keys = "visitors_first", append(r.keys, f.keys(partition, "buffer", "meta")...)
		r.args = append(r.args, e.settings.Remember, len(batch))
		for _, it := range batch {
			r.keys = append(r.keys, f.keys(partition, "seen:"+it.id)...)
			r.args = append(r.args, it.id, 1, it.visitor)
		}
	},
	results: func(words []any, _ []*item) []any {
		if words[0] == "DUP" {
			return words[1:]
		}
		return words[2:] // after the hits since the last rotation
	},
}

// Visitors returns the family of that name. The only option that concerns it is [InTable].
func (c *Client) Visitors(name string, options ...FamilyOption) (*Visitors, error) {
	f, err := c.family(visitorsKind, name, options)
	return &Visitors{f}, err
}

// FirstVisit counts the visitor of that day, such as 2014-09-20, and returns whether it is the first visit.
func (v *Visitors) FirstVisit(ctx context.Context, scope, day, visitor string) (bool, error) {
	id, err := v.id(scope, day)
	if err = cmp.Or(err, v.check(visitor, 255, false)); err != nil {
		return false, err
	}
	result := v.count(ctx, &item{id: id, visitor: visitor})[0]
	return result.value == 1, result.err
}

// Value returns the exact number of visitors of that day.
func (v *Visitors) Value(ctx context.Context, scope, day string) (int64, error) {
	id, err := v.id(scope, day)
	if err != nil {
		return 0, err
	}
	return v.value(ctx, id)
}

func (v *Visitors) id(scope, day string) (string, error) {
	if _, err := time.Parse(time.DateOnly, day); err != nil || scope == "" {
		return "", v.fail(ErrNotCounted, "BADID", fmt.Errorf("scope %q, day %q: not like shop, 2014-09-20", scope, day))
	}
	return scope + "/" + day, nil
}
