package tests

import (
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
)

// proxy stands between a client and Redis. fate decides what happens to a request.
type proxy struct {
	socket   string
	server   string
	listener net.Listener

	mu   sync.Mutex
	fate func() fate
	all  map[net.Conn]bool
}

type fate int

const (
	pass        fate = iota
	loseRequest      // the connection is closed, and Redis does not receive the request
	loseReply        // Redis executes the request, and the connection is closed
	hold             // Redis executes the request, and its reply does not arrive
)

func startProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{socket: filepath.Join(t.TempDir(), "s"), server: socket, all: map[net.Conn]bool{}}
	p.always(pass)
	p.listen(t)
	t.Cleanup(p.stop)
	return p
}

func (p *proxy) listen(t *testing.T) {
	listener, err := net.Listen("unix", p.socket)
	must(t, err)
	p.listener = listener
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
}

// stop closes the socket and all connections.
func (p *proxy) stop() {
	p.listener.Close()
	p.cut()
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for connection := range p.all {
		connection.Close()
	}
}

func (p *proxy) set(fate func() fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate = fate
}

func (p *proxy) always(one fate) { p.set(func() fate { return one }) }

// next has those fates for the next requests, and lets the others pass.
func (p *proxy) next(fates ...fate) {
	rest := make(chan fate, len(fates))
	for _, one := range fates {
		rest <- one
	}
	p.set(func() fate {
		select {
		case one := <-rest:
			return one
		default:
			return pass
		}
	})
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.all[client] = true
	p.mu.Unlock()
	request, reply := make([]byte, 1<<20), make([]byte, 1<<20)
	for isFirst := true; ; isFirst = false { // the first one is the greeting of go-redis
		n, err := client.Read(request)
		if err != nil {
			return
		}
		p.mu.Lock()
		now := pass
		if !isFirst && string(request[:n]) != "" && isCall(request[:n]) {
			now = p.fate()
		}
		p.mu.Unlock()
		if now == loseRequest {
			return
		}
		if _, err := server.Write(request[:n]); err != nil {
			return
		}
		m, err := server.Read(reply)
		if err != nil || now == loseReply {
			return
		}
		if now == hold {
			_, _ = io.Copy(io.Discard, client)
			return
		}
		if _, err := client.Write(reply[:m]); err != nil {
			return
		}
	}
}
