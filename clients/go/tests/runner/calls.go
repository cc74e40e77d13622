package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	counterfoil "github.com/counterfoil/counterfoil-go"
)

// skipped is the reason why a call cannot be made in Go.
type skipped string

func text(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return strings.Trim(string(raw), `"`)
	}
	return s
}

// integer returns an argument that may be a string, or the default if there is none.
func (c call) integer(at int, otherwise int64) int64 {
	if at >= len(c.Args) || string(c.Args[at]) == "null" {
		return otherwise
	}
	n, err := strconv.ParseInt(text(c.Args[at]), 10, 64)
	if err != nil {
		panic(skipped("Go's types exclude " + string(c.Args[at])))
	}
	return n
}

func (c call) text(at int) string {
	if at >= len(c.Args) || string(c.Args[at]) == "null" {
		return ""
	}
	return text(c.Args[at])
}

func known(p counterfoil.Pending) any {
	if !p.Known {
		return nil
	}
	return number(p.Value)
}

func perform(client *counterfoil.Client, c call) (any, error) {
	switch c.Kind {
	case "buffered":
		f, err := client.Buffered(c.Family)
		if err != nil {
			return nil, err
		}
		return c.buffered(f)
	case "cached":
		f, err := client.Cached(c.Family)
		if err != nil {
			return nil, err
		}
		return c.cached(f)
	}
	return c.others(client)
}

func (c call) others(client *counterfoil.Client) (any, error) {
	switch c.Kind {
	case "series":
		f, err := client.Series(c.Family)
		if err != nil {
			return nil, err
		}
		if c.Call == "add" {
			return nil, f.Add(ctx, c.text(0), c.integer(1, 1))
		}
		slices, err := f.Get(ctx, c.text(0), c.text(1))
		list := make([][2]any, len(slices))
		for i, slice := range slices {
			list[i] = [2]any{slice.Start.Unix(), number(slice.Count)}
		}
		return list, err
	case "activity":
		f, err := client.Activity(c.Family)
		if err != nil {
			return nil, err
		}
		if c.Call == "touch" {
			return nil, f.Touch(ctx, c.text(0), c.text(1))
		}
		views, visitors, err := f.Now(ctx, c.text(0))
		return []any{number(views), number(visitors)}, err
	case "visitors":
		f, err := client.Visitors(c.Family)
		if err != nil {
			return nil, err
		}
		if c.Call == "first_visit" {
			return f.FirstVisit(ctx, c.text(0), c.text(1), c.text(2))
		}
		value, err := f.Value(ctx, c.text(0), c.text(1))
		return number(value), err
	}
	panic("no such kind: " + c.Kind)
}

func (c call) buffered(f *counterfoil.Buffered) (any, error) {
	switch c.Call {
	case "add":
		pending, err := f.Add(ctx, c.text(0), c.integer(1, 1))
		return known(pending), err
	case "add_many":
		return c.addMany(f)
	case "add_once":
		return f.AddOnce(ctx, c.text(0), c.text(1), c.integer(2, 1), c.text(3))
	case "request_epoch":
		return f.RequestEpoch(ctx, c.text(0), c.text(1))
	case "later":
		return nil, f.Later(c.text(0), c.integer(1, 1))
	case "flush":
		return nil, f.Flush(ctx)
	case "value":
		value, err := f.Value(ctx, c.text(0))
		return number(value), err
	}
	panic("no such call: " + c.Call)
}

func (c call) addMany(f *counterfoil.Buffered) (any, error) {
	var given [][]json.RawMessage
	if err := json.Unmarshal(c.Args[0], &given); err != nil {
		return nil, err
	}
	pairs := make([]counterfoil.Pair, len(given))
	for i, pair := range given {
		pairs[i] = counterfoil.Pair{ID: text(pair[0]), Delta: call{Args: pair}.integer(1, 1)}
	}
	results, err := f.AddMany(ctx, pairs)
	if results == nil {
		return nil, err
	}
	list := make([]any, len(results))
	for i, result := range results {
		list[i] = known(result.Pending)
		if result.Err != nil {
			list[i] = failure(result.Err)
		}
	}
	return list, nil
}

func (c call) cached(f *counterfoil.Cached) (any, error) {
	var value int64
	var err error
	switch c.Call {
	case "incr":
		value, err = f.Incr(ctx, c.text(0), c.integer(1, 1))
	case "set":
		value, err = f.Set(ctx, c.text(0), c.integer(1, 0))
	case "get":
		value, err = f.Get(ctx, c.text(0))
	case "value":
		value, err = f.Value(ctx, c.text(0))
	default:
		panic(fmt.Sprint("no such call: ", c.Call))
	}
	return number(value), err
}
