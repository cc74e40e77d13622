module example.com/shop

go 1.24

require (
	github.com/counterfoil/counterfoil-go v0.1.0
	github.com/go-sql-driver/mysql v1.10.1
)
