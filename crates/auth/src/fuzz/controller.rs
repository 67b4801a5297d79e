//! The controller's side of a queue, against a host that may send anything.

use super::input::Input;
use super::model::{Asked, algorithms, header, is_good, names, number16, number32};
use super::model::{secret, shared, value};
use crate::dhchap::{
    Algorithms, Authentication, ControllerAuth, ControllerConfig, Group, Step, Then, Work,
};
use crate::{Hash, Secret};
use std::sync::Arc;

/// Most steps of one input, to limit its time.
const STEPS_MAX: usize = 64;
/// Most runs that may begin before one has succeeded.
const RUNS_MAX: u32 = 8;

const NEGOTIATE: [u8; 2] = [0, 0];
const REPLY: [u8; 2] = [1, 2];
const SUCCESS2: [u8; 2] = [1, 4];
const FAILURE2: [u8; 2] = [0, 0xF0];

/// The next event that the model expects.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Due {
    Negotiate,
    Pair,
    Challenge,
    Reply,
    /// The expected result for the Reply that is being checked.
    Verdict(Option<Good>),
    Success1(Good),
    Success2(Good),
    Failed,
}

/// A Reply that must be accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Good {
    host_key: usize,
    r2: Option<Vec<u8>>,
}

/// The expected result of an Authentication Send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Complete,
    Compute,
    Authenticated,
    Refused,
    HostRefused,
}

/// The current run, as the host sees it.
#[derive(Default)]
struct Run {
    chosen: Option<(Hash, Group)>,
    s1: u32,
    c1: Vec<u8>,
    /// g^x.
    value: Vec<u8>,
}

struct Attack<'a> {
    input: Input<'a>,
    auth: ControllerAuth,
    config: Arc<ControllerConfig>,
    algorithms: Algorithms,
    /// The secret that the host uses.
    key: Secret,
    work: Option<Work>,
    due: Due,
    run: Run,
    t_id: u16,
    runs: u32,
    current: Option<Authentication>,
    now_us: u64,
    began_us: u64,
    /// All messages that the host has sent.
    said: Vec<Vec<u8>>,
}

/// The controller's side, against a host that may send anything, in any order. The result of each message must equal
/// the model's, so that no host is authenticated without a secret, whatever lengths, transactions and public values it
/// sends. No run follows a failed one, and answers keep to the allowed length.
///
/// Byte 0: algorithms. Byte 1: bits 1:0 the host's secret (the first, the second, a wrong one, the controller's), bit 2
/// the controller knows two secrets of the host, bit 3 the controller has a secret of its own. Then steps.
pub fn controller(data: &[u8]) {
    let mut attack = attack(data);
    for _ in 0..STEPS_MAX {
        if attack.input.is_empty() {
            break;
        }
        attack.step();
        attack.check();
    }
}

fn attack(data: &[u8]) -> Attack<'_> {
    let mut input = Input(data);
    let algorithms = algorithms(input.byte());
    let settings = input.byte();
    let known = [secret(1), secret(2)];
    let own = secret(3);
    let config = Arc::new(ControllerConfig::new(
        names(),
        &known[..1 + usize::from(settings >> 2 & 1)],
        (settings & 8 != 0).then_some(&own),
        algorithms.clone(),
    ));
    let key = match settings & 3 {
        3 => own.transform(names().subsystem()),
        other => secret(other + 1 + 7 * u8::from(other == 2)).transform(names().host()),
    };
    Attack {
        input,
        auth: ControllerAuth::new(Arc::clone(&config), 0),
        config,
        algorithms,
        key,
        work: None,
        due: Due::Negotiate,
        run: Run::default(),
        t_id: 0,
        runs: 0,
        current: None,
        now_us: 0,
        began_us: 0,
        said: Vec::new(),
    }
}

impl Attack<'_> {
    fn step(&mut self) {
        match self.input.lie(12) {
            0 | 12 => self.go_on(),
            1 => {
                let length = usize::from(self.input.number16()) % 700;
                let message = self.input.bytes(length).to_vec();
                self.send(&message);
            }
            2 => {
                let at = usize::from(self.input.byte()) % self.said.len().max(1);
                let message = self.said.get(at).cloned().unwrap_or_default();
                self.send(&message);
            }
            3 => self.receive(),
            4 => self.negotiate(),
            5 => self.reply(),
            6 => self.short(SUCCESS2),
            7 => self.short(FAILURE2),
            8 => self.complete(),
            9 => self.foreign_work(),
            10 => self.now_us += u64::from(self.input.number16()) * 1000,
            // A new configuration with the same secrets.
            _ => self.auth.set_config(Arc::clone(&self.config)),
        }
    }

    /// The next step of an honest host.
    fn go_on(&mut self) {
        match self.due {
            Due::Negotiate => self.negotiate(),
            Due::Pair | Due::Verdict(_) => self.complete(),
            Due::Challenge | Due::Success1(_) | Due::Failed => self.receive(),
            Due::Reply => self.reply(),
            Due::Success2(_) => self.short(SUCCESS2),
        }
    }

    fn lying_t_id(&mut self) -> u16 {
        if self.input.lie(1) == 0 { self.t_id } else { self.input.number16() }
    }

    fn negotiate(&mut self) {
        let (t_id, lie) = (u16::from(self.input.byte()), self.input.lie(4));
        let mut message = header::<72>(NEGOTIATE, t_id);
        (message[7], message[8]) = (1, 1);
        let hashes: Vec<u8> = self.algorithms.hashes.iter().map(|hash| hash.id()).collect();
        let groups: Vec<u8> = self.algorithms.groups.iter().map(|group| group.id()).collect();
        for (length_at, at, ids) in [(10, 12, hashes), (11, 42, groups)] {
            message[length_at] = ids.len() as u8;
            message[at..at + ids.len()].copy_from_slice(&ids);
        }
        match lie {
            1 => message[6] = self.input.byte(),
            2 => {
                // Several protocols, with or without DH-HMAC-CHAP.
                let count = usize::from(self.input.byte() % 5);
                message[8] = self.input.byte() % 3;
                let descriptor = message[8..72].to_vec();
                (0..count).for_each(|_| message.extend_from_slice(&descriptor));
                message[7] = self.input.byte() % 6;
            }
            3 => message[10 + usize::from(self.input.byte() & 1)] = self.input.byte(),
            4 => {
                let at = 12 + usize::from(self.input.byte() % 60);
                message[at] = self.input.byte();
            }
            _ => {}
        }
        self.input.damage(&mut message);
        self.send(&message);
    }

    fn reply(&mut self) {
        let (hash, group) = self.run.chosen.unwrap_or((Hash::Sha256, Group::Null));
        let (value, shared) = value(&mut self.input, group, &self.run.value);
        let t_id = self.lying_t_id();
        let asked = Asked {
            hash,
            t_id: self.t_id,
            sequence: self.run.s1,
            challenge: &self.run.c1,
            shared: (group != Group::Null).then_some(&shared),
        };
        let mut r1 = asked.r1(&self.key);
        let c2 = vec![self.input.byte(); hash.length_bytes()];
        let s2 = u32::from(self.input.byte());
        match self.input.lie(3) {
            // A response of another length, with a challenge of the same length.
            1 => r1.resize(usize::from(self.input.byte()), 0),
            2 => r1 = self.run.c1.clone(),
            3 => r1.iter_mut().for_each(|byte| *byte = 0),
            _ => {}
        }
        let mut c2 = c2;
        c2.resize(r1.len(), 1);
        let mut message = header::<16>(REPLY, t_id);
        message[6] = r1.len() as u8;
        message[8] = self.input.byte() & 1;
        message[10..12].copy_from_slice(&(value.len() as u16).to_le_bytes());
        message[12..16].copy_from_slice(&s2.to_le_bytes());
        message.extend([r1, c2, value].concat());
        if self.input.lie(1) == 1 {
            let at = [6, 8, 10, 11][usize::from(self.input.byte() & 3)];
            message[at] = self.input.byte();
        }
        self.input.damage(&mut message);
        self.send(&message);
    }

    /// A message without data.
    fn short(&mut self, kind: [u8; 2]) {
        let t_id = self.lying_t_id();
        let mut message = header::<16>(kind, t_id);
        message[7] = self.input.byte();
        self.input.damage(&mut message);
        self.send(&message);
    }

    fn send(&mut self, message: &[u8]) {
        let expected = self.judge(message);
        self.said.push(message.to_vec());
        match self.auth.send(message, self.now_us) {
            Step::Complete => assert_eq!(expected, Expected::Complete),
            Step::Compute(work) => {
                assert_eq!(expected, Expected::Compute);
                self.work = Some(work);
            }
            Step::Authenticated(agreed) => {
                assert_eq!(expected, Expected::Authenticated);
                assert_eq!(self.current, Some(agreed));
            }
            Step::Refused(refusal) => {
                assert_eq!(expected, Expected::Refused, "{refusal}");
                assert!((1..=7).contains(&refusal.reason().code()));
            }
            Step::HostRefused(_) => assert_eq!(expected, Expected::HostRefused),
        }
    }

    /// The expected result of a message; advances the model.
    fn judge(&mut self, message: &[u8]) -> Expected {
        if self.due == Due::Failed {
            return Expected::Refused;
        }
        if self.current.is_some() && self.due == Due::Negotiate {
            self.began_us = self.now_us;
        }
        if self.due == Due::Negotiate || message.starts_with(&NEGOTIATE) {
            self.t_id = number16(message, 4);
        }
        let is_ours = number16(message, 4) == self.t_id;
        let kind = message.first_chunk::<2>().copied();
        let next = match (kind, self.due.clone()) {
            (_, Due::Pair | Due::Verdict(_)) => None,
            (Some(NEGOTIATE), _) => self.begin(message),
            (Some(REPLY), Due::Reply) if is_ours => {
                self.verdict(message).map(|verdict| (Due::Verdict(verdict), Expected::Compute))
            }
            (Some(SUCCESS2), Due::Success2(good)) if is_ours && message.len() >= 16 => {
                self.believe(&good);
                Some((Due::Negotiate, Expected::Authenticated))
            }
            (Some(FAILURE2), Due::Challenge | Due::Reply | Due::Success1(_) | Due::Success2(_))
                if is_ours && message.len() >= 8 =>
            {
                self.current = None;
                Some((Due::Failed, Expected::HostRefused))
            }
            _ => None,
        };
        let Some((due, expected)) = next else { return self.fail() };
        self.due = due;
        expected
    }

    /// The run has failed, which ends an earlier authentication, too.
    fn fail(&mut self) -> Expected {
        self.due = Due::Failed;
        self.current = None;
        Expected::Refused
    }

    /// The expected result of a Negotiate.
    fn begin(&mut self, message: &[u8]) -> Option<(Due, Expected)> {
        let offer = offered(message)?;
        self.runs += 1;
        if self.runs > RUNS_MAX || message[6] != 0 {
            return None;
        }
        let (hash_ids, group_ids) = offer?;
        let allowed = &self.algorithms;
        let hash = *allowed.hashes.iter().find(|hash| hash_ids.contains(&hash.id()))?;
        let group = *allowed.groups.iter().find(|group| group_ids.contains(&group.id()))?;
        self.run.chosen = Some((hash, group));
        match group {
            Group::Null => Some((Due::Challenge, Expected::Complete)),
            _ => Some((Due::Pair, Expected::Compute)),
        }
    }

    /// The expected result of a Reply of the current run; None if it is refused at once.
    fn verdict(&self, message: &[u8]) -> Option<Option<Good>> {
        let (hash, group) = self.run.chosen?;
        let length = usize::from(*message.get(6)?);
        let challenges = match message.get(8)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let value_at = 16 + 2 * length;
        let value = message.get(value_at..value_at + usize::from(number16(message, 10)))?;
        if length != hash.length_bytes() {
            return None;
        }
        let (r1, c2) = message[16..value_at].split_at(length);
        let shared = match group {
            Group::Null => None,
            _ => shared(group, value, &self.run.value),
        };
        let is_known = group == Group::Null || shared.is_some();
        let asked = Asked {
            hash,
            t_id: self.t_id,
            sequence: self.run.s1,
            challenge: &self.run.c1,
            shared: shared.as_deref(),
        };
        let fits = |key: &Secret| is_known && is_good(group, value) && asked.r1(key) == r1;
        let host_key = self.config.host_keys.iter().position(fits);
        let sequence = number32(message, 12);
        let counter = Asked { sequence, challenge: c2, ..asked };
        let own = self.config.controller_key.as_ref();
        Some(host_key.and_then(|host_key| match challenges {
            false => Some(Good { host_key, r2: None }),
            true => own.map(|key| Good { host_key, r2: Some(counter.r2(key)) }),
        }))
    }

    fn believe(&mut self, good: &Good) {
        let Some((hash, group)) = self.run.chosen else { return };
        let (mutual, host_key) = (good.r2.is_some(), good.host_key);
        self.current = Some(Authentication { hash, group, mutual, host_key });
        self.runs = 0;
    }

    /// Completes the current work.
    fn complete(&mut self) {
        let Some(work) = self.work.take() else { return };
        let is_pair = self.due == Due::Pair;
        let step = self.auth.completed(work.run());
        let next = match std::mem::replace(&mut self.due, Due::Failed) {
            Due::Pair => Some(Due::Challenge),
            Due::Verdict(Some(good)) => Some(Due::Success1(good)),
            _ => None,
        };
        match next {
            Some(due) => {
                assert!(matches!(step, Step::Complete), "{step:?}, {is_pair}");
                self.due = due;
            }
            None => {
                assert!(matches!(step, Step::Refused(_)), "{step:?}");
                self.fail();
            }
        }
    }

    /// Passes the result of another queue of the same host to this one.
    fn foreign_work(&mut self) {
        let mut other = ControllerAuth::new(Arc::clone(&self.config), 0);
        let mut message = header::<72>(NEGOTIATE, 1);
        (message[7], message[8], message[10], message[11]) = (1, 1, 1, 2);
        message[12] = self.algorithms.hashes[0].id();
        message[42] = Group::Ffdhe2048.id();
        if let Step::Compute(work) = other.send(&message, 0) {
            assert!(matches!(self.auth.completed(work.run()), Step::Refused(_)));
            self.fail();
        }
    }

    fn receive(&mut self) {
        let length = match self.input.lie(2) {
            0 => 4096,
            1 => u32::from(self.input.byte()),
            _ => u32::from(self.input.number16()),
        };
        let hash_bytes = self.run.chosen.map_or(0, |(hash, _)| hash.length_bytes());
        let value_bytes = self.run.chosen.map_or(0, |(_, group)| group.value_bytes());
        let needed = match self.due {
            Due::Challenge => 16 + hash_bytes + value_bytes,
            Due::Success1(_) => 16 + hash_bytes,
            _ => {
                self.fail();
                8
            }
        };
        let answer = match self.auth.receive(length) {
            Ok(answer) => answer,
            Err(error) => {
                assert_eq!((error.needed_bytes, error.allowed_bytes), (needed, length));
                return assert!(length < needed as u32);
            }
        };
        let message = answer.message;
        assert!(needed <= length as usize);
        assert_eq!((message.len(), number16(&message, 4)), (needed, self.t_id));
        match self.due.clone() {
            Due::Challenge => {
                assert_eq!(answer.then, Then::Continue);
                self.challenged(&message);
            }
            Due::Success1(good) => {
                assert_eq!(message[..2], [1, 3]);
                assert_eq!(usize::from(message[6]), hash_bytes);
                assert_eq!(message[8], u8::from(good.r2.is_some()));
                let r2 = good.r2.clone().unwrap_or_else(|| vec![0; hash_bytes]);
                assert_eq!(message[16..], r2);
                if good.r2.is_some() {
                    assert_eq!(answer.then, Then::Continue);
                    self.due = Due::Success2(good);
                } else {
                    self.believe(&good);
                    assert_eq!(
                        answer.then,
                        self.current.map_or(Then::Continue, Then::Authenticated)
                    );
                    self.due = Due::Negotiate;
                }
            }
            _ => {
                assert_eq!((&message[..2], message[6]), (&[0, 0xF1][..], 1));
                assert!(
                    matches!(answer.then, Then::Close(why) if why.reason().code() == message[7])
                );
            }
        }
    }

    /// Checks a Challenge: the values that must be new each time are new.
    fn challenged(&mut self, message: &[u8]) {
        let (hash, group) = self.run.chosen.expect("a run");
        assert_eq!(message[..2], [1, 1]);
        assert_eq!(message[6], hash.length_bytes() as u8);
        assert_eq!(message[8..10], [hash.id(), group.id()]);
        assert_eq!(usize::from(number16(message, 10)), group.value_bytes());
        let s1 = number32(message, 12);
        let (c1, value) = message[16..].split_at(hash.length_bytes());
        assert!(s1 != 0 && s1 != self.run.s1 && c1 != self.run.c1);
        assert!(is_good(group, value) && (value.is_empty() || value != self.run.value));
        (self.run.s1, self.run.c1, self.run.value) = (s1, c1.to_vec(), value.to_vec());
        self.due = Due::Reply;
    }

    fn check(&self) {
        assert_eq!(self.auth.authentication(), self.current);
        let is_at_rest = self.current.is_some() && self.due == Due::Negotiate;
        let deadline = (!is_at_rest).then(|| self.began_us + 5_000_000);
        assert_eq!(self.auth.deadline_us(5000), deadline);
    }
}

/// Hashes and groups by number.
type Offered<'a> = (&'a [u8], &'a [u8]);

/// The offer of a Negotiate: None if it cannot be parsed, `Some(None)` if it has none for DH-HMAC-CHAP.
fn offered(message: &[u8]) -> Option<Option<Offered<'_>>> {
    let count = usize::from(*message.get(7)?);
    let descriptors = message.get(8..8 + 64 * count)?;
    let mut all = descriptors.chunks_exact(64);
    let Some(descriptor) = all.find(|descriptor| descriptor[0] == 1) else {
        return Some(None);
    };
    let hashes = descriptor[4..34].get(..usize::from(descriptor[2]))?;
    let groups = descriptor[34..64].get(..usize::from(descriptor[3]))?;
    Some(Some((hashes, groups)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attacker with a right secret gets authenticated: otherwise the fuzz target would test nothing.
    #[test]
    fn a_host_with_the_right_secret_is_authenticated() {
        for algorithms in 0..12 {
            for (settings, host_key) in
                [(0, Some(0)), (12, Some(0)), (5, Some(1)), (2, None), (3, None)]
            {
                let data = [&[algorithms, settings][..], &[0; 100]].concat();
                let mut attack = attack(&data);
                let mut seen = None;
                for _ in 0..8 {
                    attack.step();
                    attack.check();
                    seen = seen.or(attack.current.map(|current| current.host_key));
                }
                assert_eq!(seen, host_key, "{algorithms} {settings}");
            }
        }
    }
}
