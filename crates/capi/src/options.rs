//! `struct bpfof_options`.

/// `BPFOF_NO_FALL_BACK`
pub(crate) const NO_FALL_BACK: u32 = 1;
/// `BPFOF_POLL`
pub(crate) const POLL: u32 = 2;
/// `BPFOF_STABLE_FDS`
pub(crate) const STABLE_FDS: u32 = 4;
/// `struct bpfof_options`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) size: usize,
    pub(crate) flags: u32,
    pub(crate) retries: u32,
    pub(crate) patience_us: u32,
    pub(crate) connect_timeout_ms: u32,
    pub(crate) command_timeout_ms: u32,
    pub(crate) queue_depth: u32,
    pub(crate) lanes_max: u32,
    pub(crate) reserved: u32,
}

impl Default for Options {
    /// `BPFOF_OPTIONS_INIT`
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            flags: 0,
            retries: 1,
            patience_us: 20_000,
            connect_timeout_ms: 5000,
            command_timeout_ms: 30_000,
            queue_depth: 128,
            lanes_max: 0,
            reserved: 0,
        }
    }
}
