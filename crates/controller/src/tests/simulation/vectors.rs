//! Many chains in one command.

use super::Checked;
use super::chains::{ANSWER_MAX_BYTES, Call, SPIN, WALK};
use super::content::{CHAIN_BLOCK_BYTES, CHAIN_BLOCKS};
use super::model::Moment;
use super::requests::{Pending, What};
use super::world::World;
use bpfof_host::{
    FileVersion, FirstRead, FirstReads, PushdownVectorCall, Request, VectorAnswer, VectorArguments,
};
use bpfof_nvme::Status;

/// Maximum chains of one command: as many as fit in the smallest capsule of a host.
const CHAINS_MAX: u64 = 20;

fn answer_of(data: &[u8], count: usize) -> Result<VectorAnswer<'_>, String> {
    VectorAnswer::parse(data, count as u16).map_err(|error| format!("the answer is {error}"))
}

impl World {
    /// Starts chains at random blocks of a file. Their answers may have less room than they need.
    pub(super) fn walk_all(
        &mut self,
        lane: usize,
        space: usize,
        file: u32,
        version: u64,
    ) -> Checked {
        let count = self.random.within(1, CHAINS_MAX) as usize;
        let is_same = self.random.one_in(4);
        let mut firsts: Vec<u64> = (0..count).map(|_| self.random.below(CHAIN_BLOCKS)).collect();
        if is_same {
            let first = firsts[0];
            firsts.fill(first);
        }
        let reads: Vec<FirstRead> = firsts
            .iter()
            .map(|first| FirstRead {
                file: 0,
                offset_bytes: first * CHAIN_BLOCK_BYTES,
                size_bytes: CHAIN_BLOCK_BYTES as u32,
            })
            .collect();
        // Zeroes, which scratch contains anyway.
        let sizes: Vec<u16> = (0..count).map(|_| self.random.pick(&[0, 0, 3])).collect();
        let bytes = vec![0; sizes.iter().map(|size| usize::from(*size)).sum()];
        let all = VectorAnswer::room_bytes(count as u16, ANSWER_MAX_BYTES) as u32;
        let least = VectorAnswer::room_bytes(count as u16, 0) as u32;
        let room = match self.random.below(3) {
            0 => self.random.within(least.into(), all.into()) as u32,
            _ => all,
        };
        let call = PushdownVectorCall {
            nsid: space as u32 + 1,
            function: WALK,
            files: &[FileVersion { id: file, version }],
            first: if is_same { FirstReads::Same(reads[0]) } else { FirstReads::Each(&reads) },
            arguments: match self.random.one_in(2) {
                true => VectorArguments::Equal { count: count as u16, bytes: &[] },
                false => VectorArguments::Sized { sizes: &sizes, bytes: &bytes },
            },
            scratch_size_bytes: self.random.pick(&[0, 128, 512]),
            answer_max_bytes: ANSWER_MAX_BYTES,
            room_bytes: room,
        };
        self.done.chains += count as u64;
        let begun = self.model.begin();
        let calls = firsts.into_iter().map(|first| Call { space, file, version, first });
        let what = What::Chains(calls.collect(), room);
        self.submit(lane, &Request::PushdownVector(&call), Pending { link: lane, begun, what })
    }

    /// Starts chains that run until their hop budget is exhausted.
    pub(super) fn spin_all(&mut self, lane: usize) -> Checked {
        let count = self.random.within(1, CHAINS_MAX) as u16;
        let rounds: u64 = self.random.pick(&[10, 1000, 20_000]);
        let bytes = rounds.to_le_bytes().repeat(count.into());
        let call = PushdownVectorCall {
            nsid: 3,
            function: SPIN,
            files: &[FileVersion { id: 0, version: 1 }],
            first: FirstReads::Same(FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 }),
            arguments: VectorArguments::Equal { count, bytes: &bytes },
            scratch_size_bytes: 128,
            answer_max_bytes: 8,
            room_bytes: VectorAnswer::room_bytes(count, 8) as u32,
        };
        self.done.chains += u64::from(count);
        let begun = self.model.begin();
        let what = What::Spins(count);
        self.submit(lane, &Request::PushdownVector(&call), Pending { link: lane, begun, what })
    }

    /// Checks the answer of a vector: each chain has ended as a single one may, and chains that found no room had none.
    pub(super) fn check_vector(
        &mut self,
        (link, host): (usize, usize),
        (calls, room): (&[Call], u32),
        begun: Moment,
        (data, failed): (&[u8], u32),
    ) -> Checked {
        let answer = answer_of(data, calls.len())?;
        let mut has_failed = 0;
        for ((record, bytes), call) in answer.chains().zip(calls) {
            has_failed += u32::from(!record.status.is_success());
            if record.status.is_success() {
                self.check_chain(host, call, begun, (bytes, record.dw0))?;
            } else if record.status == Status::VECTOR_FULL {
                // Later answers may have taken the room that was left.
                let wanted = record.dw0;
                if wanted > ANSWER_MAX_BYTES || data.len() as u32 + wanted <= room {
                    return Err(format!("{call:?}: {} of {room} bytes are full", data.len()));
                }
            } else {
                self.check_chain_error((link, host), call, begun, record.status)?;
            }
        }
        match has_failed == failed {
            true => Ok(()),
            false => Err(format!("{has_failed} chains have failed, not {failed}")),
        }
    }
}

/// Checks that each of the endless chains has exhausted its hop budget.
pub(super) fn check_spins(count: u16, data: &[u8]) -> Checked {
    for (record, _) in answer_of(data, count.into())?.chains() {
        if !record.status.same_code(Status::HOP_BUDGET_EXHAUSTED) {
            return Err(format!("a chain without an end: {}", record.status));
        }
    }
    Ok(())
}
