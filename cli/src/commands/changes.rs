//! Changes to registered families, their removal, and their move to another database.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Context, connect, find_registered};
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
    let registered = find_registered(counterfoil.store(), name).await?.family;
    let changes = families::differences(configured, &registered)?;
    let changed = !dry_run && !changes.is_empty();
    let family = configured.in_namespace(registered.namespace())?;
    if changed {
        counterfoil.reconfigure(&family).await?;
    } else {
        counterfoil.check_reconfiguration(&family).await?;
    }
    let result = json!({ "family": name, "changes": changes, "changed": changed });
    context.output.print(&result, |_| {
        let listed = changes.join("; ");
        vec![if changes.is_empty() {
            format!("{name} is as configured")
        } else if dry_run {
            format!("{name} would be changed: {listed}")
        } else {
            format!("{name} was changed: {listed}, before this")
        }]
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
    let family = find_registered(counterfoil.store(), name).await?.family;
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
    let (known, _) = families::read_registered(counterfoil.store()).await?;
    let mut candidates: BTreeMap<_, _> = known
        .into_iter()
        .map(|registered| registered.family)
        .filter(|family| family.namespace() == namespace)
        .map(|family| (family.to_string(), family))
        .collect();
    // also the configured families: a new database does not know any yet
    for configured in &pair.families {
        let name = format!("{namespace}/{}", configured.family);
        if let Some(configured) = pair.family(&name) {
            candidates.insert(name, configured.in_namespace(namespace)?);
        }
    }
    let mut found = Vec::new();
    for family in candidates.into_values() {
        if let Some(pending) = counterfoil.check_adoption(&family).await? {
            found.push((family, pending.ids));
        }
    }
    let pending: u64 = found.iter().map(|(_, ids)| ids).sum();
    let listed = found
        .iter()
        .map(|(family, ids)| format!("{family} ({ids} ids pending)"))
        .collect::<Vec<_>>()
        .join(", ");
    if !found.is_empty() && !dry_run {
        let question = format!(
            "pair {}: take over {listed} from another database, and drop what is pending?",
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
            "would be taken over, and {pending} ids dropped: {listed}"
        )],
        false => vec![format!("taken over, and {pending} ids dropped: {listed}")],
    })
}
