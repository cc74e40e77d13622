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

// InTable names the application's table, as table or database.table, that stores the values of a family, with its columns of
// ids and values. It concerns Value with [Options].Database; by default values are in counterfoil_values.
func InTable(name, idColumn, valueColumn string) FamilyOption {
	return func(f *family) { f.table.Store(&[3]string{name, idColumn, valueColumn}) }
}

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (b *Buffered) Value(ctx context.Context, id string) (int64, error) { return b.value(ctx, id) }

// Value returns the exact value of the counter: what MySQL has and what is pending in Redis.
func (c *Cached) Value(ctx context.Context, id string) (int64, error) { return c.value(ctx, id) }

// errAgain reports that a batch landed between the reads of Redis and of the database, or that Redis must be asked again.
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

// part is what a partition has pending of an id, with its batch.
type part struct {
	incarnation, nonce uint64
	seq                int64
	isInFlight         bool
	batch, buffer      string
}

// ledger is the last batch of an incarnation in MySQL, and the last id of it that was added, if not all were.
type ledger struct {
	nonce    uint64
	seq      int64
	position sql.NullString
}

// readValue reads Redis, and then MySQL; lua/README.md, "Reading the exact value".
func (f *family) readValue(ctx context.Context, id string) (int64, error) {
	e, err := f.askFor(ctx, id)
	if err != nil {
		return 0, err
	}
	if e.Table != nil && f.table.Load() == nil {
		return 0, f.fail(ErrMisconfigured, "no table", fmt.Errorf("pass InTable: the daemon stores the values in %s", e.Table))
	}
	first, parts := e.partitionOf(id), make([]part, 1)
	if e.Wide {
		first, parts = 0, make([]part, e.partitions)
	}
	for i := range parts {
		if parts[i], err = f.readPart(ctx, first+uint32(i), id); err != nil {
			return 0, err
		}
	}
	value, database, ledgers, err := f.query(ctx, id, first, len(parts))
	switch {
	case err != nil:
		return 0, f.fail(ErrNotCounted, "database", err)
	case database == "":
		return 0, f.fail(ErrMisconfigured, "MISMATCH", errors.New("the database does not have the family"))
	case database != e.database: // Redis confirms, once for each epoch, that its hits go there
		_, err := f.askRedis(ctx, 0, database)
		return 0, cmp.Or(err, errAgain)
	}
	numbers := []string{value}
	for i, p := range parts {
		l := ledgers[p.incarnation]
		if l.seq == 0 && (p.batch != "0" || p.buffer != "0") { // a crash of Redis may have reverted the incarnation
			again, err := f.readPart(ctx, first+uint32(i), id)
			if err != nil || again.incarnation != p.incarnation {
				return 0, cmp.Or(err, errAgain)
			}
		}
		isApplied, isSame := !l.position.Valid, l.seq == p.seq
		switch {
		case l.seq > p.seq:
			return 0, errAgain
		case isSame && p.seq != 0 && l.nonce != p.nonce:
			return 0, f.fail(ErrNotCounted, "set back", nil)
		case isSame && (isApplied || p.isInFlight && id <= l.position.String):
			numbers = append(numbers, p.buffer)
		case p.isInFlight && (isSame || l.seq+1 == p.seq && isApplied):
			numbers = append(numbers, p.batch, p.buffer)
		default:
			return 0, f.fail(ErrNotCounted, "a replica that is behind", nil)
		}
	}
	return f.total(numbers...)
}

func (f *family) readPart(ctx context.Context, partition uint32, id string) (part, error) {
	words, err := f.reply(ctx, "buffered_read", f.keys(partition, "buffer", "batch", "meta"), id)
	if err != nil {
		return part{}, err
	}
	text := func(at int) string { return words[at].(string) }
	incarnation, _ := strconv.ParseUint(text(1), 16, 64) // "" if there is none
	nonce, _ := strconv.ParseUint(text(3), 16, 64)
	return part{incarnation, nonce, number(words[2]), number(words[4]) == 1, text(5), text(6)}, nil
}

// query reads the value's row and the ledgers, by incarnation, in one statement. Without the family database is "".
func (f *family) query(ctx context.Context, id string, first uint32, partitions int) (
	value, database string, ledgers map[uint64]ledger, err error) {
	column, table := "value", "counterfoil_values v ON v.family = f.number AND v.id"
	if own := f.table.Load(); own != nil {
		column, table = quote(own[2]), quote(own[0])+" v ON v."+quote(own[1])
	}
	namespace, name, _ := strings.Cut(f.path, "/")
	ctx, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
	defer cancel()
	rows, err := f.client.options.Database.QueryContext(ctx, `SELECT COALESCE(v.`+column+`, 0), f.database_id,
		COALESCE(l.incarnation, 0), COALESCE(l.nonce, 0), COALESCE(l.seq, 0), l.position
		FROM counterfoil_families f LEFT JOIN `+table+` = ?
		LEFT JOIN counterfoil_ledger l ON l.family = f.number AND l.partition_no BETWEEN ? AND ?
		WHERE f.namespace = ? AND f.name = ?`, id, first, int(first)+partitions-1, namespace, name)
	if err != nil {
		return "", "", nil, err
	}
	defer rows.Close()
	for ledgers = map[uint64]ledger{}; rows.Next() && err == nil; {
		var incarnation uint64
		var l ledger
		err = rows.Scan(&value, &database, &incarnation, &l.nonce, &l.seq, &l.position)
		ledgers[incarnation] = l
	}
	return value, database, ledgers, cmp.Or(err, rows.Err())
}

// quote quotes a name such as table or database.table.
func quote(name string) string {
	return "`" + strings.NewReplacer("`", "``", ".", "`.`").Replace(name) + "`"
}

// without a proxy, which would receive the token
var daemons = &http.Client{Transport: &http.Transport{IdleConnTimeout: time.Minute}}

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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, f.fail(ErrMisconfigured, "daemon", err)
	}
	if options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+options.Token)
	}
	for {
		var body []byte
		response, err := daemons.Do(request)
		if err == nil {
			body, _ = io.ReadAll(response.Body) // a part of it is not JSON
			response.Body.Close()
			err = fmt.Errorf("%s: %.300s", response.Status, body)
		}
		var reply struct{ Values []struct{ Value int64 } }
		switch {
		case json.Unmarshal(body, &reply) == nil && len(reply.Values) == 1:
			return reply.Values[0].Value, nil
		case response != nil && response.StatusCode/100 == 4 && response.StatusCode != http.StatusTooManyRequests:
			return 0, f.fail(ErrMisconfigured, fmt.Sprint("daemon: ", response.StatusCode), err)
		case !sleep(ctx, 50*time.Millisecond):
			return 0, f.fail(ErrNotCounted, "daemon", err)
		}
	}
}
