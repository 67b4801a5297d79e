//! The keeper's loop if the grant daemon makes the maps: it requests grants, and records them.

use super::error::MapRefusal;
use super::mapped_file::{MappedFile, Mapping, Proof};
use super::shared::{Queue, Remote, Shared};
use super::sys::{BreakSignal, Breaks};
use crate::grant::protocol::{Cause, FILES_PER_REQUEST, FileAnswer, Refusal};
use crate::grant::{GrantError, PageReader};
use std::collections::HashMap;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After a request for grants that took this long, because dirty pages of the files were written back first, the next
/// one names fewer files.
const SLOW: Duration = Duration::from_secs(1);
/// Interval of checks that the daemon is still there, if no signal wakes the keeper.
const IDLE: Duration = Duration::from_secs(1);
/// Pause before a grant is requested again for a file that is being written.
const PASSING: Duration = Duration::from_millis(50);
/// The same after any other refusal.
const REFUSED: Duration = Duration::from_secs(1);

struct Keeper<'a> {
    remote: &'a Remote,
    page: Arc<PageReader>,
    /// The daemon's ids of the files that it knows, by their ids in this process.
    ids: HashMap<u32, u32>,
    /// Ids that were given back, and the next one that was never used.
    free: Vec<u32>,
    next: u32,
    files_max: u32,
}

/// Requests grants until the daemon is gone or the [`FileMaps`](super::FileMaps) is dropped.
pub(crate) fn keep(shared: &Shared, remote: &Remote, signal: BreakSignal) {
    let Some(client) = remote.grants() else { return };
    let (page, files_max) = (Arc::clone(client.page()), client.files_max());
    drop(client);
    let (ids, free) = (HashMap::new(), Vec::new());
    let mut keeper = Keeper { remote, page, ids, free, next: 1, files_max };
    // Start with one file: writing back its dirty pages may take long, and new readers wait for the same connection.
    let mut files_at_once = 1;
    loop {
        let mut queue = mem::take(&mut *shared.queue());
        if queue.stop {
            queue.refresh.clear();
        }
        queue.refresh.retain(|entry| !queue.removed.iter().any(|other| other.id == entry.id));
        let rest = queue.refresh.split_off(files_at_once.min(queue.refresh.len()));
        let more = !rest.is_empty();
        shared.queue().refresh.splice(..0, rest);
        let begun = Instant::now();
        if let Err(error) = keeper.turn(&queue) {
            // The thread that stops the keeper may have ended the connection.
            if !queue.stop && !shared.queue().stop {
                log::warn!("chains run over plain reads from now on: {error}");
            }
            break;
        }
        if !queue.refresh.is_empty() {
            files_at_once = next_files(files_at_once, begun.elapsed());
            shared.tell();
        }
        if queue.stop || !remote.grants().is_some_and(|client| client.is_connected()) {
            break;
        }
        if !more {
            signal.wait(IDLE, &mut Breaks::default());
        }
    }
}

/// Number of files of the next request, after one for `files` files took `took`. The daemon answers after it has
/// examined all files, and other requests wait for that.
fn next_files(files: usize, took: Duration) -> usize {
    if took >= SLOW { (files / 4).max(1) } else { (files * 2).min(FILES_PER_REQUEST) }
}

impl Keeper<'_> {
    fn turn(&mut self, queue: &Queue) -> Result<(), GrantError> {
        for chunk in queue.removed.chunks(FILES_PER_REQUEST) {
            self.remove(chunk)?;
        }
        let refresh = &queue.refresh;
        refresh.iter().for_each(|entry| entry.queued.store(false, Ordering::SeqCst));
        // Do not request a map that still holds.
        let is_lost = |entry: &&Arc<MappedFile>| {
            let mut status = entry.status();
            let good = status.mapping.as_ref().is_some_and(|mapping| mapping.is_good());
            if good {
                entry.looked(&mut status);
            }
            !good
        };
        let lost: Vec<&Arc<MappedFile>> = refresh.iter().filter(is_lost).collect();
        let (known, new) = lost.into_iter().partition(|entry| self.ids.contains_key(&entry.id));
        self.again(known)?;
        self.add(new)
    }

    fn remove(&mut self, entries: &[Arc<MappedFile>]) -> Result<(), GrantError> {
        let ids: Vec<u32> = entries.iter().filter_map(|e| self.ids.remove(&e.id)).collect();
        if let (Some(mut client), false) = (self.remote.grants(), ids.is_empty()) {
            client.remove(&ids)?;
        }
        self.free.extend(ids);
        Ok(())
    }

    fn again(&mut self, entries: Vec<&Arc<MappedFile>>) -> Result<(), GrantError> {
        let ids: Vec<u32> = entries.iter().filter_map(|e| self.ids.get(&e.id).copied()).collect();
        if let (Some(mut client), false) = (self.remote.grants(), ids.is_empty()) {
            let answers = client.refresh(&ids)?;
            drop(client);
            self.note(entries, answers)?;
        }
        Ok(())
    }

    fn add(&mut self, entries: Vec<&Arc<MappedFile>>) -> Result<(), GrantError> {
        let (mut taken, mut files) = (Vec::new(), Vec::new());
        for entry in entries {
            let file = match entry.file_now() {
                Ok(file) => file,
                Err(error) => {
                    refuse(entry, MapRefusal::io("cannot open it")(error));
                    continue;
                }
            };
            let fresh = || {
                let id = self.next;
                (id <= self.files_max).then(|| self.next += 1).map(|()| id)
            };
            match self.free.pop().or_else(fresh) {
                Some(id) => {
                    self.ids.insert(entry.id, id);
                    taken.push((entry, id));
                    files.push(file);
                }
                None => {
                    let why = format!("{} files are already open", self.files_max);
                    not_granted(entry, Refusal::new(Cause::Quota, why));
                }
            }
        }
        let ids: Vec<u32> = taken.iter().map(|(_, id)| *id).collect();
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        if let (Some(mut client), false) = (self.remote.grants(), ids.is_empty()) {
            let answers = client.add(&ids, &files)?;
            drop(client);
            self.note(taken.into_iter().map(|(entry, _)| entry).collect(), answers)?;
        }
        Ok(())
    }

    fn note(
        &mut self,
        entries: Vec<&Arc<MappedFile>>,
        answers: Vec<FileAnswer>,
    ) -> Result<(), GrantError> {
        let mut not_taken = Vec::new();
        for (entry, FileAnswer { id, result }) in entries.into_iter().zip(answers) {
            match result {
                Ok(grant) => {
                    let proof = Proof::Grant(Arc::clone(&self.page), id);
                    let (version, has_gaps) = (grant.version, grant.has_gaps);
                    let mut status = entry.status();
                    entry.looked(&mut status);
                    status.version = version;
                    status.mapping = Some(Arc::new(Mapping { version, has_gaps, proof }));
                    status.refusal = None;
                    status.not_before = None;
                }
                Err(refusal) => {
                    if refusal.cause == Cause::Quota {
                        not_taken.push(Arc::clone(entry));
                    }
                    not_granted(entry, refusal);
                }
            }
        }
        // The daemon may not have kept these files, so refreshing them would fail: remove them, and add them again
        // later.
        self.remove(&not_taken)
    }
}

fn not_granted(entry: &MappedFile, refusal: Refusal) {
    refuse(entry, MapRefusal::NotGranted(refusal));
}

fn refuse(entry: &MappedFile, refusal: MapRefusal) {
    log::debug!("{}: {refusal}", entry.path.display());
    let pause = if refusal.is_passing() { PASSING } else { REFUSED };
    let mut status = entry.status();
    entry.looked(&mut status);
    status.mapping = None;
    status.not_before = Some(Instant::now() + pause);
    status.refusal = Some(Arc::new(refusal));
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Lane;
    use crate::files::FileMaps;
    use crate::grant::protocol::{Answer, Grant, Opened, Request};
    use crate::grant::{GrantClient, PacketSocket, PageWriter};
    use crate::handed_lane::example_state;
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket,
    };
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(20);

    /// A daemon for one client. `answer` answers requests about files; after None the daemon sends no answer and goes
    /// on.
    pub(crate) fn daemon(
        path: &Path,
        mut answer: impl FnMut(Request, &mut PageWriter) -> Option<Answer> + Send + 'static,
    ) -> std::thread::JoinHandle<()> {
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let address = SocketAddrUnix::new(path).expect("a path");
        bind(&listener, &address).and_then(|()| listen(&listener, 1)).expect("it listens");
        std::thread::spawn(move || {
            let connection = accept_with(&listener, SocketFlags::NONBLOCK).expect("a client");
            let mut connection = PacketSocket::new(connection);
            let mut page = PageWriter::new(10).expect("memory");
            let mut packet = Vec::new();
            while connection.wait(LONG).expect("waited") {
                let Some(received) = connection.receive().expect("received") else { return };
                packet.clear();
                match Request::decode(received.bytes, received.descriptors.len()).expect("good") {
                    Request::Open { .. } => {
                        let opened = Opened { nsid: 1, block_bytes: 512, blocks: 8, files_max: 10 };
                        Answer::Opened(opened).encode(&mut packet);
                        connection.send(&packet, &[page.reader().as_fd()]).expect("sent");
                    }
                    request => {
                        if let Some(answer) = answer(request, &mut page) {
                            answer.encode(&mut packet);
                            connection.send(&packet, &[]).expect("sent");
                        }
                    }
                }
            }
            panic!("the client is there for ever");
        })
    }

    fn answers(id: u32, result: Result<Grant, Refusal>) -> Answer {
        Answer::Files(vec![FileAnswer { id, result }])
    }

    #[test]
    fn a_refused_file_is_sent_again_after_a_pause() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let (told, asked) = channel();
        let (mut refusals, mut last) = (3, None);
        let daemon = daemon(&path, move |request, page| {
            let now = Instant::now();
            match &request {
                Request::Add { ids } => {
                    let pause = last.replace(now).map(|last: Instant| now.duration_since(last));
                    told.send(pause).expect("the test waits");
                    assert_eq!(ids, &[1], "the id is free again");
                    refusals -= 1;
                    Some(answers(
                        1,
                        match refusals {
                            0 => {
                                page.set(1, 5);
                                Ok(Grant { version: 5, has_gaps: false })
                            }
                            // The file is about to be written, and the daemon does not keep it.
                            1 => Err(Refusal::new(Cause::BeingWritten, "not now")),
                            _ => Err(Refusal::new(Cause::Quota, "too many files")),
                        },
                    ))
                }
                Request::Refresh { ids } => {
                    assert_eq!((ids, refusals), (&vec![1], 1), "it was never taken");
                    Some(answers(1, Err(Refusal::new(Cause::Quota, "the file was not taken"))))
                }
                Request::Remove { ids } => {
                    assert!(ids == &[1]);
                    Some(Answer::Done)
                }
                other => panic!("{other:?}"),
            }
        });
        let client = GrantClient::connect(&path, None).expect("it connects");
        let maps = FileMaps::granted(client).expect("it starts");
        let file = maps.open("/etc/hostname").expect("opened");
        let end = Instant::now() + LONG;
        // A refresh before the first answer would be a second request.
        while file.refusal().is_none() {
            assert!(Instant::now() < end, "no answer");
            std::thread::yield_now();
        }
        while !file.is_mapped() {
            assert!(Instant::now() < end, "{:?}", file.refusal());
            file.refresh();
            std::thread::sleep(Duration::from_millis(5));
        }
        drop((file, maps));
        daemon.join().expect("the client has gone");
        let pauses: Vec<Option<Duration>> = asked.iter().collect();
        let is_long = |pause: &Option<Duration>| pause.is_none_or(|pause| pause >= REFUSED);
        assert!(pauses.len() == 3 && pauses.iter().all(is_long), "{pauses:?}");
    }

    #[test]
    fn dropping_the_files_does_not_wait_for_the_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let (asked, is_asked) = channel();
        let daemon = daemon(&path, move |request, _| {
            let Request::Add { ids } = request else { panic!("{request:?}") };
            assert_eq!(ids.len(), 1, "the time of one file is not known yet");
            asked.send(()).expect("the test waits");
            None
        });
        let client = GrantClient::connect(&path, None).expect("it connects");
        let maps = FileMaps::granted(client).expect("it starts");
        let files = [(); 3].map(|()| maps.open("/etc/hostname").expect("opened"));
        is_asked.recv_timeout(LONG).expect("it is asked");
        let begun = Instant::now();
        drop(maps);
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        daemon.join().expect("the client has gone");
        drop(files);
    }

    #[test]
    fn a_reader_gets_no_idle_lane_that_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let daemon = daemon(&path, |request, _| {
            assert!(matches!(request, Request::Lane), "{request:?}");
            Some(Answer::Refused(Refusal::new(Cause::Quota, "too many lanes")))
        });
        let client = GrantClient::connect(&path, None).expect("it connects");
        let maps = FileMaps::granted(client).expect("it starts");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connect = || {
            let address = listener.local_addr().expect("an address");
            let socket = TcpStream::connect(address).expect("it listens");
            (socket, listener.accept().expect("a connection").0)
        };
        let (open, _peer) = connect();
        let (mut ended, peer) = connect();
        drop(peer);
        assert_eq!(ended.read(&mut [0]).expect("read"), 0, "the end has come");
        // The lane that was left last is taken first.
        for socket in [open, ended] {
            let lane = Lane::adopt(socket.into(), &example_state()).expect("a lane");
            maps.shared.leave_lane(lane);
        }
        let mut lane = maps.shared.open_lane().expect("an idle lane").expect("a lane");
        assert!(lane.check_connected(), "it has ended");
        assert!(maps.shared.open_lane().is_err(), "the daemon has refused another lane");
        drop(maps);
        daemon.join().expect("the client has gone");
    }

    #[test]
    fn slow_requests_are_followed_by_smaller_ones() {
        let mut files = FILES_PER_REQUEST;
        for _ in 0..4 {
            files = next_files(files, SLOW);
        }
        assert_eq!(files, 1);
        for _ in 0..8 {
            files = next_files(files, SLOW / 2);
        }
        assert_eq!(files, FILES_PER_REQUEST);
    }
}
