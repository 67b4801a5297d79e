//! Chains that the target has interrupted: it had to serve others and had no memory to suspend the chains
//! meanwhile, or its drive was reset while it read for them (docs/protocol.md, Pushdown). They are sent again after a
//! pause, a limited number of times.

use crate::Error;
use std::thread;
use std::time::Duration;

/// Times that an interrupted chain is sent again.
pub(crate) const RETRIES: u32 = 8;
/// Pause before the first retry. It doubles with each retry: a quarter of a second in all.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause before a chain that was retried `retries` times is sent again; `None` if it is not to be sent again.
pub(crate) fn pause(retries: u32) -> Option<Duration> {
    (retries < RETRIES).then(|| PAUSE * (1_u32 << retries))
}

/// Runs a chain by `run`, and repeats it while it is interrupted and [`pause`] allows another try.
pub(crate) fn retry<T>(mut run: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let mut retries = 0;
    loop {
        let end = run();
        let interrupted =
            matches!(&end, Err(Error::Command { source, .. }) if source.is_interrupted());
        let Some(pause) = pause(retries).filter(|_| interrupted) else { return end };
        retries += 1;
        thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommandError, Status};

    #[test]
    fn only_interrupted_commands_are_retried() {
        let runs = |status: Status| {
            let mut count = 0_u32;
            let end: Result<(), Error> = retry(|| {
                count += 1;
                let source = CommandError { status, dw0: 0, dw1: 0 };
                Err(Error::Command { command: "Pushdown", source })
            });
            assert!(matches!(end, Err(Error::Command { source, .. }) if source.status == status));
            count
        };
        assert_eq!(runs(Status::COMMAND_INTERRUPTED), 1 + RETRIES);
        assert_eq!(runs(Status::COMMAND_INTERRUPTED.with_dnr()), 1);
        assert_eq!(runs(Status::RESOURCE_LIMIT), 1);
    }

    #[test]
    fn pauses_grow_and_are_limited_in_number() {
        let pauses: Vec<Duration> = (0..).map_while(pause).collect();
        assert_eq!(pauses.len() as u32, RETRIES);
        assert!(pauses.is_sorted_by(|earlier, later| earlier < later));
        assert_eq!(pauses.iter().sum::<Duration>(), Duration::from_millis(255));
        assert_eq!(pause(u32::MAX), None);
    }
}
