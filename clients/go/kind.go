package counterfoil

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/counterfoil/counterfoil-go/internal/memory"
)

// kind is what a kind of family does in its own way: it writes calls of its counting script, and reads their replies. The header
// of the script describes keys, arguments and replies.
type kind[T target] interface {
	traits() traits
	// write adds the keys and arguments of a batch to a call, behind those that all counting scripts have.
	write(call *scriptCall, b *batch[T])
	// words returns the word of each entry in a reply OK or DUP. An entry without one was counted, and its word is nil.
	words(reply []any, b *batch[T]) []any
}

// traits are the constants of a kind.
type traits struct {
	kindName, script string
	maxID            int  // bytes of an id, a name or a page
	limit            int  // entries of a call
	spansPartitions  bool // a call may count in several partitions of a standalone server
}

// target is all of a change but its number: what it counts in, and the request that it is made for. Each kind has a type of its
// own. Changes of equal targets can be summed.
type target interface {
	comparable
	// given returns the id, the name, the page or the scope that the application passed.
	given() string
	// rowID returns what the family's pattern for ids must match: of visitors the scope, the separator and the day, and of all
	// others what was given.
	rowID(separator string) string
	// partition returns the partition to count in.
	partition(d *description) uint32
	// inMemory returns the hit that package counterfoiltest counts, without its id, and without its time if that is now.
	inMemory(n int64) memory.Hit
}

// subject is what all targets begin with: an id, a name, a page or a scope.
type subject struct{ id string }

func (s subject) given() string { return s.id }

func (s subject) rowID(string) string { return s.id }

func (s subject) partition(d *description) uint32 { return d.partitionOf(s.id) }

// batch is the entries of one call, and the description of the family that the call is made with.
type batch[T target] struct {
	*description
	entries []*entry[T]   // sorted by partition
	parts   [][]*entry[T] // the same, those of each partition together
}

func newBatch[T target](d *description, entries []*entry[T]) *batch[T] {
	parts := groups(entries, func(e *entry[T]) uint32 { return e.partition })
	return &batch[T]{description: d, entries: entries, parts: parts}
}

// partition returns the partition of a batch that has only one.
func (b *batch[T]) partition() uint32 { return b.entries[0].partition }

// groups sorts entries by a key and returns those with the same one together.
func groups[E any, K cmp.Ordered](entries []E, key func(E) K) (all [][]E) {
	slices.SortStableFunc(entries, func(a, b E) int { return cmp.Compare(key(a), key(b)) })
	start := 0
	for i := range entries {
		if i+1 == len(entries) || key(entries[i+1]) != key(entries[i]) {
			all, start = append(all, entries[start:i+1]), i+1
		}
	}
	return all
}

// wordsAfterTotals returns the words of a call that has so many in each partition. In OK a total precedes the words of each
// partition. DUP has only the words of refused entries.
func wordsAfterTotals(reply []any, sizes ...int) []any {
	count := 0
	for _, size := range sizes {
		count += size
	}
	if reply[0] == "DUP" {
		return refusals(reply[1:], count)
	}
	words, rest := make([]any, 0, count), reply[1:]
	for _, size := range sizes {
		totalAndWords, others := cut(rest, 1+size)
		words, rest = append(words, totalAndWords[1:]...), others
	}
	return words
}

// refusals returns the words of a call from those of refused entries: "3:FULL 7:RANGE" are those of the third and the seventh.
func refusals(texts []any, count int) []any {
	words := make([]any, count)
	for _, refusal := range fields(texts) {
		number, word, _ := strings.Cut(refusal.(string), ":")
		at, _ := strconv.Atoi(number) // the scripts return numbers
		words[at-1] = word
	}
	return words
}

// fields returns the words of DUP, which are one text or several.
func fields(texts []any) (words []any) {
	for _, word := range strings.Fields(fmt.Sprintln(texts...)) {
		words = append(words, word)
	}
	return words
}

// cut returns the first words, which are nil where there are less, and the rest.
func cut(words []any, count int) (first, rest []any) {
	first = make([]any, count)
	return first, words[copy(first, words):]
}
