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
	dropped   dropped     // what is not logged yet
	isWaiting bool        // the last pass has kept sums
}

// dropped are sums that nobody else is told of.
type dropped struct {
	sums   int
	number int64
	first  error
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
	if f.client.isClosing.Load() {
		return f.errClosed()
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
	if e := f.closed(); e != nil {
		return e
	}
	kept := f.drain(limitTo(ctx, f.client.options.RetryFor))
	return cmp.Or(f.later.takeLost(), kept)
}

// drain sends all sums. Its error is why some are kept, or that their outcome is unknown when ctx ends.
func (f *family) drain(ctx context.Context) error {
	kept, err := within(ctx, func() (error, error) { return f.sendSums(context.WithoutCancel(ctx)), nil })
	if err != nil {
		return f.fail(ErrOutcomeUnknown, "canceled", err)
	}
	return kept
}

// dropSums sends the sums for the last time, and drops those that are kept.
func (f *family) dropSums(ctx context.Context) error {
	kept, _ := f.drain(ctx).(*Error)
	if kept != nil && kept.Kind == ErrOutcomeUnknown { // some are being sent
		return kept
	}
	if kept != nil {
		for _, h := range f.later.take() {
			f.drop(h, kept)
		}
		f.logDropped()
	}
	return f.later.takeLost()
}

// takeLost returns the error of the first sum that was dropped since the last call.
func (l *later) takeLost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := l.lost
	l.lost = nil
	return lost
}

// sendSums sends all sums. Its error is why some are kept for the next pass.
func (f *family) sendSums(ctx context.Context) (kept error) {
	l := &f.later
	l.pass.Lock()
	defer l.pass.Unlock()
	defer f.logDropped()
	if kept = f.cannotSend(); kept == nil {
		kept = f.send(ctx, l.take())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	isClosing := f.client.isClosing.Load()
	if kept != nil && !isClosing {
		f.sendIn(keptFor)
	}
	if kept != nil && !l.isWaiting && !isClosing {
		slog.Warn("counterfoil: sums of Later are waiting", "family", f.path, "error", kept)
	}
	l.isWaiting = kept != nil
	return kept
}

// cannotSend returns the error that all sums would get.
func (f *family) cannotSend() error {
	f.later.mu.Lock()
	isEmpty := len(f.later.sums) == 0
	f.later.mu.Unlock()
	if isEmpty || f.client.isCluster {
		return nil
	}
	if e := f.down(f.serverOf(0)); e != nil {
		return e
	}
	return nil
}

// send counts sums, some at a time, and returns why some are kept.
func (f *family) send(ctx context.Context, hits []hit) (kept error) {
	for len(hits) > 0 {
		some := hits[:min(len(hits), 10*f.limit)]
		hits = hits[len(some):]
		for i, result := range f.count(limitTo(ctx, min(f.client.retryFor(), closeWithin)), some...) {
			kept = cmp.Or(f.settle(some[i], result.Err), kept)
		}
	}
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
	isKept := isFailed && err.isTemporary && l.add(h.target, h.n) == ""
	l.mu.Unlock()
	switch {
	case isKept:
		return err
	case isFailed:
		f.drop(h, err)
	}
	return nil
}

// drop reports a sum that was refused, or whose outcome is unknown: to OnError, or to the next logDropped.
func (f *family) drop(h hit, e *Error) {
	l, onError := &f.later, f.client.options.OnError
	l.mu.Lock()
	l.lost = cmp.Or(l.lost, error(e))
	if onError == nil {
		l.dropped = dropped{l.dropped.sums + 1, l.dropped.number + h.n, cmp.Or(l.dropped.first, error(e))}
	}
	l.mu.Unlock()
	if onError != nil {
		onError(f.path, h.name("/"), h.n, e)
	}
}

func (f *family) logDropped() {
	f.later.mu.Lock()
	some := f.later.dropped
	f.later.dropped = dropped{}
	f.later.mu.Unlock()
	if some.sums > 0 {
		slog.Warn("counterfoil: sums of Later are dropped", "family", f.path, "sums", some.sums, "number", some.number, "error", some.first)
	}
}
