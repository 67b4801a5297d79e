//! A program in a terminal: a pseudo-terminal of the kernel, and an emulator that computes the visible screen.

pub(crate) mod svg;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use vt100::Parser;

/// Longest wait for a state of the screen.
const PATIENCE: Duration = Duration::from_secs(30);

/// The visible screen, and a condition variable for its changes.
struct Seen {
    parser: Mutex<Parser>,
    changed: Condvar,
}

/// The terminal, with the program in it.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keyboard: File,
    seen: Arc<Seen>,
}

impl Terminal {
    /// Runs a program in a terminal of this many lines and columns.
    pub(crate) fn run(program: &str, arguments: &[&str], lines: u16, columns: u16) -> Terminal {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&controller).expect("granted");
        unlockpt(&controller).expect("unlocked");
        let keyboard = File::from(controller);
        tcsetwinsize(&keyboard, size(lines, columns)).expect("a size");
        let name = ptsname(&keyboard, Vec::new()).expect("a name");
        let open = || {
            let path = OsStr::from_bytes(name.as_bytes());
            Stdio::from(File::options().read(true).write(true).open(path).expect("it opens"))
        };
        // A session of its own, which this terminal controls: signals come from there.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).args(arguments).env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR").stdin(open()).stdout(open()).stderr(open());
        let child = command.spawn().expect("it starts");
        drop(command);
        let seen = Arc::new(Seen {
            parser: Mutex::new(Parser::new(lines, columns, 0)),
            changed: Condvar::new(),
        });
        let (mut output, sees) = (keyboard.try_clone().expect("a descriptor"), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error means that the last program in the terminal has ended.
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                sees.parser.lock().expect("it is whole").process(&bytes[..length]);
                sees.changed.notify_all();
            }
        });
        Terminal { child, keyboard, seen }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a keyboard");
    }

    pub(crate) fn resize(&mut self, lines: u16, columns: u16) {
        self.seen.parser.lock().expect("it is whole").screen_mut().set_size(lines, columns);
        tcsetwinsize(&self.keyboard, size(lines, columns)).expect("a size");
    }

    /// Waits until the screen satisfies `is_so`, and returns it.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let parser = self.seen.parser.lock().expect("it is whole");
        let (parser, timed_out) = self
            .seen
            .changed
            .wait_timeout_while(parser, PATIENCE, |parser| !is_so(&parser.screen().contents()))
            .expect("it is whole");
        let text = parser.screen().contents();
        assert!(!timed_out.timed_out(), "the screen never showed {what}:\n{text}");
        text
    }

    /// Waits until the screen shows all of these words.
    pub(crate) fn until_shows(&self, words: &[&str]) -> String {
        self.until(&words.join(", "), |text| words.iter().all(|word| text.contains(word)))
    }

    /// The screen as a picture.
    pub(crate) fn picture(&self, title: &str) -> String {
        svg::draw(self.seen.parser.lock().expect("it is whole").screen(), title)
    }

    /// Waits for the end of the program, after which the terminal must be in its former state.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None => assert!(Instant::now() < end, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let modes = tcgetattr(&self.keyboard).expect("modes").local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "raw: {modes:?}");
        let parser = self.seen.parser.lock().expect("it is whole");
        let (parser, timed_out) = self
            .seen
            .changed
            .wait_timeout_while(parser, PATIENCE, |parser| parser.screen().alternate_screen())
            .expect("it is whole");
        assert!(!timed_out.timed_out(), "{}", parser.screen().contents());
        assert!(!parser.screen().hide_cursor(), "the cursor is hidden");
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(lines: u16, columns: u16) -> Winsize {
    Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
