package counterfoil

import (
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
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
	home       uint32
	isCounting bool         // nothing cancels it
	sent       atomic.Int32 // negative once it is given up
	answered   int32
}

// lost returns the number of arrivals without a reply, which may have been executed, or may still be.
func (r *request) lost() int32 { return r.sent.Load() - r.answered }

var errGivenUp = errors.New("the call was given up")

// giveUp returns how often the call was sent. It is not sent after that, even if go-redis still connects.
func (r *request) giveUp() int32 { return r.sent.Swap(math.MinInt32) }

// MarshalBinary implements encoding.BinaryMarshaler: go-redis calls it whenever it writes the call to a connection. A hook that
// formats commands may call it as well, which does not count.
func (r *request) MarshalBinary() ([]byte, error) {
	var callers [1]uintptr
	runtime.Callers(2, callers[:])
	caller, _ := runtime.CallersFrames(callers[:]).Next()
	if strings.Contains(caller.Function, "/internal/proto.") && r.sent.Add(1) < 0 {
		return nil, errGivenUp
	}
	return nil, nil
}

// String is the argument in logs of commands.
func (r *request) String() string { return "" }

// call sends a call until there is a reply, and until ctx ends at the latest.
func (f *family) call(ctx context.Context, r *request) ([]any, error) {
	if ctx.Err() != nil {
		return nil, f.ended(ctx)
	}
	send, server := scripts[r.script].EvalSha, f.serverOf(r.home)
	var cause error // the last one that tells more than that the time is over
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if e := f.down(server); e != nil {
			return nil, f.unanswered(r, e)
		}
		before := r.sent.Load()
		words, err := f.client.attempt(ctx, r, func() ([]any, error) { return send(ctx, f.client.redis, r.keys, r.args...).Slice() })
		code := codeOf(err)
		if err == context.DeadlineExceeded {
			err = context.Cause(ctx)
		}
		if cause == nil || err != errLimit && !errors.Is(err, context.DeadlineExceeded) {
			cause = explained(err)
		}
		if r.sent.Load() > before && (err == nil || code != "" && (f.client.isOwn || !in(connecting, code))) {
			r.answered++
		}
		isLasting := code != "" && !in(passing, code) && !(f.client.isCluster && in(moved, code))
		switch {
		case err == nil:
			return words, nil
		case code == "NOSCRIPT": // not executed
			send = scripts[r.script].Eval
		case isLasting && r.sent.Load() > 0 && (r.lost() > 0 || !in(refused+misconfigured+moved, code)):
			return nil, f.fail(ErrOutcomeUnknown, code, err)
		case isLasting && in(full, code):
			return nil, f.failTemporarily(code, err)
		case isLasting && in(refused+" ERR ", code):
			return nil, f.fail(ErrNotCounted, code, err)
		case isLasting:
			return nil, f.fail(ErrMisconfigured, code, err)
		case errors.Is(err, redis.ErrClosed):
			return nil, f.unanswered(r, f.failTemporarily(unreachable, err))
		case time.Until(limitOf(ctx)) < f.client.repeatFor || !sleep(ctx, pause):
			if ctx.Err() != nil && !isOver(ctx) {
				return nil, f.unanswered(r, f.ended(ctx))
			}
			e := f.failTemporarily(cmp.Or(codeOf(cause), unreachable), cause)
			if e.Reason == unreachable || in(down, e.Reason) {
				f.begin(server, "Redis", e, func(ctx context.Context) bool { return f.isUp(ctx, r.home) })
			}
			return nil, f.unanswered(r, e)
		}
	}
}

// attempt makes one attempt, which ends with ctx. With ContextTimeoutEnabled go-redis itself ends at the deadline of ctx, but not
// when ctx is canceled.
func (c *Client) attempt(ctx context.Context, r *request, run func() ([]any, error)) ([]any, error) {
	if c.isTimed && r.isCounting {
		return protected(run)
	}
	return within(ctx, run)
}

// unanswered returns the error of a call without a reply: that one if the call was not sent.
func (f *family) unanswered(r *request, e *Error) error {
	if r.giveUp() > r.answered {
		return f.fail(ErrOutcomeUnknown, "no reply", e.cause)
	}
	return e
}

// isUp asks the server of a home once.
func (f *family) isUp(ctx context.Context, home uint32) bool {
	err := scripts["family_epoch"].EvalSha(ctx, f.client.redis, f.epochKeys(home), "", "", "", "").Err()
	code := codeOf(err)
	return err == nil || code != "" && !in(down, code)
}

// The codes of lua/README.md, "Errors and lost replies".
const (
	unreachable   = "UNREACHABLE"                           // there was no reply
	down          = " LOADING BUSY CLUSTERDOWN MASTERDOWN " // what lasts after these is an outage
	resent        = down + " TRYAGAIN READONLY "
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

// reply makes a call that counts nothing.
func (f *family) reply(ctx context.Context, home uint32, script string, keys []string, args ...any) ([]any, error) {
	if e := f.closed(); e != nil {
		return nil, e
	}
	ctx, cancel := limited(ctx, f.client.retryFor())
	defer cancel()
	if f.client.memory != nil {
		return f.client.memory.Reply(f.path, script, keys[len(keys)-1], args), nil
	}
	return f.call(ctx, &request{script: script, home: home, keys: keys, args: args})
}

// readOfHome makes a read that needs the settings at the home of a partition's calls.
func (f *family) readOfHome(ctx context.Context, script string, partition uint32, names, keys []string, arg any) ([]any, error) {
	home := f.home(partition)
	keys = append(f.keys(home, append([]string{"calls"}, names...)...), keys...)
	for attempt := 0; ; attempt++ {
		words, err := f.reply(ctx, home, script, keys, arg, "")
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
