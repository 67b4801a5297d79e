//! An association with a target: its admin queue, and the lanes it opens.

use crate::admin::Admin;
use crate::credentials::{Credentials, KeyFiles};
use crate::lane::LanePlan;
use crate::queue::{Queue, QueueConnect};
use crate::queue_ids::QueueIds;
use crate::{
    CommandError, Error, InitiatorConfig, Lane, NamespaceInfo, Options, PushdownLimits,
    SubmitError, TargetUrl,
};
use bpfof_nvme::fabrics::{
    CNTLID_DYNAMIC, Cap, ControllerConfig, Csts, FabricsCommand, Shutdown, Version, offset,
};
use bpfof_nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, cns, parse_namespace_list,
};
use bpfof_nvme::tcp::{ADMIN_IN_CAPSULE_BYTES, Digests};
use bpfof_nvme::{AdminCommand, Cqe, Sqe, Status, features};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests in flight on the admin queue: what a Linux host uses; the calls here need one.
const ADMIN_DEPTH: u16 = 31;
/// Most data of one command in bytes, whatever a target allows: bounds the buffers of a lane.
pub(crate) const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Least wait for a controller to become ready or shut down: CAP.TO may be 0, a shutdown has no
/// bound.
const READY_MIN: Duration = Duration::from_secs(5);
/// Keep-alive timeouts of restricted associations (docs/protocol.md, Queue Restriction).
const RESTRICTED_KEEP_ALIVE: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(10);
/// Pause between looks at CSTS.
const READY_PAUSE: Duration = Duration::from_millis(1);
/// Controller type of a discovery controller (NVMe Base 2.0 §5.17.2.1, CNTRLTYPE).
const CNTRLTYPE_DISCOVERY: u8 = 2;
/// I/O queues asked for: more threads than that share lanes.
const QUEUES_ASKED: u16 = 1024;
/// Namespaces that a lane knows: one identify list of them.
const NAMESPACES_MAX: usize = 1024;

/// An association with a target, through its admin queue. All calls block.
///
/// Functions and file maps belong to the association and vanish with it. While nobody uses the
/// association, a thread keeps it alive ([`Options::keep_alive`]). Dropping a controller closes the
/// admin connection, upon which the target ends the lanes too.
// More than 25 methods: one for each thing that a host asks a target for, in modules by subject.
#[derive(Debug)]
pub struct Controller {
    url: TargetUrl,
    options: Options,
    admin: Admin,
    cap: Cap,
    version: Version,
    identify: IdentifyController,
    granted: u32,
    ids: QueueIds,
    namespaces: Arc<[NamespaceInfo]>,
    pub(crate) limits: Option<PushdownLimits>,
}

impl Controller {
    /// Connects to the subsystem of `url` and brings a controller to life.
    ///
    /// # Errors
    /// No connection, no such subsystem, a target that refuses this host, or that breaks the
    /// protocol.
    pub fn connect(url: &TargetUrl, mut options: Options) -> Result<Self, Error> {
        if let Some(host_nqn) = &url.host_nqn {
            options.host_nqn.clone_from(host_nqn);
        }
        if url.keys != KeyFiles::default() {
            options.credentials = Credentials::read(&url.keys)?;
        }
        if options.pushdown_only && !RESTRICTED_KEEP_ALIVE.contains(&options.keep_alive) {
            return Err(Error::RestrictedKeepAlive(options.keep_alive));
        }
        let (queue, cntlid, kato_ms) = connect_admin(url, &options)?;
        let mut controller = Self {
            url: url.clone(),
            options,
            admin: Admin::new(queue),
            cap: Cap::default(),
            version: Version::default(),
            identify: IdentifyController::default(),
            granted: 0,
            ids: QueueIds::new(0),
            namespaces: Arc::new([]),
            limits: None,
        };
        controller.start()?;
        if controller.identify.cntlid != cntlid {
            return Err(Error::BadAnswer("Identify names another controller than Connect"));
        }
        // A KAS of 0 says that the controller has no keep-alive timer.
        if kato_ms > 0 && controller.identify.kas_100ms > 0 {
            controller.admin.set_keep_alive(Duration::from_millis(kato_ms.into()));
            if controller.options.keep_alive_thread {
                controller.admin.start_thread(url)?;
            }
        }
        Ok(controller)
    }

    /// Enables the controller and learns what it can do.
    fn start(&mut self) -> Result<(), Error> {
        self.cap = Cap::from(self.property(offset::CAP, true)?);
        self.version = Version(self.property(offset::VS, false)? as u32);
        let config = ControllerConfig { mps: self.cap.mpsmin, ..ControllerConfig::ENABLED };
        self.set_property(offset::CC, config.into())?;
        let limit = Duration::from_millis(u64::from(self.cap.timeout_500ms) * 500).max(READY_MIN);
        self.wait_status("CSTS.RDY", limit, |status| status.ready)?;
        if self.options.pushdown_only {
            self.restrict()?;
        }
        self.identify = self.identify_controller()?;
        if self.identify.cntrltype == CNTRLTYPE_DISCOVERY {
            return Ok(());
        }
        let asked = features::number_of_queues(QUEUES_ASKED);
        let sqe = AdminCommand::set_features(features::NUMBER_OF_QUEUES, asked);
        let (answer, _) = self.admin.call("Set Features", sqe, &[], 0)?;
        self.granted = features::queues_granted(answer.dw0).min(u32::from(QUEUES_ASKED));
        self.ids = QueueIds::new(self.granted as u16);
        self.refresh_namespaces()
    }

    /// Restricts the lanes to come to chains over mapped files.
    fn restrict(&mut self) -> Result<(), Error> {
        let (feature, value) = (features::QUEUE_RESTRICTION, features::PUSHDOWN_ONLY);
        let sqe = AdminCommand::set_features(feature, value);
        match self.admin.call("Set Features", sqe, &[], 0) {
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::INVALID_FIELD) =>
            {
                Err(Error::RestrictionUnknown)
            }
            answer => answer.map(|_| ()),
        }
    }

    /// Waits until `done` holds of CSTS.
    fn wait_status(
        &mut self,
        step: &'static str,
        limit: Duration,
        done: impl Fn(&Csts) -> bool,
    ) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            let status = Csts::from(self.property(offset::CSTS, false)? as u32);
            if done(&status) {
                return Ok(());
            }
            if status.fatal {
                return Err(Error::BadAnswer("the controller reports a fatal error (CSTS.CFS)"));
            }
            if started.elapsed() > limit {
                let waited_ms = started.elapsed().as_millis() as u64;
                return Err(Error::NotReady { step, waited_ms });
            }
            std::thread::sleep(READY_PAUSE);
        }
    }

    fn property(&mut self, offset: u32, size8: bool) -> Result<u64, Error> {
        let sqe = FabricsCommand::PropertyGet { offset, size8 }.to_sqe();
        let (answer, _) = self.admin.call("Property Get", sqe, &[], 0)?;
        Ok(answer.dw01())
    }

    fn set_property(&mut self, offset: u32, value: u32) -> Result<(), Error> {
        let value = u64::from(value);
        let sqe = FabricsCommand::PropertySet { offset, size8: false, value }.to_sqe();
        self.admin.call("Property Set", sqe, &[], 0).map(|_| ())
    }

    /// The address this controller was connected to.
    #[must_use]
    pub const fn url(&self) -> &TargetUrl {
        &self.url
    }

    /// Version of the NVMe specification that the controller reports (property VS).
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Controller capabilities (property CAP).
    #[must_use]
    pub const fn capabilities(&self) -> Cap {
        self.cap
    }

    /// Whether the admin connection is open.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.admin.is_connected()
    }

    /// Looks whether the target has ended the admin connection, and with it the association; whether
    /// it is still open. A target that has vanished without a word is noticed only by a Keep Alive
    /// ([`Options::keep_alive`]) without an answer.
    pub fn check_connected(&mut self) -> bool {
        self.admin.check_connected()
    }

    /// Sends a Keep Alive if one is due, and takes the answers that have come; without waiting. How long
    /// until the next is due: [`Duration::MAX`] if the target has no keep-alive timer. Need not be called
    /// with [`Options::keep_alive_thread`].
    ///
    /// # Errors
    /// The connection is lost, or the target has not answered an earlier one within the command timeout.
    pub fn keep_alive(&mut self) -> Result<Duration, Error> {
        self.admin.beat().map(|left| left.unwrap_or(Duration::MAX))
    }

    /// The active namespaces, as of the connection or the last
    /// [`refresh_namespaces`](Self::refresh_namespaces); lanes know these.
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
            let identify = self.identify_block(cns::NAMESPACE, nsid)?;
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
        let block = self.identify_block(cns::CONTROLLER, 0)?;
        Ok(IdentifyController::from_bytes(&block))
    }

    /// Size and block of a namespace.
    ///
    /// # Errors
    /// As the target answered, Invalid Namespace or Format for an id that no namespace has;
    /// [`Error::BadAnswer`] for a namespace with a block format that no lane can transfer, such as
    /// one with metadata.
    pub fn identify_namespace(&mut self, nsid: u32) -> Result<NamespaceInfo, Error> {
        let identify = IdentifyNamespace::from_bytes(&self.identify_block(cns::NAMESPACE, nsid)?);
        // All zero for an id that is valid but inactive (NVM Command Set 1.0 §4.1.5.1).
        if identify == IdentifyNamespace::default() {
            let status = Status::INVALID_NAMESPACE.with_dnr();
            let source = CommandError { status, dw0: 0, dw1: 0 };
            return Err(Error::Command { command: "Identify", source });
        }
        NamespaceInfo::from_identify(nsid, &identify)
            .ok_or(Error::BadAnswer("the namespace has no block format without metadata"))
    }

    /// Identifiers of the active namespaces, ascending, the first 1024 (NVMe Base 2.0 §5.17.2.2).
    ///
    /// # Errors
    /// As the target answered.
    pub fn active_namespaces(&mut self) -> Result<Vec<u32>, Error> {
        let block = self.identify_block(cns::ACTIVE_NAMESPACES, 0)?;
        Ok(parse_namespace_list(&block).collect())
    }

    fn identify_block(&mut self, cns: u8, nsid: u32) -> Result<[u8; IDENTIFY_BYTES], Error> {
        let sqe = AdminCommand::identify(cns, nsid);
        let (_, data) = self.admin.call("Identify", sqe, &[], IDENTIFY_BYTES as u32)?;
        data.first_chunk().copied().ok_or(Error::BadAnswer("Identify returned too little"))
    }

    /// Any admin command: sends `data_out`, accepts up to `data_in_max_bytes`. Its identifier,
    /// flags and data pointer are filled in. Of the completion dwords 0 and 1 are returned.
    ///
    /// # Errors
    /// As the target answered.
    pub fn admin_command(
        &mut self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        let name = bpfof_nvme::opcode::command_name(true, sqe.opcode, sqe.nsid as u8);
        let name = name.unwrap_or("a command");
        self.admin.call(name, sqe, data_out, data_in_max_bytes)
    }

    /// Most data of one command in bytes.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        let limit = self.identify.max_transfer_bytes(self.cap.mpsmin);
        let limit = limit.unwrap_or(u64::from(TRANSFER_MAX_BYTES));
        limit.min(u64::from(TRANSFER_MAX_BYTES)) as u32
    }

    /// Opens a lane on the next I/O queue.
    ///
    /// # Errors
    /// [`Error::NoQueueLeft`] if all granted queues are in use; otherwise as for
    /// [`connect`](Self::connect).
    pub fn open_lane(&self) -> Result<Lane, Error> {
        if !self.is_connected() {
            return Err(SubmitError::NotConnected.into());
        }
        let qid = self.ids.take().ok_or(Error::NoQueueLeft { granted: self.granted })?;
        let initiator = InitiatorConfig {
            admin: false,
            digests: digests(&self.options),
            depth: self.options.queue_depth.min(self.cap.mqes),
            in_capsule_bytes: u32::try_from(self.identify.in_capsule_bytes()).unwrap_or(u32::MAX),
            max_transfer_bytes: self.max_transfer_bytes(),
            namespaces: Arc::clone(&self.namespaces),
        };
        let plan = LanePlan {
            url: self.url.clone(),
            options: self.options.clone(),
            initiator,
            cntlid: self.identify.cntlid,
        };
        let connected = plan.connect(qid);
        match connected {
            // The controller that the lane belongs to may be another one of the same number.
            Ok(_) if !self.admin.check_connected() => {
                self.ids.give_back(qid);
                Err(SubmitError::NotConnected.into())
            }
            Ok(queue) => Ok(Lane::new(queue, qid, self.ids.clone(), Arc::new(plan))),
            Err(error) => {
                self.ids.give_back(qid);
                Err(error)
            }
        }
    }

    /// Starts a new association in place of this one, after it was lost or to start afresh. Lanes
    /// of the old one must be [reconnected](Lane::reconnect), functions loaded and file maps set
    /// again: they belonged to the old association.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect); the controller then stays as it was.
    pub fn reconnect(&mut self) -> Result<(), Error> {
        *self = Self::connect(&self.url, self.options.clone())?;
        Ok(())
    }

    /// Shuts the controller down in order and closes the connection. Close the lanes first: the
    /// target ends them.
    ///
    /// # Errors
    /// As the target answered; the connection is closed in any case.
    pub fn disconnect(mut self) -> Result<(), Error> {
        let shutdown = Shutdown::Normal;
        let config =
            ControllerConfig { mps: self.cap.mpsmin, shutdown, ..ControllerConfig::ENABLED };
        self.set_property(offset::CC, config.into())?;
        self.wait_status("CSTS.SHST", READY_MIN, |status| {
            status.shutdown == Csts::SHUTDOWN_COMPLETE
        })
    }
}

/// Connects the admin queue. Returns the controller identifier too, and the keep-alive timeout that
/// the target has accepted, in ms; 0 is none.
fn connect_admin(url: &TargetUrl, options: &Options) -> Result<(Queue, u16, u32), Error> {
    let connect = |kato_ms| {
        let initiator = InitiatorConfig {
            admin: true,
            digests: digests(options),
            depth: ADMIN_DEPTH,
            in_capsule_bytes: ADMIN_IN_CAPSULE_BYTES as u32,
            max_transfer_bytes: TRANSFER_MAX_BYTES,
            namespaces: Arc::new([]),
        };
        let (cattr, cntlid) = (0, CNTLID_DYNAMIC);
        Queue::connect(QueueConnect { url, options, initiator, qid: 0, cattr, cntlid, kato_ms })
    };
    let wanted_ms = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
    match connect(wanted_ms) {
        // Targets without a keep-alive timer may say so here.
        Err(Error::Command { source, .. }) if wanted_ms > 0 && source.is_of_keep_alive() => {
            log::info!("{url}: no keep-alive timer of {wanted_ms} ms: {}", source.status);
            connect(0).map(|(queue, cntlid)| (queue, cntlid, 0))
        }
        connected => connected.map(|(queue, cntlid)| (queue, cntlid, wanted_ms)),
    }
}

const fn digests(options: &Options) -> Digests {
    Digests { header: options.header_digest, data: options.data_digest }
}
impl Lane {
    /// Replaces the connection by a new one of `controller`'s present association, after
    /// [`Controller::reconnect`] if the association was lost too. The byte counters start at 0.
    /// Functions and file maps belong to the association: after a new one the caller loads and
    /// sets them again, and function ids change.
    ///
    /// # Errors
    /// [`Error::LaneBusy`] until the requests in flight have been reported by `poll` or `wait`;
    /// [`Error::AdoptedLane`]; those of [`Controller::open_lane`]. The lane stays as it was.
    pub fn reconnect(&mut self, controller: &Controller) -> Result<(), Error> {
        self.require_idle()?;
        if self.is_adopted() {
            return Err(Error::AdoptedLane);
        }
        // There may be no other identifier than that of the queue that is over.
        if !self.is_connected() {
            self.give_back_id();
        }
        *self = controller.open_lane()?;
        Ok(())
    }
}
