//! The answer, from the parts of the files to where it is written.

use crate::Failure;
use crate::arrow_file::ArrowFile;
use bpfof_query::ask::{Cost, Session};
use bpfof_query::infer::Source;
use bpfof_query::output::{Output, Style};
use bpfof_query::sql::Question;
use bpfof_query::{Partial, Settings};
use bpfof_terminal::progress;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is asked of which files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) question: &'a Question,
    pub(crate) source: &'a Source,
    pub(crate) session: &'a Session,
}

/// Where an answer goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination<'a> {
    Print(Style),
    /// A file, which is there only once it is whole; or a pipe or a device.
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
            return write(asked, settings, style, io::stdout().lock(), stop);
        }
        Destination::Arrow(path) => path,
    };
    let failed =
        |error: io::Error| Failure::Other(format!("cannot write {}: {error}", path.display()));
    let file = ArrowFile::open(path).map_err(failed)?;
    let cost = write(asked, settings, Style::Arrow, file.as_file(), stop)?;
    file.finish().map_err(failed)?;
    Ok(cost)
}

/// Writes no more once `stop` is set.
struct Stoppable<'a, W> {
    out: W,
    stop: &'a AtomicBool,
}

impl<W: Write> Write for Stoppable<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Not of the kind `Interrupted`, after which writing goes on.
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("interrupted"));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write(
    asked: Asked<'_>,
    settings: Settings,
    style: Style,
    out: impl Write,
    stop: &AtomicBool,
) -> Result<Cost, Failure> {
    let out = BufWriter::new(Stoppable { out, stop });
    write_all(asked, settings, style, out, stop).map_err(|failure| match failure {
        // Whatever the writer makes of it.
        Failure::Other(_) if stop.load(Ordering::Relaxed) => Failure::Interrupted,
        other => other,
    })
}

fn write_all(
    asked: Asked<'_>,
    settings: Settings,
    style: Style,
    out: impl Write,
    stop: &AtomicBool,
) -> Result<Cost, Failure> {
    let Asked { question, source, session } = asked;
    let plan = question.plan();
    let mut output = Output::new(style, &question.names(), out);
    let mut answers = question.answers();
    let mut whole = Partial::empty(plan);
    let total_bytes = source.files.iter().map(|file| file.bytes).sum();
    let cost = progress::bytes("query", total_bytes, stop, |report| {
        session.run::<Failure>(
            source,
            plan,
            settings,
            &mut |done| report(done, total_bytes).is_continue(),
            &mut |partial| {
                if !question.streams() {
                    whole.merge(plan, partial)?;
                    return Ok(ControlFlow::Continue(()));
                }
                output.write(&answers.next(partial.finish(plan)?)?)?;
                Ok(if answers.is_complete() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            },
        )
    })?;
    // Of streams this is empty, and tells the columns where there are no parts.
    output.write(&answers.next(whole.finish(plan)?)?)?;
    output.finish()?;
    Ok(cost)
}
