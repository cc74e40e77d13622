package counterfoil

import (
	"cmp"
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

// InTable names the application's table, as table or database.table, that stores the values of a family, with its columns of ids and values. It concerns
// Value with [Options].Database; by default values are in counterfoil_values.
func InTable(name, idColumn, valueColumn string) FamilyOption {
	return func(f *family) { f.table = [3]string{name, idColumn, valueColumn} }
}

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (b *Buffered) Value(ctx context.Context, id string) (int64, error) { return b.value(ctx, id) }

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (c *Cached) Value(ctx context.Context, id string) (int64, error) { return c.value(ctx, id) }

// errAgain reports that a batch landed between the reads of Redis and of the database.
var errAgain = errors.New("the ledger is ahead of Redis")

func (f *family) value(ctx context.Context, id string) (int64, error) {
	if f.client.options.Database == nil {
		return f.askDaemon(ctx, id)
	}
	for start := time.Now(); ; {
		value, err := f.readValue(ctx, id)
		if err != errAgain {
			return value, err
		}
		if time.Since(start) > f.client.options.RetryFor || !sleep(ctx, 5*time.Millisecond) {
			return 0, f.fail(ErrNotCounted, "set back", err)
		}
	}
}

// part is what a partition has pending of an id, with its batch, and what the ledger has of its incarnation.
type part struct {
	incarnation, seq, nonce uint64
	isInFlight              bool
	batch, buffer           string
	ledgerSeq, ledgerNonce  uint64
	position                sql.NullString
}

// readValue reads Redis, and then MySQL; lua/README.md, "Reading the exact value".
func (f *family) readValue(ctx context.Context, id string) (int64, error) {
	e, err := f.askFor(ctx, id)
	if err != nil {
		return 0, err
	}
	first, parts := e.partitionOf(id), make([]part, 1)
	if e.settings.Wide {
		first, parts = 0, make([]part, e.partitions)
	}
	for i := range parts {
		if parts[i], err = f.readPart(ctx, first+uint32(i), id); err != nil {
			return 0, err
		}
	}
	value, database, err := f.query(ctx, id, first, parts)
	if err != nil {
		return 0, f.fail(ErrNotCounted, "database", err)
	}
	if err := f.confirm(ctx, e, database); err != nil {
		return 0, err
	}
	numbers := []string{value}
	for i, p := range parts {
		if p.ledgerSeq == 0 && (p.batch != "0" || p.buffer != "0") { // a crash of Redis may have reverted the incarnation
			again, err := f.readPart(ctx, first+uint32(i), id)
			if err != nil || again.incarnation != p.incarnation {
				return 0, cmp.Or(err, errAgain)
			}
		}
		batch, err := f.unsaved(p, id)
		if err != nil {
			return 0, err
		}
		numbers = append(numbers, batch, p.buffer)
	}
	return f.total(numbers...)
}

func (f *family) readPart(ctx context.Context, partition uint32, id string) (p part, _ error) {
	words, err := f.reply(ctx, "buffered_read", f.keys(partition, "buffer", "batch", "meta"), id)
	if err != nil {
		return p, err
	}
	p.incarnation, _ = strconv.ParseUint(words[1].(string), 16, 64) // "" if there is none
	p.nonce, _ = strconv.ParseUint(words[3].(string), 16, 64)
	p.seq, p.isInFlight = uint64(number(words[2])), number(words[4]) == 1
	p.batch, p.buffer = words[5].(string), words[6].(string)
	return p, nil
}

// query reads the value's row and the ledger in one statement.
func (f *family) query(ctx context.Context, id string, first uint32, parts []part) (value, database string, err error) {
	column, table := "value", "counterfoil_values v ON v.family = f.number AND v.id"
	if f.table[0] != "" {
		column, table = quote(f.table[2]), quote(f.table[0])+" v ON v."+quote(f.table[1])
	}
	namespace, name, _ := strings.Cut(f.path, "/")
	ctx, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
	defer cancel()
	rows, err := f.client.options.Database.QueryContext(ctx, `SELECT f.database_id, COALESCE(v.`+column+`, 0),
		COALESCE(l.partition_no, ?), COALESCE(l.incarnation, 0), COALESCE(l.seq, 0), COALESCE(l.nonce, 0), l.position
		FROM counterfoil_families f LEFT JOIN `+table+` = ?
		LEFT JOIN counterfoil_ledger l ON l.family = f.number AND l.partition_no BETWEEN ? AND ?
		WHERE f.namespace = ? AND f.name = ?`, first, id, first, int(first)+len(parts)-1, namespace, name)
	if err != nil {
		return "", "", err
	}
	defer rows.Close()
	for rows.Next() && err == nil {
		var partition uint32
		var row part
		err = rows.Scan(&database, &value, &partition, &row.incarnation, &row.ledgerSeq, &row.ledgerNonce, &row.position)
		if err == nil && parts[partition-first].incarnation == row.incarnation {
			p := &parts[partition-first]
			p.ledgerSeq, p.ledgerNonce, p.position = row.ledgerSeq, row.ledgerNonce, row.position
		}
	}
	return value, database, cmp.Or(err, rows.Err())
}

// quote quotes a name such as table or database.table.
func quote(name string) string {
	return "`" + strings.NewReplacer("`", "``", ".", "`.`").Replace(name) + "`"
}

// confirm asks Redis, once, whether its hits go to that database.
func (f *family) confirm(ctx context.Context, e *epoch, database string) error {
	switch database {
	case "":
		return f.fail(ErrMisconfigured, "MISMATCH", errors.New("the database does not have the family"))
	case e.database:
		return nil
	}
	asked := *e
	asked.database = database
	f.latest.Store(&asked)
	f.epochs.Delete(uint32(0))
	_, err := f.ask(ctx, 0)
	return err
}

// unsaved returns what the value in MySQL does not contain of the batch's delta.
func (f *family) unsaved(p part, id string) (string, error) {
	isApplied, isSame := !p.position.Valid, p.ledgerSeq == p.seq
	switch {
	case p.ledgerSeq > p.seq:
		return "", errAgain
	case isSame && p.seq != 0 && p.ledgerNonce != p.nonce:
		return "", f.fail(ErrNotCounted, "set back", nil)
	case isSame && (isApplied || p.isInFlight && id <= p.position.String):
		return "0", nil
	case p.isInFlight && (isSame || p.ledgerSeq+1 == p.seq && isApplied):
		return p.batch, nil
	}
	return "", f.fail(ErrNotCounted, "a replica that is behind", nil)
}

// askDaemon returns the exact value of a counter. It asks until there is a reply other than 429 and 503.
func (f *family) askDaemon(ctx context.Context, id string) (int64, error) {
	options := f.client.options
	if err := f.check(id, f.maxID, true); err != nil {
		return 0, err
	}
	if options.Daemon == "" {
		return 0, f.fail(ErrMisconfigured, "no daemon", errors.New("set Options.Daemon (or Database for values, ReadRow for rows)"))
	}
	ctx, cancel := context.WithTimeout(ctx, options.RetryFor)
	defer cancel()
	query := url.Values{"family": {f.path}, "id": {id}}
	address := strings.TrimSuffix(options.Daemon, "/") + "/api/v1/values?" + query.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, f.fail(ErrMisconfigured, "daemon", err)
	}
	if options.Token != "" {
		r.Header.Set("Authorization", "Bearer "+options.Token)
	}
	for {
		value, status, err := fetch(r)
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

// without a proxy, which would receive the token
var daemons = &http.Client{Transport: &http.Transport{IdleConnTimeout: time.Minute}}

func fetch(r *http.Request) (value int64, status int, err error) {
	response, err := daemons.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var reply struct{ Values []struct{ Value int64 } }
	body, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(body, &reply)
	}
	if err == nil && len(reply.Values) == 1 {
		return reply.Values[0].Value, response.StatusCode, nil
	}
	return 0, response.StatusCode, fmt.Errorf("%s: %.300s", response.Status, body)
}
