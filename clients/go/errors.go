package counterfoil

import (
	"errors"
	"strings"
)

// The kinds of errors, for [errors.Is].
var (
	// ErrNotCounted reports that nothing was counted, or for a read that there is no result.
	ErrNotCounted = errors.New("not counted")
	// ErrOutcomeUnknown reports that a change was made once or not at all. Making it again may count it twice.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrMisconfigured reports that nothing was counted, and that the application or the family must be changed.
	ErrMisconfigured = errors.New("misconfigured")
)

// Error is the type of all errors of this package. It wraps its kind and its cause.
type Error struct {
	// Kind is [ErrNotCounted], [ErrOutcomeUnknown] or [ErrMisconfigured].
	Kind error
	// Reason is the code of Redis or of a script, such as FULL, RANGE or OOM, or else a short text, such as "no reply".
	Reason string
	// Family is NAMESPACE/FAMILY.
	Family string
	// Value is the current value of a cached counter if Reason is RANGE, and otherwise nil.
	Value *int64

	detail    string
	cause     error
	temporary bool // not counted, since Redis was unreachable or refused for the moment: worth another try
}

// Error returns the family, the kind, the reason and the cause.
func (e *Error) Error() string {
	parts := []string{"counterfoil", e.Family, e.Kind.Error(), e.Reason, e.detail}
	if e.cause != nil {
		parts = append(parts, e.cause.Error())
	}
	var text []string
	for _, part := range parts {
		if part != "" {
			text = append(text, part)
		}
	}
	return strings.Join(text, ": ")
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

func (f *family) fail(kind error, reason string, cause error) *Error {
	return &Error{Kind: kind, Reason: reason, Family: f.path, cause: cause}
}

func isTemporary(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.temporary
}
