// Package counterfoil counts in Redis, exactly once, for values that the daemon counterfoil writes to MySQL.
//
// A [Client] counts over the application's own go-redis client, or over one of its own:
//
//	counters, err := counterfoil.Connect("redis://localhost:6379", "shop", counterfoil.Options{})
//	views, err := counters.Buffered("product_views")
//	_, err = views.Add(ctx, "product-1", 1)
//
// A family of counters has one kind: [Buffered], [Cached], [Series], [Activity] or [Visitors]. Families are declared in the
// daemon's counterfoil.toml; this package asks Redis for their settings.
//
// A call is repeated until Redis replies, for [Options].RetryFor at most, and is executed once, however often it arrives. All
// errors are of type [*Error], whose kind is [ErrNotCounted], [ErrOutcomeUnknown] or [ErrMisconfigured]. If ctx ends after a
// call was sent its outcome is unknown; before that it is not counted.
//
// All methods may be called from any number of goroutines. Calls that arrive while another call of the same family is in
// flight share the next call (group commit).
package counterfoil

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Options are the options of a [Client]. The zero value has the defaults.
type Options struct {
	// RetryFor is how long a call is repeated without a reply: by default 10 s, and 30 s at most.
	RetryFor time.Duration
	// LaterEvery is how long Later collects before it sends, by default 5 ms.
	LaterEvery time.Duration
	// Daemon is the URL of the daemon's HTTP API, such as http://127.0.0.1:9292, and Token its token. Value uses it, and
	// [Cached] without [ReadRow].
	Daemon, Token string
	// Database is the MySQL database that the daemon writes to: Value then reads there, not from the daemon.
	Database *sql.DB
	// OnError is called for each id whose sum Later lost: refused, or with an unknown outcome. It must not block.
	OnError func(family, id string, delta int64, err error)
}

// Client counts in the families of one namespace.
type Client struct {
	redis     redis.UniversalClient
	namespace string
	options   Options
	isCluster bool
	isOwn     bool         // its own connections, which repeat nothing
	skew      atomic.Int64 // milliseconds by which the server's clock is ahead

	mu       sync.Mutex
	families map[string]*family
	closed   atomic.Bool
}

var name = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

// New returns a client over the application's own connections, whose options stay as they are. Set a ReadTimeout of a few
// seconds (the default is 3 s).
func New(client redis.UniversalClient, namespace string, options Options) (*Client, error) {
	if options.RetryFor == 0 {
		options.RetryFor = 10 * time.Second
	}
	if options.LaterEvery == 0 {
		options.LaterEvery = 5 * time.Millisecond
	}
	c := &Client{redis: client, namespace: namespace, options: options, families: map[string]*family{}}
	_, c.isCluster = client.(*redis.ClusterClient)
	problem := ""
	switch {
	case !name.MatchString(namespace):
		problem = fmt.Sprintf("namespace %q does not match %s", namespace, name)
	case options.RetryFor < 0 || options.RetryFor > 30*time.Second:
		problem = "RetryFor is not within 30 s"
	case options.LaterEvery < 0:
		problem = "LaterEvery is negative"
	}
	if _, isRing := client.(*redis.Ring); isRing {
		problem = "a Ring moves keys when a shard is unreachable, and what they count with them"
	}
	if problem != "" {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "options", Family: namespace, detail: problem}
	}
	return c, nil
}

// Connect returns a client with connections of its own, which Close closes. The URL is redis://, rediss:// (TLS) or unix://,
// with the parameters of go-redis; for a cluster it names further nodes: redis://node1:6379?addr=node2:6379&addr=node3:6379.
func Connect(url, namespace string, options Options) (*Client, error) {
	client, err := dial(url)
	if err != nil {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "url", Family: namespace, cause: err}
	}
	c, err := New(client, namespace, options)
	if err != nil {
		return nil, err
	}
	c.isOwn = true
	return c, nil
}

func dial(url string) (redis.UniversalClient, error) {
	if strings.Contains(url, "addr=") {
		options, err := redis.ParseClusterURL(url)
		if err != nil {
			return nil, err
		}
		options.MaxRetries = -1
		return redis.NewClusterClient(options), nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.MaxRetries = -1
	return redis.NewClient(options), nil
}

// Close sends what Later took, and closes the connections of [Connect]. Until ctx ends it waits for both.
func (c *Client) Close(ctx context.Context) error {
	c.closed.Store(true)
	c.mu.Lock()
	families := make([]*family, 0, len(c.families))
	for _, f := range c.families {
		families = append(families, f)
	}
	c.mu.Unlock()
	var first error
	for _, f := range families {
		if err := f.later.flush(ctx); first == nil {
			first = err
		}
	}
	if c.isOwn {
		if err := c.redis.Close(); first == nil && err != nil {
			first = &Error{Kind: ErrNotCounted, Reason: "close", Family: c.namespace, cause: err}
		}
	}
	return first
}

// setClock learns the server's time from {"OUTSIDE", now_ms}.
func (c *Client) setClock(words []any) {
	if now, err := strconv.ParseInt(fmt.Sprint(wordAt(words, 1)), 10, 64); err == nil {
		c.skew.Store(now - time.Now().UnixMilli())
	}
}

// now returns the server's time, as far as it is known, in Unix milliseconds.
func (c *Client) now() int64 { return time.Now().UnixMilli() + c.skew.Load() }

func newCaller() string {
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	return hex.EncodeToString(random)
}
