package counterfoil

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// table is an application's table that has the values of a family.
type table struct{ name, id, value string }

// InTable names the application's table that stores the values of a family, with its columns of ids and values. It concerns
// Value with [Options].Database; by default values are in counterfoil_values.
func InTable(name, idColumn, valueColumn string) FamilyOption {
	return func(f *family) { f.table = &table{name, idColumn, valueColumn} }
}

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (b *Buffered) Value(ctx context.Context, id string) (int64, error) { return b.value(ctx, id) }

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (c *Cached) Value(ctx context.Context, id string) (int64, error) { return c.value(ctx, id) }

func (f *family) value(ctx context.Context, id string) (int64, error) {
	if err := f.checkID(id, 255); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
	defer cancel()
	if f.client.options.Database == nil {
		return f.askDaemon(ctx, "values", id)
	}
	for {
		value, isStale, err := f.readValue(ctx, id)
		if err != nil || !isStale {
			return value, err
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return 0, f.fail(ErrNotCounted, "set back", ctx.Err()) // the ledger stays ahead of Redis
		}
	}
}

// pending is a reply of buffered_read.
type pending struct {
	partition          uint32
	incarnation, nonce uint64
	seq                uint64
	isInFlight         bool
	batch, buffer      int64
}

// ledgerRow is what the ledger has of an incarnation of a partition.
type ledgerRow struct {
	seq, nonce uint64
	position   sql.NullString
}

// readValue reads Redis, and then MySQL; isStale means that a batch landed in between.
func (f *family) readValue(ctx context.Context, id string) (value int64, isStale bool, err error) {
	e, err := f.describe(ctx)
	if err != nil {
		return 0, false, err
	}
	first, count := e.partitionOf(id), uint32(1)
	if e.settings.Wide {
		first, count = 0, e.partitions
	}
	reads := make([]pending, count)
	for i := range reads {
		if reads[i], err = f.readPending(ctx, first+uint32(i), id); err != nil {
			return 0, false, err
		}
	}
	row, ledger, err := f.readDatabase(ctx, e, id, reads)
	if err != nil {
		return 0, false, err
	}
	sum := big.NewInt(row)
	for _, read := range reads {
		own := ledger[read.partition]
		if own.seq == 0 && (read.batch != 0 || read.buffer != 0) { // a crash of Redis may have reverted the incarnation
			again, err := f.readPending(ctx, read.partition, id)
			if err != nil || again.incarnation != read.incarnation {
				return 0, true, err
			}
		}
		lacks, isNewer, reason := own.compare(read, id)
		if isNewer {
			return 0, true, nil
		}
		if reason != "" {
			return 0, false, f.fail(ErrNotCounted, reason, nil)
		}
		sum.Add(sum, big.NewInt(read.buffer))
		if lacks {
			sum.Add(sum, big.NewInt(read.batch))
		}
	}
	if !sum.IsInt64() {
		return 0, false, f.fail(ErrNotCounted, "RANGE", nil)
	}
	return sum.Int64(), false, nil
}

// compare returns whether the row lacks the batch's delta; lua/README.md, "Reading the exact value".
func (l ledgerRow) compare(read pending, id string) (lacks, isNewer bool, reason string) {
	isApplied := !l.position.Valid
	switch {
	case l.seq > read.seq:
		return false, true, ""
	case l.seq == read.seq && l.seq != 0 && l.nonce != read.nonce:
		return false, false, "set back"
	case l.seq == read.seq && isApplied:
		return false, false, ""
	case l.seq == read.seq && read.isInFlight:
		return id > l.position.String, false, ""
	case l.seq+1 == read.seq && isApplied && read.isInFlight:
		return true, false, ""
	}
	return false, false, "a replica that is behind"
}

func (f *family) readPending(ctx context.Context, partition uint32, id string) (pending, error) {
	words, err := f.read(ctx, "buffered_read", f.keys(partition, "buffer", "batch", "meta"), id)
	if err != nil {
		return pending{}, err
	}
	read := pending{partition: partition, isInFlight: fmt.Sprint(wordAt(words, 4)) == "1"}
	read.incarnation, _ = strconv.ParseUint(fmt.Sprint(wordAt(words, 1)), 16, 64) // "" if there is none
	read.nonce, _ = strconv.ParseUint(fmt.Sprint(wordAt(words, 3)), 16, 64)
	texts := fmt.Sprint(wordAt(words, 2), " ", wordAt(words, 5), " ", wordAt(words, 6))
	if _, err := fmt.Sscan(texts, &read.seq, &read.batch, &read.buffer); err != nil {
		return pending{}, f.fail(ErrNotCounted, "BADSTATE", err)
	}
	return read, nil
}

// readDatabase reads the value's row and the ledger in one statement.
func (f *family) readDatabase(ctx context.Context, e *epoch, id string, reads []pending) (int64, map[uint32]ledgerRow, error) {
	values, on, args := "counterfoil_values", "v.family = f.number AND v.id = ?", []any{id}
	column := "value"
	if f.table != nil {
		values, on, column = quote(f.table.name), "v."+quote(f.table.id)+" = ?", quote(f.table.value)
	}
	var ledgers []string
	for _, read := range reads {
		ledgers = append(ledgers, "(l.partition_no = ? AND l.incarnation = ?)")
		args = append(args, read.partition, read.incarnation)
	}
	namespace, name, _ := strings.Cut(f.path, "/")
	rows, err := f.client.options.Database.QueryContext(ctx, `SELECT f.database_id, COALESCE(v.`+column+`, 0),
		COALESCE(l.partition_no, 0), COALESCE(l.seq, 0), COALESCE(l.nonce, 0), l.position
		FROM counterfoil_families f LEFT JOIN `+values+` v ON `+on+`
		LEFT JOIN counterfoil_ledger l ON l.family = f.number AND (`+strings.Join(ledgers, " OR ")+`)
		WHERE f.namespace = ? AND f.name = ?`, append(args, namespace, name)...)
	if err != nil {
		return 0, nil, f.fail(ErrNotCounted, "database", err)
	}
	defer rows.Close()
	database, value, ledger := "", int64(0), map[uint32]ledgerRow{}
	for rows.Next() {
		var partition uint32
		var own ledgerRow
		if err := rows.Scan(&database, &value, &partition, &own.seq, &own.nonce, &own.position); err != nil {
			return 0, nil, f.fail(ErrNotCounted, "database", err)
		}
		if own.seq > 0 {
			ledger[partition] = own
		}
	}
	if err := rows.Err(); err != nil {
		return 0, nil, f.fail(ErrNotCounted, "database", err)
	}
	return value, ledger, f.checkDatabase(ctx, e, database)
}

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// checkDatabase asks once whether the hits of this Redis go to that database.
func (f *family) checkDatabase(ctx context.Context, e *epoch, database string) error {
	f.mu.Lock()
	isOurs := f.isOurs
	f.mu.Unlock()
	if isOurs {
		return nil
	}
	if database == "" {
		return f.fail(ErrMisconfigured, "UNCONFIGURED", errors.New("the family is not in this database"))
	}
	words, err := f.read(ctx, "family_epoch", f.keys(0, "calls", "calls_before"), f.kind, e.partitions, database, "")
	if err != nil {
		return err
	}
	if words[0] != "OK" {
		f.forget()
		return f.fail(ErrMisconfigured, fmt.Sprint(words[0]), fmt.Errorf("Redis has %v, the database %s", words[1:], database))
	}
	f.mu.Lock()
	f.isOurs = true
	f.mu.Unlock()
	return nil
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
