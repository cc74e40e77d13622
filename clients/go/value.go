package counterfoil

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	idsOfRequest = 1000
	// a daemon replies within 10 s, and closes connections that are idle for 10 s
	daemonReply, daemonIdle = 12 * time.Second, 8 * time.Second
	daemonConnect           = time.Second
)

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (b *Buffered) Value(ctx context.Context, id string) (int64, error) { return b.value(ctx, id) }

// Values returns the exact values of many counters, in the order of their ids: a request for 1,000 of them.
func (b *Buffered) Values(ctx context.Context, ids []string) ([]int64, error) {
	return b.values(ctx, ids)
}

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (c *Cached) Value(ctx context.Context, id string) (int64, error) { return c.value(ctx, id) }

// Values returns the exact values of many counters, in the order of their ids: a request for 1,000 of them.
func (c *Cached) Values(ctx context.Context, ids []string) ([]int64, error) {
	return c.values(ctx, ids)
}

func (f *family) value(ctx context.Context, id string) (int64, error) {
	values, err := f.values(ctx, []string{id})
	if err != nil {
		return 0, err
	}
	return values[0], nil
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

// find returns the values, nil where only the application makes the row of a cached counter, and has not.
func (f *family) find(ctx context.Context, ids []string) ([]*int64, error) {
	for _, id := range ids {
		if err := f.check(id, f.maxID, true); err != nil {
			return nil, err
		}
	}
	if len(f.client.options.Daemons) == 0 {
		return nil, f.fail(ErrMisconfigured, "no daemon", errors.New("set Options.Daemons"))
	}
	ctx, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
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
	daemons := client.options.Daemons
	for {
		pause, first, last := 50*time.Millisecond, client.daemon.Load(), error(nil)
		for i := range daemons {
			at := (int(first) + i) % len(daemons)
			reply, err := client.post(ctx, daemons[at], body)
			if reply.status == http.StatusOK && len(reply.Values) == len(ids) {
				client.daemon.Store(int32(at)) // the next calls begin with it
				return reply.Values, nil
			}
			if reply.status/100 == 3 || reply.status/100 == 4 && reply.status != http.StatusTooManyRequests {
				return nil, f.fail(ErrMisconfigured, fmt.Sprint("daemon: ", reply.status), err)
			}
			// all that were refused together would be refused again
			pause, last = max(pause, time.Duration(float64(reply.retryAfter)*(0.5+rand.Float64()/2))), err
		}
		if end, _ := ctx.Deadline(); time.Until(end) < pause || !sleep(ctx, pause) {
			return nil, f.failTemporarily("daemon", last)
		}
	}
}

// valuesReply is what a daemon replied, if it did.
type valuesReply struct {
	Values     []*int64
	status     int
	retryAfter time.Duration
}

// without a proxy, which would receive the token, and without redirects to another server
var daemonClient = &http.Client{
	Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: daemonConnect}).DialContext,
		IdleConnTimeout:     daemonIdle,
		MaxIdleConnsPerHost: 100,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// post asks a daemon. The error explains a reply without values. A silent daemon leaves time for the others.
func (c *Client) post(ctx context.Context, daemon string, body []byte) (reply valuesReply, err error) {
	share := c.options.RetryFor / time.Duration(len(c.options.Daemons))
	ctx, cancel := context.WithTimeout(ctx, min(max(share, daemonConnect), daemonReply))
	defer cancel()
	address := strings.TrimSuffix(daemon, "/") + "/api/v1/values"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return reply, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header["Idempotency-Key"] = nil // is not sent: a connection that the daemon has closed is replaced
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
	_ = json.Unmarshal(text, &reply) // without values it is an error below
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
	reply.status, reply.retryAfter = response.StatusCode, time.Duration(seconds)*time.Second
	return reply, fmt.Errorf("%s: %s: %.300s", daemon, response.Status, text)
}

// checkDaemons refuses what is no address.
func checkDaemons(daemons []string) error {
	for _, daemon := range daemons {
		address, err := url.Parse(daemon)
		if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
			return fmt.Errorf("expected a daemon such as http://HOST:PORT, not %s", daemon)
		}
	}
	return nil
}
