//! The paths as their controller has them: what it does on one association is done on all.

use super::core::Paths;
use super::info::PathInfo;
use super::intent::{Intent, Intents};
use super::keeper;
use super::lane::OnPaths;
use crate::association::Association;
use crate::deadline::deadline;
use crate::installed::Installed;
use crate::several::Several;
use crate::{
    Controller, Error, FileMapObject, FunctionId, Lane, LostReason, MapChange, NamespaceInfo,
    Options, TargetUrl,
};
use bpfof_nvme::{Cqe, Installation, Sqe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest keep-alive timeout that paths have.
const PATH_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The paths of a controller, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Owner {
    paths: Arc<Paths>,
    intents: Arc<Intents>,
}

impl Owner {
    /// Starts a thread for each portal, and waits until the best path there is can be told.
    ///
    /// # Errors
    /// [`Error::NoPath`]; [`Error::SeveralPortals`].
    pub(crate) fn start(
        url: &TargetUrl,
        options: &Options,
    ) -> Result<(Arc<Association>, Self), Error> {
        if options.pushdown_only {
            return Err(Error::SeveralPortals("a restricted association has one"));
        }
        if options.connector.is_some() {
            return Err(Error::SeveralPortals("a target of this process has one"));
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

    /// Does something on each association that there is, the best first, with the intent. What the first
    /// has done the others must do as well: those that cannot are of no use.
    fn on_each<T: Copy>(
        &self,
        mut act: impl FnMut(&mut Intent, &Arc<Association>, Option<T>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let end = deadline(self.paths.options().connect_timeout);
        let mut tries = Tries::default();
        loop {
            // Before the intent is locked: who brings a path to life has to lock it.
            self.paths.wait_best(end)?;
            let done = self.on_connected(&mut self.intents.lock(), &mut tries, &mut act)?;
            if let Some(done) = done {
                return Ok(done);
            }
            // Paths come back, so that there may always be some.
            let is_over = tries.count >= self.paths.count() && Instant::now() >= end;
            if let Some(why) = tries.last.take().filter(|_| is_over) {
                return Err(why);
            }
        }
    }

    /// The same on those that there are now. None if there is none, or each is lost.
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

/// On how many associations something was tried, and how that ended on the last one that was lost with it.
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
        let id = self.on_each(|intent, association, known| {
            intent.install(association, known, object, installation)
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
        self.on_each(|intent, association, done: Option<()>| {
            intent.unload(association, FunctionId(function), done.is_none())
        })
    }

    /// On all associations: chains read by the map that their versions name, whichever path they take. It
    /// waits for none: who keeps the maps of many files has leases to give back.
    fn set_file_map(&self, map: &FileMapObject) -> Result<(), Error> {
        let mut act = |intent: &mut Intent, association: &Arc<Association>, done: Option<()>| {
            let set = Controller::of(Arc::clone(association)).set_file_map(map);
            match &set {
                Ok(()) => intent.note_file(map),
                Err(_) if done.is_none() => intent.forget_file(map.file),
                Err(_) => {}
            }
            set
        };
        let (mut intent, mut tries) = (self.intents.lock(), Tries::default());
        let set = self.on_connected(&mut intent, &mut tries, &mut act);
        if map.version == 0 {
            // An association that comes gets what is still noted, and those that were lost have ended.
            intent.forget_file(map.file);
            return set.map(|_| ());
        }
        set?.ok_or_else(|| tries.last.unwrap_or_else(|| self.paths.no_path()))
    }

    /// By `change` on the first, and so that it is alike on the others. What functions have deleted on the
    /// first may still be there on another.
    fn change_map(
        &self,
        name: &str,
        change: MapChange,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        self.on_each(|intent, association, done: Option<bool>| match done {
            None => intent.change_map(association, name, change, (key, value)),
            Some(false) if change != MapChange::Delete => Ok(false),
            Some(_) => intent.change_map_again(association, name, change, (key, value)),
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
