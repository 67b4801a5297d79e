//! Compares this crate's files with an independent implementation of the original layout, byte for
//! byte.

use crate::support::{Random, plain_get, plain_range, stock};
use bpfkv::create::{Extent, write_database};
use bpfkv::detect::{DetectError, Detected, detect};
use bpfkv::format::{value_number, value_text};
use bpfkv::{Corrupt, Defect, KeyRange};
use std::ops::ControlFlow;
use std::process::Command;
use std::{fs, io};

/// The database that tests/original_layout.py writes.
fn original(levels: u32) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/original_layout.py");
    let status = Command::new("python3").arg(script).arg(levels.to_string()).arg(&path).status();
    assert!(status.expect("python3 starts").success());
    fs::read(path).unwrap()
}

fn detect_in(file: &[u8]) -> Result<Detected, DetectError> {
    detect(file.len() as u64, &mut |offset, buffer| {
        let bytes = file.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    })
}

#[test]
fn our_databases_equal_those_of_the_original() {
    for levels in 1..=4 {
        let theirs = original(levels);
        let extent = Extent::full(levels).unwrap();
        assert!(stock(&extent) == theirs, "{levels} levels differ");
        assert_eq!(detect_in(&theirs).unwrap(), Detected { levels, stock: true });
        let keys = extent.keys();
        for key in [0, 1, 30, keys / 2, keys - 1] {
            assert_eq!(plain_get(&theirs, key, 0), Ok(Some(value_text(key))));
        }
        assert_eq!(plain_get(&theirs, keys, 0), Ok(None));
        let range = KeyRange::new(keys - 9, u64::MAX).unwrap();
        let (pairs, _) = plain_range(&theirs, &range, 0, &mut Random(0)).unwrap();
        let expected: Vec<u64> = (keys - 9..keys).collect();
        assert!(pairs.iter().map(|pair| pair.key).eq(expected));
        assert!(pairs.iter().all(|pair| pair.value == value_text(pair.key)));
    }
}

#[test]
fn a_part_equals_the_whole_except_for_a_hole() {
    let full = stock(&Extent::full(3).unwrap());
    for subtrees in [1, 2, 30] {
        let extent = Extent::part(3, subtrees).unwrap();
        let part = stock(&extent);
        assert_eq!(part.len(), full.len());
        let mut same_bytes = 0;
        for (ours, whole) in part.chunks(512).zip(full.chunks(512)) {
            assert!(ours == whole || ours == [0; 512]);
            same_bytes += u64::from(ours == whole) * 512;
        }
        // The root's other children and the next leaf are written zeroes.
        let blank_bytes = (31 - u64::from(subtrees) + 1) * 512;
        assert_eq!(same_bytes + blank_bytes, extent.written_bytes());
        assert_eq!(detect_in(&part).unwrap(), Detected { levels: 3, stock: true });
        let keys = extent.keys();
        assert_eq!(keys, u64::from(subtrees) * 961);
        assert_eq!(plain_get(&part, keys - 1, 0), Ok(Some(value_text(keys - 1))));
        let hole =
            Corrupt { offset_bytes: 512 * (1 + u64::from(subtrees)), defect: Defect::NodePointer };
        assert_eq!(plain_get(&part, keys, 0), Err(hole.into()));
        let range = KeyRange::new(keys - 3, keys + 3).unwrap();
        assert!(plain_range(&part, &range, 0, &mut Random(0)).is_err());
        let range = KeyRange::new(keys - 3, keys).unwrap();
        assert_eq!(plain_range(&part, &range, 0, &mut Random(0)).unwrap().0.len(), 3);
    }
}

#[test]
fn other_files_are_refused_with_a_reason() {
    assert!(matches!(detect_in(&[0; 100]), Err(DetectError::TooShort(100))));
    for file in [vec![0; 4096], vec![0xff; 4096], b"text ".repeat(1000)] {
        assert!(matches!(detect_in(&file), Err(DetectError::NotADatabase(_))));
    }
    let file = stock(&Extent::full(2).unwrap());
    // Cut inside the values of the first leaf, and after them.
    assert!(matches!(detect_in(&file[..17_000]), Err(DetectError::NotADatabase(_))));
    let cut = Detected { levels: 2, stock: false };
    assert_eq!(detect_in(&file[..20_000]).unwrap(), cut);
    let mut cycle = file.clone();
    cycle[264..272].copy_from_slice(&(1u64 << 63).to_le_bytes());
    let error = detect_in(&cycle).unwrap_err();
    assert!(error.to_string().starts_with("this is not a BPF-KV database"), "{error}");
}

#[test]
fn a_part_does_not_reach_a_former_database() {
    for levels in 2..=4 {
        let mut file = stock(&Extent::full(levels).unwrap());
        let extent = Extent::part(levels, 2).unwrap().with_numbers();
        let mut over = |offset: u64, bytes: &[u8]| {
            file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        write_database(&extent, &mut over, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let (keys, all) = (extent.keys(), extent.layout().keys());
        for key in [0, keys - 1] {
            assert_eq!(plain_get(&file, key, 0), Ok(Some(value_number(key))));
        }
        for key in [keys, keys + 31, (keys + all) / 2, all - 1, all] {
            assert!(plain_get(&file, key, 0).is_err(), "{levels} levels, key {key}");
        }
        for (begin, end) in [(keys - 3, keys + 3), (keys, keys + 1), (keys - 3, all)] {
            let range = KeyRange::new(begin, end).unwrap();
            assert!(plain_range(&file, &range, 0, &mut Random(0)).is_err(), "{levels}: {begin}");
        }
        let range = KeyRange::new(keys - 3, keys).unwrap();
        assert_eq!(plain_range(&file, &range, 0, &mut Random(0)).unwrap().0.len(), 3);
    }
}
