// Package counterfoil counts in Redis, exactly once, for values that the daemon counterfoil writes to MySQL.
//
// A [Client] counts over the application's own go-redis client, or over connections of its own:
//
//	counters, err := counterfoil.Connect("redis://localhost:6379", "shop", counterfoil.Options{})
//	views, err := counters.Buffered("product_views")
//	_, err = views.Add(ctx, "product-1", 1)
//
// A family of counters has one kind: [Buffered], [Cached], [Series], [Activity] or [Visitors]. Families are declared in the
// daemon's counterfoil.toml; this package asks Redis for their settings.
//
// A call is repeated until Redis replies, and is executed once, however often it arrives. It ends with its ctx or after
// [Options].RetryFor, whichever is earlier. All errors are of type [*Error], whose kind is [ErrNotCounted], [ErrOutcomeUnknown]
// or [ErrMisconfigured]. If ctx ends first the reason is "canceled": after the call was sent its outcome is unknown, and before
// that it is not counted.
//
// After a call whose time passed without a reply, calls fail at once until a goroutine, which asks each second, has found that
// Redis is back. It ends with [Client.Close].
//
// All methods may be called from any number of goroutines. Calls that arrive while two calls of the same family are in
// flight share the next call (group commit).
package counterfoil

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/counterfoil/counterfoil-go/internal/memory"
	"github.com/redis/go-redis/v9"
)

// The kinds of errors, for [errors.Is].
var (
	// ErrNotCounted reports that nothing was counted, or for a read that there is no result.
	ErrNotCounted = errors.New("not counted")
	// ErrOutcomeUnknown reports that a change was made once or not at all. Making it again may count it twice.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrMisconfigured reports that nothing was counted, and that the application or the family must be changed.
	ErrMisconfigured = errors.New("misconfigured")
)

// Error is the type of all errors of this package. It wraps its kind and its cause.
type Error struct {
	// Kind is [ErrNotCounted], [ErrOutcomeUnknown] or [ErrMisconfigured].
	Kind error
	// Reason is a code of Redis, of a script or of this package, such as OOM, FULL or UNREACHABLE, or a short text, such as
	// "no reply" or "canceled".
	Reason string
	// Family is NAMESPACE/FAMILY.
	Family string
	// Value is the current value of a cached counter if Reason is RANGE, and otherwise nil.
	Value *int64

	cause       error
	isTemporary bool // nothing was sent or executed, and the next try may succeed: Later keeps its sum
}

// Error returns the family, the kind, the reason and the cause.
func (e *Error) Error() string {
	text := fmt.Sprintf("counterfoil: %s: %v: %s", e.Family, e.Kind, e.Reason)
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() error { return errors.Join(e.Kind, e.cause) }

// Options are the options of a [Client]. The zero value has the defaults.
type Options struct {
	// RetryFor is the time for a call that counts: by default 1 s, and 30 s at most. A read takes half of it at most.
	RetryFor time.Duration
	// LaterEvery is how long Later collects before it sends, by default 5 ms.
	LaterEvery time.Duration
	// TLSCA is for [Connect] with rediss://: the file of the authority that signed the server's certificate, in PEM. With
	// TLSNoVerify any certificate is accepted.
	TLSCA       string
	TLSNoVerify bool
	// Daemons are the URLs of the HTTP API of one or several daemons, such as http://127.0.0.1:9292. Value and Values ask
	// the next one if one is unreachable or busy, and so does [Cached] without [ReadRow].
	Daemons []string
	// Token is the daemons' token.
	Token string
	// OnError is called for each sum that Later lost, refused or with an unknown outcome: with the id, the name or the page, and
	// the number. It must not block. Why sums have to wait is logged by [log/slog] when it begins.
	OnError func(family, id string, number int64, err error)
}

// Client counts in the families of one namespace.
type Client struct {
	redis     redis.UniversalClient
	memory    memory.Memory // of package counterfoiltest, in place of Redis and the daemon, and otherwise nil
	namespace string
	options   Options
	isCluster bool
	isOwn     bool          // made by Connect: go-redis sends each call once
	isTimed   bool          // go-redis ends an attempt at the deadline of its context
	repeatFor time.Duration // the longest time of another attempt, if isOwn
	daemon    atomic.Int32  // the number of the one that replied last
	servers   sync.Map      // by name
	isClosing atomic.Bool
	open      context.Context // ends with Close
	end       context.CancelFunc

	mu       sync.Mutex
	families map[string]flusher // by kind and name: a *writer each
}

var name = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

// New returns a client over the application's own connections, whose options stay as they are. Set their ReadTimeout, by
// default 3 s, to less than half of RetryFor: a call whose reply is lost is then repeated in time. ContextTimeoutEnabled makes
// calls cheaper.
func New(client redis.UniversalClient, namespace string, options Options) (*Client, error) {
	options.RetryFor = cmp.Or(options.RetryFor, defaultRetryFor)
	options.LaterEvery = cmp.Or(options.LaterEvery, 5*time.Millisecond)
	c := &Client{redis: client, namespace: namespace, options: options, families: map[string]flusher{}}
	c.open, c.end = context.WithCancel(context.Background())
	isUsable := true
	switch client := client.(type) {
	case memory.Memory:
		c.memory = client
	case *redis.Client:
		isUsable, c.isTimed = client.Options().ReadTimeout > 0, client.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		isUsable, c.isTimed = client.Options().ReadTimeout > 0, client.Options().ContextTimeoutEnabled
		// NewFailoverClusterClient returns this type as well, for a server that is no cluster. It sets ClusterSlots
		c.isCluster = client.Options().ClusterSlots == nil
	case *redis.Ring:
		isUsable = false
	}
	var cause error
	c.options.Daemons, cause = parseDaemons(options.Daemons)
	isTimed := options.RetryFor > 0 && options.RetryFor <= 30*time.Second && options.LaterEvery >= 0
	if !isUsable || !isTimed || !name.MatchString(namespace) {
		cause = fmt.Errorf("expected a namespace that matches %s, RetryFor within 30 s, and a client with a ReadTimeout that is "+
			"no redis.Ring", name)
	}
	if cause != nil {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "options", Family: namespace, cause: cause}
	}
	return c, nil
}

const defaultRetryFor = time.Second

// Connect returns a client with connections of its own, which Close closes. The URL is redis://, rediss:// (TLS) or unix://,
// with the parameters of go-redis. By default connecting and a reply may take 0.4 of RetryFor.
func Connect(address, namespace string, options Options) (*Client, error) {
	parsed, err := redis.ParseURL(address)
	if err != nil {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "url", Family: namespace, cause: err}
	}
	if err := options.secure(parsed); err != nil {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "options", Family: namespace, cause: err}
	}
	attempt := cmp.Or(options.RetryFor, defaultRetryFor) * 2 / 5
	parsed.DialTimeout, parsed.ReadTimeout = cmp.Or(parsed.DialTimeout, attempt), cmp.Or(parsed.ReadTimeout, attempt)
	parsed.ContextTimeoutEnabled = true
	if parsed.TLSConfig != nil { // go-redis would not end its handshake
		dialer := &net.Dialer{Timeout: parsed.DialTimeout}
		parsed.Dialer = (&tls.Dialer{NetDialer: dialer, Config: parsed.TLSConfig}).DialContext
	}
	parsed.MaxRetries = -1 // this package repeats calls, and then knows which of them Redis refused
	c, err := New(redis.NewClient(parsed), namespace, options)
	if err == nil {
		c.isOwn, c.repeatFor = true, parsed.ReadTimeout
	}
	return c, err
}

// secure sets the options of TLS.
func (o *Options) secure(to *redis.Options) error {
	if o.TLSCA == "" && !o.TLSNoVerify {
		return nil
	}
	if to.TLSConfig == nil {
		return errors.New("TLSCA and TLSNoVerify need a URL with rediss://")
	}
	to.TLSConfig.InsecureSkipVerify = o.TLSNoVerify
	if o.TLSCA == "" {
		return nil
	}
	pem, err := os.ReadFile(o.TLSCA)
	if err != nil {
		return fmt.Errorf("TLSCA: %w", err)
	}
	to.TLSConfig.RootCAs = x509.NewCertPool()
	if !to.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("TLSCA: %s has no certificate in PEM", o.TLSCA)
	}
	return nil
}

// explained adds the options that are for an error of TLS.
func explained(err error) error {
	var untrusted *tls.CertificateVerificationError
	if !errors.As(err, &untrusted) {
		return err
	}
	return fmt.Errorf("%w: Options.TLSCA names the authority of the server, TLSNoVerify accepts any", err)
}

const (
	// closeWithin is how long Close takes at most, including what it reports.
	closeWithin = 5 * time.Second
	// closePause is how long Close waits before it sends sums again.
	closePause = 500 * time.Millisecond
)

// retryFor is the limit of a call that counts. Those of Close have all of its time.
func (c *Client) retryFor() time.Duration {
	if c.isClosing.Load() {
		return closeWithin
	}
	return c.options.RetryFor
}

// closed returns the error of calls after Close, or nil.
func (f *family) closed() *Error {
	if f.client.open.Err() == nil {
		return nil
	}
	return f.errClosed()
}

func (f *family) errClosed() *Error {
	return f.fail(ErrNotCounted, "CLOSED", errors.New("the client is closed, and takes no further calls"))
}

// Flush sends what Later took before in all families, and returns when all of it is settled, within RetryFor. Its error is the
// first one since the last flush, or why sums are kept, which are sent again.
func (c *Client) Flush(ctx context.Context) error {
	return c.each(func(f flusher) error { return f.flush(ctx) })
}

// Close sends what Later took, and closes the connections of [Connect]. While Redis is unreachable it tries again, until 5 s are
// over or ctx ends. Then it drops what is left, and reports it to [Options].OnError. Without sums it returns at once. Later calls
// fail with the reason CLOSED.
func (c *Client) Close(ctx context.Context) error {
	c.isClosing.Store(true)
	defer c.end()
	ctx, cancel := context.WithTimeoutCause(ctx, closeWithin, errLimit)
	defer cancel()
	ctx = limitTo(ctx, closeWithin*9/10)
	send := func(f flusher) error { return f.drain(ctx) }
	for c.each(send) != nil && time.Until(limitOf(ctx)) > closePause && sleep(ctx, closePause) {
		c.tryAll(ctx)
	}
	first := c.each(func(f flusher) error { return f.dropSums(ctx) })
	if c.isOwn {
		_ = c.redis.Close() // fails only if it is closed already
	}
	return first
}

// each calls a function for all families at the same time, and returns the first error.
func (c *Client) each(call func(flusher) error) (first error) {
	c.mu.Lock()
	results := make(chan error, len(c.families))
	for _, f := range c.families {
		go func() { results <- call(f) }()
	}
	c.mu.Unlock() // OnError may ask for a family
	for range cap(results) {
		first = cmp.Or(first, <-results)
	}
	return first
}
