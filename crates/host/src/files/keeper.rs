//! The keeper: one thread that makes maps, sends them, and releases leases when a writer waits for them.

use super::error::MapRefusal;
use super::grants;
use super::layout::{FileLayout, FileSystem, admissible, file_layout, own_file_layout};
use super::lease::{self, Lease};
use super::mapped_file::{MappedFile, Mapping, Proof};
use super::shared::{Place, Queue, Remote, Shared};
use super::sys::{self, BreakSignal, Breaks, LeaseState};
use crate::{Controller, FileMapObject, NamespaceInfo};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep of the keeper if no signal wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// Longest sleep while chains drain.
const DRAINING: Duration = Duration::from_millis(1);
/// Pause before a file is examined again after a passing refusal.
const PASSING: Duration = Duration::from_millis(5);
/// The same after a permanent refusal.
const REFUSED: Duration = Duration::from_secs(1);
/// Pause before another attempt to lease a file, for example one that was open for writing. It doubles with each
/// attempt.
const LEASE_AGAIN: Duration = Duration::from_millis(10);
const LEASE_AGAIN_MAX: Duration = Duration::from_secs(10);
/// At most this many files are mapped, and as many maps removed, before the keeper checks its leases again.
const BATCH: usize = 16;
/// Interval of checks for broken leases while more files wait or other threads use the association.
const LOOK: Duration = Duration::from_millis(10);

/// Starts the keeper; returns when it can be woken.
pub(crate) fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let (ready, started) = mpsc::channel();
    let thread = sys::spawn("bpfof-files", move || {
        let signal = BreakSignal::of_this_thread();
        if let Ok(signal) = signal {
            shared.set_signal(signal);
            shared.kept.store(true, Ordering::SeqCst);
        }
        // The thread that started the keeper waits for this.
        let _ = ready.send(signal.as_ref().map(|_| ()).map_err(|error| error.kind()));
        if let Ok(signal) = signal
            && let Some(remote) = &shared.remote
        {
            match remote.place() {
                Some(place) => Keeper::new(&shared, remote, place, signal).run(),
                None => grants::keep(&shared, remote, signal),
            }
        }
        shared.kept.store(false, Ordering::SeqCst);
        // Release files that were closed meanwhile.
        mem::take(&mut *shared.queue());
        shared.tell();
    })?;
    started.recv().unwrap_or(Err(io::ErrorKind::Other))?;
    Ok(thread)
}

struct Keeper<'a> {
    shared: &'a Shared,
    remote: &'a Remote,
    place: &'a Place,
    /// The namespace when it was last identified.
    info: NamespaceInfo,
    signal: BreakSignal,
    /// Lease breaks that were signalled and not yet handled.
    breaks: Breaks,
    /// Files with a lease, by file id.
    leased: HashMap<u32, Leased>,
    unleased: Vec<Unleased>,
    /// Files whose leases were released before all chains had ended. Their maps must be removed.
    late: Vec<Arc<MappedFile>>,
    /// When leases were last checked.
    looked: Instant,
}

/// Work that the keeper does while it waits for the association.
type Meanwhile<'m, 'a> = dyn FnMut(&mut Keeper<'a>) + 'm;

/// A file with a lease, and the deadline of its chains once the lease is broken.
type Leased = (Arc<MappedFile>, Arc<Mapping>, Option<Instant>);

/// A mapped file that could not be leased yet.
struct Unleased {
    entry: Arc<MappedFile>,
    mapping: Arc<Mapping>,
    next: Instant,
    pause: Duration,
}

impl Unleased {
    /// The next attempt comes after a longer pause.
    fn put_off(&mut self) {
        self.pause = (2 * self.pause).min(LEASE_AGAIN_MAX);
        self.next = Instant::now() + self.pause;
    }
}

impl<'a> Keeper<'a> {
    fn new(shared: &'a Shared, remote: &'a Remote, place: &'a Place, signal: BreakSignal) -> Self {
        let (breaks, leased, unleased) = (Breaks::default(), HashMap::new(), Vec::new());
        let (info, late, looked) = (remote.info, Vec::new(), Instant::now());
        Self { shared, remote, place, info, signal, breaks, leased, unleased, late, looked }
    }

    fn run(&mut self) {
        loop {
            let mut queue = mem::take(&mut *self.shared.queue());
            if queue.stop {
                // The maps of removed files stay at the target until the association ends.
                break;
            }
            if !queue.removed.is_empty() && !queue.refresh.is_empty() {
                // A map made after the file's removal would never be removed.
                let removed: HashSet<u32> = queue.removed.iter().map(|entry| entry.id).collect();
                queue.refresh.retain(|entry| !removed.contains(&entry.id));
            }
            self.keep_for_later(&mut queue);
            for entry in &queue.refresh {
                if self.has_stopped() {
                    break;
                }
                entry.queued.store(false, Ordering::SeqCst);
                self.refresh(entry);
            }
            if !queue.refresh.is_empty() {
                self.shared.tell();
            }
            // Removals come after the maps, because chains wait for maps.
            for entry in &queue.removed {
                if self.has_stopped() {
                    break;
                }
                self.remove(entry);
            }
            // The rest of the queue, or files whose leases had to be released first.
            let more = !self.shared.queue().is_empty();
            let many = queue.refresh.len() == BATCH || queue.removed.len() == BATCH;
            if more && many && self.looked.elapsed() < LOOK {
                continue;
            }
            let draining = self.look();
            if !self.is_connected() {
                break;
            }
            // Files may have been queued since the signal was taken: do not sleep then. But sleep while chains drain,
            // because a draining file may stay in the queue.
            if draining || self.shared.queue().is_empty() {
                let due = self.unleased.iter().map(|file| file.next).min();
                let due = due.map_or(IDLE, |due| due.saturating_duration_since(Instant::now()));
                let longest = if draining { DRAINING } else { due.clamp(DRAINING, IDLE) };
                self.signal.wait(longest, &mut self.breaks);
            }
        }
        for (entry, mapping, _) in mem::take(&mut self.leased).into_values() {
            entry.status().mapping = None;
            release(&entry, &mapping);
        }
    }

    /// Puts all files beyond a batch of each kind back into the queue.
    fn keep_for_later(&self, queue: &mut Queue) {
        let mut later = self.shared.queue();
        let rest = |entries: &mut Vec<_>| entries.split_off(BATCH.min(entries.len()));
        later.refresh.splice(..0, rest(&mut queue.refresh));
        later.removed.splice(..0, rest(&mut queue.removed));
    }

    /// Checks leases. True while chains under a broken lease have not ended.
    fn look(&mut self) -> bool {
        let draining = self.give_back();
        for entry in mem::take(&mut self.late) {
            // Removing the map makes the target end the chains that still read the file, unless the file has a new map
            // by now.
            if !self.is_stopping() && entry.status().mapping.is_none() {
                self.unset(&entry);
            }
        }
        self.lease_again();
        self.looked = Instant::now();
        draining
    }

    /// Releases broken leases while the keeper waits for the association.
    fn give_back_meanwhile(&mut self) {
        self.give_back();
        self.looked = Instant::now();
    }

    /// Calls `meanwhile` if leases have not been checked for a while.
    fn look_if_due(&mut self, meanwhile: &mut Meanwhile<'_, 'a>) {
        if self.looked.elapsed() >= LOOK {
            meanwhile(self);
        }
    }

    /// The association's controller, once no other thread uses it: another thread may be waiting for the target to
    /// compile a function. None if this process has no association.
    fn controller(
        &mut self,
        meanwhile: &mut Meanwhile<'_, 'a>,
    ) -> Option<MutexGuard<'a, Controller>> {
        let remote = self.remote;
        while remote.is_target() {
            if let Some(idle) = remote.idle_controller() {
                return Some(idle);
            }
            self.signal.wait(LOOK, &mut self.breaks);
            meanwhile(self);
        }
        None
    }

    /// Called between two files: whether the keeper should end. Also checks leases if that is due, so that a writer
    /// that waits for a lease does not wait until the whole batch is done.
    fn has_stopped(&mut self) -> bool {
        if !self.is_stopping() && self.looked.elapsed() >= LOOK {
            self.look();
        }
        self.is_stopping()
    }

    /// Whether a thread waits for the keeper's end.
    fn is_stopping(&self) -> bool {
        self.shared.queue().stop
    }

    /// Whether maps can be sent. Without the association the keeper must end, even if readers'
    /// connections last longer: their maps would not be maintained.
    fn is_connected(&self) -> bool {
        // If another thread uses the controller, assume that it is connected: that thread detects a loss, and broken
        // leases must not wait for the lock.
        let idle = self.remote.idle_controller();
        let connected = idle.is_none_or(|mut controller| controller.check_connected());
        if !connected {
            log::info!("{}: the association has ended", self.place.device.path().display());
        }
        connected
    }

    /// Removes the map of a file that has no handle any more.
    fn remove(&mut self, entry: &Arc<MappedFile>) {
        if let Some((_, mapping, _)) = self.leased.remove(&entry.id) {
            release(entry, &mapping);
        }
        self.unleased.retain(|file| file.entry.id != entry.id);
        if mem::take(&mut *entry.status()).version != 0 {
            self.unset(entry);
        }
        entry.access.let_go();
    }

    fn unset(&mut self, entry: &MappedFile) {
        let Some(mut controller) = self.controller(&mut Self::give_back_meanwhile) else { return };
        let removal = FileMapObject::removal(self.remote.info.nsid, entry.id);
        let removed = controller.set_file_map_while(&removal, &mut || self.give_back_meanwhile());
        if let Err(error) = removed {
            log::debug!("{}: cannot remove the file's map: {error}", entry.path.display());
        }
    }

    /// Releases broken leases as soon as their chains have ended. True while some chains have not.
    fn give_back(&mut self) -> bool {
        let seen_ns = lease::now_ns();
        self.signal.receive_all(&mut self.breaks);
        let breaks = mem::take(&mut self.breaks);
        let mut draining = false;
        let ended_late = &mut self.late;
        self.leased.retain(|_, (entry, mapping, end)| {
            let Some(lease) = mapping.lease() else { return false };
            if end.is_none() {
                // A lease of another file may have had the same descriptor number.
                let broken = breaks.may_have(lease.number())
                    && entry.access.lease() != Some(LeaseState::Held);
                if !lease.is_breaking() && !broken {
                    return true;
                }
                lease.start_break();
                entry.status().mapping.take_if(|current| Arc::ptr_eq(current, mapping));
                *end = Some(Instant::now() + lease.drain_time());
            }
            let late = end.is_some_and(|end| Instant::now() >= end);
            if !lease.is_drained() && !late {
                draining = true;
                return true;
            }
            release(entry, mapping);
            if late {
                ended_late.push(Arc::clone(entry));
            }
            false
        });
        self.shared.saw(seen_ns);
        draining
    }

    /// Takes leases on files that could not be leased when they were mapped, if their maps still
    /// hold: chains over leased files cost less.
    fn lease_again(&mut self) {
        let now = Instant::now();
        for mut file in mem::take(&mut self.unleased) {
            if file.next > now || self.is_stopping() {
                self.unleased.push(file);
                continue;
            }
            let current = file.entry.status().mapping.clone();
            if !current.is_some_and(|current| Arc::ptr_eq(&current, &file.mapping)) {
                continue;
            }
            let opened = file.entry.access.to_lease(&file.entry.path).ok();
            let lease = opened.and_then(|opened| Some((self.lease(&file.entry, &opened)?, opened)));
            let Some((lease, opened)) = lease else {
                file.put_off();
                self.unleased.push(file);
                continue;
            };
            let Mapping { version, has_gaps, .. } = &*file.mapping;
            let Some(layout) = file.mapping.layout() else { continue };
            // A long write changes the file's times once, when it begins. Data that it wrote after
            // the map was made may be only in the page cache, and chains over leased files write
            // nothing back.
            // The lease is not in `leased` yet, so no other code notices that it is broken meanwhile.
            let is_broken = || sys::lease_state(&opened) == LeaseState::Broken;
            let meanwhile = &mut |keeper: &mut Self| {
                keeper.give_back_meanwhile();
                if is_broken() {
                    let _ = sys::release_lease(&opened);
                }
            };
            let written = file
                .entry
                .write_back_while(&opened, &mut || self.look_if_due(meanwhile))
                .and_then(|()| file.entry.write_back(&opened))
                .is_ok();
            if is_broken() {
                let _ = sys::release_lease(&opened);
                file.put_off();
                self.unleased.push(file);
                continue;
            }
            if !written || !layout.holds(&opened) {
                let mut status = file.entry.status();
                status.mapping.take_if(|current| Arc::ptr_eq(current, &file.mapping));
                let _ = sys::release_lease(&opened);
                continue;
            }
            file.entry.access.keep(&opened, is_used(layout, true));
            let proof = Proof::Found(layout.clone(), Some(lease));
            let (version, has_gaps) = (*version, *has_gaps);
            let mapping = Arc::new(Mapping { version, has_gaps, proof });
            file.entry.status().mapping = Some(Arc::clone(&mapping));
            self.leased.insert(file.entry.id, (file.entry, mapping, None));
        }
    }

    /// Gives a file a current map, unless it has one or cannot have one.
    fn refresh(&mut self, entry: &Arc<MappedFile>) {
        let old = entry.status().mapping.clone();
        let leased = old.as_ref().and_then(|mapping| mapping.lease());
        let is_broken = || entry.access.lease() == Some(LeaseState::Broken);
        let guarded = leased.is_none_or(|lease| !lease.is_breaking() && !is_broken());
        // If the current map still holds, keep it: a new version would only make chains stale.
        let layout = old.as_ref().and_then(|mapping| mapping.layout());
        let holds = |layout: &FileLayout| {
            entry.file_now().is_ok_and(|file| match entry.is_own {
                true => layout.has_kept(&file) && !layout.has_grown(&file),
                false => layout.holds(&file),
            })
        };
        if guarded && layout.is_some_and(holds) {
            entry.looked(&mut entry.status());
            return;
        }
        if self.leased.contains_key(&entry.id) {
            // The lease of the old map must be released first, after its chains have ended.
            if let Some(lease) = leased {
                lease.start_break();
            }
            if entry.enqueue() {
                self.shared.queue().refresh.push(Arc::clone(entry));
            }
            return;
        }
        let made = self.make(entry);
        let mut status = entry.status();
        entry.looked(&mut status);
        match made {
            Ok(mapping) => {
                let mapping = Arc::new(mapping);
                if mapping.lease().is_some() {
                    let leased = (Arc::clone(entry), Arc::clone(&mapping), None);
                    self.leased.insert(entry.id, leased);
                } else if self.shared.checks && !entry.is_own && !entry.is_duplicate {
                    let (entry, mapping) = (Arc::clone(entry), Arc::clone(&mapping));
                    let (next, pause) = (Instant::now() + LEASE_AGAIN, LEASE_AGAIN);
                    self.unleased.push(Unleased { entry, mapping, next, pause });
                }
                status.version = mapping.version;
                status.mapping = Some(mapping);
                status.refusal = None;
                status.not_before = None;
            }
            Err(refusal) => {
                log::debug!("{}: not mapped: {refusal}", entry.path.display());
                status.mapping = None;
                let pause = if refusal.is_passing() { PASSING } else { REFUSED };
                status.not_before = Some(Instant::now() + pause);
                status.refusal = Some(Arc::new(refusal));
            }
        }
    }

    /// Finds the file's extents, under a lease if possible, and sends the map to the target.
    fn make(&mut self, entry: &MappedFile) -> Result<Mapping, MapRefusal> {
        let opened = entry.access.to_lease(&entry.path);
        let file = opened.map_err(MapRefusal::io("cannot open it"))?;
        let mut lease = self.lease(entry, &file);
        let is_leased = lease.is_some();
        let is_broken = || is_leased && sys::lease_state(&file) == LeaseState::Broken;
        let meanwhile = &mut |keeper: &mut Self| {
            keeper.give_back_meanwhile();
            // The lease of this file is not in `leased` yet, so no other code releases it.
            if is_broken() {
                let _ = sys::release_lease(&file);
            }
        };
        let made = self.layout(entry, &file, meanwhile).and_then(|layout| {
            let version = entry.status().version + 1;
            self.send(entry, version, &layout, meanwhile)?;
            let has_gaps = layout.has_gaps();
            Ok((version, layout, has_gaps))
        });
        // The lease was broken meanwhile: use the map without a lease.
        if is_broken() {
            lease = None;
        }
        if (lease.is_none() || made.is_err()) && !entry.is_duplicate && !entry.is_own {
            // Without a lease this does nothing.
            let _ = sys::release_lease(&file);
        }
        let (version, layout, has_gaps) = made?;
        entry.access.keep(&file, is_used(&layout, lease.is_some()));
        let proof = match entry.is_own {
            true => Proof::Own(layout),
            false => Proof::Found(layout, lease),
        };
        Ok(Mapping { version, has_gaps, proof })
    }

    /// Takes a read lease, which requires that the file is not open for writing and that this process owns it.
    fn lease(&self, entry: &MappedFile, file: &File) -> Option<Lease> {
        if entry.is_own || entry.is_duplicate {
            return None;
        }
        let break_time = lease::break_time().filter(|_| self.shared.checks)?;
        match sys::take_lease(file, &self.signal) {
            Ok(()) => Some(Lease::held(break_time, file.as_raw_fd())),
            Err(error) => {
                log::debug!("{}: no lease: {error}", entry.path.display());
                None
            }
        }
    }

    /// Identifies the namespace again; true if it has grown.
    fn has_grown(&mut self, meanwhile: &mut Meanwhile<'_, 'a>) -> bool {
        let Some(controller) = self.controller(meanwhile) else { return false };
        let (nsid, meanwhile) = (self.remote.info.nsid, &mut || meanwhile(self));
        let Ok(now) = controller.identify_namespace_while(nsid, Some(meanwhile)) else {
            return false;
        };
        let after = NamespaceInfo { blocks: now.blocks, ..self.info };
        let before = mem::replace(&mut self.info, after);
        now.block_bytes == before.block_bytes && now.blocks > before.blocks
    }

    fn layout(
        &mut self,
        entry: &MappedFile,
        file: &File,
        meanwhile: &mut Meanwhile<'_, 'a>,
    ) -> Result<FileLayout, MapRefusal> {
        self.place.device.admit_again(&self.info, self.place.nqn.as_deref())?;
        admissible(file)?;
        // So that the look below finds little to write.
        entry
            .write_back_while(file, &mut || self.look_if_due(meanwhile))
            .map_err(MapRefusal::NotWritten)?;
        let look = if entry.is_own { own_file_layout } else { file_layout };
        let layout = match look(file, &self.place.device, &self.info) {
            Err(MapRefusal::BehindNamespace { .. }) if self.has_grown(meanwhile) => {
                look(file, &self.place.device, &self.info)
            }
            layout => layout,
        };
        let layout = layout.inspect_err(|refusal| {
            if let MapRefusal::NotWritten(error) = refusal {
                entry.is_not_written(error);
            }
        })?;
        let (extents, max) = (layout.extents().len(), self.place.extents_max);
        if extents > max {
            return Err(MapRefusal::TooManyExtents { extents, max });
        }
        Ok(layout)
    }

    fn send(
        &mut self,
        entry: &MappedFile,
        version: u64,
        layout: &FileLayout,
        meanwhile: &mut Meanwhile<'_, 'a>,
    ) -> Result<(), MapRefusal> {
        // The version is used up even if the target refuses the map, so that it never names two maps.
        entry.status().version = version;
        let map = FileMapObject {
            file: entry.id,
            nsid: self.remote.info.nsid,
            version,
            length_bytes: layout.length_bytes(),
            extents: layout.extents().to_vec(),
        };
        // Without a target there is nothing to send: readers in this process use the layout itself.
        let Some(mut controller) = self.controller(meanwhile) else { return Ok(()) };
        Ok(controller.set_file_map_while(&map, &mut || meanwhile(self))?)
    }
}

/// Whether chains over the file access its descriptor, to compare the file with its map: without a lease, or on XFS,
/// which may move data in spite of a lease.
fn is_used(layout: &FileLayout, is_leased: bool) -> bool {
    !is_leased || layout.file_system == FileSystem::Xfs
}

fn release(entry: &MappedFile, mapping: &Mapping) {
    if let Some(lease) = mapping.lease() {
        lease.start_break();
        entry.access.release(lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::access::Access;
    use crate::files::device::NamespaceDevice;
    use crate::files::grants::tests::daemon;
    use crate::files::mapped_file::Kind;
    use crate::files::shared::Server;
    use crate::grant::GrantClient;
    use crate::vectors::VectorLimits;
    use std::sync::Mutex;

    #[test]
    fn a_keeper_that_is_stopped_removes_no_maps() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, image) = (folder.path().join("socket"), folder.path().join("image"));
        File::create(&image).expect("made");
        // A keeper with an association of the grant daemon sends no commands.
        let daemon = daemon(&socket, |request, _| panic!("{request:?}"));
        let client = GrantClient::connect(&socket, None).expect("it connects");
        let (info, ender) = (client.namespace(), client.ender().expect("a descriptor"));
        let server = Server::Grants(Box::new(Mutex::new(client)), ender);
        let remote = Remote { server, info, vectors: VectorLimits::UNKNOWN };
        let device = NamespaceDevice::new(&image).expect("an image");
        let place = Place { device, nqn: None, extents_max: 1 };
        let shared = Shared::new(None, true);
        let entry = Arc::new(MappedFile::new(1, Access::by_path(), image, Kind::Shared));
        entry.status().version = 1;
        let removed = vec![Arc::clone(&entry)];
        *shared.queue() = Queue { removed, stop: true, ..Queue::default() };
        let signal = BreakSignal::of_this_thread().expect("a signal");
        Keeper::new(&shared, &remote, &place, signal).run();
        assert_eq!(entry.status().version, 1, "it would have been a command to the target");
        drop(remote);
        daemon.join().expect("the client has gone");
    }
}
