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
// A call is repeated until Redis replies, for [Options].RetryFor at most, and is executed once, however often it arrives. All
// errors are of type [*Error], whose kind is [ErrNotCounted], [ErrOutcomeUnknown] or [ErrMisconfigured]. If ctx ends after a
// call was sent its outcome is unknown; before that it is not counted.
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
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

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
	// Reason is the code of Redis or of a script, such as FULL, RANGE or OOM, or else a short text, such as "no reply".
	Reason string
	// Family is NAMESPACE/FAMILY.
	Family string
	// Value is the current value of a cached counter if Reason is RANGE, and otherwise nil.
	Value *int64

	cause       error
	isTemporary bool // nothing was sent or executed, and the next try may succeed
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
	// RetryFor is how long a call waits for others and is repeated without a reply: by default 10 s, and 30 s at most.
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
	// OnError is called for each id whose sum Later lost: refused, or with an unknown outcome. It must not block.
	OnError func(family, id string, delta int64, err error)
}

// Client counts in the families of one namespace.
type Client struct {
	redis            redis.UniversalClient
	namespace        string
	options          Options
	isCluster, isOwn bool         // isOwn: made by Connect, and sends each call once
	daemon           atomic.Int32 // the number of the one that replied last
	isClosed         atomic.Bool

	mu       sync.Mutex
	families map[string]*family
}

var name = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

// New returns a client over the application's own connections, whose options stay as they are. Their ReadTimeout, by default
// 3 s, must be shorter than RetryFor.
func New(client redis.UniversalClient, namespace string, options Options) (*Client, error) {
	options.RetryFor = cmp.Or(options.RetryFor, 10*time.Second)
	options.LaterEvery = cmp.Or(options.LaterEvery, 5*time.Millisecond)
	c := &Client{redis: client, namespace: namespace, options: options, families: map[string]*family{}}
	timeout := options.RetryFor / 2
	switch client := client.(type) {
	case *redis.Client:
		timeout = client.Options().ReadTimeout
	case *redis.ClusterClient:
		// a NewFailoverClusterClient names its slots itself: its server is no cluster
		c.isCluster, timeout = client.Options().ClusterSlots == nil, client.Options().ReadTimeout
	case *redis.Ring:
		timeout = -1
	}
	isTimed := timeout > 0 && timeout < options.RetryFor && options.RetryFor <= 30*time.Second
	if !isTimed || options.LaterEvery < 0 || !name.MatchString(namespace) {
		cause := fmt.Errorf("expected a namespace that matches %s, no redis.Ring, RetryFor (%s) within 30 s, "+
			"and a shorter ReadTimeout (%s)", name, options.RetryFor, timeout)
		return nil, &Error{Kind: ErrMisconfigured, Reason: "options", Family: namespace, cause: cause}
	}
	if cause := checkDaemons(options.Daemons); cause != nil {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "options", Family: namespace, cause: cause}
	}
	return c, nil
}

// Connect returns a client with connections of its own, which Close closes. The URL is redis://, rediss:// (TLS) or unix://,
// with the parameters of go-redis.
func Connect(address, namespace string, options Options) (*Client, error) {
	parsed, err := redis.ParseURL(address)
	if err != nil {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "url", Family: namespace, cause: err}
	}
	if err := options.secure(parsed); err != nil {
		return nil, &Error{Kind: ErrMisconfigured, Reason: "options", Family: namespace, cause: err}
	}
	parsed.MaxRetries = -1 // this package repeats calls, and then knows which of them Redis refused
	c, err := New(redis.NewClient(parsed), namespace, options)
	if err == nil {
		c.isOwn = true
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

// Close sends what Later took, and closes the connections of [Connect]. Sums that cannot be sent are dropped, and reported to
// [Options].OnError. While Redis does not reply it takes up to twice RetryFor, or four times if sums were being sent, unless ctx
// ends before.
func (c *Client) Close(ctx context.Context) error {
	c.isClosed.Store(true)
	c.mu.Lock()
	results := make(chan error, len(c.families))
	for _, f := range c.families {
		go func() { results <- f.flush(ctx) }()
	}
	c.mu.Unlock() // OnError may ask for a family
	var first error
	for range cap(results) {
		first = cmp.Or(first, <-results)
	}
	if c.isOwn {
		_ = c.redis.Close() // fails only if it is closed already
	}
	return first
}
