//! Objects as clang makes them.

mod clang;

use bpfof_function::{Arena, Fault, NativeFunction, Object, abi, fuzz, interpret, object::Entry};
use clang::Clang;
use proptest::prelude::*;

fn entry(object: &[u8], name: &str) -> Entry {
    let object = Object::parse(object).expect("a valid object");
    let index = object.entries().iter().position(|entry| entry.name == name);
    object.into_entry(index.expect("the entry is there")).expect("the entry is there")
}

/// Runs an entry on both engines with 512 bytes of zeroes as data.
fn run(entry: &Entry) -> Result<u64, Fault> {
    let native = NativeFunction::compile(&entry.program).expect("translates");
    let outcomes = [true, false].map(|is_native| {
        let mut arena = Arena::new();
        arena.begin_chain(&[]);
        arena.begin_hop(0);
        let limit = arena.begin_call(0..512, 0, 0, 0);
        let mut budget = 100_000;
        if is_native {
            native.call(&mut arena, limit, &mut budget)
        } else {
            interpret(&entry.program, &mut arena, limit, &mut budget)
        }
    });
    assert_eq!(outcomes[0], outcomes[1]);
    outcomes[0]
}

#[test]
fn faults_name_line_address_and_bounds() {
    let data_end = abi::DATA + 512;
    for clang in Clang::all() {
        let object = clang.compile("lines");
        let explain = |name| {
            let entry = entry(&object, name);
            run(&entry).expect_err("a fault").explain(&entry.program)
        };
        let past = explain("past");
        assert!(past.contains("/lines.bpf.c:8: instruction "), "{past}");
        assert!(past.contains("in `return ctx->data_end[2];`"), "{past}");
        let place = format!("at {:#x}, 2 bytes past the end of the data", data_end + 2);
        assert!(past.contains(&place), "{past}");
        let list = format!(
            "scratch {:#x}..{:#x}, data {:#x}..{data_end:#x})",
            abi::SCRATCH,
            abi::DATA,
            abi::DATA
        );
        assert!(past.ends_with(&list), "{past}");
        let null = explain("null");
        assert!(null.contains("/lines.bpf.c:13: "), "{null}");
        assert!(null.contains("at 0x0, a null pointer"), "{null}");
        let before = explain("before");
        assert!(before.contains("/lines.bpf.c:25: "), "{before}");
        assert!(before.contains("8 bytes before the stack"), "{before}");
        let endless = explain("endless");
        assert!(endless.contains("/lines.bpf.c:3"), "{endless}");
        assert!(endless.ends_with("instruction budget exhausted"), "{endless}");
    }
}

#[test]
fn refusals_name_the_line() {
    for clang in Clang::all() {
        let refusal = |name| Object::parse(&clang.compile(name)).expect_err("refused").to_string();
        let helper = refusal("refused_helper");
        assert!(helper.contains("/refused_helper.bpf.c:10: `return bpfof_missing();`"), "{helper}");
        assert!(helper.contains("helper 99 does not exist"), "{helper}");
        let call = refusal("refused_call");
        assert!(call.contains("/refused_call.bpf.c:9: "), "{call}");
        assert!(call.contains("calls a function that the object does not define"), "{call}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any damage to a real object, debug information included, gives an object or an error.
    #[test]
    fn damaged_objects_do_no_harm(
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..20),
    ) {
        static OBJECT: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| Clang::default().compile("lines"));
        let mut object = OBJECT.clone();
        for (at, byte) in damage {
            let at = at.index(object.len());
            object[at] = byte;
        }
        fuzz::object(&object);
    }
}
