//! Instructions of a command on each side, counted by Valgrind: unlike a time, the count is the same on a busy machine,
//! so regressions show.
//!
//! Runs the host's protocol core, and the target's reactor with everything that it drives, without sockets and threads:
//! the work of the kernel, the ring and the lane is not counted. A batch is i10's caravan of 16.

use super::peer::Peer;
use crate::rig::{FOLLOW, Rig, connect_command, follow};
use bpfof_chain::Limits;
use bpfof_host::{
    FileVersion, FirstRead, FirstReads, Initiator, InitiatorConfig, NamespaceInfo, PushdownCall,
    PushdownVectorCall, Request, VectorAnswer, VectorArguments,
};
use bpfof_nvme::tcp::Digests;
use std::process::Command;
use std::sync::Arc;

const BATCH: u64 = 16;
/// So many that the first batch, which grows the buffers, does not matter.
const BATCHES: u64 = 400;
const DATA: [u8; 4096] = [7; 4096];
/// Tolerance on top of a command's budget, because compilers differ.
const TOLERANCE: f64 = 1.03;

/// Valgrind counts an instruction for each byte of a copy by `rep movsb`, so make glibc use other copies.
const PLAIN_COPIES: &str = "glibc.cpu.x86_rep_movsb_threshold=1000000000:\
                            glibc.cpu.x86_rep_stosb_threshold=1000000000";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read512,
    Read4096,
    Write4096,
    /// Eight reads, each of the block that the previous one points to.
    Chain,
    /// One such chain in a vector.
    Vector1,
    /// 32 such chains in a vector.
    Vector32,
}

impl Kind {
    /// Chains of one vector.
    fn chains(self) -> u16 {
        if self == Kind::Vector32 { 32 } else { 1 }
    }

    /// Number of batches counted.
    fn batches(self) -> u64 {
        BATCHES / u64::from(self.chains())
    }
}

/// The kinds, with the maximum instructions of one command on the host and at the target.
const BUDGETS: [(Kind, u64, u64); 6] = [
    (Kind::Read512, 1035, 1825),
    (Kind::Read4096, 1370, 1760),
    (Kind::Write4096, 1485, 3690),
    (Kind::Chain, 1075, 7625),
    (Kind::Vector1, 1175, 8480),
    (Kind::Vector32, 1340, 210_600),
];

/// A host's queue and the target.
struct Pair {
    rig: Rig,
    line: usize,
    initiator: Initiator,
    /// The bytes in transit, to the target or from it.
    wire: Vec<u8>,
    ended: u64,
    /// Chains of each vector in flight; 0 if there is none.
    chains: u16,
}

impl Pair {
    fn new() -> Pair {
        let mut rig = Rig::new(Limits::default());
        let admin = Peer::connect(&mut rig, 0, 31);
        let controller = rig.connection(admin.line).controller().cloned().expect("connected");
        controller.update(|tables| tables.with_function(follow()));
        for block in 0..7u64 {
            rig.store(0, block * 512, &((block + 1) * 512).to_le_bytes());
        }
        let line = rig.open();
        let namespace = NamespaceInfo { nsid: 1, blocks: 2048, block_bytes: 512, nguid: [0; 16] };
        let initiator = Initiator::new(InitiatorConfig {
            admin: false,
            digests: Digests::default(),
            depth: 127,
            in_capsule_bytes: 8192,
            max_transfer_bytes: 128 << 10,
            namespaces: Arc::new([namespace]),
        });
        let mut pair = Pair { rig, line, initiator, wire: Vec::new(), ended: 0, chains: 0 };
        pair.exchange();
        assert!(pair.initiator.is_ready());
        let (sqe, data) = connect_command(1, 127, 0);
        let connect = Request::Raw { sqe, data_out: &data, data_in_max_bytes: 0 };
        pair.initiator.submit(0, &connect).expect("there is room");
        pair.exchange();
        assert_eq!(pair.ended, 1);
        pair
    }

    /// Runs one caravan of such commands.
    fn batch(&mut self, kind: Kind) {
        let before = self.ended;
        self.chains = match kind {
            Kind::Vector1 | Kind::Vector32 => kind.chains(),
            _ => 0,
        };
        self.host_submits(kind);
        self.exchange();
        assert_eq!(self.ended - before, BATCH);
    }

    /// Exchanges messages until neither side has any.
    fn exchange(&mut self) {
        loop {
            self.host_sends();
            self.target_works();
            let is_silent = self.wire.is_empty();
            self.wire.clear();
            self.wire.extend_from_slice(&self.rig.being_sent(self.line));
            if is_silent && self.wire.is_empty() {
                return;
            }
            self.host_receives();
        }
    }

    /// Submits a vector of chains like [`Kind::Chain`].
    fn submit_vector(&mut self, tag: u64, chains: u16) {
        let call = PushdownVectorCall {
            nsid: 1,
            function: FOLLOW,
            files: &[FileVersion { id: 0, version: 1 }],
            first: FirstReads::Same(FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 }),
            arguments: VectorArguments::Equal { count: chains, bytes: &[] },
            scratch_size_bytes: 0,
            answer_max_bytes: 64,
            room_bytes: VectorAnswer::room_bytes(chains, 64) as u32,
        };
        self.initiator.submit(tag, &Request::PushdownVector(&call)).expect("there is room");
    }

    #[inline(never)]
    fn host_submits(&mut self, kind: Kind) {
        for index in 0..BATCH {
            let (nsid, offset_bytes) = (1, index * 4096);
            let request = match kind {
                Kind::Read512 => Request::Read { nsid, offset_bytes, length_bytes: 512 },
                Kind::Read4096 => Request::Read { nsid, offset_bytes, length_bytes: 4096 },
                // Does not overwrite blocks that chains read.
                Kind::Write4096 => Request::Write {
                    nsid,
                    offset_bytes: (64 << 10) + offset_bytes,
                    data: &DATA,
                    fua: false,
                },
                Kind::Chain => Request::Pushdown(PushdownCall {
                    nsid,
                    function: FOLLOW,
                    // The namespace itself.
                    files: &[FileVersion { id: 0, version: 1 }],
                    first_file: 0,
                    first_offset_bytes: 0,
                    first_size_bytes: 512,
                    scratch: &[],
                    scratch_size_bytes: 0,
                    answer_max_bytes: 64,
                }),
                Kind::Vector1 | Kind::Vector32 => {
                    self.submit_vector(index, kind.chains());
                    continue;
                }
            };
            self.initiator.submit(index, &request).expect("there is room");
        }
    }

    #[inline(never)]
    fn host_sends(&mut self) {
        self.wire.clear();
        self.wire.extend_from_slice(self.initiator.outgoing());
        self.initiator.sent(self.wire.len(), 0);
    }

    #[inline(never)]
    fn host_receives(&mut self) {
        let (ended, chains) = (&mut self.ended, self.chains);
        let used = self.initiator.receive(&self.wire, &mut |completion| {
            let done = completion.result.expect("it succeeds");
            if chains > 0 {
                let answer = VectorAnswer::parse(done.data, chains).expect("well-formed");
                assert!(
                    answer.chains().all(|(record, answer)| record.dw0 == 8 && answer.len() == 8)
                );
            }
            *ended += 1;
        });
        assert_eq!(used.expect("the target obeys the rules"), self.wire.len());
    }

    #[inline(never)]
    fn target_works(&mut self) {
        self.rig.turn(self.line, &self.wire);
    }
}

/// Not a test: the counted workload.
#[test]
#[ignore = "what make instructions counts"]
fn workload() {
    let Ok(name) = std::env::var("KIND") else { return };
    let kind = BUDGETS.iter().map(|(kind, ..)| *kind).find(|kind| format!("{kind:?}") == name);
    let mut pair = Pair::new();
    let kind = kind.expect("a kind");
    for _ in 0..kind.batches() {
        pair.batch(kind);
    }
}

/// Checks that the commands succeed without sockets; otherwise only errors would be counted.
#[test]
fn every_kind_of_command_is_served() {
    let mut pair = Pair::new();
    for (kind, ..) in BUDGETS {
        pair.batch(kind);
    }
}

/// Instructions of one command in functions whose names contain this text.
fn count(kind: Kind, functions: &str) -> f64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*instructions*Pair*{functions}*"))
        .arg(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "tests::instructions::workload"])
        .env("KIND", format!("{kind:?}"))
        .env("GLIBC_TUNABLES", PLAIN_COPIES)
        .output()
        .expect("valgrind is installed; scripts/setup.sh valgrind");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    let count: u64 = collected.and_then(|count| count.trim().parse().ok()).expect("a number");
    assert!(count > 0, "no function is called like {functions}");
    count as f64 / (BATCH * kind.batches()) as f64
}

#[test]
#[ignore = "needs valgrind and a release build: make instructions"]
fn no_command_takes_more_instructions_than_it_may() {
    let mut over = Vec::new();
    println!("{:<10} {:>8} {:>8} {:>8} {:>8}", "command", "host", "budget", "target", "budget");
    for (kind, host_budget, target_budget) in BUDGETS {
        let (host, target) = (count(kind, "host_"), count(kind, "target_"));
        let name = format!("{kind:?}");
        println!("{name:<10} {host:>8.0} {host_budget:>8} {target:>8.0} {target_budget:>8}");
        for (side, found, budget) in
            [("host", host, host_budget), ("target", target, target_budget)]
        {
            if found > TOLERANCE * budget as f64 {
                over.push(format!("{name}: {found:.0} instructions on the {side}, not {budget}"));
            }
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}
