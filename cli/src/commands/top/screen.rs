//! The drawing of the table.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Cell, Paragraph, Row};

use super::Snapshot;
use super::table::Table;
use crate::output::short;
use crate::poll::ServerStatus;
use crate::status::{State, unix_now};
use crate::view::FamilyView;

const HEADS: [&str; 8] = [
    "PAIR", "FAMILY", "KIND", "HITS/S", "PENDING", "OLDEST", "REJECTS", "STATE",
];

pub fn draw(frame: &mut Frame, table: &mut Table) {
    let servers: Vec<_> = table.snapshots().iter().map(servers).collect();
    let height = u16::try_from(servers.len().max(1)).unwrap_or(u16::MAX);
    let [top, middle, bottom] = Layout::vertical([
        Constraint::Length(height),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let waiting = vec![Line::from("connecting ...")];
    frame.render_widget(
        Paragraph::new(if servers.is_empty() { waiting } else { servers }),
        top,
    );

    let now = unix_now();
    let rows: Vec<_> = table
        .rows()
        .into_iter()
        .map(|(pair, family)| row(pair, family, now))
        .collect();
    let number = rows.len();
    let widths = [
        Constraint::Length(10),
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(13),
    ];
    let heads = HEADS.iter().enumerate().map(|(column, head)| match column {
        3..=6 => Cell::from(Line::from(*head).right_aligned()),
        _ => Cell::from(*head),
    });
    let rows = widgets::Table::new(rows, widths)
        .header(Row::new(heads).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(rows, middle, &mut table.state);
    frame.render_widget(Paragraph::new(help(table, number)), bottom);
}

fn servers(snapshot: &Snapshot) -> Line<'_> {
    let server = |name: &'static str, status: &ServerStatus| match &status.why {
        None => Span::styled(format!("  {name} up"), Color::Green),
        Some(why) => Span::styled(format!("  {name} unavailable: {why}"), Color::Red),
    };
    Line::from(vec![
        Span::raw(snapshot.pair.clone()),
        server("redis", &snapshot.redis),
        server("mysql", &snapshot.mysql),
    ])
}

fn row(pair: &str, family: &FamilyView, now: u64) -> Row<'static> {
    let FamilyView { status, rate, .. } = family;
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let color = match status.state {
        State::Ok => Color::Reset,
        State::Rejects => Color::Yellow,
        State::Late | State::Broken => Color::Red,
    };
    let mut state = vec![Span::styled(status.state.name(), color)];
    if family.is_stale(now) {
        state.push(Span::styled(" stale", Color::Red));
    }
    Row::new([
        Cell::from(pair.to_owned()),
        Cell::from(status.name()),
        Cell::from(status.kind),
        right(rate.map(|rate| format!("{rate:.1}")).unwrap_or_default()),
        right(status.pending.to_string()),
        right(status.oldest_seconds.map(short).unwrap_or_default()),
        right(status.rejects.to_string()),
        Cell::from(Line::from(state)),
    ])
}

fn help(table: &Table, number: usize) -> String {
    match table.is_typing {
        true => format!("filter: {}_   Enter keeps it, Esc clears it", table.filter),
        false if table.filter.is_empty() => {
            format!(
                "{number} families by {}   q quits, j k scroll, s sorts, / filters",
                table.order()
            )
        }
        false => format!(
            "{number} families with {:?} by {}   q quits, / filters",
            table.filter,
            table.order()
        ),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::status::STALE_SECONDS;

    fn family(name: &str, pending: u64, state: State) -> FamilyView {
        let mut family = FamilyView::idle("shop", name);
        family.status.pending = pending;
        family.status.oldest_seconds = (pending > 0).then_some(3.0);
        family.status.state = state;
        family.status.seen = Some(unix_now());
        family.rate = Some(pending as f64 / 2.0);
        family
    }

    fn table() -> Table {
        let up = ServerStatus {
            up: true,
            why: None,
        };
        let down = ServerStatus {
            up: false,
            why: Some("no reply within 5 s".to_owned()),
        };
        let families = vec![
            family("a", 5, State::Ok),
            family("b", 70, State::Ok),
            family("c", 1, State::Late),
        ];
        let mut table = Table::default();
        table.update(&[Snapshot {
            pair: "main".to_owned(),
            redis: up,
            mysql: down,
            families,
        }]);
        table
    }

    fn lines(table: &mut Table) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(90, 8)).expect("a terminal");
        terminal.draw(|frame| draw(frame, table)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| {
            (0..90)
                .map(|x| buffer[(x, y)].symbol().to_owned())
                .collect::<String>()
                .trim_end()
                .to_owned()
        };
        (0..8).map(line).collect()
    }

    /// Returns the names in the order of the rows.
    fn names(table: &mut Table) -> Vec<String> {
        let rows = lines(table)[2..7]
            .to_vec()
            .into_iter()
            .filter_map(|line| Some(line.split_once("shop/")?.1.get(..1)?.to_owned()));
        rows.collect()
    }

    fn press(table: &mut Table, keys: &str) {
        for key in keys.chars() {
            let code = if key == '\n' {
                KeyCode::Enter
            } else {
                KeyCode::Char(key)
            };
            assert!(table.press(KeyEvent::from(code)).is_continue(), "{key:?}");
        }
    }

    #[test]
    fn servers_rows_and_help_are_there() {
        let lines = lines(&mut table());
        assert_eq!(
            lines[0],
            "main  redis up  mysql unavailable: no reply within 5 s"
        );
        assert!(
            lines[1].starts_with("PAIR") && lines[1].ends_with("STATE"),
            "{lines:#?}"
        );
        let cells: Vec<_> = lines[3].split_whitespace().collect();
        assert_eq!(
            cells,
            ["main", "shop/a", "buffered", "2.5", "5", "3s", "0", "ok"]
        );
        assert!(lines[7].starts_with("3 families by state"), "{lines:#?}");
    }

    #[test]
    fn stale_figures_are_marked() {
        let mut old = family("a", 5, State::Late);
        old.status.seen = Some(unix_now() - STALE_SECONDS - 1);
        let up = ServerStatus {
            up: true,
            why: None,
        };
        let mut table = Table::default();
        table.update(&[Snapshot {
            pair: "main".to_owned(),
            redis: up.clone(),
            mysql: up,
            families: vec![old, family("b", 70, State::Ok)],
        }]);
        let lines = lines(&mut table);
        assert!(lines[2].ends_with("late stale"), "{lines:#?}");
        assert!(lines[3].ends_with("ok"), "{lines:#?}");
    }

    #[test]
    fn trouble_is_first_and_s_changes_the_order() {
        let mut table = table();
        assert_eq!(names(&mut table), ["c", "a", "b"]);
        for expected in [
            ["b", "a", "c"],
            ["b", "a", "c"],
            ["a", "b", "c"],
            ["a", "b", "c"],
            ["c", "a", "b"],
        ] {
            press(&mut table, "s");
            assert_eq!(names(&mut table), expected, "{}", table.order());
        }
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let mut table = table();
        press(&mut table, "/shop/b\n");
        assert_eq!(names(&mut table), ["b"]);
        press(&mut table, "/q");
        assert!(
            names(&mut table).is_empty(),
            "a q is part of the filter while it is typed"
        );
        assert!(table.press(KeyEvent::from(KeyCode::Esc)).is_continue());
        assert_eq!(names(&mut table).len(), 3);
    }

    #[test]
    fn scrolling_stays_within_the_rows() {
        let mut table = table();
        press(&mut table, "kk");
        assert_eq!(table.state.selected(), Some(0));
        press(&mut table, "jjjjjj");
        assert_eq!(table.state.selected(), Some(2));
        table.update(&[]);
        assert_eq!(table.state.selected(), Some(0));
    }

    #[test]
    fn q_escape_and_ctrl_c_leave() {
        let ctrl_c = KeyEvent::new(
            KeyCode::Char('c'),
            ratatui::crossterm::event::KeyModifiers::CONTROL,
        );
        for key in [
            KeyEvent::from(KeyCode::Char('q')),
            KeyEvent::from(KeyCode::Esc),
            ctrl_c,
        ] {
            assert!(table().press(key).is_break(), "{key:?}");
        }
    }
}
