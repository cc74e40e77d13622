//! The privileges that a user of the database needs, as statements for an administrator.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::admin::Role;
use crate::family::Family;
use crate::store::mysql::schema;
use crate::store::mysql::statement::{quoted, table_name};

/// The privileges on a table that counterfoil may need, in the order in which they are granted.
const PRIVILEGES: [&str; 3] = ["SELECT", "INSERT", "UPDATE"];

/// Returns the statements that grant a user of that role the privileges for these families: one per
/// table, each with `;` at its end. `schema` is the database with counterfoil's tables, which must
/// exist; a family's table whose name includes a schema is in that one. `user` is an account
/// without quotes: `counterfoil@10.0.0.%`, or `counterfoil` from any host.
///
/// There are none for a [`Writer`](Role::Writer) of families that are not cached, because it needs
/// no database. A recount also reads its source, which is not part of a family: add SELECT on that.
pub fn grants(families: &[Family], role: Role, schema: &str, user: &str) -> Vec<String> {
    let concerned: Vec<_> = families
        .iter()
        .filter(|family| role != Role::Writer || family.is_cached())
        .collect();
    let own: Vec<_> = match role {
        Role::Reconciler => schema::tables().map(|table| table.name).collect(),
        Role::Writer if concerned.is_empty() => Vec::new(),
        Role::Writer => vec!["counterfoil_families"],
        Role::Reader => vec!["counterfoil_families", "counterfoil_ledger"],
    };
    let own = own
        .into_iter()
        .map(|name| (name, role == Role::Reconciler, role == Role::Reconciler));
    let of_families = concerned.into_iter().map(|family| {
        let name = family
            .table
            .as_ref()
            .map_or("counterfoil_values", |table| &table.name);
        (
            name,
            role == Role::Reconciler && family.makes_rows(),
            role == Role::Reconciler,
        )
    });
    let mut tables: IndexMap<String, BTreeSet<&str>> = IndexMap::new();
    for (name, inserts, updates) in own.chain(of_families) {
        let table = if name.contains('.') {
            table_name(name)
        } else {
            [quoted(schema), quoted(name)].join(".")
        };
        let needed = PRIVILEGES
            .into_iter()
            .zip([true, inserts, updates])
            .filter(|(_, is_needed)| *is_needed);
        tables
            .entry(table)
            .or_default()
            .extend(needed.map(|(privilege, _)| privilege));
    }
    let (name, host) = user.rsplit_once('@').unwrap_or((user, "%"));
    let account = [quoted(name), quoted(host)].join("@");
    let grant = |(table, needed): (String, BTreeSet<&str>)| {
        let needed: Vec<_> = PRIVILEGES
            .into_iter()
            .filter(|privilege| needed.contains(privilege))
            .collect();
        format!("GRANT {} ON {table} TO {account};", needed.join(", "))
    };
    tables.into_iter().map(grant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyType;
    use crate::family::table::Table;

    fn family(table: Option<Table>) -> Family {
        let family = Family::buffered("shop", "views");
        let with = |table: Table| {
            family
                .clone()
                .table(table.key("id", KeyType::Text).value("n"))
        };
        let family = table.map_or_else(|| family.clone(), with);
        family.build().expect("valid").family().clone()
    }

    fn cached() -> Family {
        Family::cached("shop", "votes")
            .build()
            .expect("valid")
            .family()
            .clone()
    }

    #[test]
    fn a_table_is_granted_once_with_all_that_is_needed_of_it() {
        let families = [
            family(Some(Table::update("sales"))),
            family(Some(Table::upsert("shop.sales"))),
            family(Some(Table::update("other.item"))),
        ];
        let grants = grants(&families, Role::Reconciler, "shop", "counterfoil@10.0.0.%");
        assert_eq!(grants.len(), 6 + 2, "{grants:#?}");
        let account = "TO `counterfoil`@`10.0.0.%`;";
        assert_eq!(
            grants[6],
            format!("GRANT SELECT, INSERT, UPDATE ON `shop`.`sales` {account}")
        );
        assert_eq!(
            grants[7],
            format!("GRANT SELECT, UPDATE ON `other`.`item` {account}")
        );
    }

    #[test]
    fn no_name_ends_its_quotes() {
        let grants = grants(&[family(None)], Role::Reader, "a`b", "c`d");
        assert_eq!(
            grants[0],
            "GRANT SELECT ON `a``b`.`counterfoil_families` TO `c``d`@`%`;"
        );
    }

    #[test]
    fn who_writes_reads_the_rows_of_cached_counters_only() {
        assert_eq!(
            grants(&[family(None)], Role::Writer, "shop", "counterfoil"),
            [""; 0]
        );
        let grants = grants(
            &[family(Some(Table::upsert("sales"))), cached()],
            Role::Writer,
            "shop",
            "counterfoil",
        );
        let tables = ["families", "values"];
        let grant =
            |table| format!("GRANT SELECT ON `shop`.`counterfoil_{table}` TO `counterfoil`@`%`;");
        assert_eq!(grants, tables.map(grant));
    }
}
