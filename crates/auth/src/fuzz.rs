//! Entry points for fuzzing: they assert what must hold for any bytes. Unit tests call them too.

use crate::dhchap::message::{ControllerMessage, HostMessage};
use crate::dhchap::{
    Algorithms, ControllerAuth, ControllerConfig, Done, Group, HostAuth, HostConfig, HostStep,
    Step, Then,
};
use crate::{ConfiguredPsk, Derivation, DhchapKey, Hash, MessageError, Names, PskHash};
use std::fmt::Debug;
use std::sync::Arc;

/// Longest message that is cut everywhere, in bytes: that takes the square of its length.
const CUT_MAX_BYTES: usize = 600;
/// Most steps of one input, so that none takes long.
const STEPS_MAX: usize = 64;

/// Takes the next byte of `data`, or 0 behind its end.
fn take(data: &mut &[u8]) -> u8 {
    match data.split_first() {
        Some((&first, rest)) => {
            *data = rest;
            first
        }
        None => 0,
    }
}

/// Takes so many bytes of `data`, or what there is.
fn take_bytes<'a>(data: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = data.split_at(length.min(data.len()));
    *data = rest;
    taken
}

fn message<M: PartialEq + Debug>(
    data: &[u8],
    parse: impl Fn(&[u8]) -> Result<M, MessageError>,
    to_bytes: impl Fn(&M) -> Vec<u8>,
) {
    let Ok(message) = parse(data) else { return };
    let mut bytes = to_bytes(&message);
    if bytes.len() <= CUT_MAX_BYTES {
        for end in 0..bytes.len() {
            // Only zeroes that mean nothing may be cut off.
            if let Ok(cut) = parse(&bytes[..end]) {
                assert_eq!(cut, message);
                assert!(bytes[end..].iter().all(|&byte| byte == 0));
            }
        }
    }
    assert_eq!(parse(&bytes).as_ref(), Ok(&message));
    bytes.extend_from_slice(&[0xA5; 9]);
    assert_eq!(parse(&bytes), Ok(message));
}

/// Messages of both sides: what is read is written back the same, and one that is cut is refused.
pub fn messages(data: &[u8]) {
    message(data, HostMessage::parse, HostMessage::to_bytes);
    message(data, ControllerMessage::parse, ControllerMessage::to_bytes);
}

/// Texts of keys: what is accepted is written back the same, no error and no `Debug` shows it, and one
/// changed character is noticed.
///
/// The bytes are tried as text. They are also made a key, of which the byte that the first one tells is
/// changed to the second.
pub fn keys(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    key_text(&text);
    let mut rest = data;
    let (at, to) = (usize::from(take(&mut rest)), take(&mut rest));
    let hash = if at & 1 == 0 { PskHash::Sha256 } else { PskHash::Sha384 };
    let (Ok(psk), Ok(secret)) = (ConfiguredPsk::generate(hash), DhchapKey::generate(hash.hash()))
    else {
        return;
    };
    for text in [psk.to_text(), secret.to_text()] {
        let good = String::from_utf8_lossy(text.expose()).into_owned();
        key_text(&good);
        let mut bytes = good.clone().into_bytes();
        let at = at % bytes.len();
        bytes[at] = to;
        let changed = String::from_utf8_lossy(&bytes).into_owned();
        key_text(&changed);
        // The digits of the hash are not part of the checksum.
        let digits = good.find(':').map_or(0, |colon| colon + 1);
        if !(digits..digits + 2).contains(&at) && changed.trim() != good {
            assert!(ConfiguredPsk::parse(&changed).is_err());
            assert!(DhchapKey::parse(&changed).is_err());
        }
    }
}

fn key_text(text: &str) {
    let shown = text.trim();
    match ConfiguredPsk::parse(text) {
        Ok(key) => {
            assert!(key.to_text().expose() == shown.as_bytes());
            assert!(!format!("{key:?}").contains(&shown[16..24]));
            let names = Names::new("nqn.host", "nqn.subsystem").expect("good names");
            let identities = key.identities(&names, Derivation::Standard);
            assert!((2..=3).contains(&identities.len()));
            for (number, identity) in identities.iter().enumerate() {
                assert!(identity.psk.length_bytes() == identity.hash.key_bytes());
                let others = &identities[number + 1..];
                assert!(others.iter().all(|other| other.identity != identity.identity));
            }
        }
        Err(error) => assert!(shown.len() < 24 || !error.to_string().contains(shown)),
    }
    match DhchapKey::parse(text) {
        Ok(key) => {
            assert!(key.to_text().expose() == shown.as_bytes());
            assert!(key.transform("nqn.host").length_bytes() >= 32);
            assert!(!format!("{key:?}").contains(&shown[10..18]));
        }
        Err(error) => assert!(shown.len() < 24 || !error.to_string().contains(shown)),
    }
}

/// Both sides of one queue, between which anything may happen.
struct Sides {
    controller: ControllerAuth,
    host_config: Arc<HostConfig>,
    host: HostAuth,
    /// What the host wants to send.
    to_send: Vec<u8>,
    /// What the controller has answered last.
    received: Vec<u8>,
    /// What the helper thread has calculated.
    done: Option<Done>,
    host_authenticated: bool,
    failed: bool,
}

fn secret(byte: u8) -> DhchapKey {
    let key = crate::Secret::new(vec![byte; 32]);
    let text = crate::key_text::format(crate::KeyKind::DhChap, 1, &key);
    DhchapKey::parse(&String::from_utf8_lossy(text.expose())).expect("a good key")
}

impl Sides {
    /// Bit 0 of `settings`: the host has the wrong secret. Bit 1: mutual. Bit 2: the controller has the
    /// wrong secret. Bit 3: it has two for the host. Bit 4: ffdhe2048. Bits 7:6: the hash.
    fn new(settings: u8) -> Self {
        let names = Names::new("nqn.host", "nqn.subsystem").expect("good names");
        let group = if settings & 0x10 == 0 { Group::Null } else { Group::Ffdhe2048 };
        let hash = Hash::ALL[usize::from(settings >> 6).min(2)];
        let algorithms = Algorithms { hashes: vec![hash], groups: vec![group] };
        let bit = |bit: u8| settings >> bit & 1;
        let host_keys = [secret(1), secret(2)];
        let known = &host_keys[..1 + usize::from(bit(3))];
        let own = secret(3 + bit(2));
        let config = ControllerConfig::new(names.clone(), known, Some(&own), algorithms.clone());
        let host_key = secret(if bit(0) == 0 { known.len() as u8 } else { 9 });
        let controller_key = (bit(1) == 1).then(|| secret(3));
        let host_config =
            Arc::new(HostConfig::new(names, &host_key, controller_key.as_ref(), algorithms));
        let (host, _) = HostAuth::new(Arc::clone(&host_config), 0);
        Self {
            controller: ControllerAuth::new(Arc::new(config), 0),
            host_config,
            host,
            to_send: Vec::new(),
            received: Vec::new(),
            done: None,
            host_authenticated: false,
            failed: false,
        }
    }

    fn host_step(&mut self, step: HostStep) {
        match step {
            HostStep::Exchange(message) => self.to_send = message,
            HostStep::Finished { last, result } => {
                self.host_authenticated = result.is_ok();
                self.to_send = last.unwrap_or_default();
            }
        }
        assert!(self.to_send.is_empty() || HostMessage::parse(&self.to_send).is_ok());
    }

    fn controller_step(&mut self, step: Step) {
        match step {
            Step::Complete => assert!(!self.failed),
            Step::Compute(work) => {
                assert!(!self.failed);
                self.done = Some(work.run());
            }
            Step::Authenticated(authentication) => {
                assert!(!self.failed);
                assert_eq!(self.controller.authentication(), Some(authentication));
                assert_eq!(self.controller.deadline_us(0), None);
            }
            Step::Refused(refusal) => {
                assert!(!refusal.to_string().is_empty());
                assert!((1..=7).contains(&refusal.reason().code()));
                self.failed = true;
            }
            Step::HostRefused(_) => self.failed = true,
        }
        self.check();
    }

    fn receive(&mut self, allocation_bytes: u32) {
        match self.controller.receive(allocation_bytes) {
            Ok(answer) => {
                assert!(answer.message.len() <= allocation_bytes as usize);
                let message = ControllerMessage::parse(&answer.message);
                assert_eq!(message.map(|message| message.to_bytes()).as_ref(), Ok(&answer.message));
                match answer.then {
                    Then::Continue => assert!(!self.failed),
                    Then::Authenticated(_) => {
                        assert!(!self.failed && self.controller.authentication().is_some());
                    }
                    Then::Close(_) => self.failed = true,
                }
                self.received = answer.message;
            }
            Err(error) => assert!(error.needed_bytes > allocation_bytes as usize),
        }
        self.check();
    }

    fn check(&self) {
        assert!(!self.failed || self.controller.authentication().is_none());
        if self.controller.authentication().is_none() {
            assert_eq!(self.controller.deadline_us(5), Some(5000));
        }
    }

    /// One step, as `data` says.
    fn step(&mut self, data: &mut &[u8]) {
        match take(data) % 11 {
            0 => {
                let (host, step) =
                    HostAuth::new(Arc::clone(&self.host_config), u16::from(take(data)));
                self.host = host;
                self.host_step(step);
            }
            1 | 2 => {
                let step = self.controller.send(&self.to_send, 0);
                self.controller_step(step);
            }
            3 => {
                let length = usize::from(take(data));
                let step = self.controller.send(take_bytes(data, length), 0);
                self.controller_step(step);
            }
            4 => {
                if let Some(done) = self.done.take() {
                    let step = self.controller.completed(done);
                    self.controller_step(step);
                }
            }
            5 | 6 => self.receive(4096),
            7 => {
                let allocation_bytes = u32::from(take(data)) * 4;
                self.receive(allocation_bytes);
            }
            8 => {
                let step = self.host.received(&self.received);
                self.host_step(step);
            }
            9 => {
                let length = usize::from(take(data));
                let step = self.host.received(take_bytes(data, length));
                self.host_step(step);
            }
            _ => {
                let (side, at, change) = (take(data), usize::from(take(data)), take(data));
                let message = if side & 1 == 0 { &mut self.to_send } else { &mut self.received };
                if let Some(byte) = message.get_mut(at) {
                    *byte ^= change;
                }
            }
        }
    }
}

/// The controller's side, with a host that may send anything: it never panics, ends at the first
/// failure, keeps to the length that it is allowed, and never believes a host with another secret.
pub fn controller(mut data: &[u8]) {
    let settings = take(&mut data);
    let mut sides = Sides::new(settings);
    for _ in 0..STEPS_MAX {
        if data.is_empty() {
            break;
        }
        sides.step(&mut data);
        assert!(settings & 1 == 0 || sides.controller.authentication().is_none());
    }
}

/// The host's side, with a controller that may send anything: it never panics, and never believes a
/// controller with another secret if it is to authenticate it.
pub fn host(mut data: &[u8]) {
    let settings = take(&mut data) | 2;
    let mut sides = Sides::new(settings);
    let (host, step) = HostAuth::new(Arc::clone(&sides.host_config), 7);
    sides.host = host;
    sides.host_step(step);
    for _ in 0..STEPS_MAX {
        if data.is_empty() {
            break;
        }
        sides.step(&mut data);
        assert!(settings & 4 == 0 || !sides.host_authenticated);
    }
}
