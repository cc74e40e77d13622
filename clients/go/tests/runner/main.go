// Command runner makes the calls of a scenario: JSON lines on stdin, and a JSON line on stdout for each.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/redis/go-redis/v9"
)

type object = map[string]any

type opening struct {
	Open struct {
		Socket, Namespace string
		Nodes             []string
		Own               bool
		Timeout           float64
		Options           struct {
			RetryFor      float64 `json:"retry_for"`
			LaterEvery    float64 `json:"later_every"`
			Daemon, Token string
		}
	}
}

type call struct {
	ID                     any
	Kind, Family, Call, As string
	Args                   []any
}

// skipped is the reason why a call cannot be made in Go.
type skipped string

var ctx = context.Background()

// read decodes a line, with integers as json.Number.
func read(line string, into any) {
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.UseNumber()
	must(0, decoder.Decode(into))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	lines.Scan()
	client := must(open(lines.Text()))
	reply(object{"ready": true})
	threads, running := map[string]chan call{}, sync.WaitGroup{}
	for lines.Scan() {
		var c call
		read(lines.Text(), &c)
		if c.As == "" || c.As == "main" || strings.HasPrefix(c.As, "fork") {
			answer(client, c)
			continue
		}
		if threads[c.As] == nil {
			calls := make(chan call, 10_000)
			threads[c.As] = calls
			running.Add(1)
			go func() {
				defer running.Done()
				for c := range calls {
					answer(client, c)
				}
			}()
		}
		threads[c.As] <- c
	}
	for _, calls := range threads {
		close(calls)
	}
	running.Wait()
	_ = client.Close(ctx)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func open(line string) (*counterfoil.Client, error) {
	var first opening
	read(line, &first)
	o, timeout := first.Open, seconds(first.Open.Timeout)
	options := counterfoil.Options{Daemon: o.Options.Daemon, Token: o.Options.Token,
		RetryFor: seconds(o.Options.RetryFor), LaterEvery: seconds(o.Options.LaterEvery)}
	switch {
	case o.Own && o.Nodes != nil:
		nodes := strings.Join(o.Nodes, "&addr=")
		return counterfoil.Connect("redis://"+o.Nodes[0]+"?read_timeout="+timeout.String()+"&addr="+nodes, o.Namespace, options)
	case o.Own:
		return counterfoil.Connect("unix://"+o.Socket+"?read_timeout="+timeout.String(), o.Namespace, options)
	case o.Nodes != nil:
		cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: o.Nodes, ReadTimeout: timeout})
		return counterfoil.New(cluster, o.Namespace, options)
	}
	return counterfoil.New(redis.NewClient(&redis.Options{Addr: o.Socket, ReadTimeout: timeout}), o.Namespace, options)
}

var printing sync.Mutex

func reply(line object) {
	printing.Lock()
	defer printing.Unlock()
	must(0, json.NewEncoder(os.Stdout).Encode(line))
}

func answer(client *counterfoil.Client, c call) {
	line := object{}
	defer func() {
		switch problem := recover().(type) {
		case nil:
		case skipped:
			line = object{"skipped": string(problem)}
		default:
			line = failure(problem)
		}
		line["id"] = c.ID
		reply(line)
	}()
	returns, err := c.make(client)
	if line["returns"] = returns; err != nil {
		line = failure(err)
	}
}

func failure(problem any) object {
	e, isOurs := problem.(*counterfoil.Error)
	if !isOurs {
		return object{"error": "escaped", "reason": fmt.Sprintf("%T: %v", problem, problem)}
	}
	line := object{"error": strings.ReplaceAll(e.Kind.Error(), " ", "_"), "reason": e.Reason, "text": e.Error()}
	if e.Value != nil {
		line["value"] = number(*e.Value)
	}
	return line
}
