//! The command as shells use it.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const FIELDS: &str = "id u64, zone i32, fare f64, name char(8)";
const ROWS: u64 = 20_000;

/// A file of records whose fields follow from the record's number.
fn records() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bytes = Vec::new();
    for id in 0..ROWS {
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&zone(id).to_le_bytes());
        bytes.extend_from_slice(&fare(id).to_le_bytes());
        bytes.extend_from_slice(if id % 2 == 0 { b"even\0\0\0\0" } else { b"odd\0\0\0\0\0" });
    }
    fs::write(folder.path().join("rows.bin"), bytes).expect("written");
    folder
}

fn zone(id: u64) -> i32 {
    i32::try_from(id * 7919 % 11).expect("small") - 5
}

fn fare(id: u64) -> f64 {
    (id * 31 % 1000) as f64 / 4.0
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bpfof-query"));
    command.args(arguments).current_dir(folder).env_remove("BPFOF_TARGETS");
    command
}

fn output(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("it starts")
}

fn answer(folder: &Path, arguments: &[&str]) -> String {
    let output = output(folder, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn asked(folder: &Path, sql: &str, style: &str) -> String {
    answer(folder, &["--schema", FIELDS, "--here", style, sql])
}

#[test]
fn groups_are_what_a_loop_computes() {
    let folder = records();
    let sql = "SELECT zone, count(*), sum(fare), max(id), avg(fare) FROM 'rows.bin' \
               WHERE fare >= 100 AND name LIKE 'ev%' AND zone BETWEEN -2 AND 2 \
               GROUP BY zone HAVING count(*) > 0 ORDER BY zone DESC";
    let mut expected = String::from("zone,count(*),sum(fare),max(id),avg(fare)\n");
    for wanted in (-2..=2).rev() {
        let passing: Vec<u64> = (0..ROWS)
            .filter(|id| zone(*id) == wanted && id % 2 == 0 && fare(*id) >= 100.0)
            .collect();
        let sum: f64 = passing.iter().map(|id| fare(*id)).sum();
        let (count, last) = (passing.len(), passing.last().expect("some"));
        let mean = sum / count as f64;
        expected.push_str(&format!("{wanted},{count},{sum:?},{last},{mean:?}\n"));
    }
    assert_eq!(asked(folder.path(), sql, "--csv"), expected);
}

#[test]
fn rows_come_in_the_order_of_the_file_and_their_top_in_its_own() {
    let folder = records();
    let sql = "SELECT id, name FROM 'rows.bin' WHERE zone = 5 LIMIT 3 OFFSET 2";
    let ids: Vec<u64> = (0..ROWS).filter(|id| zone(*id) == 5).skip(2).take(3).collect();
    let name = |id: u64| if id.is_multiple_of(2) { "even" } else { "odd" };
    let lines: Vec<String> =
        ids.iter().map(|id| format!("{{\"id\":{id},\"name\":\"{}\"}}", name(*id))).collect();
    assert_eq!(asked(folder.path(), sql, "--json"), format!("[{}\n]\n", lines.join("\n,")));

    let top = asked(folder.path(), "SELECT id FROM 'rows.bin' ORDER BY fare DESC LIMIT 3", "--csv");
    let mut ids: Vec<u64> = (0..ROWS).collect();
    ids.sort_by(|a, b| fare(*b).total_cmp(&fare(*a)));
    assert_eq!(top, format!("id\n{}\n{}\n{}\n", ids[0], ids[1], ids[2]));
}

#[test]
fn several_csv_files_are_one_table() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, rows) in [("a.csv", "1,2.5,\"x, y\"\n2,,z\n"), ("b.csv", "3,1.0,x\n"), ("c.csv", "")]
    {
        fs::write(folder.path().join(name), format!("id,fare,name\n{rows}")).expect("written");
    }
    let sql = "SELECT count(*), count(fare), sum(fare) AS total, min(name) FROM '*.csv'";
    let answered = answer(folder.path(), &["--csv", sql]);
    assert_eq!(answered, "count(*),count(fare),total,min(name)\n3,2,3.5,x\n");
    let sql = "SELECT * FROM files('b.csv', 'a.csv') WHERE fare IS NULL OR fare < 2";
    let answered = answer(folder.path(), &["--csv", sql]);
    assert_eq!(answered, "id,fare,name\n3,1.0,x\n2,,z\n");
}

#[test]
fn errors_are_reported_with_the_exit_status() {
    let folder = records();
    fs::write(
        folder.path().join("bad.csv"),
        "a,b\n".to_owned() + &"1,2\n".repeat(300_000) + "x,2\n",
    )
    .expect("written");
    fs::write(folder.path().join("ragged.csv"), "a,b\n1\n").expect("written");
    fs::write(folder.path().join("short.npy"), "none").expect("written");
    fs::create_dir(folder.path().join("folder.csv")).expect("a folder");
    fs::write(folder.path().join("a.parquet"), "PAR1").expect("written");
    let cases: [(&[&str], i32, &str); 15] = [
        (&["SELEKT"], 2, "not understood as SQL"),
        (&["SELECT * FROM 'none.csv'"], 2, "there is no file none.csv"),
        (&["SELECT nope FROM 'bad.csv'"], 2, "there is no column nope; the columns are a, b"),
        (&["SELECT * FROM 'rows.bin'"], 2, "--schema 'id u64, amount i32'"),
        (
            &["--schema", "id u64", "--arrow", "none/x", "SELECT * FROM 'rows.bin'"],
            1,
            "cannot write none/x",
        ),
        (&["--no-fallback", "SELECT a FROM 'bad.csv'"], 1, "bad.csv: no target"),
        (&["SELECT sum(a) FROM 'bad.csv'"], 1, "bad.csv, at byte 1200004"),
        (&["SELECT a FROM 'ragged.csv'"], 1, "ragged.csv: the row at byte 4 has 1 fields"),
        (&["SELECT a FROM 'short.npy'"], 1, "short.npy: it has no header"),
        (&["SELECT a FROM 'folder.csv'"], 1, "cannot read folder.csv"),
        (&["SELECT a FROM 'a.parquet'"], 2, "a.parquet: Parquet is compressed"),
        (&["SELECT a FROM '***'"], 2, "is not a pattern"),
        (&["--format", "records", "SELECT a FROM 'bad.csv'"], 2, "give the fields of its records"),
        (&["--schema", "id", "SELECT * FROM 'rows.bin'"], 2, "the schema: "),
        (&["--schema", "id u64", "SELECT a FROM 'a.npy'"], 2, "there is no file a.npy"),
    ];
    for (arguments, status, expected) in cases {
        let output = output(folder.path(), arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
}

#[test]
fn arrow_files_appear_whole_or_not_at_all() {
    let folder = records();
    let path = folder.path().join("out.arrow");
    answer(
        folder.path(),
        &["--schema", FIELDS, "--arrow", "out.arrow", "SELECT zone FROM 'rows.bin'"],
    );
    let bytes = fs::read(&path).expect("a file");
    assert!(bytes.starts_with(b"ARROW1") && bytes.ends_with(b"ARROW1"));
    let printed =
        output(folder.path(), &["--schema", FIELDS, "--arrow", "-", "SELECT zone FROM 'rows.bin'"]);
    assert_eq!(printed.stdout, bytes);
    let left = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 2, "rows.bin and out.arrow");
}

#[test]
fn explain_prints_the_steps_and_stats_prints_the_cost() {
    let folder = records();
    let both = output(folder.path(), &["--explain", "--stats", "SELECT 1"]);
    assert!(String::from_utf8_lossy(&both.stderr).contains("cannot be used with"), "{both:?}");
    let sql = "SELECT zone, count(*) FROM 'rows.bin' WHERE fare > 3 AND fare * 2 > id GROUP BY 1 ORDER BY 2";
    let explained = answer(folder.path(), &["--schema", FIELDS, "--explain", "--json", sql]);
    let explained: serde_json::Value = serde_json::from_str(&explained).expect("JSON");
    assert_eq!(explained["bytes"], ROWS * 28);
    let steps = explained["steps"].as_array().expect("steps");
    let filter = |part: &str| steps.iter().find(|step| step["what"].to_string().contains(part));
    let (pushed, here) = (filter("fare > 3").expect("a filter"), filter("* 2").expect("a filter"));
    assert_eq!((&pushed["where"], &here["where"]), (&"stages".into(), &"here".into()));
    assert!(here["why_here"].is_string());
    let sql = "SELECT count(*) FROM 'rows.bin'";
    let output = output(folder.path(), &["--schema", FIELDS, "--here", "--json", "--stats", sql]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!((&stats["scanned_bytes"], &stats["rows"]), (&(ROWS * 28).into(), &ROWS.into()));
}

/// Queries two files with an answer larger than a pipe buffer, and reads the first line.
fn begun(folder: &Path, sql: &str) -> (Child, BufReader<ChildStdout>) {
    for name in ["a.csv", "b.csv"] {
        fs::write(folder.join(name), "a\n".to_owned() + &"12345\n".repeat(200_000))
            .expect("written");
    }
    let mut child = command(folder, &["--here", "--csv", sql])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut answer = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    answer.read_line(&mut line).expect("a line");
    assert_eq!(line, "a\n");
    (child, answer)
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let (child, answer) = begun(folder.path(), "SELECT a FROM '*.csv'");
    drop(answer);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_signal_ends_the_query() {
    let folder = tempfile::tempdir().expect("a folder");
    let (child, mut answer) = begun(folder.path(), "SELECT a FROM '*.csv'");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    io::copy(&mut answer, &mut io::sink()).expect("the rest");
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(130), "bpfof: interrupted\n"));
}

/// The same schema, but one name has a comma and no quotes.
#[test]
fn bad_rows_of_later_files_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.csv"), "id,name,zip\n1,Ann,a\n").expect("written");
    fs::write(folder.path().join("b.csv"), "id,name,zip\n2,Smith, John,b\n").expect("written");
    let late = "id,name,zip\n".to_owned() + &"1,Ann,a\n".repeat(200_000) + "2,Smith, John,b\n";
    fs::write(folder.path().join("late.csv"), late).expect("written");
    for (files, place) in
        [("[ab].csv", "b.csv, at byte 12"), ("late.csv", "late.csv, at byte 1600012")]
    {
        for what in ["zip", "id", "count(id)", "min(name)"] {
            let output = output(folder.path(), &[&format!("SELECT {what} FROM '{files}'")]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{what}: {errors}");
            let why = format!("{place}: the row has 4 fields instead of 3");
            assert!(errors.contains(&why), "{what}: {errors}");
        }
    }
}

/// In the first MiB and behind it.
#[test]
fn bad_rows_are_counted_if_no_column_is_used() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.csv"), "id,name\n1,Ann\n2,Smith, John\n3\n").expect("written");
    assert_eq!(
        answer(folder.path(), &["--here", "--csv", "SELECT count(*) FROM 'a.csv'"]),
        "count(*)\n3\n"
    );
    // The bad row explains more than a missing column.
    for what in ["id", "nope"] {
        let output = output(folder.path(), &["--here", &format!("SELECT {what} FROM 'a.csv'")]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {errors}");
        assert!(errors.contains("a.csv: the row at byte 14 has 3 fields instead of 2"), "{errors}");
    }
}

#[test]
fn columns_with_numbers_only_in_later_files_are_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.csv"), "id\n").expect("written");
    fs::write(folder.path().join("b.csv"), "id\n9\n+10\n").expect("written");
    assert_eq!(
        answer(folder.path(), &["--here", "--csv", "SELECT max(id) FROM '*.csv'"]),
        "max(id)\n10\n"
    );
    let late = "n,id\n".to_owned() + &",1\n".repeat(400_000) + "9,1\n10,1\n";
    fs::write(folder.path().join("late.csv"), late).expect("written");
    let asked = |more: &[&str]| {
        let sql = "SELECT max(n) FROM 'late.csv'";
        let output = output(folder.path(), &[more, &["--here", "--csv", sql]].concat());
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (text(output.stdout), text(output.stderr))
    };
    let (found, warning) = asked(&[]);
    assert_eq!(found, "max(n)\n9\n");
    assert!(
        warning.starts_with("bpfof: late.csv: column n has no value in the first MiB")
            && warning.ends_with("--schema 'n f64'\n"),
        "{warning}"
    );
    assert_eq!(asked(&["--schema", "n f64"]), ("max(n)\n10.0\n".to_owned(), String::new()));
}

/// Only rows of the last file exceed 64 bits.
#[test]
fn arrow_has_room_for_integers_that_come_late() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("small.csv"), "a,b\n1,2\n").expect("written");
    fs::write(folder.path().join("large.csv"), "a,b\n9223372036854775807,2\n").expect("written");
    let sql = "SELECT a * b AS p FROM files('small.csv', 'large.csv')";
    answer(folder.path(), &["--here", "--arrow", "o.arrow", sql]);
    let bytes = fs::read(folder.path().join("o.arrow")).expect("a file");
    assert!(bytes.starts_with(b"ARROW1") && bytes.ends_with(b"ARROW1"));
    // Only integers beyond 64 bits get this type.
    let refused = output(folder.path(), &["--here", "SELECT p FROM 'o.arrow'"]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.to_lowercase().contains("decimal"), "{errors}");
}

/// The last row has no line end.
#[test]
fn wide_rows_are_gone_through() {
    let folder = tempfile::tempdir().expect("a folder");
    let row = |first: &str, field: &dyn Fn(u32) -> String| {
        let others: Vec<String> = (1..4000).map(field).collect();
        format!("{first},{}", others.join(","))
    };
    let names = row("a", &|column| format!("c{column}"));
    let rows: Vec<String> =
        (0..20).map(|number| row(&number.to_string(), &|_| "7".into())).collect();
    fs::write(folder.path().join("wide.csv"), format!("{names}\n{}", rows.join("\n")))
        .expect("written");
    let sums =
        answer(folder.path(), &["--here", "--csv", "SELECT sum(a), sum(c3999) FROM 'wide.csv'"]);
    assert_eq!(sums, "sum(a),sum(c3999)\n190,140\n");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn arrow_to(folder: &Path, path: &str) -> Command {
    command(folder, &["--schema", FIELDS, "--arrow", path, "SELECT zone FROM 'rows.bin'"])
}

#[test]
fn arrow_files_keep_what_is_there() {
    let folder = records();
    let path = |name: &str| folder.path().join(name);
    let is_arrow = |bytes: &[u8]| bytes.starts_with(b"ARROW1") && bytes.ends_with(b"ARROW1");
    let write = |name: &str| {
        // The shell's umask differs from that of this process.
        let command = arrow_to(folder.path(), name);
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 027; exec \"$0\" \"$@\""]).arg(command.get_program());
        shell.args(command.get_args()).current_dir(folder.path()).env_remove("BPFOF_TARGETS");
        let output = shell.output().expect("it starts");
        assert!(output.status.success(), "{name}: {output:?}");
    };
    write("new");
    assert!(is_arrow(&fs::read(path("new")).expect("a file")));
    assert_eq!(mode(&path("new")), 0o640);

    fs::write(path("old"), "old").expect("written");
    fs::set_permissions(path("old"), fs::Permissions::from_mode(0o604)).expect("a mode");
    fs::create_dir(path("links")).expect("a folder");
    symlink("../old", path("links/to-old")).expect("a link");
    symlink("links/to-old", path("link")).expect("a link");
    write("link");
    assert!(is_arrow(&fs::read(path("old")).expect("a file")));
    assert_eq!(mode(&path("old")), 0o604);
    for link in ["link", "links/to-old"] {
        assert!(path(link).is_symlink(), "{link}");
    }
    symlink("../none", path("links/to-none")).expect("a link");
    write("links/to-none");
    assert!(
        path("links/to-none").is_symlink() && is_arrow(&fs::read(path("none")).expect("a file"))
    );

    let made = Command::new("mkfifo").arg(path("pipe")).status().expect("it starts");
    assert!(made.success());
    let pipe = path("pipe");
    let reader = std::thread::spawn(move || fs::read(pipe).expect("an answer"));
    write("pipe");
    assert!(fs::metadata(path("pipe")).expect("it is there").file_type().is_fifo());
    assert!(reader.join().expect("it ends") == fs::read(path("new")).expect("a file"));
}

/// An answer that is not printed in parts.
#[test]
fn a_signal_ends_the_writing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (child, mut answer) = begun(folder.path(), "SELECT a FROM 'a.csv' ORDER BY a");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    std::thread::sleep(Duration::from_millis(100));
    io::copy(&mut answer, &mut io::sink()).expect("the rest");
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(130), "bpfof: interrupted\n"));
}

/// Whether a process has a handler for SIGINT.
fn catches_interrupts(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
    let caught = u64::from_str_radix(caught.trim(), 16).expect("a number");
    caught >> (rustix::process::Signal::INT.as_raw() - 1) & 1 == 1
}

/// Sends a signal once the command handles signals, and returns its exit status, or None after 20
/// seconds.
fn ends_by_a_signal(child: &mut Child) -> Option<i32> {
    let is_ready = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        catches_interrupts(child)
    });
    assert!(is_ready, "it does not wait for signals");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(child.try_wait().expect("known"), None, "it waits");
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let ended = (0..2000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        child.try_wait().expect("known")
    });
    // Fails if it has ended already.
    let _ = child.kill();
    ended.and_then(|status| status.code())
}

#[test]
fn a_signal_ends_the_wait_for_a_target() {
    let folder = records();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
    let target = format!(
        "nvme-tcp://{}/nqn.2026-01.io.bpf-of:silent",
        listener.local_addr().expect("an address")
    );
    let asks = ["--target", &target, "--device", "rows.bin", "--schema", FIELDS];
    let mut child = command(folder.path(), &asks)
        .arg("SELECT zone FROM 'rows.bin'")
        .spawn()
        .expect("it starts");
    let connection = listener.accept().expect("it connects");
    let ends = ends_by_a_signal(&mut child);
    drop(connection);
    assert_eq!(ends, Some(130));
}

#[test]
fn a_signal_ends_the_wait_for_a_reader() {
    let folder = records();
    let made = Command::new("mkfifo").arg(folder.path().join("pipe")).status().expect("it starts");
    assert!(made.success());
    let mut child = arrow_to(folder.path(), "pipe").spawn().expect("it starts");
    assert_eq!(ends_by_a_signal(&mut child), Some(130), "no reader has opened the pipe");
    let pipe = fs::File::options().read(true).write(true).open(folder.path().join("pipe"));
    let mut child = arrow_to(folder.path(), "pipe").spawn().expect("it starts");
    assert_eq!(ends_by_a_signal(&mut child), Some(130), "the reader does not read");
    drop(pipe);
    let (mut child, answer) = begun(folder.path(), "SELECT a FROM '*.csv'");
    assert_eq!(ends_by_a_signal(&mut child), Some(130), "the reader stops reading");
    drop(answer);
}

#[test]
fn stages_in_pipes_are_refused_without_waiting() {
    let folder = records();
    let made =
        Command::new("mkfifo").arg(folder.path().join("pipe.o")).status().expect("it starts");
    assert!(made.success());
    let asked = ["--schema", FIELDS, "--filter", "pipe.o(zone)", "SELECT id FROM 'rows.bin'"];
    let output = output(folder.path(), &asked);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("pipe.o: it is not a regular file"), "{errors}");
}

#[test]
fn names_do_no_harm_to_terminals() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.csv"), "x,\u{1b}]0;y\u{7}\n1,2\n").expect("written");
    fs::write(folder.path().join("\u{1b}[2J.csv"), "x\n1,2\n").expect("written");
    let sql = "SELECT sum(x) FROM 'a.csv' WHERE \"\u{1b}]0;y\u{7}\" > 1";
    let explained = answer(folder.path(), &["--here", "--explain", sql]);
    let asked = [sql, "SELECT nope FROM 'a.csv'", "SELECT x FROM '*2J.csv'"];
    let told = asked.map(|sql| output(folder.path(), &["--here", sql]).stderr);
    assert!(explained.contains("\\u{1b}]0;y\\u{7} i64"), "{explained}");
    assert!(String::from_utf8_lossy(&told[1]).contains("\\u{1b}]0;y"), "{told:?}");
    assert!(String::from_utf8_lossy(&told[2]).contains("\\u{1b}[2J.csv"), "{told:?}");
    for text in told.iter().map(Vec::as_slice).chain([explained.as_bytes()]) {
        assert!(!text.contains(&0x1b) && !text.contains(&7), "{text:?}");
    }
}
