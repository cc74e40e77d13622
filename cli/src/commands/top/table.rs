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
    pub order: Order,
    pub filter: String,
    /// True while the user types the filter.
    pub is_typing: bool,
    pub state: TableState,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Trouble first.
    #[default]
    State,
    Rate,
    Pending,
    Oldest,
    Name,
}

impl Order {
    pub fn name(self) -> &'static str {
        match self {
            Order::State => "state",
            Order::Rate => "hits/s",
            Order::Pending => "pending",
            Order::Oldest => "oldest",
            Order::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Order::State => Order::Rate,
            Order::Rate => Order::Pending,
            Order::Pending => Order::Oldest,
            Order::Oldest => Order::Name,
            Order::Name => Order::State,
        }
    }

    /// Compares in descending order, but names in ascending order.
    fn compare(self, one: &FamilyView, other: &FamilyView) -> Ordering {
        let number = |one: Option<f64>, other: Option<f64>| {
            other.unwrap_or(-1.0).total_cmp(&one.unwrap_or(-1.0))
        };
        let (a, b) = (&one.status, &other.status);
        let first = match self {
            Order::State => b.state.cmp(&a.state),
            Order::Rate => number(one.rate, other.rate),
            Order::Pending => b.pending.cmp(&a.pending),
            Order::Oldest => number(a.oldest_seconds, b.oldest_seconds),
            Order::Name => Ordering::Equal,
        };
        first.then_with(|| (&a.namespace, &a.family).cmp(&(&b.namespace, &b.family)))
    }
}

impl Table {
    pub fn update(&mut self, snapshots: &[Snapshot]) {
        self.snapshots = snapshots.to_vec();
        let last = self.rows().len().saturating_sub(1);
        self.state
            .select(Some(self.state.selected().unwrap_or(0).min(last)));
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
        rows.sort_by(|(_, one), (_, other)| self.order.compare(one, other));
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
            (false, KeyCode::Char('s')) => self.order = self.order.next(),
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
