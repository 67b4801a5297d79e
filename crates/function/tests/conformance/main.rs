//! What RFC 9669 says each instruction does, as plain text (`*.txt`), on both engines.

mod cases;

use bpfof_function::{Alone, Arena, Exit, NativeFunction, Program, interpret};

#[test]
fn both_engines_do_what_the_rfc_says() {
    let cases = cases::all();
    assert!(cases.len() > 2000, "the corpus is there: {} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let program = Program::parse(case.slots.as_flattened())
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let native = NativeFunction::compile(&program)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        for (engine, is_native) in [("interpreter", false), ("native", true)] {
            let mut arena = Arena::new();
            arena.begin_hop(0);
            let limit = arena.begin_call(0..512, 0, 0, 0);
            let mut budget = 10_000;
            let outcome = if is_native {
                native.call(&mut arena, limit, &mut budget, &mut Alone)
            } else {
                interpret(&program, &mut arena, limit, &mut budget, &mut Alone)
            };
            if outcome != Ok(Exit::Return(case.expected)) {
                wrong.push(format!("{engine}: {}: {outcome:x?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
