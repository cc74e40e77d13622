package counterfoil_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"

	counterfoil "github.com/counterfoil/counterfoil-go"
)

var (
	ctx      = context.Background()
	counters = connect()
	jobID    = func() string {
		random := make([]byte, 8)
		_, _ = rand.Read(random)
		return fmt.Sprintf("job-%x", random)
	}()
)

func connect() *counterfoil.Client {
	url, namespace := "redis://localhost:6379", "shop"
	if socket := os.Getenv("COUNTERFOIL_TEST_SOCKET"); socket != "" {
		url, namespace = "unix://"+socket, os.Getenv("COUNTERFOIL_TEST_NAMESPACE")
	}
	client, err := counterfoil.Connect(url, namespace, counterfoil.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func Example() {
	views, err := counters.Buffered("views")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := views.Add(ctx, "product-1", 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println("counted")
	// Output: counted
}

func ExampleBuffered_AddOnce() {
	views, err := counters.Buffered("views")
	if err != nil {
		log.Fatal(err)
	}
	epoch, err := views.RequestEpoch(ctx, jobID, "product-1") // to be stored with the job
	if err != nil {
		log.Fatal(err)
	}
	for run := 0; run < 2; run++ {
		isFirst, err := views.AddOnce(ctx, jobID, "product-1", 1, epoch)
		fmt.Println(isFirst, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleBuffered_Later() {
	views, err := counters.Buffered("views")
	if err != nil {
		log.Fatal(err)
	}
	for i := 0; i < 1000; i++ {
		if err := views.Later("product-1", 1); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(views.Flush(ctx))
	// Output: <nil>
}

func ExampleCached_Incr() {
	readRow := func(ctx context.Context, id string) (int64, error) {
		return 999, nil // SELECT votes FROM item WHERE id = ?, sql.ErrNoRows without a row
	}
	votes, err := counters.Cached("votes", counterfoil.ReadRow(readRow)) // a family with max = 1000
	if err != nil {
		log.Fatal(err)
	}
	for i := 0; i < 2; i++ {
		value, err := votes.Incr(ctx, jobID, 1)
		var e *counterfoil.Error
		switch {
		case errors.As(err, &e) && e.Reason == "RANGE":
			fmt.Println("refused, at", *e.Value)
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println(value)
		}
	}
	// Output:
	// 1000
	// refused, at 1000
}
