// Command runner makes the calls of a scenario: JSON lines on stdin, and a JSON line on stdout for each.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
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
	Socket, Namespace string
	Nodes             []string
	Own               bool
	Timeout           float64
	Options           struct {
		RetryFor   float64 `json:"retry_for"`
		LaterEvery float64 `json:"later_every"`
		Daemon     string
		Token      string
	}
}

type call struct {
	ID                     any
	Kind, Family, Call, As string
	Args                   []json.RawMessage
}

var ctx = context.Background()

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	var first struct{ Open opening }
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &first) != nil {
		panic("no open")
	}
	client, err := open(first.Open)
	if err != nil {
		print(failure(err))
		os.Exit(1)
	}
	print(object{"ready": true})
	threads, running := map[string]chan call{}, sync.WaitGroup{}
	for lines.Scan() {
		var one call
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			panic(err)
		}
		if one.As == "fork" || strings.HasPrefix(one.As, "fork:") {
			print(object{"id": one.ID, "skipped": "a Go process cannot fork"})
			continue
		}
		if one.As == "" || one.As == "main" {
			run(client, one)
			continue
		}
		if threads[one.As] == nil {
			calls := make(chan call, 10_000)
			threads[one.As] = calls
			running.Add(1)
			go func() {
				defer running.Done()
				for one := range calls {
					run(client, one)
				}
			}()
		}
		threads[one.As] <- one
	}
	for _, calls := range threads {
		close(calls)
	}
	running.Wait()
	_ = client.Close(ctx)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func open(o opening) (*counterfoil.Client, error) {
	options := counterfoil.Options{Daemon: o.Options.Daemon, Token: o.Options.Token}
	options.RetryFor, options.LaterEvery = seconds(o.Options.RetryFor), seconds(o.Options.LaterEvery)
	timeout := seconds(o.Timeout)
	if o.Own {
		url := "unix://" + o.Socket + "?"
		if o.Nodes != nil {
			url = "redis://" + o.Nodes[0] + "?addr=" + strings.Join(o.Nodes, "&addr=") + "&"
		}
		return counterfoil.Connect(url+"read_timeout="+timeout.String(), o.Namespace, options)
	}
	var own redis.UniversalClient = redis.NewClient(&redis.Options{Addr: o.Socket, ReadTimeout: timeout})
	if o.Nodes != nil {
		own = redis.NewClusterClient(&redis.ClusterOptions{Addrs: o.Nodes, ReadTimeout: timeout})
	}
	return counterfoil.New(own, o.Namespace, options)
}

var printing sync.Mutex

func print(reply object) {
	printing.Lock()
	defer printing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(reply); err != nil {
		panic(err)
	}
}

func run(client *counterfoil.Client, one call) {
	reply := object{}
	defer func() {
		switch problem := recover().(type) {
		case nil:
		case skipped:
			reply = object{"skipped": string(problem)}
		default:
			reply = object{"error": "escaped", "reason": fmt.Sprint(problem)}
		}
		reply["id"] = one.ID
		print(reply)
	}()
	returned, err := perform(client, one)
	if err != nil {
		reply = failure(err)
		return
	}
	reply["returns"] = returned
}

func failure(err error) object {
	var e *counterfoil.Error
	if !errors.As(err, &e) {
		return object{"error": "escaped", "reason": fmt.Sprintf("%T: %v", err, err)}
	}
	reply := object{"error": strings.ReplaceAll(e.Kind.Error(), " ", "_"), "reason": e.Reason, "text": e.Error()}
	if e.Value != nil {
		reply["value"] = number(*e.Value)
	}
	return reply
}

// number is a string beyond 2^53.
func number(n int64) any {
	if n > 1<<53 || n < -1<<53 {
		return fmt.Sprint(n)
	}
	return n
}
