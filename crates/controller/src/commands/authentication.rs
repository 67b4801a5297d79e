//! Authentication Send and Authentication Receive (NVMe Base 2.0 §6.1, §6.2, §8.13).

use super::context::{Answered, Command, Context, Outcome, wrong_length, wrong_pointer};
use super::functions::ASSOCIATION_UNITS;
use crate::access::{Reason, Rights};
use crate::association::Association;
use crate::authenticator::{Authenticated, Authentication};
use crate::queue::State;
use crate::refusal::{Refusal, Reply};
use crate::transport::Payload;
use bpfof_auth::dhchap::{self, ControllerAuth, Step, Then};
use bpfof_nvme::fabrics::SecurityProtocol;
use bpfof_nvme::{DataPointer, Status};
use log::Level;

/// Longer messages are none, in bytes.
const MESSAGE_MAX_BYTES: u32 = 4096;

fn check_protocol(protocol: SecurityProtocol) -> Result<(), Refusal> {
    match protocol == SecurityProtocol::IN_BAND {
        true => Ok(()),
        false => Err(Refusal::field("SECP, SPSP0 or SPSP1", "there is DH-HMAC-CHAP only")),
    }
}

/// Authentication Send.
pub(super) fn send(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    protocol: SecurityProtocol,
    length_bytes: u32,
) -> Answered {
    check_protocol(protocol)?;
    let length = command.pointer.length_bytes();
    if length_bytes != length || length_bytes > MESSAGE_MAX_BYTES {
        return Err(wrong_length(length, length_bytes.min(MESSAGE_MAX_BYTES)));
    }
    if !matches!(command.pointer, DataPointer::InCapsule { .. }) && command.data.is_empty() {
        return match cx.connection.phase.is_admin() {
            true => Ok(Outcome::NeedData(length_bytes)),
            false => Err(wrong_pointer("the message is in the capsule")),
        };
    }
    // It has been told, and may fetch why: for more nobody does anything.
    if cx.connection.phase.association().is_some_and(|association| association.has_failed) {
        cx.connection.asks.close = Some("its authentication failed");
        return Ok(Outcome::DONE);
    }
    let now_us = cx.executor.now_ns / 1000;
    renew_keys(cx);
    let step = auth(cx)?.send(command.data, now_us);
    follow(cx, Some(command), step)
}

/// The secrets of the host may have changed since it connected.
fn renew_keys(cx: &mut Context<'_>) {
    let rules = cx.executor.registry.rules();
    let Some(association) = cx.connection.phase.association_mut() else { return };
    let found = rules.access(association.controller.host_nqn(), &association.subsystem.nqn);
    if let (Some(auth), Some(config)) =
        (&mut association.auth, found.and_then(|access| access.authentication))
    {
        auth.set_config(config);
    }
}

fn auth<'a>(cx: &'a mut Context<'_>) -> Result<&'a mut ControllerAuth, Refusal> {
    let association = cx.connection.phase.association_mut();
    let auth = association.and_then(|association| association.auth.as_deref_mut());
    auth.ok_or_else(|| {
        let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        Refusal::new(status, "the host has no secret here, and need not authenticate itself")
    })
}

/// What a message leads to. Without a command, the slot of one waits for the result.
fn follow(cx: &mut Context<'_>, command: Option<&Command<'_>>, step: Step) -> Answered {
    match step {
        Step::Complete => {}
        Step::Compute(work) => {
            let Some(command) = command else { return Ok(Outcome::DONE) };
            let command = cx.occupy(command, State::Authentication);
            let (serial, address) = (cx.connection.serial, cx.connection.ends.counted_address());
            let authentication = Authentication { command, serial, address, work };
            cx.executor.outbox.authentications.push(authentication);
            return Ok(Outcome::Pending);
        }
        Step::Authenticated(how) => succeeded(cx, how),
        Step::Refused(refusal) => failed(cx, &refusal.to_string()),
        Step::HostRefused(reason) => {
            failed(cx, &format!("the host has given up: {reason}"));
            cx.connection.asks.close = Some("its authentication failed");
        }
    }
    Ok(Outcome::DONE)
}

/// Arithmetic has ended: the command that has led to it is answered.
pub(crate) fn computed(cx: &mut Context<'_>, authenticated: Authenticated) {
    let slot = authenticated.command.slot;
    // It may have been forgotten, and the slot be another command's.
    if !matches!(cx.connection.queue.slot(slot).state, State::Authentication) {
        return;
    }
    let taken = cx.connection.queue.vacate(slot);
    let reply = match auth(cx) {
        Ok(auth) => {
            let step = auth.completed(authenticated.done);
            match follow(cx, None, step) {
                Ok(_) => Reply::default(),
                Err(refusal) => refusal.reply,
            }
        }
        Err(refusal) => refusal.reply,
    };
    cx.respond(&taken, reply, Payload::None);
}

/// Authentication Receive.
pub(super) fn receive(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    protocol: SecurityProtocol,
    length_bytes: u32,
) -> Answered {
    check_protocol(protocol)?;
    // Before the message is taken, and with it the step that it leads to.
    command.check_remote()?;
    let answer = auth(cx)?.receive(length_bytes.min(command.pointer.length_bytes()));
    let answer = answer.map_err(|small| {
        // It may have been out of order, and ended what was proved before.
        let ended = |its: &Association| its.awaits_authentication() && its.rights != Rights::NONE;
        if cx.connection.phase.association().is_some_and(ended) {
            failed(cx, "Authentication Receive without room for a failure");
        }
        Refusal::field("AL", small.to_string())
    })?;
    match answer.then {
        Then::Continue => {}
        Then::Authenticated(how) => succeeded(cx, how),
        Then::Close(refusal) => {
            failed(cx, &refusal.to_string());
            cx.connection.asks.close = Some("its authentication failed");
        }
    }
    Ok(Outcome::Data(Reply::default(), answer.message))
}

/// The queue takes other commands from now on.
fn succeeded(cx: &mut Context<'_>, how: dhchap::Authentication) {
    let (is_admin, qid) = (cx.connection.phase.is_admin(), cx.connection.queue.id());
    if let Some(association) = cx.connection.phase.association_mut()
        && !is_admin
        && !association.register(qid)
    {
        cx.connection.asks.close = Some("its id is another queue's by now, or it was reset");
        return;
    }
    if let Err(full) =
        cx.connection.join_host(&cx.executor.registry.hosts.limits, cx.executor.now_ns)
    {
        let what = format_args!("it has authenticated itself, and there is no room: {full}");
        cx.executor.note(cx.connection, Level::Warn, what);
        cx.connection.asks.close = Some("its host may have no more");
        if let Some(association) = cx.connection.phase.association_mut() {
            association.has_failed = true;
        }
        return;
    }
    if let Some(association) = cx.connection.phase.association_mut() {
        association.admit();
        let kept = if is_admin { association.subsystem.kept_count() } else { 0 };
        cx.executor.spend(kept as u64 * ASSOCIATION_UNITS);
    }
    let both = if how.mutual { ", and so is the target" } else { "" };
    let which = if how.host_key == 0 { "" } else { ", by its second secret" };
    let (hash, group) = (how.hash, how.group);
    let what = format_args!("authenticated with {hash:?} and {group:?}{which}{both}");
    cx.executor.note(cx.connection, Level::Info, what);
}

fn failed(cx: &mut Context<'_>, why: &str) {
    let Some(association) = cx.connection.phase.association_mut() else { return };
    association.rights = Rights::NONE;
    if std::mem::replace(&mut association.has_failed, true) {
        return;
    }
    cx.executor.registry.denials.count(Reason::NotAuthenticated);
    let what = format_args!("authentication failed: {why}");
    cx.executor.note(cx.connection, Level::Warn, what);
}
