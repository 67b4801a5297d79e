#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| bpfof_nvme::fuzz::rdma(data));
