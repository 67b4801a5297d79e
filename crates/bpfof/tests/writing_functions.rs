//! docs/writing-functions.md, followed to the letter: its files are written, its commands run, and
//! what they print is compared with what the page says.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const BPFOF: &str = env!("CARGO_BIN_EXE_bpfof");
/// Where the page has its target. Here it listens on a port that is free.
const ADDRESS: &str = "127.0.0.1:4420";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("a checkout")
}

/// A fenced block of a page.
struct Block {
    language: String,
    /// The name in the line above it, if that ends with "`name`:".
    file: Option<String>,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    let mut above = "";
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let name = above.strip_suffix("`:").and_then(|text| text.rsplit('`').next());
            let inside = lines.by_ref().take_while(|line| *line != "```");
            let text = inside.map(|line| format!("{line}\n")).collect();
            let file = name.map(str::to_owned);
            blocks.push(Block { language: language.to_owned(), file, text });
            above = "";
        } else if !line.is_empty() {
            above = line;
        }
    }
    blocks
}

/// Whether a line is as the page says, where "…" stands for anything.
fn is_as(line: &str, expected: &str) -> bool {
    let Some((start, rest)) = expected.split_once('…') else { return line == expected };
    let Some(mut left) = line.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, behind)) = left.split_once(part) else { return false };
        left = behind;
    }
    left.ends_with(end)
}

/// Follows the page in a folder of its own.
struct Reader {
    folder: tempfile::TempDir,
    /// Assignments, which hold in later blocks too.
    variables: String,
    target: Option<(Child, String)>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.target.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Reader {
    /// Runs `bpfof target …` and hears where it listens.
    fn start_target(&mut self, line: &str) {
        let line = line.replace(ADDRESS, "127.0.0.1:0");
        let arguments = line.trim_end_matches('&').split_whitespace().skip(1);
        let mut child = Command::new(BPFOF)
            .args(arguments)
            .args(["--json", "--quiet"])
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("bpfof starts");
        let mut announced = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut announced).expect("a line");
        let announced: serde_json::Value = serde_json::from_str(&announced).expect("JSON");
        let address = announced["listening"].as_str().expect("a string").to_owned();
        self.target = Some((child, address));
    }

    fn run(&mut self, block: &str) {
        let (mut script, mut expected) = (String::new(), Vec::new());
        for line in block.lines() {
            if line.starts_with("bpfof target ") {
                self.start_target(line);
            } else if let Some(said) = line.strip_prefix("# ") {
                expected.push(said);
            } else {
                let name = line.split_once('=').map_or("", |(name, _)| name);
                let kept = if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase())
                {
                    &mut self.variables
                } else {
                    &mut script
                };
                kept.push_str(line);
                kept.push('\n');
            }
        }
        let mut script = format!("exec 2>&1\n{}{script}", self.variables);
        if let Some((_, address)) = &self.target {
            script = script.replace(ADDRESS, address);
        }
        let built = Path::new(BPFOF).parent().expect("a folder");
        let path = std::env::var("PATH").expect("a path");
        let path = format!("{0}:{0}/examples:{path}", built.display());
        let ran = Command::new("bash")
            .args(["-eu", "-o", "pipefail", "-c", &script])
            .env("PATH", path)
            .env("FUNCTIONS", repository().join("functions"))
            .current_dir(&self.folder)
            .output()
            .expect("bash starts");
        let printed = String::from_utf8(ran.stdout).expect("UTF-8");
        assert!(ran.status.success(), "{script}\n{printed}");
        let mut lines = printed.lines();
        for line in expected {
            assert!(
                lines.any(|printed| is_as(printed, line)),
                "no {line:?} in\n{printed}\n{script}"
            );
        }
    }
}

#[test]
fn the_page_can_be_followed() {
    let repository = repository();
    let page = fs::read_to_string(repository.join("docs/writing-functions.md")).expect("a page");
    let example = repository.join("crates/bpfof/examples/skip_list.rs");
    let program = Path::new(BPFOF).with_file_name("examples").join("skip_list");
    assert!(program.exists(), "first: cargo build -p bpfof-cli --example skip_list");
    let folder = tempfile::tempdir().expect("a folder");
    let mut reader = Reader { folder, variables: String::new(), target: None };
    let (mut files, mut scripts) = (0, 0);
    for block in blocks(&page) {
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
    assert_eq!((files, scripts), (4, 9));
}

#[test]
fn what_is_compared_can_differ() {
    assert!(is_as("a: 5 hops", "a: …") && is_as("a: 5 hops", "…hops") && is_as("a", "a"));
    assert!(is_as("run: 1, then 2", "…: 1,…2") && !is_as("run: 1, then 2", "…: 2…1…"));
    assert!(!is_as("a: 5 hops", "a: 5") && !is_as("a: 5 hops", "…5") && !is_as("ab", "b…"));
}
