//! Describes in terms of C what the verifier could not prove, without its registers and facts.

use crate::model;
use crate::obstacle::Obstacle;
use prevail::cfg::label::Label;
use prevail::ir::syntax::{AccessType, Assertion, Reg, ValidAccess, Value};
use std::collections::BTreeSet;

/// The place of an access that is farther from the data than this, in bytes, is not reported.
const FAR_BYTES: i64 = 1 << 20;

/// The missing part of a proof.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    /// This assertion, with the verifier's message.
    Assertion(Assertion, String),
    /// A write through a pointer that may point to constants.
    MayBeConstant,
    /// The verifier cannot go on.
    Other,
}

/// `known` has the facts that hold before the instruction, such as `r1.packet_offset=[0, 512]`.
pub(crate) fn obstacle(label: &Label, missing: &Missing, known: &BTreeSet<String>) -> Obstacle {
    let reason = match missing {
        Missing::Assertion(assertion, message) => assertion_reason(assertion, message, known),
        Missing::MayBeConstant => {
            "writes to static data, and the verifier cannot tell variables from constants, \
             which are read-only"
                .to_owned()
        }
        Missing::Other => "the verifier cannot follow this computation".to_owned(),
    };
    Obstacle { pc: model::instruction(label), reason }
}

fn assertion_reason(assertion: &Assertion, message: &str, known: &BTreeSet<String>) -> String {
    match assertion {
        Assertion::ValidAccess(access) => access_reason(access, message, known),
        Assertion::TypeConstraint(_) => {
            "uses a pointer to unknown memory: it was loaded from memory, \
             computed, or differs between paths"
                .to_owned()
        }
        Assertion::Addable(_) => "adds two numbers that may both be pointers".to_owned(),
        Assertion::Comparable(_) => {
            "compares or subtracts pointers that may point to different kinds of memory".to_owned()
        }
        Assertion::ValidSize(one) => format!(
            "the length in argument {} of the helper may exceed all memory{}",
            one.reg.v,
            range(known, one.reg, "svalue").map(in_brackets).unwrap_or_default()
        ),
        _ => "the verifier cannot follow this operation".to_owned(),
    }
}

/// Describes an access, and how it may fail.
fn access_reason(access: &ValidAccess, message: &str, known: &BTreeSet<String>) -> String {
    let what = what(access, known);
    let has = |kind: &str| {
        let fact = format!("r{}.{kind}=", access.reg.v);
        known.iter().any(|line| line.starts_with(&fact))
    };
    if message.contains("packet_size") || message.contains("65537") {
        format!("{what}, which may be past ctx->data_end: compare with ctx->data_end first")
    } else if message.contains("meta_offset") {
        format!("{what}, which may be before ctx->scratch")
    } else if message.contains("stack_size") || message.contains("stack_offset") {
        format!("{what}, which may be outside of the function's stack: compare the index first")
    } else if message.contains("context pointer") {
        format!("{what}, which may change ctx->data, ctx->data_end or ctx->scratch")
    } else if has("ctx_offset") {
        format!("{what}, which may be outside of *ctx")
    } else if message.contains("shared_region_size") || has("shared_offset") {
        format!("{what}, which may be outside of the static data: compare the index first")
    } else if message.contains("numeric") {
        format!("{what} on the stack, which may be uninitialized or hold a pointer")
    } else {
        format!("{what}, at an unknown address")
    }
}

/// Describes an access and its place, if that is known: "reads 8 bytes at ctx->data + 56".
fn what(access: &ValidAccess, known: &BTreeSet<String>) -> String {
    let bytes = match (access.access_type, access.width) {
        (AccessType::Compare, _) => return "compares or subtracts a pointer".to_owned(),
        (_, Value::Reg(length)) => {
            let most = range(known, length, "svalue").map(in_brackets).unwrap_or_default();
            return format!(
                "the helper takes memory at argument {} that is as long as argument {} says{most}",
                access.reg.v, length.v
            );
        }
        (_, Value::Imm(bytes)) => bytes.v,
    };
    let verb = if access.access_type == AccessType::Write { "writes" } else { "reads" };
    let plural = if bytes == 1 { "" } else { "s" };
    let place = range(known, access.reg, "packet_offset").and_then(|(first, last)| {
        let offset = i64::from(access.offset);
        Some((first.checked_add(offset)?, last.checked_add(offset)?))
    });
    match place {
        Some((first, last)) if first < 0 || last > FAR_BYTES => {
            format!("{verb} {bytes} byte{plural} of the block or of scratch")
        }
        Some((first, last)) if first == last => {
            format!("{verb} {bytes} byte{plural} at ctx->data + {first}")
        }
        Some((first, last)) => {
            format!("{verb} {bytes} byte{plural} somewhere from ctx->data + {first} to + {last}")
        }
        None => format!("{verb} {bytes} byte{plural}"),
    }
}

/// The first and last possible value of a register's property, if the verifier knows both.
fn range(known: &BTreeSet<String>, reg: Reg, property: &str) -> Option<(i64, i64)> {
    let start = format!("r{}.{property}=", reg.v);
    let fact = known.iter().find_map(|line| line.strip_prefix(&start))?;
    let (first, last) = match fact.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.split_once(',')?,
        None => (fact, fact),
    };
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
}

fn in_brackets((first, last): (i64, i64)) -> String {
    if first == last { format!(" ({first})") } else { format!(" ({first} to {last})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_numbers_or_ranges() {
        let fact = |text: &str| {
            let known = BTreeSet::from([format!("r4.svalue={text}")]);
            range(&known, Reg { v: 4 }, "svalue")
        };
        assert_eq!(fact("7"), Some((7, 7)));
        assert_eq!(fact("[-1, 512]"), Some((-1, 512)));
        for other in ["[0, +oo]", "r1.svalue", "r1.svalue+8", "[0", ""] {
            assert_eq!(fact(other), None, "{other}");
        }
    }
}
