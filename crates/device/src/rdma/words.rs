//! Errors of the libraries in words that say what to do.

use std::io;

/// An error of a listener or an endpoint, and what to do about it.
pub fn words(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "the limit of locked memory may be too low: ulimit -l, LimitMEMLOCK= of a service"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "this process may not use /dev/infiniband: its owner, mode, or the DeviceAllow= of a service"
        }
        Some(libc::ENOENT) => {
            "/dev/infiniband/rdma_cm is not there: modprobe rdma_ucm; in a container it must be let in"
        }
        Some(libc::ENODEV) => {
            "no RDMA device of this machine is used for it: rdma link shows them, and modprobe rdma_ucm lets \
             programs use them"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "too many open files: ulimit -n, LimitNOFILE= of a service"
        }
        _ => return error.to_string(),
    };
    format!("{error} ({advice})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        for (errno, expected) in [
            (libc::ENOMEM, "locked memory"),
            (libc::EPERM, "may not use /dev/infiniband"),
            (libc::ENOENT, "modprobe rdma_ucm"),
            (libc::ENODEV, "rdma link"),
        ] {
            let words = words(&io::Error::from_raw_os_error(errno));
            assert!(words.contains(expected), "{words}");
        }
        let other = io::Error::from_raw_os_error(libc::EINVAL);
        assert_eq!(words(&other), other.to_string());
    }
}
