package tests

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	counterfoil "github.com/counterfoil/counterfoil-go"
)

// job is what a queue stores. The request and its epoch are made before it is enqueued.
type job struct{ Request, ID, Epoch string }

// run is the handler of the README.
func (j job) run(views *counterfoil.Buffered) error {
	_, err := views.AddOnce(ctx, j.Request, j.ID, 1, j.Epoch)
	return err
}

// TestAWorker is a worker in a process of its own: a line for each job, and one for its outcome.
func TestAWorker(t *testing.T) {
	socket := os.Getenv("COUNTERFOIL_TEST_WORKER")
	if socket == "" {
		t.Skip("it is started by TestJobs")
	}
	options := counterfoil.Options{RetryFor: 300 * time.Millisecond}
	counters, err := counterfoil.Connect("unix://"+socket+"?read_timeout=100ms", namespace, options)
	must(t, err)
	views := buffered(t, counters, "views")
	for lines := json.NewDecoder(os.Stdin); lines.More(); {
		var j job
		must(t, lines.Decode(&j))
		fmt.Println("outcome:", j.run(views))
	}
}

// worker is the process of a worker.
type worker struct {
	*exec.Cmd
	jobs     io.Writer
	outcomes *bufio.Scanner
}

func startWorker(t *testing.T, socket string) *worker {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run=^TestAWorker$")
	command.Env = append(os.Environ(), "COUNTERFOIL_TEST_WORKER="+socket)
	jobs, err := command.StdinPipe()
	must(t, err)
	outcomes, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	w := &worker{command, jobs, bufio.NewScanner(outcomes)}
	t.Cleanup(w.kill)
	return w
}

func (w *worker) kill() {
	_ = w.Process.Kill()
	_ = w.Wait()
}

// run returns the outcome of a job, "" if the worker died.
func (w *worker) run(j job) string {
	_ = json.NewEncoder(w.jobs).Encode(j)
	w.outcomes.Scan()
	return w.outcomes.Text()
}

// Each job counts once, over the retries of a queue, with lost replies and killed workers.
func TestJobs(t *testing.T) {
	p, id := startProxy(t), newID()
	views := buffered(t, given(t, socket, counterfoil.Options{}), "views")
	queue := make(chan job, 100)
	for i := range 40 {
		request := fmt.Sprint(id, "/", i)
		epoch, err := views.RequestEpoch(ctx, request, id)
		must(t, err)
		queue <- job{request, id, epoch}
	}
	w := startWorker(t, p.socket)
	calls, process := 0, atomic.Pointer[os.Process]{}
	process.Store(w.Process)
	p.set(func() fate {
		if calls++; calls%11 == 0 {
			_ = process.Load().Kill()
		}
		return [5]fate{2: loseReply, 3: hold, 4: loseRequest}[calls%5]
	})
	done, retries := map[string]bool{}, 0
	for runs := 0; len(done) < 40; runs++ {
		j := <-queue
		outcome := w.run(j)
		if outcome == "outcome: <nil>" {
			done[j.Request] = true
			if runs%10 == 0 && runs < 100 { // the acknowledgement gets lost: the queue runs it again
				queue <- j
			}
			continue
		}
		queue <- j
		retries++
		if outcome == "" {
			w = startWorker(t, p.socket)
			process.Store(w.Process)
		}
	}
	equal(t, retries > 0, true)
	equal(t, exact(t, id), 40)
}

// A job that Redis may have forgotten is not to be repeated.
func TestAJobThatIsTooOld(t *testing.T) {
	views, id := buffered(t, given(t, socket, counterfoil.Options{}), "views"), newID()
	err := job{"request", id, "0123456789abcdef"}.run(views)
	fails(t, err, counterfoil.ErrOutcomeUnknown, "EXPIRED")
	var e *counterfoil.Error
	equal(t, errors.As(err, &e), true)
	equal(t, exact(t, id), 0)
}
