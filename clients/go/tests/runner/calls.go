package main

import (
	"fmt"
	"strconv"

	counterfoil "github.com/counterfoil/counterfoil-go"
)

func (c call) text(at int) string {
	if at >= len(c.Args) || c.Args[at] == nil {
		return ""
	}
	return fmt.Sprint(c.Args[at])
}

func (c call) delta(at int) int64 {
	if c.text(at) == "" {
		return 1
	}
	n, err := strconv.ParseInt(c.text(at), 10, 64)
	if err != nil {
		panic(skipped("Go's types exclude " + c.text(at)))
	}
	return n
}

// number is a string beyond 2^53.
func number(n int64) any {
	if n > 1<<53 || n < -1<<53 {
		return fmt.Sprint(n)
	}
	return n
}

func known(p counterfoil.Pending) any {
	if !p.Known {
		return nil
	}
	return number(p.Value)
}

func integer(n int64, err error) (any, error) { return number(n), err }

func (c call) make(client *counterfoil.Client) (any, error) {
	if c.As == "fork" || len(c.As) > 5 && c.As[:5] == "fork:" {
		panic(skipped("a Go process cannot fork"))
	}
	switch c.Kind {
	case "buffered":
		return c.buffered(must(client.Buffered(c.Family)))
	case "cached":
		return c.cached(must(client.Cached(c.Family)))
	}
	switch c.Kind + "." + c.Call {
	case "series.add":
		return nil, must(client.Series(c.Family)).Add(ctx, c.text(0), c.delta(1))
	case "series.get":
		list := [][2]any{}
		slices, err := must(client.Series(c.Family)).Get(ctx, c.text(0), c.text(1))
		for _, slice := range slices {
			list = append(list, [2]any{slice.Start.Unix(), number(slice.Count)})
		}
		return list, err
	case "activity.touch":
		return nil, must(client.Activity(c.Family)).Touch(ctx, c.text(0), c.text(1))
	case "activity.now":
		views, visitors, err := must(client.Activity(c.Family)).Now(ctx, c.text(0))
		return []any{number(views), number(visitors)}, err
	case "visitors.first_visit":
		return must(client.Visitors(c.Family)).FirstVisit(ctx, c.text(0), c.text(1), c.text(2))
	case "visitors.value":
		return integer(must(client.Visitors(c.Family)).Value(ctx, c.text(0), c.text(1)))
	}
	panic(fmt.Sprintf("no such call: %s.%s", c.Kind, c.Call))
}

func (c call) buffered(f *counterfoil.Buffered) (any, error) {
	switch c.Call {
	case "add":
		pending, err := f.Add(ctx, c.text(0), c.delta(1))
		return known(pending), err
	case "add_many":
		var pairs []counterfoil.Pair
		for _, pair := range c.Args[0].([]any) {
			one := call{Args: pair.([]any)}
			pairs = append(pairs, counterfoil.Pair{ID: one.text(0), Delta: one.delta(1)})
		}
		results, err := f.AddMany(ctx, pairs)
		list := make([]any, len(results))
		for i, result := range results {
			if list[i] = known(result.Pending); result.Err != nil {
				list[i] = failure(result.Err)
			}
		}
		if results != nil {
			err = nil
		}
		return list, err
	case "add_once":
		return f.AddOnce(ctx, c.text(0), c.text(1), c.delta(2), c.text(3))
	case "request_epoch":
		return f.RequestEpoch(ctx, c.text(0), c.text(1))
	case "later":
		return nil, f.Later(c.text(0), c.delta(1))
	case "flush":
		return nil, f.Flush(ctx)
	case "value":
		return integer(f.Value(ctx, c.text(0)))
	}
	panic("no such call: " + c.Call)
}

func (c call) cached(f *counterfoil.Cached) (any, error) {
	switch c.Call {
	case "incr":
		return integer(f.Incr(ctx, c.text(0), c.delta(1)))
	case "set":
		return integer(f.Set(ctx, c.text(0), c.delta(1)))
	case "get":
		return integer(f.Get(ctx, c.text(0)))
	case "value":
		return integer(f.Value(ctx, c.text(0)))
	}
	panic("no such call: " + c.Call)
}
