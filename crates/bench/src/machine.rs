//! This machine: its processors, processor time, free memory.

use std::sync::OnceLock;

/// Processors for host and target: one each if there are two. Must be called before any thread is pinned, because a
/// pinned thread sees only one processor.
pub(crate) fn processors() -> (usize, Option<usize>) {
    static ALLOWED: OnceLock<(usize, Option<usize>)> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let Ok(set) = rustix::thread::sched_getaffinity(None) else { return (0, None) };
        let mut allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
        (allowed.next().unwrap_or(0), allowed.next())
    })
}

/// Keeps the calling thread on a processor.
pub(crate) fn pin(processor: usize) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run on every processor that the kernel allows.
pub(crate) fn unpin() -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|core| set.set(core));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Processor time of all threads of a process, in ns: the first field of each schedstat.
pub(crate) fn process_cpu_ns(pid: u32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut total = 0;
    for task in tasks.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        total += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(total)
}

/// Processor time of this process in ns, including ended threads.
pub(crate) fn own_cpu_ns() -> Option<u64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(u64::try_from(time.tv_sec).ok()? * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

/// Memory available to new programs, in bytes.
pub(crate) fn free_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
