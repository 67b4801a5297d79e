//! Reads of files without a function: NVMe Reads at the target, all of a batch in one round trip.

use super::call::ReadError;
use super::file::{Pin, PushdownFile};
use super::shared::{Remote, Server, Shared};
use super::target_lane::TargetLane;
use crate::{Error, Extent, Request, SubmitError};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest single wait for the lane. The lane's command timeout ends requests that are not
/// answered.
const WAIT: Duration = Duration::from_secs(1);
/// Most bytes of one command, the same as for a lane's long transfers.
pub(crate) const PIECE_MAX_BYTES: u64 = 128 << 10;

/// A read of a file, for [`PushdownReader::read_files`](super::PushdownReader::read_files).
#[derive(Debug)]
pub struct FileRead<'a> {
    /// The file.
    pub file: &'a PushdownFile,
    /// File offset in bytes.
    pub offset_bytes: u64,
    /// The buffer. As many bytes are read as it has room for.
    pub data: &'a mut [u8],
    /// Number of bytes that were read: fewer than `data` holds only at the end of the file.
    pub read_bytes: usize,
}

/// The state of the reads of one batch, reused so that the next batch allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pieces: Vec<Piece>,
    /// For each read its pin, or why the target cannot do it.
    pins: Vec<Result<Pin, ReadError>>,
}

/// Errors of reads that cannot be done at the target, if the policy forbids plain reads.
const NO_TARGET: &str =
    "there is no connection to a target, or a file is not of the reader's FileMaps";
const GRANTED: &str =
    "with the grant daemon, only chains run at the target, not reads without a function";
const TOO_SHORT: &str = "a read returned less data than requested";

/// How the exchange with the target has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchanged {
    /// All requests have ended, some perhaps with errors.
    Done,
    /// The connection is lost.
    Lost,
    /// The time is over, and requests are still in flight.
    TimedOut,
}

/// One NVMe Read.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Index of the read to which it belongs.
    read: usize,
    /// Start in the read's buffer, and length, of its bytes.
    at: usize,
    length: usize,
    /// Bytes of its first block that come before them.
    skip: usize,
    device_offset: u64,
    device_length: u32,
}

impl Batch {
    /// Divides a read into commands; false if a part of the range is in no extent.
    fn divide(&mut self, read: usize, range: (u64, u64), extents: &[Extent], block: u64) -> bool {
        let (start, end) = range;
        let (before, mut at) = (self.pieces.len(), start);
        let first = extents.partition_point(|e| e.file_offset + e.length_bytes <= start);
        for extent in extents.get(first..).unwrap_or(&[]) {
            if at >= end || extent.file_offset > at {
                break;
            }
            let extent_end = extent.file_offset + extent.length_bytes;
            while at < end.min(extent_end) {
                // Extents consist of whole blocks, so rounding down stays within the extent.
                let from = at / block * block;
                let to = end.min(extent_end).min(from + PIECE_MAX_BYTES);
                self.pieces.push(Piece {
                    read,
                    at: (at - start) as usize,
                    length: (to - at) as usize,
                    skip: (at - from) as usize,
                    device_offset: extent.device_offset + (from - extent.file_offset),
                    device_length: (to.next_multiple_of(block) - from) as u32,
                });
                at = to;
            }
        }
        if at < end {
            self.pieces.truncate(before);
        }
        at >= end
    }

    /// Does the reads of mapped files at the target over `lane`, until `end` at most.
    /// [`complete`](Self::complete) must follow, except after a timeout.
    pub(super) fn read(
        &mut self,
        reads: &mut [FileRead<'_>],
        shared: &Arc<Shared>,
        mut lane: Option<&mut TargetLane>,
        end: Option<Instant>,
    ) -> Exchanged {
        self.plan(reads, shared, lane.is_some());
        match lane.as_mut().filter(|_| !self.pieces.is_empty()) {
            Some(lane) => self.exchange(reads, shared, lane, end),
            None => Exchanged::Done,
        }
    }

    /// Verifies the maps of the reads done at the target. Does all other reads on this machine if
    /// `falls_back`.
    pub(super) fn complete(
        &mut self,
        reads: &mut [FileRead<'_>],
        falls_back: bool,
    ) -> Result<(), ReadError> {
        // Consecutive reads of one file share a verification: the first was pinned before the
        // others.
        let mut last: Option<(Pin, bool)> = None;
        for (read, pin) in reads.iter_mut().zip(self.pins.drain(..)) {
            let at_target = pin.map(|pin| match &last {
                Some((verified, good)) if verified.has_map_of(&pin) => *good,
                _ => {
                    let good = pin.verify();
                    last = Some((pin, good));
                    good
                }
            });
            match at_target {
                Ok(true) => {}
                _ if falls_back => read.read_bytes = read_here(read)?,
                Ok(false) => return Err(ReadError::Stale),
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Pins the files and divides the reads into commands for the target.
    fn plan(&mut self, reads: &mut [FileRead<'_>], shared: &Arc<Shared>, has_lane: bool) {
        self.pieces.clear();
        self.pins.clear();
        let remote = shared.remote.as_ref().filter(|_| has_lane && shared.is_kept());
        let mut may_wait = true;
        for (index, read) in reads.iter_mut().enumerate() {
            let ours = read.file.is_of(shared) && !read.file.is_whole_namespace();
            let pin = match remote.filter(|_| ours) {
                None => Err(ReadError::Request(NO_TARGET)),
                Some(Remote { server: Server::Grants(..), .. }) => Err(ReadError::Request(GRANTED)),
                Some(remote) => {
                    let pin = read.file.begin(&mut may_wait).filter(|pin| {
                        let Some(layout) = pin.layout() else { return false };
                        let end = layout.length_bytes();
                        let start = read.offset_bytes.min(end);
                        let wanted = start.saturating_add(read.data.len() as u64);
                        if wanted > end && pin.has_grown() {
                            return false;
                        }
                        let end = end.min(wanted);
                        read.read_bytes = (end - start) as usize;
                        let block = u64::from(remote.info.block_bytes);
                        self.divide(index, (start, end), layout.extents(), block)
                    });
                    pin.ok_or(ReadError::Stale)
                }
            };
            self.pins.push(pin);
        }
    }

    /// Sends the commands and copies their data. A read with a failed command loses its pin.
    fn exchange(
        &mut self,
        reads: &mut [FileRead<'_>],
        shared: &Shared,
        lane: &mut TargetLane,
        end: Option<Instant>,
    ) -> Exchanged {
        let Self { pieces, pins } = self;
        let Some(remote) = &shared.remote else { return Exchanged::Done };
        let (mut next, mut lost) = (0, None);
        loop {
            if next == pieces.len() && lane.requests_in_flight() == 0 {
                break;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                pins.clear();
                return Exchanged::TimedOut;
            }
            let mut is_full = false;
            while let Some(piece) = pieces.get(next).filter(|_| lost.is_none()) {
                let request = Request::Read {
                    nsid: remote.info.nsid,
                    offset_bytes: piece.device_offset,
                    length_bytes: piece.device_length,
                };
                match lane.submit(next as u64, request) {
                    Ok(()) => {}
                    Err(SubmitError::QueueFull) => {
                        is_full = true;
                        break;
                    }
                    Err(error) => pins[piece.read] = Err(ReadError::Target(error.into())),
                }
                next += 1;
            }
            if lane.requests_in_flight() == 0 && !is_full {
                break;
            }
            let waited = lane.wait(
                left.map_or(WAIT, |left| left.min(WAIT)),
                shared.is_crowded(),
                &mut |completion| {
                    let Some(piece) = pieces.get(completion.tag as usize) else { return };
                    let to = reads.get_mut(piece.read).map(|read| &mut *read.data);
                    let to = to.and_then(|to| to.get_mut(piece.at..piece.at + piece.length));
                    let taken = completion.result.map_err(|error| error.of("Read"));
                    let taken = taken.and_then(|done| {
                        let from = done.data.get(piece.skip..piece.skip + piece.length);
                        let (from, to) = from.zip(to).ok_or(Error::BadAnswer(TOO_SHORT))?;
                        to.copy_from_slice(from);
                        Ok(())
                    });
                    if let Err(error) = taken {
                        pins[piece.read] = Err(ReadError::Target(error));
                    }
                },
            );
            lost = waited.err();
        }
        let Some(reason) = lost.map(Arc::new) else { return Exchanged::Done };
        for piece in pieces.iter().skip(next) {
            pins[piece.read] = Err(ReadError::Target(Error::Joined(Arc::clone(&reason))));
        }
        Exchanged::Lost
    }
}

fn read_here(read: &mut FileRead<'_>) -> Result<usize, ReadError> {
    let failed = |source| ReadError::Plain { path: read.file.path().to_owned(), source };
    let file = read.file.file().map_err(failed)?;
    let mut done = 0;
    while let Some(rest) = read.data.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, read.offset_bytes + done as u64) {
            Ok(0) => break,
            Ok(length) => done += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileMaps, Policy, PushdownReader};
    use proptest::prelude::*;
    use std::io::Write;

    const BLOCK: u64 = 512;

    #[test]
    fn without_a_target_there_is_nothing_to_fall_back_from() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"0123456789").expect("written");
        let maps = FileMaps::local();
        let policy = Policy { fall_back: false, ..Policy::default() };
        let mut reader = PushdownReader::new(&maps, policy).expect("a reader");
        let file = maps.open(file.path()).expect("it opens");
        let mut data = [0; 6];
        let mut reads = [FileRead { file: &file, offset_bytes: 7, data: &mut data, read_bytes: 0 }];
        reader.read_files(&mut reads).expect("a plain read");
        assert_eq!((reads[0].read_bytes, &data[..3]), (3, &b"789"[..]));
    }

    /// Extents of 1 to 400 blocks with gaps between some of them.
    fn layouts() -> impl Strategy<Value = Vec<Extent>> {
        let piece = (0_u64..4, 1_u64..400, any::<bool>());
        proptest::collection::vec(piece, 1..8).prop_map(|pieces| {
            let (mut at, mut device) = (0, 1 << 20);
            let mut extents = Vec::new();
            for (gap, blocks, has_gap) in pieces {
                at += if has_gap { gap * BLOCK } else { 0 };
                device += 7 * BLOCK;
                let length_bytes = blocks * BLOCK;
                extents.push(Extent { file_offset: at, device_offset: device, length_bytes });
                (at, device) = (at + length_bytes, device + length_bytes);
            }
            extents
        })
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_that_were_asked_for(
            extents in layouts(), start in 0_u64..200_000, length in 1_u64..500_000,
        ) {
            let place = |at: u64| {
                let extent = extents.iter().find(|e| (e.file_offset..e.file_offset + e.length_bytes).contains(&at));
                extent.map(|e| e.device_offset + at - e.file_offset)
            };
            let mut batch = Batch::default();
            let divided = batch.divide(3, (start, start + length), &extents, BLOCK);
            prop_assert_eq!(divided, (start..start + length).all(|at| place(at).is_some()));
            let mut next = 0;
            for piece in &batch.pieces {
                prop_assert_eq!((piece.read, piece.at as u64), (3, next));
                prop_assert!(piece.length > 0 && u64::from(piece.device_length) <= PIECE_MAX_BYTES);
                prop_assert_eq!((piece.device_offset % BLOCK, u64::from(piece.device_length) % BLOCK), (0, 0));
                prop_assert!(piece.skip + piece.length <= piece.device_length as usize);
                for byte in [0, piece.length - 1] {
                    let there = piece.device_offset + (piece.skip + byte) as u64;
                    prop_assert_eq!(place(start + next + byte as u64), Some(there));
                }
                next += piece.length as u64;
            }
            prop_assert_eq!(next, if divided { length } else { 0 });
        }
    }
}
