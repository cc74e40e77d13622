// Command supervisor stands in for systemd with socket activation. It holds the socket, and runs two processes of a program that
// accept from it. A process that exits is started again. SIGHUP ends one after the other, so that a new version of the program
// takes over; SIGTERM ends all. Meanwhile connections wait in the socket's queue, so none is refused.
//
//	supervisor ADDRESS PROGRAM
package main

import (
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		log.Fatal(err)
	}
	signals := make(chan os.Signal, 10)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, os.Interrupt)

	exited, running, isEnding := make(chan *exec.Cmd), map[*exec.Cmd]bool{}, false
	start := func() {
		process := exec.Command(os.Args[2])
		process.ExtraFiles = []*os.File{socket} // 3
		process.Env = append(os.Environ(), "LISTEN_FDS=1")
		process.Stdout, process.Stderr = os.Stdout, os.Stderr
		if err := process.Start(); err != nil {
			log.Fatal(err)
		}
		running[process] = true
		go func() {
			log.Print("process ", process.Process.Pid, ": ", process.Wait())
			exited <- process
		}()
	}
	var replaced []*exec.Cmd // what SIGHUP has to end
	endNext := func() {
		if len(replaced) > 0 {
			_ = replaced[0].Process.Signal(syscall.SIGTERM) // fails if it has exited already
			replaced = replaced[1:]
		}
	}
	start()
	start()
	for len(running) > 0 {
		select {
		case process := <-exited:
			delete(running, process)
			if !isEnding {
				time.Sleep(100 * time.Millisecond)
				start()
				endNext()
			}
		case received := <-signals:
			isEnding, replaced = isEnding || received != syscall.SIGHUP, nil
			for process := range running {
				replaced = append(replaced, process)
			}
			endNext()
			for isEnding && len(replaced) > 0 {
				endNext()
			}
		}
	}
}
