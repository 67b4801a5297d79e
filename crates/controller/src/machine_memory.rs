//! How much memory there is, and how much of it the target may take.

use crate::config::{ConfigError, TargetConfig};

/// The part of the machine's memory that the target takes beside that of its namespaces, unless it is
/// told otherwise: a quarter.
const DEFAULT_PART: u64 = 4;
/// The least that serves a few hosts: buffers, arenas, one connection each.
const LEAST_BYTES: u64 = 32 << 20;
/// What the process takes whoever is connected: the program, rings, stacks, tables.
const PROCESS_BYTES: u64 = 16 << 20;

/// What hosts may take together, in bytes, beside namespaces in memory of so many bytes.
pub(crate) fn hosts_bytes(
    config: &TargetConfig,
    namespace_bytes: u64,
) -> Result<usize, ConfigError> {
    let given_bytes =
        config.memory_max_bytes.unwrap_or_else(|| namespace_bytes + machine_bytes() / DEFAULT_PART);
    let needed_bytes = namespace_bytes + PROCESS_BYTES + LEAST_BYTES;
    if given_bytes < needed_bytes {
        return Err(ConfigError::Memory { given_bytes, namespace_bytes, needed_bytes });
    }
    Ok((given_bytes - namespace_bytes - PROCESS_BYTES) as usize)
}

/// Memory of the machine, or of the control group that the process is in, in bytes.
pub(crate) fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit);
    group_bytes().map_or(machine, |group| group.min(machine))
}

/// The limit of the process's control group, if it has one (version 2, or of the whole container).
fn group_bytes() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut limits = std::path::Path::new(path).ancestors().filter_map(|group| {
        let group = group.strip_prefix("/").unwrap_or(group);
        let file = std::path::Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    let first = limits.next()?;
    Some(limits.fold(first, u64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_what_the_namespaces_leave() {
        let config =
            |memory_max_bytes| TargetConfig { memory_max_bytes, ..TargetConfig::default() };
        let all = hosts_bytes(&config(Some(1 << 30)), 512 << 20).expect("enough");
        assert_eq!(all as u64, (512 << 20) - PROCESS_BYTES);
        let error = hosts_bytes(&config(Some(1 << 30)), 1 << 30).expect_err("nothing left");
        assert!(error.to_string().contains("it must be"), "{error}");
        let large = hosts_bytes(&config(None), 1 << 50).expect("of the machine beside it");
        assert!(large as u64 <= machine_bytes() / DEFAULT_PART);
    }
}
