//! Whether hosts come by TLS.

/// Whether hosts come by TLS (NVMe/TCP 1.0 §3.6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Allowed if a rule has a key for it.
    #[default]
    ByRules,
    /// Never.
    Off,
    /// With or without, on one port; those whose rule has a key must.
    Allowed,
    /// Always.
    Required,
}
