//! `bpfof top`: the activity of a running target, live, over its control socket.
//!
//! A thread asks the target for its report every interval; changes since the last report become rates and latencies, as
//! tables of hosts, namespaces, functions and reactors. Keys, reports and signals come as events to one loop, which
//! changes the state and draws it. The state knows no terminal and no socket, and is tested without them.
//!
//! # What this crate does not do
//!
//! It counts nothing, and keeps no history but the curve at the top: histories are for the metrics.

mod app;
mod figures;
mod link;
mod report;
mod table;
mod view;

use app::{Action, App};
use bpfof_operations::client::ControlSocket;
use bpfof_terminal::{Outcome, stop_on_signal};
use clap::Args;
use crossterm::event::{self, Event as TerminalEvent, KeyEventKind};
use figures::Figures;
use link::{Link, News};
use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

/// How soon a signal is noticed between two printed reports.
const LOOK: Duration = Duration::from_millis(50);
/// How many events may wait.
const EVENTS_MAX: usize = 16;

/// Options of `bpfof top`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    control: ControlSocket,
    /// Time between two reports, in s.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print the tables once, after one interval, and end.
    #[arg(long)]
    once: bool,
    /// Print a JSON object a line after each interval; with --once only one.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("from 0.1 to 3600 seconds".to_owned()),
    }
}

/// An event of the main loop.
enum Event {
    Terminal(TerminalEvent),
    Target(News),
    /// A signal asks the program to end, or the terminal is gone.
    End,
}

/// Shows a target until the user quits.
///
/// # Errors
/// A message for the user.
pub fn run(options: &Options) -> Outcome {
    if options.once || options.json {
        return print(options);
    }
    if !io::stdout().is_terminal() {
        return Err("standard output is not a terminal; use --once or --json".into());
    }
    let terminal = ratatui::try_init()?;
    let outcome = show(options, terminal);
    ratatui::restore();
    outcome
}

fn show(options: &Options, mut terminal: DefaultTerminal) -> Outcome {
    // Bounded: while the terminal takes nothing, reports must not pile up.
    let (events, happened) = mpsc::sync_channel(EVENTS_MAX);
    let (kicks, wanted) = mpsc::channel();
    let link = Link::new(&options.control.socket);
    let (interval, target) = (options.interval, events.clone());
    std::thread::Builder::new().name("target".into()).spawn(move || {
        link.follow(interval, &wanted, |news| target.send(Event::Target(news)).is_ok());
    })?;
    watch_terminal(events.clone())?;
    watch_signals(events)?;
    let socket = options.control.socket.display().to_string();
    let mut app = App::new(socket, options.interval.as_secs_f64());
    loop {
        terminal.draw(|frame| view::draw(frame, &app))?;
        match happened.recv()? {
            Event::Target(News::Report(report)) => app.told(*report),
            Event::Target(News::Lost(why)) => app.lost(why),
            Event::Target(News::Kicked(outcome)) => app.kicked(outcome),
            Event::Terminal(TerminalEvent::Key(key)) if key.kind != KeyEventKind::Release => {
                match app.key(key) {
                    Action::Nothing => {}
                    Action::Quit => return Ok(()),
                    Action::Kick(host) => kicks.send(host)?,
                }
            }
            // The next drawing sees the new size.
            Event::Terminal(_) => {}
            Event::End => return Ok(()),
        }
    }
}

fn watch_terminal(events: SyncSender<Event>) -> io::Result<()> {
    let watch = move || {
        while let Ok(event) = event::read() {
            if events.send(Event::Terminal(event)).is_err() {
                return;
            }
        }
        let _ = events.send(Event::End);
    };
    std::thread::Builder::new().name("terminal".into()).spawn(watch)?;
    Ok(())
}

fn watch_signals(events: SyncSender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let watch = move || {
        if signals.forever().next().is_some() {
            let _ = events.send(Event::End);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch)?;
    Ok(())
}

/// Prints tables or JSON for other programs. Here the loss of the target is an error.
fn print(options: &Options) -> Outcome {
    let stop = stop_on_signal()?;
    let mut link = Link::new(&options.control.socket);
    let mut before = link.report()?;
    while wait(options.interval, &stop) {
        let now = link.report()?;
        let figures = Figures::of(&now, Some(&before));
        let mut output = bpfof_terminal::output();
        if options.json {
            writeln!(output, "{}", figures.json())?;
        } else {
            for table in &figures.tables {
                writeln!(output, "{}\n", table.lines().join("\n"))?;
            }
        }
        output.flush()?;
        if options.once {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Waits for the interval; false if a signal comes first.
fn wait(interval: Duration, stop: &AtomicBool) -> bool {
    let begun = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match interval.checked_sub(begun.elapsed()) {
            Some(left) => std::thread::sleep(left.min(LOOK)),
            None => return true,
        }
    }
    false
}
