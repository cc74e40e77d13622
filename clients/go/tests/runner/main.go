// Command runner makes the calls of a scenario: JSON lines on stdin, and a JSON line on stdout for each.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/counterfoil/counterfoil-go/counterfoiltest"
	"github.com/redis/go-redis/v9"
)

type object = map[string]any

// opening is the first line, under the key open.
type opening struct {
	Library, Socket, Namespace string
	Families                   map[string]counterfoiltest.Family
	Nodes                      []string
	Own                        bool
	Timeout                    float64
	Options                    struct {
		RetryFor   float64 `json:"retry_for"`
		LaterEvery float64 `json:"later_every"`
		Daemon     string
	}
}

// call is any other line. Its integers are json.Number.
type call struct {
	Kind, Family, Call, As string
	ID                     any
	Args                   []any
}

var ctx, client = context.Background(), (*counterfoil.Client)(nil)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	lines := json.NewDecoder(os.Stdin)
	lines.UseNumber()
	var first map[string]opening
	must(0, lines.Decode(&first))
	client = must(first["open"].connect())
	reply(object{"ready": true})
	last := map[string]chan bool{} // by thread, whose calls are made one after the other
	for lines.More() {
		var c call
		must(0, lines.Decode(&c))
		before, done := last[c.As], make(chan bool)
		last[c.As] = done
		go func() {
			defer close(done)
			if before != nil {
				<-before
			}
			reply(c.answer())
		}()
	}
	for _, done := range last {
		<-done
	}
	_ = client.Close(ctx)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (o opening) connect() (*counterfoil.Client, error) {
	if o.Library == "testing" {
		return counterfoiltest.New(o.Namespace, o.Families)
	}
	given := o.Options
	options := counterfoil.Options{Daemons: []string{given.Daemon}, RetryFor: seconds(given.RetryFor), LaterEvery: seconds(given.LaterEvery)}
	addresses, timeout := []string{o.Socket}, seconds(o.Timeout)
	if o.Own {
		return counterfoil.Connect("unix://"+o.Socket+"?read_timeout="+timeout.String(), o.Namespace, options)
	}
	if o.Nodes != nil {
		addresses = o.Nodes
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addresses, ReadTimeout: timeout})
	return counterfoil.New(client, o.Namespace, options)
}

// reply prints a line with a single write.
func reply(line object) { must(0, json.NewEncoder(os.Stdout).Encode(line)) }

// answer makes the call, which panics with its error.
func (c call) answer() (line object) {
	defer func() {
		if problem := recover(); problem != nil {
			line = failure(problem)
		}
		line["id"] = c.ID
	}()
	if strings.HasPrefix(c.As, "fork") {
		return object{"skipped": "a Go process cannot fork"}
	}
	return object{"returns": calls[c.Kind+"."+c.Call](c)}
}

func failure(problem any) object {
	e := problem.(*counterfoil.Error)
	return object{"error": strings.ReplaceAll(e.Kind.Error(), " ", "_"), "reason": e.Reason, "text": e.Error()}
}

func (c call) text(at int) string {
	if at >= len(c.Args) || c.Args[at] == nil {
		return ""
	}
	return fmt.Sprint(c.Args[at])
}

func (c call) delta(at int) int64 { return must(json.Number(cmp.Or(c.text(at), "1")).Int64()) }

func pending(p counterfoil.Pending) any {
	if !p.Known {
		return nil
	}
	return p.Value
}

func none(err error) any { return must[any](nil, err) }

func (c call) buffered() *counterfoil.Buffered { return must(client.Buffered(c.Family)) }
func (c call) cached() *counterfoil.Cached     { return must(client.Cached(c.Family)) }
func (c call) series() *counterfoil.Series     { return must(client.Series(c.Family)) }
func (c call) activity() *counterfoil.Activity { return must(client.Activity(c.Family)) }
func (c call) visitors() *counterfoil.Visitors { return must(client.Visitors(c.Family)) }

var calls = map[string]func(c call) any{
	"buffered.add":           func(c call) any { return pending(must(c.buffered().Add(ctx, c.text(0), c.delta(1)))) },
	"buffered.add_many":      call.addMany,
	"buffered.add_once":      func(c call) any { return must(c.buffered().AddOnce(ctx, c.text(0), c.text(1), c.delta(2), c.text(3))) },
	"cached.incr_once":       func(c call) any { return must(c.cached().IncrOnce(ctx, c.text(0), c.text(1), c.delta(2), c.text(3))) },
	"cached.request_epoch":   func(c call) any { return must(c.cached().RequestEpoch(ctx, c.text(0), c.text(1))) },
	"buffered.request_epoch": func(c call) any { return must(c.buffered().RequestEpoch(ctx, c.text(0), c.text(1))) },
	"buffered.later":         func(c call) any { return none(c.buffered().Later(c.text(0), c.delta(1))) },
	"buffered.flush":         func(c call) any { return none(c.buffered().Flush(ctx)) },
	"buffered.value":         func(c call) any { return must(c.buffered().Value(ctx, c.text(0))) },
	"cached.incr":            func(c call) any { return must(c.cached().Incr(ctx, c.text(0), c.delta(1))) },
	"cached.set":             func(c call) any { return must(c.cached().Set(ctx, c.text(0), c.delta(1))) },
	"cached.get":             func(c call) any { return must(c.cached().Get(ctx, c.text(0))) },
	"cached.value":           func(c call) any { return must(c.cached().Value(ctx, c.text(0))) },
	"series.add":             call.hit,
	"series.later":           call.hitLater,
	"series.flush":           func(c call) any { return none(c.series().Flush(ctx)) },
	"series.get":             call.window,
	"activity.touch":         func(c call) any { return none(c.activity().Touch(ctx, c.text(0), c.text(1))) },
	"activity.later":         func(c call) any { return none(c.activity().Later(c.text(0), c.text(1))) },
	"activity.flush":         func(c call) any { return none(c.activity().Flush(ctx)) },
	"activity.now":           call.now,
	"visitors.first_visit":   func(c call) any { return must(c.visitors().FirstVisit(ctx, c.text(0), c.text(1), c.text(2))) },
	"visitors.later":         func(c call) any { return none(c.visitors().Later(c.text(0), c.text(1), c.text(2))) },
	"visitors.flush":         func(c call) any { return none(c.visitors().Flush(ctx)) },
	"visitors.value":         func(c call) any { return must(c.visitors().Value(ctx, c.text(0), c.text(1))) },
	"buffered.values":        func(c call) any { return must(c.buffered().Values(ctx, c.texts())) },
	"cached.values":          func(c call) any { return must(c.cached().Values(ctx, c.texts())) },
	"visitors.values":        call.visitorsOfDays,
}

func (c call) addMany() any {
	pairs := []counterfoil.Pair{}
	for _, pair := range c.Args[0].([]any) {
		one := call{Args: pair.([]any)}
		pairs = append(pairs, counterfoil.Pair{ID: one.text(0), Delta: one.delta(1)})
	}
	results, _ := c.buffered().AddMany(ctx, pairs) // its error is that of a result
	list := make([]any, len(results))
	for i, result := range results {
		if list[i] = pending(result.Pending); result.Err != nil {
			list[i] = failure(result.Err)
		}
	}
	return list
}

func (c call) texts() []string {
	list := call{Args: c.Args[0].([]any)}
	texts := make([]string, len(list.Args))
	for i := range texts {
		texts[i] = list.text(i)
	}
	return texts
}

func (c call) visitorsOfDays() any {
	days := []counterfoil.ScopeDay{}
	for _, day := range c.Args[0].([]any) {
		one := call{Args: day.([]any)}
		days = append(days, counterfoil.ScopeDay{Scope: one.text(0), Day: one.text(1)})
	}
	return must(c.visitors().Values(ctx, days))
}

func (c call) hit() any {
	if len(c.Args) > 2 {
		return none(c.series().AddAt(ctx, c.text(0), c.delta(1), time.Unix(c.delta(2), 0)))
	}
	return none(c.series().Add(ctx, c.text(0), c.delta(1)))
}

func (c call) hitLater() any {
	if len(c.Args) > 2 {
		return none(c.series().LaterAt(c.text(0), c.delta(1), time.Unix(c.delta(2), 0)))
	}
	return none(c.series().Later(c.text(0), c.delta(1)))
}

func (c call) window() any {
	list := [][2]int64{}
	for _, slice := range must(c.series().Get(ctx, c.text(0), c.text(1))) {
		list = append(list, [2]int64{slice.Start.Unix(), slice.Count})
	}
	return list
}

func (c call) now() any {
	views, visitors, err := c.activity().Now(ctx, c.text(0))
	return must([]int64{views, visitors}, err)
}
