package counterfoil

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// table is an application's table that has the values of a family.
type table struct{ name, id, value string }

// rowOfDaemon reads the value of a counter's row.
func (f *family) rowOfDaemon(ctx context.Context, id string) (int64, error) {
	return f.askDaemon(ctx, "values", id)
}

// valueOfDaemon reads the exact value of a counter.
func (f *family) valueOfDaemon(ctx context.Context, id string) (int64, error) {
	return f.askDaemon(ctx, "values", id)
}

// askDaemon asks until there is a reply other than 503.
func (f *family) askDaemon(ctx context.Context, what, id string) (int64, error) {
	if f.client.options.Daemon == "" {
		e := f.fail(ErrMisconfigured, "no daemon", nil)
		e.detail = "set Options.Daemon (or Options.Database for values, and ReadRow for rows)"
		return 0, e
	}
	query := url.Values{"family": {f.path}, "id": {id}}
	address := strings.TrimSuffix(f.client.options.Daemon, "/") + "/api/v1/" + what + "?" + query.Encode()
	for {
		value, status, err := f.get(ctx, address, what)
		switch {
		case err == nil:
			return value, nil
		case status >= 400 && status < 500 && status != http.StatusTooManyRequests:
			return 0, f.fail(ErrMisconfigured, fmt.Sprint("daemon: ", status), err)
		case !sleep(ctx, 50*time.Millisecond):
			return 0, f.fail(ErrNotCounted, "daemon", err)
		}
	}
}

func (f *family) get(ctx context.Context, address, what string) (value int64, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, http.StatusBadRequest, err
	}
	if f.client.options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+f.client.options.Token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return 0, 0, err
	}
	type one struct{ Value int64 }
	var reply map[string]json.RawMessage
	var values []one
	if err = json.Unmarshal(body, &reply); err == nil {
		err = json.Unmarshal(reply[what], &values)
	}
	if err == nil && response.StatusCode == http.StatusOK && len(values) == 1 {
		return values[0].Value, http.StatusOK, nil
	}
	return 0, response.StatusCode, fmt.Errorf("%s: %.300s", response.Status, body)
}
