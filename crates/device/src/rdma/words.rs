//! Error messages for the libraries' errors, with a remedy.

use std::io;

/// The message for an error of a listener or an endpoint, with a remedy.
pub fn words(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "the limit on locked memory may be too low: ulimit -l, or LimitMEMLOCK= of the service"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "this process may not use /dev/infiniband: check its owner and mode, or the \
             DeviceAllow= of the service"
        }
        Some(libc::ENOENT) => {
            "/dev/infiniband/rdma_cm does not exist: modprobe rdma_ucm; a container must be given \
             the device"
        }
        Some(libc::ENODEV) => {
            "no RDMA device of this machine serves the address: rdma link lists the devices, and \
             modprobe rdma_ucm lets programs use them"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "too many open files: ulimit -n, or LimitNOFILE= of the service"
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
