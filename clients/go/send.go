package counterfoil

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
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
	files, err := bundle.ReadDir("lua")
	if err != nil {
		panic(err)
	}
	all := make(map[string]script, len(files))
	for _, file := range files {
		source, err := bundle.ReadFile("lua/" + file.Name())
		if err != nil {
			panic(err)
		}
		sum := sha1.Sum(source)
		all[strings.TrimSuffix(file.Name(), ".lua")] = script{string(source), hex.EncodeToString(sum[:])}
	}
	return all
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

// wrapped finds the code of a command's error, which Redis 6.2 puts behind a text of its own.
var wrapped = regexp.MustCompile(`^ERR Error running script.*?: -?([A-Z]{3,})\b`)

// codeOf returns the first word of a reply that is an error, and "" for all other errors.
func codeOf(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return ""
	}
	text := reply.Error()
	if strings.Contains(text, "max number of clients") {
		return "BUSY"
	}
	if inner := wrapped.FindStringSubmatch(text); inner != nil {
		return inner[1]
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}

func in(codes, code string) bool { return strings.Contains(codes, " "+code+" ") }

// call sends a call until there is a reply, and until ctx ends at the latest. Then sent.lost is the number of earlier
// arrivals that may have been executed, or may still be.
func (f *family) call(ctx context.Context, name string, keys []string, args []any, sent *sends) ([]any, error) {
	s := scripts[name]
	command, text := f.client.redis.EvalSha, s.sha1
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		before := sent.written
		words, err := command(ctx, text, keys, args...).Slice()
		code, written := codeOf(err), sent.written-before
		if written > 0 && (err == nil || code != "") {
			written-- // the one that the reply belongs to
		}
		sent.lost += written
		switch {
		case err == nil && len(words) > 0:
			return words, nil
		case code == "NOSCRIPT": // not executed
			command, text = f.client.redis.Eval, s.source
			continue
		case errors.Is(err, redis.ErrClosed):
			return nil, f.unanswered("closed", err, sent)
		case code == "" || in(passing, code) || in(moved, code) && f.client.isCluster:
		case sent.lost > 0 || !in(refused+misconfigured+moved, code):
			return nil, f.fail(ErrOutcomeUnknown, code, err)
		case in(refused, code):
			return nil, f.fail(ErrNotCounted, code, err)
		default:
			return nil, f.fail(ErrMisconfigured, code, err)
		}
		if !sleep(ctx, pause) {
			return nil, f.unanswered(code, err, sent)
		}
	}
}

// unanswered is the error of a call whose time is over.
func (f *family) unanswered(code string, cause error, sent *sends) error {
	if sent.lost > 0 {
		return f.fail(ErrOutcomeUnknown, "no reply", cause)
	}
	if code == "" {
		code = "unreachable"
	}
	err := f.fail(ErrNotCounted, code, cause)
	err.temporary = true
	return err
}

// read is call for a script that only reads, or that is safe to repeat: all its failures count nothing.
func (f *family) read(ctx context.Context, name string, keys []string, args ...any) ([]any, error) {
	words, err := f.call(ctx, name, keys, args, new(sends))
	var e *Error
	if errors.As(err, &e) && e.Kind == ErrOutcomeUnknown {
		if e.Kind = ErrNotCounted; e.Reason == "NOPERM" {
			e.Kind = ErrMisconfigured
		}
	}
	return words, err
}

// sleep returns false if ctx ends before the pause is over.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
