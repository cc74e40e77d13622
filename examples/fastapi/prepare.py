"""Creates the tables of schema.sql."""

import os
from pathlib import Path

import pymysql

server = pymysql.connect(
    host=os.environ.get("MYSQL_HOST", "127.0.0.1"),
    port=int(os.environ.get("MYSQL_PORT", "3306")),
    user=os.environ.get("MYSQL_USER", "root"),
    database=os.environ.get("MYSQL_DATABASE", "shop"),
)
with server, server.cursor() as cursor:
    for statement in Path(__file__).with_name("schema.sql").read_text().split(";\n"):
        if statement.strip():
            cursor.execute(statement)
    server.commit()
