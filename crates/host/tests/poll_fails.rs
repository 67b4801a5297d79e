//! A lane that cannot wait for its connection. The only test in its process, because it changes the process's limits.

mod fake_target;

use bpfof_host::{Controller, Error, LostReason, Options, Request, RequestError};
use fake_target::NQN;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn requests_end_although_poll_fails() {
    let (address, target) = fake_target::start();
    let url = format!("nvme-tcp://{address}/{NQN}").parse().unwrap();
    for spin_us in [0, 1000] {
        target.silent.store(false, Ordering::SeqCst);
        let options = Options { spin_us, ..Options::default() };
        let controller = Controller::connect(&url, options).unwrap();
        let mut lane = controller.open_lane().unwrap();
        target.silent.store(true, Ordering::SeqCst);
        lane.submit(7, Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 }).unwrap();
        // poll() fails if it gets more descriptors than the process may have.
        let limit = getrlimit(Resource::Nofile);
        let mut none = limit;
        none.current = Some(0);
        setrlimit(Resource::Nofile, none).unwrap();
        let mut ends = Vec::new();
        let waited = lane.wait(Duration::from_secs(20), &mut |completion| {
            ends.push((completion.tag, completion.result.err()));
        });
        setrlimit(Resource::Nofile, limit).unwrap();
        let Err(Error::Lost(reason @ LostReason::Io(_))) = waited else { panic!("{waited:?}") };
        assert_eq!(ends, [(7, Some(RequestError::Lost(reason)))], "spinning for {spin_us} µs");
        assert!(!lane.is_connected() && lane.requests_in_flight() == 0);
    }
}
