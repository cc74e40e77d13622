package counterfoil

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:generate sh -c "cp ../../lua/v1/*.lua lua/"

//go:embed lua/*.lua
var bundle embed.FS

type script struct{ source, sha1 string }

var scripts = readScripts()

func readScripts() map[string]script {
	all := map[string]script{}
	files, _ := bundle.ReadDir("lua") // embedded: it cannot fail
	for _, file := range files {
		source, _ := bundle.ReadFile("lua/" + file.Name())
		all[strings.TrimSuffix(file.Name(), ".lua")] = script{string(source), fmt.Sprintf("%x", sha1.Sum(source))}
	}
	return all
}

// request is a call of a script.
type request struct {
	script string
	keys   []string
	args   []any
}

// sends counts how often a call was written to a connection, since go-redis also repeats calls. It is an empty argument of a
// counting call, and not part of a call that only reads.
type sends struct{ written, lost int }

// MarshalBinary implements encoding.BinaryMarshaler: go-redis calls it whenever it writes the call.
func (s *sends) MarshalBinary() ([]byte, error) {
	s.written++
	return nil, nil
}

// The codes of lua/README.md, "Errors".
const (
	passing       = " LOADING BUSY CLUSTERDOWN MASTERDOWN TRYAGAIN READONLY "
	refused       = " OOM MISCONF NOREPLICAS WRONGTYPE BADSTATE "
	misconfigured = " NOAUTH WRONGPASS BADARG BADKEY CROSSSLOT "
	moved         = " MOVED ASK "
)

func in(codes, code string) bool { return strings.Contains(codes, " "+code+" ") }

// wrapped finds the code of a command's error, which Redis 6.2 puts behind a text of its own.
var wrapped = regexp.MustCompile(`^ERR Error running script.*?: -?([A-Z]{3,})\b`)

// codeOf returns the first word of a reply that is an error, and "" for all other errors.
func codeOf(err error) string {
	var reply redis.Error
	if err == nil || !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return ""
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	if inner := wrapped.FindStringSubmatch(reply.Error()); inner != nil {
		code = inner[1]
	}
	if strings.Contains(reply.Error(), "max number of clients") {
		code = "BUSY"
	}
	return code
}

// call sends a call until there is a reply, and until ctx ends at the latest. Then sent.lost is the number of earlier
// arrivals that may have been executed, or may still be.
func (f *family) call(ctx context.Context, r *request, sent *sends) ([]any, error) {
	command, text := f.client.redis.EvalSha, scripts[r.script].sha1
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		before := sent.written
		words, err := command(ctx, text, r.keys, r.args...).Slice()
		code, written := codeOf(err), sent.written-before
		if written > 0 && (err == nil || code != "") {
			written-- // the one that the reply belongs to
		}
		sent.lost += written
		isLasting := code != "" && !in(passing, code) && !(in(moved, code) && f.client.isCluster)
		switch {
		case err == nil && len(words) > 0:
			return words, nil
		case code == "NOSCRIPT": // not executed
			command, text = f.client.redis.Eval, scripts[r.script].source
		case isLasting && (sent.lost > 0 || !in(refused+misconfigured+moved, code)):
			return nil, f.fail(ErrOutcomeUnknown, code, err)
		case isLasting && in(refused, code):
			return nil, f.fail(ErrNotCounted, code, err)
		case isLasting:
			return nil, f.fail(ErrMisconfigured, code, err)
		case errors.Is(err, redis.ErrClosed) || !sleep(ctx, pause):
			if sent.lost > 0 {
				return nil, f.fail(ErrOutcomeUnknown, "no reply", err)
			}
			return nil, f.failTemporarily(cmp.Or(code, "unreachable"), err)
		}
	}
}

// read makes a call that counts nothing, again if the server's clock is another one.
func (f *family) read(ctx context.Context, encode func(*epoch) *request) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
	defer cancel()
	for {
		e, err := f.ask(ctx, 0)
		if err != nil {
			return nil, err
		}
		words, err := f.call(ctx, encode(e), new(sends))
		if err != nil || words[0] != "OUTSIDE" || ctx.Err() != nil {
			return words, uncounted(err)
		}
		f.client.setClock(words)
	}
}

// uncounted is the error of a call that counts nothing.
func uncounted(err error) error {
	if e, isOurs := err.(*Error); isOurs && e.Kind == ErrOutcomeUnknown {
		e.Kind = ErrNotCounted
		if e.Reason == "NOPERM" {
			e.Kind = ErrMisconfigured
		}
	}
	return err
}

// sleep returns false if ctx ends before the pause is over.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// now returns the server's time, as far as it is known, in Unix milliseconds.
func (c *Client) now() int64 { return time.Now().UnixMilli() + c.skew.Load() }

// setClock learns the server's time from {"OUTSIDE", now_ms}.
func (c *Client) setClock(words []any) { c.skew.Store(numberAt(words, 1) - time.Now().UnixMilli()) }

func newCaller() string {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // it ends the process if it fails
	return fmt.Sprintf("%x", random)
}

func (f *family) fail(kind error, reason string, cause error) *Error {
	return &Error{Kind: kind, Reason: reason, Family: f.path, cause: cause}
}

func (f *family) failTemporarily(reason string, cause error) *Error {
	return &Error{Kind: ErrNotCounted, Reason: reason, Family: f.path, cause: cause, isTemporary: true}
}
