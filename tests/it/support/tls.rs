//! Servers that accept only TLS, from clients with a certificate.

use std::io;

use crate::support::*;

/// A database's URL with everything that the server requires.
pub const CERTIFIED: &str = "mysql://shop@mysql.internal/shop?ssl-mode=VERIFY_IDENTITY&ssl-ca=ca.pem&ssl-cert=client.pem&ssl-key=client.key";

pub struct Tls {
    certificates: Certificates,
    redis: RedisServer,
    mysql: MysqlServer,
    database: String,
    pub pool: MySqlPool,
}

impl Tls {
    pub async fn start() -> Self {
        let certificates = Certificates::issue();
        let redis = RedisServer::start(RedisOptions::volatile().tls(&certificates)).await;
        let mysql = MysqlServer::start_tcp(Some(&certificates)).await;
        let (database, pool) = mysql.database("shop").await;
        let user = "CREATE USER shop@'%' REQUIRE X509; GRANT ALL ON *.* TO shop@'%'";
        sqlx::raw_sql(user).execute(&pool).await.expect(user);
        Tls {
            certificates,
            redis,
            mysql,
            database,
            pool,
        }
    }

    pub fn redis_url(&self) -> String {
        format!("rediss://localhost:{}", self.redis.port())
    }

    /// Returns the URL with the address of this database and the paths of its files.
    pub fn mysql_url(&self, url: &str) -> String {
        let (address, folder) = (
            format!("localhost:{}", self.mysql.port()),
            self.certificates.file(""),
        );
        let url = url
            .replace("mysql.internal", &address)
            .replace("/shop?", &format!("/{}?", self.database));
        ["ca.pem", "client.pem", "client.key"]
            .iter()
            .fold(url, |url, file| {
                url.replace(file, &format!("{folder}{file}"))
            })
    }

    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    pub fn read(&self, file: &str) -> io::Result<Vec<u8>> {
        fs::read(self.certificates.file(file))
    }
}
