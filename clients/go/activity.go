package counterfoil

import (
	"context"
	"fmt"
	"slices"

	"github.com/counterfoil/counterfoil-go/internal/memory"
)

// Activity is a family that counts the views and visitors of pages within the last minutes. A page is 1 to 200 bytes of UTF-8,
// and a visitor 1 to 255 bytes of any kind.
type Activity struct {
	*family
	writer *writer[view]
}

// view is the target of an activity: a page, and its visitor.
type view struct {
	subject
	visitor string
}

func (v view) partition(d *description) uint32 { return d.stripePartition(v.id, v.stripe(d)) }

// stripe returns the number of the visitor's stripe of the page: a page is cut into stripes, which are in different partitions.
func (v view) stripe(d *description) uint32 { return crc(v.visitor) % d.Stripes }

func (v view) inMemory(n int64) memory.Hit { return memory.Hit{N: n, Visitor: v.visitor} }

// stripePartition returns the partition of a stripe of a page.
func (d *description) stripePartition(page string, stripe uint32) uint32 {
	return uint32((uint64(crc(page)) + uint64(stripe)) % uint64(d.partitions))
}

// placeOf returns the name of a stripe of a page: STRIPE:PAGE.
func placeOf(page string, stripe uint32) string { return fmt.Sprintf("%d:%s", stripe, page) }

// placeKeys returns the names of the keys of a place.
func placeKeys(place string) []string {
	return []string{"views:" + place, "visitors:" + place}
}

// activityKind writes calls of activity_touch.
type activityKind struct{}

func (activityKind) traits() traits {
	return traits{kindName: "activity", script: "activity_touch", maxID: 200, limit: 400}
}

func (activityKind) write(call *scriptCall, b *batch[view]) {
	places, views := placesOf(b)
	call.addKeys(b.partition(), "buffer", "meta")
	call.addArgs(b.Stripes, len(places))
	for _, place := range places {
		n, visitors := int64(0), map[string]bool{}
		for _, i := range views[place] {
			n += b.entries[i].n
			visitors[b.entries[i].target.visitor] = true
		}
		call.addKeys(b.partition(), placeKeys(place)...)
		call.addArgs(b.entries[views[place][0]].target.id, n, len(visitors))
		for visitor := range visitors {
			call.addArgs(visitor)
		}
	}
}

// words returns for each view the word of its place.
func (activityKind) words(reply []any, b *batch[view]) []any {
	places, views := placesOf(b)
	words, own := make([]any, len(b.entries)), wordsAfterTotals(reply, len(places))
	for at, place := range places {
		for _, i := range views[place] {
			words[i] = own[at]
		}
	}
	return words
}

// placesOf returns the places of a batch in the order of its call, and the numbers of the views of each place.
func placesOf(b *batch[view]) (places []string, views map[string][]int) {
	views = map[string][]int{}
	for i, e := range b.entries {
		place := placeOf(e.target.id, e.target.stripe(e.known))
		if views[place] == nil {
			places = append(places, place)
		}
		views[place] = append(views[place], i)
	}
	slices.Sort(places)
	return places, views
}

// Activity returns the family of that name.
func (c *Client) Activity(name string) (*Activity, error) {
	f, w, err := openFamily(c, activityKind{}, name, nil)
	return &Activity{f, w}, err
}

// Touch counts a view of the page by the visitor.
func (a *Activity) Touch(ctx context.Context, page, visitor string) error {
	if err := a.checkVisitor(visitor); err != nil {
		return err
	}
	return a.writer.countAnew(ctx, view{subject{page}, visitor}, 1).Err
}

// Later is Touch with a sum in the process, as [Buffered.Later]. A view counts when Redis takes it.
func (a *Activity) Later(page, visitor string) error {
	if err := a.checkVisitor(visitor); err != nil {
		return err
	}
	return a.writer.addLater(view{subject{page}, visitor}, 1)
}

// Flush sends what Later took before, as [Buffered.Flush].
func (a *Activity) Flush(ctx context.Context) error { return a.writer.flush(ctx) }

// checkVisitor refuses a visitor of a page or of a day.
func (f *family) checkVisitor(visitor string) error { return f.check(visitor, 255, false) }

// Now returns the views of the page within the family's window, and its distinct visitors.
func (a *Activity) Now(ctx context.Context, page string) (views, visitors int64, err error) {
	ctx, cancel := limited(ctx, a.client.options.RetryFor/2)
	defer cancel()
	d, err := a.described(ctx, page)
	if err != nil {
		return 0, 0, err
	}
	for stripe := uint32(0); stripe < d.Stripes; stripe++ {
		partition := d.stripePartition(page, stripe)
		keys := a.keys(partition, placeKeys(placeOf(page, stripe))...)
		words, err := a.readOfHome(ctx, "activity_now", partition, nil, keys, d.Stripes)
		if err != nil {
			return 0, 0, err
		}
		views, visitors = views+number(words[1]), visitors+number(words[2])
	}
	return views, visitors, nil
}
