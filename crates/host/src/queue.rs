//! One queue pair and its connection: when it sends, receives, waits and gives up.

use crate::authentication;
use crate::requests::{InitiatorConfig, OnCompletion, Requests};
use crate::transport::tcp::Takeover;
use crate::transport::{Port, QueueName};
use crate::{
    Completion, Error, LostReason, Options, Request, RequestError, SubmitError, TargetUrl,
};
use bpfof_nvme::fabrics::{ConnectData, FabricsCommand};
use bpfof_nvme::{AdminCommand, Cqe, Sqe, Status};
use bpfof_tls::KEY_RECORDS_MAX;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Slots are checked for timeouts this many times per command timeout. A timeout is detected late by at most this part
/// of it, and costs nothing per request.
const EXPIRY_CHECKS: u64 = 8;
/// Records that a connection's key seals before the connection is replaced. The remaining ones are reserved for the
/// requests in flight.
pub(crate) const KEY_LASTS_RECORDS: u64 =
    if cfg!(test) { 1000 } else { KEY_RECORDS_MAX - (1 << 16) };
/// Tags of the command that a call waits for, and of Keep Alives and Asynchronous Event Requests, for which no call
/// waits.
const CALL_TAG: u64 = 0;
const KEEP_ALIVE_TAG: u64 = 1;
const EVENT_TAG: u64 = 2;
/// Longest sleep of a call before it checks the queue again. The command timeout ends the call.
const CALL_WAIT: Duration = Duration::from_secs(1);
/// The same for a call with a [`Meanwhile`].
const MEANWHILE_WAIT: Duration = Duration::from_millis(10);
/// With this many unanswered commands no further Keep Alive is sent: a target that does not answer these would not
/// answer it either, and calls need slots.
const UNANSWERED_MAX: usize = 4;
/// Most receives per check whether the connection is open; the rest is received later.
const LOOKS_MAX: u32 = 64;

/// A queue pair and its connection.
#[derive(Debug)]
pub(crate) struct Queue {
    port: Port,
    clock: Instant,
    next_check_us: u64,
    /// The last check of timeouts was skipped because the thread had been away.
    is_late: bool,
    timeout_us: u64,
    spin: Duration,
    /// Whether other threads may need the processor that spinning would use.
    is_crowded: bool,
    never_sleep: bool,
    /// Whether the last wait was short enough for spinning.
    spin_pays: bool,
    sent_bytes: u64,
    received_bytes: u64,
    /// Why nothing more can be sent. The connection stays open until all data that the target sent before has been
    /// received: it may contain the reason.
    send_error: Option<LostReason>,
    /// Only for an admin queue whose target has a keep-alive timer.
    heartbeat: Option<Heartbeat>,
    /// The outcome of an Asynchronous Event Request that [`poll_event`](Queue::poll_event) has not returned yet.
    event: Option<Event>,
}

/// The outcome of an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The target reports an event.
    Came,
    /// The target does not support such requests.
    Refused,
}

impl Event {
    /// The outcome, if the completion is that of an Asynchronous Event Request.
    fn of(completion: &Completion<'_>) -> Option<Self> {
        (completion.tag == EVENT_TAG).then_some(match completion.result {
            Ok(_) => Self::Came,
            Err(_) => Self::Refused,
        })
    }
}

/// When Keep Alives are sent.
#[derive(Clone, Copy, Debug)]
struct Heartbeat {
    interval: Duration,
    next: Instant,
    /// How long the target may be silent after a Keep Alive, if that is less than the command timeout.
    patience: Option<Duration>,
    /// When the first Keep Alive was sent after which nothing has been received, and the bytes received until then.
    unanswered: Option<(Instant, u64)>,
}

/// How a queue is connected.
pub(crate) struct QueueConnect<'a> {
    pub(crate) url: &'a TargetUrl,
    pub(crate) options: &'a Options,
    pub(crate) initiator: InitiatorConfig,
    pub(crate) qid: u16,
    pub(crate) cattr: u8,
    pub(crate) cntlid: u16,
    /// Where the admin queue is connected; `None` for the admin queue itself.
    pub(crate) peer: Option<SocketAddr>,
    /// Keep-alive timeout to ask for, in ms; 0 is none. For the admin queue only.
    pub(crate) kato_ms: u32,
    /// Called with the connection before anything is sent on it. An error closes the connection.
    pub(crate) on_open: &'a OnOpen<'a>,
}

/// A function that is called repeatedly while a call waits for its command.
pub(crate) type Meanwhile<'a> = Option<&'a mut dyn FnMut()>;

/// A function that is called with a new connection.
pub(crate) type OnOpen<'a> = dyn Fn(&Queue) -> Result<(), Error> + 'a;

/// Converts an error that occurred before ICResp.
fn not_greeted(error: Error, url: &TargetUrl, options: &Options) -> Error {
    let Error::Lost(reason @ (LostReason::Closed | LostReason::Io(_))) = error else {
        return error;
    };
    let hint = match options.credentials.tls_psk {
        Some(_) => "",
        None => {
            "; if it requires TLS, add tls-psk=FILE to the address, or to this target's entry in \
             hosts.toml"
        }
    };
    let address = url.portals().next().map_or_else(String::new, |portal| portal.to_string());
    Error::NoGreeting { address, reason, hint }
}

impl Queue {
    /// Connects, exchanges ICReq and ICResp, sends Connect and authenticates, all within the connect timeout.
    /// Returns the controller identifier too.
    pub(crate) fn connect(connect: QueueConnect<'_>) -> Result<(Self, u16), Error> {
        let QueueConnect { url, options, initiator, qid, cattr, cntlid, peer, kato_ms, on_open } =
            connect;
        let started = Instant::now();
        let port = Port::connect(url, options, initiator, QueueName { qid, cntlid, peer })?;
        let mut queue = Self::over(port, options, options.connect_timeout);
        queue.clock = started;
        on_open(&queue)?;
        while !queue.requests().is_ready() {
            queue
                .wait(Duration::from_millis(10), &mut |_| {})
                .map_err(|error| not_greeted(error, url, options))?;
            let waited = started.elapsed();
            if waited > options.connect_timeout {
                let waited_ms = micros(waited) / 1000;
                return Err(Error::NotReady { step: "ICResp", waited_ms });
            }
        }
        let sqsize = queue.requests().config().depth;
        let command = FabricsCommand::Connect { recfmt: 0, qid, sqsize, cattr, kato_ms };
        let data = ConnectData {
            hostid: options.host_id,
            cntlid,
            subnqn: url.nqn.clone(),
            hostnqn: options.host_nqn.clone(),
        };
        let left_us = || micros(options.connect_timeout.saturating_sub(started.elapsed()));
        queue.timeout_us = left_us();
        let (answer, _) = queue.call("Connect", command.to_sqe(), &data.to_bytes(), 0)?;
        let mut call = |name, sqe, out: &[u8], max_bytes| {
            queue.timeout_us = left_us();
            queue.call(name, sqe, out, max_bytes).map(|(_, data)| data)
        };
        authentication::authenticate(&mut call, options, &url.nqn, answer.dw0)?;
        queue.timeout_us = micros(options.command_timeout);
        log::debug!("{url}: queue {qid} connected with room for {sqsize} requests");
        Ok((queue, answer.dw0 as u16))
    }

    /// A queue over an open connection.
    pub(crate) fn over(port: Port, options: &Options, timeout: Duration) -> Self {
        Self {
            port,
            clock: Instant::now(),
            next_check_us: 0,
            is_late: false,
            timeout_us: micros(timeout),
            spin: Duration::from_micros(u64::from(options.spin_us)),
            is_crowded: false,
            never_sleep: options.poll,
            spin_pays: true,
            sent_bytes: 0,
            received_bytes: 0,
            send_error: None,
            heartbeat: None,
            event: None,
        }
    }

    /// Takes the connection out, with the state that another process needs to take it over.
    ///
    /// # Errors
    /// [`Error::HandOver`] if requests or data are in flight, [`Error::Lost`].
    pub(crate) fn take_connection(&mut self) -> Result<(OwnedFd, Takeover), Error> {
        self.port.take_connection()
    }

    /// The address that it is connected to; `None` within this process.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.port.peer()
    }

    pub(crate) const fn requests(&self) -> &Requests {
        self.port.requests()
    }

    /// Bytes to send.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.port.queued_bytes()
    }

    /// Whether there is data to send now.
    pub(crate) fn is_urgent(&self) -> bool {
        self.port.is_urgent()
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.port.is_connected()
    }

    /// Whether the connection has unread data, or its end, to report.
    pub(crate) fn has_completions(&self) -> bool {
        self.port.wait_ready(false, Duration::ZERO) != Ok(false)
    }

    /// Checks whether the target has ended the connection; returns whether it is still open. For a queue without
    /// requests whose completions someone waits for.
    pub(crate) fn check_connected(&mut self) -> bool {
        // The answer to a Keep Alive, or the last record of TLS, may have come before the end.
        for _ in 0..LOOKS_MAX {
            if !self.is_connected() || !self.has_completions() {
                break;
            }
            // The next user of the queue gets the error itself.
            let _ = self.poll(&mut |_| {});
        }
        self.is_connected()
    }

    /// Whether a key of the connection is worn: it has sealed [`KEY_LASTS_RECORDS`].
    #[inline]
    pub(crate) fn is_worn(&self) -> bool {
        self.port.records_left().is_some_and(|left| left <= KEY_RECORDS_MAX - KEY_LASTS_RECORDS)
    }

    pub(crate) const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    pub(crate) const fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    #[inline]
    pub(crate) fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        self.port.submit(tag, request)
    }

    /// Sends the queued data, as far as the kernel accepts it now; the next poll sends the rest.
    pub(crate) fn ring(&mut self) -> Result<(), Error> {
        let now_us = self.now_us();
        self.port.ring();
        self.send(now_us);
        match self.requests().failure().or(self.send_error) {
            Some(reason) => Err(reason.into()),
            None => Ok(()),
        }
    }

    /// Receives once, reports the requests that ended, and returns their number.
    pub(crate) fn poll(&mut self, on_completion: &mut OnCompletion<'_>) -> Result<usize, Error> {
        let before = self.requests().completed();
        if let Err(reason) = self.exchange(on_completion) {
            return Err(self.lose(reason, on_completion));
        }
        Ok((self.requests().completed() - before) as usize)
    }

    /// Ends the connection, and each request in flight with it.
    #[cold]
    fn lose(&mut self, reason: LostReason, on_completion: &mut OnCompletion<'_>) -> Error {
        self.close(reason);
        let reason = self.requests().failure().unwrap_or(reason);
        self.port.lost(on_completion);
        reason.into()
    }

    /// Rings, then waits until a request ended, at most `timeout`.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, Error> {
        // A failure is reported by `poll`, together with the requests that it ended.
        let _ = self.ring();
        let started = Instant::now();
        let mut slept = false;
        loop {
            let ready = self.requests().is_ready();
            let ended = self.poll(on_completion)?;
            let waited = started.elapsed();
            if ended != 0 || ready != self.requests().is_ready() {
                // Spinning would have been better than a sleep that was hardly longer than a spin.
                self.spin_pays = waited <= self.spin * (1 + u32::from(slept));
                return Ok(ended);
            }
            if waited >= timeout {
                return Ok(0);
            }
            let spin = match (self.never_sleep, self.spin_pays) {
                (true, _) => timeout,
                (_, true) if !self.is_crowded => self.spin.min(timeout),
                _ => Duration::ZERO,
            };
            let waited = self.spin_until(started, spin).and_then(|has_come| {
                if has_come || self.never_sleep {
                    return Ok(());
                }
                slept = true;
                self.sleep(timeout.saturating_sub(started.elapsed()))
            });
            if let Err(reason) = waited {
                return Err(self.lose(reason, on_completion));
            }
        }
    }

    /// Polls the socket until it is ready or timeouts must be checked, and returns true; or returns false once `length`
    /// has passed since `started`. A poll does not take the socket's lock, which the kernel holds while it delivers
    /// data; a receive would contend for it.
    fn spin_until(&self, started: Instant, length: Duration) -> Result<bool, LostReason> {
        while started.elapsed() < length {
            if self.port.wait_ready(self.port.is_urgent(), Duration::ZERO)? {
                return Ok(true);
            }
            if self.now_us() >= self.next_check_us {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// Time until timeouts must be checked.
    pub(crate) fn until_check(&self) -> Duration {
        Duration::from_micros(self.next_check_us.saturating_sub(self.now_us()).max(1000))
    }

    /// A descriptor of the socket, to wait for it elsewhere.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Error> {
        self.port.descriptor()
    }

    /// Sets whether other threads may need the processor: then waits sleep at once; otherwise they spin first if that
    /// pays off.
    pub(crate) const fn set_crowded(&mut self, is_crowded: bool) {
        self.is_crowded = is_crowded;
    }

    /// How long to spin where that pays off, and whether waits never sleep.
    pub(crate) const fn waiting(&self) -> (Duration, bool) {
        (self.spin, self.never_sleep)
    }

    /// Sleeps until the socket is ready, at most until timeouts must be checked.
    fn sleep(&self, at_most: Duration) -> Result<(), LostReason> {
        let at_most = at_most.min(self.until_check());
        self.port.wait_ready(self.port.is_urgent(), at_most).map(drop)
    }

    /// One receive, one send if one is due, and the timeouts.
    fn exchange(&mut self, on_completion: &mut OnCompletion<'_>) -> Result<(), LostReason> {
        let now_us = self.now_us();
        let received = self.port.receive(on_completion)?;
        self.received_bytes += received as u64;
        if self.port.is_urgent() {
            self.send(now_us);
        }
        if let Some(reason) = self.send_error.filter(|_| received == 0) {
            return Err(reason);
        }
        if now_us >= self.next_check_us {
            let interval_us = self.timeout_us / EXPIRY_CHECKS;
            // If the thread was away for long, answers may lie in the socket, or at the target waiting for room in it.
            // They are received now, and are not late: skip this check.
            let was_away = now_us - self.next_check_us > interval_us;
            self.is_late = was_away && !self.is_late;
            self.next_check_us = now_us + interval_us;
            if self.is_late {
                return Ok(());
            }
            if let Some(reason) = self.requests().expired(now_us, self.timeout_us) {
                return Err(reason);
            }
        } else if received > 0 {
            self.is_late = false;
        }
        Ok(())
    }

    /// Sends the queued data, as far as the kernel accepts it.
    fn send(&mut self, now_us: u64) {
        if self.send_error.is_none() {
            match self.port.send(now_us) {
                Ok(sent) => self.sent_bytes += sent as u64,
                Err(reason) => self.send_error = Some(reason),
            }
        }
    }

    /// Closes the connection. A report to the target is sent only if that works without waiting.
    pub(crate) fn close(&mut self, reason: LostReason) {
        self.port.close(reason);
    }

    fn now_us(&self) -> u64 {
        micros(self.clock.elapsed())
    }

    /// From now on [`beat`](Self::beat) sends a Keep Alive every `interval`. A target that sends nothing at all for
    /// `patience` after one is lost.
    pub(crate) fn keep_alive(&mut self, interval: Duration, patience: Option<Duration>) {
        let next = Instant::now() + interval;
        self.heartbeat = Some(Heartbeat { interval, next, patience, unanswered: None });
    }

    /// Queues a Keep Alive if one is due. Returns the time until the next one, or until the target must have answered;
    /// `None` if the target wants none. If the target has not answered in time, closes the connection, which the next
    /// poll reports.
    pub(crate) fn beat(&mut self) -> Option<Duration> {
        let received_bytes = self.received_bytes;
        let Heartbeat { interval, next, patience, unanswered } = self.heartbeat.as_mut()?;
        let now = Instant::now();
        // Any received data shows that the target is alive.
        unanswered.take_if(|(_, before)| *before != received_bytes);
        let mut left = next.saturating_duration_since(now);
        let is_due = left.is_zero();
        if is_due {
            (*next, left) = (now + *interval, *interval);
            *unanswered = unanswered.or(Some((now, received_bytes)));
        }
        let mut silent = None;
        if let (Some((since, _)), Some(patience)) = (*unanswered, *patience) {
            let waited = now.saturating_duration_since(since);
            left = left.min(patience.saturating_sub(waited));
            silent = (waited >= patience).then_some(waited);
        }
        if let Some(waited) = silent {
            let waited_ms = micros(waited) / 1000;
            self.close(LostReason::Timeout { command: "Keep Alive", waited_ms });
        } else if is_due && self.requests().in_flight() < UNANSWERED_MAX {
            // It fails only if the connection is lost, which the next poll reports.
            let _ = self.submit(KEEP_ALIVE_TAG, &raw(AdminCommand::keep_alive()));
        }
        Some(left)
    }

    /// Sends an Asynchronous Event Request, which the target answers when it has an event to report.
    pub(crate) fn ask_for_event(&mut self) -> Result<(), SubmitError> {
        self.submit(EVENT_TAG, &raw(AdminCommand::async_event_request()))
    }

    /// Receives once, outside of a call. Returns the outcome of [`ask_for_event`](Self::ask_for_event), if it has
    /// arrived since the last poll.
    pub(crate) fn poll_event(&mut self) -> Result<Option<Event>, Error> {
        let mut event = None;
        self.poll(&mut |completion| event = event.or(Event::of(&completion)))?;
        Ok(self.event.take().or(event))
    }

    /// Sends one command and waits for its end. Sends Keep Alives that become due meanwhile. No requests but Keep
    /// Alives and Asynchronous Event Requests may be in flight.
    pub(crate) fn call(
        &mut self,
        name: &'static str,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.call_while(name, (sqe, data_out, data_in_max_bytes), None)
    }

    /// The same; `meanwhile` is called every few ms until the command has ended.
    pub(crate) fn call_while(
        &mut self,
        name: &'static str,
        (sqe, data_out, data_in_max_bytes): (Sqe, &[u8], u32),
        mut meanwhile: Meanwhile<'_>,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.submit(CALL_TAG, &Request::Raw { sqe, data_out, data_in_max_bytes })?;
        let longest = if meanwhile.is_some() { MEANWHILE_WAIT } else { CALL_WAIT };
        loop {
            // What has come shows that the target is alive, even if this thread has not run for long.
            if let Some(answer) = self.answer_within(Duration::ZERO)? {
                return answer.map_err(|error| error.of(name));
            }
            let at_most = self.beat().map_or(longest, |left| left.min(longest));
            if let Some(answer) = self.answer_within(at_most)? {
                return answer.map_err(|error| error.of(name));
            }
            if let Some(meanwhile) = &mut meanwhile {
                meanwhile();
            }
        }
    }

    /// Waits for the end of a call, or of another request, at most `timeout`.
    fn answer_within(&mut self, timeout: Duration) -> Result<Option<CallEnd>, Error> {
        let (mut answer, mut event) = (None, None);
        let waited = self.wait(timeout, &mut |completion| {
            // The status of a Keep Alive does not matter: any answer shows that the target is alive.
            if completion.tag != CALL_TAG {
                event = event.or(Event::of(&completion));
                return;
            }
            answer = Some(completion.result.map(|done| {
                let (dw0, dw1, status) = (done.dw0, done.dw1, Status::SUCCESS);
                (Cqe { dw0, dw1, status, ..Cqe::default() }, done.data.to_vec())
            }));
        });
        self.event = self.event.or(event);
        // The target may have answered and closed the connection.
        if answer.is_none() {
            waited?;
        }
        Ok(answer)
    }
}

/// How a call ended.
type CallEnd = Result<(Cqe, Vec<u8>), RequestError>;

/// A command without data.
const fn raw(sqe: Sqe) -> Request<'static> {
    Request::Raw { sqe, data_out: &[], data_in_max_bytes: 0 }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
