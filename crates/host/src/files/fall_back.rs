//! The fall-back executor: the same function, on this machine, over plain reads of the files.

use super::call::{Executor, KeptChain, ReadError, ReadPushdown, command_error};
use super::executor::{Broken, ChainExecutor, End, Failure, NotStarted, Run};
use super::file::{Pin, PushdownFile};
use super::plain_chain::{PlainCall, PlainChains, PlainError, PlainRead};
use super::sys::length_bytes;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Runs chains one after another.
#[derive(Debug, Default)]
pub(crate) struct FallBack {
    chains: PlainChains,
    answer: Vec<u8>,
    /// Chains that have started, with their numbers.
    started: Vec<(usize, KeptChain)>,
}

impl FallBack {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Runs one chain to its end; returns the number of hops. Of a file that changes meanwhile, the chain sees the same
    /// as plain reads do.
    fn run(&mut self, call: &ReadPushdown<'_>) -> Result<u32, ReadError> {
        let mut lengths = Vec::with_capacity(call.files.len());
        let mut opened = Vec::with_capacity(call.files.len());
        for file in call.files {
            let open = file.file().map_err(|error| failed(file, error))?;
            lengths.push(length_bytes(&open).map_err(|error| failed(file, error))?);
            opened.push(open);
        }
        let plain = PlainCall {
            function: call.function,
            first_read: call.first_read,
            scratch: call.scratch,
            scratch_bytes: call.effective_scratch_bytes(),
            answer_max_bytes: call.answer_max_bytes,
        };
        let read = |place: PlainRead, data: &mut [u8]| {
            // Fails with an unexpected end only if the file became shorter.
            let read = opened[place.file].read_exact_at(data, place.offset_bytes);
            read.map_err(|error| failed(&call.files[place.file], error))
        };
        let done = self.chains.run(&plain, &lengths, read, &mut self.answer);
        done.map(|done| done.hops).map_err(|error| match error {
            PlainError::Read(error) => error,
            PlainError::Chain(error, hops) => ReadError::Command(command_error(error, hops)),
            PlainError::TooLong(index) => {
                failed(&call.files[index], io::ErrorKind::FileTooLarge.into())
            }
        })
    }
}

impl ChainExecutor for FallBack {
    fn place(&self) -> Executor {
        Executor::FallBack
    }

    fn in_flight(&self) -> usize {
        self.started.len()
    }

    fn start(&mut self, run: &Run<'_>, _: &[Pin]) -> Result<usize, NotStarted> {
        self.started.push(run.first());
        Ok(1)
    }

    /// Runs each chain to its end.
    fn turn(&mut self, _: Duration, on_end: &mut dyn FnMut(usize, End<'_>)) -> Result<(), Broken> {
        for (number, chain) in mem::take(&mut self.started) {
            let result = self.run(&chain.as_call());
            drop(chain);
            on_end(number, result.map(|hops| (&self.answer[..], hops)).map_err(Failure::Final));
        }
        Ok(())
    }
}

fn failed(file: &PushdownFile, source: io::Error) -> ReadError {
    ReadError::Plain { path: file.path().to_owned(), source }
}
