//! Keys as operators and users handle them: made, checked, used by targets and hosts, or refused.

mod command;
mod skip;

use bpfof_host::grant::GrantClient;
use command::{BPFOF, Target, bad, bpfof, good, json};
use skip::{skip, skip_part};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
const SUBSYSTEM: &str = "nqn.2026-01.io.bpf-of:target";
/// Bytes 00, 01, 02, …
const TLS: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// A folder of key files.
struct Keys(TempDir);

impl Keys {
    fn new() -> Keys {
        Keys(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        mode(&path, 0o600);
        path
    }

    fn make(&self, kind: &str, name: &str) -> String {
        let path = self.path(name);
        good(&["key", "new", kind, "--output", &path]);
        path
    }
}

fn mode(path: &str, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
}

fn with_input(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(BPFOF);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("bpfof starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("taken");
    child.wait_with_output().expect("it ends")
}

#[test]
fn keys_are_made_and_checked() {
    let keys = Keys::new();
    let lengths: [(&[&str], &str, usize); 7] = [
        (&["tls"], "NVMeTLSkey-1:01:", 65),
        (&["tls", "--hmac", "sha384"], "NVMeTLSkey-1:02:", 89),
        (&["dhchap"], "DHHC-1:01:", 59),
        (&["dhchap", "--hmac", "2"], "DHHC-1:02:", 83),
        (&["dhchap", "--hmac", "sha512", "--length", "64"], "DHHC-1:03:", 103),
        (&["dhchap", "--hmac", "none"], "DHHC-1:00:", 59),
        (&["dhchap", "--hmac", "none", "--length", "48"], "DHHC-1:00:", 83),
    ];
    for (number, (kind, prefix, characters)) in lengths.into_iter().enumerate() {
        let path = keys.path(&format!("key{number}"));
        let new = [&["key", "new"], kind, &["--output", &path]].concat();
        assert_eq!(good(&new), "");
        let text = fs::read_to_string(&path).expect("written");
        assert!(text.starts_with(prefix) && text.ends_with(":\n"), "{prefix}");
        assert_eq!(text.trim().len(), characters);
        let found = fs::metadata(&path).expect("written").permissions().mode();
        assert_eq!(found & 0o777, 0o600);
        let said = good(&["key", "check", &path]);
        assert!(said.contains("its checksum is right") && !said.contains(text.trim()), "{said}");
        // An existing file stays, unless --force is given.
        let error = bad(&new);
        assert!(error.contains("exists") && error.contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("there"), text);
        mode(&path, 0o644);
        good(&[&new[..], &["--force"]].concat());
        assert_ne!(fs::read_to_string(&path).expect("written"), text);
        let found = fs::metadata(&path).expect("written").permissions().mode();
        assert_eq!(found & 0o777, 0o600);
    }
    let count = fs::read_dir(keys.0.path()).expect("a folder").count();
    assert_eq!(count, 7, "nothing else is left behind");
    let twice = [good(&["key", "new", "tls"]), good(&["key", "new", "tls"])];
    assert_ne!(twice[0], twice[1]);
    let checked = with_input(&["key", "check", "-", "--json"], &twice[0]);
    let checked: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!(checked, serde_json::json!({ "kind": "tls", "bytes": 32, "hmac": "SHA-256" }));
    let error = bad(&["key", "new", "dhchap", "--hmac", "sha256", "--length", "48"]);
    assert!(error.contains("secret of 32 bytes"), "{error}");
    assert!(bad(&["key", "new", "dhchap", "--hmac", "none", "--length", "33"]).contains("32, 48"));
    let nowhere = bad(&["key", "new", "tls", "--output", "/nowhere/key"]);
    assert!(nowhere.contains("cannot write /nowhere/key"), "{nowhere}");
}

/// A key of a service stays readable for it when root replaces the key.
#[test]
fn a_replaced_key_keeps_its_owner() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root gives files away");
    }
    let keys = Keys::new();
    let path = keys.make("tls", "key");
    let owner = || {
        let found = fs::metadata(&path).expect("it is there");
        (found.uid(), found.gid(), found.mode() & 0o777)
    };
    let replace = || good(&["key", "new", "tls", "--output", &path, "--force"]);
    std::os::unix::fs::chown(&path, Some(12345), Some(54321)).expect("given away");
    replace();
    assert_eq!(owner(), (12345, 54321, 0o600));
    // The owner is not kept if other users may have put the file there.
    mode(keys.0.path().to_str().expect("UTF-8"), 0o1777);
    replace();
    assert_eq!(owner(), (0, rustix::process::getegid().as_raw(), 0o600));
}

#[test]
fn keys_that_cannot_be_used_are_refused() {
    let keys = Keys::new();
    let refused = |name: &str, text: &str| {
        let path = keys.write(name, text);
        let error = bad(&["key", "check", &path]);
        assert!(error.contains(&path), "{error}");
        assert!(!error.contains("AAECAw"), "a secret is shown: {error}");
        error
    };
    assert!(refused("sum", &TLS.replace("KfiaR", "KfiaS")).contains("checksum is wrong"));
    assert!(refused("hash", &TLS.replace(":01:", ":02:")).contains("does not fit a key of 32"));
    assert!(refused("unknown", &TLS.replace(":01:", ":03:")).contains("03, which is not defined"));
    assert!(refused("cut", &TLS[..40]).contains("last character is not a colon"));
    assert!(refused("none", "secret").contains("begins neither with NVMeTLSkey-1:"));
    assert!(refused("long", &"x".repeat(5000)).contains("more than 4096 bytes"));
    let open = keys.write("open", TLS);
    for bits in [0o640, 0o604, 0o644] {
        mode(&open, bits);
        let error = bad(&["key", "check", &open]);
        assert!(error.contains("others may read") && error.contains("chmod 600"), "{error}");
    }
    let missing = bad(&["key", "check", "/nowhere/key"]);
    assert!(missing.contains("cannot read /nowhere/key: No such file"), "{missing}");
    let error = with_input(&["key", "check", "-"], "NVMeTLSkey-1:01:");
    assert!(String::from_utf8_lossy(&error.stderr).contains("standard input: "), "{error:?}");
}

/// The arguments of `key identity`.
fn identity<'a>(key: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let of = ["key", "identity", "--key", key, "--host-nqn", HOST, "--subsystem", SUBSYSTEM];
    [&of[..], more].concat()
}

#[test]
fn identities_are_those_of_nvme_cli() {
    let keys = Keys::new();
    let key = keys.write("key", TLS);
    let names = ["--host-nqn", HOST, "--subsystem", SUBSYSTEM];
    let (v1, compat) = (
        format!("NVMe1R01 {HOST} {SUBSYSTEM} 89EbGACb/lBIYTDSNT9hBZ3jYFLWjH1o1y3N6IqOQI8="),
        format!("NVMe1R01 {HOST} {SUBSYSTEM} BFOQutxQdK/+cfrZi8rMuKDXBg7LIoUNyNyy+ZsR2Ag="),
    );
    let v0 = format!("NVMe0R01 {HOST} {SUBSYSTEM}");
    let text = good(&identity(&key, &[]));
    let lines: Vec<_> = text.lines().map(|line| line.split_once("  ").expect("two")).collect();
    let lines: Vec<_> = lines.iter().map(|(name, of)| (*name, of.trim_start())).collect();
    let of_v0 = text.lines().nth(2).expect("three lines");
    assert_eq!(lines[..2], [("v1", v1.as_str()), ("v1-compat", compat.as_str())]);
    assert!(of_v0.starts_with("v0, v0-compat") && of_v0.ends_with(&v0), "{of_v0}");
    assert_eq!(lines.len(), 3);
    let listed = json(&identity(&key, &["--json"]));
    assert_eq!(
        (&listed[1]["version"], &listed[1]["identity"]),
        (&"v1-compat".into(), &compat.into())
    );
    // The entry of nvme-cli 2.13 (libnvme 1.16 before its change) for this key in the keyring.
    let exported = good(&identity(&key, &["--export", "v1"]));
    let (name, secret) = exported.trim().rsplit_once(' ').expect("two words");
    assert_eq!(name, v1);
    let checked = with_input(&["key", "check", "-"], secret);
    assert!(checked.status.success(), "{checked:?}");
    assert!(!text.contains(secret) && !text.contains("AAECAw"));
    let file = keys.path("exported");
    good(&identity(&key, &["--export", "v1-compat", "--output", &file]));
    assert!(fs::read_to_string(&file).expect("written").starts_with(lines[1].1));
    // For a new key the identities go to standard error, apart from the secret.
    let new = ["key", "new", "tls"];
    let output = bpfof(&[&new[..], &names].concat());
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(errors.contains(&format!("NVMe1R01 {HOST} {SUBSYSTEM} ")), "{errors}");
    let secret = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!errors.contains(secret.trim()));
    let wrong = ["key", "identity", "--key", &key, "--host-nqn", "me", "--subsystem", SUBSYSTEM];
    assert!(bad(&wrong).contains("\"me\" is not an NVMe qualified name"));
    assert!(bad(&identity(&key, &["--output", &file])).contains("--export"));
    let dhchap = keys.make("dhchap", "dhchap");
    assert!(bad(&identity(&dhchap, &[])).contains("it is a DH-HMAC-CHAP secret"));
}

/// A target whose only host has a key.
fn secured(keys: &Keys, rule: &str) -> Command {
    let config = keys.write(
        "target.toml",
        &format!("namespaces = [\"mem:size=8MiB\"]\n[[host]]\nnqn = \"{HOST}\"\n{rule}\n"),
    );
    let mut command = Target::command();
    command.args(["--config", &config]);
    command
}

#[test]
fn a_target_and_its_hosts_use_them() {
    let keys = Keys::new();
    let (psk, other) = (keys.make("tls", "psk"), keys.make("tls", "other"));
    let (host, itself) = (keys.make("dhchap", "host"), keys.make("dhchap", "itself"));
    let rule =
        format!("tls-psk = [\"{psk}\"]\ndhchap-key = [\"{host}\"]\ndhchap-ctrl-key = \"{itself}\"");
    let mut command = secured(&keys, &rule);
    let target = Target::run({
        command.args(["--tls", "required"]);
        command
    });
    let url = |more: &str| format!("{}?hostnqn={HOST}{more}", target.url);
    let all = url(&format!("&tls-psk={psk}&dhchap-key={host}&dhchap-ctrl-key={itself}"));
    good(&["kv", "create", "--levels", "2", "--target", &all]);
    assert_eq!(good(&["kv", "get", "--target", &all, "7"]), "7 7\n");
    let get = |more: &str| bad(&["kv", "get", "--target", &url(more), "7"]);
    let refused = get(&format!("&tls-psk={other}&dhchap-key={host}"));
    assert!(refused.contains("over TLS"), "{refused}");
    let refused = get(&format!("&tls-psk={psk}"));
    assert!(
        refused.contains("asks for authentication") && refused.contains("hosts.toml"),
        "{refused}"
    );
    let refused = get(&format!("&tls-psk={psk}&dhchap-key={psk}"));
    assert!(refused.contains("it is a TLS key"), "{refused}");
    mode(&psk, 0o640);
    let refused = get(&format!("&tls-psk={psk}&dhchap-key={host}"));
    assert!(refused.contains("others may read"), "{refused}");
}

#[test]
fn the_option_tls_fits_the_rules() {
    let keys = Keys::new();
    let psk = keys.make("tls", "psk");
    let mut command = secured(&keys, &format!("tls-psk = [\"{psk}\"]"));
    let output = command.args(["--tls", "off"]).output().expect("bpfof starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("tls is \"off\""), "{errors}");
    assert!(bad(&["target", "--tls", "yes"]).contains("not off, allowed or required"));
    mode(&psk, 0o644);
    let output = secured(&keys, &format!("tls-psk = [\"{psk}\"]")).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("chmod 600"), "{errors}");
    // No host can connect: a warning says so.
    let mut command = Target::command();
    command.args(["--namespace", "mem:size=1MiB", "--tls", "required"]).stderr(Stdio::piped());
    let mut target = Target::run(command);
    let mut line = String::new();
    let errors = target.child.stderr.take().expect("piped");
    BufReader::new(errors).read_line(&mut line).expect("text");
    assert!(line.contains("no host can connect"), "{line}");
}

/// systemd gives a service its credentials by access control lists, which look like files of a group.
#[test]
fn credentials_of_systemd_are_key_files() {
    let keys = Keys::new();
    let psk = keys.make("tls", "host.psk");
    mode(&psk, 0o440);
    for rule in ["tls-psk = [\"host.psk\"]".to_owned(), format!("tls-psk = [\"{psk}\"]")] {
        let mut command = secured(&keys, &rule);
        command.env("CREDENTIALS_DIRECTORY", keys.0.path());
        let target = Target::run(command);
        let mine = keys.write("mine", &fs::read_to_string(&psk).expect("read"));
        let url = format!("{}?hostnqn={HOST}&tls-psk={mine}", target.url);
        good(&["kv", "create", "--levels", "2", "--target", &url]);
        let refused = |folder: Option<&Path>| {
            let mut command = secured(&keys, &format!("tls-psk = [\"{psk}\"]"));
            folder.map(|folder| command.env("CREDENTIALS_DIRECTORY", folder));
            let output = command.output().expect("it starts");
            assert!(String::from_utf8_lossy(&output.stderr).contains("chmod 600"), "{output:?}");
        };
        // In another folder it counts as a file that others may read, and an empty variable names no folder.
        refused(None);
        refused(Some(Path::new("")));
        // A file that all users may read is no credential.
        mode(&psk, 0o444);
        refused(Some(keys.0.path()));
        mode(&psk, 0o440);
    }
}

/// Runs `bpfof` with a home of its own.
fn at_home(home: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(BPFOF);
    let command = command.args(arguments).env("HOME", home).env_remove("XDG_CONFIG_HOME");
    let output = command.output().expect("bpfof starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("UTF-8"))
}

#[test]
fn hosts_find_their_keys_in_a_file() {
    let keys = Keys::new();
    let psk = keys.make("tls", "psk");
    let target = Target::run(secured(&keys, &format!("tls-psk = [\"{psk}\"]")));
    let folder: PathBuf = keys.0.path().join("home/.config/bpfof");
    fs::create_dir_all(&folder).expect("made");
    fs::copy(&psk, folder.join("mine.psk")).expect("copied");
    let file = folder.join("hosts.toml").to_str().expect("UTF-8").to_owned();
    let write = |pattern: &str| {
        let text = format!(
            "[[target]]\nmatch = \"{pattern}\"\nhostnqn = \"{HOST}\"\ntls-psk = \"mine.psk\"\n"
        );
        fs::write(&file, text).expect("written");
        mode(&file, 0o600);
    };
    let home = keys.0.path().join("home");
    let create = |url: &str| at_home(&home, &["kv", "create", "--levels", "2", "--target", url]);
    let (is_in, text) = create(&target.url);
    assert!(!is_in && text.contains("Connect Invalid Host"), "{text}");
    for pattern in [format!("nvme-tcp://{}/*", target.address), "nqn.*:target".to_owned()] {
        write(&pattern);
        let (is_in, text) = create(&target.url);
        assert!(is_in, "{text}");
        let (is_in, text) = at_home(&home, &["kv", "get", "--target", &target.url, "7"]);
        assert_eq!((is_in, text.as_str()), (true, "7 7\n"));
    }
    let (is_in, text) = at_home(&home, &["function", "list", "--target", &target.url]);
    assert!(is_in, "{text}");
    // An option, or an address, with a host NQN takes precedence.
    let other = "nqn.2026-01.io.bpf-of:other";
    let list = ["function", "list", "--target", &target.url, "--host-nqn", other];
    let (is_in, text) = at_home(&home, &list);
    assert!(!is_in && text.contains("over TLS"), "{text}");
    let (is_in, text) = create(&format!("{}?hostnqn={HOST}", target.url));
    assert!(!is_in && text.contains("Connect Invalid Host"), "{text}");
    write("nqn.*:elsewhere");
    assert!(!create(&target.url).0);
    // The file must not be readable by others: it shows the host's targets.
    write("nqn.*");
    mode(&file, 0o644);
    let (is_in, text) = create(&target.url);
    assert!(!is_in && text.contains("others may read") && text.contains("hosts.toml"), "{text}");
    fs::write(&file, "[[target]]\nmatch = \"disk\"\n").expect("written");
    mode(&file, 0o600);
    let (is_in, text) = create(&target.url);
    assert!(!is_in && text.contains("hosts.toml: line 1"), "{text}");
}

/// With the target in options, and in the daemon's configuration.
#[test]
fn grant_daemons_find_their_keys_in_the_same_file() {
    let keys = Keys::new();
    let psk = keys.make("tls", "psk");
    let target = Target::run(secured(&keys, &format!("tls-psk = [\"{psk}\"]")));
    let home = keys.0.path().join("home");
    let folder = home.join(".config/bpfof");
    fs::create_dir_all(&folder).expect("made");
    let hosts = folder.join("hosts.toml").to_str().expect("UTF-8").to_owned();
    let text =
        format!("[[target]]\nmatch = \"nqn.*\"\nhostnqn = \"{HOST}\"\ntls-psk = \"{psk}\"\n");
    fs::write(&hosts, text).expect("written");
    mode(&hosts, 0o600);
    let [image, socket, config] =
        ["image", "grantd.sock", "grantd.toml"].map(|name| keys.0.path().join(name));
    fs::write(&image, vec![0; 8 << 20]).expect("as long as the namespace");
    let (url, image) = (&target.url, image.display());
    fs::write(&config, format!("[[namespace]]\ntarget = \"{url}\"\ndevice = \"{image}\"\n"))
        .expect("written");
    let options = format!("--target {url} --device {image}");
    for arguments in [options, format!("--config {}", config.display())] {
        let mut command = Command::new(BPFOF);
        command.args(["grantd", "--json", "--quiet", "--exit-with-parent", "--socket"]);
        command.arg(&socket).args(arguments.split(' ')).env("HOME", &home);
        command.env_remove("XDG_CONFIG_HOME").env_remove("NOTIFY_SOCKET");
        let mut daemon = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let output = daemon.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let opened = GrantClient::connect(&socket, None);
        let opened = opened.map(drop).map_err(|error| error.to_string());
        let pid = rustix::process::Pid::from_child(&daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(daemon.wait().expect("it ends").success());
        assert_eq!(opened, Ok(()), "{arguments}");
    }
}

/// Whether the kernel dumps the memory of a target that ends by SIGABRT.
fn dumps_core(folder: &Path, rule: &str) -> bool {
    use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Core);
    let all = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Core, all).expect("up to the hard limit");
    let keys = Keys(tempfile::tempdir_in(folder).expect("a folder"));
    keys.make("tls", "psk");
    let mut command = secured(&keys, &rule.replace("PSK", &keys.path("psk")));
    command.current_dir(keys.0.path());
    let mut target = Target::run(command);
    target.signal(Signal::ABORT);
    let status = target.child.wait().expect("it ends");
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    status.core_dumped()
}

#[test]
fn a_target_with_keys_dumps_no_core() {
    let folder = tempfile::tempdir().expect("a folder");
    if !dumps_core(folder.path(), "") {
        return skip_part("core", "no program dumps core here (ulimit -c, kernel.core_pattern)");
    }
    assert!(!dumps_core(folder.path(), "tls-psk = [\"PSK\"]"));
}

#[test]
fn the_doctor_looks_for_tls_of_the_kernel() {
    let output = bpfof(&["doctor", "--listen", "127.0.0.1:0", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut findings = findings.as_array().expect("a list").iter();
    let tls = findings.find(|finding| finding["check"] == "kernel TLS").expect("it looks");
    let listed = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    let is_there = listed.split_whitespace().any(|name| name == "tls");
    assert_eq!(tls["verdict"] == "good", is_there, "{tls}");
    let remedy = tls["remedy"].as_str().unwrap_or_default();
    assert_eq!(remedy.contains("modprobe tls") && remedy.contains("modules-load.d"), !is_there);
}
