//! The memory that the target uses.

use super::{ConfigError, TargetConfig};
use crate::machine_memory::machine_bytes;

/// By default the target uses this part of the machine's memory besides its namespaces: a quarter.
const DEFAULT_PART: u64 = 4;
/// The minimum for a few hosts: buffers, arenas, one connection each.
const LEAST_BYTES: u64 = 32 << 20;
/// Memory of the process that does not depend on its hosts: the program, rings, stacks, tables.
const PROCESS_BYTES: u64 = 16 << 20;

impl TargetConfig {
    /// Memory for all hosts together in bytes, besides `namespace_bytes` of namespaces in memory.
    pub(crate) fn hosts_bytes(&self, namespace_bytes: u64) -> Result<usize, ConfigError> {
        let given_bytes = self
            .memory_max_bytes
            .unwrap_or_else(|| namespace_bytes + machine_bytes() / DEFAULT_PART);
        let needed_bytes = namespace_bytes + PROCESS_BYTES + LEAST_BYTES;
        if given_bytes < needed_bytes {
            return Err(ConfigError::Memory { given_bytes, namespace_bytes, needed_bytes });
        }
        Ok((given_bytes - namespace_bytes - PROCESS_BYTES) as usize)
    }

    /// Checks that namespaces in memory fit into the machine, unless overcommitting is allowed.
    pub(super) fn check_memory(&self) -> Result<(), ConfigError> {
        let (size_bytes, machine_bytes) = (self.memory_size_bytes(), machine_bytes());
        if size_bytes > machine_bytes && !self.overcommit_memory {
            return Err(ConfigError::NamespaceMemory { size_bytes, machine_bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_overcommitted_only_if_asked_for() {
        let namespace = format!("mem:size={}", 2 * machine_bytes());
        let namespaces = vec![namespace.parse().expect("a namespace")];
        let config = TargetConfig { namespaces, ..TargetConfig::default() };
        let refused = config.check().expect_err("it does not fit").to_string();
        assert!(refused.contains("--overcommit-memory"), "{refused}");
        TargetConfig { overcommit_memory: true, ..config }.check().expect("asked for");
    }

    #[test]
    fn hosts_get_what_the_namespaces_leave() {
        let config =
            |memory_max_bytes| TargetConfig { memory_max_bytes, ..TargetConfig::default() };
        let all = config(Some(1 << 30)).hosts_bytes(512 << 20).expect("enough");
        assert_eq!(all as u64, (512 << 20) - PROCESS_BYTES);
        let error = config(Some(1 << 30)).hosts_bytes(1 << 30).expect_err("nothing left");
        assert!(error.to_string().contains("it must be"), "{error}");
        let large = config(None).hosts_bytes(1 << 50).expect("of the machine beside it");
        assert!(large as u64 <= machine_bytes() / DEFAULT_PART);
    }
}
