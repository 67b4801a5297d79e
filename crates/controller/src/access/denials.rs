//! Counts refusals of hosts, and how their TLS handshakes ended.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a host was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No rule names the host.
    NoRule,
    /// A rule names the host, but does not give the right that the command needs.
    NoRight,
    /// Its rule requires TLS, and the host came without.
    NoTls,
    /// The name in Connect is not the one that its key was made for.
    ForeignName,
    /// Its TLS handshake failed: no key, a wrong one, or no TLS at all.
    Handshake,
    /// It did not authenticate itself.
    NotAuthenticated,
    /// There were too many connections or associations, or no memory for one more: it was refused, or ended for others.
    Limit,
}

impl Reason {
    const ALL: [Reason; 7] = [
        Reason::NoRule,
        Reason::NoRight,
        Reason::NoTls,
        Reason::ForeignName,
        Reason::Handshake,
        Reason::NotAuthenticated,
        Reason::Limit,
    ];

    /// Its name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Reason::NoRule => "no rule",
            Reason::NoRight => "no right",
            Reason::NoTls => "no TLS",
            Reason::ForeignName => "foreign name",
            Reason::Handshake => "TLS handshake",
            Reason::NotAuthenticated => "not authenticated",
            Reason::Limit => "limit",
        }
    }
}

/// How a TLS handshake has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshaken {
    /// The kernel seals the records.
    Kernel,
    /// This process seals the records.
    Process,
    /// The host came without TLS, which its listener allows.
    Plain,
    /// No key, a wrong one, or bytes that are not TLS.
    Failed,
    /// There were too many others.
    Refused,
}

impl Handshaken {
    const ALL: [(Handshaken, &'static str); 5] = [
        (Handshaken::Kernel, "kernel"),
        (Handshaken::Process, "process"),
        (Handshaken::Plain, "plain"),
        (Handshaken::Failed, "failed"),
        (Handshaken::Refused, "refused"),
    ];
}

/// Handshakes by result.
#[derive(Debug, Default)]
pub(crate) struct HandshakeCounts([AtomicU64; Handshaken::ALL.len()]);

impl HandshakeCounts {
    /// Counts one.
    pub(crate) fn count(&self, result: Handshaken) {
        self.0[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were, by the name of the result.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let count = |result: Handshaken| self.0[result as usize].load(Ordering::Relaxed);
        Handshaken::ALL.into_iter().map(move |(result, name)| (name, count(result)))
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
