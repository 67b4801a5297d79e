//! The answer: merges the parts of the files and writes the result.

use crate::Failure;
use crate::arrow_file::{ArrowFile, wait_until};
use bpfof_query::ask::{Cost, Session};
use bpfof_query::infer::Source;
use bpfof_query::output::{Output, Style};
use bpfof_query::sql::Question;
use bpfof_query::{Partial, Settings};
use bpfof_terminal::progress::{self, Report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// How long to wait for a reader before checking for a signal.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A question, and the files that it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) question: &'a Question,
    pub(crate) source: &'a Source,
    pub(crate) session: &'a Session,
}

/// The destination of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination<'a> {
    Print(Style),
    /// A file, which appears only once it is complete; or a pipe or a device.
    Arrow(&'a Path),
}

pub(crate) fn answer(
    asked: Asked<'_>,
    settings: Settings,
    destination: Destination<'_>,
    stop: &AtomicBool,
) -> Result<Cost, Failure> {
    let path = match destination {
        Destination::Print(style) => {
            let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            return write(asked, settings, style, &out, stop);
        }
        Destination::Arrow(path) => path,
    };
    let failed =
        |error: io::Error| Failure::Other(format!("cannot write {}: {error}", path.display()));
    let file = ArrowFile::open(path, stop).map_err(|error| match stop.load(Ordering::Relaxed) {
        true => Failure::Interrupted,
        false => failed(error),
    })?;
    let cost = write(asked, settings, Style::Arrow, file.as_file(), stop)?;
    file.finish().map_err(failed)?;
    Ok(cost)
}

/// A pipe that accepts any data accepts this many bytes at once (PIPE_BUF).
const PIPE_BYTES: usize = 4096;

/// A writer that stops writing, and stops waiting for the reader, once `stop` is set.
struct Stoppable<'a> {
    out: &'a File,
    /// Maximum bytes of one write.
    most: usize,
    stop: &'a AtomicBool,
}

impl<'a> Stoppable<'a> {
    fn new(out: &'a File, stop: &'a AtomicBool) -> io::Result<Self> {
        let most = if out.metadata()?.is_file() { usize::MAX } else { PIPE_BYTES };
        Ok(Self { out, most, stop })
    }
}

impl Write for Stoppable<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        wait_until(self.stop, || is_writable(self.out))?;
        self.out.write(&bytes[..bytes.len().min(self.most)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Whether a write would not block; waits a short time for that.
fn is_writable(out: &File) -> io::Result<bool> {
    let mut polled = [PollFd::new(out, PollFlags::OUT)];
    match poll(&mut polled, Some(&LOOK_AGAIN)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn write(
    asked: Asked<'_>,
    settings: Settings,
    style: Style,
    out: &File,
    stop: &AtomicBool,
) -> Result<Cost, Failure> {
    let is_shown = out.is_terminal();
    let out = (BufWriter::new(Stoppable::new(out, stop)?), is_shown);
    write_all(asked, settings, style, out, stop).map_err(|failure| match failure {
        // The writer may report a signal as any kind of failure.
        Failure::Other(_) if stop.load(Ordering::Relaxed) => Failure::Interrupted,
        other => other,
    })
}

fn write_all(
    asked: Asked<'_>,
    settings: Settings,
    style: Style,
    (out, is_shown): (impl Write, bool),
    stop: &AtomicBool,
) -> Result<Cost, Failure> {
    let Asked { question, source, session } = asked;
    let plan = question.plan();
    let mut output = Output::new(style, &question.names(), out);
    if question.streams() {
        output = output.stream(question.wide_integers());
    }
    let mut answers = question.answers();
    let mut whole = Partial::empty(plan);
    let total_bytes = source.files.iter().map(|file| file.bytes).sum();
    let mut ask = |report: Report<'_>| {
        session.run::<Failure>(
            source,
            plan,
            settings,
            &mut |done| report(done, total_bytes).is_continue(),
            &mut |partial| {
                if question.streams() {
                    output.write(&answers.next(partial.finish(plan)?)?)?;
                } else {
                    whole.merge(plan, partial)?;
                }
                Ok(())
            },
        )
    };
    // A progress bar would appear among the rows.
    let cost = if question.streams() && is_shown {
        ask(&mut |_, _| progress::unless_stopped(stop))?
    } else {
        progress::bytes("query", total_bytes, stop, ask)?
    };
    // If the answer streams, this is empty, and writes the columns even if there are no parts.
    output.write(&answers.next(whole.finish(plan)?)?)?;
    output.finish()?;
    Ok(cost)
}
