//! One client: its requests, its association, and the breaks of its leases, on a thread of its own.

use crate::association::{Association, Failed, Lost};
use crate::examine::{Examined, Examiner, Subject};
use crate::foreign::{Closer, Foreign};
use crate::grants::Grants;
use crate::quota::Share;
use crate::shared::{Peer, Shared, Wake};
use crate::{EXPIRED, KEEP_ALIVE, LOOK_EVERY};
use bpfof_host::files::BreakSignal;
use bpfof_host::grant::protocol::{
    Answer, Cause, FileAnswer, Grant, Opened, PROTOCOL, Refusal, Request,
};
use bpfof_host::grant::{PacketSocket, PageWriter};
use log::Level;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::collections::HashSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// A client must send Open within this time after connecting.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// Longest time in which the files of a client are taken back one after the other. If there are files left then, the
/// association is given up: a stop must be over before the service manager kills the daemon and drops the leases.
pub(crate) const TAKE_BACK: Duration = Duration::from_secs(30);

/// Why a client is served no longer.
enum End {
    /// It has closed its connection, or does not read its answers.
    Gone,
    /// The daemon is stopping.
    Stopping,
    /// It breaks the protocol.
    Hostile(String),
    /// The association is lost.
    Lost(Lost),
    /// A system call failed.
    Failed(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => End::Gone,
            _ => End::Failed(error),
        }
    }
}

impl From<Lost> for End {
    fn from(lost: Lost) -> Self {
        End::Lost(lost)
    }
}

/// The answer for a file; `None` while it is not known.
type Known = Option<Result<Grant, Refusal>>;

/// Files that are being examined for one request.
struct Job {
    examined: Receiver<Examined>,
    /// In the order of the request.
    answers: Vec<(u32, Known)>,
    /// The error of keeping a duplicate, once that has failed.
    not_kept: Option<Refusal>,
}

impl Job {
    fn is_done(&self) -> bool {
        self.answers.iter().all(|(_, answer)| answer.is_some())
    }
}

/// The state of a client after Open.
struct Open {
    association: Association,
    grants: Grants,
    examiner: Examiner,
}

struct Session<'a> {
    shared: &'a Arc<Shared>,
    peer: Peer,
    socket: PacketSocket,
    wake: Arc<Wake>,
    signal: BreakSignal,
    breaks: OwnedFd,
    open: Option<Open>,
    job: Option<Job>,
    logged: HashSet<Cause>,
    share: Arc<Share>,
    closer: Closer,
}

/// Serves a client until it has gone, or the daemon stops.
pub(crate) fn serve(
    shared: &Arc<Shared>,
    socket: PacketSocket,
    peer: Peer,
    wake: Arc<Wake>,
    share: Share,
) {
    let signal = BreakSignal::of_this_thread();
    let made = signal.and_then(|signal| Ok((signal, signal.descriptor()?)));
    let (signal, breaks) = match made {
        Ok(made) => made,
        Err(error) => {
            shared.tell(
                peer,
                Level::Error,
                format_args!("cannot serve the client: no signal for lease breaks: {error}"),
            );
            return shared.closing.add(peer.uid, socket.into());
        }
    };
    let (share, logged) = (Arc::new(share), HashSet::new());
    let closer = match Closer::start(Arc::clone(&share)) {
        Ok(closer) => closer,
        Err(error) => {
            shared.tell(
                peer,
                Level::Error,
                format_args!("cannot serve the client: cannot start a thread: {error}"),
            );
            return shared.closing.add(peer.uid, socket.into());
        }
    };
    let (open, job) = (None, None);
    let mut session =
        Session { shared, peer, socket, wake, signal, breaks, open, job, logged, share, closer };
    let end = session.run();
    session.end(&end);
    session.hang_up();
}

impl Session<'_> {
    fn run(&mut self) -> End {
        let started = Instant::now();
        loop {
            if self.shared.is_stopping() {
                return End::Stopping;
            }
            if self.open.is_none() && started.elapsed() > OPEN_WITHIN {
                return End::Hostile("the client has not opened an association in time".to_owned());
            }
            let beat = match self.open.as_mut().map(|open| open.association.keep_alive()) {
                None => LOOK_EVERY,
                Some(Ok(next)) => next,
                Some(Err(error)) => return End::Lost(error.into()),
            };
            let ready = match self.wait(beat.min(LOOK_EVERY)) {
                Ok(ready) => ready,
                Err(error) => return error.into(),
            };
            if let Err(lost) = self.give_back(ready.breaks) {
                return lost.into();
            }
            if let Err(end) = self.take_examined() {
                return end;
            }
            if ready.closed {
                return End::Gone;
            }
            if ready.packet
                && let Err(end) = self.request()
            {
                return end;
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, timeout: Duration) -> io::Result<Ready> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        // The next request is read only after the answer to the last one.
        let wanted = if self.job.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut waited = [
            PollFd::new(&self.socket, wanted | PollFlags::RDHUP),
            PollFd::new(&self.breaks, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        match poll(&mut waited, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [socket, breaks, wake] = waited.map(|fd| fd.revents());
        if !wake.is_empty() {
            self.wake.take();
        }
        let packet = socket.contains(PollFlags::IN);
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        // Requests that it sent before it closed are ignored.
        Ok(Ready { packet, closed: socket.intersects(ends), breaks: !breaks.is_empty() })
    }

    /// Gives back files whose leases are being broken. `at_once` checks all leases now, because a signal has come.
    fn give_back(&mut self, at_once: bool) -> Result<(), Lost> {
        if at_once {
            self.signal.take();
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        match at_once {
            true => open.grants.give_back(&mut open.association),
            false => open.grants.keep_up(&mut open.association),
        }
    }

    fn request(&mut self) -> Result<(), End> {
        let Some(packet) = self.socket.receive()? else { return Err(End::Gone) };
        let decoded = Request::decode(packet.bytes, packet.descriptors.len());
        let guarded = packet.descriptors.into_iter().map(|sent| self.closer.guard(sent));
        let descriptors: Vec<Foreign> = guarded.collect();
        if self.closer.is_stuck() {
            return Err(End::Hostile(
                "descriptors that the client has sent cannot be closed".to_owned(),
            ));
        }
        let request = decoded.map_err(|bad| End::Hostile(bad.to_string()))?;
        let answer = match request {
            Request::Open { protocol } => self.open(protocol, descriptors.first()),
            Request::Add { ids } => return self.add(&ids, descriptors),
            Request::Refresh { ids } => return self.refresh(&ids),
            Request::Load { entry, digest, name } => {
                self.load((entry, &digest, &name), descriptors)
            }
            Request::Lane => return self.lane(),
            Request::Remove { ids } => {
                let open = opened(&mut self.open)?;
                for id in ids {
                    if self.shared.is_stopping() {
                        return Err(End::Stopping);
                    }
                    open.grants.remove(id, &mut open.association)?;
                }
                Ok(Answer::Done)
            }
        };
        self.answer_or_refuse(answer)
    }

    fn answer_or_refuse(&mut self, answer: Result<Answer, Failed>) -> Result<(), End> {
        match answer {
            Ok(Answer::Opened(opened)) => {
                let open = self.open.as_ref().map(|open| open.grants.page().reader().as_fd());
                let page: Vec<BorrowedFd<'_>> = open.into_iter().collect();
                self.send(&Answer::Opened(opened), &page)
            }
            Ok(answer) => self.send(&answer, &[]),
            Err(Failed::Refused(refusal)) => {
                self.note(&refusal);
                self.send(&Answer::Refused(refusal), &[])
            }
            Err(Failed::Lost(lost)) => Err(lost.into()),
        }
    }

    fn send(&self, answer: &Answer, descriptors: &[BorrowedFd<'_>]) -> Result<(), End> {
        // With its full capacity from the start, so that no part of a lane's keys stays in freed memory.
        let key_bytes = if let Answer::Lane { state } = answer { state.len() + 16 } else { 0 };
        let mut packet = Zeroizing::new(Vec::with_capacity(key_bytes));
        answer.encode(&mut packet);
        Ok(self.socket.send(&packet, descriptors)?)
    }

    /// Logs a refusal, only once per cause, because a client may repeat its request at any rate.
    fn note(&mut self, refusal: &Refusal) {
        if self.logged.insert(refusal.cause) {
            self.shared.tell(self.peer, Level::Info, format_args!("refused: {refusal}"));
        }
    }

    fn open(&mut self, protocol: u16, place: Option<&Foreign>) -> Result<Answer, Failed> {
        let refused = |cause, why: &dyn Display| Failed::Refused(Refusal::new(cause, why));
        if protocol != PROTOCOL {
            let why = format!("the daemon speaks protocol {PROTOCOL}; update the older side");
            return Err(refused(Cause::Malformed, &why));
        }
        if self.open.is_some() {
            return Err(refused(Cause::Malformed, &"the client has already opened an association"));
        }
        let place = place.map(Foreign::get).transpose();
        let place = place.map_err(|error| refused(Cause::Unavailable, &error))?;
        let (served, device) = self.shared.served(place).map_err(Failed::Refused)?;
        let association = Association::open(served).map_err(|error| {
            let why = format_args!("cannot open an association at {}: {error}", served.url);
            self.shared.tell(self.peer, Level::Warn, why);
            refused(Cause::Target, &error)
        })?;
        let nqn = &served.url.nqn;
        if let Err(why) = device.check(&association.namespace(), nqn) {
            association.close();
            return Err(refused(Cause::OtherPlace, &why));
        }
        let page = PageWriter::new(association.files_max()).map_err(|error| {
            refused(Cause::Unavailable, &format!("cannot make the page of versions: {error}"))
        })?;
        let info = association.namespace();
        let (extents_max, signal) = (association.extents_max(), self.signal);
        let Shared { keepsake, quotas, config, .. } = &**self.shared;
        let trusts_owners = config.trust_owners;
        let (device, nqn) = (device.clone(), nqn.clone());
        let examiner = Examiner { device, info, nqn, extents_max, trusts_owners, signal };
        let uid = self.peer.uid;
        let grants = Grants::new(page, Arc::clone(keepsake), quotas.clone(), trusts_owners, uid);
        let opened = Opened {
            nsid: info.nsid,
            block_bytes: info.block_bytes,
            blocks: info.blocks,
            files_max: association.files_max(),
        };
        self.open = Some(Open { association, grants, examiner });
        let what = format_args!("opened an association at {}", served.url);
        self.shared.tell(self.peer, Level::Info, what);
        Ok(Answer::Opened(opened))
    }

    fn load(
        &mut self,
        (entry, digest, name): (u32, &[u8; 32], &str),
        descriptors: Vec<Foreign>,
    ) -> Result<Answer, Failed> {
        let refused = |cause, why: &str| Failed::Refused(Refusal::new(cause, why));
        let Some(Open { association, grants, .. }) = &mut self.open else {
            return Err(refused(Cause::Malformed, "the client has not opened an association"));
        };
        grants.keep_up(association)?;
        if !self.shared.config.allow_own_functions {
            if let Some(kept) = association.kept_function(digest)? {
                return Ok(Answer::Loaded { function: kept.0 });
            }
            let why = format!(
                "the client's function {name} is not installed at the target, and clients may not \
                 load their own functions (--allow-own-functions); install it with `bpfof function \
                 load` from the same object"
            );
            return Err(refused(Cause::Policy, &why));
        }
        let max = association.object_bytes_max();
        let object = descriptors.first().ok_or_else(|| io::Error::other("none was sent"));
        let object = object.and_then(|object| read_sealed(object.get()?, max));
        let object =
            object.map_err(|error| refused(Cause::Malformed, &format!("the object: {error}")))?;
        grants.keep_up(association)?;
        let mut keep_up = |association: &mut Association| grants.keep_up(association);
        let function = association.load(&object, entry, &mut keep_up)?;
        Ok(Answer::Loaded { function: function.0 })
    }

    fn lane(&mut self) -> Result<(), End> {
        let max = self.shared.config.limits.lanes_per_client;
        let open = opened(&mut self.open)?;
        // While the lane is connected no lease is looked at, and no Keep Alive is sent.
        open.grants.give_back(&mut open.association)?;
        open.association.keep_alive().map_err(Lost::from)?;
        match open.association.lane(max) {
            Ok(lane) => {
                let answer = Answer::Lane { state: Zeroizing::new(lane.state().to_vec()) };
                // Once it is sent, the client shares the socket, and can make closing it take for ever.
                let socket = self.closer.guard(lane.socket);
                self.send(&answer, &[socket.get()?])
            }
            Err(failed) => self.answer_or_refuse(Err(failed)),
        }
    }

    fn add(&mut self, ids: &[u32], descriptors: Vec<Foreign>) -> Result<(), End> {
        let open = opened(&mut self.open)?;
        let (files_max, mut subjects) = (open.association.files_max(), Vec::new());
        for (id, descriptor) in ids.iter().zip(descriptors) {
            if *id > files_max || open.grants.has(*id) {
                return Err(End::Hostile(format!("file id {id} is in use or invalid")));
            }
            subjects.push(match open.grants.add(*id) {
                Ok(()) => (*id, Subject::Sent(descriptor)),
                Err(refusal) => (*id, Subject::Refused(refusal)),
            });
        }
        let answers = subjects.iter().map(|(id, _)| (*id, None)).collect();
        self.examine(subjects, answers)
    }

    fn refresh(&mut self, ids: &[u32]) -> Result<(), End> {
        // A granted file whose lease is being broken must be given back first.
        self.give_back(true)?;
        let open = opened(&mut self.open)?;
        let (mut subjects, mut answers) = (Vec::new(), Vec::new());
        for id in ids {
            match open.grants.look_again(*id) {
                Ok(grant) => answers.push((*id, Some(Ok(grant)))),
                Err(subject) => {
                    answers.push((*id, None));
                    subjects.push((*id, subject));
                }
            }
        }
        self.examine(subjects, answers)
    }

    /// Starts to examine files.
    fn examine(
        &mut self,
        subjects: Vec<(u32, Subject)>,
        answers: Vec<(u32, Known)>,
    ) -> Result<(), End> {
        let (examiner, wake) = (opened(&mut self.open)?.examiner.clone(), Arc::clone(&self.wake));
        let share = Arc::clone(&self.share);
        let examined = examiner.start(Builder::new(), subjects, share, move || wake.wake());
        self.job = Some(Job { examined, answers, not_kept: None });
        Ok(())
    }

    /// Grants examined files, and answers once all files of the request are examined.
    fn take_examined(&mut self) -> Result<(), End> {
        let Some(job) = &mut self.job else { return Ok(()) };
        let open = opened(&mut self.open)?;
        let mut refusals = Vec::new();
        loop {
            let examined = match job.examined.try_recv() {
                Ok(examined) => examined,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if job.is_done() => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(End::Failed(io::Error::other("files were not examined")));
                }
            };
            if self.shared.is_stopping() {
                return Err(End::Stopping);
            }
            // Keeping the duplicate of the previous file may have taken a second.
            open.grants.keep_up(&mut open.association)?;
            open.association.keep_alive().map_err(Lost::from)?;
            let id = examined.id;
            let settled = open.grants.settle(examined, &mut open.association, &mut job.not_kept);
            let result = match settled {
                Ok(grant) => Ok(grant),
                Err(Failed::Refused(refusal)) => {
                    refusals.push(refusal.clone());
                    Err(refusal)
                }
                Err(Failed::Lost(lost)) => return Err(lost.into()),
            };
            let answer = job.answers.iter_mut().find(|(of, answer)| *of == id && answer.is_none());
            if let Some((_, answer)) = answer {
                *answer = Some(result);
            }
        }
        refusals.iter().for_each(|refusal| self.note(refusal));
        let Some(job) = self.job.take_if(|job| job.is_done()) else { return Ok(()) };
        let files = job.answers.into_iter().filter_map(|(id, result)| {
            let result = result?;
            Some(FileAnswer { id, result })
        });
        self.send(&Answer::Files(files.collect()), &[])
    }

    /// Logs why the client is served no longer.
    fn tell_end(&self, end: &End) {
        let tell = |level, what: &dyn Display| self.shared.tell(self.peer, level, what);
        match end {
            End::Gone | End::Stopping if self.open.is_none() => {
                log::debug!("{}: the client has gone without opening an association", self.peer);
            }
            End::Gone | End::Stopping => {
                tell(Level::Info, &"the client has gone or the daemon is stopping")
            }
            End::Hostile(why) => {
                tell(Level::Warn, &format_args!("the client breaks the protocol: {why}"));
            }
            End::Lost(lost) => self.tell_lost(lost),
            End::Failed(error) => tell(Level::Error, error),
        }
    }

    fn tell_lost(&self, lost: &Lost) {
        let what = format_args!("the client's association is lost: {lost}");
        self.shared.tell(self.peer, Level::Warn, what);
    }

    /// Takes back all files of the client, and ends its association.
    fn end(&mut self, end: &End) {
        self.tell_end(end);
        let Some(Open { mut association, mut grants, .. }) = self.open.take() else {
            return;
        };
        grants.withdraw();
        let is_lost = matches!(end, End::Lost(_))
            || grants.remove_all(&mut association, TAKE_BACK).is_err_and(|lost| {
                self.tell_lost(&lost);
                true
            });
        if !is_lost {
            return association.close();
        }
        drop(association);
        self.socket.shut_down();
        if grants.has_leases() {
            // The target may have the maps for this long.
            std::thread::sleep(EXPIRED);
        }
    }

    /// Ends the connection. Descriptors that the client has queued in it are closed by the closer, as its others are.
    fn hang_up(self) {
        self.socket.shut_down();
        drop(self.closer.guard(self.socket.into()));
    }
}

struct Ready {
    packet: bool,
    closed: bool,
    breaks: bool,
}

fn opened(open: &mut Option<Open>) -> Result<&mut Open, End> {
    open.as_mut().ok_or_else(|| End::Hostile("a request before Open".to_owned()))
}

/// Reads a memfd that is sealed against changes. Does not touch any other kind of file, whose file system might not
/// answer.
fn read_sealed(memory: BorrowedFd<'_>, max: u32) -> io::Result<Vec<u8>> {
    let wanted = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    if !fcntl_get_seals(memory).is_ok_and(|seals| seals.contains(wanted)) {
        return Err(io::Error::other("it is not a sealed memfd"));
    }
    let length = fstat(memory)?.st_size as u64;
    if length > u64::from(max) {
        return Err(io::Error::other(format!(
            "it has {length} bytes, but the target accepts at most {max}"
        )));
    }
    let mut object = Vec::with_capacity(length as usize);
    let mut memory = File::from(memory.try_clone_to_owned()?);
    memory.seek(SeekFrom::Start(0))?;
    memory.take(length).read_to_end(&mut object)?;
    Ok(object)
}

const _: () = assert!(LOOK_EVERY.as_millis() < KEEP_ALIVE.as_millis() / 2);
