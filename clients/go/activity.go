package counterfoil

import (
	"context"
	"fmt"
	"time"
)

// Activity is a family that counts the views and visitors of pages within the last minutes. A page is 1 to 200 bytes of UTF-8,
// and a visitor 1 to 255 bytes of any kind.
type Activity struct{ *family }

var activityKind = &kind{
	name: "activity", script: "activity_touch", maxID: 200, limit: 400, keys: []string{"open", "schedule"},
	place: func(e *epoch, it *item) uint32 {
		stripe := crc(it.visitor) % e.Stripes
		it.place = fmt.Sprintf("%d:%s", stripe, it.id)
		return e.stripeOf(it.id, stripe)
	},
	head: func(_ *family, e *epoch) []any { return []any{e.Layer, e.Window / e.Layer, e.KeepMinutes} },
	encode: func(f *family, e *epoch, items []*item, r *request) {
		layer, places := f.client.now()/e.Layer, groups(items, func(it *item) string { return it.place })
		if e.isEstimated() {
			r.script, r.args = "activity_touch_hll", append(r.args, layer)
		}
		r.args = append(r.args, len(places))
		for _, views := range places {
			names := e.placeKeys(views[0].place, layer, layer)
			if e.isEstimated() && e.KeepMinutes {
				names = append(names, fmt.Sprintf("minute:%d:%s", layer*e.Layer/60_000*60, views[0].place))
			}
			r.keys = append(r.keys, f.keys(views[0].partition, names...)...)
			visitors := map[string]bool{}
			for _, it := range views {
				visitors[it.visitor] = true
			}
			r.args = append(r.args, views[0].id, len(views), len(visitors))
			for visitor := range visitors {
				r.args = append(r.args, visitor)
			}
		}
	},
}

func (s *settings) isEstimated() bool { return s.Visitors == "hyperloglog" }

// placeKeys returns the keys of a place: its views, and its visitors, which are estimated by layer.
func (s *settings) placeKeys(place string, first, last int64) []string {
	if !s.isEstimated() {
		return []string{"views:" + place, "visitors:" + place}
	}
	keys := []string{"views:" + place}
	for layer := first; layer <= last; layer++ {
		keys = append(keys, fmt.Sprintf("layer:%d:%s", layer, place))
	}
	return keys
}

// stripeOf returns the partition of a stripe of a page.
func (e *epoch) stripeOf(page string, stripe uint32) uint32 {
	return uint32((uint64(crc(page)) + uint64(stripe)) % uint64(e.partitions))
}

// Activity returns the family of that name.
func (c *Client) Activity(name string) (*Activity, error) {
	f, err := c.family(activityKind, name, nil)
	return &Activity{f}, err
}

// Touch counts a view of the page by the visitor.
func (a *Activity) Touch(ctx context.Context, page, visitor string) error {
	return a.visit(ctx, page, visitor).Err
}

// visit counts a visitor of a page or of a day.
func (f *family) visit(ctx context.Context, id, visitor string) Result {
	if err := f.check(visitor, 255, false); err != nil {
		return Result{Err: err}
	}
	return f.count(ctx, &item{id: id, visitor: visitor})[0]
}

// Now returns the views of the page within the family's window, and its distinct visitors.
func (a *Activity) Now(ctx context.Context, page string) (views, visitors int64, err error) {
	e, err := a.askFor(ctx, page)
	if err != nil {
		return 0, 0, err
	}
	for stripe := uint32(0); stripe < e.Stripes; {
		sent, now, layers := time.Now(), a.client.now()/e.Layer, e.Window/e.Layer
		script, args := "activity_now", []any{"", e.Layer, layers}
		if e.isEstimated() {
			script, args = "activity_now_hll", append(args, now)
		}
		names := e.placeKeys(fmt.Sprintf("%d:%s", stripe, page), now-layers+1, now)
		words, err := a.reply(ctx, script, a.keys(e.stripeOf(page, stripe), names...), args...)
		switch {
		case err != nil:
			return 0, 0, err
		case words[0] == "OUTSIDE": // the server's clock is another one
			a.client.setClock(words[1], sent)
		default:
			views, visitors, stripe = views+number(words[1]), visitors+number(words[2]), stripe+1
		}
	}
	return views, visitors, nil
}

// Visitors is a family that counts each visitor of a scope, such as a shop, once a day. A visitor is 1 to 255 bytes of any kind.
type Visitors struct{ *family }

var visitorsKind = &kind{
	name: "visitors", script: "visitors_first", maxID: 255, limit: 400, keys: []string{"buffer", "meta"}, hasTotals: true,
	place: (*epoch).placeOf,
	head:  func(_ *family, e *epoch) []any { return []any{e.Remember} },
	encode: func(f *family, _ *epoch, items []*item, r *request) {
		r.args = append(r.args, len(items))
		for _, it := range items {
			r.keys = append(r.keys, f.keys(it.partition, "seen:"+it.id)...)
			r.args = append(r.args, it.id, 1, it.visitor)
		}
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
	if err != nil {
		return false, err
	}
	result := v.visit(ctx, id, visitor)
	return result.Value == 1, result.Err
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
