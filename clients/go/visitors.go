package counterfoil

import (
	"context"
	"fmt"
	"time"
)

// Visitors is a family that counts each visitor of a scope, such as a shop, once a day. A visitor is 1 to 255 bytes of any kind.
type Visitors struct{ *family }

// Visitors returns the family of that name. The only option that concerns it is [InTable].
func (c *Client) Visitors(name string, options ...FamilyOption) (*Visitors, error) {
	f, err := c.family("visitors", name, firstCodec{}, options)
	return &Visitors{f}, err
}

// FirstVisit counts the visitor of that day, as 2014-09-20, and returns whether it is the first visit.
func (v *Visitors) FirstVisit(ctx context.Context, scope, day, visitor string) (bool, error) {
	id, err := v.id(scope, day)
	if err == nil {
		err = v.checkVisitor(visitor)
	}
	if err != nil {
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
	return scope + "/" + day, v.checkID(scope+"/"+day, 255)
}

// firstCodec encodes calls of visitors_first.
type firstCodec struct{}

func (firstCodec) spans() bool              { return false }
func (firstCodec) limit() int               { return 400 }
func (firstCodec) place(e *epoch, it *item) { it.partition = e.partitionOf(it.id) }

func (firstCodec) encode(f *family, e *epoch, batch []*item) (string, []string, []any, error) {
	keys := f.keys(batch[0].partition, "buffer", "meta")
	args := []any{e.settings.Remember, len(batch)}
	for _, it := range batch {
		keys = append(keys, f.keys(it.partition, "seen:"+it.id)...)
		args = append(args, it.id, 1, it.visitor)
	}
	return "visitors_first", keys, args, nil
}

func (firstCodec) decode(f *family, words []any, batch []*item) {
	results := words[1:]
	if words[0] == "OK" { // the hits since the last rotation come first
		results = words[2:]
	}
	for i, it := range batch {
		it.outcome = f.outcomeOf(wordAt(results, i))
	}
}
