//! The host's side of a queue, against a controller that may send anything.

use super::input::Input;
use super::model::{Asked, algorithms, header, is_good, names, number16, number32};
use super::model::{secret, shared, value};
use crate::dhchap::{Algorithms, Group, HostAuth, HostConfig, HostError, HostStep};
use crate::{Hash, Secret};
use std::sync::Arc;

/// Most steps of one input, to limit its time.
const STEPS_MAX: usize = 16;

const CHALLENGE: [u8; 2] = [1, 1];
const SUCCESS1: [u8; 2] = [1, 3];
const FAILURE1: [u8; 2] = [0, 0xF1];

/// The next message that the model expects.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Due {
    Challenge,
    /// With the response that the controller must give, if it was challenged.
    Success1(Hash, Option<Vec<u8>>),
    Over,
}

/// The expected result of a message.
#[derive(PartialEq, Eq, Debug)]
enum Expected {
    /// The host answers with a Reply.
    Reply,
    Authenticated,
    Refused,
    /// The controller ends the run for this reason.
    ControllerRefused(u8),
}

struct Attack<'a> {
    input: Input<'a>,
    host: HostAuth,
    config: Arc<HostConfig>,
    algorithms: Algorithms,
    /// The secret that the controller uses.
    key: Secret,
    t_id: u16,
    due: Due,
    /// The host's last Reply.
    reply: Vec<u8>,
    /// R2 of an honest controller with that secret.
    r2: Vec<u8>,
    /// C2 of the previous run.
    c2: Vec<u8>,
}

/// The host's side, against a controller that may send anything, in any order. The result of each message must equal
/// the model's, so that no controller that must authenticate itself is accepted without its secret, and the host gives
/// no response to a public value that reveals the secret, or with a hash that it has not offered.
///
/// Byte 0: algorithms. Byte 1: bits 1:0 the controller's secret (its own, a wrong one, the host's), bit 2 the host does
/// not authenticate the controller. Then messages.
pub fn host(data: &[u8]) {
    let mut input = Input(data);
    let algorithms = algorithms(input.byte());
    let settings = input.byte();
    let (host_key, own) = (secret(1), secret(3));
    let wanted = (settings & 4 == 0).then_some(&own);
    let config = HostConfig::new(names(), &host_key, wanted, algorithms.clone());
    let key = match settings & 3 {
        0 => own.transform(names().subsystem()),
        1 => host_key.transform(names().host()),
        _ => secret(9).transform(names().subsystem()),
    };
    let config = Arc::new(config);
    let (host, _) = HostAuth::new(Arc::clone(&config), 0);
    let mut attack = Attack {
        input,
        host,
        config,
        algorithms,
        key,
        t_id: 0,
        due: Due::Over,
        reply: Vec::new(),
        r2: Vec::new(),
        c2: Vec::new(),
    };
    attack.begin();
    for _ in 0..STEPS_MAX {
        attack.step();
        if attack.input.is_empty() {
            break;
        }
    }
}

impl Attack<'_> {
    fn step(&mut self) {
        match (self.input.lie(6), &self.due) {
            (0, Due::Over) | (1, _) => self.begin(),
            (0, Due::Challenge) | (2, _) => self.challenge(),
            (0, Due::Success1(..)) | (3, _) => self.success1(),
            (4, _) => {
                let mut message = header::<8>(FAILURE1, self.input.number16());
                message[6] = 1;
                message[7] = self.input.byte();
                self.input.damage(&mut message);
                self.say(&message);
            }
            (5, _) => {
                let message = self.reply.clone();
                self.say(&message);
            }
            _ => {
                let length = usize::from(self.input.number16()) % 700;
                let message = self.input.bytes(length).to_vec();
                self.say(&message);
            }
        }
    }

    /// The host begins another run.
    fn begin(&mut self) {
        self.t_id = self.input.number16();
        let (host, step) = HostAuth::new(Arc::clone(&self.config), self.t_id);
        let HostStep::Exchange(message) = step else { panic!("it begins with a message") };
        let mut expected = header::<72>([0, 0], self.t_id);
        (expected[7], expected[8]) = (1, 1);
        expected[10] = self.algorithms.hashes.len() as u8;
        expected[11] = self.algorithms.groups.len() as u8;
        for (at, hash) in self.algorithms.hashes.iter().enumerate() {
            expected[12 + at] = hash.id();
        }
        for (at, group) in self.algorithms.groups.iter().enumerate() {
            expected[42 + at] = group.id();
        }
        assert_eq!(message, expected);
        (self.host, self.due) = (host, Due::Challenge);
    }

    fn lying_t_id(&mut self) -> u16 {
        if self.input.lie(1) == 0 { self.t_id } else { self.input.number16() }
    }

    fn challenge(&mut self) {
        let hash = self.algorithms.hashes[0];
        let at = usize::from(self.input.byte()) % self.algorithms.groups.len();
        let group = self.algorithms.groups[at];
        // The shared secret is computed later, from the host's answer.
        let (value, _) = value(&mut self.input, group, &[]);
        let mut message = header::<16>(CHALLENGE, self.lying_t_id());
        (message[6], message[8], message[9]) = (hash.length_bytes() as u8, hash.id(), group.id());
        message[10..12].copy_from_slice(&(value.len() as u16).to_le_bytes());
        message[12] = 7;
        let mut c1 = vec![self.input.byte(); hash.length_bytes()];
        match self.input.lie(6) {
            1 => message[8] = self.input.byte() % 5,
            2 => message[9] = self.input.byte() % 7,
            3 => message[12] = 0,
            4 => {
                // A challenge of another length.
                c1.resize(usize::from(self.input.byte()), 7);
                message[6] = c1.len() as u8;
            }
            5 => message[6] = self.input.byte(),
            6 => message[10 + usize::from(self.input.byte() & 1)] = self.input.byte(),
            _ => {}
        }
        message.extend([c1, value].concat());
        self.input.damage(&mut message);
        self.say(&message);
    }

    fn success1(&mut self) {
        let length = self.r2.len();
        let mut message = header::<16>(SUCCESS1, self.lying_t_id());
        (message[6], message[8]) = (length as u8, self.input.byte() & 1 ^ 1);
        let r2 = match self.input.lie(5) {
            0 => self.r2.clone(),
            // Values that the host has just sent.
            1 => self.reply.get(16..16 + length).map_or_else(Vec::new, <[u8]>::to_vec),
            2 => self.reply.get(16 + length..16 + 2 * length).map_or_else(Vec::new, <[u8]>::to_vec),
            3 => vec![0; length],
            4 => self.r2[..length / 2].to_vec(),
            _ => {
                message[6] = self.input.byte();
                vec![0; usize::from(message[6])]
            }
        };
        message.extend(r2);
        self.input.damage(&mut message);
        self.say(&message);
    }

    fn say(&mut self, message: &[u8]) {
        let expected = self.judge(message);
        match self.host.received(message) {
            HostStep::Exchange(reply) => {
                assert_eq!(expected, Expected::Reply);
                self.replied(message, reply);
            }
            HostStep::Finished { last, result: Ok(agreed) } => {
                let Due::Success1(hash, r2) = &self.due else { panic!("{:?}", self.due) };
                assert_eq!(expected, Expected::Authenticated);
                assert_eq!((agreed.hash, agreed.mutual), (*hash, r2.is_some()));
                let success2 = r2.is_some().then(|| header::<16>([1, 4], self.t_id));
                assert_eq!(last, success2);
                self.due = Due::Over;
            }
            HostStep::Finished { last, result: Err(HostError::Refused(refusal)) } => {
                assert_eq!(expected, Expected::Refused, "{refusal}");
                let mut failure2 = header::<8>([0, 0xF0], self.t_id);
                (failure2[6], failure2[7]) = (1, refusal.reason().code());
                assert_eq!(last, Some(failure2));
                self.due = Due::Over;
            }
            HostStep::Finished { last, result: Err(HostError::ControllerRefused(reason)) } => {
                assert_eq!(expected, Expected::ControllerRefused(reason.code()));
                assert_eq!(last, None);
                self.due = Due::Over;
            }
        }
    }

    /// The expected result of a message.
    fn judge(&self, message: &[u8]) -> Expected {
        let is_ours = number16(message, 4) == self.t_id;
        match (message.first_chunk::<2>().copied(), &self.due) {
            (Some(FAILURE1), Due::Challenge | Due::Success1(..)) if message.len() >= 8 => {
                Expected::ControllerRefused(message[7])
            }
            (Some(CHALLENGE), Due::Challenge) if is_ours && self.is_answered(message) => {
                Expected::Reply
            }
            (Some(SUCCESS1), Due::Success1(hash, r2)) if is_ours && message.len() >= 16 => {
                let length = hash.length_bytes();
                let given = match message[8] {
                    0 => Some(None),
                    1 => message.get(16..16 + length).map(Some),
                    _ => None,
                };
                let fits = match (given, r2) {
                    (None, _) | (Some(None), Some(_)) => false,
                    (Some(_), None) => true,
                    (Some(Some(given)), Some(r2)) => given == r2,
                };
                match fits && usize::from(message[6]) == length {
                    true => Expected::Authenticated,
                    false => Expected::Refused,
                }
            }
            _ => Expected::Refused,
        }
    }

    /// Whether the host must answer this Challenge of the current run.
    fn is_answered(&self, message: &[u8]) -> bool {
        if message.len() < 16 {
            return false;
        }
        let hash = self.algorithms.hashes.iter().find(|hash| hash.id() == message[8]);
        let group = self.algorithms.groups.iter().find(|group| group.id() == message[9]);
        let (Some(hash), Some(group)) = (hash, group) else { return false };
        let length = hash.length_bytes();
        let end = 16 + length + usize::from(number16(message, 10));
        usize::from(message[6]) == length
            && number32(message, 12) != 0
            && message.get(16 + length..end).is_some_and(|value| is_good(*group, value))
    }

    /// Checks the Reply to a Challenge: its response is right, and its challenge is new.
    fn replied(&mut self, challenge: &[u8], reply: Vec<u8>) {
        let (hash, group) = (self.algorithms.hashes[0], Group::from_id(challenge[9]));
        let (group, length) = (group.expect("a group"), hash.length_bytes());
        let mutual = self.config.controller_key.is_some();
        let mut start = header::<12>([1, 2], self.t_id);
        (start[6], start[8]) = (length as u8, u8::from(mutual));
        start[10..12].copy_from_slice(&(group.value_bytes() as u16).to_le_bytes());
        assert_eq!(reply[..12], start);
        assert_eq!(reply.len(), 16 + 2 * length + group.value_bytes());
        let (r1, rest) = reply[16..].split_at(length);
        let (c2, theirs) = rest.split_at(length);
        assert!(is_good(group, theirs));
        let known = shared(group, &challenge[16 + length..][..group.value_bytes()], theirs);
        let asked = Asked {
            hash,
            t_id: self.t_id,
            sequence: number32(challenge, 12),
            challenge: &challenge[16..16 + length],
            shared: known.as_deref(),
        };
        // The response can only be checked if the exponent is known.
        let is_known = group == Group::Null || known.is_some();
        assert!(!is_known || r1 == asked.r1(&self.config.host_key));
        let counter = Asked { sequence: number32(&reply, 12), challenge: c2, ..asked };
        if mutual {
            assert!(counter.sequence != 0 && c2 != self.c2);
        } else {
            assert!(counter.sequence == 0 && c2.iter().all(|&byte| byte == 0));
        }
        let wanted = match (&self.config.controller_key, is_known) {
            (None, _) => None,
            (Some(key), true) => Some(counter.r2(key)),
            // No response can be right, as far as the model knows.
            (Some(_), false) => Some(Vec::new()),
        };
        self.r2 = counter.r2(&self.key);
        self.due = Due::Success1(hash, wanted);
        self.c2 = c2.to_vec();
        self.reply = reply;
    }
}
