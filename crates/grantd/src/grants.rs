//! The files of one client, and their grants.

use crate::association::{Association, CONNECTED, Failed, Lost};
use crate::examine::{Examined, Found, Opened, Subject, check_break_time, is_settled};
use crate::keepsake::{Keepsake, Key, NotKept};
use crate::quota::{Exceeded, Kind, Quotas, Share};
use crate::{ANSWERED, EXPIRED, LEASE_BREAK_TIME_MIN, LOOK_EVERY};
use bpfof_host::files::{FileSystem, LeasedFile};
use bpfof_host::grant::PageWriter;
use bpfof_host::grant::protocol::{Cause, Grant, Refusal};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// While a lease is being broken, no command begins later than this after the last check of the leases: if the command
/// fails, the association must have expired before the kernel breaks the lease by force.
const LATE: Duration = LEASE_BREAK_TIME_MIN.saturating_sub(ANSWERED).saturating_sub(EXPIRED);
/// The leases are checked before a command unless they were checked within this time, because checking many takes some
/// ms. It is short compared with [`LATE`], so that a command of almost 2 s after it is not too late.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A file, under an id that the client has chosen.
#[derive(Debug)]
struct Entry {
    /// The file as opened by the daemon, or why it could not be opened.
    file: Result<Arc<File>, Refusal>,
    granted: Option<Granted>,
    _share: Share,
}

/// A file of which the target has a map.
#[derive(Debug)]
struct Granted {
    lease: LeasedFile,
    key: Key,
    /// Version 0 as long as the target may have no map.
    grant: Grant,
    file_system: FileSystem,
    _extents: Share,
}

/// All files of one client.
#[derive(Debug)]
pub(crate) struct Grants {
    entries: HashMap<u32, Entry>,
    page: PageWriter,
    keepsake: Arc<Keepsake>,
    quotas: Quotas,
    /// See [`is_settled`].
    trusts_owners: bool,
    uid: u32,
    /// Every lease whose break began before this time has been released.
    looked: Instant,
}

fn exceeded(error: Exceeded) -> Refusal {
    Refusal::new(Cause::Quota, error)
}

/// Keeps a duplicate of a leased descriptor. `failed` is the error for an earlier file of the same request; after one
/// it is not tried again, because each attempt could take a second.
fn keep_duplicate(
    keepsake: &Keepsake,
    descriptor: BorrowedFd<'_>,
    failed: &mut Option<Refusal>,
) -> Result<Key, Refusal> {
    if let Some(refusal) = failed {
        return Err(refusal.clone());
    }
    keepsake.keep(descriptor).map_err(|error| match error {
        NotKept::Full(_) => Refusal::new(Cause::Quota, &error),
        NotKept::Failed(_) => failed.insert(Refusal::new(Cause::Unavailable, &error)).clone(),
    })
}

impl Grants {
    pub(crate) fn new(
        page: PageWriter,
        keepsake: Arc<Keepsake>,
        quotas: Quotas,
        trusts_owners: bool,
        uid: u32,
    ) -> Self {
        let looked = Instant::now();
        Self { entries: HashMap::new(), page, keepsake, quotas, trusts_owners, uid, looked }
    }

    pub(crate) const fn page(&self) -> &PageWriter {
        &self.page
    }

    pub(crate) fn has(&self, id: u32) -> bool {
        self.entries.contains_key(&id)
    }

    /// Adds a file that is yet to be examined, and counts it in the quota.
    pub(crate) fn add(&mut self, id: u32) -> Result<(), Refusal> {
        let share = self.quotas.take(self.uid, Kind::Files, 1).map_err(exceeded)?;
        let unknown = Err(Refusal::new(Cause::Unavailable, "the file was not examined"));
        self.entries.insert(id, Entry { file: unknown, granted: None, _share: share });
        Ok(())
    }

    /// The grant of a file, or the subject to examine again.
    pub(crate) fn look_again(&self, id: u32) -> Result<Grant, Subject> {
        let Some(entry) = self.entries.get(&id) else {
            return Err(Subject::Refused(Refusal::new(Cause::Quota, "the file was not accepted")));
        };
        match (&entry.granted, &entry.file) {
            (Some(granted), _) => Ok(granted.grant),
            (None, Ok(file)) => Err(Subject::Opened(Arc::clone(file))),
            (None, Err(refusal)) => Err(Subject::Refused(refusal.clone())),
        }
    }

    /// Notes how a file was opened. Returns its lease and layout, if it may be granted.
    fn keep(&mut self, examined: Examined) -> Result<Found, Refusal> {
        let Examined { id, opened, result } = examined;
        let file = match (opened, &result) {
            (Opened::Here(file), _) => Some(Ok(file)),
            (Opened::Never, Err(refusal)) => Some(Err(refusal.clone())),
            (Opened::NotNow | Opened::Never, _) => None,
        };
        match file {
            None => drop(self.entries.remove(&id)),
            Some(file) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.file = file;
                }
            }
        }
        result
    }

    /// Sets the map of an examined file, if its lease is still held. `not_kept` is the error of the keepsake for an
    /// earlier file of the same request, if there was one.
    pub(crate) fn settle(
        &mut self,
        examined: Examined,
        association: &mut Association,
        not_kept: &mut Option<Refusal>,
    ) -> Result<Grant, Failed> {
        let id = examined.id;
        let refused = |cause, why: &str| Failed::Refused(Refusal::new(cause, why));
        let Found { lease, layout } = self.keep(examined).map_err(Failed::Refused)?;
        let Some(entry) = self.entries.get_mut(&id) else {
            return Err(refused(Cause::Malformed, "there is no such file"));
        };
        let extents = layout.extents().len();
        let share = self.quotas.take(self.uid, Kind::Extents, extents);
        let share = share.map_err(|error| Failed::Refused(exceeded(error)))?;
        let key = keep_duplicate(&self.keepsake, lease.file().as_fd(), not_kept);
        let key = key.map_err(Failed::Refused)?;
        let file_system = layout.file_system();
        let grant = Grant { version: 0, has_gaps: layout.has_gaps() };
        // From now on the target may have the map, whatever fails.
        entry.granted = Some(Granted { lease, key, grant, file_system, _extents: share });
        let set = match self.set(id, &layout, association) {
            Err(Failed::Lost(lost)) => return Err(lost.into()),
            answered => answered,
        };
        self.keep_up(association)?;
        let version = match set {
            Ok(version) => version,
            Err(refused) => {
                self.revoke(id, association)?;
                return Err(refused);
            }
        };
        let grant = Grant { version, ..grant };
        if let Some(granted) = self.entries.get_mut(&id).and_then(|entry| entry.granted.as_mut()) {
            granted.grant = grant;
            self.page.set(id, version);
        }
        // A break may have begun before the lease was in the table.
        if !self.is_good(id) {
            self.revoke(id, association)?;
            return Err(refused(
                Cause::BeingWritten,
                "another process is about to write to the file",
            ));
        }
        Ok(grant)
    }

    /// Sets the map of a file whose lease must be held now: a break that begins later must wait.
    fn set(
        &mut self,
        id: u32,
        layout: &bpfof_host::files::FileLayout,
        association: &mut Association,
    ) -> Result<u64, Failed> {
        self.keep_up(association)?;
        check_break_time().map_err(Failed::Refused)?;
        if !self.is_good(id) {
            let why = "another process is about to write to the file";
            return Err(Failed::Refused(Refusal::new(Cause::BeingWritten, why)));
        }
        association.set_map(id, layout, &mut || self.look_between())
    }

    /// Whether the conditions of a grant still hold: its lease, and that the file keeps its blocks.
    fn is_good(&self, id: u32) -> bool {
        let granted = self.entries.get(&id).and_then(|entry| entry.granted.as_ref());
        granted.is_some_and(|granted| {
            granted.lease.is_held()
                && is_settled(granted.lease.file(), granted.file_system, self.trusts_owners)
        })
    }

    /// Ids of grants that must be given back.
    fn broken(&self) -> Vec<u32> {
        let granted = self.entries.iter().filter(|(_, entry)| entry.granted.is_some());
        granted.map(|(id, _)| *id).filter(|id| !self.is_good(*id)).collect()
    }

    /// Checks the leases if they were not checked for a while, and gives back files whose leases are being broken. Call
    /// it before each command: the target may have taken long for the previous one.
    ///
    /// # Errors
    /// The association is lost.
    pub(crate) fn keep_up(&mut self, association: &mut Association) -> Result<(), Lost> {
        if self.looked.elapsed() < LOOK_AGAIN { Ok(()) } else { self.give_back(association) }
    }

    /// Gives back files whose leases are being broken, until there are none.
    ///
    /// # Errors
    /// The association is lost.
    pub(crate) fn give_back(&mut self, association: &mut Association) -> Result<(), Lost> {
        loop {
            let looking = Instant::now();
            let broken = self.broken();
            broken.iter().for_each(|id| self.page.set(*id, 0));
            for id in &broken {
                log::debug!("revoking file {id} of uid {}", self.uid);
                self.revoke(*id, association)?;
            }
            self.looked = looking;
            if broken.is_empty() {
                return Ok(());
            }
        }
    }

    /// Checks the leases while a map is being sent, which the removal of another map would interrupt: so it fails
    /// instead of removing one.
    fn look_between(&mut self) -> Result<(), Failed> {
        if self.looked.elapsed() < LOOK_AGAIN {
            return Ok(());
        }
        let looking = Instant::now();
        if self.broken().is_empty() {
            self.looked = looking;
            return Ok(());
        }
        let why = "another process is about to write to another file of the client, which must be \
                   revoked first";
        Err(Failed::Refused(Refusal::new(Cause::BeingWritten, why)))
    }

    /// Takes a grant back. Its lease is released when no chain uses the map any more.
    ///
    /// # Errors
    /// The association is lost; the lease is kept.
    fn revoke(&mut self, id: u32, association: &mut Association) -> Result<(), Lost> {
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
        if entry.granted.is_some() {
            self.page.set(id, 0);
            if self.looked.elapsed() > LATE {
                return Err(Lost::Late);
            }
            association.remove_map(id)?;
        }
        if let Some(Granted { lease, key, .. }) = entry.granted.take() {
            drop(lease);
            let dropped = self.keepsake.drop_key(key);
            dropped
                .unwrap_or_else(|error| log::warn!("cannot drop a duplicate of a file: {error}"));
        }
        Ok(())
    }

    /// Takes a file back.
    pub(crate) fn remove(&mut self, id: u32, association: &mut Association) -> Result<(), Lost> {
        self.keep_up(association)?;
        self.revoke(id, association)?;
        self.entries.remove(&id);
        Ok(())
    }

    /// Takes all files back, as far as that can be done `within` a time.
    ///
    /// # Errors
    /// The association is lost, or is to be given up since there are files left.
    pub(crate) fn remove_all(
        &mut self,
        association: &mut Association,
        within: Duration,
    ) -> Result<(), Lost> {
        let begun = Instant::now();
        let ids: Vec<u32> = self.entries.keys().copied().collect();
        ids.into_iter().try_for_each(|id| match begun.elapsed() >= within {
            true => Err(Lost::Late),
            false => self.remove(id, association),
        })
    }

    /// Tells the client that no grant may be used any more.
    pub(crate) fn withdraw(&self) {
        self.entries.keys().for_each(|id| self.page.set(*id, 0));
    }

    /// Whether leases are held.
    pub(crate) fn has_leases(&self) -> bool {
        self.entries.values().any(|entry| entry.granted.is_some())
    }
}

impl Drop for Grants {
    /// Only for an association that has ended at the target, or has no map there.
    fn drop(&mut self) {
        for (_, entry) in self.entries.drain() {
            // The target may have any of the maps. The leases end with the process.
            if std::thread::panicking() {
                std::mem::forget(entry);
                continue;
            }
            if let Some(Granted { lease, key, .. }) = entry.granted {
                drop(lease);
                let dropped = self.keepsake.drop_key(key);
                dropped.unwrap_or_else(|error| {
                    log::warn!("cannot drop a duplicate of a file: {error}")
                });
            }
        }
    }
}

const _: () = assert!(LOOK_EVERY.as_millis() + LOOK_AGAIN.as_millis() < LATE.as_millis());
const _: () = assert!(CONNECTED.as_millis() < LATE.as_millis());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Limits, Served};
    use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};
    use std::path::PathBuf;

    /// A target, and a client's association there.
    fn associated() -> (Server, Association) {
        let source = NamespaceSource::Memory { size_bytes: 1 << 20, latency_us: 0, iops: 0 };
        let config = TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            namespaces: vec![NamespaceConfig::new(source, 512)],
            ..TargetConfig::default()
        };
        let server = Server::start(&config).expect("the target starts");
        let url = format!("nvme-tcp://{}/{}", server.address(), config.nqn);
        let served = Served { url: url.parse().expect("an address"), device: PathBuf::new() };
        let association = Association::open(&served).expect("it connects");
        (server, association)
    }

    #[test]
    fn a_keepsake_that_takes_nothing_is_asked_once_for_each_request() {
        let command = ["sleep", "5"].map(PathBuf::from);
        let keepsake = Keepsake::new(&command).expect("it starts");
        let file = tempfile::tempfile().expect("a file");
        let mut failed = None;
        let mut keep = || keep_duplicate(&keepsake, file.as_fd(), &mut failed).map(|_| ());
        let refusal = std::iter::repeat_with(&mut keep).find_map(Result::err).expect("it is full");
        assert_eq!(refusal.cause, Cause::Unavailable);
        let begun = Instant::now();
        for _ in 0..31 {
            assert_eq!(keep(), Err(refusal.clone()));
        }
        // To ask again would take a second for each, until the process ends.
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }

    #[test]
    fn files_are_left_that_cannot_be_taken_back_in_time() {
        let (_target, mut association) = associated();
        let keepsake = Keepsake::new(&crate::keepsake::tests::holder()).expect("it starts");
        let page = PageWriter::new(10).expect("memory");
        let quotas = Quotas::new(Limits::default());
        let mut grants = Grants::new(page, Arc::new(keepsake), quotas, false, 7);
        for id in 1..=3 {
            grants.add(id).expect("there is room");
        }
        let none = grants.remove_all(&mut association, Duration::ZERO);
        assert!(matches!(none, Err(Lost::Late)), "{none:?}");
        assert!((1..=3).all(|id| grants.has(id)));
        grants.remove_all(&mut association, Duration::from_secs(30)).expect("there is time");
        assert!(!(1..=3).any(|id| grants.has(id)));
    }

    #[test]
    fn a_file_that_temporarily_cannot_be_opened_is_not_kept() {
        let keepsake = Keepsake::new(&crate::keepsake::tests::holder()).expect("it starts");
        let quotas = Quotas::new(Limits { files_per_user: 3, ..Limits::default() });
        let page = PageWriter::new(10).expect("memory");
        let mut grants = Grants::new(page, Arc::new(keepsake), quotas, false, 7);
        for id in 1..=3 {
            grants.add(id).expect("there is room");
        }
        grants.add(4).expect_err("there is no more");
        let refusal = |cause| Refusal::new(cause, "for a reason");
        let mut keep = |id, opened, cause| {
            let examined = Examined { id, opened, result: Err(refusal(cause)) };
            grants.keep(examined).map(|_| ()).expect_err("it is refused")
        };
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        assert_eq!(keep(1, Opened::Here(file), Cause::BeingWritten).cause, Cause::BeingWritten);
        assert_eq!(keep(2, Opened::NotNow, Cause::Unavailable).cause, Cause::Unavailable);
        assert_eq!(keep(3, Opened::Never, Cause::NotReadable).cause, Cause::NotReadable);
        assert!(matches!(grants.look_again(1), Err(Subject::Opened(_))));
        let cause = |subject| match subject {
            Err(Subject::Refused(refusal)) => refusal.cause,
            other => panic!("{other:?}"),
        };
        // The client must send file 2 again. For file 3, which is refused for good, that would be of no use.
        assert_eq!(cause(grants.look_again(2)), Cause::Quota);
        assert_eq!(cause(grants.look_again(3)), Cause::NotReadable);
        assert!(!grants.has(2) && grants.has(3));
        grants.add(2).expect("there is room again");
    }
}
