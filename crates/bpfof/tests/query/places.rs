//! Files on several targets: all work at once, and the answer is in the order of the files.

use super::disk::Disk;
use super::wait::within;
use super::{ask, sums, write};
use bpfof_query::ask::{Cost, Reach, Session};
use bpfof_query::infer::Source;
use bpfof_query::{Partial, Plan, Reduction, RunError, Scalar, Settings, SourceFile, Value};
use std::path::PathBuf;
use std::time::Duration;

const NUMBERS: u64 = 40_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Two targets with a file each: numbers from 0 on in the first, the following numbers in the
/// second. None if this machine cannot mount the disks.
fn world() -> Option<([Disk; 2], Source, Session)> {
    let disks = [Disk::new("ext4", 96 << 20)?, Disk::new("ext4", 96 << 20)?];
    let Plan { schema, format, .. } = sums();
    let mut session = Session::default();
    let mut files = Vec::new();
    for (disk, first) in disks.iter().zip([0, NUMBERS]) {
        let path = disk.mount().join("numbers");
        write(&path, &(first..first + NUMBERS).flat_map(u64::to_le_bytes).collect::<Vec<_>>());
        let reach = Reach::Target { url: Box::new(disk.url.clone()), device: disk.image() };
        session.add(&path, &reach, false).expect("a target");
        files.push(SourceFile::at(&path, &format).expect("the file"));
    }
    Some((disks, Source { files, schema, format }, session))
}

fn settings() -> Settings {
    Settings { falls_back: false, ..Settings::default() }
}

fn chains(disk: &Disk) -> u64 {
    let told = disk.ctl(0, &["namespaces"]);
    told[0]["chain"]["latency"]["count"].as_u64().expect("a number")
}

#[test]
fn a_target_does_not_wait_for_the_one_before_it() {
    let Some((disks, source, session)) = world() else { return };
    let (mut plan, mut parts) = (sums(), Vec::new());
    plan.reduction = Reduction::Rows { columns: vec![Scalar::Column(0)], limit: None };
    let mut on_part = |partial: Partial| {
        // The second target runs chains while the first one's rows are not taken.
        within(PATIENCE, "the second target is asked", || chains(&disks[1]) > 0);
        let table = partial.finish(&plan).expect("of this plan");
        let numbers = table.rows.iter().map(|row| match row[0] {
            Value::Int(number) => number,
            ref other => panic!("{other:?} is no number"),
        });
        parts.push(numbers.collect::<Vec<_>>());
        Ok::<_, RunError>(())
    };
    let mut most = 0;
    let mut on_progress = |bytes| {
        assert!(bytes >= most, "{bytes} after {most}");
        most = bytes;
        true
    };
    let cost = session.run(&source, &plan, settings(), &mut on_progress, &mut on_part);
    let Cost { stats, places, lost } = cost.expect("two targets");
    assert_eq!(
        (places, lost),
        (disks.each_ref().map(|disk| format!("at {}", disk.url)).to_vec(), Vec::new())
    );
    assert_eq!(parts.concat(), (0..2 * i128::from(NUMBERS)).collect::<Vec<_>>());
    assert_eq!((parts.len(), stats.rows), (2, 2 * NUMBERS));
    assert_eq!(stats.chains_at_target, stats.chains);
    assert!(chains(&disks[0]) > 0);
}

#[test]
fn what_ends_a_query_ends_it_at_all_targets() {
    let Some((disks, source, session)) = world() else { return };
    let run = |plan: &Plan, goes_on: bool| {
        let mut parts = 0;
        let mut on_part = |_| {
            parts += 1;
            Ok::<_, RunError>(())
        };
        let result = session.run(&source, plan, settings(), &mut |_| goes_on, &mut on_part);
        (result, parts)
    };
    let first = |rows| {
        let reduction = Reduction::Rows { columns: vec![Scalar::Column(0)], limit: Some(rows) };
        Plan { reduction, ..sums() }
    };
    let (result, parts) = run(&sums(), false);
    assert!(matches!(result, Err(RunError::Stopped)) && parts == 0, "{result:?}");
    let (result, parts) = run(&first(3), true);
    assert!(result.is_ok() && parts == 1, "{result:?}");
    // One target dies: the query reports that, unless the other has all rows that are wanted.
    disks[1].stop_target();
    for plan in [sums(), first(NUMBERS + 1)] {
        let (result, _) = run(&plan, true);
        let is_told = matches!(result, Err(RunError::Chain { .. } | RunError::Host(_)));
        assert!(is_told, "{result:?}");
    }
    let (result, parts) = run(&first(NUMBERS), true);
    assert!(result.is_ok() && parts == 1, "{result:?}");
    // If the stages may run on this machine, they do.
    let paths: Vec<PathBuf> = source.files.iter().map(|file| file.path.clone()).collect();
    let targets: Vec<String> = disks
        .iter()
        .map(|disk| format!("{}={} {}", disk.mount().display(), disk.url, disk.image().display()))
        .collect();
    let sql = format!(
        "SELECT count(*), sum(n) FROM files('{}', '{}')",
        paths[0].display(),
        paths[1].display()
    );
    let output = ask(&targets.join("; "), &["--schema", "n u64", "--csv", "--stats", &sql]);
    let all = 2 * NUMBERS;
    let expected = format!("count(*),sum(n)\n{all},{}\n", all * (all - 1) / 2);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the stages run here"), "{errors}");
}
