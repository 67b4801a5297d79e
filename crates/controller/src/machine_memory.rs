//! The amount of memory of this machine.

/// Memory of the machine, or of the control group that the process is in, in bytes.
pub(crate) fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit);
    group_bytes().map_or(machine, |group| group.min(machine))
}

/// The lowest limit of the process's control group and its parents, if there is one (cgroup version
/// 2; a container's limit is among them).
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
