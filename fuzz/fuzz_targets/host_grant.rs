#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((descriptors, packet)) = data.split_first() {
        bpfof_host::fuzz::grant_packet(packet, usize::from(*descriptors));
    }
});
