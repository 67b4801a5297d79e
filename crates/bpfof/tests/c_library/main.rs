//! The C library as its users get it: installed, found by pkg-config, with stock compilers.

#[path = "../command/mod.rs"]
mod command;
#[path = "../grants/daemon.rs"]
mod daemon;
#[path = "../disk/mod.rs"]
mod disk;

use command::Target;
use daemon::{Grantd, UID};
use disk::{BPFOF, Disk, run};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const SOURCES: &str = env!("CARGO_MANIFEST_DIR");
const STRICT: [&str; 5] = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn repository() -> PathBuf {
    Path::new(SOURCES).join("../..").canonicalize().expect("a checkout")
}

/// The programs and libraries that cargo has built for the tests, with the names that `make
/// install` expects.
fn built(folder: &Path) -> PathBuf {
    let target = Path::new(BPFOF).parent().expect("a folder");
    let names = ["bpfof", "bpfof-query"].map(|name| (name, target.join(name))).into_iter();
    let libraries =
        ["libbpfof.so", "libbpfof.a"].map(|name| (name, target.join("deps").join(name)));
    let built = folder.join("built");
    fs::create_dir(&built).expect("made");
    for (name, at) in names.chain(libraries) {
        std::os::unix::fs::symlink(&at, built.join(name)).expect("linked");
    }
    built
}

fn make(folder: &Path, settings: &[String]) {
    let made = Command::new("make")
        .args(["--no-print-directory", "-C"])
        .arg(repository())
        .args(settings)
        .arg(format!("BUILD_DIR={}", folder.join("built").display()))
        // Variables of the make that may run this test.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .output()
        .expect("make starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The library, installed below a folder of its own.
struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Installed {
        let folder = tempfile::tempdir().expect("a folder");
        built(folder.path());
        make(folder.path(), &["install".into(), format!("PREFIX={}", folder.path().display())]);
        Installed { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let found = Command::new("pkg-config")
            .args(arguments)
            .arg("bpfof")
            .env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"))
            .output()
            .expect("pkg-config starts");
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        let text = String::from_utf8(found.stdout).expect("UTF-8");
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles and links a program; `options` come before the source.
    fn compile(&self, compiler: &str, source: &Path, name: &str, options: &[&str]) -> PathBuf {
        let program = self.path(name);
        let mut arguments: Vec<String> = options.iter().map(|&option| option.into()).collect();
        arguments.push(source.display().to_string());
        arguments.extend(["-o".into(), program.display().to_string()]);
        arguments.extend(self.pkg_config(&["--cflags", "--libs"]));
        run(compiler, &arguments);
        program
    }

    /// Compiles a storage function with the header for storage functions.
    fn compile_function(&self, source: &Path, name: &str) -> PathBuf {
        let object = self.path(name);
        let include = &self.pkg_config(&["--variable=functiondir"])[0];
        let options = "-O2 -g -Wall -Wextra -Werror -target bpf -mcpu=v3 -c".split(' ');
        let mut arguments: Vec<String> = options.map(str::to_owned).collect();
        arguments.push(format!("-I{include}/include"));
        arguments.push(source.display().to_string());
        arguments.extend(["-o".into(), object.display().to_string()]);
        run("clang", &arguments);
        object
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("lib"));
        // Sanitizer errors exit instead of aborting; leaks are detected.
        command.env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0");
        command
    }
}

/// All files below a folder, and the targets of symbolic links.
fn tree(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(folder).expect("below").display().to_string();
            match fs::read_link(&path) {
                Ok(to) => _ = found.insert(format!("{name} -> {}", to.display())),
                Err(_) if path.is_dir() => folders.push(path),
                Err(_) => _ = found.insert(name),
            }
        }
    }
    found
}

#[test]
fn what_is_installed_can_be_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    built(folder.path());
    let root = folder.path().join("root");
    let settings = |goal: &str| {
        [goal.to_owned(), format!("DESTDIR={}", root.display()), "PREFIX=/opt/bpfof".to_owned()]
    };
    make(folder.path(), &settings("install"));
    let installed = tree(&root);
    for expected in [
        "bin/bpfof",
        "include/bpfof.h",
        "lib/libbpfof.a",
        "lib/libbpfof.so -> libbpfof.so.0",
        "lib/libbpfof.so.0 -> libbpfof.so.0.1.0",
        "lib/libbpfof.so.0.1.0",
        "lib/pkgconfig/bpfof.pc",
        "share/bpfof/functions/block_get.bpf.o",
        "share/bpfof/functions/include/bpfof.h",
        "share/bpfof/functions/include/bpfof/blocks.h",
        "share/bpfof/functions/sorted.h",
        "share/bpfof/functions/sorted_get.bpf.c",
        "share/bpfof/functions/sorted_get.bpf.o",
        "share/doc/bpfof/c-api.md",
        "share/doc/bpfof/examples/find.c",
        "share/bash-completion/completions/bpfof",
        "share/man/man1/bpfof.1",
        "share/man/man1/bpfof-kv-get.1",
        "share/man/man3/bpfof.3",
        "share/man/man3/bpfof_read_pushdown.3",
    ] {
        assert!(installed.contains(&format!("opt/bpfof/{expected}")), "{expected}: {installed:?}");
    }
    let described = fs::read_to_string(root.join("opt/bpfof/lib/pkgconfig/bpfof.pc"));
    assert!(described.expect("readable").starts_with("prefix=/opt/bpfof\n"));
    make(folder.path(), &settings("uninstall"));
    assert_eq!(tree(&root), BTreeSet::new());
    assert!(!root.join("opt/bpfof/share/bpfof").exists(), "folders go as well");
}

/// The calls that a header declares: lines that begin with a name and have a bracket.
fn declared(header: &str) -> BTreeSet<&str> {
    let calls: BTreeSet<&str> = header
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        .filter_map(|line| line.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.rsplit([' ', '*']).next())
        .collect();
    assert!(calls.contains("bpfof_read_pushdown"), "{calls:?}");
    calls
}

/// Programs link to the SONAME, which changes with the interface, and to no symbols of Rust.
#[test]
fn the_library_has_a_soname_and_exports_what_the_header_declares() {
    let installed = Installed::new();
    let library = installed.path("lib/libbpfof.so");
    let library = library.to_str().expect("UTF-8");
    let header = run("llvm-objdump", &["-p", library]);
    assert!(header.contains("SONAME") && header.contains("libbpfof.so.0"), "{header}");
    let symbols = run("llvm-objdump", &["-T", library]);
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter(|line| line.contains(" g ") && !line.contains("*UND*"))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let text = fs::read_to_string(installed.path("include/bpfof.h")).expect("readable");
    assert_eq!(exported, declared(&text));
}

/// Runs the example on a file that `find make` wrote, and expects its keys.
fn expect_found(command: &mut Command, executor: &str) {
    let found = command.args(["0", "42", "999", "1000"]).output().expect("it starts");
    let errors = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "{errors}");
    assert_eq!(
        String::from_utf8_lossy(&found.stdout),
        format!(
            "0: value of 0 (1 hops, {executor})\n42: value of 42 (3 hops, {executor})\n\
             999: value of 999 (63 hops, {executor})\n1000: not found (62 hops, {executor})\n"
        ),
        "{errors}"
    );
}

#[test]
fn the_example_compiles_from_the_installed_package_and_runs() {
    let installed = Installed::new();
    let examples = repository().join("docs/examples");
    let program = installed.compile("cc", &examples.join("find.c"), "find", &STRICT);
    let object = installed.compile_function(&examples.join("find.bpf.c"), "find.bpf.o");
    let make_file = |path: &Path| {
        let made = installed.command(&program).arg("make").arg(path).arg("1000").status();
        assert!(made.expect("it starts").success());
    };
    // Without a target: none is named, or none listens.
    let beside = installed.path("records");
    make_file(&beside);
    let address = "nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:target";
    for url in ["-", address] {
        let mut command = installed.command(&program);
        command.arg("get").arg(&object).arg(&beside).arg(url).arg(&beside);
        expect_found(&mut command, "here");
    }
    // As C++, and with the library inside the program.
    let cxx = ["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let as_cxx = installed.compile("c++", &examples.join("find.c"), "find++", &cxx);
    let mut command = installed.command(&as_cxx);
    expect_found(command.arg("get").arg(&object).arg(&beside).args(["-", "-"]), "here");
    let whole = installed.path("find-static");
    let mut arguments = vec![examples.join("find.c").display().to_string(), "-o".into()];
    arguments.push(whole.display().to_string());
    arguments.extend(installed.pkg_config(&["--cflags"]));
    arguments.push(installed.path("lib/libbpfof.a").display().to_string());
    let others = installed.pkg_config(&["--static", "--libs-only-l"]);
    arguments.extend(others.into_iter().filter(|option| option != "-lbpfof"));
    run("cc", &arguments);
    let mut command = Command::new(&whole);
    expect_found(command.arg("get").arg(&object).arg(&beside).args(["-", "-"]), "here");
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let mounted = disk.mount().join("records");
    make_file(&mounted);
    let mut command = installed.command(&program);
    command.arg("get").arg(&object).arg(&mounted).arg(disk.url.to_string()).arg(disk.image());
    expect_found(&mut command, "at the target");
    // A target that does not know the file: the same answers.
    let mut command = installed.command(&program);
    command.arg("get").arg(&object).arg(&beside).arg(disk.url.to_string()).arg(disk.image());
    expect_found(&mut command, "here");
    // A user who can open the file but has no other rights.
    for folder in [installed.path(""), disk.image().with_file_name("")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("set");
    }
    let grantd = Grantd::start(&disk.url.to_string(), &disk.image(), &["--allow-own-functions"]);
    let mut command = installed.command(&program);
    let socket = format!("grantd:{}", grantd.socket.display());
    command.arg("get").arg(&object).arg(&mounted).arg(socket).arg(&mounted).uid(UID).gid(UID);
    expect_found(&mut command, "at the target");
    grantd.stop();
}

/// The two files that calls.c expects.
fn write_files(folder: &Path) -> [PathBuf; 2] {
    [251, 241].map(|modulus| {
        let path = folder.join(format!("bytes-{modulus}"));
        let bytes: Vec<u8> = (0..100_000).map(|i| (i % modulus) as u8).collect();
        fs::write(&path, bytes).expect("written");
        path
    })
}

/// Runs calls.c, and kills its target, if it has one, when it asks for that.
fn expect_done(mut command: Command, disk: Option<&Disk>) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().and_then(Result::ok).unwrap_or_default();
    let mut line = next();
    let has_asked = line == "kill";
    if let Some(disk) = disk.filter(|_| has_asked) {
        disk.stop_target();
        child.stdin.take().expect("piped").write_all(b"dead\n").expect("it listens");
        line = next();
    }
    let ended = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && line == "done", "{line} {}\n{errors}", ended.status);
    assert_eq!(has_asked, disk.is_some(), "it asks for the end of its target");
}

#[test]
fn every_call_does_what_the_header_says() {
    let installed = Installed::new();
    let sources = Path::new(SOURCES).join("tests/c_library");
    let object = installed.compile_function(&sources.join("functions.bpf.c"), "functions.bpf.o");
    // The address sanitizer finds leaks, and wrong accesses of the library to the program's memory.
    let options = [&STRICT[..], &["-g", "-pthread", "-fsanitize=address"]].concat();
    let program = installed.compile("cc", &sources.join("calls.c"), "calls", &options);
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = installed.command(&program);
    command.arg(&object).args(write_files(folder.path())).current_dir(folder.path());
    expect_done(command, None);
    // Each reader with a connection of its own; then all on one connection, or on that of their
    // processor.
    for ((kind, size_bytes), lanes) in disk::KINDS.into_iter().zip([["1"], ["64"]]) {
        for lanes in [&[][..], &lanes] {
            let Some(disk) = Disk::new(kind, size_bytes) else { return };
            let mut command = installed.command(&program);
            command.arg(&object).args(write_files(&disk.mount())).current_dir(disk.mount());
            command.arg(disk.url.to_string()).arg(disk.image()).args(lanes);
            expect_done(command, Some(&disk));
        }
    }
}

/// A target whose only host has a key.
fn secured_target(folder: &Path) -> Target {
    let path = |name: &str| folder.join(name).display().to_string();
    let config = format!(
        "namespaces = [\"file:path={},size=8MiB\"]\n[[host]]\nnqn = \"nqn.2026-01.io.test:c\"\n\
         tls-psk = [\"{}\"]\n",
        path("image"),
        path("psk")
    );
    fs::write(folder.join("target.toml"), config).expect("written");
    let mut command = Target::command();
    command.arg("--config").arg(folder.join("target.toml"));
    Target::run(command)
}

/// Programs in C have no options for keys: the keys are in the address, or in the user's file.
#[test]
fn keys_are_those_of_the_user() {
    let installed = Installed::new();
    let source = Path::new(SOURCES).join("tests/c_library/open.c");
    let program = installed.compile("cc", &source, "open", &STRICT);
    let folder = tempfile::tempdir().expect("a folder");
    let psk = folder.path().join("psk").display().to_string();
    run(BPFOF, &["key", "new", "tls", "--output", &psk]);
    let target = secured_target(folder.path());
    let url = target.url.as_str();
    let open = |url: &str| {
        let mut command = installed.command(&program);
        command.arg(url).arg(folder.path().join("image"));
        command.env("XDG_CONFIG_HOME", folder.path());
        String::from_utf8(command.output().expect("it starts").stdout).expect("UTF-8")
    };
    let nobody = open(url);
    // The same with another portal at which no target listens.
    let nobodys = open(&url.replacen("://", "://127.0.0.1:1,", 1));
    let named = open(&format!("{url}?hostnqn=nqn.2026-01.io.test:c&tls-psk={psk}"));
    fs::create_dir(folder.path().join("bpfof")).expect("made");
    let file = folder.path().join("bpfof/hosts.toml");
    let text = format!(
        "[[target]]\nmatch = \"*\"\nhostnqn = \"nqn.2026-01.io.test:c\"\ntls-psk = \"{psk}\"\n"
    );
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
    let found = open(url);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).expect("set");
    let readable = open(url);
    assert!(nobody.starts_with("EACCES") && nobody.contains("Connect Invalid Host"), "{nobody}");
    assert!(nobodys.starts_with("EACCES"), "{nobodys}");
    assert_eq!((named.as_str(), found.as_str()), ("target\n", "target\n"));
    assert!(readable.starts_with("EACCES") && readable.contains("chmod 600"), "{readable}");
}

#[test]
fn the_manual_tells_of_every_call() {
    let pages = ["bpfof.3", "bpfof_read_pushdown.3"].map(|page| {
        fs::read_to_string(repository().join("docs/man").join(page)).expect("readable")
    });
    let header = repository().join("crates/capi/include/bpfof.h");
    let header = fs::read_to_string(header).expect("readable");
    for call in declared(&header) {
        assert!(pages.iter().any(|page| page.contains(&format!("{call}("))), "{call}");
    }
}
