//! The results that RFC 9669 defines for each instruction, as plain text (`*.txt`), on all engines.

#[path = "../assembly/mod.rs"]
mod assembly;
mod cases;

use bpfof_function::kernel::KernelProgram;
use bpfof_function::kernel::machine::{self, KernelEnd};
use bpfof_function::{Alone, Arena, Exit, NativeFunction, Program, interpret};

#[test]
fn all_engines_do_what_the_rfc_says() {
    let cases = cases::all();
    assert!(cases.len() > 2000, "the corpus is there: {} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let program = Program::parse(case.slots.as_flattened())
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let native = NativeFunction::compile(&program)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let kernel = KernelProgram::translate(&program)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        for engine in ["interpreter", "native", "kernel"] {
            let mut arena = Arena::new();
            arena.begin_hop(0);
            let limit = arena.begin_call(0..512, 0, 0, 0);
            let mut budget = 10_000;
            let outcome = match engine {
                "native" => native.call(&mut arena, limit, &mut budget, &mut Alone),
                "interpreter" => interpret(&program, &mut arena, limit, &mut budget, &mut Alone),
                _ => match machine::run(&program, &kernel, &mut arena, limit, &mut budget) {
                    KernelEnd::Same(outcome) => outcome,
                    KernelEnd::Helper => panic!("{}: a helper that the kernel lacks", case.name),
                },
            };
            if outcome != Ok(Exit::Return(case.expected)) {
                wrong.push(format!("{engine}: {}: {outcome:x?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
