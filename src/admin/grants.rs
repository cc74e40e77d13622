//! The privileges that a user of the database needs, as statements for an administrator.

use indexmap::IndexMap;

use crate::admin::Role;
use crate::family::Family;
use crate::store::mysql::schema;
use crate::store::mysql::statement::{quoted, table_name};

/// Returns the statements that grant a user of that role the privileges for these families: one per
/// table, each with `;` at its end. `schema` is the database with counterfoil's tables, which must
/// exist; a family's table whose name includes a schema is in that one. `user` is an account
/// without quotes: `counterfoil@10.0.0.%`, or `counterfoil` from any host.
///
/// There are none for a [`Writer`](Role::Writer) of families that are not cached, because it needs
/// no database. A recount also reads its source, which is not part of a family: add a [`grant`] of
/// SELECT on that.
pub fn grants(families: &[Family], role: Role, schema: &str, user: &str) -> Vec<String> {
    let concerned: Vec<_> = families
        .iter()
        .filter(|family| role != Role::Writer || family.is_cached())
        .collect();
    let writes = role == Role::Reconciler;
    let own = schema::tables()
        .map(|table| table.name)
        .filter(|name| match role {
            Role::Reconciler => true,
            Role::Writer => *name == "counterfoil_families" && !concerned.is_empty(),
            Role::Reader => ["counterfoil_families", "counterfoil_ledger"].contains(name),
        })
        .map(|name| (name, writes));
    let of_families = concerned.iter().map(|family| {
        let table = family.table.as_ref();
        let name = table.map_or("counterfoil_values", |table| &table.name);
        (name, writes && family.makes_rows())
    });
    // the tables, and whether rows are inserted into them
    let mut tables: IndexMap<String, bool> = IndexMap::new();
    for (name, inserts) in own.chain(of_families) {
        *tables.entry(in_schema(name, schema)).or_default() |= inserts;
    }
    let rejects = in_schema("counterfoil_rejects", schema);
    tables
        .into_iter()
        .map(|(table, inserts)| {
            let privileges = match (writes, inserts) {
                (false, _) => "SELECT",
                (true, false) => "SELECT, UPDATE",
                // a reject that its row took is deleted
                (true, true) if table == rejects => "SELECT, INSERT, UPDATE, DELETE",
                (true, true) => "SELECT, INSERT, UPDATE",
            };
            statement(privileges, &table, user)
        })
        .collect()
}

/// Returns the statement that grants a user, written as for [`grants`], these privileges on a
/// table, or on all tables of the schema if `table` is `*`.
pub fn grant(privileges: &str, table: &str, schema: &str, user: &str) -> String {
    statement(privileges, &in_schema(table, schema), user)
}

fn statement(privileges: &str, table: &str, user: &str) -> String {
    let (name, host) = user.rsplit_once('@').unwrap_or((user, "%"));
    let account = [quoted(name), quoted(host)].join("@");
    format!("GRANT {privileges} ON {table} TO {account};")
}

/// Returns the quoted name of a table, which is in this schema unless its name includes one.
fn in_schema(table: &str, schema: &str) -> String {
    match table {
        // in a grant on a whole schema, _ and % stand for other characters
        "*" => {
            let literal = schema
                .replace('\\', "\\\\")
                .replace('_', "\\_")
                .replace('%', "\\%");
            format!("{}.*", quoted(&literal))
        }
        table if table.contains('.') => table_name(table),
        table => [quoted(schema), quoted(table)].join("."),
    }
}
