//! Arrow files: long texts, refusals, and damaged files.

use arrow_array::types::Int64Type;
use arrow_array::{
    ArrayRef, BooleanArray, DurationMillisecondArray, DurationSecondArray, Float64Array,
    Int32Array, Int64Array, ListArray, RecordBatch, StringArray, TimestampMillisecondArray,
    UnionArray,
};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema as ArrowSchema, UnionFields};
use bpfof_host::files::FileMaps;
use bpfof_query::infer::{Hints, Source};
use bpfof_query::output::schema;
use bpfof_query::sql::Statement;
use bpfof_query::{Partial, RunError, Runner, Settings, Stages, Table, Value, parts};
use chrono::{DateTime, Datelike, Timelike, Utc};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

thread_local! {
    /// Stages on this machine, translated once.
    static LOCAL: Stages<'static> = Stages::new(Box::leak(Box::new(FileMaps::local())));
}

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, batch_rows: usize) {
    let all = RecordBatch::try_from_iter(columns).expect("of one length");
    let file = std::fs::File::create(path).expect("room");
    let mut writer = FileWriter::try_new(file, &all.schema()).expect("room");
    for at in (0..all.num_rows()).step_by(batch_rows) {
        writer.write(&all.slice(at, batch_rows.min(all.num_rows() - at))).expect("room");
    }
    writer.finish().expect("room");
}

/// Queries a file; `FROM` is added.
fn ask(path: &Path, select: &str, rest: &str, settings: Settings) -> Result<Table, String> {
    let sql = format!("SELECT {select} FROM '{}' {rest}", path.display());
    let statement = Statement::parse(&sql).map_err(|error| error.to_string())?;
    let source = Source::find(statement.files(), &Hints::default());
    let source = source.map_err(|error| error.to_string())?;
    let question = statement.bind(&source.schema, &source.format);
    let question = question.map_err(|error| error.to_string())?;
    let plan = question.plan();
    let run = LOCAL.with(|stages| {
        let mut runner = Runner::new(stages, plan, settings)?;
        let mut all = Partial::empty(plan);
        for part in parts(plan, &source.files, 1 << 20) {
            let partial = runner.run(&part, &mut |_| true)?;
            all.merge(plan, partial).expect("of this plan");
        }
        Ok::<_, RunError>(all)
    });
    let table = run.map_err(|error| error.to_string())?.finish(plan).expect("of this plan");
    question.answers().next(table).map_err(|error| error.to_string())
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.arrow");
    (folder, path)
}

/// Durations are compared with durations of the same unit, and are no numbers.
#[test]
fn durations_are_no_numbers() {
    let (_folder, path) = folder();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(DurationSecondArray::from(vec![1, 3, -5]))),
        ("b", Arc::new(DurationSecondArray::from(vec![1, 4, 0]))),
        ("c", Arc::new(DurationMillisecondArray::from(vec![1000, 2000, 3000]))),
        ("at", Arc::new(TimestampMillisecondArray::from(vec![1, 2, 3]))),
        ("flag", Arc::new(BooleanArray::from(vec![true, false, true]))),
    ];
    write(&path, columns, 2);
    let rows = |select: &str, rest: &str| {
        Ok(ask(&path, select, rest, Settings::default())?.rows.into_iter().flatten().collect())
    };
    let ints = |values: &[i128]| Ok(values.iter().map(|value| Value::Int(*value)).collect());
    assert_eq!(rows("count(*)", "WHERE a < b"), ints(&[2]));
    assert_eq!(rows("min(a), max(a), count(a)", ""), ints(&[-5, 3, 3]));
    assert_eq!(rows("b", "WHERE CAST(a AS BIGINT) > 0 AND -CAST(a AS BIGINT) < -2"), ints(&[4]));
    for (select, rest, why) in [
        ("a", "WHERE a = c", "count time in different units"),
        (
            "a",
            "WHERE c > at",
            "c is a duration and at is a date or a time: they cannot be compared",
        ),
        ("a", "WHERE a > 1", "cast a duration to BIGINT"),
        ("a", "WHERE a > '00:00:01'", "is not a duration: cast the column to BIGINT"),
        ("a + b", "", "a is a duration, but a number is needed"),
        ("sum(a)", "", "a is a duration, but a number is needed"),
        ("avg(a)", "", "a is a duration, but a number is needed"),
        ("extract(hour FROM a)", "", "only dates and times have such parts"),
        ("a", "WHERE -flag", "-flag is not a condition"),
    ] {
        let found: Result<Vec<Value>, String> = rows(select, rest);
        assert!(
            found.as_ref().is_err_and(|found| found.contains(why)),
            "{select} {rest}: {found:?}"
        );
    }
}

/// Texts from empty to as long as a block, in several columns.
#[test]
fn texts_of_all_lengths_are_read() {
    let length = |row: usize, column: usize| match (row * 7 + column * 3) % 11 {
        // Many long texts together: read for fewer rows at a time.
        _ if (300..340).contains(&row) => 1900,
        0 => 0,
        1 => (row * 91) % 1900,
        2 if row % 40 == 5 && column == 1 => 12_000,
        other => other * 5,
    };
    let text = |row: usize, column: usize| {
        let letter = char::from(b'a' + (row % 23) as u8).to_string();
        (!(row + column).is_multiple_of(6)).then(|| letter.repeat(length(row, column)))
    };
    let rows = 700;
    let texts = |column: usize| -> ArrayRef {
        Arc::new(StringArray::from_iter((0..rows).map(|row| text(row, column))))
    };
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let columns =
        || vec![("a", texts(0)), ("n", Arc::clone(&numbers)), ("b", texts(1)), ("c", texts(2))];
    let (_folder, path) = folder();
    for batch_rows in [1, 33, 700] {
        write(&path, columns(), batch_rows);
        for range_max_bytes in [None, Some(1), Some(100_000)] {
            let settings = Settings { range_max_bytes, ..Settings::default() };
            let table = ask(&path, "c, n, a", "WHERE b >= 'c'", settings).expect("good rows");
            let value = |text: Option<String>| text.map_or(Value::Null, Value::Text);
            let expected: Vec<Vec<Value>> = (0..rows)
                .filter(|row| text(*row, 1).is_some_and(|text| *text >= *"c"))
                .map(|row| vec![value(text(row, 2)), Value::Int(row as i128), value(text(row, 0))])
                .collect();
            let fits = |row: &Vec<Value>| {
                let bytes =
                    |value: &Value| if let Value::Text(text) = value { text.len() } else { 0 };
                row.iter().map(bytes).sum::<usize>() < 15_000
            };
            assert!(expected.iter().all(fits), "make the texts shorter");
            assert!(table.rows == expected, "{batch_rows} {range_max_bytes:?}");
        }
    }
    let long: ArrayRef = Arc::new(StringArray::from(vec!["x".to_owned(), "y".repeat(60_000)]));
    write(&path, vec![("a", long)], 2);
    let error = ask(&path, "count(*)", "WHERE a > 'a'", Settings::default()).expect_err("too long");
    assert!(error.contains("too long to be read at once"), "{error}");
}

#[test]
fn unreadable_columns_are_refused_by_name() {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1)]), None]);
    let (_folder, path) = folder();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("tags", Arc::new(lists)),
        ("ok", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("n", Arc::new(Int32Array::from(vec![3, 4]))),
    ];
    write(&path, columns.clone(), 2);
    let ask_all = |select: &str| ask(&path, select, "", Settings::default());
    let table = ask_all("n, ok").expect("columns behind a list");
    let expected = [[Value::Int(3), Value::Int(1)], [Value::Int(4), Value::Null]];
    assert_eq!(table.rows, expected);
    let types = schema(&["n", "ok"], &table);
    assert_eq!(types.field(1).data_type(), &arrow_schema::DataType::Boolean);
    for select in ["*", "tags", "count(tags)"] {
        let error = ask_all(select).expect_err("a list");
        assert!(error.contains("tags is not supported: nested values"), "{error}");
    }
    let stream = path.with_file_name("stream.arrow");
    let all = RecordBatch::try_from_iter(columns).expect("of one length");
    let mut writer = StreamWriter::try_new(Vec::new(), &all.schema()).expect("memory");
    writer.write(&all).expect("memory");
    std::fs::write(&stream, writer.into_inner().expect("memory")).expect("room");
    let error = ask(&stream, "n", "", Settings::default()).expect_err("a stream");
    assert!(error.contains("it is an Arrow stream"), "{error}");
}

/// As many columns of text as one hop reads.
#[test]
fn columns_of_text_are_limited() {
    let (_folder, path) = folder();
    let texts = || -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..9000).map(|row| format!("text {row}"))))
    };
    let names: Vec<String> = (0..8).map(|at| format!("t{at}")).collect();
    write(&path, names.iter().map(|name| (&**name, texts())).collect(), 4001);
    let names = names.join(", ");
    let error = ask(&path, &names, "LIMIT 3", Settings::default()).expect_err("too many");
    assert!(error.contains("8 columns of text, but stages can use at most 7"), "{error}");
    let seven = names.trim_end_matches(", t7");
    let table = ask(&path, seven, "", Settings::default()).expect("good rows");
    assert_eq!(table.rows.len(), 9000);
    for (row, values) in table.rows.iter().enumerate() {
        assert_eq!(
            values[..],
            [const { Value::Null }; 7].map(|_| Value::Text(format!("text {row}")))
        );
    }
}

#[test]
fn a_file_without_rows_has_none() {
    let (_folder, path) = folder();
    let file = std::fs::File::create(&path).expect("room");
    let field = arrow_schema::Field::new("n", arrow_schema::DataType::Int64, true);
    let mut writer = FileWriter::try_new(file, &ArrowSchema::new(vec![field])).expect("room");
    writer.finish().expect("room");
    let table = ask(&path, "count(*), sum(n)", "", Settings::default()).expect("no rows");
    assert_eq!(table.rows, [[Value::Int(0), Value::Null]]);
}

/// Numbers, NaN and missing values are ordered consistently, whether or not all rows are wanted.
#[test]
fn the_first_rows_begin_the_order_of_all() {
    let rows = 60;
    let number = |row: i64| match row % 5 {
        0 => None,
        1 => Some(f64::NAN),
        2 => Some(if row % 2 == 0 { 0.0 } else { -0.0 }),
        _ => Some((row * 7 % 11) as f64 - 5.5),
    };
    let integer = |row: i64| (row % 3 > 0).then_some(row * 5 % 13);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("n", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("x", Arc::new(Float64Array::from_iter((0..rows).map(number)))),
        ("m", Arc::new(Int64Array::from_iter((0..rows).map(integer)))),
    ];
    let (_folder, path) = folder();
    for (batch_rows, range_max_bytes) in [(60, None), (7, Some(1)), (7, Some(200))] {
        write(&path, columns.clone(), batch_rows);
        let settings = Settings { range_max_bytes, ..Settings::default() };
        for order in [
            "ORDER BY x",
            "ORDER BY x DESC",
            "WHERE n >= 20 ORDER BY x * 2 DESC",
            "ORDER BY m DESC",
            "ORDER BY m / 2",
        ] {
            let answer = |limit: &str| {
                let rest = format!("{order} {limit}");
                let table = ask(&path, "n, x, m", &rest, settings);
                table.unwrap_or_else(|why| panic!("{rest}: {why}")).rows
            };
            let all = answer("");
            // The host keeps the first 600.
            for limit in [0, 1, 15, 18, 21, 24, 25, 36, 37, 42, 48, 49, 59, 600] {
                let first = answer(&format!("LIMIT {limit}"));
                let expected = &all[..limit.min(all.len())];
                // Compared as text, in which NaN equals NaN.
                assert_eq!(format!("{first:?}"), format!("{expected:?}"), "{order}, {limit}");
            }
        }
    }
}

/// Rows without a number to order by are found with all answered columns, and with computed ones.
#[test]
fn as_many_columns_as_stages_look_at_come_in_order() {
    let rows = 50;
    let number = |row: i32, at: i32| (at != 2 || row % 3 > 0).then_some(row * (at + 7) % 31);
    let column = |at: i32| -> ArrayRef {
        Arc::new(Int32Array::from_iter((0..rows).map(|row| number(row, at))))
    };
    let names: Vec<String> = (0..16).map(|at| format!("c{at}")).collect();
    let columns = names.iter().zip(0..).map(|(name, at)| (&**name, column(at))).collect();
    let (_folder, path) = folder();
    write(&path, columns, 13);
    let answer = |limit: &str| {
        let rest = format!("WHERE c0 + c1 > 20 ORDER BY c2 {limit}");
        let table = ask(&path, &names.join(", "), &rest, Settings::default());
        table.unwrap_or_else(|why| panic!("{rest}: {why}")).rows
    };
    let all = answer("");
    assert!(all.iter().any(|row| row[2] == Value::Null));
    for limit in [1, all.len() - 1, all.len(), 50] {
        assert_eq!(answer(&format!("LIMIT {limit}")), all[..limit.min(all.len())], "{limit}");
    }
}

/// Aggregates of casts and of their columns have the same values.
#[test]
fn casts_that_change_nothing() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("x", Arc::new(Float64Array::from(vec![1.5, 2.5, 8.0]))),
        ("n", Arc::new(Int32Array::from(vec![1, 2, 6]))),
        ("k", Arc::new(Int64Array::from(vec![7, 7, 7]))),
    ];
    let (_folder, path) = folder();
    write(&path, columns, 2);
    let (int, float) = (Value::Int, Value::Float);
    for (select, expected) in [
        ("max(x), avg(x::DOUBLE)", [float(8.0), float(4.0)]),
        ("sum(CAST(x::DOUBLE AS DOUBLE)), min(x)", [float(12.0), float(1.5)]),
        ("max(x * 2), avg((x * 2)::DOUBLE)", [float(16.0), float(8.0)]),
        ("sum(n * 2), avg((n * 2)::DOUBLE)", [int(18), float(6.0)]),
        ("min(n), sum(n::BIGINT)", [int(1), int(9)]),
        ("sum(n::DOUBLE), sum(n::BIGINT::DOUBLE)", [float(9.0), float(9.0)]),
        ("var_pop(n::BIGINT), sum(n::BIGINT)", [float(14.0 / 3.0), int(9)]),
        ("var_pop(n), var_samp(n::BIGINT)", [float(14.0 / 3.0), float(7.0)]),
    ] {
        for rest in ["", "GROUP BY k", "GROUP BY k, k, k, k, k"] {
            let table = ask(&path, select, rest, Settings::default());
            let table = table.unwrap_or_else(|why| panic!("{select} {rest}: {why}"));
            assert_eq!(table.rows, std::slice::from_ref(&expected), "{select} {rest}");
        }
    }
}

#[test]
fn sums_of_booleans_are_integers() {
    let (_folder, path) = folder();
    let ok: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(true)]));
    write(&path, vec![("ok", ok)], 2);
    for having in ["sum(ok) > 1.5", "sum(ok) = 2"] {
        let table = ask(&path, "sum(ok)", &format!("HAVING {having}"), Settings::default());
        assert_eq!(table.expect("a number").rows, [[Value::Int(2)]], "{having}");
    }
}

/// As pyarrow writes them.
#[test]
fn values_may_be_missing_in_non_nullable_columns() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("n", Arc::new(Int64Array::from(vec![Some(1), None, Some(3), None]))),
        ("t", Arc::new(StringArray::from(vec![Some("a"), None, None, Some("b")]))),
        ("k", Arc::new(Int64Array::from(vec![5, 6, 7, 8]))),
    ];
    let all = RecordBatch::try_from_iter(columns).expect("of one length");
    let declared = all
        .schema()
        .fields()
        .iter()
        .map(|field| field.as_ref().clone().with_nullable(false))
        .collect::<Vec<_>>();
    let (_folder, path) = folder();
    let file = std::fs::File::create(&path).expect("room");
    let mut writer = FileWriter::try_new(file, &ArrowSchema::new(declared)).expect("room");
    writer.write(&all).expect("room");
    writer.finish().expect("room");
    let int = Value::Int;
    for (select, rest, expected) in [
        (
            "count(n), sum(n), min(n), count(t), count(k)",
            "",
            vec![int(2), int(4), int(1), int(2), int(4)],
        ),
        ("count(*)", "WHERE n < 3", vec![int(1)]),
        ("count(*)", "WHERE t IS NULL", vec![int(2)]),
        ("sum(k)", "WHERE n IS NULL", vec![int(14)]),
    ] {
        let table = ask(&path, select, rest, Settings::default());
        assert_eq!(table.expect("an answer").rows, [expected], "{select} {rest}");
    }
}

/// Up to V4 of the format, unions have one more buffer.
#[test]
fn columns_behind_unions_are_found() {
    let fields = UnionFields::from_fields([Field::new("i", DataType::Int64, true)]);
    let values = || -> Vec<ArrayRef> { vec![Arc::new(Int64Array::from(vec![70, 71, 72]))] };
    let kinds = || vec![0_i8; 3].into();
    let sparse = UnionArray::try_new(fields.clone(), kinds(), None, values()).expect("a union");
    let offsets = Some(vec![0, 1, 2].into());
    let dense = UnionArray::try_new(fields, kinds(), offsets, values()).expect("a union");
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("s", Arc::new(sparse)),
        ("a", Arc::new(Int64Array::from(vec![1, 2, 3]))),
        ("d", Arc::new(dense)),
        ("b", Arc::new(StringArray::from(vec![Some("x"), None, Some("y")]))),
    ];
    let all = RecordBatch::try_from_iter(columns).expect("of one length");
    let text = |text: &str| Value::Text(text.to_owned());
    let expected =
        [[Value::Int(1), text("x")], [Value::Int(2), Value::Null], [Value::Int(3), text("y")]];
    for version in [MetadataVersion::V4, MetadataVersion::V5] {
        let (_folder, path) = folder();
        let file = std::fs::File::create(&path).expect("room");
        let options = IpcWriteOptions::try_new(64, false, version).expect("options");
        let mut writer =
            FileWriter::try_new_with_options(file, &all.schema(), options).expect("room");
        writer.write(&all).expect("room");
        writer.finish().expect("room");
        let table = ask(&path, "a, b", "", Settings::default());
        assert_eq!(table.expect("an answer").rows, expected, "{version:?}");
    }
}

#[test]
fn damaged_batches_are_reported() {
    let (_folder, path) = folder();
    let mut bytes = good_file();
    let end = bytes.len() - 10;
    let length = u32::from_le_bytes(bytes[end..end + 4].try_into().expect("4 bytes")) as usize;
    let footer = arrow_ipc::root_as_footer(&bytes[end - length..end]).expect("a footer");
    let batches = footer.recordBatches().expect("batches");
    let at = batches.get(1).offset() as usize;
    bytes[at + 8..at + 24].fill(0xff);
    std::fs::write(&path, bytes).expect("room");
    let error = ask(&path, "sum(n)", "", Settings::default()).expect_err("a damaged batch");
    assert!(error.contains(&format!("rows.arrow, at byte {at}: ")), "{error}");
}

/// A small file with everything that is supported.
fn good_file() -> Vec<u8> {
    let (_folder, path) = folder();
    let texts = ["", "abc", "München", "d"].map(Some);
    let texts = StringArray::from_iter((0..40).map(|row| texts[row % 4].filter(|_| row % 7 > 0)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("t", Arc::new(texts)),
        ("n", Arc::new(Int32Array::from_iter((0..40).map(|row| (row % 5 > 0).then_some(row))))),
        ("ok", Arc::new(BooleanArray::from_iter((0..40).map(|row| Some(row % 3 == 0))))),
    ];
    write(&path, columns, 15);
    std::fs::read(&path).expect("it is there")
}

/// With any contents of a file there is an answer or an error, soon.
fn asks_without_harm(bytes: &[u8]) {
    let (_folder, path) = folder();
    std::fs::write(&path, bytes).expect("room");
    for (select, rest) in [
        ("count(*)", ""),
        ("t, n, ok", "WHERE n > 3 OR t = 'abc'"),
        ("t, count(ok), sum(n)", "GROUP BY t"),
        ("t", "ORDER BY n LIMIT 3"),
    ] {
        let _ = ask(&path, select, rest, Settings::default());
    }
}

#[test]
fn files_that_are_cut_are_refused() {
    let bytes = good_file();
    for end in 0..bytes.len() {
        let (_folder, path) = folder();
        std::fs::write(&path, &bytes[..end]).expect("room");
        assert!(ask(&path, "count(*)", "", Settings::default()).is_err(), "{end}");
    }
}

#[test]
fn a_file_that_is_replaced_meanwhile_is_refused() {
    let (folder, path) = folder();
    std::fs::write(&path, good_file()).expect("room");
    let statement = Statement::parse(&format!("SELECT count(*) FROM '{}'", path.display()));
    let statement = statement.expect("a statement");
    let source = Source::find(statement.files(), &Hints::default()).expect("a file");
    let question = statement.bind(&source.schema, &source.format).expect("a question");
    let part = &parts(question.plan(), &source.files, u64::MAX)[0];
    LOCAL.with(|stages| {
        let mut runner = Runner::new(stages, question.plan(), Settings::default()).expect("a plan");
        runner.run(part, &mut |_| true).expect("an answer");
        let other = folder.path().join("other");
        std::fs::write(&other, good_file()).expect("room");
        std::fs::rename(&other, &path).expect("a rename");
        let error = runner.run(part, &mut |_| true).expect_err("another file");
        assert!(error.to_string().contains("the file has been replaced"), "{error}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Changes bytes, and words with significant numbers, mostly in metadata.
    #[test]
    fn files_changed_by_others_do_no_harm(
        changes in proptest::collection::vec((any::<u32>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let mut bytes = good_file();
        let length = bytes.len();
        for (at, value, how) in changes {
            // The footer and the messages before batches.
            let at = at as usize % (length - 8);
            match how {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value % 8),
                2 => bytes[at..at + 8].copy_from_slice(&(u64::MAX >> (value % 64)).to_le_bytes()),
                _ => bytes[at..at + 4].copy_from_slice(&u32::from(value).to_le_bytes()),
            }
        }
        asks_without_harm(&bytes);
    }
}

/// Times before and after 1970, whose parts chrono computes.
#[test]
fn parts_of_times_and_casts() {
    let millis = |row: i64| (row * 7_919_001_337) % 90_000_000_000_000 - 40_000_000_000_000;
    let rows = 20_000;
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from_iter(
        (0..rows).map(|row| (row % 17 != 3).then(|| millis(row))),
    ));
    let whole = (0..rows).map(|row| row as f64 - 5.0);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("t", times),
        ("n", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("x", Arc::new(Float64Array::from_iter_values(whole))),
    ];
    let (_folder, path) = folder();
    write(&path, columns, 3000);
    let there = || (0..rows).filter(|row| row % 17 != 3);
    let time = |row| DateTime::from_timestamp_millis(millis(row)).expect("in range");

    let rest = "WHERE extract(year FROM t) IN (1969, 2001) OR date_trunc('day', t) < '0800-01-01'";
    let table = ask(&path, "count(*)", rest, Settings::default()).expect("an answer");
    let expected =
        there().filter(|row| [1969, 2001].contains(&time(*row).year()) || time(*row).year() < 800);
    assert_eq!(table.rows, [[Value::Int(expected.count() as i128)]]);

    for (condition, holds) in [
        (
            "extract(year FROM t) = 1999",
            Box::new(|time: DateTime<Utc>| time.year() == 1999)
                as Box<dyn Fn(DateTime<Utc>) -> bool>,
        ),
        ("2000 > extract(year FROM t)", Box::new(|time| time.year() < 2000)),
        (
            "date_trunc('month', t) >= '1969-12-02'",
            Box::new(|time| (time.year(), time.month()) >= (1970, 1)),
        ),
        ("date_part('hour', t) <> 23", Box::new(|time| time.hour() != 23)),
    ] {
        let table = ask(&path, "sum(n)", &format!("WHERE {condition}"), Settings::default());
        let expected: i64 = there().filter(|row| holds(time(*row))).sum();
        assert_eq!(table.expect("an answer").rows, [[Value::Int(expected.into())]], "{condition}");
    }

    for condition in ["t > 2020", "n <= t", "t IN (20200914)", "t BETWEEN 20200901 AND 20200930"] {
        let error = ask(&path, "count(*)", &format!("WHERE {condition}"), Settings::default());
        let error = error.expect_err("counts of time are not numbers");
        assert!(error.contains("such as '2020-09-14'"), "{condition}: {error}");
    }

    let select = "extract(month FROM t), count(*), sum(CAST(n AS DOUBLE)), max(CAST(x AS BIGINT))";
    let rest = "WHERE t IS NOT NULL GROUP BY 1 ORDER BY 1";
    let table = ask(&path, select, rest, Settings::default()).expect("an answer");
    let months: Vec<Vec<Value>> = (1..=12)
        .map(|month| {
            let of: Vec<i64> = there().filter(|row| time(*row).month() == month).collect();
            let greatest = of.iter().max().expect("rows of each month") - 5;
            let sum: i64 = of.iter().sum();
            let ints = [i128::from(month), of.len() as i128].map(Value::Int);
            [&ints[..], &[Value::Float(sum as f64), Value::Int(greatest.into())]].concat()
        })
        .collect();
    assert_eq!(table.rows, months);
    let latest = there().map(millis).max().expect("rows");
    let table = ask(&path, "date_trunc('day', max(t))", "", Settings::default());
    let day = i128::from(latest - latest.rem_euclid(86_400_000));
    assert_eq!(table.expect("an answer").rows, [[Value::Int(day)]]);
    let error =
        ask(&path, "CAST(x / 2 AS BIGINT)", "", Settings::default()).expect_err("a fraction");
    assert!(error.contains("CAST AS BIGINT of a number with a fraction"), "{error}");
    assert!(error.contains("rows.arrow, from byte "), "{error}");
}
