//! The functions whose calls are measured.

/// A function with a block, and the arguments of its calls in turn.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The function's work and data.
    pub(super) about: &'static str,
    pub(super) object: &'static [u8],
    /// The object's C, and the name of the function in it.
    pub(super) source: &'static str,
    pub(super) symbol: &'static str,
    pub(super) block: Vec<u8>,
    pub(super) arguments: Vec<Vec<u8>>,
    /// Calls in one round.
    pub(super) calls: usize,
    /// The goal for the ratio to C.
    pub(super) goal: f64,
}

/// All cases.
pub(super) fn all() -> Vec<Case> {
    vec![node(), filter(), block()]
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// An inner node of BPF-KV: 31 keys, and random keys to look for.
fn node() -> Case {
    let mut block = vec![0; 16];
    block.extend((0..31u64).flat_map(|index| (index * 1000).to_le_bytes()));
    block.extend((0..31u64).flat_map(|index| ((1 << 63) | ((index + 1) * 512)).to_le_bytes()));
    let mut state = 1;
    // More keys than branch prediction can learn.
    let keys = (0..20_000).map(|_| (random(&mut state) % 31000).to_le_bytes());
    Case {
        name: "node",
        about: "bpfkv_get in a node of 31 keys, random keys",
        object: bpfkv::GET_OBJECT,
        source: include_str!("../../../../functions/bpfkv_get.bpf.c"),
        symbol: "bpfkv_get",
        block,
        arguments: keys.map(|key| [&key[..], &[0; 8]].concat()).collect(),
        calls: 20_000,
        goal: 1.5,
    }
}

/// 256 records of 16 bytes, of which a filter passes about every eighth.
fn filter() -> Case {
    let mut state = 2;
    let block = (0..256).flat_map(|_| {
        let key = random(&mut state).to_le_bytes();
        let kind = (random(&mut state) as u32 % 4).to_le_bytes();
        let amount = (random(&mut state) as u32 % 1000).to_le_bytes();
        [&key[..], &kind, &amount].concat()
    });
    let block = block.collect();
    let arguments = (0..4u32).map(|kind| [kind.to_le_bytes(), 500u32.to_le_bytes()].concat());
    Case {
        name: "filter",
        about: "count, sum and maximum of the records of 4 KiB that pass a filter",
        object: include_bytes!(concat!(env!("OUT_DIR"), "/filter.bpf.o")),
        source: include_str!("c/filter.bpf.c"),
        symbol: "filter",
        block,
        arguments: arguments.collect(),
        calls: 2_000,
        goal: 1.6,
    }
}

/// 4 KiB of sorted keys of 16 to 20 bytes with values of 20, restart points every 16 entries.
fn block() -> Case {
    let keys: Vec<String> =
        (0..120).map(|index| format!("user{:012}{}", index * 37, "x".repeat(index % 5))).collect();
    let (mut block, mut restarts, mut before) = (Vec::new(), Vec::new(), String::new());
    for (index, key) in keys.iter().enumerate() {
        let mut shared = before.bytes().zip(key.bytes()).take_while(|(a, b)| a == b).count();
        if index % 16 == 0 {
            restarts.push(block.len() as u32);
            shared = 0;
        }
        let value = format!("value of number {index:04}");
        block.extend([shared as u8, (key.len() - shared) as u8, value.len() as u8]);
        block.extend(&key.as_bytes()[shared..]);
        block.extend(value.as_bytes());
        before.clone_from(key);
    }
    block.resize(block.len().next_multiple_of(4), 0);
    let count = restarts.len() as u32;
    block.extend(restarts.into_iter().chain([count]).flat_map(u32::to_le_bytes));
    let mut state = 3;
    let arguments = (0..256).map(|_| {
        let key = keys[random(&mut state) as usize % keys.len()].as_bytes();
        let mut argument = (key.len() as u32).to_le_bytes().to_vec();
        argument.extend([0; 4]);
        argument.extend(key);
        argument.resize(72, 0);
        argument
    });
    Case {
        name: "block",
        about: "a key in a sorted block of 4 KiB with prefix compression",
        object: include_bytes!(concat!(env!("OUT_DIR"), "/block.bpf.o")),
        source: include_str!("c/block.bpf.c"),
        symbol: "block",
        block,
        arguments: arguments.collect(),
        calls: 3_000,
        goal: 2.2,
    }
}
