package counterfoil

import (
	"context"
	"fmt"
	"hash/crc32"
	"sort"
	"strconv"
)

// Activity is a family that counts the views and visitors of pages within the last minutes. A page is 1 to 200 bytes of UTF-8,
// and a visitor 1 to 255 bytes of any kind.
type Activity struct{ *family }

// Activity returns the family of that name.
func (c *Client) Activity(name string) (*Activity, error) {
	f, err := c.family("activity", name, touchCodec{}, nil)
	return &Activity{f}, err
}

// Touch counts a view of the page by the visitor.
func (a *Activity) Touch(ctx context.Context, page, visitor string) error {
	if err := a.checkID(page, 200); err != nil {
		return err
	}
	if err := a.checkVisitor(visitor); err != nil {
		return err
	}
	return a.count(ctx, &item{id: page, visitor: visitor})[0].err
}

func (f *family) checkVisitor(visitor string) error {
	if visitor == "" || len(visitor) > 255 {
		return f.fail(ErrNotCounted, "BADID", fmt.Errorf("a visitor of %d bytes, not of 1 to 255", len(visitor)))
	}
	return nil
}

// Now returns the views of the page within the family's window, and its distinct visitors.
func (a *Activity) Now(ctx context.Context, page string) (views, visitors int64, err error) {
	if err := a.checkID(page, 200); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.client.options.RetryFor)
	defer cancel()
	e, err := a.describe(ctx)
	if err != nil {
		return 0, 0, err
	}
	for stripe := uint32(0); stripe < uint32(e.settings.Stripes); stripe++ {
		words, err := a.seen(ctx, e, page, stripe)
		if err != nil {
			return 0, 0, err
		}
		views += a.outcomeOf(wordAt(words, 1)).value
		visitors += a.outcomeOf(wordAt(words, 2)).value
	}
	return views, visitors, nil
}

// seen reads a stripe of the page.
func (a *Activity) seen(ctx context.Context, e *epoch, page string, stripe uint32) ([]any, error) {
	own, partition := e.settings, placeOf(e, page, stripe)
	layers := own.Window / own.Layer
	for {
		script, keys := "activity_now", a.keys(partition, stripeKey("views", stripe, page))
		args := []any{"", own.Layer, layers}
		if own.isEstimated() {
			layer := a.client.now() / own.Layer
			script, args = "activity_now_hll", append(args, layer)
			for one := layer - layers + 1; one <= layer; one++ {
				keys = append(keys, a.keys(partition, stripeKey("layer:"+strconv.FormatInt(one, 10), stripe, page))...)
			}
		} else {
			keys = append(keys, a.keys(partition, stripeKey("visitors", stripe, page))...)
		}
		words, err := a.read(ctx, script, keys, args...)
		if err != nil || words[0] != "OUTSIDE" {
			return words, err
		}
		a.client.setClock(words)
		if ctx.Err() != nil {
			return nil, a.fail(ErrNotCounted, "OUTSIDE", ctx.Err())
		}
	}
}

func (s *settings) isEstimated() bool { return s.Visitors == "hyperloglog" }

func stripeKey(name string, stripe uint32, page string) string {
	return fmt.Sprintf("%s:%d:%s", name, stripe, page)
}

// placeOf returns the partition of a stripe of a page.
func placeOf(e *epoch, page string, stripe uint32) uint32 {
	return uint32((uint64(crc32.ChecksumIEEE([]byte(page))) + uint64(stripe)) % uint64(e.partitions))
}

// touchCodec encodes calls of activity_touch and activity_touch_hll.
type touchCodec struct{}

func (touchCodec) spans() bool { return false }
func (touchCodec) limit() int  { return 400 }

func (touchCodec) place(e *epoch, it *item) {
	it.stripe = crc32.ChecksumIEEE([]byte(it.visitor)) % uint32(max(e.settings.Stripes, 1))
	it.partition = placeOf(e, it.id, it.stripe)
}

func (touchCodec) encode(f *family, e *epoch, batch []*item) (string, []string, []any, error) {
	own, partition := e.settings, batch[0].partition
	layer, keeps := f.client.now()/own.Layer, 0
	if own.KeepMinutes {
		keeps = 1
	}
	script, keys, args := "activity_touch", f.keys(partition, "open", "schedule"), []any{own.Layer, own.Window / own.Layer, keeps}
	if own.isEstimated() {
		script, args = "activity_touch_hll", append(args, layer)
	}
	places := byPlace(batch)
	args = append(args, len(places))
	for _, some := range places {
		page, stripe := some[0].id, some[0].stripe
		names := []string{stripeKey("views", stripe, page), stripeKey("visitors", stripe, page)}
		if own.isEstimated() {
			names[1] = stripeKey("layer:"+strconv.FormatInt(layer, 10), stripe, page)
			if own.KeepMinutes {
				minute := layer * own.Layer / 60_000 * 60
				names = append(names, stripeKey("minute:"+strconv.FormatInt(minute, 10), stripe, page))
			}
		}
		keys = append(keys, f.keys(partition, names...)...)
		visitors, at := 0, len(args)+2
		args = append(args, page, len(some), 0)
		for i, it := range some {
			if i == 0 || it.visitor != some[i-1].visitor {
				visitors++
				args = append(args, it.visitor)
			}
		}
		args[at] = visitors
	}
	return script, keys, args, nil
}

// byPlace sorts the batch by page, stripe and visitor, and returns the items of each page and stripe.
func byPlace(batch []*item) [][]*item {
	sort.Slice(batch, func(i, j int) bool {
		a, b := batch[i], batch[j]
		if a.id != b.id {
			return a.id < b.id
		}
		return a.stripe < b.stripe || a.stripe == b.stripe && a.visitor < b.visitor
	})
	return runs(batch, func(a, b *item) bool { return a.id == b.id && a.stripe == b.stripe })
}

func (touchCodec) decode(*family, []any, []*item) {}
