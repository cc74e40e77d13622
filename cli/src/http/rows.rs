//! Which families are shown, and in which order.

use crate::view::{FamilyView, View};

/// A family, and the pair that it is of.
pub type Row<'a> = (&'a str, &'a FamilyView);

/// Whether the text is in `NAMESPACE/FAMILY`.
pub fn matches(family: &FamilyView, text: &str) -> bool {
    text.is_empty() || family.status.name().contains(text)
}

/// Those whose name holds the text: what is in trouble first, then by name.
pub fn of<'a>(view: &'a View, text: &str) -> Vec<Row<'a>> {
    let families = view.pairs.iter().flat_map(|pair| pair.families.iter().map(|family| (pair.name.as_str(), family)));
    let mut rows: Vec<_> = families.filter(|(_, family)| matches(family, text)).collect();
    rows.sort_by(|(a_pair, a), (b_pair, b)| {
        let (a, b) = (&a.status, &b.status);
        let by_name = || (&a.namespace, &a.family, a_pair).cmp(&(&b.namespace, &b.family, b_pair));
        b.state.cmp(&a.state).then_with(by_name)
    });
    rows
}
