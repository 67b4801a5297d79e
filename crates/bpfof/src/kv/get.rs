//! `bpfof kv get`: keys from the command line and from standard input, as they come.

use super::common::{target, text};
use bpfof_host::{Options as HostOptions, TargetUrl};
use bpfof_kv::{GrantedFile, Looked, Session, SessionError};
use bpfof_terminal::{Outcome, forbid_core_dumps, output, target_url, tell};
use clap::Args;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;

/// Most keys of standard input that are looked up together.
const TOGETHER_MAX: usize = 4096;
/// Longest line with a key, in bytes without its end.
const LINE_MAX_BYTES: usize = 63;

#[derive(Args)]
pub(crate) struct Get {
    /// The target: nvme-tcp://HOST:PORT/NQN?ns=1 [env: BPFOF_TARGET, without --grantd].
    #[arg(long, value_parser = target_url)]
    target: Option<TargetUrl>,
    /// The socket of the grant daemon, for a database in a file; needs no privileges.
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["target", "plain", "cache"], requires = "file")]
    grantd: Option<PathBuf>,
    /// The file with the database, with --grantd.
    #[arg(long, requires = "grantd")]
    file: Option<PathBuf>,
    /// Read plainly, one network round trip a hop, instead of pushing the lookup down.
    #[arg(long)]
    plain: bool,
    /// Hold the top levels of the tree on the host, 0 to 3.
    #[arg(long, default_value_t = 0, value_name = "LEVELS")]
    cache: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Keys to look up, up to 256 in one command to the target; - takes them from standard input, one a
    /// line, and looks them up as they arrive. If the lookups of some keys fail, the keys looked up with them are
    /// printed before the program fails.
    #[arg(required = true, value_name = "KEY", value_parser = key)]
    keys: Vec<Key>,
}

#[derive(Clone, Copy)]
enum Key {
    Given(u64),
    /// The keys of standard input.
    Input,
}

fn key(text: &str) -> Result<Key, String> {
    match text {
        "-" => Ok(Key::Input),
        _ => number(text).map(Key::Given),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not a key: a key is a whole number from 0 to {}", u64::MAX)
    })
}

/// Where keys are looked up.
enum Store {
    Target(Box<Session>, bool),
    Granted(Box<GrantedFile>),
}

impl Store {
    fn open(options: &Get) -> Result<Self, Box<dyn std::error::Error>> {
        if let (Some(socket), Some(file)) = (&options.grantd, &options.file) {
            // The daemon may hand over a connection with the keys of its TLS records.
            forbid_core_dumps()?;
            let store = GrantedFile::open(socket, file)?;
            if let Some(refusal) = store.refusal() {
                tell(format_args!("lookups run on this machine: {refusal}"));
            }
            return Ok(Self::Granted(Box::new(store)));
        }
        let url = target(options.target.as_ref(), "--grantd")?;
        let session = Session::open(&url, HostOptions::default(), options.cache)?;
        Ok(Self::Target(Box::new(session), options.plain))
    }

    fn get(&mut self, keys: &[u64]) -> Result<Vec<Looked>, SessionError> {
        match self {
            Self::Target(session, plain) => session.get_each(keys, *plain),
            Self::Granted(store) => store.get_each(keys),
        }
    }
}

/// Prints keys with their values, in order.
struct Printer<W: Write> {
    out: W,
    json: bool,
    printed: u64,
    missing: u64,
}

impl<W: Write> Printer<W> {
    /// Prints the keys whose lookups succeeded. The first one that failed is the error.
    fn print(&mut self, keys: &[u64], values: Vec<Looked>) -> Outcome {
        let mut problem = None;
        for (key, value) in keys.iter().zip(values) {
            let value = match value {
                Ok(value) => value.as_ref().map(text),
                Err(error) => {
                    problem.get_or_insert_with(|| format!("key {key}: {error}"));
                    continue;
                }
            };
            self.missing += u64::from(value.is_none());
            if self.json {
                let separator = if self.printed == 0 { "[" } else { "," };
                let pair = serde_json::json!({ "key": key, "value": value });
                writeln!(self.out, "{separator}{pair}")?;
            } else {
                writeln!(self.out, "{key} {}", value.as_deref().unwrap_or("(not found)"))?;
            }
            self.printed += 1;
        }
        self.out.flush()?;
        problem.map_or(Ok(()), |problem| Err(problem.into()))
    }

    /// Ends the output, whether the lookups succeeded or failed.
    fn end(mut self, outcome: Outcome) -> Outcome {
        let closed = match (self.json, self.printed) {
            (false, _) => Ok(()),
            (true, 0) => writeln!(self.out, "[]"),
            (true, _) => writeln!(self.out, "]"),
        };
        let closed = closed.and_then(|()| self.out.flush());
        outcome?;
        closed?;
        match self.missing {
            0 => Ok(()),
            _ => Err("some keys were not found".into()),
        }
    }
}

/// Keys as they come from a reader, one a line.
struct Lines<R> {
    input: BufReader<R>,
    line: u64,
}

impl<R: Read> Lines<R> {
    /// Reads the keys that are available, at least one and at most `most`, without waiting for more. `keys` is empty at
    /// the end of the input.
    ///
    /// # Errors
    /// A line is not a key; `keys` has the keys before it.
    fn take(&mut self, most: usize, keys: &mut Vec<u64>) -> Result<(), String> {
        keys.clear();
        let mut bytes = Vec::new();
        while keys.is_empty() || keys.len() < most && self.input.buffer().contains(&b'\n') {
            bytes.clear();
            self.line += 1;
            let problem = |what: String| format!("standard input, line {}: {what}", self.line);
            let mut line = (&mut self.input).take(LINE_MAX_BYTES as u64 + 1);
            line.read_until(b'\n', &mut bytes).map_err(|error| problem(error.to_string()))?;
            if bytes.is_empty() {
                break;
            }
            if bytes.len() > LINE_MAX_BYTES && !bytes.ends_with(b"\n") {
                return Err(problem(format!("it is longer than {LINE_MAX_BYTES} bytes")));
            }
            let text = str::from_utf8(&bytes).map_err(|error| problem(error.to_string()))?.trim();
            if !text.is_empty() {
                keys.push(number(text).map_err(problem)?);
            }
        }
        Ok(())
    }
}

pub(super) fn run(options: &Get) -> Outcome {
    let mut store = Store::open(options)?;
    let out = BufWriter::new(output());
    let mut printer = Printer { out, json: options.json, printed: 0, missing: 0 };
    let outcome = look_up(&options.keys, &mut store, &mut printer);
    printer.end(outcome)
}

fn look_up(given: &[Key], store: &mut Store, printer: &mut Printer<impl Write>) -> Outcome {
    let mut given = given.iter().peekable();
    let mut keys = Vec::new();
    while let Some(key) = given.next() {
        match key {
            Key::Given(key) => {
                keys.push(*key);
                if !matches!(given.peek(), Some(Key::Given(_))) {
                    printer.print(&keys, store.get(&keys)?)?;
                    keys.clear();
                }
            }
            Key::Input => {
                let mut lines = Lines { input: BufReader::new(io::stdin().lock()), line: 0 };
                loop {
                    let taken = lines.take(TOGETHER_MAX, &mut keys);
                    if !keys.is_empty() {
                        printer.print(&keys, store.get(&keys)?)?;
                    }
                    taken?;
                    if keys.is_empty() {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its pieces one at a time, as a pipe does.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let mut piece = self.0.remove(0);
            piece.read(buffer)
        }
    }

    fn batches(pieces: &[&'static [u8]], most: usize) -> Vec<Vec<u64>> {
        let mut lines = Lines { input: BufReader::new(Pieces(pieces.to_vec())), line: 0 };
        let (mut batches, mut keys) = (Vec::new(), Vec::new());
        loop {
            lines.take(most, &mut keys).expect("keys");
            if keys.is_empty() {
                return batches;
            }
            batches.push(keys.clone());
        }
    }

    #[test]
    fn keys_are_taken_as_they_come() {
        assert_eq!(
            batches(&[b"1\n2\n3", b"4\n", b"5\n6\n"], 9),
            [vec![1, 2], vec![34], vec![5, 6]]
        );
        assert_eq!(batches(&[b"1\n2\n3\n4\n5"], 2), [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(batches(&[b"\n  7 \r\n\n"], 9), [[7]]);
        assert!(batches(&[], 9).is_empty() && batches(&[b"\n\n"], 9).is_empty());
    }

    #[test]
    fn invalid_keys_are_reported_with_their_line() {
        let long: &'static [u8] = &[b'1'; 200];
        let too_long = "longer than 63 bytes";
        // The first 63 of 64 digits are not taken for a key.
        let two: &'static [u8] = &[b'0'; 64];
        for (bad, line, why) in [
            (&b"1\n\nx\n"[..], 3, "\"x\" is not a key"),
            (b"-1\n", 1, "is not a key"),
            (long, 1, too_long),
            (two, 1, too_long),
            (b"\xff\n", 1, "utf-8"),
        ] {
            let mut lines = Lines { input: BufReader::new(bad), line: 0 };
            let mut keys = Vec::new();
            let error = lines.take(9, &mut keys).expect_err("no key");
            assert!(error.contains(&format!("standard input, line {line}: ")), "{error}");
            assert!(error.contains(why), "{error}");
        }
        let spaces = [&[b' '; 60][..], b"7\n8"].concat();
        let mut lines = Lines { input: BufReader::new(&spaces[..]), line: 0 };
        let mut keys = Vec::new();
        lines.take(9, &mut keys).expect("short lines");
        assert_eq!(keys, [7]);
    }

    #[test]
    fn keys_before_an_invalid_line_are_returned() {
        let mut lines = Lines { input: BufReader::new(&b"1\n2\nx\n3\n"[..]), line: 0 };
        let mut keys = Vec::new();
        lines.take(9, &mut keys).expect_err("no key");
        assert_eq!(keys, [1, 2]);
    }

    /// The output for these results, and the error.
    fn printed(json: bool, values: Vec<Looked>, then: Outcome) -> (String, String) {
        let mut bytes = Vec::new();
        let mut printer = Printer { out: &mut bytes, json, printed: 0, missing: 0 };
        let outcome = printer.print(&[1, 2, 3], values).and(then);
        let error = printer.end(outcome).err().map_or(String::new(), |error| error.to_string());
        (String::from_utf8(bytes).expect("UTF-8"), error)
    }

    #[test]
    fn found_values_are_printed_even_after_a_failure() {
        let mut value = [0; 64];
        value[..1].copy_from_slice(b"a");
        let values =
            || vec![Ok(Some(value)), Err(SessionError::Aborted("damaged".into())), Ok(None)];
        let (lines, error) = printed(false, values(), Ok(()));
        assert!(lines.starts_with("1 ") && lines.ends_with("3 (not found)\n"), "{lines}");
        assert_eq!((lines.lines().count(), &*error), (2, "key 2: damaged"));
        for (values, then, keys) in [
            (values(), Ok(()), vec![1, 3]),
            (vec![Ok(None)], Err("the connection is lost".into()), vec![1]),
            (vec![], Err("line 1".into()), vec![]),
        ] {
            let (text, error) = printed(true, values, then);
            let array: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
            let found: Vec<_> = array.iter().map(|pair| pair["key"].as_u64()).collect();
            assert_eq!(found, keys.into_iter().map(Some).collect::<Vec<_>>());
            assert!(!error.is_empty());
        }
    }
}
