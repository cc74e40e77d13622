package counterfoil

import (
	"cmp"
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
			n, visitors := int64(0), map[string]bool{}
			for _, it := range views {
				n += it.n
				visitors[it.visitor] = true
			}
			r.args = append(r.args, views[0].id, n, len(visitors))
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
	return a.visit(ctx, target{id: page, visitor: visitor}).Err
}

// Later is Touch with a sum in the process, as [Buffered.Later]. A view counts when Redis takes it.
func (a *Activity) Later(page, visitor string) error {
	return a.visitLater(target{id: page, visitor: visitor})
}

// Flush sends what Later took before, as [Buffered.Flush].
func (a *Activity) Flush(ctx context.Context) error { return a.flush(ctx) }

// visit counts a visitor of a page or of a day.
func (f *family) visit(ctx context.Context, t target) Result {
	if err := f.check(t.visitor, 255, false); err != nil {
		return Result{Err: err}
	}
	return f.countAnew(ctx, hit{target: t, n: 1})
}

func (f *family) visitLater(t target) error {
	if err := f.check(t.visitor, 255, false); err != nil {
		return err
	}
	return f.addLater(t, 1)
}

// Now returns the views of the page within the family's window, and its distinct visitors.
func (a *Activity) Now(ctx context.Context, page string) (views, visitors int64, err error) {
	ctx, cancel := limited(ctx, a.client.options.RetryFor/2)
	defer cancel()
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
	if err := v.checkDay(scope, day); err != nil {
		return false, err
	}
	result := v.visit(ctx, target{id: scope, day: day, visitor: visitor})
	return result.Value == 1, result.Err
}

// Later is FirstVisit without its result: visitors are kept in the process, each once, and sent as by [Buffered.Later].
func (v *Visitors) Later(scope, day, visitor string) error {
	if err := v.checkDay(scope, day); err != nil {
		return err
	}
	return v.visitLater(target{id: scope, day: day, visitor: visitor})
}

// Flush sends what Later took before, as [Buffered.Flush].
func (v *Visitors) Flush(ctx context.Context) error { return v.flush(ctx) }

// Value returns the exact number of visitors of that day.
func (v *Visitors) Value(ctx context.Context, scope, day string) (int64, error) {
	return single(v.Values(ctx, []ScopeDay{{scope, day}}))
}

// ValueOr returns the number of visitors, or the fallback together with the error. See [Buffered.ValueOr].
func (v *Visitors) ValueOr(ctx context.Context, scope, day string, fallback int64) (int64, error) {
	value, err := v.Value(ctx, scope, day)
	return or(value, err, fallback)
}

// A ScopeDay is a scope and a day, such as 2014-09-20.
type ScopeDay struct{ Scope, Day string }

// Values returns the exact numbers of visitors of many scopes and days, in their order.
func (v *Visitors) Values(ctx context.Context, days []ScopeDay) ([]int64, error) {
	ctx, cancel := limited(ctx, v.client.options.RetryFor/2)
	defer cancel()
	ids := make([]string, len(days))
	for i, day := range days {
		e, err := v.describe(ctx)
		if err = cmp.Or(v.checkDay(day.Scope, day.Day), err); err != nil {
			return nil, err
		}
		ids[i] = target{id: day.Scope, day: day.Day}.name(e.Separator)
	}
	return v.values(ctx, ids)
}

// ValuesOr returns the numbers of visitors, or the fallbacks, one for each day, together with the error.
func (v *Visitors) ValuesOr(ctx context.Context, days []ScopeDay, fallbacks []int64) ([]int64, error) {
	if err := v.checkFallbacks(len(days), len(fallbacks)); err != nil {
		return nil, err
	}
	values, err := v.Values(ctx, days)
	return or(values, err, fallbacks)
}

func (v *Visitors) checkDay(scope, day string) error {
	if _, err := time.Parse(time.DateOnly, day); err != nil || scope == "" {
		return v.fail(ErrNotCounted, "BADID", fmt.Errorf("scope %q, day %q: not like shop, 2014-09-20", scope, day))
	}
	return nil
}
