//! The families to show, and their order.

use crate::view::{FamilyView, View};

/// The name of a pair, and one of its families.
pub type Row<'a> = (&'a str, &'a FamilyView);

/// Returns whether `NAMESPACE/FAMILY` contains the text.
pub fn matches(family: &FamilyView, text: &str) -> bool {
    text.is_empty() || family.status.name().contains(text)
}

/// Returns the families whose name contains the text: those in trouble first, then by name.
pub fn of<'a>(view: &'a View, text: &str) -> Vec<Row<'a>> {
    let families = view.pairs.iter().flat_map(|pair| {
        pair.families
            .iter()
            .map(|family| (pair.name.as_str(), family))
    });
    let mut rows: Vec<_> = families
        .filter(|(_, family)| matches(family, text))
        .collect();
    rows.sort_by(|(a_pair, a), (b_pair, b)| {
        let (a, b) = (&a.status, &b.status);
        let by_name = || (&a.namespace, &a.family, a_pair).cmp(&(&b.namespace, &b.family, b_pair));
        b.state.cmp(&a.state).then_with(by_name)
    });
    rows
}
