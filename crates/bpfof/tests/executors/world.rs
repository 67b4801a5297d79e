//! Random files with records that link to each other.

use bpfof_host::files::FirstRead;
use fastrand::Rng;
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: u32 = 0x464c_4f57;
const LINKS_MAX: usize = 6;
/// Bytes of a record with contents; the rest is padding, which is read as well.
pub(crate) const RECORD_BYTES: u32 = 16 + 16 * LINKS_MAX as u32;
/// Length of the argument, and of an answer.
pub(crate) const STATE_BYTES: usize = 24;

/// What the function does on a record; the discriminants are those of follow.bpf.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Follow = 0,
    End = 1,
    Abort = 2,
    Fault = 3,
    Loop = 4,
    TooLarge = 5,
    TooMany = 6,
    TooLong = 7,
    NoFile = 8,
    /// No record at all.
    Garbage = 9,
}

/// Where a link leads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    /// To one of the records after this one, so that every chain ends.
    Record(u16),
    /// Beyond the end of its file.
    Outside(u8),
    /// Across the end.
    Across(u8),
    /// Into the hole of the file, if it has one.
    Hole(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    file: u8,
    /// Unused bytes before it.
    gap: u16,
    padding: u16,
    what: What,
    links: Vec<Link>,
}

/// A set of files, and the chains to run over it.
#[derive(Clone, Debug)]
pub(crate) struct World {
    files: usize,
    /// The first file has a hole of this many blocks of 4 KiB.
    hole_blocks: u8,
    records: Vec<Record>,
    /// Arguments of the chains, and the record that each begins with.
    pub(crate) chains: Vec<(u64, u16)>,
}

fn link() -> impl Strategy<Value = Link> {
    prop_oneof![
        60 => any::<u16>().prop_map(Link::Record),
        1 => any::<u8>().prop_map(Link::Outside),
        1 => any::<u8>().prop_map(Link::Across),
        1 => any::<u8>().prop_map(Link::Hole),
    ]
}

fn record() -> impl Strategy<Value = Record> {
    use What::{Abort, End, Fault, Follow, Garbage, Loop, NoFile, TooLarge, TooLong, TooMany};
    let rare = [Abort, Fault, Loop, TooLarge, TooMany, TooLong, NoFile, Garbage];
    let what = prop_oneof![
        40 => Just(Follow),
        8 => Just(End),
        2 => proptest::sample::select(rare.to_vec()),
    ];
    let padding = prop_oneof![3 => 0..600_u16, 1 => 0..9000_u16];
    let links = vec(link(), 1..=LINKS_MAX);
    (any::<u8>(), 0..1500_u16, padding, what, links)
        .prop_map(|(file, gap, padding, what, links)| Record { file, gap, padding, what, links })
}

pub(crate) fn world() -> impl Strategy<Value = World> {
    let holes = prop_oneof![4 => Just(0), 1 => 1..20_u8];
    (1..=5_usize, holes, vec(record(), 1..120), vec((any::<u64>(), any::<u16>()), 1..40)).prop_map(
        |(files, hole_blocks, records, chains)| World { files, hole_blocks, records, chains },
    )
}

/// Where a record is.
#[derive(Clone, Copy)]
struct Place {
    file: usize,
    offset: u64,
    size: u32,
}

impl World {
    fn places(&self) -> (Vec<Place>, Vec<u64>) {
        let mut ends = vec![0_u64; self.files];
        ends[0] = u64::from(self.hole_blocks) * 4096;
        let place = |record: &Record| {
            let file = usize::from(record.file) % self.files;
            let offset = ends[file] + u64::from(record.gap);
            let size = RECORD_BYTES + u32::from(record.padding);
            ends[file] = offset + u64::from(size);
            Place { file, offset, size }
        };
        let places = self.records.iter().map(place).collect();
        (places, ends)
    }

    /// The read that a chain begins with.
    pub(crate) fn first_read(&self, record: u16) -> FirstRead {
        let (places, _) = self.places();
        let Place { file, offset, size } = places[usize::from(record) % places.len()];
        FirstRead { file: file as u16, offset_bytes: offset, size_bytes: size }
    }

    /// Writes the files, each with a length of its own and everything but the hole written.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let (places, ends) = self.places();
        let mut images: Vec<Vec<u8>> = ends.iter().map(|end| noise(*end as usize)).collect();
        for (number, (record, place)) in self.records.iter().zip(&places).enumerate() {
            let bytes = self.encode(number, record, &places, &ends);
            let at = place.offset as usize;
            images[place.file][at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let mut paths = Vec::new();
        for (index, image) in images.iter().enumerate() {
            let path = folder.join(format!("file-{index}"));
            let file = File::create(&path)?;
            let from = if index == 0 { usize::from(self.hole_blocks) * 4096 } else { 0 };
            // A file may be empty.
            file.set_len(image.len() as u64)?;
            file.write_all_at(&image[from..], from as u64)?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn encode(&self, number: usize, record: &Record, places: &[Place], ends: &[u64]) -> Vec<u8> {
        let magic = if record.what == What::Garbage { 0 } else { MAGIC };
        let mut bytes = magic.to_le_bytes().to_vec();
        let left = places.len() - number - 1;
        // The last record leads nowhere.
        let what = match record.what {
            What::Follow if left == 0 => What::End,
            what => what,
        };
        bytes.extend((what as u16).to_le_bytes());
        bytes.extend((record.links.len() as u16).to_le_bytes());
        bytes.extend((number as u64).to_le_bytes());
        for link in &record.links {
            let place = self.target(number, *link, places, ends);
            bytes.extend(place.offset.to_le_bytes());
            bytes.extend(place.size.to_le_bytes());
            bytes.extend((place.file as u32).to_le_bytes());
        }
        bytes
    }

    fn target(&self, number: usize, link: Link, places: &[Place], ends: &[u64]) -> Place {
        let left = places.len() - number - 1;
        let file = |chosen: u8| usize::from(chosen) % self.files;
        match link {
            Link::Record(chosen) if left > 0 => places[number + 1 + usize::from(chosen) % left],
            Link::Record(_) => Place { file: 0, offset: 1 << 50, size: 512 },
            Link::Outside(chosen) => {
                let file = file(chosen);
                Place { file, offset: ends[file] + (u64::from(chosen) << 12), size: 512 }
            }
            Link::Across(chosen) => {
                let file = file(chosen);
                let offset = ends[file].saturating_sub(u64::from(chosen));
                Place { file, offset, size: 512 + u32::from(chosen) }
            }
            Link::Hole(chosen) => {
                let offset = u64::from(chosen % self.hole_blocks.max(1)) * 4096;
                Place { file: 0, offset, size: 4096 }
            }
        }
    }
}

/// Bytes without repeated stretches.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::with_seed(1).fill(&mut bytes);
    bytes
}
