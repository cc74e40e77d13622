// Command bench compares the package with plain HINCRBY and a bare EVALSHA: bench SOCKET NAMESPACE
package main

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
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

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func median(values []float64) float64 {
	sort.Float64s(values)
	return values[len(values)/2]
}

var used = regexp.MustCompile(`used_cpu_(?:user|sys):([0-9.]+)`)

func cpu(client *redis.Client) (sum float64) {
	info, err := client.Info(ctx, "cpu").Result()
	check(err)
	for _, match := range used.FindAllStringSubmatch(info, -1) {
		seconds, err := strconv.ParseFloat(match[1], 64)
		check(err)
		sum += seconds * 1e6
	}
	return sum
}

// run calls from so many goroutines for a round. done returns when all that was called is in Redis.
func (m *measured) run(client *redis.Client, callers int, call func() error, done func() error) {
	var calls atomic.Int64
	var running sync.WaitGroup
	before, start := cpu(client), time.Now()
	for i := 0; i < callers; i++ {
		running.Add(1)
		go func() {
			defer running.Done()
			for at := time.Now(); at.Sub(start) < round; {
				check(call())
				now := time.Now()
				if callers == 1 {
					m.micros = append(m.micros, float64(now.Sub(at).Nanoseconds())/1000)
				}
				at = now
				calls.Add(1)
			}
		}()
	}
	running.Wait()
	check(done())
	hits := float64(calls.Load())
	m.perSecond = append(m.perSecond, hits/time.Since(start).Seconds())
	m.cpu, m.hits = m.cpu+cpu(client)-before, m.hits+hits
}

func main() {
	socket, namespace := os.Args[1], os.Args[2]
	client := redis.NewClient(&redis.Options{Addr: socket})
	counters, err := counterfoil.New(client, namespace, counterfoil.Options{})
	check(err)
	views, err := counters.Buffered("views")
	check(err)
	source, err := os.ReadFile(filepath.Join(os.Getenv("COUNTERFOIL_SCRIPTS"), "buffered_add.lua"))
	check(err)
	sum := sha1.Sum(source)
	key := func(name string) string { return fmt.Sprintf("cf1:{%s/views/0}:%s", namespace, name) }
	keys := []string{key("calls"), key("calls_before"), key("buffer"), key("meta")}
	check(client.ScriptLoad(ctx, string(source)).Err())
	hincrby := func() error { return client.HIncrBy(ctx, "bench", "a", 1).Err() }
	evalsha := func() error {
		return client.EvalSha(ctx, hex.EncodeToString(sum[:]), keys, "", 0, "", "", 1, 1, "a", 1).Err()
	}
	add := func() error { _, err := views.Add(ctx, "a", 1); return err }
	later := func() error { return views.Later("a", 1) }
	none, flush := func() error { return nil }, func() error { return views.Flush(ctx) }
	all := map[string]*measured{}
	measure := func(name string, callers int, call, done func() error) {
		if all[name] == nil {
			all[name] = &measured{}
		}
		all[name].run(client, callers, call, done)
	}
	for i := 0; i < rounds; i++ {
		measure("hincrby", 1, hincrby, none)
		measure("evalsha", 1, evalsha, none)
		measure("add", 1, add, none)
		measure("hincrby_64", 64, hincrby, none)
		measure("add_64", 64, add, none)
		measure("later", 1, later, flush)
	}
	figures, cpus := map[string]any{}, map[string]float64{}
	for _, name := range []string{"hincrby", "evalsha", "add"} {
		figures[name+"_p50_us"] = median(all[name].micros)
	}
	for _, name := range []string{"hincrby", "hincrby_64", "add_64", "later"} {
		figures[name+"_per_s"] = median(all[name].perSecond)
		cpus[name] = all[name].cpu / all[name].hits
	}
	figures["cpu_us_per_hit"] = cpus
	check(json.NewEncoder(os.Stdout).Encode(figures))
}
