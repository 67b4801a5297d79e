//! Tests of the inference of files.

use super::{FormatName, Found, Hints, Source};
use crate::plan::{Field, Format, Kind};
use crate::sql::Statement;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("written");
    }
    folder
}

fn find(folder: &Path, pattern: &str, hints: &Hints) -> Result<Source, String> {
    let pattern = folder.join(pattern).display().to_string();
    Source::find(&[pattern], hints).map_err(|error| error.to_string())
}

/// The warnings to the user for a question about files.
fn told(folder: &Path, pattern: &str, items: &str, hints: &Hints) -> Result<Vec<String>, String> {
    let pattern = folder.join(pattern).display().to_string();
    let found = Found::look(std::slice::from_ref(&pattern), hints).expect("files");
    let statement = Statement::parse(&format!("SELECT {items} FROM '{pattern}'")).expect("SQL");
    let question = statement.bind(&found.source.schema, &found.source.format).expect("columns");
    let ready = found.for_plan(question.plan()).map_err(|error| error.to_string());
    ready.map(|(_, warnings)| warnings)
}

fn schema(text: &str) -> Hints {
    Hints { schema: Some(text.to_owned()), ..Hints::default() }
}

fn kinds(source: &Source) -> Vec<(&str, Kind)> {
    source.schema.columns.iter().map(|column| (&*column.name, column.kind)).collect()
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}");
    let length = (header.len() + 1 + 10).next_multiple_of(64) - 10;
    let header = format!("{header:<0$}\n", length - 1);
    let length = u16::try_from(length).expect("short").to_le_bytes();
    [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), data].concat()
}

#[test]
fn records_follow_the_users_schema() {
    let folder = folder(&[("a.bin", &[0; 64]), ("b.bin", &[0; 32]), ("c.dat", &[0; 33])]);
    let hints = schema("id u64, \"the zone\" i32, x pad(4), name char(8), fare f64");
    let source = find(folder.path(), "?.bin", &hints).expect("records");
    let named =
        [("id", Kind::U64), ("the zone", Kind::I32), ("name", Kind::Utf8), ("fare", Kind::F64)];
    assert_eq!(kinds(&source), named);
    let at = |offset_bytes, width_bytes| Field { offset_bytes, width_bytes };
    let fields = vec![at(0, 8), at(8, 4), at(16, 8), at(24, 8)];
    assert_eq!(source.format, Format::Fixed { header_bytes: 0, record_bytes: 32, fields });
    let sizes: Vec<u64> = source.files.iter().map(|file| file.bytes).collect();
    assert_eq!(sizes, [64, 32]);
    let refusal = |pattern, text| find(folder.path(), pattern, &schema(text)).expect_err("refused");
    assert!(
        refusal("c.dat", "id u64").contains("not whole records of 8 bytes; is the schema right?")
    );
    assert!(refusal("a.bin", "id u65").contains("\"id u65\" is not a field: write NAME KIND"));
    assert!(refusal("a.bin", "id u64, id u64").contains("two fields id"));
    assert!(refusal("a.bin", "id utf8").contains("id char(16)"));
    assert!(refusal("a.bin", "id char(99999)").contains("at most 16384 bytes"));
    assert!(refusal("a.bin", "id pad(8)").contains("no fields"));
    assert!(refusal("nope*", "id u64").contains("there is no file"));
    let unknown = find(folder.path(), "c.dat", &Hints::default()).expect_err("unknown");
    assert!(unknown.contains("its name does not tell its format"), "{unknown}");
}

#[test]
fn npy_fields_are_read_from_the_header() {
    let structured =
        npy("[('a', '<i4'), ('', '|V4'), ('s', '|S3'), ('b', '<f8')]", "(2,)", &[0; 38]);
    let folder = folder(&[
        ("plain.npy", &npy("'<f4'", "(3,)", &[0; 12])),
        ("rows.npy", &npy("'|u1'", "(2, 3)", &[0; 6])),
        ("fields.npy", &structured),
        ("big.npy", &npy("'>f4'", "(3,)", &[0; 12])),
        ("three.npy", &npy("'<f4'", "(1, 1, 3)", &[0; 12])),
        ("short.npy", &npy("'<f4'", "(4,)", &[0; 12])),
        ("complex.npy", &npy("'<c8'", "(1,)", &[0; 8])),
        ("nested.npy", &npy("[('a', [('b', '<i4')])]", "(1,)", &[0; 4])),
        ("deep.npy", &npy(&"(".repeat(5000), "(1,)", &[])),
        ("none.npy", b"\x93NUMPY"),
    ]);
    let found = |name| find(folder.path(), name, &Hints::default());
    assert_eq!(kinds(&found("plain.npy").expect("an array")), [("value", Kind::F32)]);
    let rows = found("rows.npy").expect("an array");
    assert_eq!(kinds(&rows), [("c0", Kind::U8), ("c1", Kind::U8), ("c2", Kind::U8)]);
    let fields = found("fields.npy").expect("an array");
    assert_eq!(kinds(&fields), [("a", Kind::I32), ("s", Kind::Utf8), ("b", Kind::F64)]);
    let Format::Fixed { header_bytes, record_bytes, fields } = &fields.format else {
        panic!("records")
    };
    assert_eq!((*record_bytes, header_bytes % 64, fields[2].offset_bytes), (19, 0, 11));
    for (name, expected) in [
        ("big.npy", "big-endian"),
        ("three.npy", "3 axes"),
        ("short.npy", "3 rows, but its header has another number"),
        ("complex.npy", "only integers, f4, f8"),
        ("nested.npy", "the field a is an array or struct"),
        ("deep.npy", "no header"),
        ("none.npy", "no header"),
    ] {
        let refusal = found(name).expect_err("refused");
        assert!(refusal.contains(expected), "{name}: {refusal}");
    }
}

#[test]
fn csv_is_inferred_by_the_rules_of_pyarrow() {
    let text = "a,b,\"c \"\"d\"\"\",e,f,g,h\r\n1,1,x,NA,,1e3,99999999999999999999\n-2,2.5,3,null,,\"4\",1\n\n,nan,,5,,7,2";
    let folder = folder(&[
        ("a.csv", text.as_bytes()),
        ("b.csv", text.as_bytes()),
        ("c.csv", b"other\n1\n"),
        ("t.tsv", b"\xef\xbb\xbfid\tname\n1\tx\n"),
        ("ragged.csv", b"a,b\n1,2\n3\n"),
        ("twice.csv", b"a,a\n"),
        ("empty.csv", b""),
    ]);
    let source = find(folder.path(), "[ab].csv", &Hints::default()).expect("CSV");
    assert_eq!(source.files.len(), 2);
    let named = [
        ("a", Kind::I64),
        ("b", Kind::F64),
        ("c \"d\"", Kind::Utf8),
        ("e", Kind::I64),
        ("f", Kind::Utf8),
        ("g", Kind::F64),
        ("h", Kind::F64),
    ];
    assert_eq!(kinds(&source), named);
    let Format::Csv { delimiter: b',', header_bytes: 23, .. } = source.format else {
        panic!("{:?}", source.format)
    };
    let tabs = find(folder.path(), "t.tsv", &Hints::default()).expect("CSV");
    assert_eq!(kinds(&tabs), [("id", Kind::I64), ("name", Kind::Utf8)]);
    assert!(matches!(tabs.format, Format::Csv { delimiter: b'\t', header_bytes: 11, .. }));
    let hints = Hints { no_header: true, ..schema("f1 f64") };
    let rows = find(folder.path(), "ragged.csv", &hints).expect_err("ragged");
    assert!(rows.contains("the row at byte 8 has 1 fields instead of 2"), "{rows}");
    let found = |name| find(folder.path(), name, &Hints::default()).expect_err("refused");
    assert!(found("[ac].csv").contains("its columns are other, but the first file has a, b"));
    assert!(found("twice.csv").contains("names a twice"));
    assert!(found("empty.csv").contains("no header line"));
    let hints = Hints { no_header: true, format: Some(FormatName::Csv), ..Hints::default() };
    let rows = find(folder.path(), "c.csv", &hints).expect("CSV");
    assert_eq!(kinds(&rows), [("f0", Kind::Utf8)]);
    let retyped = find(folder.path(), "a.csv", &schema("a f64, e utf8")).expect("CSV");
    assert_eq!(
        (retyped.schema.columns[0].kind, retyped.schema.columns[3].kind),
        (Kind::F64, Kind::Utf8)
    );
    assert!(!retyped.schema.columns[3].nullable && retyped.schema.columns[0].nullable);
}

/// Spaces around numbers, infinities, and numbers that do not fit.
#[test]
fn csv_is_inferred_as_stages_read_it() {
    let rows = [
        "i, x,inf,signed,none,long,great,dot,blank",
        "1, 9,inf,+inf, NA ,1.0,1e999,.5, ",
        "\t2 , 10,-Infinity,-INF,7 ,LONG,1,1., x ",
    ];
    let text = rows.join("\n").replace("LONG", &"0".repeat(129));
    let folder = folder(&[("a.csv", text.as_bytes())]);
    let named = [
        ("i", Kind::I64),
        (" x", Kind::I64),
        ("inf", Kind::F64),
        ("signed", Kind::F64),
        ("none", Kind::I64),
        ("long", Kind::Utf8),
        ("great", Kind::Utf8),
        ("dot", Kind::F64),
        ("blank", Kind::Utf8),
    ];
    let source = find(folder.path(), "a.csv", &Hints::default()).expect("CSV");
    assert_eq!(kinds(&source), named);
    // A plus is a sign as well; two signs are not a number.
    fs::write(folder.path().join("b.csv"), "i,f,two,t\n+7,+.5,+-1,+\n1,1,1,1\n").expect("written");
    let source = find(folder.path(), "b.csv", &Hints::default()).expect("CSV");
    let named = [("i", Kind::I64), ("f", Kind::F64), ("two", Kind::Utf8), ("t", Kind::Utf8)];
    assert_eq!(kinds(&source), named);
}

/// The first file that has values determines the type.
#[test]
fn columns_without_a_value_take_their_kind_from_other_files() {
    let folder = folder(&[
        ("a.csv", b"id,x,y,z\n"),
        ("b.csv", b"id,x,y,z\n9,,NA,\n10,,,\n"),
        ("c.csv", b"id,x,y,z\n1,0.5,,\n1,2\n"),
        ("d.csv", b"id,x,y,z\n2,1,7,\n"),
    ]);
    let source = find(folder.path(), "*.csv", &Hints::default()).expect("CSV");
    let named = [("id", Kind::I64), ("x", Kind::F64), ("y", Kind::I64), ("z", Kind::Utf8)];
    assert_eq!(kinds(&source), named);
    assert!(source.schema.columns[..3].iter().all(|column| column.nullable));
    let source = find(folder.path(), "*.csv", &schema("x utf8")).expect("CSV");
    assert_eq!(kinds(&source)[1], ("x", Kind::Utf8));
    // All rows have been parsed: no number can follow.
    assert_eq!(told(folder.path(), "*.csv", "z", &Hints::default()), Ok(vec![]));
    // One text among the values makes the column text.
    fs::write(folder.path().join("e.csv"), "id,x,y,z\n3,no,8,\n").expect("written");
    let source = find(folder.path(), "*.csv", &Hints::default()).expect("CSV");
    assert_eq!(kinds(&source)[1..3], [("x", Kind::Utf8), ("y", Kind::I64)]);
}

#[test]
fn a_column_without_a_value_in_the_first_mib_is_reported() {
    let late = "n,id\n".to_owned() + &",1\n".repeat(400_000) + "9,1\n10,1\n";
    let folder = folder(&[("late.csv", late.as_bytes())]);
    let asked = |items, hints: &Hints| told(folder.path(), "late.csv", items, hints).expect("good");
    let warnings = asked("max(n)", &Hints::default());
    let why = "late.csv: column n has no value in the first MiB of each file that was examined, and is read as \
             text: if it has numbers, declare it by --schema 'n f64'";
    assert!(warnings.len() == 1 && warnings[0].ends_with(why), "{warnings:?}");
    for (items, hints) in
        [("max(id)", Hints::default()), ("count(*)", Hints::default()), ("n", schema("n f64"))]
    {
        assert!(asked(items, &hints).is_empty(), "{items}");
    }
}

/// Rows that do not match the header count if no column is used, as behind the first MiB.
#[test]
fn bad_rows_are_errors_only_if_columns_are_used() {
    let folder = folder(&[("a.csv", b"a,b\n1,2\n3\n")]);
    let asked = |items| told(folder.path(), "a.csv", items, &Hints::default());
    assert_eq!(asked("count(*)"), Ok(vec![]));
    for items in ["a", "count(b)", "count(*), max(a)"] {
        let error = asked(items).expect_err("a bad row");
        assert!(error.ends_with("a.csv: the row at byte 8 has 1 fields instead of 2"), "{error}");
    }
}

#[test]
fn line_ends_inside_quotes_are_reported() {
    let folder = folder(&[
        ("row.csv", b"id,name\n1,\"my\nname\"\n"),
        ("header.csv", b"\"my\nname\"\n1\n"),
        ("good.csv", b"id,\"my \"\"n\"\"\"\n1,\"a,\"\"\"\n"),
    ]);
    let found = |name| find(folder.path(), name, &Hints::default());
    let row = found("row.csv").expect_err("a quote");
    assert!(row.contains("the row at byte 8 has a quote that is not closed in its line"), "{row}");
    let header = found("header.csv").expect_err("a quote");
    assert!(header.contains("its first line has a quote that is not closed"), "{header}");
    assert_eq!(kinds(&found("good.csv").expect("CSV"))[1], ("my \"n\"", Kind::Utf8));
}

#[test]
fn files_with_other_delimiters_are_refused() {
    let folder = folder(&[("a.csv", b"id\n1\n"), ("b.tsv", b"id\n2\n"), ("c.tsv", b"id\n3\n")]);
    let error = find(folder.path(), "[ab].*sv", &Hints::default()).expect_err("two delimiters");
    assert!(error.contains("b.tsv: its columns, header or delimiter"), "{error}");
    assert!(find(folder.path(), "*.tsv", &Hints::default()).is_ok());
    let hints = Hints { delimiter: Some(b';'), ..Hints::default() };
    assert_eq!(find(folder.path(), "*sv", &hints).expect("one delimiter").files.len(), 3);
}

#[test]
fn csv_options_are_refused_for_other_formats() {
    let array = npy("'<f4'", "(3,)", &[0; 12]);
    let folder = folder(&[("a.npy", &array), ("b.bin", &[0; 8]), ("c.arrow", b"")]);
    for (name, fields) in [("a.npy", None), ("b.bin", Some("id u64")), ("c.arrow", None)] {
        let hints = Hints { schema: fields.map(str::to_owned), ..Hints::default() };
        for hints in
            [Hints { delimiter: Some(b';'), ..hints.clone() }, Hints { no_header: true, ..hints }]
        {
            let error = find(folder.path(), name, &hints).expect_err("no CSV");
            assert!(error.contains("only CSV has a delimiter and a header line"), "{error}");
        }
    }
}

#[test]
fn appended_rows_are_in_the_next_query() {
    let array = npy("'<f4'", "(3,)", &[0; 12]);
    let folder = folder(&[("a.csv", b"a\n12"), ("r.bin", &[0; 16]), ("x.npy", &array)]);
    let append = |name: &str, bytes: &[u8]| {
        let old = fs::read(folder.path().join(name)).expect("a file");
        fs::write(folder.path().join(name), [&old, bytes].concat()).expect("written");
    };
    let sources = [
        find(folder.path(), "a.csv", &Hints::default()).expect("CSV"),
        find(folder.path(), "r.bin", &schema("n u64")).expect("records"),
        find(folder.path(), "x.npy", &Hints::default()).expect("an array"),
    ];
    let now = |at: usize| sources[at].now().map(|source| source.files[0].bytes);
    assert_eq!(now(0).expect("the same"), 4);
    append("a.csv", b"345\n6\n");
    append("r.bin", &[0; 8]);
    append("x.npy", &[0; 4]);
    assert_eq!((now(0).expect("longer"), now(1).expect("longer")), (10, 24));
    assert!(now(2).expect_err("its header is another").to_string().contains("made longer"));
    fs::write(folder.path().join("r.bin"), [0; 8]).expect("written");
    assert!(now(1).expect_err("shorter").to_string().contains("made shorter"));
    fs::write(folder.path().join("b.csv"), "b\n1,2,3,4,5\n").expect("written");
    fs::rename(folder.path().join("b.csv"), folder.path().join("a.csv")).expect("renamed");
    assert!(now(0).expect_err("another").to_string().contains("replaced by another file"));
    fs::remove_file(folder.path().join("a.csv")).expect("removed");
    assert!(now(0).expect_err("none").to_string().contains("cannot read"));
}

/// Programs write files anew in place: inode and length may stay.
#[test]
fn files_rewritten_with_another_header_are_refused() {
    let folder = folder(&[("a.csv", b"a,b\n1,2\n"), ("x.npy", &npy("'<f4'", "(3,)", &[0; 12]))]);
    let write =
        |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
    let sources = ["a.csv", "x.npy"]
        .map(|name| find(folder.path(), name, &Hints::default()).expect("a file"));
    write("a.csv", b"a,b\n3,4\n");
    write("x.npy", &npy("'<f4'", "(3,)", &[1; 12]));
    for source in &sources {
        source.now().expect("the same header");
    }
    write("a.csv", b"b,a\n3,4\n");
    write("x.npy", &npy("'<i4'", "(3,)", &[1; 12]));
    for source in &sources {
        let error = source.now().expect_err("another header").to_string();
        assert!(error.contains("rewritten with another header"), "{error}");
    }
}

#[test]
fn csv_of_carriage_returns_is_refused() {
    let long = b"id,name\r1,x\r".repeat(100_000);
    let folder = folder(&[
        ("a.csv", b"id,name\r1,x\r2,y\r"),
        ("long.csv", &long),
        ("mixed.csv", b"id,name\r1,x\n"),
        ("twice.csv", b"id,name\r\r\n1,x\r\n"),
        ("good.csv", b"id,\"na\rme\"\r\n1,x\r\n"),
        ("names.csv", b"id,name\r"),
    ]);
    for name in ["a.csv", "long.csv", "mixed.csv", "twice.csv"] {
        let refusal = find(folder.path(), name, &Hints::default()).expect_err("refused");
        assert!(refusal.contains("contains a carriage return"), "{name}: {refusal}");
    }
    for name in ["good.csv", "names.csv"] {
        assert!(find(folder.path(), name, &Hints::default()).is_ok(), "{name}");
    }
}

#[test]
fn pipes_are_refused_without_waiting() {
    let folder = folder(&[]);
    let pipe = folder.path().join("pipe.csv");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo starts").success());
    let error = find(folder.path(), "pipe.csv", &Hints::default()).expect_err("a pipe");
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn other_formats_are_refused_with_advice() {
    let folder = folder(&[("a.parquet", b"PAR1"), ("b.csv.gz", b"")]);
    let found = |name| find(folder.path(), name, &Hints::default()).expect_err("refused");
    assert!(found("a.parquet").contains("query it with DuckDB"));
    assert!(found("b.csv.gz").contains("decompress it first"));
}
