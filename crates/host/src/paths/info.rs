//! The public description of a path.

use super::state::PathState;
use crate::TargetUrl;

/// A path to a subsystem, as [`Controller::paths`](crate::Controller::paths) reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathInfo {
    /// Its portal: host and port.
    pub address: String,
    /// Its state.
    pub state: PathState,
    /// Whether new requests use it.
    pub is_preferred: bool,
    /// Why it is not usable; None while it is usable.
    pub reason: Option<String>,
}

impl PathInfo {
    /// The only path of an address with one portal.
    pub(crate) fn of_only(url: &TargetUrl, is_connected: bool) -> Self {
        let state = if is_connected { PathState::Optimized } else { PathState::Lost };
        let address = url.portals().next().map_or_else(String::new, |portal| portal.to_string());
        Self { address, state, is_preferred: is_connected, reason: None }
    }
}
