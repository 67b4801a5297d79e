//! The user's own stages: at a target and on this machine, and the errors for objects that are not stages.

use crate::clang::compile;
use crate::disk::Disk;
use crate::{ask, write};
use std::path::Path;
use tempfile::TempDir;

const ROWS: i64 = 300_000;

/// Seconds of all kinds, negative ones too.
fn seconds() -> impl Iterator<Item = i64> {
    (0..ROWS).map(|row| (row * 7_919) % 1_000_003 - 2_000)
}

/// The objects of the documentation's examples.
fn examples() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["whole_minutes", "powers"] {
        let source = format!("../../docs/examples/{name}.bpf.c");
        compile(&source, &folder.path().join(format!("{name}.bpf.o")));
    }
    folder
}

fn answered(output: &std::process::Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn own_stages_answer_what_is_computed_here() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let folder = examples();
    let numbers: Vec<u8> = seconds()
        .enumerate()
        .flat_map(|(row, seconds)| [seconds, row as i64].map(i64::to_le_bytes).concat())
        .collect();
    write(&disk.mount().join("n.bin"), &numbers);
    let file = disk.mount().join("n.bin");
    let passing: Vec<(i64, i64)> =
        (0..).zip(seconds()).filter(|(row, seconds)| seconds % 60 == 0 && *row >= 1000).collect();
    let sum: i64 = passing.iter().map(|(row, _)| row).sum();
    let mut powers = [0; 64];
    for (_, seconds) in &passing {
        powers[if *seconds < 0 { 0 } else { (64 - seconds.leading_zeros()) as usize }] += 1;
    }
    let powers: String = (0..64)
        .filter(|bits| powers[*bits] > 0)
        .map(|bits| format!("{bits},{}\n", powers[bits]))
        .collect();
    let filter = format!("{}/whole_minutes.bpf.o(seconds)", folder.path().display());
    let reduce = format!("{}/powers.bpf.o(seconds) -> bits u64, n u64", folder.path().display());
    let sum_of = format!("SELECT count(*), sum(row) FROM '{}' WHERE row >= 1000", file.display());
    let top_of = format!(
        "SELECT row, seconds FROM '{}' WHERE row >= 1000 ORDER BY seconds DESC LIMIT 3",
        file.display()
    );
    let powers_of = format!(
        "SELECT bits, sum(n) FROM '{}' WHERE row >= 1000 GROUP BY bits HAVING sum(n) > 0 ORDER BY bits",
        file.display()
    );
    let mut greatest = passing.clone();
    greatest.sort_by_key(|(row, seconds)| (-seconds, *row));
    let greatest: String =
        greatest[..3].iter().map(|(row, seconds)| format!("{row},{seconds}\n")).collect();
    let targets = format!("{}={} {}", disk.mount().display(), disk.url, disk.image().display());
    let given = ["--schema", "seconds i64, row i64", "--csv", "--filter", &filter];
    let everywhere = |arguments: &[&str], expected: &str| {
        let at_target = ask(&targets, &[&given, arguments, &["--no-fallback"]].concat());
        assert_eq!(answered(&at_target), expected);
        let here = ask(&targets, &[&given, arguments, &["--here"]].concat());
        assert_eq!(answered(&here), expected);
    };
    everywhere(&[&sum_of], &format!("count(*),sum(row)\n{},{sum}\n", passing.len()));
    everywhere(&[&top_of], &format!("row,seconds\n{greatest}"));
    let powers = format!("bits,sum(n)\n{powers}");
    everywhere(&["--reduce", &reduce, &powers_of], &powers);

    // The target is gone: the same functions run here, over plain reads.
    disk.stop_target();
    let output = ask(&targets, &[&given[..], &["--reduce", &reduce, &powers_of]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("the stages run here"));
    assert_eq!(answered(&output), powers);
}

/// The error of the command for an invalid filter or reduction.
fn refusal(file: &Path, option: &str, stage: &str) -> String {
    let sql = format!("SELECT count(*) FROM '{}'", file.display());
    let output = ask("", &["--schema", "n i64", "--here", option, stage, &sql]);
    assert!(!output.status.success(), "{stage}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn functions_that_are_not_stages_are_refused_with_a_reason() {
    let folder = examples();
    let path = |name: &str| folder.path().join(name);
    write(&path("n.bin"), &7_i64.to_le_bytes());
    let object = |name: &str, code: &str| {
        let source = path(&format!("{name}.c"));
        write(&source, format!("#include <bpfof/batch.h>\n{code}\n").as_bytes());
        compile(source.to_str().expect("text"), &path(name));
    };
    object("other", "SEC(\"bpfof/get\") int get(struct bpfof_ctx *ctx) { return ctx->reads; }");
    object(
        "old",
        "SEC(\"bpfof/own_filter_0\") int f(struct bpfof_ctx *ctx) { return ctx->reads; }",
    );
    let helper =
        "BPFOF_OWN_FILTER int f(struct bpfof_ctx *ctx) { return ((int (*)(void *))9999)(ctx); }";
    object("wild", helper);
    let fault = "BPFOF_OWN_FILTER int f(struct bpfof_ctx *ctx) { return *(volatile int *)(long)ctx->offset; }";
    object("fault", fault);
    let cases = [
        ("--filter", "n.bin(n)", "not a readable ELF object"),
        ("--filter", "no.o(n)", "No such file"),
        (
            "--filter",
            "other(n)",
            "get is not a stage of a query: mark its function with BPFOF_OWN_FILTER",
        ),
        ("--filter", "old(n)", "version 0 of the contract"),
        ("--filter", "powers.bpf.o(n)", "it is a reduction and not a filter"),
        ("--filter", "whole_minutes.bpf.o(m)", "there is no column m"),
        ("--filter", "wild(n)", "instruction "),
        ("--filter", "fault(n)", "Function Fault"),
        ("--reduce", "powers.bpf.o(n) -> bits u64", "answered 1024 bytes for 64 rows of 8 each"),
        ("--reduce", "powers.bpf.o(n) -> bits u32", "numbers of the kinds u64, i64 and f64"),
    ];
    for (option, stage, expected) in cases {
        let stage = format!("{}/{stage}", folder.path().display());
        let said = refusal(&path("n.bin"), option, &stage);
        assert!(said.contains(expected), "{stage}: {said}");
    }
}

#[test]
fn own_stages_are_explained() {
    let folder = examples();
    let path = folder.path().join("n.bin");
    write(&path, &7_i64.to_le_bytes());
    let filter = format!("{}/whole_minutes.bpf.o(n)", folder.path().display());
    let sql = format!("SELECT count(*) FROM '{}'", path.display());
    let output = ask("", &["--schema", "n i64", "--explain", "--filter", &filter, &sql]);
    let said = answered(&output);
    assert!(said.contains("stages  filter of your own: whole_minutes.bpf.o(n)"), "{said}");
}
