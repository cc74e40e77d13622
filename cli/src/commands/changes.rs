//! Changes to registered families, and their removal.

use serde_json::json;

use super::status::differences;
use super::{Context, connect, registered};
use crate::exit::{Exit, Failure};
use crate::output::confirm;

/// Gives a registered family the partitions, durability and bounds of its configuration.
pub async fn reconfigure(context: &Context, name: &str, dry_run: bool) -> Result<Exit, Failure> {
    let pair = context.pair_of(name)?;
    let configured = pair
        .family(name)
        .ok_or_else(|| Failure::usage(format!("the configuration has no family {name}")))?;
    let counterfoil = connect(pair).await?;
    let registered = registered(counterfoil.store(), name).await?.family;
    let changes = differences(configured, &registered)?;
    let changed = !dry_run && !changes.is_empty();
    let family = configured.in_namespace(registered.namespace())?;
    if changed {
        counterfoil.reconfigure(&family).await?;
    } else {
        counterfoil.check_reconfiguration(&family).await?;
    }
    let result = json!({ "family": name, "changes": changes, "changed": changed });
    context.output.print(&result, |_| match changes.join("; ") {
        changes if changes.is_empty() => vec![format!("{name} is as configured")],
        changes if dry_run => vec![format!("{name} would be changed: {changes}")],
        changes => vec![format!("{name} was changed: {changes}, before this")],
    })
}

/// Removes a family that is no longer used.
pub async fn remove(
    context: &Context,
    name: &str,
    yes: bool,
    dry_run: bool,
) -> Result<Exit, Failure> {
    let pair = context.pair_of(name)?;
    if pair.family_names().contains(name) {
        return Err(Failure::usage(format!(
            "{name} is still in the configuration: a daemon would open it again. Remove it there first"
        )));
    }
    let counterfoil = connect(pair).await?;
    let family = registered(counterfoil.store(), name).await?.family;
    let rows = match family.table() {
        Some(_) => "Its table stays".to_owned(),
        None => "Its values in MySQL are deleted with it".to_owned(),
    };
    if dry_run {
        counterfoil.check_removal(&family).await?;
    } else {
        confirm(
            &format!("pair {}: remove family {name}? {rows}.", pair.name),
            yes,
        )?;
        counterfoil.remove(&family).await?;
    }
    let result = json!({ "family": name, "removed": !dry_run });
    context.output.print(&result, |_| {
        let verb = if dry_run { "would be" } else { "was" };
        vec![format!("{name} {verb} removed. {rows}")]
    })
}
