//! Authentication Send and Authentication Receive (NVMe Base 2.0 §6.1, §6.2, §8.13).

use super::context::{Answered, Command, Context, Outcome, wrong_length, wrong_pointer};
use crate::access::{Reason, Rights};
use crate::association::Association;
use crate::authenticator::{Authenticated, Authentication, Party};
use crate::connection::Connection;
use crate::limits::{ASSOCIATION_UNITS, MAX_AUTH_MESSAGE_BYTES};
use crate::queue::State;
use crate::refusal::{Refusal, Reply};
use crate::transport::Payload;
use bpfof_auth::dhchap::{self, ControllerAuth, Step, Then};
use bpfof_nvme::fabrics::SecurityProtocol;
use bpfof_nvme::{DataPointer, Status};
use log::Level;

fn check_protocol(protocol: SecurityProtocol) -> Result<(), Refusal> {
    match protocol == SecurityProtocol::IN_BAND {
        true => Ok(()),
        false => Err(Refusal::field("SECP, SPSP0 or SPSP1", "only DH-HMAC-CHAP is supported")),
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
    if length_bytes != length || length_bytes > MAX_AUTH_MESSAGE_BYTES {
        return Err(wrong_length(length, length_bytes.min(MAX_AUTH_MESSAGE_BYTES)));
    }
    if !matches!(command.pointer, DataPointer::InCapsule { .. }) && command.data.is_empty() {
        return match cx.connection.phase.is_admin() {
            true => Ok(Outcome::NeedData(length_bytes)),
            false => Err(wrong_pointer("on an I/O queue the message must be in the capsule")),
        };
    }
    // After a failure the host may only fetch the reason: end the connection.
    if cx.connection.phase.association().is_some_and(|association| association.has_failed) {
        cx.connection.asks.close = Some("its authentication failed");
        return Ok(Outcome::DONE);
    }
    let now_us = cx.executor.now_ns / 1000;
    renew_keys(cx);
    let step = auth(cx)?.send(command.data, now_us);
    follow(cx, Some(command), step)
}

/// Takes over the host's current secrets, which may have changed since it connected.
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
        Refusal::new(status, "no secret is configured for the host, so it need not authenticate")
    })
}

/// Whose turn the arithmetic takes.
fn party(connection: &Connection) -> Party {
    let association = connection.phase.association();
    let proved = association
        .filter(|of| connection.port.identity().is_some() || !of.awaits_authentication());
    match proved {
        Some(association) => Party::Host(association.controller.host_nqn().to_owned()),
        None => Party::Address(connection.ends.counted_address()),
    }
}

/// Acts on the result of a message. Without `command`, the command waits in a slot.
fn follow(cx: &mut Context<'_>, command: Option<&Command<'_>>, step: Step) -> Answered {
    match step {
        Step::Complete => {}
        Step::Compute(work) => {
            let Some(command) = command else { return Ok(Outcome::DONE) };
            let command = cx.occupy(command, State::Authentication);
            let (serial, party) = (cx.connection.serial, party(cx.connection));
            let authentication = Authentication { command, serial, party, work };
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

/// Continues after the arithmetic of a step, and answers the command that required it.
pub(crate) fn computed(cx: &mut Context<'_>, authenticated: Authenticated) {
    let slot = authenticated.command.slot;
    // The command may have been dropped, and its slot reused by another.
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
    // Checked first, because taking the message also advances the protocol.
    command.check_remote()?;
    let answer = auth(cx)?.receive(length_bytes.min(command.pointer.length_bytes()));
    let answer = answer.map_err(|small| {
        // The command may have been out of order, which voids an earlier authentication.
        let ended = |its: &Association| its.awaits_authentication() && its.rights != Rights::NONE;
        if cx.connection.phase.association().is_some_and(ended) {
            failed(cx, "Authentication Receive has no room for the failure message");
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

/// Admits other commands to the queue from now on.
fn succeeded(cx: &mut Context<'_>, how: dhchap::Authentication) {
    let (is_admin, qid) = (cx.connection.phase.is_admin(), cx.connection.queue.id());
    if let Some(association) = cx.connection.phase.association_mut()
        && !is_admin
        && !association.register(qid)
    {
        cx.connection.asks.close =
            Some("its queue id was taken by another queue meanwhile, or the controller was reset");
        return;
    }
    if let Err(full) =
        cx.connection.join_host(&cx.executor.registry.hosts.limits, cx.executor.now_ns)
    {
        let what = format_args!("authenticated, but refused: {full}");
        cx.executor.note(cx.connection, Level::Warn, what);
        cx.executor.registry.denials.count(Reason::Limit);
        cx.connection.asks.close = Some("a limit of its host is reached");
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
