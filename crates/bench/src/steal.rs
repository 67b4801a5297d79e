//! Processor time that a hypervisor takes from measurements for other guests: disturbed measurements are repeated.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The share of all processors' time that a measurement may lose.
const MOST: f64 = 0.02;
/// The most attempts of a measurement; the one that lost least counts.
const ATTEMPTS: u32 = 3;
/// Processor time in /proc/stat is in ticks of this length (`USER_HZ`, which no kernel changes).
const TICK_S: f64 = 0.01;

/// The most that a measurement of this process has lost, in 1/10,000 of all processors' time.
static LOST_MOST: AtomicU32 = AtomicU32::new(0);

/// Measures until an attempt loses little; only once if it is a warm-up.
///
/// # Errors
/// The first error of `measure`.
pub(crate) fn undisturbed<T, E>(
    warm_up: bool,
    mut measure: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    if warm_up {
        return measure();
    }
    let mut timed = || {
        let (before, begun) = (Stat::now(), Instant::now());
        let value = measure()?;
        let available_s = begun.elapsed().as_secs_f64() * before.processors as f64;
        let lost = (Stat::now().stolen_s - before.stolen_s) / available_s.max(TICK_S);
        Ok((lost, value))
    };
    let mut best = timed()?;
    for _ in 1..ATTEMPTS {
        if best.0 <= MOST {
            break;
        }
        let again = timed()?;
        if again.0 < best.0 {
            best = again;
        }
    }
    LOST_MOST.fetch_max((best.0 * 10_000.0) as u32, Ordering::Relaxed);
    Ok(best.1)
}

/// The most that a measurement has lost so far, of 1.
pub(crate) fn lost_most() -> f64 {
    f64::from(LOST_MOST.load(Ordering::Relaxed)) / 10_000.0
}

/// A remark for readers of the figures, if `lost_most` shows that there is a hypervisor.
pub(crate) fn remark(lost_most: f64) -> Option<String> {
    (lost_most > 0.0).then(|| {
        format!(
            "A hypervisor took up to {:.1} % of the processors' time from a measurement; measurements that \
         lost more than {:.0} % were repeated, at most twice.",
            lost_most * 100.0,
            MOST * 100.0
        )
    })
}

/// The relevant fields of /proc/stat.
#[derive(Debug, PartialEq)]
struct Stat {
    /// For all processors together, since the machine was started.
    stolen_s: f64,
    processors: usize,
}

impl Stat {
    fn now() -> Stat {
        Stat::of(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// If the text has no such field, no time was stolen.
    fn of(text: &str) -> Stat {
        let mut lines = text.lines().take_while(|line| line.starts_with("cpu"));
        // cpu, user, nice, system, idle, iowait, irq, softirq, steal
        let total = lines.next().and_then(|line| line.split_whitespace().nth(8));
        let ticks: f64 = total.and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0);
        Stat { stolen_s: ticks * TICK_S, processors: lines.count().max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read() {
        let text = "cpu  1 2 3 4 5 6 7 250 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 0\nintr 1 2\n";
        assert_eq!(Stat::of(text), Stat { stolen_s: 2.5, processors: 2 });
        assert_eq!(Stat::of(""), Stat { stolen_s: 0.0, processors: 1 });
    }

    #[test]
    fn errors_end_it_at_once() {
        let mut calls = 0;
        let failed: Result<(), &str> = undisturbed(false, || {
            calls += 1;
            Err("no")
        });
        assert_eq!((failed, calls), (Err("no"), 1));
    }
}
