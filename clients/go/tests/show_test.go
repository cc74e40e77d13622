package tests

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/redis/go-redis/v9"
)

// site is an application with its families.
type site struct {
	counters *counterfoil.Client
	views    *counterfoil.Buffered
	readers  *counterfoil.Activity
	daily    *counterfoil.Visitors
}

func openSite(t *testing.T, socket, daemon string) *site {
	t.Helper()
	s := &site{counters: defaults(t, socket, daemon)}
	s.views = buffered(t, s.counters, "views")
	s.readers, _ = s.counters.Activity("readers")
	s.daily, _ = s.counters.Visitors("daily")
	return s
}

// later is a page that calls Later only.
func (s *site) later() {
	_ = s.views.Later("show", 1)
	_ = s.readers.Later("show", "visitor")
	_ = s.daily.Later("show", "2014-09-20", "visitor")
}

// direct is a page that waits for what it counts.
func (s *site) direct() {
	_, _ = s.views.Add(ctx, "show", 1)
	_, _ = s.daily.FirstVisit(ctx, "show", "2014-09-20", "visitor")
	_ = s.readers.Touch(ctx, "show", "visitor")
}

// front is a page with ten values.
func (s *site) front() {
	for i := range 10 {
		_, _ = s.views.ValueOr(ctx, fmt.Sprint("show", i), 0)
	}
}

// load returns the median and the worst time of a page in three workers.
func load(page func()) (p50, worst time.Duration) {
	var mu sync.Mutex
	var times []time.Duration
	var workers sync.WaitGroup
	for range 3 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				start := time.Now()
				page()
				took := time.Since(start)
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
			}
		}()
	}
	workers.Wait()
	slices.Sort(times)
	return times[len(times)/2], times[len(times)-1]
}

// neverAccepts returns an address behind which nothing replies.
func neverAccepts(t *testing.T, network, address string) string {
	t.Helper()
	listener, err := net.Listen(network, address)
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// suspend stops Redis, as SIGSTOP does, until the test ends.
func suspend(t *testing.T) {
	t.Helper()
	info, err := direct.Info(ctx, "server").Result()
	must(t, err)
	pid, err := strconv.Atoi(regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(info)[1])
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() {
		must(t, syscall.Kill(pid, syscall.SIGCONT))
		eventually(t, func() error { return direct.Ping(ctx).Err() })
	})
}

// quiet drops what go-redis and counterfoil log.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// Pages while servers refuse connections, are silent, or are behind a firewall that drops packets.
func TestShowPagesWithoutServers(t *testing.T) {
	if os.Getenv("COUNTERFOIL_LONG") == "" {
		t.Skip("it takes long, and needs a machine to itself: set COUNTERFOIL_LONG")
	}
	redis.SetLogger(quiet{})
	log.SetOutput(io.Discard)
	fmt.Printf("%-8s %-26s %10s %10s\n", "servers", "page", "p50", "worst")
	for _, server := range []string{"up", "refused", "silent", "dropped"} {
		t.Run(server, func(t *testing.T) {
			p, url := startProxy(t), daemon
			address := p.socket
			switch server {
			case "refused":
				url = nobody
			case "silent":
				address, url = socket, "http://"+neverAccepts(t, "tcp", "127.0.0.1:0")
			case "dropped":
				address, url = neverAccepts(t, "unix", t.TempDir()+"/s"), "http://"+neverAccepts(t, "tcp", "127.0.0.1:0")
			}
			summing, waiting, ending := openSite(t, address, url), openSite(t, address, url), openSite(t, address, url)
			if server != "dropped" { // connections were in use before
				for _, s := range []*site{summing, waiting, ending} {
					s.direct()
				}
			}
			switch server {
			case "refused":
				p.stop()
			case "silent":
				suspend(t)
			}
			show := func(page string, p50, worst, most time.Duration) {
				fmt.Printf("%-8s %-26s %10s %10s\n", server, page, p50.Round(10*time.Microsecond), worst.Round(100*time.Microsecond))
				if server != "up" && (worst > most || p50 > 10*time.Millisecond && p50 != worst) {
					t.Errorf("%s: p50 %s, worst %s", page, p50, worst)
				}
			}
			p50, worst := load(summing.later)
			show("later", p50, worst, 50*time.Millisecond)
			p50, worst = load(waiting.direct)
			show("add, first_visit, touch", p50, worst, 1500*time.Millisecond)
			p50, worst = load(waiting.front)
			show("ten values", p50, worst, time.Second)
			end := func(page string, s *site, most time.Duration) {
				start := time.Now()
				_ = s.counters.Close(ctx)
				took := time.Since(start)
				show(page, took, took, most)
			}
			ending.later()
			end("SIGTERM to the end", ending, 5*time.Second)
			summing.later()
			end("SIGTERM later on", summing, 5*time.Second)
			end("SIGTERM without sums", waiting, 100*time.Millisecond)
		})
	}
}
