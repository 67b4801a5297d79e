//! Code that the commands share.

use crate::hex;
use bpfkv::Value;
use bpfkv::format::number_of;
use bpfof_host::TargetUrl;
use bpfof_terminal::default_target;

/// The given target, or the one of the environment.
pub(super) fn target(given: Option<&TargetUrl>, other: &str) -> Result<TargetUrl, String> {
    match given {
        Some(url) => Ok(url.clone()),
        None => default_target()?.ok_or(format!("give --target (or BPFOF_TARGET), or {other}")),
    }
}

/// A value as text: a number in decimal, printable text as it is, other values in hexadecimal.
pub(super) fn text(value: &Value) -> String {
    if let Some(number) = number_of(value) {
        return number.to_string();
    }
    let trimmed = value.strip_suffix(&[0]).unwrap_or(value);
    match str::from_utf8(trimmed) {
        Ok(text) if !text.contains(|c: char| c.is_control()) => text.trim_start().to_owned(),
        _ => hex::encode(value),
    }
}
