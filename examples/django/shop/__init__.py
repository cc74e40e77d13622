import pymysql

pymysql.install_as_MySQLdb()  # a driver that needs no compiler
