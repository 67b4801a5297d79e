//! Memory for works, which end in the order in which they begin.

/// Alignment of pieces: a cache line.
const ALIGN: usize = 64;

/// Allocates pieces of a memory in order, and frees them in the same order.
#[derive(Debug)]
pub(super) struct Pieces {
    length: usize,
    /// Where the oldest piece begins, and where the newest ends.
    oldest: usize,
    end: usize,
    /// Number of pieces.
    count: usize,
}

/// A piece: its start, and where the next one may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: usize,
    end: usize,
}

impl Pieces {
    pub(super) fn new(length: usize) -> Pieces {
        Pieces { length, oldest: 0, end: 0, count: 0 }
    }

    /// A piece of `bytes`; `None` if there is no room now. If there are no other pieces, there is room for one as long
    /// as the whole memory.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Piece> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        if self.count == 0 {
            (self.oldest, self.end) = (0, 0);
        }
        let offset = match self.count {
            0 if bytes <= self.length => 0,
            0 => return None,
            // Pieces occupy the range from the oldest to the end: free space is behind them and in front of them.
            _ if self.end > self.oldest && self.length - self.end >= bytes => self.end,
            _ if self.end > self.oldest && self.oldest >= bytes => 0,
            _ if self.end <= self.oldest && self.oldest - self.end >= bytes => self.end,
            _ => return None,
        };
        self.count += 1;
        self.end = offset + bytes;
        Some(Piece { offset, end: offset + bytes })
    }

    /// Frees the oldest piece; `next` is the one after it.
    pub(super) fn give_back(&mut self, oldest: Piece, next: Option<Piece>) {
        debug_assert!(self.count > 0, "it was taken");
        self.count -= 1;
        self.oldest = next.map_or(oldest.end, |next| next.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn pieces_are_apart(steps in prop::collection::vec(prop::option::of(1usize..1000), 1..200)) {
            const LENGTH: usize = 2048;
            let (mut pieces, mut held) = (Pieces::new(LENGTH), VecDeque::<(Piece, usize)>::new());
            for step in steps {
                match step {
                    Some(bytes) => {
                        let taken = pieces.take(bytes);
                        prop_assert!(taken.is_some() || !held.is_empty());
                        let Some(piece) = taken else { continue };
                        prop_assert!(piece.offset + bytes <= LENGTH && piece.offset % ALIGN == 0);
                        for (other, length) in &held {
                            let is_before = piece.offset + bytes <= other.offset;
                            prop_assert!(is_before || other.offset + length <= piece.offset);
                        }
                        held.push_back((piece, bytes));
                    }
                    None => {
                        if let Some((oldest, _)) = held.pop_front() {
                            pieces.give_back(oldest, held.front().map(|(piece, _)| *piece));
                        }
                    }
                }
            }
            while let Some((oldest, _)) = held.pop_front() {
                pieces.give_back(oldest, held.front().map(|(piece, _)| *piece));
            }
            prop_assert_eq!(pieces.take(LENGTH).map(|piece| piece.offset), Some(0));
        }
    }
}
