//! A filter and a reduction that are independent of each other, composed at run time: the filter
//! tail-calls the installed function that the request names.

#[path = "../common/mod.rs"]
mod common;

use bpfof_structures::{Damage, Place};
use common::World;
use std::path::Path;
use std::process::Command;

/// Compiles a function of this folder.
fn compile(name: &str) -> Vec<u8> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let ran = Command::new(clang)
        .args("-O2 -g -Wall -Wextra -Werror -target bpf -mcpu=v3 -c -o - -I".split(' '))
        .arg(here.join("../../functions/include"))
        .arg(here.join(format!("tests/compose/{name}.bpf.c")))
        .output()
        .expect("clang starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ran.stdout
}

/// The numbers below `below`, reduced by the function with this id.
fn run(world: &mut World, reduction: u32, below: u64, end_bytes: usize) -> Result<u64, Damage> {
    let words = [u64::from(reduction), below, end_bytes as u64];
    let argument: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let first = Place { offset_bytes: 0, size_bytes: 4096 };
    let answer = world.chain(first, &argument, 4096)?;
    Ok(u64::from_le_bytes(answer.try_into().expect("a number")))
}

#[test]
fn one_filter_with_several_reductions() {
    let mut world = World::new(&compile("filter"));
    let numbers: Vec<u64> = (0..5000_u64).map(|number| number * number % 1009).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    world.store(&bytes);
    // There is no such reduction, which the filter reports.
    assert_eq!(run(&mut world, 0, 100, bytes.len()), Err(Damage::Request));
    let [sum, greatest] = ["sum", "greatest"].map(compile).map(|object| world.load(&object));
    for below in [0, 1, 100, 2000] {
        let passed = || numbers.iter().copied().filter(|number| *number < below);
        assert_eq!(run(&mut world, sum, below, bytes.len()), Ok(passed().sum()));
        let max = passed().max().unwrap_or(0);
        assert_eq!(run(&mut world, greatest, below, bytes.len()), Ok(max));
    }
}
