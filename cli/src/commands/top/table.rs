//! The rows of the screen, their order, and the keys that change them.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;

use super::Snapshot;
use crate::view::FamilyView;

/// The rows of the screen.
#[derive(Debug, Default)]
pub struct Table {
    snapshots: Vec<Snapshot>,
    /// An index of `ORDERS`.
    order: usize,
    pub filter: String,
    /// True while the user types the filter.
    pub is_typing: bool,
    pub state: TableState,
}

type Compare = fn(&FamilyView, &FamilyView) -> Ordering;

/// The orders of the rows, by name. Equal rows are sorted by the names of their families.
const ORDERS: [(&str, Compare); 5] = [
    ("state", |a, b| b.status.state.cmp(&a.status.state)),
    ("hits/s", |a, b| descending(a.rate, b.rate)),
    ("pending", |a, b| b.status.pending.cmp(&a.status.pending)),
    ("oldest", |a, b| {
        descending(a.status.oldest_seconds, b.status.oldest_seconds)
    }),
    ("name", |_, _| Ordering::Equal),
];

fn descending(a: Option<f64>, b: Option<f64>) -> Ordering {
    b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0))
}

impl Table {
    pub fn update(&mut self, snapshots: &[Snapshot]) {
        self.snapshots = snapshots.to_vec();
        let last = self.rows().len().saturating_sub(1);
        self.state
            .select(Some(self.state.selected().unwrap_or(0).min(last)));
    }

    pub fn order(&self) -> &'static str {
        ORDERS[self.order].0
    }

    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Returns the families that match the filter, sorted, each with its pair.
    pub fn rows(&self) -> Vec<(&str, &FamilyView)> {
        let all = self.snapshots.iter().flat_map(|snapshot| {
            snapshot
                .families
                .iter()
                .map(|family| (snapshot.pair.as_str(), family))
        });
        let mut rows: Vec<_> = all
            .filter(|(_, family)| family.status.name().contains(&self.filter))
            .collect();
        let (_, compare) = ORDERS[self.order];
        rows.sort_by(|(_, a), (_, b)| {
            let by_name = || a.status.sort_key().cmp(&b.status.sort_key());
            compare(a, b).then_with(by_name)
        });
        rows
    }

    /// Handles a key, and returns `Break` to quit.
    pub fn press(&mut self, key: KeyEvent) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return ControlFlow::Break(());
        }
        match (self.is_typing, key.code) {
            (true, KeyCode::Enter) => self.is_typing = false,
            (true, KeyCode::Esc) => {
                self.is_typing = false;
                self.filter.clear();
            }
            (true, KeyCode::Backspace) => drop(self.filter.pop()),
            (true, KeyCode::Char(letter)) => self.filter.push(letter),
            (false, KeyCode::Char('q') | KeyCode::Esc) => return ControlFlow::Break(()),
            (false, KeyCode::Char('/')) => self.is_typing = true,
            (false, KeyCode::Char('s')) => self.order = (self.order + 1) % ORDERS.len(),
            (_, KeyCode::Down) | (false, KeyCode::Char('j')) => self.move_by(1),
            (_, KeyCode::Up) | (false, KeyCode::Char('k')) => self.move_by(-1),
            (_, KeyCode::PageDown) => self.move_by(10),
            (_, KeyCode::PageUp) => self.move_by(-10),
            (_, KeyCode::Home) => self.move_by(isize::MIN),
            (_, KeyCode::End) => self.move_by(isize::MAX),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn move_by(&mut self, rows: isize) {
        let last = self.rows().len().saturating_sub(1);
        let selected = self.state.selected().unwrap_or(0);
        self.state
            .select(Some(selected.saturating_add_signed(rows).min(last)));
    }
}
