//! An association through one portal: its admin queue, and what the target reported when it began.

use crate::admin::Admin;
use crate::lane_plan::LanePlan;
use crate::queue::{Meanwhile, Queue, QueueConnect};
use crate::queue_ids::QueueIds;
use crate::{Error, InitiatorConfig, LostReason, NamespaceInfo, Options, TargetUrl, Transport};
use bpfof_nvme::fabrics::{
    CNTLID_DYNAMIC, Cap, ControllerConfig, Csts, FabricsCommand, Shutdown, Version, offset,
};
use bpfof_nvme::identify::{IDENTIFY_BYTES, IdentifyController, cns};
use bpfof_nvme::tcp::{ADMIN_IN_CAPSULE_BYTES, Digests};
use bpfof_nvme::{AdminCommand, Cqe, Sqe, Status, features};
use rustix::io::Errno;
use rustix::net::{Shutdown as SocketShutdown, connect_unspec, shutdown};
use socket2::SockRef;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests in flight on the admin queue: as many as a Linux host uses; the calls here need one.
const ADMIN_DEPTH: u16 = 31;
/// Most data of one command in bytes, whatever a target allows: bounds the buffers of a lane.
pub(crate) const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// The same for RDMA, where each queue has registered memory for at least one such command.
const RDMA_TRANSFER_MAX_BYTES: u32 = 128 << 10;
/// Least wait for a controller to become ready or shut down: CAP.TO may be 0, a shutdown has no
/// bound.
const READY_MIN: Duration = Duration::from_secs(5);
/// Pause between reads of CSTS.
const READY_PAUSE: Duration = Duration::from_millis(1);
/// Controller type of a discovery controller (NVMe Base 2.0 §5.17.2.1, CNTRLTYPE).
const CNTRLTYPE_DISCOVERY: u8 = 2;
/// I/O queues to ask for: with more threads, threads share lanes.
const QUEUES_ASKED: u16 = 1024;
/// CTRATT: commands on any queue restart the keep-alive timer (NVMe Base 2.0 §3.9).
const TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;
/// What is asked for if a longer keep-alive timeout is refused, in ms: targets of this project grant ten minutes.
const KEEP_ALIVE_MAX_MS: u32 = 600_000;
/// Margin added to the time by which a target has certainly given up a host: the target checks its timers only
/// periodically, and its drives must finish writes that they have begun.
const QUIESCE: Duration = Duration::from_secs(1);

/// How much data a queue accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataLimits {
    /// Most data of a command.
    pub(crate) transfer_bytes: u32,
    /// Most in-capsule data of a command on an I/O queue.
    pub(crate) in_capsule_bytes: u32,
}

/// An association, for as long as its admin queue.
#[derive(Debug)]
pub(crate) struct Association {
    /// The address, with only this portal.
    pub(crate) url: TargetUrl,
    pub(crate) options: Options,
    pub(crate) admin: Admin,
    /// Where the admin queue is connected.
    peer: Option<SocketAddr>,
    pub(crate) cap: Cap,
    pub(crate) version: Version,
    pub(crate) identify: IdentifyController,
    /// I/O queues that the target grants.
    pub(crate) granted: u32,
    pub(crate) ids: QueueIds,
    /// The keep-alive timeout of the target's timer; zero is none.
    keep_alive: Duration,
    ending: Mutex<Ending>,
}

/// State for ending an association that is one of several paths.
#[derive(Debug, Default)]
struct Ending {
    /// Its connections, with their queue identifiers.
    sockets: Vec<(u16, OwnedFd)>,
    /// The time since which nothing has been sent on any of them.
    ended: Option<Instant>,
}

impl Association {
    /// Connects to the subsystem of `url` through its first portal, and brings a controller to life.
    pub(crate) fn connect(url: &TargetUrl, options: &Options) -> Result<Self, Error> {
        let (queue, cntlid, kato_ms) = connect_admin(url, options)?;
        let mut association = Self {
            url: url.clone(),
            options: options.clone(),
            peer: queue.peer(),
            admin: Admin::new(queue),
            cap: Cap::default(),
            version: Version::default(),
            identify: IdentifyController::default(),
            granted: 0,
            ids: QueueIds::new(0),
            keep_alive: Duration::ZERO,
            ending: Mutex::default(),
        };
        association.start()?;
        if association.identify.cntlid != cntlid {
            return Err(Error::BadAnswer("Identify returned another controller ID than Connect"));
        }
        // A KAS of 0 means that the controller has no keep-alive timer.
        if association.identify.kas_100ms > 0 {
            association.keep_alive = Duration::from_millis(kato_ms.into());
        }
        Ok(association)
    }

    /// Keeps the association alive from now on, by a thread if the options ask for one.
    pub(crate) fn keep_alive(&mut self) -> Result<(), Error> {
        if self.keep_alive.is_zero() {
            return Ok(());
        }
        self.admin.set_keep_alive(self.keep_alive);
        if self.options.keep_alive_thread { self.admin.start_thread(&self.url) } else { Ok(()) }
    }

    /// The same for an association that is one of several paths: the path's thread keeps it alive, and
    /// [`end`](Self::end) can end it.
    pub(crate) fn keep_alive_as_path(&self) -> Result<(), Error> {
        if !self.keep_alive.is_zero() {
            self.admin.set_mutual_keep_alive(self.keep_alive);
        }
        self.join(0, self.admin.descriptor()?);
        Ok(())
    }

    /// Enables the controller and reads its capabilities.
    fn start(&mut self) -> Result<(), Error> {
        self.cap = Cap::from(self.property(offset::CAP, true)?);
        self.version = Version(self.property(offset::VS, false)? as u32);
        self.configure(Shutdown::None)?;
        let limit = Duration::from_millis(u64::from(self.cap.timeout_500ms) * 500).max(READY_MIN);
        self.wait_status("CSTS.RDY", limit, |status| status.ready)?;
        if self.options.pushdown_only {
            self.restrict()?;
        }
        let sqe = AdminCommand::identify(cns::CONTROLLER, 0);
        let (_, data) = self.admin.call("Identify", sqe, &[], IDENTIFY_BYTES as u32)?;
        let block =
            data.first_chunk().ok_or(Error::BadAnswer("Identify returned too few bytes"))?;
        self.identify = IdentifyController::from_bytes(block);
        if self.is_discovery() {
            return Ok(());
        }
        let asked = features::number_of_queues(QUEUES_ASKED);
        let sqe = AdminCommand::set_features(features::NUMBER_OF_QUEUES, asked);
        let (answer, _) = self.admin.call("Set Features", sqe, &[], 0)?;
        self.granted = features::queues_granted(answer.dw0).min(u32::from(QUEUES_ASKED));
        self.ids = QueueIds::new(self.granted as u16);
        Ok(())
    }

    pub(crate) const fn is_discovery(&self) -> bool {
        self.identify.cntrltype == CNTRLTYPE_DISCOVERY
    }

    /// Restricts lanes opened from now on to chains over mapped files.
    fn restrict(&self) -> Result<(), Error> {
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
        &self,
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

    fn property(&self, offset: u32, size8: bool) -> Result<u64, Error> {
        let sqe = FabricsCommand::PropertyGet { offset, size8 }.to_sqe();
        let (answer, _) = self.admin.call("Property Get", sqe, &[], 0)?;
        Ok(answer.dw01())
    }

    /// Writes CC of an enabled controller.
    fn configure(&self, shutdown: Shutdown) -> Result<(), Error> {
        let config =
            ControllerConfig { mps: self.cap.mpsmin, shutdown, ..ControllerConfig::ENABLED };
        let value = u64::from(u32::from(config));
        let sqe = FabricsCommand::PropertySet { offset: offset::CC, size8: false, value }.to_sqe();
        self.admin.call("Property Set", sqe, &[], 0).map(|_| ())
    }

    /// Shuts the controller down in order.
    pub(crate) fn shut_down(&self) -> Result<(), Error> {
        self.configure(Shutdown::Normal)?;
        self.wait_status("CSTS.SHST", READY_MIN, |status| {
            status.shutdown == Csts::SHUTDOWN_COMPLETE
        })
    }

    /// Sends any admin command.
    pub(crate) fn call(
        &self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.call_while((sqe, data_out, data_in_max_bytes), None)
    }

    /// The same; calls `meanwhile` every few ms until the command has ended.
    pub(crate) fn call_while(
        &self,
        command: (Sqe, &[u8], u32),
        meanwhile: Meanwhile<'_>,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        let (sqe, ..) = command;
        let name = bpfof_nvme::opcode::command_name(true, sqe.opcode, sqe.nsid as u8);
        self.admin.call_while(name.unwrap_or("a command"), command, meanwhile)
    }

    /// Most data of one command in bytes.
    pub(crate) fn max_transfer_bytes(&self) -> u32 {
        let most = transfer_max_bytes(&self.url);
        let limit = self.identify.max_transfer_bytes(self.cap.mpsmin);
        limit.unwrap_or(u64::from(most)).min(u64::from(most)) as u32
    }

    /// How much data its I/O queues accept.
    pub(crate) fn data_limits(&self) -> DataLimits {
        let in_capsule_bytes = u32::try_from(self.identify.in_capsule_bytes()).unwrap_or(u32::MAX);
        DataLimits { transfer_bytes: self.max_transfer_bytes(), in_capsule_bytes }
    }

    /// Connects the next I/O queue, for a lane that knows these namespaces and accepts no more data than `limits`.
    /// Calls `on_open` with its identifier and connection before anything is sent on it. Also returns its identifier
    /// and the plan for reconnecting it.
    pub(crate) fn open_queue(
        &self,
        namespaces: &Arc<[NamespaceInfo]>,
        limits: DataLimits,
        on_open: &dyn Fn(u16, &Queue) -> Result<(), Error>,
    ) -> Result<(Queue, u16, LanePlan), Error> {
        let qid = self.ids.take().ok_or(Error::NoQueueLeft { granted: self.granted })?;
        let initiator = InitiatorConfig {
            admin: false,
            digests: digests(&self.options),
            depth: self.options.queue_depth.min(self.cap.mqes),
            in_capsule_bytes: limits.in_capsule_bytes,
            max_transfer_bytes: limits.transfer_bytes,
            namespaces: Arc::clone(namespaces),
        };
        let plan = LanePlan {
            url: self.url.clone(),
            options: self.options.clone(),
            initiator,
            cntlid: self.identify.cntlid,
            peer: self.peer,
        };
        match plan.connect(qid, &|queue| on_open(qid, queue)) {
            Ok(queue) => Ok((queue, qid, plan)),
            Err(error) => {
                // Leave before another queue can take the identifier.
                self.leave(qid);
                self.ids.give_back(qid);
                Err(error)
            }
        }
    }

    /// The same for a lane of several paths: the connection ends with the association.
    pub(crate) fn open_queue_as_path(
        &self,
        namespaces: &Arc<[NamespaceInfo]>,
        limits: DataLimits,
    ) -> Result<(Queue, u16, LanePlan), Error> {
        if self.has_ended() {
            return Err(LostReason::HungUp.into());
        }
        // Join before anything is sent: Connect and authentication already restart the controller's keep-alive timer.
        let join = |qid, queue: &Queue| {
            let socket = queue.descriptor().map_err(|_| {
                // The connection works: this process has run out of descriptors.
                Error::Connect { address: self.url.to_string(), source: Errno::MFILE.into() }
            })?;
            if self.join(qid, socket) { Ok(()) } else { Err(LostReason::HungUp.into()) }
        };
        let opened = self.open_queue(namespaces, limits, &join);
        opened.map_err(|error| match self.has_ended() {
            true => LostReason::HungUp.into(),
            false => error,
        })
    }

    fn ending(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, which ends with the association; false if the association has ended already. Sets the time in
    /// which the peer must acknowledge data sent on it.
    pub(crate) fn join(&self, qid: u16, socket: OwnedFd) -> bool {
        let _ = SockRef::from(&socket).set_tcp_user_timeout(Some(self.options.path_timeout));
        let mut ending = self.ending();
        let goes_on = ending.ended.is_none();
        if goes_on {
            ending.sockets.retain(|(other, _)| *other != qid);
            ending.sockets.push((qid, socket));
        }
        goes_on
    }

    /// Removes the connection of a queue, after its end.
    pub(crate) fn leave(&self, qid: u16) {
        self.ending().sockets.retain(|(other, _)| *other != qid);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ending().ended.is_some()
    }

    /// Ends all its connections, including those that lanes hold: nothing that was queued on them is sent any more.
    /// Returns the time from which the controller certainly carries out no more commands, because the target has then
    /// received nothing for its keep-alive timeout (NVMe Base 2.0 §3.9). `None` if it has no such timer.
    pub(crate) fn end(&self) -> Option<Instant> {
        let mut ending = self.ending();
        let sockets = std::mem::take(&mut ending.sockets);
        for (_, socket) in &sockets {
            // Drops unsent data. A kernel TLS socket cannot do that: there the shutdown is queued behind the data, and
            // the lane's close drops both.
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            if connect_unspec(socket).is_err() {
                let _ = shutdown(socket, SocketShutdown::Both);
            }
        }
        let ended = *ending.ended.get_or_insert_with(Instant::now);
        // The target may round the timeout up.
        let unit_ms = u128::from(self.identify.kas_100ms.max(1)) * 100;
        let timeout_ms = self.keep_alive.as_millis().div_ceil(unit_ms) * unit_ms;
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(u64::MAX));
        // A timer with traffic-based keep-alive may detect silence only after two periods.
        let runs = 1 + u32::from(self.identify.ctratt & TRAFFIC_BASED_KEEP_ALIVE != 0);
        (!timeout.is_zero()).then(|| ended + timeout * runs + QUIESCE)
    }
}

/// Connects the admin queue. Also returns the controller identifier, and the keep-alive timeout that the target has
/// accepted, in ms; 0 is none.
fn connect_admin(url: &TargetUrl, options: &Options) -> Result<(Queue, u16, u32), Error> {
    let connect = |kato_ms| {
        let initiator = InitiatorConfig {
            admin: true,
            digests: digests(options),
            depth: ADMIN_DEPTH,
            in_capsule_bytes: ADMIN_IN_CAPSULE_BYTES as u32,
            max_transfer_bytes: transfer_max_bytes(url),
            namespaces: Arc::new([]),
        };
        Queue::connect(QueueConnect {
            url,
            options,
            initiator,
            qid: 0,
            cattr: 0,
            cntlid: CNTLID_DYNAMIC,
            peer: None,
            kato_ms,
            on_open: &|_| Ok(()),
        })
    };
    let mut wanted_ms = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
    let most_ms = wanted_ms.min(KEEP_ALIVE_MAX_MS);
    let connected = match connect(wanted_ms) {
        Err(Error::Command { source, .. }) if most_ms < wanted_ms && source.is_of_keep_alive() => {
            log::info!("{url}: the target refused a keep-alive timeout of {wanted_ms} ms");
            wanted_ms = most_ms;
            connect(most_ms)
        }
        connected => connected,
    };
    match connected {
        // Targets without a keep-alive timer may refuse Connect.
        Err(Error::Command { source, .. }) if wanted_ms > 0 && source.is_of_keep_alive() => {
            log::info!(
                "{url}: the target refused a keep-alive timeout of {wanted_ms} ms, connecting \
                 without one: {}",
                source.status
            );
            connect(0).map(|(queue, cntlid)| (queue, cntlid, 0))
        }
        connected => connected.map(|(queue, cntlid)| (queue, cntlid, wanted_ms)),
    }
}

/// Most data of one command by this transport, in bytes.
const fn transfer_max_bytes(url: &TargetUrl) -> u32 {
    match url.transport {
        Transport::Tcp => TRANSFER_MAX_BYTES,
        Transport::Rdma => RDMA_TRANSFER_MAX_BYTES,
    }
}

const fn digests(options: &Options) -> Digests {
    Digests { header: options.header_digest, data: options.data_digest }
}
