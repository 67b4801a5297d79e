//! A `struct bpfof`: a target, or none, and the files behind the caller's descriptors.

use crate::descriptor::{self, Identity, Reopened};
use crate::failure::Failure;
use crate::options::{NO_FALL_BACK, Options, POLL, STABLE_FDS};
use bpfof_host::files::{FileMaps, NamespaceDevice, NvmeNamespace, Policy, PushdownFile};
use bpfof_host::grant::GrantClient;
use bpfof_host::{Controller, Credentials, Error, HostsFile, TargetUrl};
use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Prefix of a grant daemon's socket, given instead of a target's address.
const GRANTD: &str = "grantd:";
/// Prefix of the character device of an NVMe namespace of this machine.
const NVME: &str = "nvme:";
/// Longest wait, even of an endless one, because the clock cannot represent arbitrarily late times.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// Shared by the handle, its functions and its readers, so that they may be closed in any order.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) maps: FileMaps,
    policy: Policy,
    queue_depth: usize,
    /// Whether known descriptors are not checked again.
    stable_fds: bool,
    /// Whether files get maps, for a target or a drive of this machine.
    has_maps: bool,
    files: RwLock<HashMap<c_int, (Identity, PushdownFile)>>,
}

/// Converts a timeout; None means for ever.
pub(crate) fn timeout_of(timeout_us: i64) -> Option<Duration> {
    u64::try_from(timeout_us).ok().map(|us| Duration::from_micros(us).min(LONGEST))
}

/// The same for milliseconds.
pub(crate) fn timeout_of_ms(timeout_ms: c_int) -> Option<Duration> {
    timeout_of(i64::from(timeout_ms) * 1000)
}

impl Session {
    /// Opens a session. It has no target if `target` is None, or if the target cannot be reached
    /// and the options allow that; then the failure is returned too.
    pub(crate) fn open(
        target: Option<(&str, &Path)>,
        options: &Options,
    ) -> Result<(Session, Option<Failure>), Failure> {
        if options.flags & !(NO_FALL_BACK | POLL | STABLE_FDS) != 0 {
            return Err(Failure::invalid(
                "options.flags has bits that this version of the library does not know",
            ));
        }
        if options.reserved != 0 {
            return Err(Failure::invalid("options.reserved is not 0"));
        }
        let queue_depth = u16::try_from(options.queue_depth).ok().filter(|d| (1..4096).contains(d));
        let queue_depth =
            queue_depth.ok_or_else(|| Failure::invalid("options.queue_depth is not 1 to 4095"))?;
        let fall_back = options.flags & NO_FALL_BACK == 0;
        let policy = Policy {
            retries: options.retries,
            patience: Duration::from_micros(options.patience_us.into()),
            fall_back,
            // Without fall-back, only the target or the drive may run chains.
            local: fall_back || target.is_some_and(|(url, _)| url.starts_with(NVME)),
        };
        let (maps, why) = match target {
            None if fall_back => (FileMaps::local(), None),
            None => return Err(Failure::invalid("BPFOF_NO_FALL_BACK without a target")),
            Some((url, place)) if url.starts_with(GRANTD) => {
                let socket = Path::new(&url[GRANTD.len()..]);
                match granted(socket, place, options_of(options, queue_depth)) {
                    Ok(maps) => (maps, None),
                    Err(why) if fall_back => (FileMaps::local(), Some(why)),
                    Err(why) => return Err(why),
                }
            }
            Some((url, device)) if url.starts_with(NVME) => {
                match passthrough(Path::new(&url[NVME.len()..]), device) {
                    Ok(maps) => (maps, None),
                    Err(why) if fall_back && why.errno != libc::EXDEV => {
                        (FileMaps::local(), Some(why))
                    }
                    Err(why) => return Err(why),
                }
            }
            Some((url, device)) => {
                // Mistakes of the caller are errors, whatever the options say.
                let url = address(url).map_err(|e| Failure::of_error(&e))?;
                Credentials::read(&url.keys).map_err(|e| Failure::of_error(&e))?;
                let device = NamespaceDevice::new(device).map_err(|e| Failure::of_refusal(&e))?;
                match connect(&url, device, options_of(options, queue_depth)) {
                    Ok(maps) => (maps, None),
                    Err(why) if fall_back && why.errno != libc::EXDEV => {
                        (FileMaps::local(), Some(why))
                    }
                    Err(why) => return Err(why),
                }
            }
        };
        if options.lanes_max > 0 {
            maps.share_lanes(options.lanes_max as usize);
        }
        let is_drive = target.is_some_and(|(url, _)| url.starts_with(NVME));
        let session = Session {
            has_maps: maps.has_target() || is_drive && why.is_none(),
            maps,
            policy,
            queue_depth: queue_depth.into(),
            stable_fds: options.flags & STABLE_FDS != 0,
            files: RwLock::default(),
        };
        Ok((session, why))
    }

    pub(crate) fn maps(&self) -> &FileMaps {
        &self.maps
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Most chains that a reader has at the target at once.
    pub(crate) fn queue_depth(&self) -> usize {
        self.queue_depth
    }

    /// The file that `fd` now stands for. Opens it again if it is not known.
    pub(crate) fn file(&self, fd: c_int) -> Result<PushdownFile, Failure> {
        if self.stable_fds || fd < 0 {
            let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, file)) = files.get(&fd) {
                return Ok(file.clone());
            }
        }
        let identity = descriptor::identity(fd)?;
        let known = |files: &HashMap<_, (Identity, PushdownFile)>| {
            // The known file is open, so its inode number cannot be reused.
            files.get(&fd).filter(|(of, _)| *of == identity).map(|(_, file)| file.clone())
        };
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = known(&files) {
            return Ok(file);
        }
        drop(files);
        let Reopened { file, path, is_duplicate } = descriptor::reopen(fd, identity)?;
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if let Some(file) = known(&files) {
            return Ok(file);
        }
        let file = match is_duplicate {
            true => self.maps.add_duplicate(file, path),
            false => self.maps.add(file, path),
        };
        files.insert(fd, (identity, file.clone()));
        Ok(file)
    }

    /// Replaces the contents of `files` by the files that `fds` stand for. Locks only once if all are known.
    pub(crate) fn files(
        &self,
        fds: impl Iterator<Item = c_int> + Clone,
        files: &mut Vec<PushdownFile>,
    ) -> Result<(), Failure> {
        files.clear();
        let known = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let stable = fds.clone().take_while(|fd| self.stable_fds || *fd < 0);
        files.extend(stable.map_while(|fd| known.get(&fd).map(|(_, file)| file.clone())));
        drop(known);
        for fd in fds.skip(files.len()) {
            match self.file(fd) {
                Ok(file) => files.push(file),
                Err(failure) => {
                    // Do not keep handles: they would keep files open.
                    files.clear();
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Adds the file that `fd` stands for as one that only the caller writes.
    pub(crate) fn add_own(&self, fd: c_int) -> Result<(), Failure> {
        let identity = descriptor::identity(fd)?;
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        if files.get(&fd).is_some_and(|(of, _)| *of == identity) {
            let why = "is already known; call bpfof_forget() first";
            return Err(Failure::new(libc::EEXIST, format!("descriptor {fd} {why}")));
        }
        let Reopened { file, path, .. } = descriptor::reopen(fd, identity)?;
        files.insert(fd, (identity, self.maps.add_own(file, path)));
        Ok(())
    }

    /// Adds the file at `path` under a number that no descriptor has.
    pub(crate) fn add_path(&self, number: c_int, path: PathBuf) -> Result<(), Failure> {
        if number >= -1 {
            return Err(Failure::invalid(
                "the number of a file that is named by its path must be below -1",
            ));
        }
        let is_known = |files: &HashMap<c_int, (Identity, PushdownFile)>| match files.get(&number) {
            None => Ok(false),
            Some((_, known)) if known.path() == path => Ok(true),
            Some((_, known)) => {
                let why = format!("{number} is already the number of {}", known.path().display());
                Err(Failure::new(libc::EEXIST, why))
            }
        };
        if is_known(&self.files.read().unwrap_or_else(PoisonError::into_inner))? {
            return Ok(());
        }
        // Outside the lock, because this wakes a thread, for which other callers should not wait.
        let file = self.maps.add_path(path.clone());
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster; then this file is dropped after the lock is released.
        if !is_known(&files)? {
            files.insert(number, (Identity::default(), file));
        }
        Ok(())
    }

    pub(crate) fn wait_mapped(&self, fd: c_int, timeout: Option<Duration>) -> Result<(), Failure> {
        let file = self.file(fd)?;
        if !self.has_maps {
            let why = "there is neither a target nor a drive that could map files";
            return Err(Failure::new(libc::ENOTCONN, why));
        }
        let end = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = end.map_or(LONGEST, |end| end.saturating_duration_since(Instant::now()));
            if self.maps.wait_mapped(&file, left) {
                return Ok(());
            }
            if !self.maps.is_connected() {
                let why = "the target has ended the association; call bpfof_open() again";
                return Err(Failure::new(libc::ENOTCONN, why));
            }
            let (name, refusal) = (file.path().display(), file.refusal());
            if let Some(refusal) = refusal.as_ref().filter(|refusal| !refusal.is_passing()) {
                let why = Failure::of_refusal(refusal);
                return Err(Failure { message: format!("{name} has no map: {refusal}"), ..why });
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(Failure::new(libc::ETIMEDOUT, format!("{name} has no map yet")));
            }
        }
    }

    pub(crate) fn forget(&self, fd: c_int) -> Result<(), Failure> {
        // The file is dropped outside the lock, because that wakes a thread.
        let removed = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&fd);
        match removed {
            Some(_) => Ok(()),
            None => Err(Failure::new(libc::ENOENT, format!("descriptor {fd} was never used"))),
        }
    }
}

/// Parses an address, and completes it from the user's hosts file.
fn address(text: &str) -> Result<TargetUrl, Error> {
    let mut url = text.parse()?;
    if let Some(file) = HostsFile::of_user()? {
        file.complete(&mut url)?;
    }
    Ok(url)
}

/// Connects to the grant daemon at `socket`, for files on the file system of `place`. With an empty `place` the daemon
/// chooses.
fn granted(socket: &Path, place: &Path, options: bpfof_host::Options) -> Result<FileMaps, Failure> {
    let named =
        |error: std::io::Error| Failure::io(&format!("cannot open {}", place.display()), &error);
    let is_named = !place.as_os_str().is_empty();
    let place = is_named.then(|| File::open(place)).transpose().map_err(named)?;
    let client = GrantClient::connect_with(socket, place.as_ref().map(AsFd::as_fd), options);
    client
        .map_err(Error::from)
        .and_then(FileMaps::granted)
        .map_err(|error| Failure::of_error(&error))
}

/// Opens a drive of this machine for NVMe commands; `character` is its character device, `device` its block device.
fn passthrough(character: &Path, device: &Path) -> Result<FileMaps, Failure> {
    let namespace = NvmeNamespace::open(character).map_err(|e| Failure::of_refusal(&e))?;
    let device = NamespaceDevice::new(device).map_err(|e| Failure::of_refusal(&e))?;
    FileMaps::passthrough(namespace, device).map_err(|e| Failure::of_error(&e))
}

fn options_of(options: &Options, queue_depth: u16) -> bpfof_host::Options {
    bpfof_host::Options {
        queue_depth,
        connect_timeout: Duration::from_millis(options.connect_timeout_ms.into()),
        command_timeout: Duration::from_millis(options.command_timeout_ms.into()),
        poll: options.flags & POLL != 0,
        ..bpfof_host::Options::default()
    }
}

fn connect(
    url: &TargetUrl,
    device: NamespaceDevice,
    options: bpfof_host::Options,
) -> Result<FileMaps, Failure> {
    let maps = Controller::connect(url, options)
        .and_then(|controller| FileMaps::new(controller, url.nsid, device))
        .map_err(|error| Failure::of_error(&error))?;
    if maps.has_target() { Ok(maps) } else { Err(Failure::of_error(&Error::NotPushdownTarget)) }
}
