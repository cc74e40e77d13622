package counterfoil

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	idsOfRequest = 1000
	daemonIdle   = 8 * time.Second // a daemon closes connections that are idle for 10 s
)

// exact has what [Buffered] and [Cached] have in common.
type exact struct{ *family }

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (x exact) Value(ctx context.Context, id string) (int64, error) {
	return single(x.values(ctx, []string{id}))
}

// Values returns the exact values of many counters, in the order of their ids: a request for 1,000 of them.
func (x exact) Values(ctx context.Context, ids []string) ([]int64, error) {
	return x.values(ctx, ids)
}

// ValueOr returns the exact value, or the fallback together with the error: a page can show it, and log why.
func (x exact) ValueOr(ctx context.Context, id string, fallback int64) (int64, error) {
	value, err := x.Value(ctx, id)
	return or(value, err, fallback)
}

// ValuesOr returns the exact values, or the fallbacks, one for each id, together with the error.
func (x exact) ValuesOr(ctx context.Context, ids []string, fallbacks []int64) ([]int64, error) {
	if err := x.checkFallbacks(len(ids), len(fallbacks)); err != nil {
		return nil, err
	}
	values, err := x.values(ctx, ids)
	return or(values, err, fallbacks)
}

func (f *family) checkFallbacks(ids, fallbacks int) error {
	if ids == fallbacks {
		return nil
	}
	return f.fail(ErrNotCounted, "BADARG", fmt.Errorf("%d fallbacks for %d ids", fallbacks, ids))
}

// RequestEpoch returns the epoch to be stored with a job before the first AddOnce or IncrOnce of it.
func (x exact) RequestEpoch(ctx context.Context, request, id string) (string, error) {
	ctx, cancel := limited(ctx, x.client.options.RetryFor)
	defer cancel()
	d, err := x.known(ctx)
	if err == nil {
		err = x.checkRow(d, id)
	}
	if err = cmp.Or(x.check(request, 64, true), x.check(id, x.maxID, true), err); err != nil {
		return "", err
	}
	partition := counter{subject{id}, namedRequest{name: request}}.partition(d)
	d, err = x.ask(ctx, x.home(partition)) // a job that runs later needs the generation that Redis has now
	if err != nil {
		return "", err
	}
	return d.generation, nil
}

func single(values []int64, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return values[0], nil
}

func or[V any](value V, err error, fallback V) (V, error) {
	if err != nil {
		return fallback, err
	}
	return value, nil
}

func (f *family) values(ctx context.Context, ids []string) ([]int64, error) {
	found, err := f.find(ctx, ids)
	values := make([]int64, len(found))
	for i, value := range found {
		if value != nil {
			values[i] = *value
		}
	}
	return values, err
}

// find returns the values. That of a cached counter is nil if it has no row, and only the application inserts its rows.
func (f *family) find(ctx context.Context, ids []string) ([]*int64, error) {
	if e := f.closed(); e != nil {
		return nil, e
	}
	for _, id := range ids {
		if err := f.check(id, f.maxID, true); err != nil {
			return nil, err
		}
	}
	if f.client.memory != nil {
		values := make([]*int64, len(ids))
		for i, id := range ids {
			value := f.client.memory.Value(f.path, id)
			values[i] = &value
		}
		return values, nil
	}
	if len(f.client.options.Daemons) == 0 {
		return nil, f.fail(ErrMisconfigured, "no daemon", errors.New("set Options.Daemons"))
	}
	if e := f.down(daemons); e != nil {
		return nil, e
	}
	ctx, cancel := limited(ctx, f.client.options.RetryFor/2)
	defer cancel()
	values := make([]*int64, 0, len(ids))
	for len(ids) > 0 {
		some := ids[:min(len(ids), idsOfRequest)]
		ids = ids[len(some):]
		found, err := f.askDaemons(ctx, some)
		if err != nil {
			return nil, err
		}
		values = append(values, found...)
	}
	return values, nil
}

// askDaemons asks one daemon after the other, and begins again while none of them is available.
func (f *family) askDaemons(ctx context.Context, ids []string) ([]*int64, error) {
	client := f.client
	body, _ := json.Marshal(map[string]any{"family": f.path, "ids": ids}) // text can always be encoded
	all := client.options.Daemons
	for {
		pause, first, last, isDown := 50*time.Millisecond, client.daemon.Load(), error(nil), true
		for i := range all {
			at := (int(first) + i) % len(all)
			reply, err := client.post(ctx, all[at], body)
			if reply.status == http.StatusOK && len(reply.Values) == len(ids) {
				client.daemon.Store(int32(at)) // the next calls begin with it
				return reply.Values, nil
			}
			if reply.status == http.StatusNotFound && strings.Contains(reply.Error, f.path) {
				return nil, f.unconfigured(err)
			}
			if reply.status/100 == 3 || reply.status/100 == 4 && reply.status != http.StatusTooManyRequests {
				return nil, f.fail(ErrMisconfigured, fmt.Sprint("daemon: ", reply.status), err)
			}
			// a random part of the daemon's pause: all that it refused at once would be refused again if they came back at once
			pause, last = max(pause, time.Duration(float64(reply.retryAfter)*(0.5+rand.Float64()/2))), err
			isDown = isDown && reply.status == 0
		}
		if time.Until(limitOf(ctx)) >= pause && sleep(ctx, pause) {
			continue
		}
		if ctx.Err() != nil && !isOver(ctx) {
			return nil, f.ended(ctx)
		}
		if isDown {
			e := f.failTemporarily(unreachable, last)
			f.begin(daemons, "the daemon", e, client.isDaemonUp)
			return nil, e
		}
		return nil, f.failTemporarily("daemon", last)
	}
}

// valuesReply is what a daemon replied, if it did.
type valuesReply struct {
	Values     []*int64
	Error      string
	status     int
	retryAfter time.Duration
}

// daemonClient uses no proxy, which would receive the token, and follows no redirect to another server.
var daemonClient = &http.Client{
	Transport:     &http.Transport{IdleConnTimeout: daemonIdle, MaxIdleConnsPerHost: 100},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// post asks a daemon. The error explains a reply without values. A silent daemon leaves time for the others.
func (c *Client) post(ctx context.Context, daemon string, body []byte) (reply valuesReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.RetryFor/2/time.Duration(len(c.options.Daemons)))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, daemon+"/api/v1/values", bytes.NewReader(body))
	if err != nil {
		return reply, err
	}
	request.Header.Set("Content-Type", "application/json")
	// net/http repeats a request with this header if the daemon has closed the connection. Without a value it is not sent.
	request.Header["Idempotency-Key"] = nil
	if c.options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.Token)
	}
	response, err := daemonClient.Do(request)
	if err != nil {
		return reply, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return reply, err
	}
	_ = json.Unmarshal(text, &reply) // the caller reports a reply without values
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
	reply.status, reply.retryAfter = response.StatusCode, time.Duration(seconds)*time.Second
	return reply, fmt.Errorf("%s: %s: %.300s", daemon, response.Status, text)
}

// isDaemonUp asks the daemons until one replies.
func (c *Client) isDaemonUp(ctx context.Context) bool {
	for _, daemon := range c.options.Daemons {
		ctx, cancel := context.WithTimeout(ctx, probeWithin/time.Duration(len(c.options.Daemons)))
		defer cancel()
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, daemon+"/healthz", nil) // New has parsed it
		if response, err := daemonClient.Do(request); err == nil {
			response.Body.Close()
			return true
		}
	}
	return false
}

// parseDaemons returns the URLs of daemons without a slash at their end, and refuses what is no URL.
func parseDaemons(given []string) ([]string, error) {
	all := make([]string, len(given))
	for i, daemon := range given {
		address, err := url.Parse(daemon)
		if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
			return nil, fmt.Errorf("expected a daemon such as http://HOST:PORT, not %s", daemon)
		}
		all[i] = strings.TrimSuffix(daemon, "/")
	}
	return all, nil
}
