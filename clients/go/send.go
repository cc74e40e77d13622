package counterfoil

import (
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:generate sh -c "cp ../../lua/v1/*.lua lua/"

//go:embed lua/*.lua
var bundle embed.FS

var scripts = readScripts()

func readScripts() map[string]*redis.Script {
	all := map[string]*redis.Script{}
	files, _ := bundle.ReadDir("lua") // embedded: it cannot fail
	for _, file := range files {
		source, _ := bundle.ReadFile("lua/" + file.Name())
		all[strings.TrimSuffix(file.Name(), ".lua")] = redis.NewScript(string(source))
	}
	return all
}

// request is a call of a script. If it counts it is an argument of itself, which is empty, to know how often it was sent:
// go-redis repeats calls as well, and marshals their arguments each time.
type request struct {
	script     string
	keys       []string
	args       []any
	sent, lost int // lost: arrivals without a reply, which may have been executed, or may still be
}

// MarshalBinary implements encoding.BinaryMarshaler: go-redis calls it whenever it writes the call to a connection. A hook that
// formats commands may call it as well, which does not count.
func (r *request) MarshalBinary() ([]byte, error) {
	var callers [1]uintptr
	runtime.Callers(2, callers[:])
	caller, _ := runtime.CallersFrames(callers[:]).Next()
	if strings.Contains(caller.Function, "/internal/proto.") {
		r.sent++
	}
	return nil, nil
}

// String is the argument in logs of commands.
func (r *request) String() string { return "" }

// call sends a call until there is a reply, and until ctx ends at the latest.
func (f *family) call(ctx context.Context, r *request) ([]any, error) {
	send := scripts[r.script].EvalSha
	var cause error // the last one that tells more than that the time is over
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		before := r.sent
		words, err := protected(func() ([]any, error) { return send(ctx, f.client.redis, r.keys, r.args...).Slice() })
		code := codeOf(err)
		if cause == nil || !errors.Is(err, context.DeadlineExceeded) {
			cause = explained(err)
		}
		r.lost += r.sent - before
		if r.sent > before && (err == nil || code != "" && (f.client.isOwn || !in(connecting, code))) {
			r.lost-- // the one that the reply belongs to
		}
		isLasting := code != "" && !in(passing, code) && !(f.client.isCluster && in(moved, code))
		switch {
		case err == nil:
			return words, nil
		case code == "NOSCRIPT": // not executed
			send = scripts[r.script].Eval
		case isLasting && r.sent > 0 && (r.lost > 0 || !in(refused+misconfigured+moved, code)):
			return nil, f.fail(ErrOutcomeUnknown, code, err)
		case isLasting && in(full, code):
			return nil, f.failTemporarily(code, err)
		case isLasting && in(refused+" ERR ", code):
			return nil, f.fail(ErrNotCounted, code, err)
		case isLasting:
			return nil, f.fail(ErrMisconfigured, code, err)
		case errors.Is(err, redis.ErrClosed) || !sleep(ctx, pause):
			if r.lost > 0 {
				return nil, f.fail(ErrOutcomeUnknown, "no reply", cause)
			}
			return nil, f.failTemporarily(cmp.Or(code, "unreachable"), cause)
		}
	}
}

// protected returns a panic as an error, because others wait for the call, and may have made it in a goroutine of their own.
func protected[T any](run func() (T, error)) (result T, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("panic: %v", problem)
		}
	}()
	return run()
}

// The codes of lua/README.md, "Errors and lost replies".
const (
	resent        = " LOADING BUSY CLUSTERDOWN MASTERDOWN TRYAGAIN READONLY "
	passing       = resent + " NOREPLICAS "
	full          = " OOM MISCONF " // refuse a repeat as well, and perhaps no later call
	refused       = full + " WRONGTYPE BADSTATE "
	misconfigured = " NOAUTH WRONGPASS BADARG BADKEY CROSSSLOT "
	moved         = " MOVED ASK "
	connecting    = resent + " NOAUTH WRONGPASS " // may refuse a new connection after the call was sent over another one
	ofOne         = " WRONGTYPE BADSTATE BADARG " // may refuse a call because of a single item
)

func in(codes, code string) bool { return strings.Contains(codes, " "+code+" ") }

// wrapped finds the code of a command's error, which Redis 6.2 puts behind a text of its own.
var wrapped = regexp.MustCompile(`^ERR Error running script.*?: -?([A-Z]{3,})\b`)

// codeOf returns the first word of a reply that is an error, and "" for all other errors.
func codeOf(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	if strings.Contains(reply.Error(), "max number of clients") {
		return "BUSY"
	}
	if inner := wrapped.FindStringSubmatch(reply.Error()); inner != nil {
		return inner[1]
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	return code
}

// reply makes a call that counts nothing. It returns when ctx ends, even if go-redis does not.
func (f *family) reply(ctx context.Context, script string, keys []string, args ...any) ([]any, error) {
	limited, cancel := context.WithTimeout(ctx, f.client.options.RetryFor)
	defer cancel()
	var words []any
	var err error
	if !until(ctx, func() { words, err = f.call(limited, &request{script: script, keys: keys, args: args}) }) {
		return nil, f.fail(ErrNotCounted, "canceled", ctx.Err())
	}
	return words, err
}

// until runs a function, and returns false if ctx ends before: the function then continues.
func until(ctx context.Context, run func()) bool {
	if ctx.Done() == nil {
		run()
		return true
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep returns false if ctx ends before the pause is over.
func sleep(ctx context.Context, pause time.Duration) bool {
	return until(ctx, func() { time.Sleep(pause) })
}

// readOfHome makes a read that needs the settings at the home of a partition's calls.
func (f *family) readOfHome(ctx context.Context, script string, partition uint32, names, keys []string, arg any) ([]any, error) {
	home := f.home(partition)
	keys = append(f.keys(home, append([]string{"calls"}, names...)...), keys...)
	for attempt := 0; ; attempt++ {
		words, err := f.reply(ctx, script, keys, arg, "")
		if err != nil || words[0] == "OK" {
			return words, err
		}
		if words[0] != "MISMATCH" || attempt == rounds || !sleep(ctx, 100*time.Millisecond) {
			e := f.fail(ErrNotCounted, fmt.Sprint(words[0]), fmt.Errorf("%s %v", script, arg))
			e.isTemporary = words[0] == noCalendar
			return nil, e
		}
		if _, err := f.askRedis(ctx, home); err != nil { // Redis was emptied, or the settings have changed
			return nil, err
		}
	}
}

// number reads a number of a reply, which is a string beyond 2^53.
func number(word any) int64 {
	n, _ := strconv.ParseInt(fmt.Sprint(word), 10, 64) // the scripts return numbers
	return n
}

const (
	rounds     = 5
	noCalendar = "NOCALENDAR" // the list of days or months has ended, because no daemon serves the family

	maxN    = 1 << 53 // the largest number of a call
	maxStep = 1 << 20 // the longest step to a caller's next number
)

// step moves on to the number of the caller's next call, or to another name. Numbers grow by random steps, which differ in
// two machines that were resumed from one snapshot.
func (c *caller) step() {
	if c.name == "" || c.n > maxN-maxStep {
		*c = caller{name: newCaller()}
	}
	c.n += 1 + int64(binary.BigEndian.Uint32(random(4))%maxStep)
}

// newCaller returns a random name.
func newCaller() string { return fmt.Sprintf("%x", random(8)) }

// random returns bytes of the system's generator, because a copy of this process repeats what math/rand returns.
func random(length int) []byte {
	bytes := make([]byte, length)
	if _, err := rand.Read(bytes); err != nil {
		panic(err) // as Go 1.24 and later do
	}
	return bytes
}
