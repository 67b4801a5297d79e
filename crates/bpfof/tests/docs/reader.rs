//! A reader who follows a page to the letter.

use super::page::{commands, is_as};
use super::{BPFOF, repository};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The address of the target in the pages. Here the target listens on a free port.
const ADDRESS: &str = "127.0.0.1:4420";

/// Follows a page in a folder of its own.
pub(crate) struct Reader {
    pub(crate) folder: tempfile::TempDir,
    /// Assignments, which hold in later blocks too.
    variables: String,
    target: Option<(Child, String)>,
    /// Beginnings of commands that cannot be run here.
    left_out: &'static [&'static str],
    /// Names of the page, and what replaces them here.
    elsewhere: Vec<(&'static str, String)>,
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
    /// Follows a page in a new folder, and skips commands that begin with one of `left_out`.
    pub(crate) fn new(left_out: &'static [&'static str]) -> Reader {
        let folder = tempfile::tempdir().expect("a folder");
        Reader { folder, variables: String::new(), target: None, left_out, elsewhere: Vec::new() }
    }

    /// Replaces `name` of the page by `here`.
    pub(crate) fn replace(&mut self, name: &'static str, here: &str) {
        self.elsewhere.push((name, here.to_owned()));
    }

    /// A text of the page, with names replaced.
    pub(crate) fn here(&self, text: &str) -> String {
        let replaced = |text: String, (name, here): &(&str, String)| text.replace(name, here);
        self.elsewhere.iter().fold(text.to_owned(), replaced)
    }

    /// Runs `bpfof target …` and reads the address on which it listens.
    pub(crate) fn start_target(&mut self, line: &str) {
        let line = self.here(line).replace(ADDRESS, "127.0.0.1:0");
        let arguments = line.trim_end_matches('&').split_whitespace().skip(1);
        let mut child = Command::new(BPFOF)
            .args(arguments)
            .args(["--json", "--quiet", "--exit-with-parent"])
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

    /// Runs the commands of a block. Lines that begin with "# " are the expected output.
    pub(crate) fn run(&mut self, block: &str) {
        let (mut script, mut expected) = (String::new(), Vec::new());
        for line in commands(block) {
            if line.starts_with("bpfof target ") {
                self.start_target(&line);
            } else if let Some(said) = line.strip_prefix("# ") {
                expected.push(said.to_owned());
            } else if !self.left_out.iter().any(|beginning| line.starts_with(beginning)) {
                let assigned = line.strip_prefix("export ").unwrap_or(&line);
                let name = assigned.split_once('=').map_or("", |(name, _)| name);
                let is_name = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
                let is_kept = !name.is_empty() && name.bytes().all(is_name);
                let kept = if is_kept { &mut self.variables } else { &mut script };
                kept.push_str(&line);
                kept.push('\n');
            }
        }
        let mut script = self.here(&format!("exec 2>&1\n{}{script}", self.variables));
        if let Some((_, address)) = &self.target {
            script = script.replace(ADDRESS, address);
        }
        let printed = self.bash(&script);
        let mut lines = printed.lines();
        for line in &expected {
            assert!(
                lines.any(|printed| is_as(printed, line)),
                "no {line:?} in\n{printed}\n{script}"
            );
        }
    }

    /// The output of a script, which must succeed.
    fn bash(&self, script: &str) -> String {
        let built = Path::new(BPFOF).parent().expect("a folder");
        let path = std::env::var("PATH").expect("a path");
        let ran = Command::new("bash")
            .args(["-eu", "-o", "pipefail", "-c", script])
            .env("PATH", format!("{0}:{0}/examples:{path}", built.display()))
            .env("HOME", self.folder.path())
            .env_remove("XDG_CONFIG_HOME")
            .env("FUNCTIONS", repository().join("functions"))
            .current_dir(&self.folder)
            .output()
            .expect("bash starts");
        let printed = String::from_utf8(ran.stdout).expect("UTF-8");
        assert!(ran.status.success(), "{script}\n{printed}");
        printed
    }
}
