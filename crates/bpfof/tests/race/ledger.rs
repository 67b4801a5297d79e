//! A file with pairs of generations, by which processes tell each other about changes of files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Generations of one file: a change begins with raising `started` and ends with `finished`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generations {
    pub(crate) started: u64,
    pub(crate) finished: u64,
}

impl Generations {
    /// No process is changing the file.
    pub(crate) fn is_quiet(self) -> bool {
        self.started == self.finished
    }
}

pub(crate) struct Ledger(File);

impl Ledger {
    pub(crate) fn create(path: &Path, files: u64) {
        std::fs::write(path, vec![0; files as usize * 16]).expect("a ledger");
    }

    pub(crate) fn open(path: &Path) -> Ledger {
        Ledger(File::options().read(true).write(true).open(path).expect("a ledger"))
    }

    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, at * 8).expect("reads");
        u64::from_le_bytes(word)
    }

    fn set(&self, at: u64, word: u64) {
        self.0.write_all_at(&word.to_le_bytes(), at * 8).expect("writes");
    }

    /// `finished` first: a change that ends in between is not missed.
    pub(crate) fn read(&self, file: u64) -> Generations {
        let finished = self.word(file * 2 + 1);
        Generations { started: self.word(file * 2), finished }
    }

    pub(crate) fn start(&self, file: u64, generation: u64) {
        self.set(file * 2, generation);
    }

    pub(crate) fn finish(&self, file: u64, generation: u64) {
        self.set(file * 2 + 1, generation);
    }
}
