//! Whether hosts connect by TLS.

/// Whether hosts connect by TLS (NVMe/TCP 1.0 §3.6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Allowed if a rule has a TLS key.
    #[default]
    ByRules,
    /// Never.
    Off,
    /// With or without, on one port; hosts whose rule has a TLS key must use it.
    Allowed,
    /// Always.
    Required,
}
