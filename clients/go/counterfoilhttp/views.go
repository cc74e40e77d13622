// Package counterfoilhttp counts views of pages that net/http serves.
//
//	views, err := counterfoilhttp.New(counters, "product_views", counterfoilhttp.IsBot(agents.IsCrawler))
//	if err != nil {
//		log.Fatal(err)
//	}
//	mux.Handle("GET /products/{id}", views.Middleware(counterfoilhttp.PathValue("id"))(http.HandlerFunc(product)))
//
// [Views.Middleware] counts after the handler has succeeded. [Views.CountView] counts in a handler and returns the outcome.
// Prefetches of browsers and HEAD requests never count. Options leave out crawlers, staff and repeats. No cookie is set, so no
// consent is needed.
//
// The context of a request ends when its client disconnects, and a call to Redis that it interrupts has an unknown outcome.
// Views are therefore counted with [context.WithoutCancel]: the values of the request's context remain, such as the span of a
// trace, and its end and its deadline are ignored. [counterfoil.Options].RetryFor limits the call, by default to 1 s.
// [http.Server.Shutdown] waits for views in progress; close the client after it.
//
// A view takes one round trip to Redis before the response ends. When an outage begins, the views in progress wait for RetryFor
// at most; all others fail at once until Redis is back.
package counterfoilhttp

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
)

// Views counts the views of the pages of a family. Its methods may be called from any number of goroutines.
type Views struct {
	family               string
	bots, staff, repeats bool // whether they count
	isBot                func(userAgent string) bool
	isStaff              func(*http.Request) bool
	visitor              func(*http.Request) string
	secret               string
	proxies              []netip.Prefix

	buffered *counterfoil.Buffered
	visitors *counterfoil.Visitors // with Repeats(false), in place of buffered
}

// Option is an option of [New].
type Option func(*Views)

// Bots sets whether crawlers count, by default false. Without Bots(true), [IsBot] must be given.
func Bots(count bool) Option { return func(v *Views) { v.bots = count } }

// IsBot sets the function that recognizes crawlers by their User-Agent, such as IsCrawler of
// github.com/monperrus/crawler-user-agents. A request without a User-Agent is a crawler, too.
func IsBot(isBot func(userAgent string) bool) Option { return func(v *Views) { v.isBot = isBot } }

// Staff sets whether staff count, by default false. Without [IsStaff] it has no effect.
func Staff(count bool) Option { return func(v *Views) { v.staff = count } }

// IsStaff sets the function that recognizes staff. It receives the request as the middleware does: wrap the middleware in the
// one that authenticates.
func IsStaff(isStaff func(*http.Request) bool) Option { return func(v *Views) { v.isStaff = isStaff } }

// Repeats sets whether each view of a visitor counts, by default true. With false the family is one of kind visitors, whose scope
// is the id: a visitor counts once a day, in UTC. [Secret] or [Visitor] must be given.
func Repeats(count bool) Option { return func(v *Views) { v.repeats = count } }

// Secret sets the key of visitors' names. A visitor is the HMAC-SHA-256 of the client's address and its User-Agent. All processes
// need the same secret. When it changes, visitors of the day count again.
func Secret(secret string) Option { return func(v *Views) { v.secret = secret } }

// Proxies sets the networks of reverse proxies. The client's address is that of the connection, unless it is in one of
// them. Then it is the last address in X-Forwarded-For that is not. A proxy must append to this header.
func Proxies(networks ...netip.Prefix) Option { return func(v *Views) { v.proxies = networks } }

// Visitor sets the function that names visitors, such as by a session, instead of [Secret]. A name has 1 to 255 bytes, which
// Redis stores as they are. A request without a name, "", is left out.
func Visitor(visitor func(*http.Request) string) Option {
	return func(v *Views) { v.visitor = visitor }
}

// New returns the views of a family: one of kind buffered, or of kind visitors with Repeats(false).
func New(counters *counterfoil.Client, family string, options ...Option) (*Views, error) {
	v := &Views{family: family, repeats: true}
	for _, option := range options {
		option(v)
	}
	switch {
	case !v.bots && v.isBot == nil:
		return nil, fmt.Errorf("counterfoilhttp: %s: crawlers are left out, but nothing recognizes them: give IsBot, e.g. "+
			"IsBot(agents.IsCrawler) with github.com/monperrus/crawler-user-agents, or Bots(true) to count them", family)
	case !v.repeats && v.visitor == nil && v.secret == "":
		return nil, fmt.Errorf("counterfoilhttp: %s: Repeats(false) needs Secret, which is not empty, or Visitor", family)
	case v.visitor == nil:
		v.visitor = v.hashed
	}
	var err error
	if v.repeats {
		v.buffered, err = counters.Buffered(family)
	} else {
		v.visitors, err = counters.Visitors(family)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// CountView counts a view of the id and returns whether it was counted: false without an error means that the options leave it
// out. It ignores the end of the request's context. All errors are [*counterfoil.Error].
func (v *Views) CountView(r *http.Request, id string) (bool, error) {
	if !v.isView(r) {
		return false, nil
	}
	ctx := context.WithoutCancel(r.Context())
	if v.repeats {
		_, err := v.buffered.Add(ctx, id, 1)
		return err == nil, err
	}
	visitor := v.visitor(r)
	if visitor == "" {
		return false, nil
	}
	return v.visitors.FirstVisit(ctx, id, time.Now().UTC().Format(time.DateOnly), visitor)
}

// Middleware counts a view after the handler has succeeded: it returned, and its status is below 400. The function, which is
// called after the handler, returns the id, or "" for a page that does not count. An error is logged by slog, and changes no
// response.
func (v *Views) Middleware(id func(*http.Request) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			response := &recorder{ResponseWriter: w}
			next.ServeHTTP(response, r)
			if response.isFailed {
				return
			}
			page := id(r)
			if page == "" {
				return
			}
			if _, err := v.CountView(r, page); err != nil {
				slog.WarnContext(r.Context(), "counterfoil: a view failed", "family", v.family, "id", page, "error", err)
			}
		})
	}
}

// PathValue returns the function for [Views.Middleware] that takes the id from the path: {name} in a pattern of
// [http.ServeMux], or of a router that sets path values, such as chi.
func PathValue(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.PathValue(name) }
}

// isView returns false for what the options leave out.
func (v *Views) isView(r *http.Request) bool {
	agent, purpose := r.UserAgent(), cmp.Or(r.Header.Get("Sec-Purpose"), r.Header.Get("Purpose"))
	switch {
	case r.Method == http.MethodHead, strings.HasPrefix(purpose, "prefetch"):
		return false
	case !v.bots && (agent == "" || v.isBot(agent)):
		return false
	}
	return v.staff || v.isStaff == nil || !v.isStaff(r)
}

// hashed returns the name of the visitor.
func (v *Views) hashed(r *http.Request) string {
	hash := hmac.New(sha256.New, []byte(v.secret))
	fmt.Fprintf(hash, "%s\n%s", v.address(r), r.UserAgent())
	return hex.EncodeToString(hash.Sum(nil))
}

// address returns the client's address.
func (v *Views) address(r *http.Request) netip.Addr {
	address := parse(r.RemoteAddr)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && v.isProxy(address); i-- {
		hop := parse(strings.TrimSpace(hops[i]))
		if !hop.IsValid() {
			break
		}
		address = hop
	}
	return address
}

// isProxy returns whether the address is that of a reverse proxy, or of a Unix socket, which has none.
func (v *Views) isProxy(address netip.Addr) bool {
	contains := func(network netip.Prefix) bool { return network.Contains(address) || !address.IsValid() }
	return slices.ContainsFunc(v.proxies, contains)
}

// parse returns an address without its port, or the zero Addr.
func parse(text string) netip.Addr {
	if both, err := netip.ParseAddrPort(text); err == nil {
		return both.Addr().Unmap()
	}
	address, _ := netip.ParseAddr(text)
	return address.Unmap()
}
