//! Files that change while they are queried.

use bpfof_host::files::FileMaps;
use bpfof_query::{
    Column, Format, Kind, OwnStages, Part, Plan, Predicate, Reduction, Runner, Scalar, Schema,
    Settings, SourceFile, Stages, parts,
};
use std::fs::File;
use std::io::Write;
use std::time::{Duration, SystemTime};

/// Its inode stays.
#[test]
fn a_file_that_is_rewritten_meanwhile_is_refused() {
    let maps = FileMaps::local();
    let stages = Stages::new(&maps);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows");
    let mut seconds = 0;
    let mut write = |text: &str| {
        let mut how = File::options();
        // Never empty meanwhile.
        let file = how.create(true).truncate(false).write(true).open(&path);
        let mut file = file.expect("the file");
        file.write_all(text.as_bytes()).expect("room");
        file.set_len(text.len() as u64).expect("room");
        // Two writes may be within one tick of the kernel's clock.
        seconds += 1;
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(modified).expect("an own file");
    };
    let column = |name: &str| Column { name: name.to_owned(), kind: Kind::I64, nullable: true };
    for header in ["", "a,b\n"] {
        let header_bytes = header.len() as u64;
        let plan = Plan {
            schema: Schema { columns: ["a", "b"].map(column).to_vec() },
            format: Format::Csv { delimiter: b',', header_bytes, nulls: Vec::new() },
            filter: Predicate::Constant(true),
            reduction: Reduction::Rows { columns: vec![Scalar::Column(0)], limit: None },
            own: OwnStages::default(),
        };
        let part = || {
            let files = [SourceFile::at(&path, &plan.format).expect("the file")];
            parts(&plan, &files, u64::MAX).remove(0)
        };
        // A chain for each row, one after the other.
        let settings = Settings { chains: 1, range_max_bytes: Some(4), ..Settings::default() };
        let run = |part: &Part, on_progress: &mut dyn FnMut(u64) -> bool| {
            let mut runner = Runner::new(&stages, &plan, settings).expect("a plan");
            let partial = runner.run(part, on_progress).map_err(|error| error.to_string())?;
            Ok::<_, String>(partial.finish(&plan).expect("of this plan").rows.len())
        };
        write(&format!("{header}1,2\n3,4\n"));
        let first = part();
        assert_eq!(run(&first, &mut |_| true), Ok(2));
        write(&format!("{header}1,2\n3,4\n5,6\n"));
        assert_eq!(run(&first, &mut |_| true), Ok(2), "a row has been appended");
        write(&format!("{header}5,6\n7,8\n"));
        let error = run(&first, &mut |_| true).expect_err("other rows");
        assert!(error.contains("the file has been written since"), "{error}");
        // While it is read; then a bad row does not matter.
        for text in ["1,2\n7,8\n", "1,2\nx,8\n"] {
            write(&format!("{header}1,2\n3,4\n"));
            let mut rewrite = |_| {
                write(&format!("{header}{text}"));
                true
            };
            let error = run(&part(), &mut rewrite).expect_err("rows of two versions");
            assert!(error.contains("the file has been written since"), "{error}");
        }
        if header_bytes > 0 {
            write("b,a\n1,2\n3,4\n5,6\n");
            let error = run(&first, &mut |_| true).expect_err("another header");
            assert!(error.contains("rewritten with another header since"), "{error}");
        }
    }
}
