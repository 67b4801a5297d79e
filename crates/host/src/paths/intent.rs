//! The state that a program wants on each of its associations: functions under certain ids, entries of their maps, and
//! maps of files. It is set up on all existing associations, and again on each new one.
//!
//! Requests name functions by the ids that the program knows, and storage functions call each other by these ids. So an
//! association on which a function has another id cannot be used. Targets number an association's functions from 1 on.
//! So a new association gets the same ids if the same number of functions is loaded on it: for each id that the program
//! no longer uses, a filler function is loaded and unloaded.

use super::filler;
use crate::association::Association;
use crate::installed::Installed;
use crate::map_identity::MapIdentity;
use crate::{Controller, Error, FileMapObject, FunctionId, LostReason, MapChange, Status};
use bpfof_nvme::Installation;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Pause between attempts to lock the intent.
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// How far the id that a target gives a function may be from the expected one. Each skipped id costs every other path a
/// load, while the program waits.
const GAP_MAX: u32 = 1024;
/// How many ids are initially skipped with the intent locked, while the program waits.
const HELD_SKIPS: u32 = 16;
/// How many maps of files are initially set that way.
const HELD_FILES: usize = 16;

/// The intent, locked while something is done on all associations, or while a new association is brought up to date. Who
/// wants it stands in line: a holder may need as long as its target takes to refuse a command, and paths that fail again
/// and again must not keep out the program, nor the program the paths.
#[derive(Debug, Default)]
pub(super) struct Intents {
    intent: Mutex<Intent>,
    line: Mutex<Line>,
}

/// Numbers of those who wait, in the order of their arrival.
#[derive(Debug, Default)]
struct Line {
    last: u64,
    waiting: BTreeSet<u64>,
}

impl Intents {
    pub(super) fn lock(&self) -> MutexGuard<'_, Intent> {
        self.lock_while(&mut || ())
    }

    /// The same; `meanwhile` is called every few ms until it is locked.
    pub(super) fn lock_while(&self, meanwhile: &mut dyn FnMut()) -> MutexGuard<'_, Intent> {
        let place = Place::last_in(self);
        loop {
            if let Some(intent) = place.try_lock() {
                return intent;
            }
            meanwhile();
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// The same for a new association, which is kept alive while waiting: the holder of the intent may take longer than
    /// the keep-alive timeout.
    pub(super) fn lock_for(
        &self,
        association: &Association,
    ) -> Result<MutexGuard<'_, Intent>, Error> {
        let place = Place::last_in(self);
        loop {
            if let Some(intent) = place.try_lock() {
                return Ok(intent);
            }
            association.admin.beat()?;
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the line, which is left when this is dropped.
struct Place<'a> {
    intents: &'a Intents,
    number: u64,
}

impl<'a> Place<'a> {
    fn last_in(intents: &'a Intents) -> Self {
        let mut line = intents.line();
        line.last += 1;
        let number = line.last;
        line.waiting.insert(number);
        Self { intents, number }
    }

    /// Locks the intent if it is free and nobody has waited for longer.
    fn try_lock(&self) -> Option<MutexGuard<'a, Intent>> {
        if self.intents.line().waiting.first() != Some(&self.number) {
            return None;
        }
        match self.intents.intent.try_lock() {
            Ok(intent) => Some(intent),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.intents.line().waiting.remove(&self.number);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Intent {
    functions: BTreeMap<u32, Loaded>,
    /// The highest id that any association has given to a function of this program. No id is reused, because chains in
    /// flight may still name it.
    last_id: u32,
    /// The installed functions that this program has looked up or installed. Other installed functions do not matter.
    installed: BTreeMap<u32, Installed>,
    /// Those of them that are gone, because the target has restarted without them. No path needs them, but none may
    /// have another function under such an id: the program may still name it.
    gone: BTreeMap<u32, Installed>,
    files: BTreeMap<u32, FileMap>,
    /// Number of maps of files that have been noted.
    noted: u64,
    /// The entries that the program has set in function maps; for each map at most as many as it can hold.
    entries: BTreeMap<MapIdentity, Entries>,
}

/// Values by key.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug)]
struct Loaded {
    object: Arc<[u8]>,
    entry: u32,
}

/// The map of a file.
#[derive(Clone, Debug)]
struct FileMap {
    map: Arc<FileMapObject>,
    /// Value of `noted` when it was noted, because a program may set another map with the same version.
    number: u64,
}

/// The next step of setting up a new association. It may take long, and does not need the intent locked.
#[derive(Debug)]
pub(super) enum Step {
    /// Skip ids until the next function gets this one.
    Skip(u32),
    /// Load this function, which must get this id.
    Load { id: u32, object: Arc<[u8]>, entry: u32 },
    /// Set or remove these maps of files.
    Files(Vec<Arc<FileMapObject>>),
}

/// The functions and maps of files that a new association has so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    last_id: u32,
    loaded: Vec<u32>,
    /// The id up to which functions are set up before the program's current last id is read again.
    goal: u32,
    /// How many ids are skipped with the intent locked. It doubles each time; otherwise a program that keeps loading
    /// functions would always stay ahead.
    held_skips: u32,
    /// For each file, the namespace and the number of its map.
    files: BTreeMap<u32, (u32, u64)>,
    /// The same as `held_skips`, for maps of files.
    held_files: usize,
}

impl Progress {
    /// Carries out a step without the intent locked. Stops with an error once `is_wanted` is false.
    pub(super) fn go_on(
        &mut self,
        one: &mut Controller,
        step: Step,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        match step {
            Step::Skip(next) => self.skip_to(one, next, is_wanted),
            Step::Load { id, object, entry } => self.load(one, id, (&object, entry)),
            Step::Files(maps) => maps.iter().try_for_each(|map| match is_wanted() {
                true => one.set_file_map(map),
                false => Err(LostReason::HungUp.into()),
            }),
        }
    }

    /// Whether functions are loaded without the intent locked. Those that the program loads meanwhile are not;
    /// otherwise a program that keeps loading functions would always stay ahead.
    fn loads_unlocked(&self) -> bool {
        self.held_skips == HELD_SKIPS
    }

    /// Loads a function, which must get this id.
    fn load(
        &mut self,
        one: &mut Controller,
        id: u32,
        (object, entry): (&[u8], u32),
    ) -> Result<(), Error> {
        let found = one.load_function(object, entry)?;
        if found.0 != id {
            return Err(other_number(id, found.0));
        }
        self.last_id = id;
        self.loaded.push(id);
        Ok(())
    }

    /// Skips ids so that the next function gets the id `next`, unless the path is no longer wanted.
    fn skip_to(
        &mut self,
        one: &mut Controller,
        next: u32,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        skip(one, (self.last_id, next), is_wanted)?;
        self.last_id = next - 1;
        Ok(())
    }
}

impl Intent {
    /// Sets up the whole intent on a new association. If `is_alone`, it is the only one, so an installed function that
    /// it lacks is gone. A target without pushdown is accepted if the intent is empty.
    ///
    /// Returns a step that must be carried out before the next call; None when all is done.
    pub(super) fn replay(
        &mut self,
        one: &mut Controller,
        is_alone: bool,
        progress: &mut Progress,
    ) -> Result<Option<Step>, Error> {
        match one.pushdown_limits() {
            Ok(_) => {}
            Err(Error::NotPushdownTarget) if self.is_empty() => return Ok(None),
            Err(error) => return Err(error),
        }
        if !self.installed.is_empty() || !self.gone.is_empty() {
            self.check_installed(&one.installed()?, is_alone)?;
        }
        if progress.last_id >= progress.goal {
            progress.goal = self.last_id;
            progress.held_skips = progress.held_skips.saturating_mul(2).max(HELD_SKIPS);
        }
        let is_near = self.last_id - progress.last_id <= progress.held_skips;
        let next = |after| (Bound::Excluded(after), Bound::Unbounded);
        while let Some((id, function)) = self.functions.range(next(progress.last_id)).next() {
            if *id > progress.last_id + 1 {
                if !is_near {
                    return Ok(Some(Step::Skip(*id)));
                }
                progress.skip_to(one, *id, &|| true)?;
            }
            let Loaded { object, entry } = function;
            if progress.loads_unlocked() {
                return Ok(Some(Step::Load { id: *id, object: Arc::clone(object), entry: *entry }));
            }
            progress.load(one, *id, (object, *entry))?;
        }
        if progress.last_id < self.last_id {
            if !is_near {
                return Ok(Some(Step::Skip(self.last_id + 1)));
            }
            progress.skip_to(one, self.last_id + 1, &|| true)?;
        }
        let maps = self.files_after(progress);
        if maps.len() > progress.held_files {
            return Ok(Some(Step::Files(maps)));
        }
        maps.iter().try_for_each(|map| one.set_file_map(map))?;
        // Functions that the program has unloaded meanwhile.
        for id in progress.loaded.iter().filter(|id| !self.functions.contains_key(id)) {
            one.unload_function(FunctionId(*id))?;
        }
        if is_alone && !self.entries.is_empty() {
            // As after `unload`: a map that is made again is empty everywhere.
            let maps = one.maps()?;
            self.entries.retain(|identity, _| {
                let is_there = maps.iter().any(|map| map.is_copy_of(identity));
                if !is_there {
                    log::warn!("function map {identity} is gone, with its entries");
                }
                is_there
            });
        }
        for (identity, entries) in &self.entries {
            set_entries(one, identity, entries)?;
        }
        Ok(None)
    }

    /// Checks that a new association has the installed functions that the program knows.
    fn check_installed(
        &mut self,
        there: &BTreeMap<u32, Installed>,
        is_alone: bool,
    ) -> Result<(), Error> {
        if is_alone {
            let gone = self.installed.extract_if(.., |id, _| !there.contains_key(id));
            self.gone.extend(gone.inspect(|(id, Installed { name, .. })| {
                log::warn!("installed function {id}, {name:?}, is gone; install it again");
            }));
        }
        compare_installed(there, &self.installed, is_alone)?;
        let mut back = self.gone.clone();
        back.retain(|id, _| there.contains_key(id));
        compare_installed(there, &back, true)?;
        if is_alone {
            self.gone.retain(|id, _| !back.contains_key(id));
            self.installed.extend(back);
        }
        Ok(())
    }

    /// The maps of files that were noted since the last call, and removals of maps that were forgotten.
    fn files_after(&self, progress: &mut Progress) -> Vec<Arc<FileMapObject>> {
        progress.held_files = progress.held_files.saturating_mul(2).max(HELD_FILES);
        let mut maps = Vec::new();
        progress.files.retain(|id, (nsid, _)| {
            let stays = self.files.contains_key(id);
            if !stays {
                maps.push(Arc::new(FileMapObject::removal(*nsid, *id)));
            }
            stays
        });
        for (id, FileMap { map, number }) in &self.files {
            let known = progress.files.insert(*id, (map.nsid, *number));
            if known.is_none_or(|(_, known)| known != *number) {
                maps.push(Arc::clone(map));
            }
        }
        maps
    }

    /// Changes an entry of a function map.
    pub(crate) fn change_map(
        &mut self,
        association: &Arc<Association>,
        identity: &MapIdentity,
        change: MapChange,
        (key, value): (&[u8], &[u8]),
    ) -> Result<bool, Error> {
        let mut one = Controller::of(Arc::clone(association));
        let map = one.copy_of(identity)?;
        let changed = one.map_change(&map, change, key, value)?;
        if change == MapChange::Delete {
            self.entries.get_mut(identity).map(|entries| entries.remove(key));
        } else if changed {
            let entries = self.entries.entry(identity.clone()).or_default();
            if entries.len() >= map.max_entries as usize && !entries.contains_key(key) {
                // The functions must have deleted some of the entries.
                let there = one.map_entries(&map)?;
                let there: BTreeSet<&[u8]> = there.iter().map(|(key, _)| key).collect();
                entries.retain(|key, _| there.contains(&key[..]));
            }
            entries.insert(key.to_vec(), value.to_vec());
        }
        Ok(changed)
    }

    /// The same on another association, after [`change_map`](Self::change_map) on the first.
    pub(crate) fn change_map_again(
        &self,
        association: &Arc<Association>,
        identity: &MapIdentity,
        change: MapChange,
        (key, value): (&[u8], &[u8]),
    ) -> Result<bool, Error> {
        let mut one = Controller::of(Arc::clone(association));
        let map = match one.copy_of(identity) {
            // As `set_entries` does: such a path is used without the entries.
            Err(Error::NoSuchMap { .. }) if identity.is_installed => return Ok(false),
            found => found?,
        };
        let change = if change == MapChange::Delete { change } else { MapChange::Set };
        match one.map_change(&map, change, key, value) {
            Err(Error::Command { source, .. }) if source.status.same_code(Status::MAP_FULL) => {}
            Err(error) if identity.is_installed && does_not_fit(&error) => return Ok(false),
            changed => return changed,
        }
        // On the first association, functions have deleted entries, but not here: delete all entries that the program
        // has not set.
        let entries = self.entries.get(identity);
        for (other, _) in one.map_entries(&map)?.iter() {
            if !entries.is_some_and(|entries| entries.contains_key(other)) {
                one.map_delete(&map, other)?;
            }
        }
        one.map_change(&map, change, key, value)
    }

    fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.installed.is_empty() && self.files.is_empty()
    }

    /// Whether the intent already requires this installed function under this id.
    pub(crate) fn requires(&self, id: u32, installed: &Installed) -> bool {
        self.installed.get(&id) == Some(installed)
    }

    /// Checks that the association has this installed function under this id, and requires it from now on.
    pub(crate) fn require(
        &mut self,
        association: &Arc<Association>,
        id: u32,
        installed: &Installed,
    ) -> Result<(), Error> {
        let mut one = Controller::of(Arc::clone(association));
        let required = BTreeMap::from([(id, installed.clone())]);
        compare_installed(&one.installed()?, &required, false)?;
        self.now_installed(id, installed.clone());
        Ok(())
    }

    /// Loads a function; `known` is its id on another association.
    pub(crate) fn load(
        &mut self,
        association: &Arc<Association>,
        known: Option<FunctionId>,
        (object, entry): (&[u8], u32),
    ) -> Result<FunctionId, Error> {
        let mut one = Controller::of(Arc::clone(association));
        // Lower ids were used on other associations, which may have ended since.
        let least = known.map_or(self.last_id + 1, |known| known.0);
        let loaded = one.load_function(object, entry);
        if known.is_none() && matches!(loaded, Err(Error::FunctionRejected(_))) {
            // The rejected function has used up an id.
            self.last_id = least;
        }
        let mut id = loaded?;
        if id.0.abs_diff(least) > GAP_MAX && !id.is_installed() {
            one.unload_function(id)?;
            return Err(other_number(least, id.0));
        }
        if id.0 < least {
            one.unload_function(id)?;
            skip(&mut one, (id.0, least), &|| true)?;
            id = one.load_function(object, entry)?;
        }
        if id.is_installed() {
            return Err(Error::BadAnswer(
                "Function Load answered with the id of an installed function",
            ));
        }
        if id.0 < least || known.is_some_and(|known| known != id) {
            one.unload_function(id)?;
            return Err(other_number(least, id.0));
        }
        self.last_id = self.last_id.max(id.0);
        self.functions.insert(id.0, Loaded { object: object.into(), entry });
        Ok(id)
    }

    /// Installs a function at the target; `known` is its id on another association, which may have
    /// the same target.
    pub(crate) fn install(
        &mut self,
        association: &Arc<Association>,
        known: Option<FunctionId>,
        object: &[u8],
        installation: Installation,
    ) -> Result<FunctionId, Error> {
        let mut one = Controller::of(Arc::clone(association));
        if let Some(id) = known
            && let Some(installed) = self.installed.get(&id.0)
            && one.installed()?.get(&id.0).is_some_and(|there| there.is_same(installed))
        {
            return Ok(id);
        }
        let id = one.load(object, installation)?;
        if known.is_none() {
            // Installing also uses up an id of the association's own functions.
            self.last_id += 1;
        }
        if let Some(known) = known.filter(|known| *known != id) {
            one.unload_function(id)?;
            return Err(other_number(known.0, id.0));
        }
        // It may have been removed again already.
        self.now_installed(id.0, one.installed()?.remove(&id.0).unwrap_or_default());
        Ok(id)
    }

    /// The program knows the installed function with this id. If it is one that was gone, under another id, the program
    /// uses the new id from now on, and another function may have the old one.
    fn now_installed(&mut self, id: u32, installed: Installed) {
        self.gone.retain(|gone, of| *gone != id && !of.is_same(&installed));
        self.installed.insert(id, installed);
    }

    /// Unloads a function. An installed function may be unloaded already, on another association with the same target.
    pub(crate) fn unload(
        &mut self,
        association: &Arc<Association>,
        id: FunctionId,
        is_first: bool,
    ) -> Result<(), Error> {
        let mut one = Controller::of(Arc::clone(association));
        let unloaded = one.unload_function(id);
        let is_unknown = matches!(&unloaded, Err(Error::Command { source, .. })
            if source.status.same_code(Status::UNKNOWN_FUNCTION));
        if unloaded.is_ok() || is_unknown {
            self.functions.remove(&id.0);
            self.installed.remove(&id.0);
            self.gone.remove(&id.0);
        }
        if is_first || !is_unknown {
            unloaded?;
        }
        // Maps end with the last function that has them: drop the entries of maps that are gone.
        if !self.entries.is_empty() {
            let maps = one.maps()?;
            self.entries.retain(|identity, _| maps.iter().any(|map| map.is_copy_of(identity)));
        }
        Ok(())
    }

    /// Forgets a function of this program, which ends with its associations; false if it is not one, but perhaps an
    /// installed function, which stays at the target.
    pub(crate) fn forget(&mut self, function: u32) -> bool {
        self.functions.remove(&function).is_some()
    }

    /// Records the map of a file, or its removal.
    pub(crate) fn note_file(&mut self, map: &FileMapObject) {
        self.noted += 1;
        let noted = FileMap { map: Arc::new(map.clone()), number: self.noted };
        match map.version {
            0 => self.files.remove(&map.file),
            _ => self.files.insert(map.file, noted),
        };
    }

    pub(crate) fn forget_file(&mut self, file: u32) {
        self.files.remove(&file);
    }
}

/// Sets entries of a map. Those that the association's map has no room for are left out, and all if it has no such map:
/// an installed function may be gone, or have other maps at this target.
fn set_entries(
    one: &mut Controller,
    identity: &MapIdentity,
    entries: &Entries,
) -> Result<(), Error> {
    let url = one.url().clone();
    let map = match one.copy_of(identity) {
        Err(error @ Error::NoSuchMap { .. }) => {
            log::warn!("{url}: the entries of function map {identity} are not set: {error}");
            return Ok(());
        }
        found => found?,
    };
    let (mut left_out, mut last_error) = (0_u32, None);
    for (key, value) in entries {
        match one.map_set(&map, key, value) {
            Err(error) if does_not_fit(&error) => {
                (left_out, last_error) = (left_out + 1, Some(error));
            }
            set => set?,
        }
    }
    if let Some(error) = last_error {
        log::warn!("{url}: {left_out} entries of function map {identity} are not set: {error}");
    }
    Ok(())
}

/// Whether a map has other sizes than the one for which an entry was made.
fn does_not_fit(error: &Error) -> bool {
    match error {
        Error::MapSize { .. } => true,
        Error::Command { source, .. } => source.status.same_code(Status::MAP_FULL),
        _ => false,
    }
}

fn other_number(wanted: u32, found: u32) -> Error {
    Error::OtherFunctions(format!("a function has id {found} there, but should have id {wanted}"))
}

/// Uses up ids of an association, whose last function has the id `last`, so that the next one gets the id `next`.
fn skip(
    one: &mut Controller,
    (mut last, next): (u32, u32),
    is_wanted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let filler = filler::object();
    while last + 1 < next {
        if !is_wanted() {
            return Err(LostReason::HungUp.into());
        }
        let id = one.load_function(&filler, 0)?;
        one.unload_function(id)?;
        if id.0 <= last || id.0 >= next {
            return Err(other_number(next, id.0));
        }
        last = id.0;
    }
    Ok(())
}

/// Checks that an association has the same installed functions under these ids.
fn compare_installed(
    there: &BTreeMap<u32, Installed>,
    installed: &BTreeMap<u32, Installed>,
    is_alone: bool,
) -> Result<(), Error> {
    for (id, installed) in installed {
        let found = match there.get(id) {
            Some(found) if found.is_same(installed) => continue,
            Some(found) if found.name == installed.name => {
                "another function of that name".to_owned()
            }
            Some(found) => format!("{:?}", found.name),
            None => "missing".to_owned(),
        };
        let name = &installed.name;
        if is_alone {
            return Err(Error::OtherFunctions(format!(
                "installed function {id} is {found} since the targets were reconnected, not the \
                 {name:?} that this program has looked up; restart the program"
            )));
        }
        return Err(Error::OtherFunctions(format!(
            "installed function {id} is {found} there, but {name:?} on another path; install the \
             same functions at both targets, in the same order"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Whoever waits for the intent does its other work meanwhile, also while others have waited for longer.
    #[test]
    fn other_work_goes_on_while_the_intent_is_locked() {
        let intents = Intents::default();
        let (locked, is_locked) = mpsc::channel();
        let (worked, has_worked) = mpsc::channel();
        std::thread::scope(|scope| {
            let intents = &intents;
            scope.spawn(move || {
                let held = intents.lock();
                let before = Place::last_in(intents);
                locked.send(()).expect("it waits for this");
                (0..3).for_each(|_| has_worked.recv().expect("work goes on"));
                drop(held);
                (0..3).for_each(|_| has_worked.recv().expect("work goes on"));
                drop(before);
            });
            is_locked.recv().expect("a locked intent");
            // The other thread may have ended by the last call.
            drop(intents.lock_while(&mut || worked.send(()).unwrap_or(())));
        });
    }

    /// Those who come again and again, as paths that fail do, keep nobody out.
    #[test]
    fn the_intent_goes_to_who_has_waited_longest() {
        let intents = Intents::default();
        let held = intents.lock();
        let mut places = [(); 3].map(|()| Place::last_in(&intents));
        assert!(places[0].try_lock().is_none());
        drop(held);
        assert!(places[2].try_lock().is_none());
        let held = places[0].try_lock().expect("the first");
        places[0] = Place::last_in(&intents);
        drop(held);
        assert!(places[0].try_lock().is_none() && places[2].try_lock().is_none());
        drop(places[1].try_lock().expect("the second"));
    }
}
