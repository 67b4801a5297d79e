//! Answers of queries on this machine, compared with the values.

mod world;

use bpfof_host::files::FileMaps;
use bpfof_query::{
    Aggregate, CSV_NULLS, Column, Compare, Conversion, Field, Format, Kind, Measure, OwnStages,
    Plan, Predicate, Reduction, RunError, Runner, Scalar, Schema, Settings, SourceFile, Stages,
    Stats, Table, Value, parts,
};
use proptest::prelude::*;
use std::cmp::Ordering;
use world::{Dice, World};

thread_local! {
    /// Stages on this machine, translated once.
    static LOCAL: Stages<'static> = Stages::new(Box::leak(Box::new(FileMaps::local())));
}

/// Columns with these names and kinds.
fn schema<const N: usize>(columns: [(&str, Kind); N], nullable: bool) -> Schema {
    let column = |(name, kind): (&str, Kind)| Column { name: name.to_owned(), kind, nullable };
    Schema { columns: columns.map(column).to_vec() }
}

/// A plan for all rows.
fn plan(schema: Schema, format: Format, reduction: Reduction) -> Plan {
    let (filter, own) = (Predicate::Constant(true), OwnStages::default());
    Plan { schema, format, filter, reduction, own }
}

/// Runs a plan over a file of these bytes.
fn run(plan: Plan, bytes: &[u8], settings: Settings) -> Result<(Table, Stats), RunError> {
    let world = World { plan, rows: Vec::new(), bytes: Vec::new() };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows");
    std::fs::write(&path, bytes).expect("room");
    LOCAL.with(|stages| world.run(stages, &path, settings, u64::MAX))
}

/// Runs a world's plan; returns the defect of the answer, if any.
fn check(world: &World, settings: Settings, part_max_bytes: u64) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows");
    std::fs::write(&path, &world.bytes).expect("room");
    LOCAL.with(|stages| {
        let run = world.run(stages, &path, settings, part_max_bytes);
        let (table, _) = run.map_err(|error| format!("{error}: {world:?}"))?;
        world.check(&table)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Blocks, ranges and parts end anywhere.
    #[test]
    fn answers_do_not_depend_on_where_blocks_end(
        seed in any::<u64>(), rows in 0_usize..60, block in 1_u32..200, range in 1_u64..400, part in 1_u64..2000,
    ) {
        let world = World::new(seed, rows);
        let settings = Settings {
            block_max_bytes: Some(block),
            range_max_bytes: Some(range),
            chains: 1 + Dice::new(seed).below(8),
            ..Settings::default()
        };
        check(&world, settings, part).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn answers_over_many_rows(seed in any::<u64>(), rows in 0_usize..6000) {
        let world = World::new(seed, rows);
        check(&world, Settings::default(), u64::MAX).map_err(TestCaseError::fail)?;
    }

    /// Includes texts that are not UTF-8, grouped by stages and, with five keys, here.
    #[test]
    fn texts_that_are_displayed_alike_are_one_group(
        texts in proptest::collection::vec(
            proptest::collection::vec(
                prop_oneof![Just(b'a'), Just(0xc3_u8), Just(0xa9_u8), Just(0xfe_u8), Just(0xff_u8)],
                0..4,
            ),
            1..60,
        ),
        keys in 1_usize..6, block in 1_u32..200, range in 1_u64..400,
    ) {
        let settings = Settings {
            block_max_bytes: Some(block),
            range_max_bytes: Some(range),
            ..Settings::default()
        };
        check(&groups_of(&texts, keys), settings, u64::MAX).map_err(TestCaseError::fail)?;
    }
}

/// Lines of a text and a number, grouped this many times by the text.
fn groups_of(texts: &[Vec<u8>], keys: usize) -> World {
    let (mut rows, mut bytes) = (Vec::new(), Vec::new());
    for (number, text) in texts.iter().enumerate() {
        bytes.extend_from_slice(text);
        bytes.extend_from_slice(format!(",{number}\n").as_bytes());
        let text = String::from_utf8_lossy(text).into_owned();
        rows.push(vec![Value::Text(text), Value::Int(number as i128)]);
    }
    let aggregate = |measure| Aggregate { measure, of: Scalar::Column(1) };
    let reduction = Reduction::Groups {
        keys: vec![Scalar::Column(0); keys],
        aggregates: [Measure::CountAll, Measure::Sum, Measure::Max].map(aggregate).to_vec(),
    };
    let schema = schema([("text", Kind::Utf8), ("number", Kind::I64)], false);
    World { plan: plan(schema, csv(), reduction), rows, bytes }
}

/// A small file, and its plan's answer with all possible sizes of blocks and ranges.
#[test]
fn every_border_is_met() {
    for seed in 0..9 {
        let world = World::new(seed, 9);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows");
        std::fs::write(&path, &world.bytes).expect("room");
        let maps = FileMaps::local();
        let stages = Stages::new(&maps);
        let end = world.bytes.len() as u64 + 1;
        // Arrow files have few bytes of columns.
        let some = if matches!(world.plan.format, Format::Columns { .. }) { 200 } else { end };
        for (block, range) in (1..some).map(|at| (at, end)).chain((1..some).map(|at| (end, at))) {
            let settings = Settings {
                block_max_bytes: Some(block as u32),
                range_max_bytes: Some(range),
                ..Settings::default()
            };
            let (table, _) = world.run(&stages, &path, settings, u64::MAX).expect("good rows");
            world.check(&table).unwrap_or_else(|why| panic!("{block}, {range}: {why}"));
        }
    }
}

/// All rows of a file, as whole rows.
fn all_of(format: Format, kinds: &[Kind], bytes: &[u8]) -> Result<Vec<Vec<Value>>, String> {
    let column = |(index, kind): (usize, &Kind)| Column {
        name: format!("c{index}"),
        kind: *kind,
        nullable: true,
    };
    let schema = Schema { columns: kinds.iter().enumerate().map(column).collect() };
    let columns = (0..kinds.len()).map(Scalar::Column).collect();
    let plan = plan(schema, format, Reduction::Rows { columns, limit: None });
    let run = run(plan, bytes, Settings::default());
    run.map(|(table, _)| table.rows).map_err(|error| error.to_string())
}

fn csv() -> Format {
    let nulls = CSV_NULLS.map(str::to_owned).to_vec();
    Format::Csv { delimiter: b',', header_bytes: 0, nulls }
}

/// `why` is the part of the message that describes the defect.
fn refuses(kinds: &[Kind], text: &str, why: &str) {
    let error = all_of(csv(), kinds, text.as_bytes()).expect_err(text);
    assert!(error.contains(why), "{text:?}: {error}");
}

#[test]
fn rows_that_do_not_match_the_schema_are_reported() {
    refuses(&[Kind::I64, Kind::I64], "1,2\n3,x\n", "at byte 4: column c1 is not a valid i64");
    refuses(&[Kind::I8], "1\n128\n", "at byte 2: column c0 is not a valid i8");
    refuses(&[Kind::U8], "-1\n", "column c0 is not a valid u8");
    refuses(&[Kind::U64], "18446744073709551616\n", "column c0 is not a valid u64");
    refuses(&[Kind::F64], "1e999\n", "column c0 is not a valid f64");
    for kind in [Kind::I64, Kind::F64] {
        for text in ["\0", "\0\0\0\0\0\0\0\0", "NA\0", "null\0\0\0\0"] {
            refuses(&[kind], &format!("1\nNA\n{text}\n"), "at byte 5: column c0 is not");
        }
    }
    refuses(&[Kind::I64, Kind::I64], "1,2\n3\n", "at byte 4: the row has no column c1");
    refuses(&[Kind::Utf8], "a\n\"b\nc\"\n", "at byte 2: a quote that is not closed");
    refuses(&[Kind::Utf8], "\"b\"c\n", "at byte 0: a quote that is not closed");
    let long = format!("1\n{}\n", "7".repeat(60_000));
    refuses(&[Kind::Utf8], &long, "at byte 2: a row of more than 57344 bytes");
    // A row that fits into a block may be too long for an answer.
    let field = Field { offset_bytes: 0, width_bytes: 16_384 };
    let records = Format::Fixed { header_bytes: 0, record_bytes: 16_384, fields: vec![field] };
    let error = all_of(records, &[Kind::Utf8], &[b'7'; 16_384]).expect_err("a long row");
    assert!(
        error.contains("at byte 0: the row is too long for an answer, which has some 10"),
        "{error}"
    );
    let fixed = Format::Fixed {
        header_bytes: 1,
        record_bytes: 4,
        fields: vec![Field { offset_bytes: 0, width_bytes: 4 }],
    };
    let error = all_of(fixed, &[Kind::I32], b"h12345").expect_err("one byte too many");
    assert!(error.contains("at byte 5: 1 bytes, not a record of 4"), "{error}");
}

/// Queries lines of a number, a text and a number.
fn of_three(filter: Predicate, reduction: Reduction, text: &[u8]) -> Result<Table, String> {
    let schema = schema([("id", Kind::I64), ("name", Kind::Utf8), ("zip", Kind::I64)], true);
    let plan = Plan { filter, ..plan(schema, csv(), reduction) };
    let run = run(plan, text, Settings::default());
    run.map(|(table, _)| table).map_err(|error| error.to_string())
}

/// Regardless of the columns that are used, behind rows without quotes and with them.
#[test]
fn rows_with_another_number_of_fields_are_reported() {
    let good = "1,\"a, b\",5\n2,x,\r\n\n3,\"y\",4\n4,,\n".repeat(3000);
    for column in 0..3 {
        let sum = |text: &str| {
            let of = Scalar::Column(column);
            let measure = if column == 1 { Measure::Count } else { Measure::Sum };
            let aggregates = vec![Aggregate { measure, of }];
            let reduction = Reduction::Groups { keys: Vec::new(), aggregates };
            let table = of_three(Predicate::Constant(true), reduction, text.as_bytes())?;
            Ok::<_, String>(table.rows[0][0].clone())
        };
        let expected = [30_000, 12_000, 27_000][column];
        assert_eq!(sum(&good), Ok(Value::Int(expected)), "{column}");
        for (line, found) in [
            ("7,Smith, John,8", 4),
            ("7,\"Smith\", John,8", 4),
            ("7,\"Smith, John\",8,", 4),
            ("7,x,8,9,10", 5),
            ("7,x", 2),
            ("7,\"x\"", 2),
            ("7", 1),
            (" ", 1),
        ] {
            for before in ["", "1,x,2\n", "1,\"x\",2\n", &good] {
                for behind in ["", "\n", "\r\n", "\n1,x,2\n", "\n1,\"x\",2\n"] {
                    let error = sum(&format!("{before}{line}{behind}"));
                    let error = error.expect_err(line);
                    let names = ["id", "name", "zip"];
                    let why = match names.get(found).filter(|_| column >= found) {
                        Some(_) => format!("the row has no column {}", names[column]),
                        None => format!("the row has {found} fields instead of 3"),
                    };
                    let why = format!("at byte {}: {why}", before.len());
                    assert!(error.contains(&why), "{line:?} {behind:?}: {error}");
                }
            }
        }
    }
}

/// Includes rows that do not fit into an answer.
#[test]
fn long_rows_are_answered() {
    let ids = [("7", Value::Int(7)), (" NA", Value::Null), ("+8", Value::Int(8))];
    let lengths = [3, 10, 20_000, 5, 57_000, 40_000, 57_250, 1, 30_000];
    let (mut text, mut expected) = (String::new(), Vec::new());
    for (length, (id, value)) in lengths.into_iter().zip(ids.iter().cycle()) {
        let name = "x".repeat(length);
        text += &format!("{id},\"{name}, \"\"y\"\"\",-5\r\n");
        let name = Value::Text(format!("{name}, \"y\""));
        expected.push(vec![value.clone(), name, Value::Int(-5)]);
    }
    let all = || Predicate::Constant(true);
    let columns = || (0..3).map(Scalar::Column).collect();
    let never = Predicate::Compare(Compare::NotEqual, Scalar::Column(2), Scalar::Column(2));
    let begins = Predicate::StartsWith(Scalar::Column(1), "xxxxx".to_owned());
    let here = Predicate::Or(vec![begins.clone(), never]);
    let long: Vec<_> =
        (0..9).filter(|row| lengths[*row] >= 5).map(|row| expected[row].clone()).collect();
    for text in [&*text, text.trim_end()] {
        let rows = |filter, limit| {
            let reduction = Reduction::Rows { columns: columns(), limit };
            of_three(filter, reduction, text.as_bytes()).expect("rows").rows
        };
        assert!(rows(all(), None) == expected);
        assert!(rows(all(), Some(5)) == expected[..5]);
        assert!(rows(begins.clone(), None) == long && rows(here.clone(), None) == long);
        let by = Scalar::Column(0);
        let top = Reduction::Top { by, descending: true, count: 2, columns: columns() };
        let top = of_three(all(), top, text.as_bytes()).expect("rows").rows;
        assert!(top == [expected[2].clone(), expected[5].clone()]);
        let aggregates = vec![Aggregate { measure: Measure::Sum, of: Scalar::Column(2) }];
        let groups = Reduction::Groups { keys: vec![Scalar::Column(1)], aggregates };
        let mut groups = of_three(all(), groups, text.as_bytes()).expect("groups").rows;
        groups.sort_by_key(|row| format!("{row:?}"));
        let mut names: Vec<_> = expected.iter().map(|row| row[1..].to_vec()).collect();
        names.sort_by_key(|row| format!("{row:?}"));
        assert!(groups == names);
    }
}

/// The block that a long row needs may hold more rows than a call can pay for.
#[test]
fn a_long_row_may_be_followed_by_rows_that_cost_much() {
    let long = format!("\"5\",\"{}\",\"6\"\n", "x".repeat(17_000));
    let dear = |rows| "\"1\",\"a\",\"2\"\n".repeat(rows);
    for text in [long.clone() + &dear(5000), dear(100) + &long + &dear(5000) + &long] {
        let long = text.matches("\"5\"").count();
        let rows = text.lines().count();
        for column in [0, 2] {
            let of = Scalar::Column(column);
            let aggregates = vec![
                Aggregate { measure: Measure::Count, of: of.clone() },
                Aggregate { measure: Measure::Sum, of },
            ];
            let groups = Reduction::Groups { keys: Vec::new(), aggregates };
            let table = of_three(Predicate::Constant(true), groups, text.as_bytes());
            let each = [(5, 1), (6, 2)][column / 2];
            let sum = long * each.0 + (rows - long) * each.1;
            let expected = [rows, sum].map(|number| Value::Int(number as i128));
            assert_eq!(table.expect("rows").rows, [expected]);
        }
    }
}

/// A line of `fields` fields, of which field `at` is this one, and the others are their numbers.
fn wide_line(fields: usize, at: usize, field: &str) -> String {
    let fields = (0..fields).map(|place| match place {
        place if place == at => field.to_owned(),
        place => (place % 10).to_string(),
    });
    fields.collect::<Vec<_>>().join(",")
}

/// Reads these of 4,096 text columns.
fn of_wide(columns: &[usize], text: &str) -> Result<Vec<Vec<Value>>, String> {
    let column = |index| Column { name: format!("c{index}"), kind: Kind::Utf8, nullable: false };
    let schema = Schema { columns: (0..4096).map(column).collect() };
    let columns = columns.iter().copied().map(Scalar::Column).collect();
    let plan = plan(schema, csv(), Reduction::Rows { columns, limit: None });
    let run = run(plan, text.as_bytes(), Settings::default());
    run.map(|(table, _)| table.rows).map_err(|error| error.to_string())
}

/// With 16 columns of text, about 920 ends of fields fit at a time; with one column all of these
/// do.
#[test]
fn wide_rows_are_read_whichever_columns_are_asked_for() {
    let first: Vec<usize> = (918..931).chain([2047, 4094, 4095]).collect();
    let last: Vec<usize> = (4080..4096).collect();
    for columns in [&first[..], &last, &[4095], &[2047, 4094]] {
        for at in [0, 1, 2047, 4080, 4094, 4095].into_iter().chain(917..932) {
            for (field, value) in [("x", "x"), ("", ""), ("\"a,\"\"b\"", "a,\"b"), ("y\"z", "y\"z")]
            {
                let line = wide_line(4096, at, field);
                // With a line end and without, and twice.
                let text = format!("{line}\n{line}\r\n\n{line}");
                let expected = columns.iter().map(|column| match *column {
                    column if column == at => Value::Text(value.to_owned()),
                    column => Value::Text((column % 10).to_string()),
                });
                let expected = vec![expected.collect::<Vec<_>>(); 3];
                assert_eq!(of_wide(columns, &text), Ok(expected), "{field} at {at} of {columns:?}");
            }
        }
    }
}

#[test]
fn wide_rows_with_another_number_of_fields_are_reported() {
    let good = wide_line(4096, 7, "\"q\"");
    let many: Vec<usize> = (0..16).collect();
    for columns in [&[0][..], &[0, 4000], &many] {
        for field in ["5", "\"5\"", "\"5,5\""] {
            for fields in [4095, 4097, 8192] {
                for behind in ["\n", "\r\n", ""] {
                    let line = wide_line(fields, 4050, field);
                    let error = of_wide(columns, &format!("{good}\n{line}{behind}"));
                    let error = error.expect_err("a bad row");
                    let why = format!(
                        "at byte {}: the row has {fields} fields instead of 4096",
                        good.len() + 1
                    );
                    assert!(error.contains(&why), "{field}, {fields}: {error}");
                }
            }
        }
        let error = of_wide(columns, &wide_line(4096, 4050, "\"5\"5")).expect_err("a bad quote");
        assert!(error.contains("a quote that is not closed"), "{error}");
    }
    let last: Vec<usize> = (4080..4096).collect();
    let error = of_wide(&last, &wide_line(4095, 0, "5")).expect_err("a bad row");
    assert!(error.contains("the row has no column c4095"), "{error}");
}

/// They exceed the budget of a call.
#[test]
fn a_line_of_too_many_fields_in_quotes_is_reported() {
    let line = vec!["\"5\""; 4096].join(",");
    let columns: Vec<usize> = (4080..4096).collect();
    let error = of_wide(&columns, &line).expect_err("a dear line");
    assert!(error.contains("more than some 2,500 fields in quotes"), "{error}");
}

/// A row of more fields than are listed at a time, in a file with few columns.
#[test]
fn rows_of_very_many_fields_are_reported() {
    for fields in [432, 433, 5000, 9000, 20_000] {
        for behind in ["\n", "\n1,x,2\n", ""] {
            let line = wide_line(fields, 0, "1");
            let aggregate = Aggregate { measure: Measure::Sum, of: Scalar::Column(0) };
            let reduction = Reduction::Groups { keys: Vec::new(), aggregates: vec![aggregate] };
            let text = format!("1,x,2\n{line}{behind}");
            let error = of_three(Predicate::Constant(true), reduction, text.as_bytes());
            let error = error.expect_err("a bad row");
            let why = format!("at byte 6: the row has {fields} fields instead of 3");
            assert!(error.contains(&why), "{error}");
        }
    }
}

/// The bytes of texts are compared, by stages and here.
#[test]
fn conditions_on_texts_that_are_no_utf8() {
    let texts: [&[u8]; 9] = [
        b"a",
        b"a\xfe",
        b"a\xff",
        b"a\xff\xfe",
        b"\xff",
        b"\xc3",
        "ä".as_bytes(),
        "a\u{fffd}".as_bytes(),
        b"b",
    ];
    let mut bytes = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        bytes.extend([number.to_string().as_bytes(), b",", text, b",0\n"].concat());
    }
    let numbers = |filter| {
        let reduction = Reduction::Rows { columns: vec![Scalar::Column(0)], limit: None };
        of_three(filter, reduction, &bytes).expect("good rows").rows
    };
    type Holds<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;
    // Stages cannot compare a column with itself.
    let never = || Predicate::Compare(Compare::NotEqual, Scalar::Column(2), Scalar::Column(2));
    let here = |filter| numbers(Predicate::Or(vec![filter, never()]));
    for literal in
        ["", "a", "a\u{fffd}", "a\u{fffd}\u{fffd}", "\u{fffd}", "Ã", "ä", "b", "\u{10ffff}"]
    {
        let value = || Value::Text(literal.to_owned());
        let compares = [
            (Compare::Equal, Ordering::is_eq as fn(Ordering) -> bool),
            (Compare::NotEqual, Ordering::is_ne),
            (Compare::Less, Ordering::is_lt),
            (Compare::AtMost, Ordering::is_le),
            (Compare::Greater, Ordering::is_gt),
            (Compare::AtLeast, Ordering::is_ge),
        ];
        let compares = compares.map(|(compare, holds)| {
            let filter = Predicate::Compare(compare, Scalar::Column(1), Scalar::Literal(value()));
            let holds = move |text: &[u8]| holds(text.cmp(literal.as_bytes()));
            (filter, Box::new(holds) as Holds<'_>)
        });
        let begins = Predicate::StartsWith(Scalar::Column(1), literal.to_owned());
        let is_in = Predicate::In(Scalar::Column(1), vec![Value::Text("x".to_owned()), value()]);
        let others: [(_, Holds<'_>); 2] = [
            (begins, Box::new(|text| text.starts_with(literal.as_bytes()))),
            (is_in, Box::new(|text| text == literal.as_bytes())),
        ];
        for (filter, holds) in compares.into_iter().chain(others) {
            let found = (0..).zip(texts).filter(|(_, text)| holds(text));
            let expected: Vec<_> = found.map(|(number, _)| vec![Value::Int(number)]).collect();
            assert_eq!(numbers(filter.clone()), expected, "{filter:?}");
            assert_eq!(here(filter.clone()), expected, "{filter:?}");
        }
    }
}

/// Also while the first rows are read.
#[test]
fn a_top_can_be_stopped_at_any_time() {
    let number = |row: usize| (row as f64, f64::NAN);
    let bytes: Vec<u8> = (0..20)
        .flat_map(|row| [number(row).0.to_le_bytes(), number(row).1.to_le_bytes()].concat())
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows");
    std::fs::write(&path, &bytes).expect("room");
    // One chain at a time, of one row.
    let settings = Settings { chains: 1, range_max_bytes: Some(1), ..Settings::default() };
    let (schema, format) = pairs([("x", Kind::F64), ("nan", Kind::F64)]);
    for by in 0..2 {
        let columns = vec![Scalar::Column(0)];
        let top = Reduction::Top { by: Scalar::Column(by), descending: true, count: 10, columns };
        let plan = plan(schema.clone(), format.clone(), top);
        let files = [SourceFile::at(&path, &plan.format).expect("the file")];
        let part = &parts(&plan, &files, u64::MAX)[0];
        LOCAL.with(|stages| {
            let mut runner = Runner::new(stages, &plan, settings).expect("a plan");
            let mut calls = 0;
            // By then all 20 chains that look for them have ended.
            let stopped = runner.run(part, &mut |_| {
                calls += 1;
                calls <= 20
            });
            assert!(matches!(stopped, Err(RunError::Stopped)), "{by}: {stopped:?}");
        });
    }
}

/// A cast in WHERE is done here, for all rows that stages answer.
#[test]
fn rows_behind_those_of_a_limit_are_not_cast() {
    let bytes: Vec<u8> = [0.0, 1.0, 2.0, 0.5]
        .iter()
        .flat_map(|number: &f64| [number.to_le_bytes(), [0; 8]].concat())
        .collect();
    let (schema, format) = pairs([("number", Kind::F64), ("other", Kind::I64)]);
    let first = |rows| {
        let cast = Scalar::Convert(Conversion::Integer, Box::new(Scalar::Column(0)));
        let one = Scalar::Literal(Value::Int(1));
        let filter = Predicate::Compare(Compare::AtLeast, cast, one);
        let reduction = Reduction::Rows { columns: vec![Scalar::Column(0)], limit: Some(rows) };
        let plan = Plan { filter, ..plan(schema.clone(), format.clone(), reduction) };
        run(plan, &bytes, Settings::default())
    };
    let (table, _) = first(2).expect("two rows before the fraction");
    assert_eq!(table.rows, [[Value::Float(1.0)], [Value::Float(2.0)]]);
    let failed = first(3);
    assert!(matches!(failed, Err(RunError::OverflowIn { .. })), "{failed:?}");
}

/// Regardless of the columns that are used.
#[test]
fn lines_that_end_in_quotes_are_refused() {
    let answer = |measure, text: &str| {
        let schema = schema([("number", Kind::I64), ("text", Kind::Utf8)], false);
        let aggregates = vec![Aggregate { measure, of: Scalar::Column(0) }];
        let plan = plan(schema, csv(), Reduction::Groups { keys: Vec::new(), aggregates });
        let run = run(plan, text.as_bytes(), Settings::default());
        run.map(|(table, _)| table.rows).map_err(|error| error.to_string())
    };
    for (measure, expected) in [(Measure::CountAll, 4), (Measure::Sum, 10)] {
        let good = "1,\"x\"\n2,\"a,\"\"b\"\r\n3,y\"\n4,\n";
        assert_eq!(answer(measure, good), Ok(vec![vec![Value::Int(expected)]]));
        for line in ["\"y", "\"y\"\"", "\"y\"z"] {
            let error = answer(measure, &format!("1,x\n2,{line}\n3,z\"\n4,w\n")).expect_err(line);
            assert!(error.contains("at byte 4: a quote that is not closed"), "{error}");
        }
    }
}

#[test]
fn text_is_read_as_pyarrow_reads_it() {
    let rows = all_of(
        csv(),
        &[Kind::I64, Kind::Utf8, Kind::F64],
        "1,\"a\"\"b\",  2.5 \r\n\r\n NA ,,-Infinity\n\"7\",\"\",nan\n+8, x ,1".as_bytes(),
    );
    let text = |text: &str| Value::Text(text.to_owned());
    let expected = vec![
        vec![Value::Int(1), text("a\"b"), Value::Float(2.5)],
        vec![Value::Null, text(""), Value::Float(f64::NEG_INFINITY)],
        vec![Value::Int(7), text(""), Value::Null],
        vec![Value::Int(8), text(" x "), Value::Float(1.0)],
    ];
    assert_eq!(rows, Ok(expected));
    // An empty field at the end of the file.
    let rows = all_of(csv(), &[Kind::Utf8, Kind::I64], b"\"a\",");
    assert_eq!(rows, Ok(vec![vec![text("a"), Value::Null]]));
}

/// A long line is read whole, and does not affect the others.
#[test]
fn lines_of_all_lengths_are_rows() {
    let mut text = String::new();
    for length in (0..3000).step_by(7).chain([12_000, 40_000, 57_000, 3]) {
        text += &format!("{length},{}\n", "y".repeat(length));
    }
    let schema = schema([("length", Kind::U32), ("text", Kind::Utf8)], false);
    let begins = Predicate::StartsWith(Scalar::Column(1), "yyyyyyy".to_owned());
    let reduction = Reduction::Rows { columns: vec![Scalar::Column(0)], limit: None };
    let plan = Plan { filter: Predicate::Not(Box::new(begins)), ..plan(schema, csv(), reduction) };
    for block in [1, 1000, 24 << 10, 57_344] {
        let settings = Settings { block_max_bytes: Some(block), ..Settings::default() };
        let (table, _) = run(plan.clone(), text.as_bytes(), settings).expect("good rows");
        assert_eq!(table.rows, [[Value::Int(0)], [Value::Int(3)]], "{block}");
    }
}

/// Counts lines of a number, one chain after the other.
fn counted(text: String) -> (Table, Stats) {
    let aggregate = |measure| Aggregate { measure, of: Scalar::Column(0) };
    let aggregates = [Measure::Count, Measure::Min].map(aggregate).to_vec();
    let reduction = Reduction::Groups { keys: Vec::new(), aggregates };
    let plan = plan(schema([("x", Kind::F64)], true), csv(), reduction);
    let settings = Settings { chains: 1, range_max_bytes: Some(64 << 10), ..Settings::default() };
    run(plan, text.as_bytes(), settings).expect("numbers")
}

/// Doubles with 17 digits, the form in which programs print them.
#[test]
fn doubles_of_17_digits_do_not_exhaust_the_budget() {
    let again = |number: &str| {
        let (table, stats) = counted(format!("{number}\n").repeat(20_000));
        let least = Value::Float(number.parse().expect("a number"));
        assert_eq!(table.rows, [[Value::Int(20_000), least]]);
        stats.again
    };
    for number in ["-1.2345678901234567e-300", "0.00012345678901234567"] {
        assert_eq!(again(number), 0, "{number}");
    }
    // Doubles of more than 19 digits do, but only few chains are lost.
    let lost = again("2.4703282292062327208e-324");
    assert!((1..12).contains(&lost), "{lost}");
}

#[test]
fn blocks_grow_again_behind_rows_that_cost_much() {
    let cheap = || "12.5\n".repeat(800_000);
    let dear = "2.4703282292062327208e-324\n".repeat(1000);
    let (without, with) = (counted(cheap()).1.hops, counted(dear + &cheap()).1.hops);
    // With blocks of 512 bytes there would be 32 times as many.
    assert!(with < 4 * without, "{with} and {without}");
}

/// Records of two numbers of eight bytes.
fn pairs(columns: [(&str, Kind); 2]) -> (Schema, Format) {
    let fields = [0, 8].map(|at| Field { offset_bytes: at, width_bytes: 8 }).to_vec();
    let format = Format::Fixed { header_bytes: 0, record_bytes: 16, fields };
    (schema(columns, false), format)
}

/// An empty text has no position in a block, and no bytes to compare.
#[test]
fn empty_texts_behind_many_others_are_a_group() {
    const RECORD_BYTES: usize = 64;
    let rows = 1000;
    let is_empty = |row: usize| row == 890 || row == 990;
    let mut bytes = vec![b'x'; rows * RECORD_BYTES];
    for row in (0..rows).filter(|row| is_empty(*row)) {
        bytes[row * RECORD_BYTES..][..16].fill(0);
    }
    let field = Field { offset_bytes: 0, width_bytes: 16 };
    let record_bytes = RECORD_BYTES as u32;
    let format = Format::Fixed { header_bytes: 0, record_bytes, fields: vec![field] };
    let reduction = Reduction::Groups {
        keys: vec![Scalar::Column(0)],
        aggregates: vec![Aggregate { measure: Measure::CountAll, of: Scalar::Column(0) }],
    };
    let plan = plan(schema([("name", Kind::Utf8)], false), format, reduction);
    let name = |row| Value::Text(if is_empty(row) { String::new() } else { "x".repeat(16) });
    let world = World { plan, rows: (0..rows).map(|row| vec![name(row)]).collect(), bytes };
    check(&world, Settings::default(), u64::MAX).expect("two groups");
}

/// Groups beyond the room of stages are complete, and each row is counted once.
#[test]
fn groups_are_not_limited() {
    let rows = 30_000_u32;
    let group = |row: u32| u64::from(row.wrapping_mul(2_654_435_761) % 5000);
    let bytes: Vec<u8> = (0..rows)
        .flat_map(|row| [group(row).to_le_bytes(), f64::from(row).to_le_bytes()].concat())
        .collect();
    let (schema, format) = pairs([("group", Kind::U64), ("value", Kind::F64)]);
    let reduction = Reduction::Groups {
        keys: vec![Scalar::Column(0)],
        aggregates: [Measure::CountAll, Measure::Sum]
            .map(|measure| Aggregate { measure, of: Scalar::Column(1) })
            .to_vec(),
    };
    let run = run(plan(schema, format, reduction), &bytes, Settings::default());
    let (table, stats) = run.expect("good rows");
    let mut expected = std::collections::HashMap::new();
    for row in 0..rows {
        let entry = expected.entry(group(row)).or_insert((0, 0.0));
        *entry = (entry.0 + 1, entry.1 + f64::from(row));
    }
    assert_eq!(table.rows.len(), expected.len());
    for row in &table.rows {
        let [Value::Int(key), Value::Int(count), Value::Float(sum)] = row[..] else {
            panic!("{row:?}")
        };
        assert_eq!(expected.remove(&(key as u64)), Some((count, sum)));
    }
    assert!(stats.rows < 2 * u64::from(rows), "{stats:?}");
}
