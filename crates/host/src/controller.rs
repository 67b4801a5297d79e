//! A controller at a target: its association, and the lanes it opens.

use crate::association::Association;
use crate::paths::PathInfo;
use crate::queue::Meanwhile;
use crate::several::Several;
use crate::{
    CommandError, Error, Lane, NamespaceInfo, Options, PushdownLimits, SubmitError, TargetUrl,
};
use bpfof_nvme::fabrics::Version;
use bpfof_nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, cns, parse_namespace_list,
};
use bpfof_nvme::{AdminCommand, Cqe, Sqe, Status};
use std::sync::Arc;
use std::time::Duration;

/// Most namespaces that a lane knows: one identify list.
const NAMESPACES_MAX: usize = 1024;

/// An association with a target, through its admin queue. All calls block.
///
/// Functions and file maps belong to the association and vanish with it. While the association is idle, a thread keeps
/// it alive ([`Options::keep_alive`]). Dropping a controller closes the admin connection, and the target then ends the
/// lanes too.
// More than 25 methods: one for each thing that a host asks a target for, in modules by subject.
#[derive(Debug)]
pub struct Controller {
    pub(crate) url: TargetUrl,
    pub(crate) options: Options,
    /// The association through the only portal, or through one of several portals of the same subsystem.
    pub(crate) association: Arc<Association>,
    namespaces: Arc<[NamespaceInfo]>,
    pub(crate) limits: Option<PushdownLimits>,
    /// Only with several portals.
    pub(crate) paths: Option<Arc<dyn Several>>,
}

impl Controller {
    /// A controller of one association, without further paths.
    pub(crate) fn of(association: Arc<Association>) -> Self {
        Self {
            url: association.url.clone(),
            options: association.options.clone(),
            association,
            namespaces: Arc::new([]),
            limits: None,
            paths: None,
        }
    }

    /// The address this controller was connected to.
    #[must_use]
    pub const fn url(&self) -> &TargetUrl {
        &self.url
    }

    /// Version of the NVMe specification that the controller reports (property VS).
    #[must_use]
    pub fn version(&self) -> Version {
        self.association.version
    }

    /// Whether the admin connection is open. With several portals always true: lost paths are reconnected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.paths.is_some() || self.association.admin.is_connected()
    }

    /// Checks whether the target has ended the admin connection, and with it the association; returns whether the
    /// connection is still open. Only an unanswered Keep Alive ([`Options::keep_alive`]) reveals a target that has
    /// vanished silently. With several portals the same as [`is_connected`](Self::is_connected).
    pub fn check_connected(&mut self) -> bool {
        self.paths.is_some() || self.association.admin.check_connected()
    }

    /// The paths to the subsystem, one for each portal of the address, in their order. With one portal there is one
    /// path, which is optimized as long as it is connected.
    #[must_use]
    pub fn paths(&self) -> Vec<PathInfo> {
        match &self.paths {
            Some(paths) => paths.info(),
            None => vec![PathInfo::of_only(&self.url, self.is_connected())],
        }
    }

    /// Sends a Keep Alive if one is due, and receives answers; does not wait. Returns the time until the next one is
    /// due: [`Duration::MAX`] if the target has no keep-alive timer. Need not be called with
    /// [`Options::keep_alive_thread`], or with several portals.
    ///
    /// # Errors
    /// The connection is lost, or the target has not answered an earlier Keep Alive within the command timeout.
    pub fn keep_alive(&mut self) -> Result<Duration, Error> {
        if self.paths.is_some() {
            return Ok(Duration::MAX);
        }
        self.association.admin.beat().map(|(left, _)| left.unwrap_or(Duration::MAX))
    }

    /// The active namespaces, as of [`connect`](Self::connect) or the last
    /// [`refresh_namespaces`](Self::refresh_namespaces). Lanes opened since then know these.
    #[must_use]
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        &self.namespaces
    }

    /// Asks the target for its active namespaces again, for lanes opened from now on. Namespaces
    /// without a usable block format are left out.
    ///
    /// # Errors
    /// As the target answered.
    pub fn refresh_namespaces(&mut self) -> Result<(), Error> {
        let mut namespaces = Vec::new();
        for nsid in self.active_namespaces()?.into_iter().take(NAMESPACES_MAX) {
            let identify = self.identify_block(cns::NAMESPACE, nsid, None)?;
            let identify = IdentifyNamespace::from_bytes(&identify);
            namespaces.extend(NamespaceInfo::from_identify(nsid, &identify));
        }
        self.namespaces = namespaces.into();
        Ok(())
    }

    /// Identify Controller (NVMe Base 2.0 §5.17.2.1).
    ///
    /// # Errors
    /// As the target answered.
    pub fn identify_controller(&mut self) -> Result<IdentifyController, Error> {
        let block = self.identify_block(cns::CONTROLLER, 0, None)?;
        Ok(IdentifyController::from_bytes(&block))
    }

    /// Size and block of a namespace.
    ///
    /// # Errors
    /// As the target answered, Invalid Namespace or Format for an id that no namespace has;
    /// [`Error::BadAnswer`] for a namespace with a block format that no lane can transfer, such as
    /// one with metadata.
    pub fn identify_namespace(&mut self, nsid: u32) -> Result<NamespaceInfo, Error> {
        self.identify_namespace_while(nsid, None)
    }

    /// The same; calls `meanwhile` as [`admin_command_while`](Self::admin_command_while) does.
    pub(crate) fn identify_namespace_while(
        &self,
        nsid: u32,
        meanwhile: Meanwhile<'_>,
    ) -> Result<NamespaceInfo, Error> {
        NamespaceInfo::from_identify(nsid, &self.whole_namespace_while(nsid, meanwhile)?)
            .ok_or(Error::BadAnswer("the namespace has no block format without metadata"))
    }

    /// The whole Identify Namespace data of an active namespace.
    pub(crate) fn whole_namespace(&self, nsid: u32) -> Result<IdentifyNamespace, Error> {
        self.whole_namespace_while(nsid, None)
    }

    fn whole_namespace_while(
        &self,
        nsid: u32,
        meanwhile: Meanwhile<'_>,
    ) -> Result<IdentifyNamespace, Error> {
        let block = self.identify_block(cns::NAMESPACE, nsid, meanwhile)?;
        let identify = IdentifyNamespace::from_bytes(&block);
        // All zero for an id that is valid but inactive (NVM Command Set 1.0 §4.1.5.1).
        if identify == IdentifyNamespace::default() {
            let status = Status::INVALID_NAMESPACE.with_dnr();
            let source = CommandError { status, dw0: 0, dw1: 0 };
            return Err(Error::Command { command: "Identify", source });
        }
        Ok(identify)
    }

    /// Identifiers of the active namespaces, ascending, the first 1024 (NVMe Base 2.0 §5.17.2.2).
    ///
    /// # Errors
    /// As the target answered.
    pub fn active_namespaces(&mut self) -> Result<Vec<u32>, Error> {
        let block = self.identify_block(cns::ACTIVE_NAMESPACES, 0, None)?;
        Ok(parse_namespace_list(&block).collect())
    }

    fn identify_block(
        &self,
        cns: u8,
        nsid: u32,
        meanwhile: Meanwhile<'_>,
    ) -> Result<[u8; IDENTIFY_BYTES], Error> {
        let sqe = AdminCommand::identify(cns, nsid);
        let command = (sqe, &[][..], IDENTIFY_BYTES as u32);
        let (_, data) = self.admin_command_while(command, meanwhile)?;
        data.first_chunk().copied().ok_or(Error::BadAnswer("Identify returned too few bytes"))
    }

    /// Sends any admin command with `data_out`, and accepts up to `data_in_max_bytes`. Fills in the command's
    /// identifier, flags and data pointer. Returns dwords 0 and 1 of the completion. With several portals the command
    /// goes to the target of the best path; if that path is lost and the command changes nothing, it is sent again on
    /// another.
    ///
    /// # Errors
    /// As the target answered.
    pub fn admin_command(
        &mut self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.admin_command_while((sqe, data_out, data_in_max_bytes), None)
    }

    /// The same; with one portal, calls `meanwhile` every few ms until the command has ended. With several portals a
    /// silent target is detected sooner.
    pub(crate) fn admin_command_while(
        &self,
        command: (Sqe, &[u8], u32),
        meanwhile: Meanwhile<'_>,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        let (sqe, data_out, data_in_max_bytes) = command;
        match &self.paths {
            Some(paths) => paths.call(sqe, data_out, data_in_max_bytes),
            None => self.association.call_while(command, meanwhile),
        }
    }

    /// Most data of one command in bytes; with several portals the limit of any path.
    #[must_use]
    pub fn max_transfer_bytes(&self) -> u32 {
        let paths = self.paths.as_ref();
        paths.map_or_else(
            || self.association.max_transfer_bytes(),
            |paths| paths.max_transfer_bytes(),
        )
    }

    /// Opens a lane on the next I/O queue. With several portals the lane uses the best path, and continues on another
    /// if that path is lost.
    ///
    /// # Errors
    /// [`Error::NoQueueLeft`] if all granted queues are in use; otherwise as for
    /// [`connect`](Self::connect).
    pub fn open_lane(&self) -> Result<Lane, Error> {
        self.lane_opener().open()
    }

    /// Opens lanes without borrowing the controller, which other threads may need meanwhile.
    pub(crate) fn lane_opener(&self) -> LaneOpener {
        LaneOpener {
            association: Arc::clone(&self.association),
            namespaces: Arc::clone(&self.namespaces),
            paths: self.paths.clone(),
        }
    }

    /// Shuts the controller down in order and closes the connection. Close the lanes first: the
    /// target ends them.
    ///
    /// # Errors
    /// As the target answered; the connection is closed in any case.
    pub fn disconnect(self) -> Result<(), Error> {
        match &self.paths {
            Some(paths) => paths.shut_down(),
            None => self.association.shut_down(),
        }
    }
}

/// Opens lanes of a controller.
#[derive(Debug)]
pub(crate) struct LaneOpener {
    association: Arc<Association>,
    namespaces: Arc<[NamespaceInfo]>,
    paths: Option<Arc<dyn Several>>,
}

impl LaneOpener {
    /// See [`Controller::open_lane`].
    pub(crate) fn open(&self) -> Result<Lane, Error> {
        let Self { association, namespaces, paths } = self;
        if let Some(paths) = paths {
            return paths.open_lane(namespaces);
        }
        if !association.admin.is_connected() {
            return Err(SubmitError::NotConnected.into());
        }
        let limits = association.data_limits();
        let (queue, qid, plan) = association.open_queue(namespaces, limits, &|_, _| Ok(()))?;
        let lane = Lane::new(queue, qid, association.ids.clone(), Arc::new(plan));
        // If the association has ended meanwhile, the lane may belong to another controller with the same identifier.
        match association.admin.check_connected() {
            true => Ok(lane),
            false => Err(SubmitError::NotConnected.into()),
        }
    }
}

impl Lane {
    /// Replaces the connection by a new one of `controller`'s present association. If the association was lost too,
    /// call [`Controller::reconnect`] first. The byte counters restart at 0. Functions and file maps belong to the
    /// association: in a new association the caller loads and sets them again, and function ids change.
    ///
    /// # Errors
    /// [`Error::LaneBusy`] until the requests in flight have been reported by `poll` or `wait`;
    /// [`Error::AdoptedLane`]; those of [`Controller::open_lane`]. The lane stays as it was.
    pub fn reconnect(&mut self, controller: &Controller) -> Result<(), Error> {
        self.require_idle()?;
        if self.is_adopted() {
            return Err(Error::AdoptedLane);
        }
        // The identifier of the lost queue may be the only one left.
        if !self.is_connected() {
            self.give_back_id();
        }
        *self = controller.open_lane()?;
        Ok(())
    }
}
