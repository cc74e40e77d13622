package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	counterfoil "github.com/counterfoil/counterfoil-go"
	"github.com/counterfoil/counterfoil-go/counterfoilhttp"
)

// shop has the handlers.
type shop struct {
	db     *sql.DB
	views  *counterfoil.Buffered
	counts *counterfoilhttp.Views // of views
	visits *counterfoilhttp.Views
}

// isBot stands in for a library with all crawlers, such as github.com/monperrus/crawler-user-agents.
var isBot = counterfoilhttp.IsBot(regexp.MustCompile(`(?i)bot|crawl|spider|slurp|curl`).MatchString)

func newShop(db *sql.DB, counters *counterfoil.Client) (http.Handler, error) {
	views, err := counters.Buffered("product_views")
	if err != nil {
		return nil, err
	}
	counts, err := counterfoilhttp.New(counters, "product_views", isBot)
	if err != nil {
		return nil, err
	}
	visitor := counterfoilhttp.Visitor(func(r *http.Request) string { return r.Header.Get("X-Visitor") })
	visits, err := counterfoilhttp.New(counters, "product_visitors", isBot, counterfoilhttp.Repeats(false), visitor)
	if err != nil {
		return nil, err
	}
	s := &shop{db, views, counts, visits}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /products", s.list)
	mux.Handle("GET /products/{id}", counts.Middleware(counterfoilhttp.PathValue("id"))(http.HandlerFunc(s.product)))
	mux.HandleFunc("POST /products/{id}/views", countWith(counts))
	mux.HandleFunc("POST /products/{id}/visits", countWith(visits))
	return mux, nil
}

// item is a product with its exact number of views, or nil if no daemon replies.
type item struct {
	ID    int    `json:"id"`
	Name  string `json:"-"`
	Views *int64 `json:"views"`
}

func (s *shop) list(w http.ResponseWriter, r *http.Request) {
	items, err := s.items(r.Context())
	switch {
	case err != nil:
		fail(w, err)
	case strings.Contains(r.Header.Get("Accept"), "text/html"):
		show(w, listPage, items)
	default:
		reply(w, http.StatusOK, items)
	}
}

func (s *shop) items(ctx context.Context) ([]item, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, name FROM products ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var items []item
	var ids []string
	for rows.Next() {
		var one item
		if err := rows.Scan(&one.ID, &one.Name); err != nil {
			return nil, err
		}
		items, ids = append(items, one), append(ids, strconv.Itoa(one.ID))
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	views, err := s.views.Values(ctx, ids) // one call for all
	if err != nil {
		slog.Warn("a list without views", "error", err)
	}
	for i := range views {
		items[i].Views = &views[i]
	}
	return items, nil
}

func (s *shop) product(w http.ResponseWriter, r *http.Request) {
	var one item
	row := s.db.QueryRowContext(r.Context(), "SELECT id, name FROM products WHERE id = ?", r.PathValue("id"))
	err := row.Scan(&one.ID, &one.Name)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		http.NotFound(w, r)
	case err != nil:
		fail(w, err)
	default:
		show(w, productPage, one)
	}
}

// countWith returns a handler that reports the outcome, such as for a script in the page.
func countWith(views *counterfoilhttp.Views) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		counted, err := views.CountView(r, r.PathValue("id"))
		switch {
		case err == nil:
			reply(w, http.StatusOK, map[string]bool{"counted": counted})
		case errors.Is(err, counterfoil.ErrNotCounted):
			reply(w, http.StatusServiceUnavailable, map[string]string{"error": "not_counted"})
		case errors.Is(err, counterfoil.ErrOutcomeUnknown):
			reply(w, http.StatusInternalServerError, map[string]string{"error": "outcome_unknown"})
		default:
			fail(w, err)
		}
	}
}

func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // fails if the client has disconnected
}

func fail(w http.ResponseWriter, err error) {
	slog.Error("a request failed", "error", err)
	http.Error(w, "internal error", http.StatusInternalServerError)
}

func show(w http.ResponseWriter, page *template.Template, data any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, data) // fails if the client has disconnected
}

var (
	listPage = template.Must(template.New("list").Parse(`<!doctype html><title>Products</title>
<ul>{{range .}}
<li><a href="/products/{{.ID}}">{{.Name}}</a>{{with .Views}}: {{.}} views{{end}}{{end}}
</ul>
`))
	productPage = template.Must(template.New("product").Parse(`<!doctype html><title>{{.Name}}</title>
<h1>{{.Name}}</h1>
`))
)

func migrate(db *sql.DB) error {
	for _, statement := range []string{
		`CREATE TABLE products (
			id INT UNSIGNED PRIMARY KEY AUTO_INCREMENT, name VARCHAR(100) NOT NULL, views_count BIGINT NOT NULL DEFAULT 0
		)`,
		`CREATE TABLE product_visitors (
			product_id INT UNSIGNED NOT NULL, day DATE NOT NULL, visitors BIGINT NOT NULL, PRIMARY KEY (product_id, day)
		)`,
	} {
		if _, err := db.Exec(statement); err != nil {
			return err
		}
	}
	for id := 1; id <= 20; id++ {
		if _, err := db.Exec("INSERT INTO products (id, name) VALUES (?, ?)", id, "Product "+strconv.Itoa(id)); err != nil {
			return err
		}
	}
	return nil
}
