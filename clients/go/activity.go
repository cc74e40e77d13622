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
	name: "activity", script: "activity_touch", maxID: 200, limit: 400, keys: []string{"buffer", "meta"},
	hasTotals: true, hasRefusals: true, sharesWords: true,
	place: func(e *epoch, it *item) uint32 {
		stripe := crc(it.visitor) % e.Stripes
		it.place = fmt.Sprintf("%d:%s", stripe, it.id)
		return e.stripeOf(it.id, stripe)
	},
	head: func(_ *family, e *epoch, _ int) []any { return []any{e.Stripes} },
	encode: func(f *family, e *epoch, items []*item, r *request) {
		places := groups(items, func(it *item) string { return it.place })
		r.args = append(r.args, len(places))
		for _, views := range places {
			r.keys = append(r.keys, f.keys(views[0].partition, placeKeys(views[0].place)...)...)
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

// placeKeys returns the names of the keys of a place.
func placeKeys(place string) []string {
	return []string{"views:" + place, "visitors:" + place}
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
	return f.countAnew(ctx, func() *item { return &item{id: id, visitor: visitor} })
}

// Now returns the views of the page within the family's window, and its distinct visitors.
func (a *Activity) Now(ctx context.Context, page string) (views, visitors int64, err error) {
	e, err := a.askFor(ctx, page)
	if err != nil {
		return 0, 0, err
	}
	for stripe := uint32(0); stripe < e.Stripes; stripe++ {
		partition := e.stripeOf(page, stripe)
		keys := a.keys(partition, placeKeys(fmt.Sprintf("%d:%s", stripe, page))...)
		words, err := a.readOfHome(ctx, "activity_now", partition, nil, keys, e.Stripes)
		if err != nil {
			return 0, 0, err
		}
		views, visitors = views+number(words[1]), visitors+number(words[2])
	}
	return views, visitors, nil
}

// Visitors is a family that counts each visitor of a scope, such as a shop, once a day. A visitor is 1 to 255 bytes of any kind.
type Visitors struct{ *family }

var visitorsKind = &kind{
	name: "visitors", script: "visitors_first", maxID: 255, limit: 400, keys: []string{"buffer", "meta"}, hasTotals: true,
	place: (*epoch).placeOf,
	head:  func(*family, *epoch, int) []any { return nil },
	encode: func(f *family, _ *epoch, items []*item, r *request) {
		r.args = append(r.args, len(items))
		for _, it := range items {
			r.keys = append(r.keys, f.keys(it.partition, "seen:"+it.id)...)
			r.args = append(r.args, it.id, 1, it.visitor)
		}
	},
}

// Visitors returns the family of that name.
func (c *Client) Visitors(name string) (*Visitors, error) {
	f, err := c.family(visitorsKind, name, nil)
	return &Visitors{f}, err
}

// FirstVisit counts the visitor of that day, such as 2014-09-20, and returns whether it is the first visit.
func (v *Visitors) FirstVisit(ctx context.Context, scope, day, visitor string) (bool, error) {
	id, err := v.id(ctx, scope, day)
	if err != nil {
		return false, err
	}
	result := v.visit(ctx, id, visitor)
	return result.Value == 1, result.Err
}

// Value returns the exact number of visitors of that day.
func (v *Visitors) Value(ctx context.Context, scope, day string) (int64, error) {
	id, err := v.id(ctx, scope, day)
	if err != nil {
		return 0, err
	}
	return v.value(ctx, id)
}

// A ScopeDay is a scope and a day, such as 2014-09-20.
type ScopeDay struct{ Scope, Day string }

// Values returns the exact numbers of visitors of many scopes and days, in their order.
func (v *Visitors) Values(ctx context.Context, days []ScopeDay) ([]int64, error) {
	ids := make([]string, len(days))
	for i, day := range days {
		id, err := v.id(ctx, day.Scope, day.Day)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return v.values(ctx, ids)
}

// id returns the id of a scope and a day, joined as the family's table has them.
func (v *Visitors) id(ctx context.Context, scope, day string) (string, error) {
	if _, err := time.Parse(time.DateOnly, day); err != nil || scope == "" {
		return "", v.fail(ErrNotCounted, "BADID", fmt.Errorf("scope %q, day %q: not like shop, 2014-09-20", scope, day))
	}
	e, err := v.describe(ctx)
	if err != nil {
		return "", err
	}
	return scope + e.Separator + day, nil
}
