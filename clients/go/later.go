package counterfoil

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	maxLater = 100_000
	// keptFor is when sums are sent again that Redis did not take.
	keptFor = time.Second
)

// later sums in the process. One pass at a time sends the sums.
type later struct {
	pass sync.Mutex

	mu        sync.Mutex
	sums      map[string]*hit
	sending   int         // sums of the current pass
	next      *time.Timer // begins the next pass
	lost      error       // the first one since the last flush
	isWaiting bool        // the last pass has kept sums
}

// addLater adds to a sum in the process.
func (f *family) addLater(t target, n int64) error {
	latest := f.latest.Load()
	err := f.check(t.id, f.maxID, true)
	if err == nil && latest != nil {
		err = f.checkRow(latest, t.name(latest.Separator))
	}
	if err != nil {
		return err
	}
	l := &f.later
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.client.isClosed.Load() {
		return f.fail(ErrNotCounted, "closed", nil)
	}
	if reason := l.add(t, n); reason != "" {
		return f.fail(ErrNotCounted, reason, nil)
	}
	if l.next == nil {
		f.sendIn(f.client.options.LaterEvery)
	}
	return nil
}

// add returns why the sum is not taken: there are too many, or it would be beyond i64.
func (l *later) add(t target, n int64) string {
	key := t.key()
	sum := l.sums[key]
	switch {
	case sum == nil && len(l.sums)+l.sending >= maxLater:
		return "BUSY"
	case sum == nil:
		l.sums[key] = &hit{target: t, n: n}
	case (sum.n+n < sum.n) != (n < 0):
		return "RANGE"
	default:
		sum.n += n
	}
	return ""
}

// sendIn begins the next pass in a while.
func (f *family) sendIn(pause time.Duration) {
	if f.later.next != nil {
		f.later.next.Stop()
	}
	f.later.next = time.AfterFunc(pause, func() { _ = f.sendSums(context.Background()) })
}

func (f *family) flush(ctx context.Context) error {
	kept, err := within(ctx, func() (error, error) { return f.sendSums(context.WithoutCancel(ctx)), nil })
	if err != nil {
		return f.fail(ErrOutcomeUnknown, "canceled", err)
	}
	f.later.mu.Lock()
	defer f.later.mu.Unlock()
	lost := f.later.lost
	f.later.lost = nil
	return cmp.Or(lost, kept)
}

// sendSums sends all sums. Its error is why some are kept for the next pass.
func (f *family) sendSums(ctx context.Context) (kept error) {
	l := &f.later
	l.pass.Lock()
	defer l.pass.Unlock()
	for hits := l.take(); len(hits) > 0; {
		some := hits[:min(len(hits), 10*f.limit)]
		hits = hits[len(some):]
		for i, result := range f.count(limitTo(ctx, min(f.client.options.RetryFor, closeWithin)), some...) {
			kept = cmp.Or(f.settle(some[i], result.Err), kept)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if kept != nil {
		f.sendIn(keptFor)
	}
	if kept != nil && !l.isWaiting {
		slog.Warn("counterfoil: sums of Later are waiting", "family", f.path, "error", kept)
	}
	l.isWaiting = kept != nil
	return kept
}

// take takes all sums.
func (l *later) take() []hit {
	l.mu.Lock()
	defer l.mu.Unlock()
	hits := make([]hit, 0, len(l.sums))
	for _, sum := range l.sums {
		hits = append(hits, *sum)
	}
	l.sums, l.sending, l.next = map[string]*hit{}, len(hits), nil
	return hits
}

// settle drops a sum that was sent, or keeps it for the next pass. It returns why it is kept.
func (f *family) settle(h hit, result error) error {
	err, isFailed := result.(*Error)
	l := &f.later
	l.mu.Lock()
	l.sending--
	isKept := isFailed && err.isTemporary && !f.client.isClosed.Load() && l.add(h.target, h.n) == ""
	if isFailed && !isKept {
		l.lost = cmp.Or(l.lost, result)
	}
	l.mu.Unlock()
	if onError := f.client.options.OnError; isFailed && !isKept && onError != nil {
		onError(f.path, h.name("/"), h.n, err)
	}
	if isKept {
		return err
	}
	return nil
}
