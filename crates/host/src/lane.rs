//! A lane: one I/O queue pair, its connection and its buffers.

use crate::lane_plan::LanePlan;
use crate::paths::OnPaths;
use crate::queue::Queue;
use crate::queue_ids::QueueIds;
use crate::transport::tcp::Takeover;
use crate::{
    Completion, Error, InitiatorConfig, LostReason, PushdownCall, Request, RequestError,
    SubmitError, interrupted,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Longest sleep of a blocking call before it checks its lane again. The command timeout ends the call.
pub(crate) const WAIT: Duration = Duration::from_secs(1);

/// Most bytes of one request of a long transfer: enough for full speed, and a lane full of them
/// holds 16 MiB, not 128.
const CHUNK_MAX_BYTES: usize = 128 << 10;

/// The course of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    /// Hops it took: rounds of reads with a call of the function each.
    pub hops: u32,
}

/// One I/O queue pair, its connection and its buffers, for one thread at a time.
///
/// With TCP, nothing is allocated per request once the buffers have grown. When the connection is lost, each request in
/// flight completes exactly once, with [`RequestError::Lost`], at the next [`poll`](Self::poll) or
/// [`wait`](Self::wait), which then return the reason. Dropping a lane closes its connection; requests in flight end
/// without a completion.
///
/// If the address has several portals, a lost connection is replaced by one on another path, and requests in flight are
/// sent again; writes only when that is safe. A request then ends as lost if no path has been usable for the command
/// timeout, or as [`Unknown`](crate::RequestError::Unknown) (docs/failover.md).
// More than 25 methods: half of them are figures for benchmarks and settings.
#[derive(Debug)]
pub struct Lane {
    queue: Queue,
    qid: u16,
    /// The pool to which `qid` is returned; `None` if there is nothing to return.
    ids: Option<QueueIds>,
    /// How to make another connection; `None` for a lane that was handed over.
    plan: Option<Arc<LanePlan>>,
    /// Only with several paths.
    on_paths: Option<Box<OnPaths>>,
    /// The key of the TLS connection is near its usage limit: another connection replaces this one once the requests in
    /// flight have ended.
    is_worn: bool,
    /// How often a connection has been replaced because its key was worn.
    renewals: u32,
    /// Bytes sent and received on earlier connections that the lane itself has replaced. Not used with several paths.
    past_bytes: (u64, u64),
}

impl Lane {
    pub(crate) const fn new(queue: Queue, qid: u16, ids: QueueIds, plan: Arc<LanePlan>) -> Self {
        Self::with(queue, qid, Some(ids), Some(plan), None)
    }

    /// A lane that continues on another path when its own is lost.
    pub(crate) fn of_paths(queue: Queue, plan: Arc<LanePlan>, on_paths: OnPaths) -> Self {
        Self::with(queue, on_paths.qid(), None, Some(plan), Some(Box::new(on_paths)))
    }

    /// A lane that another process has opened.
    pub(crate) const fn adopted(queue: Queue, qid: u16) -> Self {
        Self::with(queue, qid, None, None, None)
    }

    const fn with(
        queue: Queue,
        qid: u16,
        ids: Option<QueueIds>,
        plan: Option<Arc<LanePlan>>,
        on_paths: Option<Box<OnPaths>>,
    ) -> Self {
        Self { queue, qid, ids, plan, on_paths, is_worn: false, renewals: 0, past_bytes: (0, 0) }
    }

    /// Whether another process has opened it.
    pub(crate) const fn is_adopted(&self) -> bool {
        self.plan.is_none()
    }

    /// Whether it takes chains over mapped files and nothing else.
    pub(crate) fn is_restricted(&self) -> bool {
        self.plan.as_ref().is_none_or(|plan| plan.options.pushdown_only)
    }

    pub(crate) const fn config(&self) -> &InitiatorConfig {
        self.queue.requests().config()
    }

    /// Takes the connection out; the queue identifier stays in use.
    pub(crate) fn take_connection(&mut self) -> Result<(OwnedFd, Takeover), Error> {
        let taken = self.queue.take_connection()?;
        self.ids = None;
        Ok(taken)
    }

    /// Replaces a connection whose key is worn.
    #[cold]
    fn renew(&mut self) -> Result<(), SubmitError> {
        if self.requests_in_flight() > 0 {
            return Err(SubmitError::QueueFull);
        }
        // If it cannot be replaced, it is lost.
        self.is_worn = false;
        // Another lane may use an identifier that was given back.
        let (Some(plan), Some(ids)) = (&self.plan, &self.ids) else {
            self.queue.close(LostReason::KeyWorn);
            return Err(SubmitError::NotConnected);
        };
        let spare = ids.take();
        if spare.is_none() {
            // No spare identifier: this connection must close first, so that its identifier can be reused.
            self.queue.close(LostReason::HungUp);
        }
        let qid = spare.unwrap_or(self.qid);
        match plan.connect_again(qid) {
            Ok(queue) => {
                log::debug!(
                    "queue {qid} replaces queue {}, whose TLS key has reached its usage limit",
                    self.qid
                );
                self.past_bytes.0 += self.queue.sent_bytes();
                self.past_bytes.1 += self.queue.received_bytes();
                self.queue = queue;
                let old = std::mem::replace(&mut self.qid, qid);
                if old != qid {
                    ids.give_back(old);
                }
                self.renewals += 1;
                Ok(())
            }
            Err(error) => {
                log::warn!(
                    "cannot replace queue {}, whose TLS key has reached its usage limit: {error}",
                    self.qid
                );
                if let Some(spare) = spare {
                    ids.give_back(spare);
                }
                self.queue.close(LostReason::Tls);
                Err(SubmitError::NotConnected)
            }
        }
    }

    /// Queues a request; it is sent by the next [`flush_doorbell`](Self::flush_doorbell) or [`wait`](Self::wait). The
    /// completion carries `tag`. A chain that the target has interrupted completes with an error
    /// ([`CommandError::is_interrupted`](crate::CommandError::is_interrupted)) and may be submitted again.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then.
    #[inline]
    pub fn submit(&mut self, tag: u64, request: Request<'_>) -> Result<(), SubmitError> {
        if let Some(on_paths) = &mut self.on_paths {
            return on_paths.submit(&mut self.queue, tag, &request);
        }
        if self.is_worn {
            self.renew()?;
        }
        self.queue.submit(tag, &request)
    }

    /// Whether the lane accepts no request until one has ended.
    pub(crate) fn is_full(&self) -> bool {
        self.requests_in_flight() >= usize::from(self.depth()) || self.empties()
    }

    /// Checks whether the lane could take such a request if it had room and were connected.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub(crate) fn check(&self, request: &Request<'_>) -> Result<(), SubmitError> {
        self.queue.requests().plan(request).map(|_| ())
    }

    /// Sends all queued requests in one system call. Bytes that the kernel does not accept now are sent by the next
    /// `poll` or `wait`.
    ///
    /// # Errors
    /// The connection is lost; `poll` or `wait` reports the requests in flight.
    pub fn flush_doorbell(&mut self) -> Result<(), Error> {
        self.is_worn = self.queue.is_worn();
        let rung = self.queue.ring();
        // With several paths, a lost connection is replaced by one on another path.
        if self.on_paths.is_some() { Ok(()) } else { rung }
    }

    /// Receives without waiting; calls `on_completion` for each request that ended and returns their number.
    ///
    /// # Errors
    /// The connection is lost; the requests in flight were reported to `on_completion`.
    pub fn poll(&mut self, on_completion: &mut dyn FnMut(Completion<'_>)) -> Result<usize, Error> {
        if let Some(on_paths) = &mut self.on_paths {
            return on_paths.poll(&mut self.queue, on_completion);
        }
        self.queue.poll(on_completion)
    }

    /// Sends all queued requests and waits until at least one request ended or `timeout` passed (then 0): spins first
    /// if that has paid off, then sleeps, unless [`Options::poll`](crate::Options::poll) forbids it.
    ///
    /// `timeout` does not cover reconnecting: over another path where there are several, or for fresh TLS keys when the
    /// old ones are worn, which [`submit`](Self::submit) does as well. Reconnecting takes a few round trips, but up to
    /// three times [`Options::connect_timeout`](crate::Options::connect_timeout) if a target does not answer; threads
    /// that share the lane wait for it, too.
    ///
    /// # Errors
    /// The connection is lost; the requests in flight were reported to `on_completion`.
    pub fn wait(
        &mut self,
        timeout: Duration,
        on_completion: &mut dyn FnMut(Completion<'_>),
    ) -> Result<usize, Error> {
        if let Some(on_paths) = &mut self.on_paths {
            return on_paths.wait(&mut self.queue, timeout, on_completion);
        }
        self.is_worn = self.queue.is_worn();
        self.queue.wait(timeout, on_completion)
    }

    /// Requests in flight, those not yet sent included.
    #[must_use]
    pub fn requests_in_flight(&self) -> usize {
        match &self.on_paths {
            Some(on_paths) => on_paths.in_flight(),
            None => self.queue.requests().in_flight(),
        }
    }

    /// Whether the next request needs another connection.
    #[cfg(test)]
    pub(crate) const fn is_worn(&self) -> bool {
        self.is_worn
    }

    /// Whether the lane accepts no request until those in flight have ended, because its worn connection is to be
    /// replaced.
    pub(crate) fn empties(&self) -> bool {
        self.is_worn && self.on_paths.is_none() && self.requests_in_flight() > 0
    }

    /// Most requests that may be in flight.
    #[must_use]
    pub const fn depth(&self) -> u16 {
        self.queue.requests().config().depth
    }

    /// Most data of one request, in bytes.
    #[must_use]
    pub const fn max_transfer_bytes(&self) -> u32 {
        self.queue.requests().config().max_transfer_bytes
    }

    /// Most in-capsule data of one request, in bytes. It limits the encoded request of a chain or a vector of chains.
    #[must_use]
    pub const fn in_capsule_bytes(&self) -> u32 {
        self.queue.requests().config().in_capsule_bytes
    }

    /// Queue identifier of the lane at the target.
    #[must_use]
    pub fn qid(&self) -> u16 {
        self.on_paths.as_ref().map_or(self.qid, |on_paths| on_paths.qid())
    }

    /// Whether the connection is open; with several portals, whether the controller still exists, which reconnects lost
    /// paths.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        match &self.on_paths {
            Some(on_paths) => !on_paths.has_ended(),
            None => self.queue.is_connected(),
        }
    }

    /// The same for a lane without requests in flight; receives first, which reveals that the target has ended the
    /// connection.
    pub(crate) fn check_connected(&mut self) -> bool {
        match &self.on_paths {
            Some(on_paths) => !on_paths.has_ended(),
            None => self.queue.check_connected(),
        }
    }

    /// Bytes sent so far, without TCP and IP headers: includes connections that the lane itself has replaced. With
    /// RDMA, only messages count: data moved by key does not.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.queue.sent_bytes() + self.past_bytes().0
    }

    /// Bytes received so far, without TCP and IP headers; counted as in [`bytes_sent`](Self::bytes_sent).
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.queue.received_bytes() + self.past_bytes().1
    }

    fn past_bytes(&self) -> (u64, u64) {
        self.on_paths.as_ref().map_or(self.past_bytes, |on_paths| on_paths.past_bytes())
    }

    /// How often the lane itself has replaced its connection.
    pub(crate) fn renewals(&self) -> u32 {
        self.on_paths.as_ref().map_or(self.renewals, |on_paths| on_paths.changes())
    }

    pub(crate) fn give_back_id(&mut self) {
        if let Some(ids) = self.ids.take() {
            ids.give_back(self.qid);
        }
    }

    /// Requests queued and not sent, and bytes to send.
    pub(crate) fn queued(&self) -> (usize, usize) {
        (self.queue.requests().unsent(), self.queue.queued_bytes())
    }

    /// Whether to wait for the socket to become writable, too.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.queue.is_urgent()
    }

    /// See [`Queue::until_check`].
    pub(crate) fn until_check(&self) -> Duration {
        let until = self.queue.until_check();
        let nap = self.on_paths.as_ref().and_then(|on_paths| on_paths.nap(&self.queue));
        nap.map_or(until, |nap| nap.min(until))
    }

    /// With several portals: whether requests wait for another connection.
    pub(crate) fn is_between_paths(&self) -> bool {
        self.on_paths.as_ref().is_some_and(|on_paths| on_paths.is_between(&self.queue))
    }

    /// Whether there is a connection to wait for. A lane without one waits for another path.
    pub(crate) const fn has_socket(&self) -> bool {
        self.queue.is_connected()
    }

    /// With several portals: sets how long requests wait while no path is usable.
    pub(crate) fn set_path_patience(&mut self, patience: Duration) {
        if let Some(on_paths) = &mut self.on_paths {
            on_paths.set_patience(patience);
        }
    }

    /// See [`Queue::descriptor`].
    pub(crate) fn socket(&self) -> Result<OwnedFd, Error> {
        self.queue.descriptor()
    }

    /// See [`Queue::set_crowded`].
    pub(crate) const fn set_crowded(&mut self, is_crowded: bool) {
        self.queue.set_crowded(is_crowded);
    }

    /// See [`Queue::waiting`].
    pub(crate) const fn waiting(&self) -> (Duration, bool) {
        self.queue.waiting()
    }

    pub(crate) fn require_idle(&self) -> Result<(), Error> {
        match self.requests_in_flight() {
            0 => Ok(()),
            busy => Err(Error::LaneBusy(busy)),
        }
    }

    /// Reads `data.len()` bytes from `offset_bytes` on, with several requests at a time if one is too small.
    ///
    /// # Errors
    /// The first error of any of the requests; the contents of `data` are then unspecified. The lane must be idle.
    pub fn read(&mut self, nsid: u32, offset_bytes: u64, data: &mut [u8]) -> Result<(), Error> {
        self.require_idle()?;
        let length = data.len();
        check_end(offset_bytes, length)?;
        let chunk = self.chunk_bytes();
        let request = |at: usize| Request::Read {
            nsid,
            offset_bytes: offset_bytes + at as u64,
            length_bytes: chunk.min(length - at) as u32,
        };
        let mut take = |at: usize, bytes: &[u8]| {
            if let Some(place) = data.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        self.pipeline("Read", length, chunk, &request, &mut take)
    }

    /// Writes `data` at `offset_bytes`, with several requests at a time if one is too small. The data is stable after
    /// the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The first error of any of the requests; it is then unknown which parts of the range were written. The lane must
    /// be idle.
    pub fn write(&mut self, nsid: u32, offset_bytes: u64, data: &[u8]) -> Result<(), Error> {
        self.require_idle()?;
        check_end(offset_bytes, data.len())?;
        let chunk = self.chunk_bytes();
        let request = |at: usize| Request::Write {
            nsid,
            offset_bytes: offset_bytes + at as u64,
            data: data.get(at..data.len().min(at + chunk)).unwrap_or(&[]),
            fua: false,
        };
        self.pipeline("Write", data.len(), chunk, &request, &mut |_, _| {})
    }

    /// Brings all completed writes to stable storage.
    ///
    /// # Errors
    /// As the target answered. The lane must be idle.
    pub fn flush(&mut self, nsid: u32) -> Result<(), Error> {
        self.require_idle()?;
        self.pipeline("Flush", 1, 1, &|_| Request::Flush { nsid }, &mut |_, _| {})
    }

    /// Runs one chain and puts its answer into `answer`, whose contents it replaces.
    ///
    /// A chain that the target interrupts ([`CommandError::is_interrupted`](crate::CommandError::is_interrupted)) is
    /// sent again up to 8 times, after pauses of a quarter of a second in all. A chain changes nothing but function
    /// maps. Changes made before the interruption stay, and the repeated chain makes them again.
    ///
    /// # Errors
    /// As the target answered. The lane must be idle.
    pub fn pushdown(
        &mut self,
        call: &PushdownCall<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<ChainInfo, Error> {
        self.require_idle()?;
        interrupted::retry(|| self.run_chain(call, answer))
    }

    /// Sends one chain and waits for its end.
    fn run_chain(
        &mut self,
        call: &PushdownCall<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<ChainInfo, Error> {
        self.submit(0, Request::Pushdown(*call))?;
        answer.clear();
        let mut end = None;
        while end.is_none() {
            let waited = self.wait(WAIT, &mut |completion| {
                end = Some(completion.result.map(|done| {
                    answer.extend_from_slice(done.data);
                    ChainInfo { hops: done.dw0 }
                }));
            });
            // The target may have answered and closed the connection.
            if matches!(end, None | Some(Err(RequestError::Lost(_)))) {
                waited?;
            }
        }
        match end {
            Some(Ok(info)) => Ok(info),
            Some(Err(error)) => Err(error.of("Pushdown")),
            None => Err(Error::BadAnswer("a chain without an end")),
        }
    }

    /// Bytes of one request of a long transfer.
    fn chunk_bytes(&self) -> usize {
        (self.max_transfer_bytes() as usize).clamp(1, CHUNK_MAX_BYTES)
    }

    /// Covers `length` bytes by requests of up to `chunk`, as many at a time as the queue holds; calls `take` with the
    /// offset and the data of each completed request.
    fn pipeline<'a>(
        &mut self,
        name: &'static str,
        length: usize,
        chunk: usize,
        request: &dyn Fn(usize) -> Request<'a>,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        let (mut at, mut first_error) = (0, None::<RequestError>);
        loop {
            while at < length && first_error.is_none() {
                match self.submit(at as u64, request(at)) {
                    Ok(()) => at += chunk,
                    Err(SubmitError::QueueFull) => break,
                    Err(error) => {
                        self.drain(&mut first_error, take)?;
                        return Err(error.into());
                    }
                }
            }
            if self.requests_in_flight() == 0 {
                break;
            }
            let waited = self.wait(WAIT, &mut |completion| match completion.result {
                Ok(done) => take(completion.tag as usize, done.data),
                Err(error) => first_error = Some(first_error.unwrap_or(error)),
            });
            // The target may have answered all and closed the connection.
            if at < length || first_error.is_some() {
                waited?;
            }
        }
        first_error.map_or(Ok(()), |error| Err(error.of(name)))
    }

    /// Waits for all requests in flight.
    fn drain(
        &mut self,
        first_error: &mut Option<RequestError>,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        while self.requests_in_flight() != 0 {
            self.wait(WAIT, &mut |completion| match completion.result {
                Ok(done) => take(completion.tag as usize, done.data),
                Err(error) => *first_error = Some(error),
            })?;
        }
        Ok(())
    }
}

/// Refuses a range that is too long for its offset: the offsets of its later requests would wrap to the start of the
/// namespace.
fn check_end(offset_bytes: u64, length: usize) -> Result<(), SubmitError> {
    let end = offset_bytes.checked_add(length as u64);
    end.map(|_| ()).ok_or(SubmitError::RangeOverflow)
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.queue.close(LostReason::HungUp);
        if let Some(on_paths) = &mut self.on_paths {
            on_paths.leave();
        }
        self.give_back_id();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::LaneShare;
    use crate::{Caravan, Controller, Options, SharedLane};
    use bpfof_auth::{ConfiguredPsk, PskHash};
    use bpfof_controller::{
        HostKeys, HostRule, NamespaceConfig, NamespaceSource, Rights, Server, TargetConfig, TlsMode,
    };
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    const BLOCKS: u64 = 64;

    fn block(number: u64) -> [u8; 512] {
        [number as u8; 512]
    }

    /// A target that requires TLS, and an association of a host that has the key.
    fn association() -> (Server, Controller) {
        association_after(0)
    }

    /// The same with a target that takes `latency_us` for each command.
    fn association_after(latency_us: u64) -> (Server, Controller) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let key = ConfiguredPsk::generate(PskHash::Sha256).expect("random numbers");
        fs::write(&path, key.to_text().expose()).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        let options = Options::default();
        let rule = HostRule {
            nqn: options.host_nqn.clone(),
            subsystems: None,
            namespaces: None,
            rights: Rights::USUAL,
            keys: HostKeys { tls_psk: vec![path.clone()], ..HostKeys::default() },
        };
        let source = NamespaceSource::Memory { size_bytes: BLOCKS * 512, latency_us, iops: 0 };
        let server = Server::start(&TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            namespaces: vec![NamespaceConfig::new(source, 512)],
            rules: vec![rule],
            tls: TlsMode::Required,
            ..TargetConfig::default()
        })
        .expect("the target starts");
        let nqn = TargetConfig::default().nqn;
        let url = format!("nvme-tcp://{}/{nqn}?tls-psk={}", server.address(), path.display());
        let controller = Controller::connect(&url.parse().expect("an address"), options);
        let controller = controller.expect("it connects");
        let mut lane = controller.open_lane().expect("a lane");
        for number in 0..BLOCKS {
            lane.write(1, number * 512, &block(number)).expect("written");
        }
        (server, controller)
    }

    /// In this crate's tests, keys wear out after a few records.
    #[test]
    fn connections_are_replaced_before_their_keys_wear_out() {
        let (_server, controller) = association();
        let mut lane = controller.open_lane().expect("a lane");
        let mut data = [0; 512];
        let mut bytes = (0, 0);
        for number in 0..4 * crate::queue::KEY_LASTS_RECORDS {
            lane.read(1, number % BLOCKS * 512, &mut data).expect("read");
            assert_eq!(data, block(number % BLOCKS));
            let before = std::mem::replace(&mut bytes, (lane.bytes_sent(), lane.bytes_received()));
            assert!(bytes.0 > before.0 && bytes.1 >= before.1 + 512, "{before:?}, then {bytes:?}");
        }
        assert!((3..=5).contains(&lane.renewals()), "{}", lane.renewals());
        // With requests in flight.
        let before = lane.renewals();
        let (mut submitted, mut ended) = (0, 0);
        while ended < 4 * crate::queue::KEY_LASTS_RECORDS {
            let number = submitted % BLOCKS;
            let read = Request::Read { nsid: 1, offset_bytes: number * 512, length_bytes: 512 };
            match lane.submit(number, read) {
                Ok(()) => {
                    submitted += 1;
                    lane.flush_doorbell().expect("sent");
                    continue;
                }
                Err(SubmitError::QueueFull) => {}
                Err(error) => panic!("{error}"),
            }
            lane.wait(WAIT, &mut |completion| {
                let done = completion.result.expect("read");
                assert_eq!(done.data, block(completion.tag));
                ended += 1;
            })
            .expect("connected");
        }
        assert!(lane.renewals() > before);
    }

    #[test]
    fn shared_connections_are_replaced_as_well() {
        let (_server, controller) = association();
        let lane = controller.open_lane().expect("a lane");
        let lane = SharedLane::new(lane, Caravan::default()).expect("shared");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lane = &lane;
                scope.spawn(move || {
                    let mut data = Vec::new();
                    for turn in 0..crate::queue::KEY_LASTS_RECORDS {
                        let number = (turn + thread * 7) % BLOCKS;
                        lane.read(1, number * 512, 512, &mut data).expect("read");
                        assert_eq!(data, block(number));
                    }
                });
            }
        });
        assert!(lane.renewals() > 0);
    }

    #[test]
    fn a_shared_lane_that_cannot_be_replaced_is_lost() {
        let (server, controller) = association();
        let lane = controller.open_lane().expect("a lane");
        let lane = Arc::new(SharedLane::new(lane, Caravan::default()).expect("shared"));
        let mut share = LaneShare::new(Arc::clone(&lane));
        let mut data = Vec::new();
        for _ in 0..=crate::queue::KEY_LASTS_RECORDS {
            lane.read(1, 0, 512, &mut data).expect("read");
            if lane.is_worn() {
                break;
            }
        }
        assert!(lane.is_worn() && lane.is_connected());
        drop(server);
        let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
        assert_eq!(share.submit(1, &read), Err(SubmitError::NotConnected));
        assert!(!lane.is_connected() && !share.is_connected() && !lane.look());
    }

    /// A lane whose key is worn.
    fn worn(controller: &Controller) -> Lane {
        let mut lane = controller.open_lane().expect("a lane");
        while !lane.is_worn() {
            lane.read(1, 0, &mut [0; 512]).expect("read");
        }
        lane
    }

    #[test]
    fn a_worn_lane_that_is_lost_stays_lost_until_it_is_reconnected() {
        let (server, controller) = association();
        let (other_server, other) = association();
        drop(other_server);
        let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
        let mut lane = worn(&controller);
        lane.queue.close(LostReason::HungUp);
        // The lane has given its identifier back, and must not use it any more.
        lane.reconnect(&other).expect_err("that target has ended");
        assert_eq!(lane.submit(1, read), Err(SubmitError::NotConnected));
        assert!(!lane.is_connected() && !lane.is_worn());
        lane.reconnect(&controller).expect("it is connected");
        lane.read(1, 0, &mut [0; 512]).expect("read");
        let mut lane = worn(&controller);
        drop(server);
        assert_eq!(lane.submit(1, read), Err(SubmitError::NotConnected));
        assert!(!lane.is_connected() && !lane.is_worn());
    }

    #[test]
    fn a_thread_waits_for_requests_of_others_on_a_worn_lane() {
        // So that requests are in flight when the key is worn.
        let (_server, controller) = association_after(500);
        let lane = controller.open_lane().expect("a lane");
        let lane = Arc::new(SharedLane::new(lane, Caravan::default()).expect("shared"));
        let [mut first, mut second] = [(); 2].map(|()| LaneShare::new(Arc::clone(&lane)));
        let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
        let mut refusals = 0;
        for _ in 0..3 * crate::queue::KEY_LASTS_RECORDS {
            first.submit(1, &read).expect("room");
            first.wait(Duration::ZERO, &mut |_| {}).expect("connected");
            let mut tries = 0;
            while let Err(error) = second.submit(2, &read) {
                assert_eq!(error, SubmitError::QueueFull);
                assert_eq!(second.wait(WAIT, &mut |_| {}).expect("connected"), 0);
                (tries, refusals) = (tries + 1, refusals + 1);
                assert!(tries <= 2, "it has not waited for the others");
            }
            for share in [&mut first, &mut second] {
                while share.requests_in_flight() > 0 {
                    share.wait(WAIT, &mut |_| {}).expect("connected");
                }
            }
        }
        assert!(refusals > 0 && lane.renewals() > 0, "{refusals} refusals");
    }
}
