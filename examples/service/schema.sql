-- The service's own tables; counterfoil's are in src/store/mysql/schema.sql (MysqlStore::schema()). In a deployment both are a
-- migration, so that the service itself needs no CREATE privilege.

CREATE TABLE article (
  id BIGINT UNSIGNED PRIMARY KEY,
  title VARCHAR(200) NOT NULL,
  votes BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE article_views (article BIGINT UNSIGNED PRIMARY KEY, views BIGINT NOT NULL);

CREATE TABLE article_visitors (
  article BIGINT UNSIGNED, day DATE, visitors BIGINT NOT NULL,
  PRIMARY KEY (article, day)
);

CREATE TABLE article_downloads (
  day DATE, article BIGINT UNSIGNED, downloads BIGINT NOT NULL,
  PRIMARY KEY (day, article)
);

INSERT INTO article (id, title) VALUES (1, 'Apples'), (2, 'Pears'), (3, 'Quinces');
