//! The families of a pair, in the configuration and in the database.

use counterfoil::{AnyCounters, Counterfoil, Error, ErrorKind, Registered, Result};

use crate::config::FamilyConfig;

/// Returns the configured families of one pair.
pub fn described<'a>(
    families: &'a [FamilyConfig],
    pair: &str,
) -> impl Iterator<Item = &'a FamilyConfig> {
    families.iter().filter(move |family| family.pair == pair)
}

/// Opens the family `name`, NAMESPACE/FAMILY: as configured, or else as the database has it.
pub async fn open(
    counterfoil: &Counterfoil,
    families: &[FamilyConfig],
    name: &str,
) -> Result<AnyCounters> {
    let expected = || {
        Error::new(
            ErrorKind::InvalidInput,
            format!("{name:?} is not NAMESPACE/FAMILY"),
        )
    };
    let (namespace, family) = name.split_once('/').ok_or_else(expected)?;
    if let Some(described) = families
        .iter()
        .find(|described| described.describes(namespace, family))
    {
        return counterfoil.open(described.in_namespace(namespace)?).await;
    }
    let is_it = |registered: &Registered| {
        registered.family.namespace() == namespace && registered.family.name() == family
    };
    let known = registered(counterfoil)
        .await?
        .into_iter()
        .find(is_it)
        .ok_or_else(|| {
            let what = format!(
                "there is no family {name}, neither in the configuration nor in the database"
            );
            Error::new(ErrorKind::InvalidInput, what)
        })?;
    counterfoil.open_registered(known)
}

/// Returns the families in the database that this version understands.
pub async fn registered(counterfoil: &Counterfoil) -> Result<Vec<Registered>> {
    Ok(counterfoil
        .store()
        .families()
        .await?
        .into_iter()
        .filter_map(Result::ok)
        .collect())
}
