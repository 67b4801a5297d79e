//! The state of a lane that one process hands to another: each byte has a meaning, and invalid bytes are refused.

use bpfof_host::{Error, Lane, STATE_MAX_BYTES, fuzz};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{TcpListener, TcpStream};

/// The state of a lane without TLS: queue 3 with 128 requests, 8 KiB of in-capsule data, transfers of
/// 128 KiB.
fn plain() -> Vec<u8> {
    let mut state = vec![1, 0, 0, 0, 3, 0, 128, 0, 0, 0x20, 0, 0, 0, 0, 2, 0, 0, 0x10, 0, 0];
    state.resize(128, 0);
    state
}

/// The same with TLS_AES_128_GCM_SHA256 and header digests.
fn secured() -> Vec<u8> {
    let mut state = plain();
    state[1] = 1;
    state[20..22].copy_from_slice(&0x1301_u16.to_le_bytes());
    for key_at in [24, 76] {
        state[key_at..key_at + 16].fill(0x5A);
        state[key_at + 32..key_at + 44].fill(0xC3);
        state[key_at + 44..key_at + 52].copy_from_slice(&9_u64.to_le_bytes());
    }
    state
}

/// A connection to a silent peer.
fn connection() -> (TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (TcpStream::connect(address).expect("it listens"), listener)
}

fn refusal(state: &[u8]) -> Option<&'static str> {
    let (socket, _peer) = connection();
    match Lane::adopt(socket.into(), state) {
        Ok(_) => None,
        Err(Error::NoLane(why)) => Some(why),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn states_are_decoded_as_documented() {
    for state in [plain(), secured()] {
        fuzz::handed_lane(&state);
        let (socket, _peer) = connection();
        let lane = Lane::adopt(socket.into(), &state).expect("a lane");
        assert_eq!((lane.qid(), lane.depth(), lane.max_transfer_bytes()), (3, 128, 128 << 10));
        assert!(lane.is_connected() && lane.requests_in_flight() == 0);
    }
    assert!(plain().len() <= STATE_MAX_BYTES);
}

#[test]
fn invalid_states_are_refused() {
    let nonsense: [(&str, &[u8], usize); 14] = [
        ("the layout", &[2], 0),
        ("digests", &[4], 1),
        ("CPDA", &[32], 2),
        ("a reserved byte", &[1], 3),
        ("queue 0", &[0, 0], 4),
        ("queue FFFFh", &[0xFF, 0xFF], 4),
        ("no requests", &[0, 0], 6),
        ("4096 requests", &[0, 16], 6),
        ("in-capsule data of more than 64 KiB", &[1, 0, 1, 0], 8),
        ("no data", &[0, 0, 0, 0], 12),
        ("MAXH2CDATA below 4096", &[0, 8, 0, 0], 16),
        ("a cipher", &[4, 0x13], 20),
        ("reserved bytes", &[1, 0], 22),
        ("a longer key than the cipher's", &[1], 40),
    ];
    for (what, bytes, at) in nonsense {
        let mut state = secured();
        state[at..at + bytes.len()].copy_from_slice(bytes);
        assert!(refusal(&state).is_some(), "{what}");
    }
    // A key that has sealed 2^24 records.
    let mut state = secured();
    state[24 + 44 + 3] = 1;
    assert_eq!(refusal(&state), Some("its TLS key has reached its usage limit"));
    // Keys without a cipher.
    for at in 24..128 {
        let mut state = plain();
        state[at] = 1;
        assert!(refusal(&state).is_some(), "byte {at}");
    }
    for length in (0..128).chain([129, 512, 513]) {
        let mut state = secured();
        state.resize(length, 0);
        assert!(refusal(&state).is_some(), "{length} bytes");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_canonical(
        random in vec(any::<u8>(), 0..600),
        is_secured in any::<bool>(),
        changes in vec((0..128usize, any::<u8>()), 0..4),
    ) {
        fuzz::handed_lane(&random);
        let mut state = if is_secured { secured() } else { plain() };
        for (at, byte) in changes {
            state[at] = byte;
        }
        fuzz::handed_lane(&state);
        let _ = refusal(&state);
    }
}
