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
	// keptFor is the time until kept sums are sent again.
	keptFor = time.Second
)

// sums are what Later took in a family, and what is not counted yet.
type sums[T target] struct {
	pass sync.Mutex // of the goroutine that sends sums: one at a time

	mu        sync.Mutex
	waiting   map[T]int64
	sending   int         // the number of sums in the current pass
	next      *time.Timer // begins the next pass
	lost      error       // of the first sum that was dropped since the last flush
	dropped   dropped
	isWaiting bool // the last pass has kept sums, which is logged
}

// dropped are sums that were dropped without a call of OnError, and are not logged yet.
type dropped struct {
	sums   int
	number int64
	first  error
}

// addLater adds to a sum in the process.
func (w *writer[T]) addLater(t T, n int64) error {
	latest := w.latest.Load()
	err := w.check(t.given(), w.maxID, true)
	if err == nil && latest != nil {
		err = w.checkRow(latest, t.rowID(latest.Separator))
	}
	if err != nil {
		return err
	}
	s := &w.sums
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.client.isClosing.Load() {
		return w.errClosed()
	}
	if reason := s.add(t, n); reason != "" {
		return w.fail(ErrNotCounted, reason, nil)
	}
	if s.next == nil {
		w.sendIn(w.client.options.LaterEvery)
	}
	return nil
}

// add adds to a sum. It returns why it does not: there are too many sums, or this one would not fit into 64 bits.
func (s *sums[T]) add(t T, n int64) string {
	sum, isKnown := s.waiting[t]
	switch {
	case !isKnown && len(s.waiting)+s.sending >= maxLater:
		return "BUSY"
	case (sum+n < sum) != (n < 0):
		return "RANGE"
	}
	s.waiting[t] = sum + n
	return ""
}

// sendIn begins the next pass after a pause.
func (w *writer[T]) sendIn(pause time.Duration) {
	if w.sums.next != nil {
		w.sums.next.Stop()
	}
	w.sums.next = time.AfterFunc(pause, func() { _ = w.sendSums(context.Background()) })
}

// flusher is a family of any kind, as Flush and Close of the client use it.
type flusher interface {
	flush(ctx context.Context) error
	drain(ctx context.Context) error
	dropSums(ctx context.Context) error
}

// flush sends all sums, and returns the first error since the last flush, or why some are kept.
func (w *writer[T]) flush(ctx context.Context) error {
	if e := w.closed(); e != nil {
		return e
	}
	kept := w.drain(limitTo(ctx, w.client.options.RetryFor))
	return cmp.Or(w.sums.takeLost(), kept)
}

// drain sends all sums. Its error is why some are kept, or that their outcome is unknown when ctx ends.
func (w *writer[T]) drain(ctx context.Context) error {
	kept, err := within(ctx, func() (error, error) { return w.sendSums(context.WithoutCancel(ctx)), nil })
	if err != nil {
		return w.fail(ErrOutcomeUnknown, "canceled", err)
	}
	return kept
}

// dropSums sends the sums for the last time, and drops those that are kept.
func (w *writer[T]) dropSums(ctx context.Context) error {
	kept, _ := w.drain(ctx).(*Error)
	if kept != nil && kept.Kind == ErrOutcomeUnknown { // some are being sent
		return kept
	}
	if kept != nil {
		for _, sum := range w.sums.take() {
			w.drop(sum, kept)
		}
		w.logDropped()
	}
	return w.sums.takeLost()
}

// takeLost returns the error of the first sum that was dropped since the last call.
func (s *sums[T]) takeLost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.lost
	s.lost = nil
	return lost
}

// sendSums sends all sums. Its error is why some are kept for the next pass.
func (w *writer[T]) sendSums(ctx context.Context) (kept error) {
	s := &w.sums
	s.pass.Lock()
	defer s.pass.Unlock()
	defer w.logDropped()
	if kept = w.cannotSend(); kept == nil {
		kept = w.countSums(ctx, s.take())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	isClosing := w.client.isClosing.Load()
	if kept != nil && !isClosing {
		w.sendIn(keptFor)
	}
	if kept != nil && !s.isWaiting && !isClosing {
		slog.Warn("counterfoil: sums of Later are waiting", "family", w.path, "error", kept)
	}
	s.isWaiting = kept != nil
	return kept
}

// cannotSend returns the error that all sums would get during an outage, or nil.
func (w *writer[T]) cannotSend() error {
	w.sums.mu.Lock()
	isEmpty := len(w.sums.waiting) == 0
	w.sums.mu.Unlock()
	if isEmpty || w.client.isCluster {
		return nil
	}
	if e := w.down(w.serverOf(0)); e != nil {
		return e
	}
	return nil
}

// countSums counts sums, some at a time, and returns why some are kept.
func (w *writer[T]) countSums(ctx context.Context, all []change[T]) (kept error) {
	for len(all) > 0 {
		some := all[:min(len(all), 10*w.limit)]
		all = all[len(some):]
		for i, result := range w.count(limitTo(ctx, min(w.client.retryFor(), closeWithin)), some...) {
			kept = cmp.Or(w.keepOrDrop(some[i], result.Err), kept)
		}
	}
	return kept
}

// take takes all sums.
func (s *sums[T]) take() []change[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]change[T], 0, len(s.waiting))
	for target, n := range s.waiting {
		all = append(all, change[T]{target, n})
	}
	s.waiting, s.sending, s.next = map[T]int64{}, len(all), nil
	return all
}

// keepOrDrop keeps a sum for the next pass if it failed for a reason that passes, and returns its error. If it failed for another
// reason it drops it.
func (w *writer[T]) keepOrDrop(sum change[T], result error) error {
	err, isFailed := result.(*Error)
	s := &w.sums
	s.mu.Lock()
	s.sending--
	isKept := isFailed && err.isTemporary && s.add(sum.target, sum.n) == ""
	s.mu.Unlock()
	switch {
	case isKept:
		return err
	case isFailed:
		w.drop(sum, err)
	}
	return nil
}

// drop reports a sum that was refused, or whose outcome is unknown: to OnError, or to the next logDropped.
func (w *writer[T]) drop(sum change[T], e *Error) {
	s, onError := &w.sums, w.client.options.OnError
	s.mu.Lock()
	s.lost = cmp.Or(s.lost, error(e))
	if onError == nil {
		s.dropped = dropped{s.dropped.sums + 1, s.dropped.number + sum.n, cmp.Or(s.dropped.first, error(e))}
	}
	s.mu.Unlock()
	if onError != nil {
		onError(w.path, sum.target.rowID("/"), sum.n, e)
	}
}

func (w *writer[T]) logDropped() {
	w.sums.mu.Lock()
	some := w.sums.dropped
	w.sums.dropped = dropped{}
	w.sums.mu.Unlock()
	if some.sums > 0 {
		slog.Warn("counterfoil: sums of Later are dropped",
			"family", w.path, "sums", some.sums, "number", some.number, "error", some.first)
	}
}
