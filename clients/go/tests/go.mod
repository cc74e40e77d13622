module counterfoil-go-tests

go 1.22

require (
	github.com/counterfoil/counterfoil-go v0.1.0
	github.com/go-sql-driver/mysql v1.9.3
	github.com/redis/go-redis/v9 v9.7.3
)

replace github.com/counterfoil/counterfoil-go => ../
