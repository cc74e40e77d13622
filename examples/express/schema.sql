CREATE TABLE products (id INT UNSIGNED PRIMARY KEY, name VARCHAR(100) NOT NULL, views_count BIGINT NOT NULL DEFAULT 0);
CREATE TABLE product_visitors (product_id INT UNSIGNED, day DATE, visitors BIGINT NOT NULL, PRIMARY KEY (product_id, day));
INSERT INTO products (id, name) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) SELECT i, CONCAT('Product ', i) FROM n;
