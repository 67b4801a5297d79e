//! Compiles C to objects, with every clang on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

/// A compiler and the instruction set that it compiles for.
#[derive(Clone, Debug)]
pub(crate) struct Clang {
    program: String,
    pub(crate) cpu: &'static str,
}

impl Clang {
    /// The compiler that functions are built with.
    pub(crate) fn default() -> Clang {
        let program = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
        Clang { program, cpu: "v3" }
    }

    /// Every installed clang, for every instruction set that it knows.
    pub(crate) fn all() -> Vec<Clang> {
        let versions = (14..=22).map(|version| format!("clang-{version}"));
        let mut found: Vec<Clang> = versions
            .chain([Clang::default().program])
            .flat_map(|program| {
                ["v1", "v2", "v3", "v4"].map(|cpu| Clang { program: program.clone(), cpu })
            })
            .filter(|clang| clang.run(Path::new("/dev/null"), Path::new("/dev/null"), true))
            .collect();
        found.dedup_by_key(|clang| (clang.program.clone(), clang.cpu));
        assert!(!found.is_empty(), "no clang for eBPF is installed: run `make setup`");
        found
    }

    /// Compiles `tests/objects/<name>.bpf.c`.
    pub(crate) fn compile(&self, name: &str) -> Vec<u8> {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/objects/{name}.bpf.c"));
        self.compile_file(&source)
    }

    /// Compiles a file.
    pub(crate) fn compile_file(&self, source: &Path) -> Vec<u8> {
        let directory = tempfile::tempdir().expect("a directory");
        let object = directory.path().join("function.o");
        assert!(self.run(source, &object, false), "{self:?} refuses {}", source.display());
        std::fs::read(object).expect("an object")
    }

    /// Compiles a source text.
    pub(crate) fn compile_text(&self, text: &str) -> Vec<u8> {
        let directory = tempfile::tempdir().expect("a directory");
        let (source, object) =
            (directory.path().join("function.bpf.c"), directory.path().join("function.o"));
        std::fs::write(&source, text).expect("written");
        assert!(self.run(&source, &object, false), "{self:?} refuses {text}");
        std::fs::read(object).expect("an object")
    }

    fn run(&self, source: &Path, object: &Path, quiet: bool) -> bool {
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../functions/include");
        Command::new(&self.program)
            .args("-O2 -g -Wall -Wextra -Werror -target bpf -x c -c".split(' '))
            .args([&format!("-mcpu={}", self.cpu), "-I", include, "-o"])
            .args([object, source])
            .stderr(if quiet { Stdio::null() } else { Stdio::inherit() })
            .status()
            .is_ok_and(|status| status.success())
    }
}
