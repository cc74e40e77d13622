package counterfoil

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/counterfoil/counterfoil-go/internal/memory"
)

// Visitors is a family that counts each visitor of a scope, such as a shop, once a day. A visitor is 1 to 255 bytes of any kind.
type Visitors struct {
	*family
	writer *writer[visit]
}

// visit is the target of visitors: a scope, a day, and the visitor.
type visit struct {
	subject
	day, visitor string
}

func (v visit) rowID(separator string) string { return v.id + separator + v.day }

func (v visit) partition(d *description) uint32 { return d.partitionOf(v.rowID(d.Separator)) }

func (v visit) inMemory(n int64) memory.Hit { return memory.Hit{N: n, Visitor: v.visitor} }

// visitorsKind writes calls of visitors_first.
type visitorsKind struct{}

func (visitorsKind) traits() traits {
	return traits{kindName: "visitors", script: "visitors_first", maxID: 255, limit: 400}
}

func (visitorsKind) write(call *scriptCall, b *batch[visit]) {
	call.addKeys(b.partition(), "buffer", "meta")
	call.addArgs(len(b.entries))
	for _, e := range b.entries {
		id := e.target.rowID(e.known.Separator)
		call.addKeys(b.partition(), "seen:"+id)
		call.addArgs(id, 1, e.target.visitor)
	}
}

func (visitorsKind) words(reply []any, b *batch[visit]) []any {
	if reply[0] == "OK" {
		return wordsAfterTotals(reply, len(b.entries))
	}
	words, _ := cut(fields(reply[1:]), len(b.entries))
	return words
}

// Visitors returns the family of that name.
func (c *Client) Visitors(name string) (*Visitors, error) {
	f, w, err := openFamily(c, visitorsKind{}, name, nil)
	return &Visitors{f, w}, err
}

// FirstVisit counts the visitor of that day, such as 2014-09-20, and returns whether it is the first visit.
func (v *Visitors) FirstVisit(ctx context.Context, scope, day, visitor string) (bool, error) {
	if err := v.checkVisit(scope, day, visitor); err != nil {
		return false, err
	}
	result := v.writer.countAnew(ctx, visit{subject{scope}, day, visitor}, 1)
	return result.Value == 1, result.Err
}

// Later is FirstVisit without its result: visitors are kept in the process, each once, and sent as by [Buffered.Later].
func (v *Visitors) Later(scope, day, visitor string) error {
	if err := v.checkVisit(scope, day, visitor); err != nil {
		return err
	}
	return v.writer.addLater(visit{subject{scope}, day, visitor}, 1)
}

// Flush sends what Later took before, as [Buffered.Flush].
func (v *Visitors) Flush(ctx context.Context) error { return v.writer.flush(ctx) }

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
		d, err := v.known(ctx)
		if err = cmp.Or(v.checkDay(day.Scope, day.Day), err); err != nil {
			return nil, err
		}
		ids[i] = visit{subject: subject{day.Scope}, day: day.Day}.rowID(d.Separator)
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

func (v *Visitors) checkVisit(scope, day, visitor string) error {
	if err := v.checkDay(scope, day); err != nil {
		return err
	}
	return v.checkVisitor(visitor)
}

func (v *Visitors) checkDay(scope, day string) error {
	if _, err := time.Parse(time.DateOnly, day); err != nil || scope == "" {
		return v.fail(ErrNotCounted, "BADID", fmt.Errorf("scope %q, day %q: not like shop, 2014-09-20", scope, day))
	}
	return nil
}
