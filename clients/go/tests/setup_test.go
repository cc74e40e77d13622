package tests

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/redis/go-redis/v9"
)

func TestOptions(t *testing.T) {
	_, err := counterfoil.New(direct, namespace, counterfoil.Options{RetryFor: 31 * time.Second})
	fails(t, err, counterfoil.ErrMisconfigured, "options")
	_, err = counterfoil.New(direct, "Shop", counterfoil.Options{})
	fails(t, err, counterfoil.ErrMisconfigured, "options")
	_, err = counterfoil.New(redis.NewRing(&redis.RingOptions{}), namespace, counterfoil.Options{})
	fails(t, err, counterfoil.ErrMisconfigured, "options")
	endless := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: -1})
	defer endless.Close()
	_, err = counterfoil.New(endless, namespace, counterfoil.Options{})
	fails(t, err, counterfoil.ErrMisconfigured, "options")
	_, err = counterfoil.New(direct, namespace, counterfoil.Options{Daemons: []string{"localhost:9292"}})
	fails(t, err, counterfoil.ErrMisconfigured, "options")
	_, err = counterfoil.Connect("http://localhost", namespace, counterfoil.Options{})
	fails(t, err, counterfoil.ErrMisconfigured, "url")
}

// A password that looks like an option of go-redis is a password.
func TestAURL(t *testing.T) {
	counters, err := counterfoil.Connect("unix://nobody:addr=1@"+socket, namespace, counterfoil.Options{})
	must(t, err)
	defer counters.Close(ctx)
	_, err = buffered(t, counters, "views").Add(ctx, "a", 1)
	fails(t, err, counterfoil.ErrMisconfigured, "WRONGPASS")
}

func TestErrorsWithoutACause(t *testing.T) {
	counters := given(t, socket, counterfoil.Options{})
	must(t, counters.Close(ctx))
	err := buffered(t, counters, "views").Later("a", 1)
	for _, one := range errors.Unwrap(err).(interface{ Unwrap() []error }).Unwrap() {
		if one == nil {
			t.Error("nil")
		}
	}
}

// Requests to daemons must not use this proxy. net/http uses none for hosts of this machine, so no other test notices it.
func init() { os.Setenv("HTTP_PROXY", "http://127.0.0.1:1") }

func TestTheDaemonIsAskedWithoutAProxy(t *testing.T) {
	options := counterfoil.Options{Daemons: []string{"http://daemon.invalid"}, RetryFor: 300 * time.Millisecond}
	_, err := buffered(t, given(t, socket, options), "views").Value(ctx, "a")
	fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
	if strings.Contains(err.Error(), "proxy") {
		t.Error(err)
	}
}

// commands is a hook that prints commands.
type commands struct {
	prefix
	last string
}

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		c.last = fmt.Sprint(command.Args()...) + command.String()
		for _, arg := range command.Args() {
			if arg, isBinary := arg.(encoding.BinaryMarshaler); isBinary {
				_, _ = arg.MarshalBinary()
			}
		}
		return next(ctx, command)
	}
}

func TestHooksThatPrintCommands(t *testing.T) {
	client, printed := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: time.Second}), &commands{}
	defer client.Close()
	client.AddHook(printed)
	_, err := buffered(t, with(t, client, counterfoil.Options{}), "views").Add(ctx, newID(), 1)
	must(t, err)
	if strings.Contains(printed.last, "buffered_add") {
		t.Error(printed.last)
	}
}

func TestHooksThatFormatCommandsChangeNoOutcome(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: time.Second})
	defer client.Close()
	client.AddHook(&commands{})
	views, id := buffered(t, with(t, client, counterfoil.Options{}), "views"), newID()
	_, err := views.Add(ctx, id, 1)
	must(t, err)
	must(t, direct.ConfigSet(ctx, "maxmemory", "1").Err())
	defer direct.ConfigSet(ctx, "maxmemory", "0")
	for number := range 7 {
		must(t, views.Later(fmt.Sprint(id, "/", number), 1))
	}
	fails(t, views.Flush(ctx), counterfoil.ErrNotCounted, "OOM")
	must(t, direct.ConfigSet(ctx, "maxmemory", "0").Err())
	must(t, views.Flush(ctx))
	for number := range 7 {
		equal(t, exact(t, fmt.Sprint(id, "/", number)), 1)
	}
}

func TestFamiliesThatAreNotThere(t *testing.T) {
	counters := given(t, socket, counterfoil.Options{})
	_, err := buffered(t, counters, "unknown").Add(ctx, "a", 1)
	fails(t, err, counterfoil.ErrNotCounted, "UNCONFIGURED")
	_, err = buffered(t, counters, "votes").Add(ctx, "a", 1)
	fails(t, err, counterfoil.ErrMisconfigured, "MISMATCH")
	if !strings.Contains(err.Error(), "votes is cached, not buffered") {
		t.Error(err)
	}
	_, err = counters.Buffered("Views")
	fails(t, err, counterfoil.ErrMisconfigured, "BADKEY")
	_, err = buffered(t, counters, "views").Value(ctx, "a")
	fails(t, err, counterfoil.ErrMisconfigured, "no daemon")
}

func TestAServerWithACertificateOfItsOwn(t *testing.T) {
	address, authority := os.Getenv("COUNTERFOIL_TEST_TLS"), os.Getenv("COUNTERFOIL_TEST_CA")
	if address == "" {
		t.Skip("there is no server with TLS")
	}
	refusal := func(options counterfoil.Options) error {
		options.RetryFor = 4 * time.Second
		counters, err := counterfoil.Connect(address, namespace, options)
		must(t, err)
		defer counters.Close(ctx)
		_, err = buffered(t, counters, "views").Add(ctx, newID(), 1)
		return err
	}
	err := refusal(counterfoil.Options{})
	fails(t, err, counterfoil.ErrNotCounted, "UNREACHABLE")
	if !strings.Contains(err.Error(), "TLSCA") {
		t.Error(err)
	}
	fails(t, refusal(counterfoil.Options{TLSCA: authority}), counterfoil.ErrNotCounted, "UNCONFIGURED")
	fails(t, refusal(counterfoil.Options{TLSNoVerify: true}), counterfoil.ErrNotCounted, "UNCONFIGURED")
	_, err = counterfoil.Connect("redis://localhost", namespace, counterfoil.Options{TLSNoVerify: true})
	fails(t, err, counterfoil.ErrMisconfigured, "options")
}

// prefix is a hook that adds a prefix to keys.
type prefix struct{}

func (prefix) DialHook(next redis.DialHook) redis.DialHook { return next }
func (prefix) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (prefix) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if args := command.Args(); command.Name() == "evalsha" || command.Name() == "eval" {
			for i := 3; i < 5; i++ {
				args[i] = fmt.Sprint("prefix:", args[i])
			}
		}
		return next(ctx, command)
	}
}

func TestAPrefix(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: time.Second})
	defer client.Close()
	client.AddHook(prefix{})
	_, err := buffered(t, with(t, client, counterfoil.Options{}), "views").Add(ctx, "a", 1)
	fails(t, err, counterfoil.ErrMisconfigured, "BADKEY")
}

// panicking is a hook that panics instead of making counting calls, so many times.
type panicking struct {
	prefix
	left atomic.Int32
}

func (p *panicking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if command.Name() == "evalsha" && p.left.Add(-1) >= 0 {
			panic("a fault of the application")
		}
		return next(ctx, command)
	}
}

// The call may be made in a goroutine of the package, and others wait for it.
func TestAHookThatPanics(t *testing.T) {
	client, hook := redis.NewClient(&redis.Options{Addr: socket, ReadTimeout: time.Second}), &panicking{}
	defer client.Close()
	client.AddHook(hook)
	views, id := buffered(t, with(t, client, counterfoil.Options{}), "views"), newID()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, ctx := range []context.Context{ctx, short} {
		hook.left.Store(3)
		_, err := views.Add(ctx, id, 1)
		must(t, err)
	}
	equal(t, exact(t, id), 2)
}

// go-redis has a client of this type for Sentinel, too: NewFailoverClusterClient.
func TestAClusterClientOfASingleServer(t *testing.T) {
	slots := []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: socket}}}}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ReadTimeout:  time.Second,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil },
	})
	defer client.Close()
	views, id := buffered(t, with(t, client, counterfoil.Options{}), "views"), newID()
	for i := 0; i < 8; i++ {
		_, err := views.Add(ctx, fmt.Sprint(id, i), 1)
		must(t, err)
	}
}

func TestLibraryOptions(t *testing.T) {
	for name, options := range map[string]*redis.Options{
		"RESP2":          {Protocol: 2},
		"a single one":   {PoolSize: 1},
		"no retries":     {MaxRetries: -1},
		"context's time": {ContextTimeoutEnabled: true},
	} {
		t.Run(name, func(t *testing.T) {
			options.Addr, options.ReadTimeout = socket, time.Second
			client := redis.NewClient(options)
			defer client.Close()
			views, id := buffered(t, with(t, client, counterfoil.Options{}), "views"), newID()
			var all sync.WaitGroup
			for i := 0; i < 32; i++ {
				all.Add(1)
				go func() {
					defer all.Done()
					_, err := views.Add(ctx, id, 1)
					must(t, err)
				}()
			}
			all.Wait()
			equal(t, exact(t, id), 32)
		})
	}
	client := redis.NewClient(&redis.Options{Addr: socket, Username: "nobody", Password: "wrong", ReadTimeout: time.Second})
	defer client.Close()
	_, err := buffered(t, with(t, client, counterfoil.Options{}), "views").Add(ctx, "a", 1)
	fails(t, err, counterfoil.ErrMisconfigured, "WRONGPASS")
}

func TestOtherKinds(t *testing.T) {
	counters, id := given(t, socket, counterfoil.Options{Daemons: []string{daemon}}), newID()
	hits, err := counters.Series("hits")
	must(t, err)
	must(t, hits.Add(ctx, id, 3))
	for label, length := range map[string]int{"60s": 120, "day": 31} {
		slices, err := hits.Get(ctx, id, label)
		must(t, err)
		equal(t, len(slices), length)
		equal(t, slices[length-1].Count+slices[length-2].Count, 3)
		if since := time.Since(slices[length-1].Start); since < 0 || since > 25*time.Hour {
			t.Error(slices[length-1].Start)
		}
	}
	fails(t, hits.Add(ctx, id, 0), counterfoil.ErrNotCounted, "BADARG")
	must(t, hits.AddAt(ctx, id, 4, time.Now().Add(-time.Hour)))
	slices, err := hits.Get(ctx, id, "60s")
	must(t, err)
	equal(t, slices[58].Count+slices[59].Count+slices[60].Count, 4)
	for _, at := range []time.Time{time.Now().Add(2 * time.Minute), time.Unix(1, 0), time.Unix(-1, 0)} {
		fails(t, hits.AddAt(ctx, id, 1, at), counterfoil.ErrNotCounted, "BADTIME")
	}
	readers, err := counters.Activity("readers")
	must(t, err)
	var all sync.WaitGroup
	for i := 0; i < 40; i++ {
		all.Add(1)
		go func(visitor string) {
			defer all.Done()
			must(t, readers.Touch(ctx, id, visitor))
		}(fmt.Sprint(i % 5))
	}
	all.Wait()
	views, visitors, err := readers.Now(ctx, id)
	must(t, err)
	equal(t, views, 40)
	equal(t, visitors, 5)
	daily, err := counters.Visitors("daily")
	must(t, err)
	for i := 0; i < 4; i++ {
		isFirst, err := daily.FirstVisit(ctx, id, "2014-09-20", fmt.Sprint(i%2))
		must(t, err)
		equal(t, isFirst, i < 2)
	}
	value, err := daily.Value(ctx, id, "2014-09-20")
	must(t, err)
	equal(t, value, 2)
	_, err = daily.FirstVisit(ctx, id, "2014-9-20", "a")
	fails(t, err, counterfoil.ErrNotCounted, "BADID")
}
