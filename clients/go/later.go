package counterfoil

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

const maxLater = 100_000

// later sums in the process. One pass at a time sends the sums.
type later struct {
	family *family
	pass   chan struct{} // has room for one pass

	mu       sync.Mutex
	sums     map[string]int64
	sending  int // ids of the current pass
	isTimed  bool
	first    error // since the last flush
	failures int
}

func newLater(f *family) *later {
	return &later{family: f, pass: make(chan struct{}, 1), sums: map[string]int64{}}
}

// Later adds delta to a sum in the process, which a goroutine sends within [Options].LaterEvery. What is not sent yet is lost
// if the process is killed: call [Client.Close] before it exits. Sums that Redis did not receive stay and are sent again;
// those that were refused, or whose outcome is unknown, are dropped and reported by the next [Buffered.Flush] and to
// [Options].OnError. If 100,000 ids are waiting the error's reason is BUSY.
func (b *Buffered) Later(id string, delta int64) error {
	if err := b.checkID(id, 255); err != nil {
		return err
	}
	return b.later.add(id, delta)
}

// Flush sends what Later took before, and returns when all of it is settled. Its error is the first one since the last flush,
// and says how many ids are concerned.
func (b *Buffered) Flush(ctx context.Context) error { return b.later.flush(ctx) }

func (l *later) add(id string, delta int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum, isThere := l.sums[id]
	switch {
	case l.family.client.closed.Load():
		return l.family.fail(ErrNotCounted, "closed", nil)
	case !isThere && len(l.sums)+l.sending >= maxLater:
		return l.family.fail(ErrNotCounted, "BUSY", nil)
	case delta > 0 && sum > math.MaxInt64-delta || delta < 0 && sum < math.MinInt64-delta:
		return l.family.fail(ErrNotCounted, "RANGE", nil)
	}
	l.sums[id] = sum + delta
	l.schedule()
	return nil
}

// schedule starts the next pass in a while, if there is none to come.
func (l *later) schedule() {
	if l.isTimed || len(l.sums) == 0 || l.family.client.closed.Load() {
		return
	}
	l.isTimed = true
	time.AfterFunc(l.family.client.options.LaterEvery, func() {
		l.pass <- struct{}{}
		l.mu.Lock()
		l.isTimed = false
		l.mu.Unlock()
		l.send()
		<-l.pass
	})
}

func (l *later) flush(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		l.pass <- struct{}{}
		kept, first := l.send()
		<-l.pass
		l.mu.Lock()
		defer l.mu.Unlock()
		failures := l.failures + kept
		if l.first != nil {
			first = l.first
		}
		l.first, l.failures = nil, 0
		if first != nil {
			e := *first.(*Error)
			e.detail = fmt.Sprintf("%d ids, %d of them are kept and sent again%s", failures, kept, e.detail)
			first = &e
		}
		done <- first
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return l.family.fail(ErrOutcomeUnknown, "canceled", ctx.Err())
	}
}

// send sends all sums. It returns how many are kept for the next pass, and why.
func (l *later) send() (kept int, why error) {
	l.mu.Lock()
	sums := l.sums
	l.sums, l.sending = make(map[string]int64, len(sums)), len(sums)
	l.mu.Unlock()
	items := make([]*item, 0, len(sums))
	for id, sum := range sums {
		items = append(items, &item{id: id, delta: sum})
	}
	outcomes := l.family.count(context.Background(), items...)
	lost := make([]int, 0)
	l.mu.Lock()
	l.sending = 0
	for i, outcome := range outcomes {
		id, delta := items[i].id, items[i].delta
		if isTemporary(outcome.err) && keeps(l.sums, id, delta) {
			kept, why = kept+1, outcome.err
		} else if outcome.err != nil {
			lost, l.failures = append(lost, i), l.failures+1
			if l.first == nil {
				l.first = outcome.err
			}
		}
	}
	l.schedule()
	l.mu.Unlock()
	if onError := l.family.client.options.OnError; onError != nil {
		for _, i := range lost {
			onError(l.family.path, items[i].id, items[i].delta, outcomes[i].err)
		}
	}
	return kept, why
}

// keeps adds a sum to those that wait, unless their sum is beyond i64.
func keeps(sums map[string]int64, id string, delta int64) bool {
	sum := sums[id]
	if delta > 0 && sum > math.MaxInt64-delta || delta < 0 && sum < math.MinInt64-delta {
		return false
	}
	sums[id] = sum + delta
	return true
}
