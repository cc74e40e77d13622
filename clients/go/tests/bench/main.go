// Command bench compares the package with plain HINCRBY and a bare EVALSHA: bench SOCKET NAMESPACE
package main

import (
	"context"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/redis/go-redis/v9"
)

const (
	round  = 300 * time.Millisecond
	rounds = 5
)

var ctx = context.Background()

type measured struct {
	micros    []float64 // of each call, of one caller
	perSecond []float64
	cpu, hits float64 // of Redis, in microseconds
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

var used = regexp.MustCompile(`used_cpu_(?:user|sys):([0-9.]+)`)

func cpu(client *redis.Client) (sum float64) {
	for _, match := range used.FindAllStringSubmatch(must(client.Info(ctx, "cpu").Result()), -1) {
		sum += 1e6 * must(strconv.ParseFloat(match[1], 64))
	}
	return sum
}

// run calls from so many goroutines for a round. done returns when all that was called is in Redis.
func (m *measured) run(client *redis.Client, callers int, call, done func() error) {
	var calls atomic.Int64
	var running sync.WaitGroup
	before, start := cpu(client), time.Now()
	for range callers {
		running.Add(1)
		go func() {
			defer running.Done()
			for at := time.Now(); at.Sub(start) < round; calls.Add(1) {
				must(0, call())
				now := time.Now()
				if callers == 1 {
					m.micros = append(m.micros, float64(now.Sub(at).Nanoseconds())/1000)
				}
				at = now
			}
		}()
	}
	running.Wait()
	must(0, done())
	hits := float64(calls.Load())
	m.perSecond = append(m.perSecond, hits/time.Since(start).Seconds())
	m.cpu, m.hits = m.cpu+cpu(client)-before, m.hits+hits
}

func main() {
	socket, namespace := os.Args[1], os.Args[2]
	client := redis.NewClient(&redis.Options{Addr: socket, ContextTimeoutEnabled: true})
	views := must(must(counterfoil.New(client, namespace, counterfoil.Options{})).Buffered("views"))
	source := must(os.ReadFile(os.Getenv("COUNTERFOIL_SCRIPTS") + "/buffered_add.lua"))
	sum := fmt.Sprintf("%x", sha1.Sum(source))
	must(client.ScriptLoad(ctx, string(source)).Result())
	key := "cf1:{" + namespace + "/views/0}:"
	keys := []string{key + "calls", key + "calls_before", key + "buffer", key + "meta"}
	hincrby := func() error { return client.HIncrBy(ctx, "bench", "a", 1).Err() }
	evalsha := func() error { return client.EvalSha(ctx, sum, keys, "", 0, "", "", 0, 1, 1, "a", 1).Err() }
	add := func() error { _, err := views.Add(ctx, "a", 1); return err }
	later := func() error { return views.Later("a", 1) }
	none, flush := func() error { return nil }, func() error { return views.Flush(ctx) }
	var one, bare, lone, many, shared, sums measured
	for range rounds {
		one.run(client, 1, hincrby, none)
		bare.run(client, 1, evalsha, none)
		lone.run(client, 1, add, none)
		many.run(client, 64, hincrby, none)
		shared.run(client, 64, add, none)
		sums.run(client, 1, later, flush)
	}
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]any{
		"hincrby_p50_us": median(one.micros), "evalsha_p50_us": median(bare.micros), "add_p50_us": median(lone.micros),
		"hincrby_64_per_s": median(many.perSecond), "add_64_per_s": median(shared.perSecond),
		"hincrby_per_s": median(one.perSecond), "later_per_s": median(sums.perSecond),
		"cpu_us_per_hit": map[string]float64{"hincrby_64": many.cpu / many.hits, "add_64": shared.cpu / shared.hits, "later": sums.cpu / sums.hits},
	}))
}
