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

// scriptCall is a call of a script.
//
// A call that counts must know how often it was sent, and go-redis sends calls again by itself. So the call is one of its own
// arguments, now_ms, which is always empty: go-redis marshals it each time that it sends the call.
type scriptCall struct {
	family     *family
	script     string
	home       uint32
	keys       []string
	args       []any
	isCounting bool         // it is not canceled, because its outcome matters
	sent       atomic.Int32 // how often it was sent; negative once the call is given up
	answered   int32
}

func (c *scriptCall) addKeys(partition uint32, names ...string) {
	c.keys = append(c.keys, c.family.keys(partition, names...)...)
}

func (c *scriptCall) addArgs(args ...any) { c.args = append(c.args, args...) }

// lost returns how many sends are without a reply. Redis may have executed them, or may still do so.
func (c *scriptCall) lost() int32 { return c.sent.Load() - c.answered }

var errGivenUp = errors.New("the call was given up")

// giveUp returns how often the call was sent. It is not sent after that, even if go-redis is still connecting.
func (c *scriptCall) giveUp() int32 { return c.sent.Swap(math.MinInt32) }

// MarshalBinary implements encoding.BinaryMarshaler: go-redis calls it whenever it writes the call to a connection. A hook that
// formats commands may call it as well, which does not count.
func (c *scriptCall) MarshalBinary() ([]byte, error) {
	var callers [1]uintptr
	runtime.Callers(2, callers[:])
	caller, _ := runtime.CallersFrames(callers[:]).Next()
	if strings.Contains(caller.Function, "/internal/proto.") && c.sent.Add(1) < 0 {
		return nil, errGivenUp
	}
	return nil, nil
}

// String is the argument in logs of commands.
func (c *scriptCall) String() string { return "" }

// execute sends a call until there is a reply, and until ctx ends at the latest. The table in lua/README.md, "Errors and lost
// replies", says after which errors the call is repeated, and which of them prove that nothing was executed.
func (f *family) execute(ctx context.Context, call *scriptCall) ([]any, error) {
	if ctx.Err() != nil {
		return nil, f.ended(ctx)
	}
	send, server := scripts[call.script].EvalSha, f.serverOf(call.home)
	var cause error // the last one that explains more than that the time is over
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if e := f.down(server); e != nil {
			return nil, f.unanswered(call, e)
		}
		before := call.sent.Load()
		words, err := f.client.attempt(ctx, call, func() ([]any, error) {
			return send(ctx, f.client.redis, call.keys, call.args...).Slice()
		})
		code := codeOf(err)
		if err == context.DeadlineExceeded {
			err = context.Cause(ctx)
		}
		if cause == nil || err != errLimit && !errors.Is(err, context.DeadlineExceeded) {
			cause = explained(err)
		}
		if call.sent.Load() > before && (err == nil || code != "" && (f.client.isOwn || !in(connecting, code))) {
			call.answered++
		}
		isLasting := code != "" && !in(passing, code) && !(f.client.isCluster && in(moved, code))
		switch {
		case err == nil:
			return words, nil
		case code == "NOSCRIPT": // not executed
			send = scripts[call.script].Eval
		case isLasting && call.sent.Load() > 0 && (call.lost() > 0 || !in(refused+misconfigured+moved, code)):
			return nil, f.fail(ErrOutcomeUnknown, code, err)
		case isLasting && in(full, code):
			return nil, f.failTemporarily(code, err)
		case isLasting && in(refused+" ERR ", code):
			return nil, f.fail(ErrNotCounted, code, err)
		case isLasting:
			return nil, f.fail(ErrMisconfigured, code, err)
		case errors.Is(err, redis.ErrClosed):
			return nil, f.unanswered(call, f.failTemporarily(unreachable, err))
		case time.Until(limitOf(ctx)) < f.client.repeatFor || !sleep(ctx, pause):
			if ctx.Err() != nil && !isOver(ctx) {
				return nil, f.unanswered(call, f.ended(ctx))
			}
			e := f.failTemporarily(cmp.Or(codeOf(cause), unreachable), cause)
			if e.Reason == unreachable || in(down, e.Reason) {
				f.begin(server, "Redis", e, func(ctx context.Context) bool { return f.isUp(ctx, call.home) })
			}
			return nil, f.unanswered(call, e)
		}
	}
}

// attempt makes one attempt, which ends with ctx. With ContextTimeoutEnabled go-redis itself ends at the deadline of ctx, but not
// when ctx is canceled.
func (c *Client) attempt(ctx context.Context, call *scriptCall, run func() ([]any, error)) ([]any, error) {
	if c.isTimed && call.isCounting {
		return protected(run)
	}
	return within(ctx, run)
}

// unanswered returns the error of a call without a reply. If the call was sent, its outcome is unknown. If not, e is its error.
func (f *family) unanswered(call *scriptCall, e *Error) error {
	if call.giveUp() > call.answered {
		return f.fail(ErrOutcomeUnknown, "no reply", e.cause)
	}
	return e
}

// isUp asks the server of a home once, and returns true if it serves calls.
func (f *family) isUp(ctx context.Context, home uint32) bool {
	err := scripts["family_epoch"].EvalSha(ctx, f.client.redis, f.epochKeys(home), "", "", "", "").Err()
	code := codeOf(err)
	return err == nil || code != "" && !in(down, code)
}

// The codes of errors, which lua/README.md has under "Errors and lost replies".
const (
	unreachable = "UNREACHABLE" // no code of Redis: there was no reply

	down          = " LOADING BUSY CLUSTERDOWN MASTERDOWN " // an outage begins if these last as long as a call
	resent        = down + " TRYAGAIN READONLY "
	passing       = resent + " NOREPLICAS "
	full          = " OOM MISCONF " // a repeat would be refused as well, but a later call may succeed
	refused       = full + " WRONGTYPE BADSTATE "
	misconfigured = " NOAUTH WRONGPASS BADARG BADKEY CROSSSLOT "
	moved         = " MOVED ASK "
	connecting    = resent + " NOAUTH WRONGPASS " // may refuse a new connection, after the call was sent over another one
	ofOne         = " WRONGTYPE BADSTATE BADARG " // may refuse a whole call because of a single entry
)

// in returns true if the code is one of those.
func in(codes, code string) bool { return strings.Contains(codes, " "+code+" ") }

// wrapped finds the code of an error in a script. Redis 6.2 returns it behind a text of its own.
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
	return f.execute(ctx, &scriptCall{family: f, script: script, home: home, keys: keys, args: args})
}

// readOfHome makes a read of a partition, whose script finds the family's settings in a key of the home.
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
		if _, err := f.ask(ctx, home); err != nil { // Redis was emptied, or the settings have changed
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
	rounds     = 5            // of a call that Redis refuses because the family has changed
	noCalendar = "NOCALENDAR" // the list of days or months has ended, because no daemon serves the family

	maxN    = 1 << 53 // the largest number of a call
	maxStep = 1 << 20 // the longest step to a caller's next number
)

// step moves on to the caller's next number, or to another name if the numbers of this one are used up. Two machines that were
// resumed from one snapshot have the same names and numbers. Random steps keep their next numbers apart.
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
