// Package memory is the border between counterfoil and counterfoiltest.
package memory

import "time"

// Memory is what a client counts in, in place of Redis and the daemon.
type Memory interface {
	// Count counts a hit in a family, and returns its word as the family's script would.
	Count(path string, h Hit) any
	// Reply replies to a script that counts nothing, with this last key.
	Reply(path, script, key string, args []any) []any
	// Value returns an exact value.
	Value(path, id string) int64
}

// Hit is one hit. Change is what is done to a cached counter. N is added to all others.
type Hit struct {
	ID, Visitor, Change, Request, Epoch string
	N                                   int64
	At                                  time.Time
}
