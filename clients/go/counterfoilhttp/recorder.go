package counterfoilhttp

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// recorder records whether a handler failed. [http.ResponseController] reaches the server's writer through it. It also has
// the methods of older handlers, which ask for a [http.Flusher] or [http.Hijacker].
type recorder struct {
	http.ResponseWriter
	isFailed bool // or the connection is used for something else than a page
}

func (w *recorder) WriteHeader(status int) {
	w.isFailed = w.isFailed || status >= 400 || status == http.StatusSwitchingProtocols
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// ReadFrom lets the server send files by sendfile.
func (w *recorder) ReadFrom(source io.Reader) (int64, error) {
	return io.Copy(w.ResponseWriter, source)
}

func (w *recorder) Flush() { _ = w.FlushError() }

func (w *recorder) FlushError() error { return http.NewResponseController(w.ResponseWriter).Flush() }

func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.isFailed = true
	return http.NewResponseController(w.ResponseWriter).Hijack()
}
