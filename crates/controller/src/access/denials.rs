//! How often hosts were refused something.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a host was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No rule names the host.
    NoRule,
    /// A rule names it, and does not give the right that the command needs.
    NoRight,
    /// Its rule asks for TLS, and it came without.
    NoTls,
    /// The name in Connect is not the one that its key was made for.
    ForeignName,
    /// No TLS handshake: no key, a wrong one, or no TLS at all.
    Handshake,
    /// It did not authenticate itself.
    NotAuthenticated,
}

impl Reason {
    const ALL: [Reason; 6] = [
        Reason::NoRule,
        Reason::NoRight,
        Reason::NoTls,
        Reason::ForeignName,
        Reason::Handshake,
        Reason::NotAuthenticated,
    ];

    /// In words, for metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Reason::NoRule => "no rule",
            Reason::NoRight => "no right",
            Reason::NoTls => "no TLS",
            Reason::ForeignName => "foreign name",
            Reason::Handshake => "TLS handshake",
            Reason::NotAuthenticated => "not authenticated",
        }
    }
}

/// Counters by reason.
#[derive(Debug, Default)]
pub(crate) struct Denials([AtomicU64; Reason::ALL.len()]);

impl Denials {
    /// Counts a refusal.
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were, by reason.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        let count = |reason: Reason| self.0[reason as usize].load(Ordering::Relaxed);
        Reason::ALL.into_iter().map(move |reason| (reason, count(reason)))
    }
}
