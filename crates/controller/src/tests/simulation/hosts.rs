//! The hosts: the library's real queues, and the application around them.

use super::Checked;
use super::chains::FileMaps;
use super::machine::NQN;
use super::network::{Link, MICROSECOND, MILLISECOND, SECOND, Time};
use super::random::Random;
use super::requests::{Pending, What};
use super::world::{Event, Phase, World};
use crate::limits::MAX_TRANSFER_BYTES;
use bpfof_host::{Initiator, InitiatorConfig, LostReason, NamespaceInfo, Request, RequestError};
use bpfof_nvme::fabrics::{
    CATTR_DISABLE_SQ_FLOW_CONTROL, CNTLID_DYNAMIC, ConnectData, ControllerConfig, Csts,
    FabricsCommand, Shutdown, offset,
};
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::{AdminCommand, Sqe, features};
use std::sync::Arc;

/// Time after which a host gives up a command and its connection. Nothing takes this long unless the link has trouble.
const TIMEOUT: Time = 8 * SECOND;
/// I/O queues of an association: more than lanes, because the target may be late to notice that one is gone.
const QUEUES: u16 = 12;
/// Maximum unsent bytes on one link: more than all of its requests together.
const OUTGOING_MAX_BYTES: usize = 1 << 20;

/// The behaviour of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Sends all kinds of requests.
    Any,
    /// Sends one small request at a time, and must not wait for others.
    Modest,
    /// Runs as many expensive chains as it can.
    Greedy,
}

/// An application with its association.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) manner: Manner,
    /// The last byte of its address.
    address: u8,
    nqn: String,
    id: [u8; 16],
    pub(super) kato_ms: u32,
    digests: Digests,
    depth: u16,
    in_capsule_bytes: u32,
    lane_count: usize,
    /// Mean time between requests.
    think: Time,
    /// Sends no Keep Alive while it gets answers, like Linux.
    trusts_traffic: bool,
    pub(super) last_answer: Time,
    pub(super) admin: Option<usize>,
    pub(super) lanes: Vec<usize>,
    cntlid: u16,
    /// Queue identifiers, least recently used first.
    ids: Vec<u16>,
    pub(super) requests_left: u32,
    pub(super) sleeps_until: Time,
    pub(super) maps: FileMaps,
    /// Whether a function is being loaded.
    pub(super) loads: bool,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Opening,
    /// In Connect, or in the commands that enable a controller.
    Starting,
    Ready,
    /// The controller is being reset: no other commands.
    Resetting,
    /// The host has requested the end.
    Leaving,
}

/// The host's end of a connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) host: usize,
    /// 0 for the admin queue.
    qid: u16,
    pub(super) initiator: Initiator,
    inbox: Vec<u8>,
    pub(super) stage: Stage,
    /// When it was opened, or when the host left it to the target to close it.
    since: Time,
    /// Whether the host closes it after processing what it has received.
    hangs_up: bool,
}

type Answers = Vec<(u64, Result<(Vec<u8>, u32, u32), RequestError>)>;

impl Host {
    pub(super) fn new(index: usize, random: &mut Random) -> Host {
        Host {
            manner: Manner::Any,
            address: index as u8 + 1,
            nqn: format!("nqn.2026-01.io.bpf-of:host-{index}"),
            id: [index as u8 + 1; 16],
            kato_ms: random.pick(&[0, 3_000, 8_000]),
            digests: Digests { header: random.one_in(2), data: random.one_in(2) },
            depth: random.within(1, 8) as u16,
            in_capsule_bytes: random.pick(&[512, 8192]),
            lane_count: random.within(1, 2) as usize,
            think: random.pick(&[
                2 * MICROSECOND,
                40 * MICROSECOND,
                MILLISECOND,
                250 * MILLISECOND,
            ]),
            trusts_traffic: random.one_in(2),
            last_answer: 0,
            admin: None,
            lanes: Vec::new(),
            cntlid: 0,
            ids: Vec::new(),
            requests_left: random.within(5, 30) as u32,
            sleeps_until: 0,
            maps: FileMaps::default(),
            loads: false,
        }
    }

    /// A host of an overloaded target: the first two are modest, the others greedy. With `together`, it has the address
    /// of a greedy host.
    pub(super) fn of_crowd(index: usize, together: bool, random: &mut Random) -> Host {
        let any = Host::new(index, random);
        let address = if together { 5 } else { any.address };
        let any = Host { address, ..any };
        match index {
            0 | 1 => Host {
                manner: Manner::Modest,
                depth: 1,
                lane_count: 1,
                think: 4 * MILLISECOND,
                requests_left: 30,
                ..any
            },
            _ => Host {
                manner: Manner::Greedy,
                depth: 8,
                lane_count: 2,
                think: 2 * MICROSECOND,
                requests_left: 12,
                ..any
            },
        }
    }
}

impl Client {
    pub(super) fn is_admin(&self) -> bool {
        self.qid == 0
    }

    /// Leaves it to the target to close the connection.
    pub(super) fn leaves(&mut self, now: Time) {
        (self.stage, self.since) = (Stage::Leaving, now);
    }
}

impl World {
    /// Lets a host act.
    pub(super) fn act(&mut self, host: usize) -> Checked {
        if !matches!(self.phase, Phase::Run | Phase::Verify) {
            return Ok(());
        }
        let Host { think, sleeps_until, .. } = self.hosts[host];
        let mut pause = self.random.below(2 * think) + 1;
        if sleeps_until > self.now {
            pause = sleeps_until - self.now;
        } else if !self.is_connected(host)? {
            pause = self.random.below(20 * MILLISECOND) + 1;
        } else if let Some(lane) = self.free_lane(host) {
            if self.phase == Phase::Run && self.hosts[host].requests_left > 0 {
                self.random_request(host, lane)?;
            } else if let Some((space, first, count)) = self.unread.pop() {
                self.read_blocks(lane, space, first, count)?;
            } else {
                pause = self.random.below(100 * MILLISECOND) + 1;
            }
        } else {
            pause += self.random.below(MILLISECOND);
        }
        self.after(pause, Event::Act { host });
        self.advance()
    }

    /// Opens missing connections of an association; true if all are ready.
    fn is_connected(&mut self, host: usize) -> Result<bool, String> {
        let Some(admin) = self.hosts[host].admin else {
            self.hosts[host].ids = (1..=QUEUES).collect();
            self.hosts[host].maps = FileMaps::default();
            self.hosts[host].loads = false;
            self.hosts[host].admin = Some(self.open_link(host, 0));
            return Ok(false);
        };
        if self.stage(admin) != Some(Stage::Ready) {
            return Ok(false);
        }
        if self.hosts[host].lanes.len() < self.hosts[host].lane_count {
            let qid = self.hosts[host].ids.remove(0);
            self.hosts[host].ids.push(qid);
            let lane = self.open_link(host, qid);
            self.hosts[host].lanes.push(lane);
        }
        let lanes = &self.hosts[host].lanes;
        Ok(lanes.iter().any(|lane| self.stage(*lane) == Some(Stage::Ready)))
    }

    pub(super) fn stage(&self, link: usize) -> Option<Stage> {
        self.clients[link].as_ref().map(|client| client.stage)
    }

    fn open_link(&mut self, host: usize, qid: u16) -> usize {
        let namespaces: Arc<[NamespaceInfo]> = (1..)
            .zip(&self.shapes)
            .map(|(nsid, shape)| NamespaceInfo {
                nsid,
                blocks: shape.blocks,
                block_bytes: shape.block_bytes,
                nguid: [0; 16],
            })
            .collect();
        let Host { digests, depth, in_capsule_bytes, .. } = self.hosts[host];
        let initiator = Initiator::new(InitiatorConfig {
            admin: qid == 0,
            digests,
            depth: if qid == 0 { 8 } else { depth },
            in_capsule_bytes,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            namespaces,
        });
        let link = self.links.len();
        self.links.push(Link::new(self.hosts[host].address));
        let (inbox, since, stage) = (Vec::new(), self.now, Stage::Opening);
        let client = Client { host, qid, initiator, inbox, stage, since, hangs_up: false };
        self.clients.push(Some(client));
        self.trace(|| format!("host {host}: opens link {link} for queue {qid}"));
        let delay = self.delay();
        self.after(delay, Event::Accept { link });
        self.host_sends(link);
        link
    }

    /// Passes a queue's output to the network, all of it or a part.
    pub(super) fn host_sends(&mut self, link: usize) {
        let Some(client) = &mut self.clients[link] else { return };
        let bytes = client.initiator.outgoing();
        assert!(bytes.len() <= OUTGOING_MAX_BYTES, "a host hoards what it has to send");
        if bytes.is_empty() {
            return;
        }
        let all = !self.random.one_in(6);
        let count = if all { bytes.len() } else { self.random.index(bytes.len()) };
        self.links[link].to_target.send(&bytes[..count]);
        client.initiator.sent(count, self.now / MICROSECOND);
        if !all {
            let delay = self.delay();
            self.after(delay, Event::Send { link });
        }
        self.deliver_soon(link, true);
    }

    /// Delivers bytes of the target, or the end of the stream.
    pub(super) fn host_receives(&mut self, link: usize, bytes: &[u8], ends: bool) -> Checked {
        let Some(client) = &mut self.clients[link] else { return Ok(()) };
        client.inbox.extend_from_slice(bytes);
        let mut answers: Answers = Vec::new();
        let received = client.initiator.receive(&client.inbox, &mut |completion| {
            let result = completion.result.map(|done| (done.data.to_vec(), done.dw0, done.dw1));
            answers.push((completion.tag, result));
        });
        match received {
            Ok(used) => _ = client.inbox.drain(..used),
            Err(reason) => return Err(format!("link {link}: {reason}")),
        }
        let is_open = client.stage == Stage::Opening && client.initiator.is_ready();
        for (tag, result) in answers {
            self.answered(link, tag, result)?;
        }
        if is_open {
            self.connect(link)?;
        }
        self.host_sends(link);
        if let Some(&Client { host, stage, hangs_up: true, .. }) = self.clients[link].as_ref() {
            self.hang_up(link)?;
            // The association may have ended, and the host has no other way to find out.
            if let Some(admin) = self.hosts[host].admin.filter(|_| stage == Stage::Starting)
                && self.random.one_in(4)
            {
                self.hang_up(admin)?;
            }
            return Ok(());
        }
        if ends {
            self.lost(link, LostReason::Closed)?;
        }
        Ok(())
    }

    /// Sends Connect.
    fn connect(&mut self, link: usize) -> Checked {
        let Some(client) = &mut self.clients[link] else { return Ok(()) };
        client.stage = Stage::Starting;
        let (qid, host) = (client.qid, &self.hosts[client.host]);
        let unthrottled = qid != 0 && self.random.one_in(2);
        let command = FabricsCommand::Connect {
            recfmt: 0,
            qid,
            sqsize: client.initiator.config().depth,
            cattr: if unthrottled { CATTR_DISABLE_SQ_FLOW_CONTROL } else { 0 },
            kato_ms: if qid == 0 { host.kato_ms } else { 0 },
        };
        let data = ConnectData {
            hostid: host.id,
            cntlid: if qid == 0 { CNTLID_DYNAMIC } else { host.cntlid },
            subnqn: NQN.to_owned(),
            hostnqn: host.nqn.clone(),
        };
        self.step(link, command.to_sqe(), &data.to_bytes(), What::Connect)
    }

    /// Submits one of the commands that start or end an association.
    fn step(&mut self, link: usize, sqe: Sqe, data_out: &[u8], what: What) -> Checked {
        let request = Request::Raw { sqe, data_out, data_in_max_bytes: 0 };
        let begun = self.model.begin();
        self.submit(link, &request, Pending { link, begun, what })
    }

    fn configure(&mut self, link: usize, config: ControllerConfig, what: What) -> Checked {
        let value = u32::from(config).into();
        let set = FabricsCommand::PropertySet { offset: offset::CC, size8: false, value };
        self.step(link, set.to_sqe(), &[], what)
    }

    /// Handles the answer to one of these commands, and submits the next. `accepted` if it succeeded.
    pub(super) fn started(
        &mut self,
        link: usize,
        what: &What,
        accepted: bool,
        dw0: u32,
    ) -> Checked {
        let Some(client) = &mut self.clients[link] else { return Ok(()) };
        let (host, qid) = (client.host, client.qid);
        if !accepted {
            // The queue's id is still in use, or the association is over.
            client.hangs_up = true;
            self.trace(|| format!("link {link}: queue {qid} is refused"));
            return Ok(());
        }
        match what {
            What::Connect if qid != 0 => {
                client.stage = Stage::Ready;
                Ok(())
            }
            What::Connect => {
                self.hosts[host].cntlid = dw0 as u16;
                let kato_ns = u64::from(self.hosts[host].kato_ms) * MILLISECOND;
                if kato_ns > 0 {
                    self.after(kato_ns / 4, Event::KeepAlive { link });
                }
                self.configure(link, ControllerConfig::ENABLED, What::Enable)
            }
            What::Disable => self.configure(link, ControllerConfig::ENABLED, What::Enable),
            What::Enable => {
                let get = FabricsCommand::PropertyGet { offset: offset::CSTS, size8: false };
                self.step(link, get.to_sqe(), &[], What::Status)
            }
            What::Status if !Csts::from(dw0).ready => {
                Err("an enabled controller is not ready".into())
            }
            What::Status if client.stage == Stage::Resetting => {
                client.stage = Stage::Ready;
                Ok(())
            }
            What::Status => {
                let asked = features::number_of_queues(QUEUES);
                let sqe = AdminCommand::set_features(features::NUMBER_OF_QUEUES, asked);
                self.step(link, sqe, &[], What::Queues)
            }
            What::Shutdown => {
                client.hangs_up = true;
                Ok(())
            }
            _ => {
                client.stage = Stage::Ready;
                Ok(())
            }
        }
    }

    /// Resets the controller: its queues end; functions and maps stay. Some hosts close their lanes, others leave that
    /// to the target.
    pub(super) fn reset(&mut self, host: usize) -> Checked {
        let Some(admin) = self.hosts[host].admin else { return Ok(()) };
        if self.pending.values().any(|pending| pending.link == admin) {
            return Ok(());
        }
        self.trace(|| format!("host {host}: resets its controller"));
        if let Some(client) = &mut self.clients[admin] {
            client.stage = Stage::Resetting;
        }
        let lanes = std::mem::take(&mut self.hosts[host].lanes);
        let closes = self.random.one_in(2);
        for lane in lanes {
            self.links[lane].excused = true;
            // A queue that is not connected yet does not belong to the controller.
            if closes || self.stage(lane) != Some(Stage::Ready) {
                self.hang_up(lane)?;
            } else if let Some(client) = &mut self.clients[lane] {
                client.leaves(self.now);
            }
        }
        self.configure(
            admin,
            ControllerConfig { enable: false, ..ControllerConfig::ENABLED },
            What::Disable,
        )
    }

    /// Ends an association, with or without a shutdown.
    pub(super) fn leave(&mut self, host: usize) -> Checked {
        let lanes = self.hosts[host].lanes.clone();
        for lane in lanes {
            self.links[lane].excused = true;
            if self.random.one_in(2) {
                self.hang_up(lane)?;
            }
        }
        let Some(admin) = self.hosts[host].admin else { return Ok(()) };
        let asks = self.stage(admin) == Some(Stage::Ready) && self.random.one_in(2);
        // If the queue is full, the host does not wait for a command to end.
        if asks && self.has_room(admin) {
            self.trace(|| format!("host {host}: shuts its controller down"));
            if let Some(client) = &mut self.clients[admin] {
                client.leaves(self.now);
            }
            let config =
                ControllerConfig { shutdown: Shutdown::Normal, ..ControllerConfig::ENABLED };
            return self.configure(admin, config, What::Shutdown);
        }
        self.hang_up(admin)
    }

    /// The host closes a connection.
    pub(super) fn hang_up(&mut self, link: usize) -> Checked {
        self.links[link].excused = true;
        self.lost(link, LostReason::HungUp)
    }

    /// Ends a connection for the host; the end of the admin queue also ends the association.
    fn lost(&mut self, index: usize, reason: LostReason) -> Checked {
        let Some(mut client) = self.clients[index].take() else { return Ok(()) };
        self.trace(|| format!("link {index}: over for host {}: {reason}", client.host));
        // If memory is short, the target first closes connections that have not connected a queue.
        let gives_way =
            self.lacks_memory() && matches!(client.stage, Stage::Opening | Stage::Starting);
        if !gives_way && !self.may_close(index, client.host) {
            return Err(format!("link {index}: the target closes it for no reason"));
        }
        let mut answers: Answers = Vec::new();
        client.initiator.fail(reason);
        client.initiator.lost(&mut |completion| {
            let result = completion.result.map(|done| (done.data.to_vec(), done.dw0, done.dw1));
            answers.push((completion.tag, result));
        });
        for (tag, result) in answers {
            self.answered(index, tag, result)?;
        }
        if let Some((tag, _)) = self.pending.iter().find(|(_, pending)| pending.link == index) {
            return Err(format!("link {index} is lost, but request {tag} on it has no end"));
        }
        let link = &mut self.links[index];
        link.client = false;
        link.to_host.drop_all();
        match self.random.one_in(4) {
            true => link.to_target.cut(&mut self.random),
            false => link.to_target.finish(),
        }
        self.deliver_soon(index, true);
        self.report_if_gone(index);
        self.forget_link(client.host, index)
    }

    /// Whether the target has a reason to close a connection of a host. It may notice the end of an association before
    /// the host does.
    pub(super) fn may_close(&self, link: usize, host: usize) -> bool {
        let admin = self.hosts[host].admin;
        let is_excused = |link: usize| self.links[link].is_excused(self.now);
        is_excused(link) || admin.is_some_and(is_excused)
    }

    fn forget_link(&mut self, host: usize, link: usize) -> Checked {
        self.hosts[host].lanes.retain(|lane| *lane != link);
        if self.hosts[host].admin != Some(link) {
            return Ok(());
        }
        self.hosts[host].admin = None;
        // Also queues that the host has already given up.
        for lane in 0..self.clients.len() {
            if self.clients[lane].as_ref().is_some_and(|client| client.host == host) {
                self.hang_up(lane)?;
            }
        }
        Ok(())
    }

    /// Sends a Keep Alive if needed, and schedules the next.
    pub(super) fn keep_alive(&mut self, link: usize) -> Checked {
        let Some(client) = &self.clients[link] else { return Ok(()) };
        let host = &self.hosts[client.host];
        let interval = u64::from(host.kato_ms) * MILLISECOND / 4;
        let is_known = host.trusts_traffic && self.now - host.last_answer < interval;
        let is_up = client.stage == Stage::Ready && self.now >= host.sleeps_until;
        self.after(interval, Event::KeepAlive { link });
        if is_up && !is_known && self.has_room(link) {
            self.step(link, AdminCommand::keep_alive(), &[], What::Plain)?;
        }
        Ok(())
    }

    pub(super) fn has_room(&self, link: usize) -> bool {
        let client = self.clients[link].as_ref();
        client.is_some_and(|client| {
            client.initiator.in_flight() < usize::from(client.initiator.config().depth)
        })
    }

    /// Gives up a link whose target does not answer, which is an error unless the link has trouble.
    pub(super) fn check_timeout(&mut self, link: usize) -> Checked {
        let Some(client) = &self.clients[link] else { return Ok(()) };
        let (now_us, timeout_us) = (self.now / MICROSECOND, TIMEOUT / MICROSECOND);
        let waits = matches!(client.stage, Stage::Opening | Stage::Leaving);
        let waits_long = waits && self.now - client.since > TIMEOUT;
        let late = client.initiator.expired(now_us, timeout_us);
        let Some(reason) = late.or(waits_long.then_some(LostReason::HungUp)) else {
            return Ok(());
        };
        if self.links[link]
            .healthy_since
            .is_some_and(|since| self.now.saturating_sub(since) > TIMEOUT)
        {
            let stage = client.stage;
            return Err(format!("link {link} ({stage:?}): nothing is wrong with it, but {reason}"));
        }
        self.links[link].excused = true;
        self.lost(link, reason)
    }
}
