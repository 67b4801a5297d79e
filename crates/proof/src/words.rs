//! What the verifier could not prove, in the words of storage functions.

use crate::model;
use crate::obstacle::Obstacle;
use prevail::cfg::label::Label;
use prevail::ir::syntax::{AccessType, Assertion, Reg, ValidAccess, Value};
use std::collections::BTreeSet;

/// What is missing for a proof.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    /// This, with what the verifier says about it.
    Assertion(Assertion, String),
    /// This pointer, through which something is written, may be one to constants.
    MayBeConstant(Reg),
    /// Something else, in the verifier's words.
    Other(String),
}

/// `known` is what holds before the instruction: facts like `r1.packet_offset=[0, 512]`.
pub(crate) fn obstacle(label: &Label, missing: &Missing, known: &BTreeSet<String>) -> Obstacle {
    let reason = match missing {
        Missing::Assertion(assertion, message) => assertion_reason(assertion, message, known),
        Missing::MayBeConstant(reg) => format!(
            "r{} points to static data, and variables are not told from constants, which must not \
             be written",
            reg.v
        ),
        Missing::Other(message) => format!("not known to hold: {message}"),
    };
    Obstacle { pc: model::instruction(label), reason }
}

fn assertion_reason(assertion: &Assertion, message: &str, known: &BTreeSet<String>) -> String {
    match assertion {
        Assertion::ValidAccess(access) => access_reason(access, message, known),
        Assertion::TypeConstraint(one) => format!(
            "r{} is not known to be a pointer here, or not to one kind of memory only: it was \
             loaded from memory, computed, or differs from way to way",
            one.reg.v
        ),
        Assertion::Addable(one) => {
            format!("r{} and r{} may both be pointers, and are added", one.ptr.v, one.num.v)
        }
        Assertion::Comparable(one) => format!(
            "r{} and r{} are compared or subtracted, and may point to different kinds of memory",
            one.r1.v, one.r2.v
        ),
        Assertion::ValidSize(one) => {
            format!(
                "the length in r{} may be beyond all memory{}",
                one.reg.v,
                value(one.reg, known)
            )
        }
        _ => format!("not known to hold: {message}"),
    }
}

fn access_reason(access: &ValidAccess, message: &str, known: &BTreeSet<String>) -> String {
    let reg = access.reg;
    let place = match access.offset {
        0 => format!("r{}", reg.v),
        offset if offset < 0 => format!("r{} - {}", reg.v, -offset),
        offset => format!("r{} + {offset}", reg.v),
    };
    let what = match (access.access_type, access.width) {
        (AccessType::Compare, _) => format!("{place} is compared or subtracted, and"),
        (_, Value::Imm(bytes)) => format!("an access of {} bytes at {place}", bytes.v),
        (_, Value::Reg(length)) => {
            format!("an access at {place}, as long as r{} says{},", length.v, value(length, known))
        }
    };
    let fact = |kind: &str| {
        known.iter().find_map(|line| line.strip_prefix(&format!("r{}.{kind}=", reg.v)))
    };
    let (outcome, pointer) = if message.contains("packet_size") || message.contains("65537") {
        ("may run past the end of the data", fact("packet_offset").map(|at| format!("data + {at}")))
    } else if message.contains("meta_offset") {
        ("may begin before scratch", fact("packet_offset").map(|at| format!("data + {at}")))
    } else if message.contains("stack_size") || message.contains("stack_offset") {
        ("may leave the stack", fact("stack_offset").map(|at| format!("stack + {at}")))
    } else if message.contains("shared_region_size") {
        ("may leave the static data", fact("shared_offset").map(|at| format!("static data + {at}")))
    } else if message.contains("context pointer") {
        ("may change data, data_end or scratch of the context", None)
    } else if let Some(at) = fact("ctx_offset") {
        ("may leave the context", Some(format!("context + {at}")))
    } else if let Some(at) = fact("shared_offset") {
        ("may leave the static data", Some(format!("static data + {at}")))
    } else if message.contains("numeric") {
        ("may read stack that was never written, or that holds a pointer", None)
    } else {
        return format!("{what} may fault: {message}");
    };
    match pointer {
        Some(pointer) => format!("{what} {outcome}; known of r{}: {pointer}", reg.v),
        None => format!("{what} {outcome}"),
    }
}

/// What is known of a number, in brackets.
fn value(reg: Reg, known: &BTreeSet<String>) -> String {
    let found = known.iter().find_map(|line| line.strip_prefix(&format!("r{}.svalue=", reg.v)));
    found.map_or(String::new(), |range| format!(" ({range})"))
}
