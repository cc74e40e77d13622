"""Exact values by the database and by the daemon."""

import contextlib
import socket
import struct
import threading
import time
import unittest

import pymysql
import pymysql.cursors

from counterfoil import Misconfigured, NotCounted
from support import DATABASE, MYSQL, NAMESPACE, Case, connected, new_id, plain


def connect(**options):
    return pymysql.connect(unix_socket=MYSQL, user="root", database=DATABASE, **options)


class Values(Case):
    def test_both_sources_have_the_same_value(self):
        id = new_id()
        for options in ({}, {"database": connect}, {"database": lambda: connect(cursorclass=pymysql.cursors.DictCursor)}):
            client = connected(**options)
            for family in ("views", "wide"):
                counter = client.buffered(family)
                for _ in range(6):
                    counter.add(id)
                self.assertEqual(counter.value(id), client.buffered(family).value(id))
        self.assertEqual((client.buffered("views").value(id), client.buffered("wide").value(id)), (18, 18))
        self.assertEqual(client.buffered("views").value(new_id()), 0)

    def test_a_connection_without_a_transaction(self):
        connection, id = connect(autocommit=True), new_id()
        views = connected(database=connection).buffered("views")
        views.add(id, 5)
        self.assertEqual(views.value(id), 5)
        connection.begin()
        self.assert_raises(Misconfigured, "DATABASE", views.value, id)
        connection.rollback()
        self.assertEqual(views.value(id), 5)
        connection.close()
        self.assertTrue(self.assert_raises(NotCounted, "DATABASE", views.value, id).temporary)
        self.assert_raises(Misconfigured, "DATABASE", connected(database=connect()).buffered("views").value, id)

    def test_a_table_of_the_application(self):
        with connect(autocommit=True) as connection:
            connection.cursor().execute("CREATE TABLE IF NOT EXISTS product (number INT PRIMARY KEY, `view count` BIGINT)")
            connection.cursor().execute("REPLACE INTO product VALUES (17, 1000)")
        views = connected(database=connect).buffered("views", table=(f"{DATABASE}.product", "number", "view count"))
        before = views.value("17")
        views.add("17", 3)
        self.assertGreaterEqual(before, 1000)
        self.assertEqual(views.value("17"), before + 3)

    def test_a_table_that_is_not_named(self):
        # counterfoil's own has no row of the family then
        calls = [f"cf1:{{{NAMESPACE}/{family}/0}}:calls" for family in ("views", "in_a_table")]
        settings = {name: value for name, value in plain().hgetall(calls[0]).items() if name.startswith(b"=")}
        plain().hset(calls[1], mapping={**settings, b"=description": b'{"table":{"name":"product"}}'})
        views = connected(database=connect).buffered("in_a_table")
        self.assert_raises(Misconfigured, "NO TABLE", views.value, "17")
        plain().delete(calls[1])

    def test_a_family_that_the_database_does_not_have(self):
        empty = f"{DATABASE}_empty"
        with connect(autocommit=True) as connection:
            connection.cursor().execute(f"CREATE DATABASE IF NOT EXISTS {empty}")
            connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS {empty}.counterfoil_families LIKE {DATABASE}.counterfoil_families")
            for table in ("values", "ledger"):
                connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS {empty}.counterfoil_{table} LIKE {DATABASE}.counterfoil_{table}")
        views = connected(database=lambda: pymysql.connect(unix_socket=MYSQL, user="root", database=empty)).buffered("views")
        self.assert_raises(Misconfigured, "UNCONFIGURED", views.value, new_id())
        with connect(autocommit=True) as connection:
            families = f"{empty}.counterfoil_families"
            connection.cursor().execute(f"INSERT INTO {families} SELECT * FROM {DATABASE}.counterfoil_families")
            connection.cursor().execute(f"UPDATE {families} SET database_id = 'other'")
        self.assert_raises(Misconfigured, "MISMATCH", views.value, new_id())
        self.assertEqual(views.add(new_id()), 1)

    def test_a_daemon_that_is_away_or_another(self):
        views = connected(retry_for=0.2).buffered("views")
        views.client.daemon = "http://127.0.0.1:1"
        self.assertTrue(self.assert_raises(NotCounted, "DAEMON", views.value, "a").temporary)
        views.client.daemon = ""
        self.assert_raises(Misconfigured, "NO SOURCE", views.value, "a")

    def test_no_redirect_takes_the_token_to_another_server(self):
        daemon, other = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        for server in (daemon, other):
            self.addCleanup(server.close)
        other.settimeout(0.5)

        def redirect():
            connection, _ = daemon.accept()
            connection.recv(2000)
            location = f"http://127.0.0.1:{other.getsockname()[1]}/"
            connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
            connection.close()

        threading.Thread(target=redirect, daemon=True).start()
        views = connected(retry_for=0.1, token="secret").buffered("views")
        views.client.daemon = f"http://127.0.0.1:{daemon.getsockname()[1]}"
        self.assert_raises(Misconfigured, "DAEMON", views.value, "a")
        self.assertRaises(TimeoutError, other.accept)

    def test_a_daemon_whose_reply_breaks_off(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def reset():
            while True:
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    connection.recv(2000)
                    connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nhalf")
                    time.sleep(0.1)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        threading.Thread(target=reset, daemon=True).start()
        views = connected(retry_for=0.1).buffered("views")
        views.client.daemon = f"http://127.0.0.1:{server.getsockname()[1]}"
        self.assert_raises(NotCounted, "DAEMON", views.value, "a")


if __name__ == "__main__":
    unittest.main()
