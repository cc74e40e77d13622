CREATE TABLE products (
    id BIGINT PRIMARY KEY,
    name VARCHAR(100) NOT NULL,
    views_count BIGINT NOT NULL DEFAULT 0
);
INSERT INTO products (id, name) SELECT seq, CONCAT('Product ', seq) FROM (
    WITH RECURSIVE numbers (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM numbers WHERE seq < 20) SELECT seq FROM numbers
) AS ids;
CREATE TABLE product_visitors (
    product_id BIGINT NOT NULL,
    day DATE NOT NULL,
    visitors BIGINT NOT NULL,
    PRIMARY KEY (product_id, day)
);
