package counterfoil

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// InTable names the application's table that stores the values of a family, with its columns of ids and values. It concerns
// Value with [Options].Database; by default values are in counterfoil_values.
func InTable(name, idColumn, valueColumn string) FamilyOption {
	return func(f *family) { f.table = [3]string{name, idColumn, valueColumn} }
}

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (b *Buffered) Value(ctx context.Context, id string) (int64, error) { return b.value(ctx, id) }

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (c *Cached) Value(ctx context.Context, id string) (int64, error) { return c.value(ctx, id) }

func (f *family) value(ctx context.Context, id string) (int64, error) {
	if err := f.check(id, 255, true); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
	defer cancel()
	if f.client.options.Database == nil {
		return f.askDaemon(ctx, id)
	}
	for {
		parts, err := f.readValue(ctx, id)
		if err != nil {
			return 0, err
		}
		if parts != nil {
			return f.sum(parts...)
		}
		if !sleep(ctx, 5*time.Millisecond) { // the ledger stays ahead of Redis
			return 0, f.fail(ErrNotCounted, "set back", ctx.Err())
		}
	}
}

// pending is what a partition has pending of an id, and its batch.
type pending struct {
	partition               uint32
	incarnation, nonce, seq uint64
	isInFlight              bool
	batch, buffer           string
}

// ledgerRow is what the ledger has of an incarnation of a partition.
type ledgerRow struct {
	seq, nonce uint64
	position   sql.NullString
}

// readValue reads Redis, and then MySQL. It returns the parts of the sum, or nil if a batch landed in between.
func (f *family) readValue(ctx context.Context, id string) ([]string, error) {
	e, err := f.ask(ctx, 0)
	if err != nil {
		return nil, err
	}
	first, end := e.partitionOf(id), e.partitionOf(id)+1
	if e.settings.Wide {
		first, end = 0, e.partitions
	}
	var reads []pending
	for partition := first; partition < end; partition++ {
		read, err := f.readPending(ctx, partition, id)
		if err != nil {
			return nil, err
		}
		reads = append(reads, read)
	}
	value, ledger, err := f.readDatabase(ctx, e, id, reads)
	if err != nil {
		return nil, err
	}
	parts := []string{value}
	for _, read := range reads {
		own := ledger[read.partition]
		isStale := own.seq > read.seq
		if own.seq == 0 && (read.batch != "0" || read.buffer != "0") { // a crash of Redis may have reverted the incarnation
			again, err := f.readPending(ctx, read.partition, id)
			if err != nil {
				return nil, err
			}
			isStale = again.incarnation != read.incarnation
		}
		if isStale {
			return nil, nil
		}
		hasBatch, err := f.compare(own, read, id)
		if err != nil {
			return nil, err
		}
		if parts = append(parts, read.buffer); hasBatch {
			parts = append(parts, read.batch)
		}
	}
	return parts, nil
}

// compare returns whether the batch's delta is to be added; lua/README.md, "Reading the exact value".
func (f *family) compare(own ledgerRow, read pending, id string) (bool, error) {
	isApplied := !own.position.Valid
	switch {
	case own.seq == read.seq && own.seq != 0 && own.nonce != read.nonce:
		return false, f.fail(ErrNotCounted, "set back", nil)
	case own.seq == read.seq && isApplied:
		return false, nil
	case own.seq == read.seq && read.isInFlight:
		return id > own.position.String, nil
	case own.seq+1 == read.seq && isApplied && read.isInFlight:
		return true, nil
	}
	return false, f.fail(ErrNotCounted, "a replica that is behind", nil)
}

func (f *family) readPending(ctx context.Context, partition uint32, id string) (pending, error) {
	words, err := f.read(ctx, func(*epoch) *request {
		return &request{"buffered_read", f.keys(partition, "buffer", "batch", "meta"), []any{id}}
	})
	read := pending{partition: partition, isInFlight: textAt(words, 4) == "1", batch: textAt(words, 5), buffer: textAt(words, 6)}
	read.incarnation, _ = strconv.ParseUint(textAt(words, 1), 16, 64) // "" if there is none
	read.seq, _ = strconv.ParseUint(textAt(words, 2), 10, 64)
	read.nonce, _ = strconv.ParseUint(textAt(words, 3), 16, 64)
	return read, err
}

// readDatabase reads the value's row and the ledger in one statement.
func (f *family) readDatabase(ctx context.Context, e *epoch, id string, reads []pending) (value string, _ map[uint32]ledgerRow, _ error) {
	join, args, conditions := "counterfoil_values v ON v.family = f.number AND v.id", []any{id}, []string{}
	column := "value"
	if f.table[0] != "" {
		join, column = quote(f.table[0])+" v ON v."+quote(f.table[1]), quote(f.table[2])
	}
	for _, read := range reads {
		conditions = append(conditions, "l.partition_no = ? AND l.incarnation = ?")
		args = append(args, read.partition, read.incarnation)
	}
	namespace, name, _ := strings.Cut(f.path, "/")
	rows, err := f.client.options.Database.QueryContext(ctx, `SELECT f.database_id, COALESCE(v.`+column+`, 0),
		COALESCE(l.partition_no, 0), COALESCE(l.seq, 0), COALESCE(l.nonce, 0), l.position
		FROM counterfoil_families f LEFT JOIN `+join+` = ?
		LEFT JOIN counterfoil_ledger l ON l.family = f.number AND (`+strings.Join(conditions, " OR ")+`)
		WHERE f.namespace = ? AND f.name = ?`, append(args, namespace, name)...)
	if err != nil {
		return "", nil, f.fail(ErrNotCounted, "database", err)
	}
	defer rows.Close()
	ledger, database := map[uint32]ledgerRow{}, ""
	for rows.Next() && err == nil {
		var partition uint32
		var own ledgerRow
		err = rows.Scan(&database, &value, &partition, &own.seq, &own.nonce, &own.position)
		if own.seq > 0 {
			ledger[partition] = own
		}
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		return "", nil, f.fail(ErrNotCounted, "database", err)
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
	words, err := f.read(ctx, func(*epoch) *request {
		return &request{"family_epoch", f.keys(0, "calls", "calls_before"), []any{f.kind.name, e.partitions, database, ""}}
	})
	if err == nil && (words[0] != "OK" || database == "") {
		f.forget()
		err = f.fail(ErrMisconfigured, "MISMATCH", fmt.Errorf("Redis has %v, and the database is %q", words, database))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isOurs = err == nil
	return err
}

// askDaemon returns the exact value of a counter. It asks until there is a reply other than 429 and 503.
func (f *family) askDaemon(ctx context.Context, id string) (int64, error) {
	if f.client.options.Daemon == "" {
		return 0, f.fail(ErrMisconfigured, "no daemon", errors.New("set Options.Daemon (or Database for values, ReadRow for rows)"))
	}
	query := url.Values{"family": {f.path}, "id": {id}}
	address := strings.TrimSuffix(f.client.options.Daemon, "/") + "/api/v1/values?" + query.Encode()
	for {
		value, status, err := f.get(ctx, address)
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

func (f *family) get(ctx context.Context, address string) (value int64, status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, http.StatusBadRequest, err
	}
	if f.client.options.Token != "" {
		r.Header.Set("Authorization", "Bearer "+f.client.options.Token)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var reply struct{ Values []struct{ Value int64 } }
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(body, &reply)
	}
	if err == nil && response.StatusCode == http.StatusOK && len(reply.Values) == 1 {
		return reply.Values[0].Value, http.StatusOK, nil
	}
	return 0, response.StatusCode, fmt.Errorf("%s: %.300s", response.Status, body)
}
