//! Chains over an NVMe namespace of this machine through its character device: as at a target, with
//! file maps and their versions, but without a network.

use super::chains::{Begun, Chains};
use super::in_kernel::{self, Kernel};
use super::namespace::Namespace;
use super::reads::NamespaceReads;
use super::start_of;
use crate::files::call::{Executor, command_error};
use crate::files::device::NamespaceDevice;
use crate::files::executor::{Broken, ChainExecutor, End, Failure, NotStarted, PATIENT, Run};
use crate::files::file::Pin;
use crate::files::nvme::NvmeNamespace;
use crate::files::shared::{Remote, Shared};
use bpfof_chain::{Answer, ChainError, FileVersion, Start, WHOLE_NAMESPACE};
use bpfof_device::RingError;
use std::sync::Arc;
use std::time::Duration;

/// Runs chains over an NVMe namespace of this machine.
#[derive(Debug)]
pub(crate) struct Passthrough {
    chains: Chains<NamespaceReads>,
    files: Namespace,
    versions: Vec<FileVersion>,
    /// Runs a chain that is alone, if the kernel module is loaded.
    kernel: Option<Kernel>,
    /// A chain that has started alone, and whose files are prepared in the kernel.
    alone: Option<Begun>,
    /// Chains that failed when the engine took them over, and the number of their hops so far.
    failed: Vec<(usize, ChainError, u32)>,
    shared: Arc<Shared>,
}

impl Passthrough {
    /// None unless `shared` has a namespace of this machine.
    pub(crate) fn new(shared: &Arc<Shared>) -> Option<Result<Self, RingError>> {
        let remote = shared.remote.as_ref()?;
        let of = remote.namespace()?;
        let reads = NamespaceReads::new(Arc::clone(&of.device), of.info.block_bytes);
        let drive = remote.place().map(|place| &place.device);
        // The module opens the drive by its path.
        let drive = drive.filter(|device| device.is_in_place()).map(NamespaceDevice::path);
        Some(reads.map(|reads| Self {
            chains: Chains::new(reads),
            files: Namespace::new(of),
            versions: Vec::new(),
            kernel: drive.and_then(|drive| Kernel::new(of, drive)),
            alone: None,
            failed: Vec::new(),
            shared: Arc::clone(shared),
        }))
    }

    /// Puts the maps of a chain's files into the tables, and their versions into `versions`.
    fn set_maps(&mut self, begun: &Begun, pins: &[Pin]) -> Result<(), ChainError> {
        let Self { files, versions, shared, kernel, .. } = self;
        let of = namespace(shared).ok_or(ChainError::UnknownFile(0))?;
        let call = begun.1.as_call();
        if files.let_go()
            && let Some(kernel) = kernel
        {
            kernel.let_go(files, of.info.nsid);
        }
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
        Ok(())
    }

    fn begin(&mut self, begun: &Begun, pins: &[Pin]) -> Result<(), ChainError> {
        self.join();
        self.set_maps(begun, pins)?;
        let Self { chains, files, versions, kernel, alone, shared, .. } = self;
        let of = namespace(shared).ok_or(ChainError::UnknownFile(0))?;
        let call = begun.1.as_call();
        let number = files.function(call.function);
        let is_alone = chains.running() == 0;
        if let Some(kernel) = kernel.as_mut().filter(|_| is_alone)
            && kernel.prepare(call.function.local_function(), versions, files, of.info.nsid)
        {
            *alone = Some(begun.clone());
            return Ok(());
        }
        chains.start(begun.clone(), &start(begun, number, versions, of), files)
    }

    /// Moves the chain that was alone to the engine, because another chain has come or the timeout is too short for the
    /// kernel.
    fn join(&mut self) {
        let Some(begun) = self.alone.take() else { return };
        let Self { chains, files, versions, shared, failed, .. } = self;
        let Some(of) = namespace(shared) else { return };
        let number = files.function(begun.1.as_call().function);
        let started = chains.start(begun.clone(), &start(&begun, number, versions, of), files);
        failed.extend(started.err().map(|error| (begun.0, error, 0)));
    }

    /// Runs the chain that is alone in the kernel. The engine continues it if the kernel cannot.
    fn run_alone(&mut self, on_end: &mut dyn FnMut(usize, End<'_>)) {
        let Self { chains, files, versions, kernel, alone, shared, failed } = self;
        let (Some(begun), Some(kernel)) = (alone.take(), kernel) else { return };
        let Some(of) = namespace(shared) else { return };
        let function = begun.1.as_call().function;
        let number = files.function(function);
        let start = start(&begun, number, versions, of);
        let (hops, outcome) = match kernel.run(function.local_function(), &start) {
            in_kernel::End::Answer(answer, hops) => {
                let number = begun.0;
                drop(begun);
                return on_end(number, Ok((answer, hops)));
            }
            in_kernel::End::Continue(suspended) => {
                (suspended.hops(), chains.resume(begun.clone(), &suspended, files))
            }
            in_kernel::End::Restart => (0, chains.start(begun.clone(), &start, files)),
        };
        failed.extend(outcome.err().map(|error| (begun.0, error, hops)));
    }
}

fn start<'a>(
    begun: &'a Begun,
    function: u32,
    files: &'a [FileVersion],
    of: &NvmeNamespace,
) -> Start<'a> {
    start_of(&begun.1.as_call(), function, files, of.info.nsid, of.info.block_bytes)
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
        self.chains.running() + usize::from(self.alone.is_some()) + self.failed.len()
    }

    fn ends_one(&self) -> bool {
        self.alone.is_some()
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
        // The kernel waits for the drive as long as the driver does. With a shorter timeout, use the ring.
        match timeout >= PATIENT {
            true => self.run_alone(on_end),
            false => self.join(),
        }
        let timeout = if self.chains.running() == 0 { Duration::ZERO } else { timeout };
        for (number, error, hops) in self.failed.drain(..) {
            on_end(number, Err(Failure::of_command(command_error(error, hops))));
        }
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
