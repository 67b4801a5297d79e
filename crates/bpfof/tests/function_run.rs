//! `bpfof function run`: one chain from the command line.

mod clang;
mod command;

use command::{Target, bad, good, json};
use std::path::Path;
use tempfile::TempDir;

/// Reads 8 bytes a hop: the offset of the next hop, or the answer if it is negative.
const WALK: &str = r#"
#include "bpfof.h"

SEC("bpfof/walk")
int walk(struct bpfof_ctx *ctx)
{
	long long next = *(const long long *)ctx->data;

	if (next < 0) {
		*(long long *)ctx->scratch = -next;
		ctx->out_len = 8;
		ctx->done = 1;
		return 0;
	}
	ctx->next_offset[0] = next;
	ctx->next_size[0] = 8;
	ctx->next_file[0] = ctx->file;
	ctx->reads = 1;
	return 0;
}
"#;

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_get_at_a_target_and_its_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = Target::start(&["mem:size=8MiB"]);
    let url = &target.url;
    good(&["kv", "create", "--levels", "3", "--target", url]);
    let object = write(&folder, "get.o", bpfkv::GET_OBJECT);
    let key = bpfkv::pushdown::get_argument(4242).expect("a key");
    let (scratch, answer) = (write(&folder, "key", &key), folder.path().join("answer"));
    let run = ["function", "run", "--target", url, "--size", "512", "--scratch", &scratch];
    let more = ["--output", answer.to_str().expect("UTF-8"), "--steps", "--json", &object];
    let report = json(&[&run[..], &more].concat());
    let answer = std::fs::read(answer).expect("written");
    let value = bpfkv::pushdown::get_answer(&answer).expect("an answer").expect("found");
    assert_eq!(value, &bpfkv::format::value_number(4242));
    assert_eq!((&report["executor"], &report["hops"]), (&"target".into(), &4.into()));
    let hops = report["steps"]["hops"].as_array().expect("a list");
    assert_eq!((hops.len(), &report["steps"]["reads"]), (4, &4.into()));
    assert_eq!(hops[0][0], serde_json::json!({ "file": 0, "offset": 0, "size": 512 }));
    assert!(report["steps"]["cost_units"].as_u64().expect("a number") > 0);
    let text = good(&[&run[..], &["--steps", &object]].concat());
    for part in ["answer: 72 bytes", "4 hops at the target", "hop 3: file 0 at"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A failure shows its reason, at a target also the source line, if the object has lines.
    let beyond = bad(&[&run[..], &["--offset", "99999999999", &object]].concat());
    assert!(beyond.contains("Read Outside File"), "{beyond}");
}

#[test]
fn a_function_over_files_and_the_line_that_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = write(&folder, "walk.bpf.c", WALK.as_bytes());
    let object = folder.path().join("walk.bpf.o");
    clang::compile(&source, &object);
    let object = object.to_str().expect("UTF-8");
    let numbers = |list: &[i64]| list.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let file = write(&folder, "numbers", &numbers(&[16, 0, 24, -42]));
    let run = |more: &[&str]| {
        let head = ["function", "run", "--size", "8", "--json"];
        json(&[&head[..], more, &[object]].concat())
    };
    let report = run(&["--file", &file, "--steps"]);
    assert_eq!((&report["answer_hex"], &report["hops"]), (&"2a00000000000000".into(), &3.into()));
    let offsets: Vec<_> = report["steps"]["hops"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|hop| hop[0]["offset"].as_u64().expect("a number"))
        .collect();
    assert_eq!(offsets, [0, 16, 24]);
    // A read of 4 bytes is too short for it.
    let short = ["function", "run", "--size", "4", "--file", &file, object];
    let fault = bad(&short);
    assert!(fault.contains("walk.bpf.c:7"), "{fault}");
    // The same at a target.
    let target = Target::start(&["mem:size=1MiB"]);
    let fault = bad(&["function", "run", "--size", "4", "--target", &target.url, object]);
    assert!(fault.contains("walk.bpf.c:7"), "{fault}");
}

/// A header whose function is inlined, and a source file that calls it.
const HEADER: &str = "static inline long long word(const struct bpfof_ctx *ctx)\n{\n\treturn *(const \
                      long long *)(ctx->data + 8);\n}\n";
const CALLER: &str = "#include \"bpfof.h\"\n#include \"word.h\"\n\nSEC(\"bpfof/first\")\nint \
                      first(struct bpfof_ctx *ctx)\n{\n\tctx->next_size[0] = word(ctx);\n\
                      \tctx->reads = 1;\n\treturn 0;\n}\n";

#[test]
fn a_fault_in_a_header_names_the_call_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder, "word.h", HEADER.as_bytes());
    let source = write(&folder, "first.bpf.c", CALLER.as_bytes());
    let object = folder.path().join("first.bpf.o");
    clang::compile(&source, &object);
    let object = object.to_str().expect("UTF-8");
    let file = write(&folder, "short", &[0; 8]);
    let target = Target::start(&["mem:size=1MiB"]);
    let folder = folder.path().to_str().expect("UTF-8");
    let place = format!("{folder}/word.h:3, inlined at {folder}/first.bpf.c:7: instruction ");
    let text = "in `return *(const long long *)(ctx->data + 8);`: r";
    for words in [
        &["run", "--size", "8", "--file", &file][..],
        &["run", "--size", "8", "--target", &target.url],
        &["check", "--run", &file],
        &["check", "--json", "--no-proof", "--run", &file],
    ] {
        let fault = bad(&[&["function"][..], words, &[object]].concat());
        for part in [&place, text, "past the end of the data"] {
            assert!(fault.contains(part), "{words:?}: {part}: {fault}");
        }
        assert_eq!(fault.matches("inlined at").count(), 1, "{words:?}: {fault}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let object = &write(&folder, "get.o", bpfkv::GET_OBJECT);
    let missing = folder.path().join("missing");
    let missing = missing.to_str().expect("UTF-8");
    assert!(Path::new(object).exists());
    for (words, why) in [
        (&["--size", "512"][..], "--file"),
        (&["--size", "0", "--file", object], "--size"),
        (&["--size", "70000", "--file", object], "--size"),
        (&["--size", "8", "--file", missing], "missing"),
        (&["--size", "8", "--file", object, "--scratch", missing], "missing"),
        (&["--size", "8", "--file", object, "--scratch-hex", "0"], "hexadecimal"),
        (
            &["--size", "8", "--file", object, "--scratch-hex", "0011", "--scratch-size", "1"],
            "--scratch-size",
        ),
        (
            &["--size", "8", "--file", object, "--target", "nvme-tcp://127.0.0.1:1/nqn.x"],
            "--device",
        ),
        (&["--size", "8", "--file", object, "--entry", "other"], "other"),
    ] {
        let refusal = bad(&[&["function", "run", object][..], words].concat());
        assert!(refusal.contains(why), "{words:?}: {refusal}");
    }
}
