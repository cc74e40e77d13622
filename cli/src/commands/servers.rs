//! Commands about the servers themselves.

use counterfoil::MysqlStore;
use serde_json::json;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::pair::Pair;

/// Creates counterfoil's own tables.
pub async fn init(context: &Context, print: bool) -> Result<Exit, Failure> {
    if print {
        print!("{}", MysqlStore::schema());
        return Ok(Exit::Ok);
    }
    for pair in context.pairs() {
        Pair::connect(pair).await?.store().create_tables().await?;
        context.output.print(&json!({ "pair": pair.name, "tables": "there" }), |_| {
            vec![format!("pair {}: counterfoil's tables are there", pair.name)]
        })?;
    }
    Ok(Exit::Ok)
}
