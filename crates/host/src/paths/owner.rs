//! The controller's handle of its paths: every operation is carried out on all associations.

use super::core::Paths;
use super::info::PathInfo;
use super::intent::{Intent, Intents};
use super::keeper;
use super::lane::OnPaths;
use crate::association::Association;
use crate::deadline::deadline;
use crate::installed::Installed;
use crate::map_identity::MapIdentity;
use crate::several::Several;
use crate::{
    Controller, Error, FileMapObject, FunctionId, Lane, LostReason, MapChange, NamespaceInfo,
    Options, TargetUrl,
};
use bpfof_nvme::{Cqe, Installation, Sqe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest keep-alive timeout of paths.
const PATH_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The paths of a controller, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Owner {
    paths: Arc<Paths>,
    intents: Arc<Intents>,
}

impl Owner {
    /// Starts a thread for each portal, and waits until a path is usable and the others have had a chance to connect.
    ///
    /// # Errors
    /// [`Error::NoPath`]; [`Error::SeveralPortals`].
    pub(crate) fn start(
        url: &TargetUrl,
        options: &Options,
    ) -> Result<(Arc<Association>, Self), Error> {
        if options.pushdown_only {
            return Err(Error::SeveralPortals("a restricted association uses only one"));
        }
        if options.connector.is_some() {
            return Err(Error::SeveralPortals("a target in this process has only one"));
        }
        let keep_alive = options.path_timeout.max(PATH_TIMEOUT_MIN);
        let paths = Paths::new(url, Options { keep_alive, ..options.clone() });
        let owner = Self { paths: Arc::new(paths), intents: Arc::default() };
        for path in 0..owner.paths.count() {
            keeper::start(&owner.paths, &owner.intents, path).map_err(Error::Thread)?;
        }
        let link = owner.paths.wait_first()?;
        Ok((link.association, owner))
    }

    /// Calls `act` with the intent for each connected association, the best first. If it has succeeded on one, an
    /// association where it fails is dropped.
    fn on_each<T: Copy>(
        &self,
        mut act: impl FnMut(&mut Intent, &Arc<Association>, Option<T>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let end = deadline(self.paths.options().connect_timeout);
        let mut tries = Tries::default();
        loop {
            // Wait before locking the intent, because a keeper that brings up a path must lock it.
            self.paths.wait_best(end)?;
            let done = self.on_connected(&mut self.intents.lock(), &mut tries, &mut act)?;
            if let Some(done) = done {
                return Ok(done);
            }
            // Bound the tries, because paths are reconnected and there may always be some.
            let is_over = tries.count >= self.paths.count() && Instant::now() >= end;
            if let Some(why) = tries.last.take().filter(|_| is_over) {
                return Err(why);
            }
        }
    }

    /// The same for the associations that are connected now. None if there are none, or all are lost.
    fn on_connected<T: Copy>(
        &self,
        intent: &mut Intent,
        tries: &mut Tries,
        act: &mut impl FnMut(&mut Intent, &Arc<Association>, Option<T>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let mut done = None;
        for link in &self.paths.connected() {
            tries.count += 1;
            match act(intent, &link.association, done) {
                Ok(result) => done = done.or(Some(result)),
                Err(error) if error.lost().is_none() && done.is_none() => return Err(error),
                Err(error) => {
                    self.paths.lost(link, &error);
                    tries.last = Some(error);
                }
            }
        }
        Ok(done)
    }
}

/// The number of associations on which an operation was tried, and the error of the last one that was lost.
#[derive(Default)]
struct Tries {
    count: usize,
    last: Option<Error>,
}

impl Several for Owner {
    fn info(&self) -> Vec<PathInfo> {
        self.paths.info()
    }

    fn call(
        &self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.paths.call(sqe, data_out, data_in_max_bytes)
    }

    fn on_one(
        &self,
        act: &mut dyn FnMut(&Arc<Association>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.paths.on_best(true, act)
    }

    fn max_transfer_bytes(&self) -> u32 {
        self.paths.max_transfer_bytes()
    }

    fn open_lane(&self, namespaces: &Arc<[NamespaceInfo]>) -> Result<Lane, Error> {
        let (queue, plan, on_paths) = OnPaths::open(&self.paths, namespaces)?;
        Ok(Lane::of_paths(queue, Arc::new(plan), on_paths))
    }

    fn load(&self, object: &[u8], entry: u32) -> Result<u32, Error> {
        let id = self
            .on_each(|intent, association, known| intent.load(association, known, (object, entry)));
        id.map(|FunctionId(id)| id)
    }

    fn install(&self, object: &[u8], installation: Installation) -> Result<u32, Error> {
        let mut lost = None;
        let id = self.on_each(|intent, association, known| {
            // The target of the lost path may have installed it, and may be this path's, too: it would keep both.
            if let (None, Some(reason)) = (known, lost) {
                return Err(Error::Unknown { command: "Function Load", reason });
            }
            let installed = intent.install(association, known, object, installation);
            if let Err(Error::Lost(reason)) = installed {
                lost = Some(reason);
            }
            installed
        });
        id.map(|FunctionId(id)| id)
    }

    fn require(&self, function: u32, installed: &Installed) -> Result<(), Error> {
        if self.intents.lock().requires(function, installed) {
            return Ok(());
        }
        self.on_each(|intent, association, _| intent.require(association, function, installed))
    }

    fn unload(&self, function: u32) -> Result<(), Error> {
        // A target whose answer was lost may have unloaded it.
        let mut may_be_done = false;
        let mut act = |intent: &mut Intent, association: &Arc<Association>, done: Option<()>| {
            may_be_done |= done.is_some();
            let unloaded = intent.unload(association, FunctionId(function), !may_be_done);
            may_be_done |= matches!(unloaded, Err(Error::Lost(_)));
            unloaded
        };
        let unloaded = self.on_each(&mut act);
        let Err(error @ (Error::NoPath { .. } | Error::Lost(_))) = unloaded else {
            return unloaded;
        };
        // Associations by which no namespace is accessible have the function as well. Lost ones have ended with it, and
        // new ones do not get it.
        let mut intent = self.intents.lock();
        match self.on_connected(&mut intent, &mut Tries::default(), &mut act)? {
            Some(()) => Ok(()),
            None if intent.forget(function) => Ok(()),
            None => Err(error),
        }
    }

    /// On all associations, so that chains find the map version that they name on every path. Does not wait for a path,
    /// because the calling keeper must also release leases in time, as it does in `meanwhile`.
    fn set_file_map(&self, map: &FileMapObject, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        let mut intent = self.intents.lock_while(meanwhile);
        let mut act = |intent: &mut Intent, association: &Arc<Association>, done: Option<()>| {
            let mut one = Controller::of(Arc::clone(association));
            let set = one.set_file_map_while(map, meanwhile);
            match &set {
                Ok(()) => intent.note_file(map),
                Err(_) if done.is_none() => intent.forget_file(map.file),
                Err(_) => {}
            }
            set
        };
        let mut tries = Tries::default();
        let set = self.on_connected(&mut intent, &mut tries, &mut act);
        if map.version == 0 {
            // New associations get only the maps that are still noted, and lost ones have ended.
            intent.forget_file(map.file);
            return set.map(|_| ());
        }
        set?.ok_or_else(|| tries.last.unwrap_or_else(|| self.paths.no_path()))
    }

    /// Makes the change on the first association, and then sets the same result on the others, where an entry may still
    /// exist that functions have deleted on the first.
    fn change_map(
        &self,
        map: &MapIdentity,
        change: MapChange,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        self.on_each(|intent, association, done: Option<bool>| match done {
            None => intent.change_map(association, map, change, (key, value)),
            Some(false) if change != MapChange::Delete => Ok(false),
            Some(_) => intent.change_map_again(association, map, change, (key, value)),
        })
    }

    fn shut_down(&self) -> Result<(), Error> {
        let links = self.paths.close();
        links.iter().map(|link| link.association.shut_down()).fold(Ok(()), Result::and)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        for link in self.paths.close() {
            self.paths.lost(&link, &LostReason::HungUp);
        }
    }
}
