//! How many descriptors the quotas allow, and the process may have.

use crate::closing::WAITING_MAX;
use crate::config::Limits;
use rustix::process::{Resource, getrlimit};

/// Descriptors of a client beside its files: its socket, what wakes its thread, the admin queue, a lane that is
/// handed over, the versions page, those of a request.
const OF_CLIENT: usize = 64;

/// What the operator should know if users can take all descriptors of this process within their quotas.
pub(crate) fn shortage(limits: &Limits) -> Option<String> {
    let max = getrlimit(Resource::Nofile).current?;
    shortage_of(limits, usize::try_from(max).unwrap_or(usize::MAX))
}

fn shortage_of(limits: &Limits, max: usize) -> Option<String> {
    // Each user has a client at least. The rest of the limit is for sockets that wait to be closed.
    let users = limits.clients;
    let files = users.saturating_mul(limits.files_per_user);
    let clients = limits.clients.saturating_mul(OF_CLIENT);
    let needed = files.saturating_add(clients).saturating_add(WAITING_MAX);
    (needed > max).then(|| {
        format!(
            "{users} users with files-per-user = {} need {needed} descriptors, and this process may have {max}: \
             who comes last may find none; set smaller quotas, or a larger limit (LimitNOFILE=, ulimit -n)",
            limits.files_per_user
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_beyond_the_limit_are_told() {
        let limits = Limits { clients: 10, files_per_user: 1000, ..Limits::default() };
        let needed = 10 * 1000 + 10 * OF_CLIENT + WAITING_MAX;
        assert_eq!(shortage_of(&limits, needed), None);
        let told = shortage_of(&limits, needed - 1).expect("one is missing");
        assert!(told.contains(&format!("need {needed} descriptors")), "{told}");
        let all = Limits { clients: usize::MAX, files_per_user: usize::MAX, ..limits };
        assert!(shortage_of(&all, 1 << 20).is_some());
    }
}
