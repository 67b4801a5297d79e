//! The pages of the documentation, followed to the letter: their files are written, their commands run, and the output
//! is compared with the page. For commands that cannot run here the tests check at least that each command and option
//! of every page exists.

mod page;
mod reader;

use page::{Block, blocks, commands};
use reader::Reader;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const BPFOF: &str = env!("CARGO_BIN_EXE_bpfof");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("a checkout")
}

fn page(name: &str) -> Vec<Block> {
    blocks(&fs::read_to_string(repository().join(name)).expect("a page"))
}

/// The blocks of a page from one heading to the next of its rank.
fn section(name: &str, heading: &str) -> Vec<Block> {
    let text = fs::read_to_string(repository().join(name)).expect("a page");
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).expect("the heading is there");
    let rank = heading.split_once(' ').expect("a heading").0;
    blocks(rest.split(&format!("\n{rank} ")).next().unwrap_or(rest))
}

#[test]
fn writing_functions() {
    let example = repository().join("crates/bpfof/examples/skip_list.rs");
    let program = Path::new(BPFOF).with_file_name("examples").join("skip_list");
    assert!(program.exists(), "first: cargo build -p bpfof-cli --example skip_list");
    let mut reader = Reader::new(&[]);
    let (mut files, mut scripts) = (0, 0);
    for block in page("docs/writing-functions.md") {
        match (block.language.as_str(), &block.file) {
            ("sh", None) => {
                reader.run(&block.text);
                scripts += 1;
            }
            ("rust", Some(_)) => {
                assert_eq!(block.text, fs::read_to_string(&example).expect("a program"));
                files += 1;
            }
            ("c" | "python", Some(name)) => {
                fs::write(reader.folder.path().join(name), block.text).expect("written");
                files += 1;
            }
            (language, file) => panic!("nobody knows what to do with {language} for {file:?}"),
        }
    }
    assert!(files >= 4 && scripts >= 9, "{files} files and {scripts} scripts");
}

/// Runs all scripts of these blocks.
fn follow(reader: &mut Reader, blocks: &[Block]) {
    let scripts: Vec<&Block> = blocks.iter().filter(|block| block.language == "sh").collect();
    assert!(!scripts.is_empty(), "nothing to run");
    for script in scripts {
        reader.run(&script.text);
    }
}

#[test]
fn the_doors_of_the_readme() {
    // These commands need a kernel with nvme-tcp: interop/run.py runs them in a guest.
    let mut reader = Reader::new(&["sudo nvme "]);
    symlink(repository().join("functions"), reader.folder.path().join("functions"))
        .expect("linked");
    for block in section("README.md", "## Four doors") {
        match (block.language.as_str(), &block.file) {
            ("sh", None) => reader.run(&block.text),
            ("c", Some(name)) => {
                fs::write(reader.folder.path().join(name), block.text).expect("written");
            }
            (language, file) => panic!("nobody knows what to do with {language} for {file:?}"),
        }
    }
}

#[test]
fn asking_files() {
    let beside = Path::new(BPFOF).with_file_name("bpfof-query");
    assert!(beside.exists(), "first: cargo build -p bpfof-query-command");
    let mut reader = Reader::new(&[]);
    symlink(repository().join("docs"), reader.folder.path().join("docs")).expect("linked");
    follow(&mut reader, &section("docs/query.md", "## In three commands"));
}

fn create_database(file: &Path) {
    let mut create = Command::new(BPFOF);
    let made = create.args(["kv", "create", "--levels", "3", "--file"]).arg(file).output();
    assert!(made.expect("it starts").status.success());
}

/// Writes the pages' lookup.bpf.c and its arguments: a get of BPF-KV.
fn write_lookup(reader: &Reader) {
    let at = |name: &str| reader.folder.path().join(name);
    symlink(repository().join("functions"), at("functions")).expect("linked");
    fs::write(at("lookup.bpf.c"), "#include \"functions/bpfkv_get.bpf.c\"\n").expect("written");
    fs::write(at("key.bin"), bpfkv::pushdown::get_argument(42).expect("a key")).expect("written");
    create_database(&at("table"));
    fs::write(at("block.bin"), &fs::read(at("table")).expect("read")[..512]).expect("written");
}

#[test]
fn using() {
    // These commands need the maps of a connected program: tests/cli.rs has one.
    let mut reader = Reader::new(&["bpfof function map "]);
    write_lookup(&reader);
    reader.start_target("bpfof target --listen 127.0.0.1:4420 --namespace mem:size=1GiB");
    follow(&mut reader, &page("docs/using.md"));
}

#[test]
fn operating() {
    let mut reader = Reader::new(&[]);
    reader.replace("127.0.0.1:9420", "127.0.0.1:0");
    follow(&mut reader, &page("docs/operating.md"));
}

#[test]
fn function_check() {
    let mut reader = Reader::new(&[]);
    write_lookup(&reader);
    follow(&mut reader, &page("docs/function-check.md"));
}

#[test]
fn security_in_five_minutes() {
    // Modules are not loaded: that would change the machine, which may have none.
    let mut reader = Reader::new(&["modprobe "]);
    let folder = reader.folder.path().to_owned();
    reader.replace("/etc/bpfof", &folder.display().to_string());
    reader.replace("/var/lib/bpfof", &folder.join("data").display().to_string());
    reader.replace("10.0.0.2:4420", "127.0.0.1:0");
    reader.replace("//10.0.0.2/", "//127.0.0.1:4420/");
    let blocks = section("docs/security.md", "## In five minutes");
    let user = folder.join(".config/bpfof");
    fs::create_dir_all(&user).expect("made");
    for block in &blocks {
        match block.language.as_str() {
            "toml" if block.text.starts_with("# /etc/bpfof/target.toml") => {
                let text = reader.here(&block.text);
                fs::write(folder.join("target.toml"), text).expect("written");
            }
            "toml" => {
                let text = reader.here(&block.text).replace("//127.0.0.1:4420/", "//127.0.0.1:*/");
                let mut private = fs::OpenOptions::new();
                let file = private.write(true).create_new(true).mode(0o600);
                let mut file = file.open(user.join("hosts.toml")).expect("made");
                std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
                fs::copy(folder.join("app.psk"), user.join("app.psk")).expect("the host's copy");
            }
            _ => reader.run(&block.text),
        }
    }
}

/// The long help of a command of several words, with all of its options.
fn help(words: &[String]) -> Option<String> {
    let shown = Command::new(BPFOF).args(words).arg("--help").output().expect("it starts");
    shown.status.success().then(|| String::from_utf8(shown.stdout).expect("UTF-8"))
}

/// The words of a command line that name the subcommand: those before the first that cannot be a name.
fn name_of(command: &str) -> Vec<String> {
    let words = command.split_whitespace().skip(1);
    let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let is_option = |word: &&str| word.starts_with('-');
    words.take_while(|word| is_name(word) && !is_option(word)).map(str::to_owned).collect()
}

/// All pages.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(repository().join("docs")).expect("a folder");
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.expect("an entry").path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    pages.extend(others.map(|name| repository().join(name)));
    pages
}

/// The files and headings to which pages link exist.
#[test]
fn every_link_leads_somewhere() {
    let anchors = |text: &str| -> Vec<String> {
        let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
        let name = |heading: &str| -> String {
            let text = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        };
        headings.map(name).collect()
    };
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let (place, anchor) = link.0.split_once('#').unwrap_or((link.0, ""));
            if place.contains("://") || place.contains(char::is_whitespace) {
                continue;
            }
            let told = format!("{}: {}", page.display(), link.0);
            let target = match place {
                "" => page.clone(),
                place => page.parent().expect("a folder").join(place),
            };
            assert!(target.exists(), "{told}");
            if !anchor.is_empty() {
                let there = fs::read_to_string(&target).expect("a page");
                assert!(anchors(&there).iter().any(|known| known == anchor), "{told}");
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} links");
}

#[test]
fn every_command_and_option_exists() {
    let makefile = fs::read_to_string(repository().join("Makefile")).expect("a Makefile");
    let (mut helps, mut seen) = (HashMap::new(), 0);
    for page in pages() {
        let blocks = blocks(&fs::read_to_string(&page).expect("a page"));
        for command in blocks
            .iter()
            .filter(|block| block.language == "sh")
            .flat_map(|block| commands(&block.text))
        {
            let command = command.split(" # ").next().unwrap_or_default().trim();
            let command = command.strip_prefix("sudo ").unwrap_or(command);
            let told = format!("{}: {command}", page.display());
            if let Some(goal) = command.strip_prefix("make ") {
                let goal = goal.split_whitespace().next().unwrap_or_default();
                assert!(
                    goal.starts_with('-') || makefile.contains(&format!("\n{goal}:")),
                    "{told}"
                );
            }
            if !command.starts_with("bpfof ") {
                continue;
            }
            seen += 1;
            let mut name = name_of(command);
            let known = loop {
                let found = helps.entry(name.clone()).or_insert_with(|| help(&name));
                match found {
                    Some(text) => break text,
                    None => assert!(name.pop().is_some(), "{told}"),
                }
            };
            for option in command.split_whitespace().filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().unwrap_or(option);
                assert!(
                    known.contains(&format!("{option} ")) || known.contains(&format!("{option}\n")),
                    "{told}: {option}"
                );
            }
        }
    }
    assert!(seen > 30, "only {seen} commands");
}
