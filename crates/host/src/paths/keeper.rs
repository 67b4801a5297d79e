//! The thread of one path: connects it, keeps it alive, follows its ANA state, and reconnects it.

use super::core::{Link, Paths};
use super::intent::{Intent, Intents, Progress};
use super::state::PathState;
use super::terms::{NamespaceTerms, Terms};
use crate::association::Association;
use crate::files::spawn;
use crate::queue::Event;
use crate::transport::tcp::wait_ready;
use crate::{Controller, Error, Status};
use bpfof_nvme::identify::IdentifyNamespace;
use bpfof_nvme::log_page::{AnaGroup, AnaHeader, lid};
use bpfof_nvme::{AdminCommand, features};
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Longest sleep of a thread whose path is usable, and of one whose path is not. The latter then
/// reads the ANA log again.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_UNUSABLE: Duration = Duration::from_millis(200);
/// Shortest time between two reads of the log, even if more events come.
const LOOK_EVENT: Duration = Duration::from_millis(10);
/// Asynchronous Event Configuration: ANA changes (NVMe Base 2.0 §5.27.1.8).
const ANA_CHANGE_NOTICES: u32 = 1 << 11;
/// CMIC: ANA is reported (NVMe Base 2.0 §5.17.2.1).
const CMIC_ANA: u8 = 1 << 3;
/// Most bytes of an ANA log that are read: 1024 groups of 31 namespaces each.
const ANA_LOG_MAX_BYTES: u32 = 160 << 10;

/// Starts the thread of a path.
pub(super) fn start(paths: &Arc<Paths>, intents: &Arc<Intents>, path: usize) -> io::Result<()> {
    let keeper = Keeper { paths: Arc::clone(paths), intents: Arc::clone(intents), path };
    spawn("bpfof-path", move || keeper.keep()).map(drop)
}

struct Keeper {
    paths: Arc<Paths>,
    intents: Arc<Intents>,
    path: usize,
}

impl Keeper {
    fn keep(&self) {
        let paths = &self.paths;
        while !paths.has_ended() {
            match self.bring_up() {
                Ok(link) => match self.watch(&link) {
                    Ok(()) => return,
                    Err(error) => {
                        match error.lost() {
                            Some(reason) => paths.lost(&link, &reason),
                            None => paths.lost(&link, &error),
                        };
                    }
                },
                Err(error) => paths.failed(self.path, &error),
            }
            paths.pause(self.path);
        }
    }

    /// Connects a path, sets up functions and maps at its target, and lets requests use it.
    fn bring_up(&self) -> Result<Link, Error> {
        let url = self
            .paths
            .portal(self.path)
            .ok_or(Error::BadAnswer("the address has no such portal"))?;
        let association = Arc::new(Association::connect(url, self.paths.options())?);
        association.keep_alive_as_path()?;
        let up = self.prepare(&association);
        if up.is_err() {
            association.end();
        }
        up
    }

    fn prepare(&self, association: &Arc<Association>) -> Result<Link, Error> {
        let mut one = Controller::of(Arc::clone(association));
        let is_discovery = association.is_discovery();
        let namespace = if is_discovery { None } else { namespace(&mut one, self.paths.nsid())? };
        let terms = Terms {
            namespace: namespace
                .as_ref()
                .and_then(|namespace| NamespaceTerms::of(&association.identify, namespace)),
            limits: association.data_limits(),
            is_discovery,
        };
        self.paths.compare(&terms)?;
        // Keep the intent locked: functions and maps that the program changes meanwhile wait, and then reach this path
        // as well.
        let _intent = match is_discovery {
            true => self.intents.lock_for(association)?,
            false => self.replay(association, &mut one)?,
        };
        let mut state = PathState::Optimized;
        if reports_ana(association) {
            // Ask for events only now: one that came while this thread waited for the intent would be lost.
            one.admin_command(ask_for_ana_events(), &[], 0)?;
            association.admin.ask_for_event()?;
            state = ana_state(&mut one, namespace.map_or(0, |namespace| namespace.anagrpid))?;
        }
        self.paths.came_up(self.path, association, terms, state)
    }

    /// Sets up the whole intent on a path, mostly without locking it, so that the program can change it meanwhile.
    /// Returns with the intent locked.
    fn replay(
        &self,
        association: &Association,
        one: &mut Controller,
    ) -> Result<MutexGuard<'_, Intent>, Error> {
        let mut progress = Progress::default();
        loop {
            let mut intent = self.intents.lock_for(association)?;
            let is_alone = self.paths.connected().is_empty();
            let Some(step) = intent.replay(one, is_alone, &mut progress)? else {
                return Ok(intent);
            };
            drop(intent);
            progress.go_on(one, step, &|| !self.paths.has_ended())?;
        }
    }

    /// Keeps a path alive until it is lost or the controller is dropped.
    fn watch(&self, link: &Link) -> Result<(), Error> {
        let association = &link.association;
        let socket = association.admin.descriptor()?;
        let mut one = Controller::of(Arc::clone(association));
        let (mut looked, mut event_came) = (Instant::now(), false);
        // A target that refuses Asynchronous Event Requests must be polled.
        let mut tells = true;
        while !self.paths.has_ended() {
            if association.has_ended() {
                // The thread that ended the association has reported why.
                return Err(crate::LostReason::HungUp.into());
            }
            let (left, came) = association.admin.beat()?;
            if came == Some(Event::Refused) && tells {
                tells = false;
                log::info!(
                    "{}: the target refuses Asynchronous Event Requests, so its ANA log is polled",
                    association.url
                );
            }
            event_came |= came == Some(Event::Came);
            let is_usable = self.paths.state(link.path).is_usable();
            let look = match is_usable {
                _ if event_came => LOOK_EVENT,
                true => LOOK,
                false => LOOK_UNUSABLE,
            };
            if (event_came || !is_usable || !tells) && looked.elapsed() >= look {
                looked = Instant::now();
                self.look(link, &mut one, std::mem::take(&mut event_came))?;
            }
            wait_ready(&socket, false, left.map_or(look, |left| left.min(look)))?;
        }
        Ok(())
    }

    /// Reads the ANA log. Without ANA the path counts as optimized, so that it is tried again after a refusal.
    fn look(&self, link: &Link, one: &mut Controller, by_event: bool) -> Result<(), Error> {
        if by_event {
            link.association.admin.ask_for_event()?;
        }
        let mut state = PathState::Optimized;
        if reports_ana(&link.association) {
            // Reading the log makes the target send an event at the next change.
            let group =
                namespace(one, self.paths.nsid())?.map_or(0, |namespace| namespace.anagrpid);
            state = ana_state(one, group)?;
        }
        self.paths.learned(link, state, by_event);
        Ok(())
    }
}

const fn reports_ana(association: &Association) -> bool {
    association.identify.cmic & CMIC_ANA != 0
}

fn ask_for_ana_events() -> bpfof_nvme::Sqe {
    AdminCommand::set_features(features::ASYNC_EVENT_CONFIGURATION, ANA_CHANGE_NOTICES)
}

/// The namespace that the address names; None if it does not exist. Commands to the controller work without it.
fn namespace(one: &mut Controller, nsid: u32) -> Result<Option<IdentifyNamespace>, Error> {
    match one.whole_namespace(nsid) {
        Ok(namespace) => Ok(Some(namespace)),
        Err(Error::Command { source, .. })
            if source.status.same_code(Status::INVALID_NAMESPACE) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The state of an ANA group; for group 0 an unusable state if any group has one.
fn ana_state(one: &mut Controller, group: u32) -> Result<PathState, Error> {
    let length_bytes = ANA_LOG_MAX_BYTES.min(one.max_transfer_bytes()) / 4 * 4;
    let sqe = AdminCommand::get_log_page(lid::ANA, u32::MAX, 0, length_bytes);
    let (_, log) = one.admin_command(sqe, &[], length_bytes)?;
    state_in(&log, group).ok_or(Error::BadAnswer("the ANA log lacks the namespace's group"))
}

fn state_in(log: &[u8], wanted: u32) -> Option<PathState> {
    const HEADER_BYTES: usize = AnaHeader::BYTES;
    const GROUP_BYTES: usize = AnaGroup::BYTES;
    let header = AnaHeader::from_bytes(log.first_chunk::<HEADER_BYTES>()?);
    let mut rest = log.get(HEADER_BYTES..)?;
    let mut worst = None;
    for _ in 0..header.groups {
        let group = AnaGroup::from_bytes(rest.first_chunk::<GROUP_BYTES>()?);
        let state = PathState::of_ana(group.state);
        if group.group == wanted {
            return Some(state);
        }
        if wanted == 0 && (worst.is_none() || !state.is_usable()) {
            worst = Some(state);
        }
        let namespaces = (group.namespaces as usize).checked_mul(4)?;
        rest = rest.get(GROUP_BYTES.checked_add(namespaces)?..)?;
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(groups: &[(u32, u8, &[u32])]) -> Vec<u8> {
        let header = AnaHeader { change_count: 1, groups: groups.len() as u16 };
        let mut log = header.to_bytes().to_vec();
        for &(group, state, namespaces) in groups {
            let count = namespaces.len() as u32;
            let group = AnaGroup { group, namespaces: count, state, ..AnaGroup::default() };
            log.extend(group.to_bytes());
            log.extend(namespaces.iter().flat_map(|nsid| nsid.to_le_bytes()));
        }
        log
    }

    #[test]
    fn the_group_of_the_namespace_counts() {
        let log = log(&[(1, 1, &[1, 2]), (7, 3, &[]), (2, 2, &[3])]);
        assert_eq!(state_in(&log, 1), Some(PathState::Optimized));
        assert_eq!(state_in(&log, 7), Some(PathState::Inaccessible));
        assert_eq!(state_in(&log, 2), Some(PathState::NonOptimized));
        assert_eq!(state_in(&log, 3), None);
        assert_eq!(state_in(&log, 0), Some(PathState::Inaccessible));
        for length in 0..log.len() - 4 {
            assert_eq!(state_in(&log[..length], 2), None, "{length} bytes");
        }
    }

    #[test]
    fn groups_beyond_the_end_of_the_ana_log_are_ignored() {
        let mut log = log(&[(1, 1, &[])]);
        log[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
        log[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(state_in(&log, 9), None);
        assert_eq!(state_in(&log, 1), Some(PathState::Optimized));
    }
}
