// Command shop serves products, and counts their views and visitors.
//
//	shop migrate    creates the tables, with the products 1 to 20
//	shop            serves
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/go-sql-driver/mysql"
)

func main() {
	db := database()
	run := serve
	if len(os.Args) > 1 && os.Args[1] == "migrate" {
		run = migrate
	}
	if err := run(db); err != nil {
		log.Fatal(err)
	}
}

func database() *sql.DB {
	config := mysql.NewConfig()
	config.User, config.DBName = cmp.Or(os.Getenv("MYSQL_USER"), "root"), cmp.Or(os.Getenv("MYSQL_DATABASE"), "shop")
	config.Net, config.Addr = "tcp", cmp.Or(os.Getenv("MYSQL_HOST"), "127.0.0.1")+":"+cmp.Or(os.Getenv("MYSQL_PORT"), "3306")
	if socket := os.Getenv("MYSQL_SOCKET"); socket != "" {
		config.Net, config.Addr = "unix", socket
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		log.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(20)
	return db
}

func serve(db *sql.DB) error {
	options := counterfoil.Options{Daemons: []string{cmp.Or(os.Getenv("COUNTERFOIL_DAEMON"), "http://127.0.0.1:9292")}}
	counters, err := counterfoil.Connect(cmp.Or(os.Getenv("COUNTERFOIL_REDIS"), "redis://127.0.0.1:6379"), "shop", options)
	if err != nil {
		return err
	}
	handler, err := newShop(db, counters)
	if err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	var isEnding atomic.Bool
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if isEnding.Load() {
				w.Header().Set("Connection", "close")
			}
			handler.ServeHTTP(w, r)
		})}
	signals, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-signals.Done():
	}
	stop() // a second signal ends the process at once

	// Clients close their connections after a response that says so. One that they use while it is being closed loses a request.
	isEnding.Store(true)
	time.Sleep(time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// first the requests in progress, then what they have counted
	return errors.Join(server.Shutdown(ctx), counters.Close(ctx), db.Close())
}

// listen returns the socket that systemd passes (sd_listen_fds(3)), or opens one.
func listen() (net.Listener, error) {
	if os.Getenv("LISTEN_FDS") == "1" {
		return net.FileListener(os.NewFile(3, "socket"))
	}
	return net.Listen("tcp", "127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "8080"))
}
