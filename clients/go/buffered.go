package counterfoil

import (
	"cmp"
	"context"
	"math/rand/v2"

	"github.com/counterfoil/counterfoil-go/internal/memory"
)

// Buffered is a family of sums. An id is 1 to 255 bytes of UTF-8.
type Buffered struct {
	exact
	writer *writer[counter]
}

// Pending is what an id has pending in Redis right after a change: what is not in MySQL yet.
type Pending struct {
	Value int64
	// Known is false if the change was counted, but the reply with the value was lost.
	Known bool
}

// Pair is an id and what is added to it.
type Pair struct {
	ID    string
	Delta int64
}

// Result is the result of a [Pair].
type Result struct {
	Pending
	Err error

	ticket   string // for cached_seed, if a cached counter is not in Redis
	isBefore bool   // of a request: an earlier call counted it
}

// counter is the target of a buffered family.
type counter struct {
	subject
	request namedRequest
}

// namedRequest names the work that a change belongs to, such as a job: Redis counts one change for each name and id. Its name is
// "" for a change that always counts.
type namedRequest struct {
	name       string
	generation string // that is stored with a job; "" for the one that Redis has now
}

func (c counter) named() namedRequest { return c.request }

// partition returns any partition in a wide family, but for a request the same one in every process.
func (c counter) partition(d *description) uint32 {
	switch {
	case d.Wide && c.request.name != "":
		return d.partitionOf(c.request.name)
	case d.Wide:
		return rand.Uint32N(d.partitions)
	}
	return d.partitionOf(c.id)
}

func (c counter) inMemory(n int64) memory.Hit {
	return memory.Hit{N: n, Request: c.request.name, Epoch: c.request.generation}
}

// requestTarget is a target that may have a request.
type requestTarget interface {
	target
	named() namedRequest
}

// requestsOf returns the arguments of the requests in a batch, three for each: the number of the entry, the name of the request,
// and its generation.
func requestsOf[T requestTarget](b *batch[T]) (requests []any) {
	for i, e := range b.entries {
		if request := e.target.named(); request.name != "" {
			requests = append(requests, i+1, request.name, cmp.Or(request.generation, b.generation))
		}
	}
	return requests
}

// addRequests adds what requestsOf returned: the last keys and arguments of a call.
func (c *scriptCall) addRequests(requests []any) {
	if len(requests) > 0 {
		c.addKeys(c.home, "requests", "requests_before")
		c.addArgs(requests...)
	}
}

// bufferedKind writes calls of buffered_add.
type bufferedKind struct{}

func (bufferedKind) traits() traits {
	return traits{kindName: "buffered", script: "buffered_add", maxID: 255, limit: 1000, spansPartitions: true}
}

func (bufferedKind) write(call *scriptCall, b *batch[counter]) {
	requests := requestsOf(b)
	call.addArgs(len(requests) / 3)
	for _, pairs := range b.parts {
		call.addKeys(pairs[0].partition, "buffer", "meta")
		call.addArgs(hitsOf(pairs), len(pairs))
		for _, pair := range pairs {
			call.addArgs(pair.target.id, pair.n)
		}
	}
	call.addRequests(requests)
}

// hitsOf returns how many hits pairs stand for, up to 1000: it only decides when the daemon saves them.
func hitsOf(pairs []*entry[counter]) int64 {
	hits := int64(0)
	for _, pair := range pairs {
		hits = min(hits+min(max(pair.n, -pair.n, 1), 1000), 1000)
	}
	return hits
}

func (bufferedKind) words(reply []any, b *batch[counter]) []any {
	sizes := make([]int, len(b.parts))
	for i, pairs := range b.parts {
		sizes[i] = len(pairs)
	}
	return wordsAfterTotals(reply, sizes...)
}

// Buffered returns the family of that name.
func (c *Client) Buffered(name string) (*Buffered, error) {
	f, w, err := openFamily(c, bufferedKind{}, name, nil)
	return &Buffered{exact{f}, w}, err
}

// Add adds delta to the counter and returns what it has pending.
func (b *Buffered) Add(ctx context.Context, id string, delta int64) (Pending, error) {
	result := b.writer.count(ctx, change[counter]{counter{subject: subject{id}}, delta})[0]
	return result.Pending, result.Err
}

// AddMany adds pairs, up to 1000 in a call. They fail separately: there is a result for each, in their order, and the error is
// the first one in them.
func (b *Buffered) AddMany(ctx context.Context, pairs []Pair) (results []Result, first error) {
	changes := make([]change[counter], len(pairs))
	for i, pair := range pairs {
		changes[i] = change[counter]{counter{subject: subject{pair.ID}}, pair.Delta}
	}
	results = b.writer.count(ctx, changes...)
	for _, result := range results {
		first = cmp.Or(first, result.Err)
	}
	return results, first
}

// AddOnce adds delta to the counter once for all calls with this request (1 to 64 bytes) and id, from any process. It returns
// false if another call has counted. Redis remembers a request for an hour, or as long as the family's remember_requests. The
// epoch is that of [Buffered.RequestEpoch], stored with the job: then it never counts twice, and the outcome is unknown if Redis
// may have forgotten the request. If it is "", that of now is used.
func (b *Buffered) AddOnce(ctx context.Context, request, id string, delta int64, epoch string) (bool, error) {
	if err := b.check(request, 64, true); err != nil {
		return false, err
	}
	result := b.writer.count(ctx, change[counter]{counter{subject{id}, namedRequest{request, epoch}}, delta})[0]
	return result.Err == nil && !result.isBefore, result.Err
}

// Later adds delta to a sum in the process, which a goroutine sends within [Options].LaterEvery. What is not sent yet is lost
// if the process is killed: call [Client.Close] before it exits. Sums that Redis did not receive, or refused for a reason that
// passes, stay and are sent again, each second during an outage; others that were refused, or whose outcome is unknown, are
// dropped and reported by the next Flush and to [Options].OnError. If 100,000 are waiting the error's reason is BUSY.
func (b *Buffered) Later(id string, delta int64) error {
	return b.writer.addLater(counter{subject: subject{id}}, delta)
}

// Flush sends what Later took before, and returns when all of it is settled. Its error is the first one since the last flush,
// or why sums are kept, which are sent again.
func (b *Buffered) Flush(ctx context.Context) error { return b.writer.flush(ctx) }
