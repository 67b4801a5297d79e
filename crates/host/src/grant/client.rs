//! The client's side of the grant daemon's protocol.

use super::error::GrantError;
use super::page::PageReader;
use super::protocol::{
    Answer, BadPacket, FileAnswer, LANE_STATE_MAX_BYTES, PROTOCOL, Refusal, Request,
};
use super::socket::{Ender, PacketSocket};
use crate::deadline::deadline;
use crate::{FunctionId, Lane, NamespaceInfo, Options, STATE_MAX_BYTES};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for an answer about files: the daemon first writes dirty pages of each file back to disk, one file
/// after the other. A daemon that ends closes the connection.
const FILES_PATIENCE: Duration = Duration::from_secs(120);

/// A connection to the grant daemon, and the association that the daemon has made for it. All calls block until the
/// daemon has answered; after an error other than a refusal the connection is unusable. Dropping it ends the
/// association.
#[derive(Debug)]
pub struct GrantClient {
    socket: PacketSocket,
    path: PathBuf,
    page: Arc<PageReader>,
    namespace: NamespaceInfo,
    files_max: u32,
    packet: Vec<u8>,
    options: Options,
    is_broken: bool,
}

impl Drop for GrantClient {
    fn drop(&mut self) {
        // Closing is not enough: a forked child has a descriptor of the connection, too.
        self.socket.shut_down();
    }
}

impl GrantClient {
    /// Connects to the daemon at `socket`. `place` is any file or directory on the file system with the files to be
    /// granted; a daemon that serves one namespace needs none.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn connect(socket: &Path, place: Option<BorrowedFd<'_>>) -> Result<Self, GrantError> {
        Self::connect_with(socket, place, Options::default())
    }

    /// The same, with lanes that use the timeouts and the way of waiting of `options`. Requests that the daemon passes
    /// to the target must be answered within the sum of both timeouts. All other options are the daemon's.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn connect_with(
        socket: &Path,
        place: Option<BorrowedFd<'_>>,
        options: Options,
    ) -> Result<Self, GrantError> {
        let path = socket.to_owned();
        let failed = |source| GrantError::Socket { socket: path.clone(), source };
        let mut socket = PacketSocket::connect(socket, options.connect_timeout).map_err(failed)?;
        let mut packet = Vec::new();
        let place: Vec<BorrowedFd<'_>> = place.into_iter().collect();
        let open = Request::Open { protocol: PROTOCOL };
        let answer = exchange(&mut socket, &mut packet, patience(&open, &options), &open, &place)
            .map_err(|failure| failure.of(&path))?;
        let (Answer::Opened(opened), [page]) = (answer.0, &answer.1[..]) else {
            return Err(BadPacket("an answer that does not match the request").into());
        };
        let page = PageReader::new(page, opened.files_max).map_err(GrantError::Memory)?;
        let namespace = NamespaceInfo {
            nsid: opened.nsid,
            blocks: opened.blocks,
            block_bytes: opened.block_bytes,
            nguid: [0; 16],
        };
        let (page, files_max) = (Arc::new(page), opened.files_max);
        Ok(Self { socket, path, page, namespace, files_max, packet, options, is_broken: false })
    }

    /// The path of the daemon's socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The namespace with the files; its NGUID is not known.
    #[must_use]
    pub const fn namespace(&self) -> NamespaceInfo {
        self.namespace
    }

    /// The versions page: the versions of the maps that the target has now.
    #[must_use]
    pub const fn page(&self) -> &Arc<PageReader> {
        &self.page
    }

    /// The largest file id; ids begin at 1.
    #[must_use]
    pub const fn files_max(&self) -> u32 {
        self.files_max
    }

    /// Whether the connection to the daemon is open and usable.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.is_broken && !self.socket.is_closed()
    }

    /// A handle that ends the connection without waiting for an outstanding answer.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn ender(&self) -> io::Result<Ender> {
        self.socket.ender()
    }

    /// Loads entry point `entry` of `object`, if the daemon lets its clients load functions of their own. Otherwise
    /// finds a function that is installed at the target and has the same `digest` (`Program::digest()` of
    /// crates/function), so that it does the same.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn load(
        &mut self,
        object: &[u8],
        entry: u32,
        name: &str,
        digest: [u8; 32],
    ) -> Result<FunctionId, GrantError> {
        let memory = sealed(object).map_err(GrantError::Memory)?;
        let request = Request::Load { entry, digest, name: name.to_owned() };
        match self.ask(&request, &[memory.as_fd()])? {
            (Answer::Loaded { function }, _) => Ok(FunctionId(function)),
            _ => Err(self.mistaken()),
        }
    }

    /// A connected lane.
    ///
    /// # Errors
    /// [`GrantError`]; [`crate::Error`] for a lane that this library cannot take over.
    pub fn lane(&mut self) -> Result<Lane, crate::Error> {
        let (answer, descriptors) = self.ask(&Request::Lane, &[])?;
        match (answer, <[OwnedFd; 1]>::try_from(descriptors)) {
            (Answer::Lane { state }, Ok([socket])) => {
                Lane::adopt_with(socket, &state, &self.options)
            }
            _ => Err(self.mistaken().into()),
        }
    }

    /// Requests grants for files under ids that the caller chooses, 1 to
    /// [`files_max`](Self::files_max). Returns one answer for each file, in order.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn add(
        &mut self,
        ids: &[u32],
        files: &[BorrowedFd<'_>],
    ) -> Result<Vec<FileAnswer>, GrantError> {
        self.files(ids, &Request::Add { ids: ids.to_vec() }, files)
    }

    /// Requests grants again. Returns one answer for each file, in order.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn refresh(&mut self, ids: &[u32]) -> Result<Vec<FileAnswer>, GrantError> {
        self.files(ids, &Request::Refresh { ids: ids.to_vec() }, &[])
    }

    /// Gives files back. Their ids are then free.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn remove(&mut self, ids: &[u32]) -> Result<(), GrantError> {
        match self.ask(&Request::Remove { ids: ids.to_vec() }, &[])? {
            (Answer::Done, _) => Ok(()),
            _ => Err(self.mistaken()),
        }
    }

    fn files(
        &mut self,
        ids: &[u32],
        request: &Request,
        files: &[BorrowedFd<'_>],
    ) -> Result<Vec<FileAnswer>, GrantError> {
        match self.ask(request, files)? {
            (Answer::Files(files), _) if files.iter().map(|file| &file.id).eq(ids) => Ok(files),
            _ => Err(self.mistaken()),
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), GrantError> {
        if self.is_broken {
            return Err(Failure::Io(ErrorKind::NotConnected.into()).of(&self.path));
        }
        let patience = patience(request, &self.options);
        let asked = exchange(&mut self.socket, &mut self.packet, patience, request, descriptors);
        asked.map_err(|failure| {
            self.is_broken = !matches!(failure, Failure::Refused(_));
            failure.of(&self.path)
        })
    }

    fn mistaken(&mut self) -> GrantError {
        self.is_broken = true;
        BadPacket("an answer that does not match the request").into()
    }
}

/// Why a request has no answer.
enum Failure {
    Io(io::Error),
    Packet(BadPacket),
    Refused(Refusal),
}

impl Failure {
    fn of(self, path: &Path) -> GrantError {
        match self {
            Failure::Io(source) => GrantError::Socket { socket: path.to_owned(), source },
            Failure::Packet(bad) => GrantError::Packet(bad),
            Failure::Refused(refusal) => GrantError::Refused(refusal),
        }
    }
}

/// How long to wait for the answer to a request.
const fn patience(request: &Request, options: &Options) -> Duration {
    match request {
        Request::Add { .. } | Request::Refresh { .. } => FILES_PATIENCE,
        _ => options.connect_timeout.saturating_add(options.command_timeout),
    }
}

/// Sends a request and waits for its answer.
fn exchange(
    socket: &mut PacketSocket,
    packet: &mut Vec<u8>,
    patience: Duration,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    packet.clear();
    request.encode(packet);
    // If sending fails, still look for an answer: a daemon that turns this process away sends the reason before it
    // closes the connection.
    let mut failed = socket.send(packet, descriptors).err();
    let end = deadline(if failed.is_some() { Duration::ZERO } else { patience });
    loop {
        if !socket.wait(end.saturating_duration_since(Instant::now())).map_err(Failure::Io)? {
            return Err(Failure::Io(failed.unwrap_or_else(|| ErrorKind::TimedOut.into())));
        }
        match socket.receive() {
            Ok(Some(packet)) => {
                let count = packet.descriptors.len();
                return match Answer::decode(packet.bytes, count).map_err(Failure::Packet)? {
                    Answer::Refused(refusal) => Err(Failure::Refused(refusal)),
                    answer => Ok((answer, packet.descriptors)),
                };
            }
            Ok(None) => {
                let closed = failed.unwrap_or_else(|| ErrorKind::ConnectionReset.into());
                return Err(Failure::Io(closed));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && failed.is_none() => {}
            // The reset is reported before the data that the daemon sent earlier: read on.
            Err(error) if error.kind() == ErrorKind::ConnectionReset && failed.is_none() => {
                failed = Some(error);
            }
            Err(error) => return Err(Failure::Io(failed.unwrap_or(error))),
        }
    }
}

/// A memfd with these bytes, sealed against all changes.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("bpfof-function", flags)?);
    file.write_all(bytes)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

const _: () = assert!(STATE_MAX_BYTES <= LANE_STATE_MAX_BYTES, "a lane's state fits its answer");

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    #[test]
    fn a_silent_daemon_times_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let daemon = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let address = SocketAddrUnix::new(&path).expect("a path");
        bind(&daemon, &address).and_then(|()| listen(&daemon, 1)).expect("it listens");
        let timeout = Duration::from_millis(10);
        let options =
            Options { connect_timeout: timeout, command_timeout: timeout, ..Options::default() };
        let begun = Instant::now();
        let refused = GrantClient::connect_with(&path, None, options).expect_err("no answer");
        assert!(
            matches!(&refused, GrantError::Socket { source, .. } if source.kind() == ErrorKind::TimedOut),
            "{refused}"
        );
        assert!(begun.elapsed() >= 2 * timeout && begun.elapsed() < Duration::from_secs(20));
    }
}
