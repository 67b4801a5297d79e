//! Chains over an NVMe namespace of this machine by its character device: as at a target, with file
//! maps and their versions, but without a network.

use super::chains::{Begun, Chains};
use super::namespace::Namespace;
use super::reads::NamespaceReads;
use crate::files::call::{Executor, command_error};
use crate::files::executor::{Broken, ChainExecutor, End, Failure, NotStarted, Run};
use crate::files::file::Pin;
use crate::files::nvme::NvmeNamespace;
use crate::files::shared::{Remote, Shared};
use bpfof_chain::{Answer, ChainError, FileVersion, Start, WHOLE_NAMESPACE};
use bpfof_device::RingError;
use std::sync::Arc;
use std::time::Duration;

/// Runs chains over one namespace.
#[derive(Debug)]
pub(crate) struct Passthrough {
    chains: Chains<NamespaceReads>,
    files: Namespace,
    versions: Vec<FileVersion>,
    shared: Arc<Shared>,
}

impl Passthrough {
    /// None unless `shared` has a namespace of this machine.
    pub(crate) fn new(shared: &Arc<Shared>) -> Option<Result<Self, RingError>> {
        let of = namespace(shared)?;
        let reads = NamespaceReads::new(Arc::clone(&of.device), of.info.block_bytes);
        Some(reads.map(|reads| Self {
            chains: Chains::new(reads),
            files: Namespace::new(of),
            versions: Vec::new(),
            shared: Arc::clone(shared),
        }))
    }

    fn begin(&mut self, begun: &Begun, pins: &[Pin]) -> Result<(), ChainError> {
        let Self { chains, files, versions, shared } = self;
        let of = namespace(shared).ok_or(ChainError::UnknownFile(0))?;
        let call = begun.1.as_call();
        files.let_go();
        versions.clear();
        let mut pins = pins.iter();
        for (index, file) in (0..).zip(call.files) {
            let version = if file.is_whole_namespace() {
                FileVersion { id: WHOLE_NAMESPACE, version: 1 }
            } else {
                let unknown = ChainError::UnknownFile(index);
                let pin = pins.next().ok_or(unknown)?;
                files.set_map(file, pin, of).map_err(|_| unknown)?;
                let crate::FileVersion { id, version } = pin.version();
                FileVersion { id, version }
            };
            versions.push(version);
        }
        let start = Start {
            owner: 0,
            namespace: of.info.nsid,
            unit_bytes: of.info.block_bytes,
            function: files.function(call.function),
            files: versions,
            first_file: u32::from(call.first_read.file),
            first_offset_bytes: call.first_read.offset_bytes,
            first_size_bytes: call.first_read.size_bytes,
            argument: call.scratch,
            scratch_bytes: call.effective_scratch_bytes(),
            answer_max_bytes: call.answer_max_bytes,
        };
        chains.start(begun.clone(), &start, files)
    }
}

fn namespace(shared: &Shared) -> Option<&NvmeNamespace> {
    shared.remote.as_ref().and_then(Remote::namespace)
}

impl ChainExecutor for Passthrough {
    fn place(&self) -> Executor {
        Executor::Local
    }

    fn needs_maps(&self) -> bool {
        true
    }

    fn in_flight(&self) -> usize {
        self.chains.running()
    }

    fn start(&mut self, run: &Run<'_>, pins: &[Pin]) -> Result<usize, NotStarted> {
        if self.chains.is_full() {
            return Err(NotStarted::NoRoom);
        }
        self.begin(&run.first(), pins)
            .map(|()| 1)
            .map_err(|error| NotStarted::Ended(Failure::of_command(command_error(error, 0))))
    }

    fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, End<'_>),
    ) -> Result<(), Broken> {
        let turned =
            self.chains.turn(timeout, &self.files, &mut |(number, call), outcome, scratch| {
                drop(call);
                let end = match outcome {
                    Ok(Answer { hops, length_bytes }) => {
                        Ok((scratch.get(..length_bytes as usize).unwrap_or(&[]), hops))
                    }
                    Err((error, hops)) => Err(Failure::of_command(command_error(error, hops))),
                };
                on_end(number, end);
            });
        turned.map_err(|error| Broken(format!("io_uring: {error}")))
    }
}
