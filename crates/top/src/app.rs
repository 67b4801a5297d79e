//! The state that is shown, and how keys change it: no terminal, no socket.

use crate::figures::{Figures, IDENTIFIED, TABLES};
use crate::report::Report;
use crate::table::{Cell, Order, Row, Table};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::VecDeque;
use std::fmt;

/// Most rates of the curve at the top.
const HISTORY: usize = 512;
/// Rows that a page key moves the selection by.
const PAGE: usize = 10;
/// The table of hosts.
const HOSTS: usize = 0;

/// What the caller must do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    Quit,
    /// End the associations of a host.
    Kick(Host),
}

/// The host to kick: a name at an address, or a host that TLS has identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) nqn: String,
    pub(crate) address: Option<String>,
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(out, "{} at {address}", self.nqn),
            None => out.write_str(&self.nqn),
        }
    }
}

/// The state of the connection to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Connecting,
    Live,
    /// Why there is no connection.
    Lost(String),
}

/// A window in front of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dialog {
    Help,
    /// Asks whether the associations of this host are to end.
    Kick(Host),
}

/// The order and selection of a table.
#[derive(Clone, Debug)]
pub(crate) struct Pane {
    pub(crate) order: Order,
    /// The key of the selected row, which stays selected when rows move.
    selected: Option<String>,
}

/// The whole state.
#[derive(Debug)]
pub(crate) struct App {
    /// The target's control socket.
    pub(crate) socket: String,
    pub(crate) interval_s: f64,
    pub(crate) link: Link,
    pub(crate) figures: Option<Figures>,
    /// Operations a second, the newest last.
    pub(crate) history: VecDeque<u64>,
    pub(crate) tab: usize,
    pub(crate) panes: [Pane; TABLES],
    pub(crate) paused: bool,
    pub(crate) dialog: Option<Dialog>,
    /// The outcome of the last request.
    pub(crate) message: Option<String>,
    before: Option<Report>,
}

impl App {
    pub(crate) fn new(socket: String, interval_s: f64) -> App {
        let pane =
            |column, descending| Pane { order: Order { column, descending }, selected: None };
        App {
            socket,
            interval_s,
            link: Link::Connecting,
            figures: None,
            history: VecDeque::new(),
            tab: HOSTS,
            // Most chains a second first; reactors by number.
            panes: [pane(2, true), pane(2, true), pane(2, true), pane(0, false)],
            paused: false,
            dialog: None,
            message: None,
            before: None,
        }
    }

    /// Handles a report of the target.
    pub(crate) fn told(&mut self, report: Report) {
        self.link = Link::Live;
        if !self.paused {
            let mut figures = Figures::of(&report, self.before.as_ref());
            for (table, pane) in figures.tables.iter_mut().zip(&self.panes) {
                table.sort(pane.order);
            }
            if let Some(rate) = figures.summary.operations_per_s {
                if self.history.len() == HISTORY {
                    self.history.pop_front();
                }
                self.history.push_back(rate as u64);
            }
            self.figures = Some(figures);
        }
        self.before = Some(report);
    }

    /// Handles the loss of the target. The last figures stay visible.
    pub(crate) fn lost(&mut self, why: String) {
        self.link = Link::Lost(why);
        self.before = None;
    }

    /// Handles the outcome of a kick.
    pub(crate) fn kicked(&mut self, outcome: Result<String, String>) {
        self.message = Some(outcome.unwrap_or_else(|why| format!("not kicked: {why}")));
    }

    pub(crate) fn table(&self) -> Option<&Table> {
        self.figures.as_ref().map(|figures| &figures.tables[self.tab])
    }

    pub(crate) fn pane(&self) -> &Pane {
        &self.panes[self.tab]
    }

    /// The index of the selected row.
    pub(crate) fn selected(&self) -> Option<usize> {
        let key = self.pane().selected.as_ref()?;
        self.table()?.rows.iter().position(|row| row.key == *key)
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        self.message = None;
        match self.dialog.take() {
            Some(Dialog::Kick(host)) if key.code == KeyCode::Char('y') => {
                return Action::Kick(host);
            }
            Some(Dialog::Kick(_)) => self.message = Some("no host was kicked".to_owned()),
            Some(Dialog::Help) => {}
            None => return self.command(key.code),
        }
        Action::Nothing
    }

    fn command(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.dialog = Some(Dialog::Help),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char(digit @ '1'..='4') => self.tab = digit as usize - '1' as usize,
            KeyCode::Tab | KeyCode::Right => self.tab = (self.tab + 1) % TABLES,
            KeyCode::BackTab | KeyCode::Left => self.tab = (self.tab + TABLES - 1) % TABLES,
            KeyCode::Char('s' | '>') => self.sort_by_next(1),
            KeyCode::Char('S' | '<') => self.sort_by_next(-1),
            KeyCode::Char('r') => {
                self.panes[self.tab].order.descending ^= true;
                self.sort();
            }
            KeyCode::Up => self.select_by(-1),
            KeyCode::Down => self.select_by(1),
            KeyCode::PageUp => self.select_by(-(PAGE as isize)),
            KeyCode::PageDown => self.select_by(PAGE as isize),
            KeyCode::Home => self.select_by(isize::MIN),
            KeyCode::End => self.select_by(isize::MAX),
            KeyCode::Char('k') => self.ask_to_kick(),
            _ => {}
        }
        Action::Nothing
    }

    fn sort_by_next(&mut self, step: isize) {
        let Some(columns) = self.table().map(|table| table.columns) else { return };
        let order = &mut self.panes[self.tab].order;
        order.column = (order.column as isize + step).rem_euclid(columns.len() as isize) as usize;
        // Names ascending, figures descending.
        order.descending = columns[order.column].unit != crate::table::Unit::Text;
        self.sort();
    }

    fn sort(&mut self) {
        let order = self.panes[self.tab].order;
        if let Some(figures) = &mut self.figures {
            figures.tables[self.tab].sort(order);
        }
    }

    fn select_by(&mut self, step: isize) {
        let Some(last) = self.table().and_then(|table| table.rows.len().checked_sub(1)) else {
            return;
        };
        let place = match self.selected() {
            Some(place) => place.saturating_add_signed(step).min(last),
            None if step == isize::MAX => last,
            None => 0,
        };
        let key = self.table().map(|table| table.rows[place].key.clone());
        self.panes[self.tab].selected = key;
    }

    fn ask_to_kick(&mut self) {
        let host = |row: &Row| {
            let word = |cell: &Cell| match cell {
                Cell::Text(text) => Some(text.clone()),
                _ => None,
            };
            let address = word(&row.cells[1]).filter(|address| address != IDENTIFIED);
            Some(Host { nqn: word(&row.cells[0])?, address })
        };
        let chosen = self.selected().and_then(|place| self.table()?.rows.get(place).and_then(host));
        match chosen.filter(|_| self.tab == HOSTS) {
            Some(host) => self.dialog = Some(Dialog::Kick(host)),
            None => self.message = Some("choose a host to kick: 1, then the arrow keys".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn app(hosts: &[(&str, u64)]) -> App {
        let mut app = App::new("socket".into(), 1.0);
        app.told(report(1, &hosts.iter().map(|(name, _)| (*name, 0)).collect::<Vec<_>>()));
        app.told(report(2, hosts));
        app
    }

    fn report(seconds: u64, hosts: &[(&str, u64)]) -> Report {
        let hosts: Vec<_> = hosts
            .iter()
            .map(|(name, chains)| {
                let serial = name.as_bytes()[0];
                json!({ "serial": serial, "nqn": name, "totals": { "chains": chains } })
            })
            .collect();
        let reactors = json!([{ "time_ns": seconds * 1_000_000_000, "idle_ns": 0 }]);
        serde_json::from_value(json!({ "hosts": hosts, "reactors": reactors })).expect("a report")
    }

    fn press(app: &mut App, keys: &[KeyCode]) -> Action {
        let mut last = Action::Nothing;
        for key in keys {
            last = app.key(KeyEvent::from(*key));
        }
        last
    }

    fn names(app: &App) -> String {
        let rows = &app.table().expect("a table").rows;
        rows.iter().map(|row| row.cells[0].text(crate::table::Unit::Text)).collect()
    }

    #[test]
    fn rows_are_sorted_by_keys_and_stay_selected() {
        let mut app = app(&[("a", 1), ("b", 3), ("c", 2)]);
        assert_eq!(names(&app), "bca");
        press(&mut app, &[KeyCode::Down, KeyCode::Down]);
        assert_eq!(app.selected(), Some(1));
        press(&mut app, &[KeyCode::Char('r')]);
        assert_eq!((names(&app).as_str(), app.selected()), ("acb", Some(1)));
        press(&mut app, &[KeyCode::Char('S'), KeyCode::Char('S')]);
        assert_eq!((names(&app).as_str(), app.selected()), ("abc", Some(2)));
        app.told(report(3, &[("c", 2), ("d", 9)]));
        assert_eq!((names(&app).as_str(), app.selected()), ("cd", Some(0)));
        app.told(report(4, &[("d", 9)]));
        assert_eq!(app.selected(), None);
        press(&mut app, &[KeyCode::End, KeyCode::PageDown, KeyCode::Home, KeyCode::Up]);
        assert_eq!(app.selected(), Some(0));
    }

    #[test]
    fn kicking_has_to_be_confirmed() {
        let mut app = app(&[("a", 1)]);
        assert_eq!(press(&mut app, &[KeyCode::Char('k'), KeyCode::Char('y')]), Action::Nothing);
        assert!(app.dialog.is_none());
        press(&mut app, &[KeyCode::Down]);
        for refused in [KeyCode::Enter, KeyCode::Char('n'), KeyCode::Esc] {
            assert_eq!(press(&mut app, &[KeyCode::Char('k'), refused]), Action::Nothing);
            assert_eq!(app.message.as_deref(), Some("no host was kicked"));
        }
        let kicked = press(&mut app, &[KeyCode::Char('k'), KeyCode::Char('y')]);
        assert_eq!(kicked, Action::Kick(Host { nqn: "a".to_owned(), address: None }));
        let elsewhere =
            press(&mut app, &[KeyCode::Char('2'), KeyCode::Char('k'), KeyCode::Char('y')]);
        assert_eq!(elsewhere, Action::Nothing);
    }

    #[test]
    fn a_pause_keeps_what_is_shown() {
        let mut app = app(&[("a", 1)]);
        press(&mut app, &[KeyCode::Char('p')]);
        app.told(report(3, &[("b", 1)]));
        assert_eq!(names(&app), "a");
        press(&mut app, &[KeyCode::Char('p')]);
        app.told(report(4, &[("b", 5)]));
        assert_eq!((names(&app).as_str(), app.history.len()), ("b", 2));
    }

    #[test]
    fn last_figures_stay_when_the_target_is_lost() {
        let mut app = app(&[("a", 1)]);
        app.lost("gone".into());
        assert_eq!((names(&app).as_str(), &app.link), ("a", &Link::Lost("gone".into())));
        app.told(report(1, &[("b", 9)]));
        let rate = &app.table().expect("a table").rows[0].cells[2];
        assert_eq!((names(&app).as_str(), rate), ("b", &crate::table::Cell::Nothing));
    }
}
