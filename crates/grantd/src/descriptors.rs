//! Compares the number of descriptors that the quotas allow with the process's limit.

use crate::closing::WAITING_MAX;
use crate::config::Limits;
use rustix::process::{Resource, getrlimit};

/// Descriptors of a client besides its files: its socket, the eventfd and the signalfd of its thread, the admin queue,
/// a lane that is handed over, the versions page, those of a request.
const OF_CLIENT: usize = 64;

/// A message for the operator, if users can use up all descriptors of this process within their quotas.
pub(crate) fn shortage(limits: &Limits) -> Option<String> {
    let max = getrlimit(Resource::Nofile).current?;
    shortage_of(limits, usize::try_from(max).unwrap_or(usize::MAX))
}

fn shortage_of(limits: &Limits, max: usize) -> Option<String> {
    // Each user has at least one client. The remaining descriptors are for sockets that wait to be closed.
    let users = limits.clients;
    let files = users.saturating_mul(limits.files_per_user);
    let clients = limits.clients.saturating_mul(OF_CLIENT);
    let needed = files.saturating_add(clients).saturating_add(WAITING_MAX);
    (needed > max).then(|| {
        format!(
            "{users} users with files-per-user = {} need {needed} descriptors, but this process \
             may have only {max}, so the last users may get none; set smaller quotas, or a larger \
             limit (LimitNOFILE=, ulimit -n)",
            limits.files_per_user
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_beyond_the_descriptor_limit_are_reported() {
        let limits = Limits { clients: 10, files_per_user: 1000, ..Limits::default() };
        let needed = 10 * 1000 + 10 * OF_CLIENT + WAITING_MAX;
        assert_eq!(shortage_of(&limits, needed), None);
        let told = shortage_of(&limits, needed - 1).expect("one is missing");
        assert!(told.contains(&format!("need {needed} descriptors")), "{told}");
        let all = Limits { clients: usize::MAX, files_per_user: usize::MAX, ..limits };
        assert!(shortage_of(&all, 1 << 20).is_some());
    }
}
