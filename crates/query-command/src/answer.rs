//! The answer, from the parts of the files to where it is written.

use crate::Failure;
use bpfof_query::ask::Session;
use bpfof_query::infer::Source;
use bpfof_query::output::{Output, Style};
use bpfof_query::sql::Question;
use bpfof_query::{Partial, Settings, Stats};
use bpfof_terminal::progress;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tempfile::NamedTempFile;

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
    /// A file, which is there only once it is whole.
    Arrow(&'a Path),
}

pub(crate) fn answer(
    asked: Asked<'_>,
    settings: Settings,
    destination: Destination<'_>,
    stop: &AtomicBool,
) -> Result<Stats, Failure> {
    let path = match destination {
        Destination::Print(style) => {
            return write(asked, settings, style, BufWriter::new(io::stdout().lock()), stop);
        }
        Destination::Arrow(path) => path,
    };
    let failed =
        |error: io::Error| Failure::Other(format!("cannot write {}: {error}", path.display()));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file = NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    let stats = write(asked, settings, Style::Arrow, BufWriter::new(file.as_file()), stop)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(stats)
}

fn write(
    asked: Asked<'_>,
    settings: Settings,
    style: Style,
    out: impl Write,
    stop: &AtomicBool,
) -> Result<Stats, Failure> {
    let Asked { question, source, session } = asked;
    let plan = question.plan();
    let mut output = Output::new(style, &question.names(), out);
    let mut answers = question.answers();
    let mut whole = Partial::empty(plan);
    let total_bytes = source.files.iter().map(|file| file.bytes).sum();
    let stats = progress::bytes("query", total_bytes, stop, |report| {
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
    Ok(stats)
}
