//! Changes to registered families, their removal, and their move to another database.

use std::collections::BTreeMap;

use counterfoil::Family;
use serde_json::json;

use super::{Context, connect, registered};
use crate::exit::{Exit, Failure};
use crate::families;
use crate::output::confirm;

/// Gives a registered family the partitions, durability and bounds of its configuration.
pub async fn reconfigure(context: &Context, name: &str, dry_run: bool) -> Result<Exit, Failure> {
    let pair = context.pair_of(name)?;
    let configured = pair
        .family(name)
        .ok_or_else(|| Failure::usage(format!("the configuration has no family {name}")))?;
    let counterfoil = connect(pair).await?;
    let registered = registered(counterfoil.store(), name).await?.family;
    let changes = families::differences(configured, &registered)?;
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

/// Takes over the families of a namespace whose hits in Redis went to another database.
pub async fn adopt(
    context: &Context,
    namespace: &str,
    yes: bool,
    dry_run: bool,
) -> Result<Exit, Failure> {
    let pair = context.pair()?;
    let counterfoil = connect(pair).await?;
    let (known, _) = families::registered(counterfoil.store()).await?;
    let known = known.into_iter().map(|known| known.family);
    let mut families: BTreeMap<_, _> = known
        .filter(|family| family.namespace() == namespace)
        .map(|family| (family.to_string(), family))
        .collect();
    // a new database knows none
    for configured in &pair.families {
        let name = format!("{namespace}/{}", configured.family);
        if let Some(configured) = pair.family(&name) {
            families.insert(name, configured.in_namespace(namespace)?);
        }
    }
    let mut found = Vec::new();
    for family in families.into_values() {
        if let Some(pending) = counterfoil.check_adoption(&family).await? {
            found.push((family, pending.ids));
        }
    }
    let pending: u64 = found.iter().map(|(_, ids)| ids).sum();
    let of = |(family, ids): &(Family, u64)| format!("{family} ({ids} ids pending)");
    let families = found.iter().map(of).collect::<Vec<_>>().join(", ");
    if !found.is_empty() && !dry_run {
        let question = format!(
            "pair {}: take over {families} from another database, and drop what is pending?",
            pair.name
        );
        confirm(&question, yes)?;
        for (family, _) in &found {
            counterfoil.adopt(family).await?;
        }
    }
    let names: Vec<_> = found.iter().map(|(family, _)| family.to_string()).collect();
    let result = json!({ "families": names, "dropped": pending, "adopted": !dry_run });
    context.output.print(&result, |_| match dry_run {
        _ if found.is_empty() => vec![format!(
            "no family of {namespace} belongs to another database"
        )],
        true => vec![format!(
            "would be taken over, and {pending} ids dropped: {families}"
        )],
        false => vec![format!("taken over, and {pending} ids dropped: {families}")],
    })
}
