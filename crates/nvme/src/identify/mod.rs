//! Identify structures (NVMe Base 2.0 §5.17.2, NVM Command Set 1.0 §4.1.5).

mod controller;
mod lists;
mod namespace;

pub use controller::{IdentifyController, NvmController};
pub use lists::{NamespaceDescriptor, namespace_descriptors, namespace_list, parse_namespace_list};
pub use lists::{NamespaceDescriptorError, parse_namespace_descriptors};
pub use namespace::{IdentifyNamespace, IndependentNamespace, LbaFormat};

/// Every identify structure is 4096 bytes (NVMe Base 2.0 §5.17).
pub const IDENTIFY_BYTES: usize = 4096;

/// Values of CNS: which structure to return (NVMe Base 2.0 §5.17.1).
pub mod cns {
    /// Identify Namespace of the NVM command set (NVM Command Set 1.0 §4.1.5.1).
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller (NVMe Base 2.0 §5.17.2.1).
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace list (§5.17.2.2).
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors (§5.17.2.3).
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// I/O command set specific Identify Namespace (§5.17.2.5).
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// I/O command set specific Identify Controller (§5.17.2.6).
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Command set independent Identify Namespace (§5.17.2.8).
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
}
