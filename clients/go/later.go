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
	sums      map[target]int64
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
	_, isThere := l.sums[t]
	switch {
	case f.client.isClosed.Load():
		return f.fail(ErrNotCounted, "closed", nil)
	case !isThere && len(l.sums)+l.sending >= maxLater:
		return f.fail(ErrNotCounted, "BUSY", nil)
	case !l.add(t, n):
		return f.fail(ErrNotCounted, "RANGE", nil)
	}
	if l.next == nil {
		f.sendIn(f.client.options.LaterEvery)
	}
	return nil
}

// add returns false if the sum would be beyond i64.
func (l *later) add(t target, n int64) bool {
	before := l.sums[t]
	if (before+n < before) != (n < 0) {
		return false
	}
	l.sums[t] = before + n
	return true
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
	hits := l.take()
	for len(hits) > 0 {
		some := hits[:min(len(hits), 10*f.limit)]
		hits = hits[len(some):]
		limited, cancel := limited(ctx, min(f.client.options.RetryFor, closeWithin))
		results := f.count(limited, some...)
		cancel()
		for i, result := range results {
			if err, isFailed := result.Err.(*Error); isFailed && !f.keep(some[i], err) {
				f.lose(some[i], err)
			} else if isFailed {
				kept = err
			}
		}
		l.mu.Lock()
		l.sending -= len(some)
		l.mu.Unlock()
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
	for t, n := range l.sums {
		hits = append(hits, hit{target: t, n: n})
	}
	l.sums, l.sending, l.next = map[target]int64{}, len(hits), nil
	return hits
}

// keep keeps a sum that Redis did not take, for the next pass.
func (f *family) keep(h hit, err *Error) bool {
	f.later.mu.Lock()
	defer f.later.mu.Unlock()
	return err.isTemporary && !f.client.isClosed.Load() && f.later.add(h.target, h.n)
}

func (f *family) lose(h hit, err *Error) {
	f.later.mu.Lock()
	f.later.lost = cmp.Or(f.later.lost, error(err))
	f.later.mu.Unlock()
	if onError := f.client.options.OnError; onError != nil {
		onError(f.path, h.name("/"), h.n, err)
	}
}
