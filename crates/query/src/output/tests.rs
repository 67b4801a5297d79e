//! One answer in each style.

use super::arrow::{Arrow, check_texts};
use super::{Output, OutputError, Style};
use crate::plan::{AnswerKind, Kind, Table, Value};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float32Type, Int64Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::FileReader;
use arrow_schema::{DataType, Field};
use std::io::Cursor;

const NAMES: [&str; 4] = ["id", "vendor", "f", "sum(x)"];

fn table(sum: i128) -> Table {
    let same = AnswerKind::Same;
    let kinds = vec![same(Kind::U64), same(Kind::Utf8), same(Kind::F32), AnswerKind::Sum];
    let text = |text: &str| Value::Text(text.to_owned());
    let float = |value: f32| Value::Float(f64::from(value));
    let rows = vec![
        vec![Value::Int(u64::MAX.into()), text("a,\"b\"\u{1b}[2J"), float(0.1), Value::Int(sum)],
        vec![Value::Int(1), text(""), float(f32::NAN), Value::Null],
    ];
    Table { kinds, rows }
}

fn written(style: Style, tables: &[Table]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut output = Output::new(style, &NAMES, &mut bytes);
    tables.iter().for_each(|table| output.write(table).expect("written"));
    let rows: usize = tables.iter().map(|table| table.rows.len()).sum();
    assert_eq!(output.finish().expect("finished"), rows as u64);
    bytes
}

fn text(style: Style, tables: &[Table]) -> String {
    String::from_utf8(written(style, tables)).expect("UTF-8")
}

#[test]
fn tables_are_aligned_and_do_no_harm_to_terminals() {
    let expected = "                  id  vendor            f  sum(x)\n\
         ────────────────────  ──────────────  ───  ──────\n\
         18446744073709551615  a,\"b\"\\u{1b}[2J  0.1      -7\n                   1                  NaN    NULL\n";
    assert_eq!(text(Style::Table, &[table(-7)]), expected);
    let many = Table { rows: table(-7).rows.into_iter().cycle().take(2500).collect(), ..table(-7) };
    assert_eq!(text(Style::Table, &[many]).lines().count(), 2502);
    let none = Table { rows: Vec::new(), ..table(0) };
    assert_eq!(text(Style::Table, &[none]).lines().next(), Some("id  vendor  f  sum(x)"));
}

#[test]
fn csv_tells_empty_from_missing() {
    let expected =
        "id,vendor,f,sum(x)\n18446744073709551615,\"a,\"\"b\"\"\u{1b}[2J\",0.1,-7\n1,\"\",NaN,\n";
    assert_eq!(text(Style::Csv, &[table(-7)]), expected);
    assert_eq!(text(Style::Csv, &[]), "id,vendor,f,sum(x)\n");
}

#[test]
fn csv_has_a_line_for_each_row() {
    let kinds = vec![AnswerKind::Same(Kind::I64)];
    let table =
        Table { kinds, rows: [Value::Int(1), Value::Null].map(|value| vec![value]).to_vec() };
    let mut bytes = Vec::new();
    let mut output = Output::new(Style::Csv, &["n"], &mut bytes);
    output.write(&table).expect("written");
    output.finish().expect("finished");
    assert_eq!(String::from_utf8_lossy(&bytes), "n\n1\n\"\"\n");
}

#[test]
fn json_has_each_key_once() {
    let names = ["id", "id", "id_2", "n", "id"];
    let table = Table {
        kinds: vec![AnswerKind::Same(Kind::I64); 5],
        rows: vec![(0..5).map(Value::Int).collect()],
    };
    let mut bytes = Vec::new();
    let mut output = Output::new(Style::Json, &names, &mut bytes);
    output.write(&table).expect("written");
    output.finish().expect("finished");
    let expected = "[{\"id\":0,\"id_3\":1,\"id_2\":2,\"n\":3,\"id_4\":4}\n]\n";
    assert_eq!(String::from_utf8_lossy(&bytes), expected);
}

#[test]
fn json_is_json() {
    let printed = text(Style::Json, &[table(-7), table(8)]);
    let parsed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(parsed.as_array().map(Vec::len), Some(4));
    assert_eq!(parsed[0]["id"], u64::MAX);
    assert_eq!(parsed[0]["vendor"], "a,\"b\"\u{1b}[2J");
    assert_eq!(parsed[1]["f"], "NaN");
    assert!(parsed[1]["sum(x)"].is_null() && parsed[2]["sum(x)"] == 8);
    assert_eq!(text(Style::Json, &[]), "[]\n");
}

fn batches(bytes: Vec<u8>) -> Vec<RecordBatch> {
    let reader = FileReader::try_new(Cursor::new(bytes), None).expect("an Arrow file");
    reader.collect::<Result<_, _>>().expect("batches")
}

#[test]
fn arrow_files_have_the_types_of_the_columns() {
    let batches = batches(written(Style::Arrow, &[table(-7), table(8)]));
    let [first, second] = &batches[..] else { panic!("{batches:?}") };
    assert_eq!(first.column(0).as_primitive::<UInt64Type>().value(0), u64::MAX);
    assert_eq!(first.column(1).as_string::<i32>().value(1), "");
    assert!((first.column(2).as_primitive::<Float32Type>().value(0) - 0.1).abs() < f32::EPSILON);
    assert!(first.column(3).is_null(1));
    assert_eq!(second.column(3).as_primitive::<Int64Type>().value(0), 8);
}

#[test]
fn sums_beyond_64_bits_are_decimal_and_never_cut() {
    let large = i128::from(u64::MAX) * 4;
    let batches = batches(written(Style::Arrow, &[table(large)]));
    assert_eq!(batches[0].column(3).data_type(), &DataType::Decimal128(38, 0));
    assert_eq!(batches[0].column(3).as_primitive::<Decimal128Type>().value(0), large);
    let mut output = Output::new(Style::Arrow, &NAMES, Vec::new());
    output.write(&table(1)).expect("written");
    let refused = output.write(&table(large)).expect_err("does not fit");
    assert!(matches!(refused, OutputError::TooLarge { value, .. } if value == large), "{refused}");
}

#[test]
fn much_text_is_several_batches() {
    let table = table(-7);
    let rows = table.rows.iter().cycle().take(9).cloned().collect();
    let many = Table { rows, ..table };
    // Every other text has 9 bytes; those between are empty.
    for (most, sizes) in [(1 << 20, &[9][..]), (18, &[4, 4, 1]), (3, &[1, 1, 1, 1, 1, 1, 1, 1, 1])]
    {
        let mut bytes = Vec::new();
        let names = NAMES.map(str::to_owned).to_vec();
        let mut arrow = Arrow::with(names, &mut bytes, most);
        arrow.write(&many).expect("written");
        arrow.finish().expect("finished");
        let batches = batches(bytes);
        let found: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
        assert_eq!(found, sizes, "{most}");
        let texts: Vec<&str> =
            batches.iter().flat_map(|batch| batch.column(1).as_string::<i32>()).flatten().collect();
        let expected = many.rows.iter().map(|row| match &row[1] {
            Value::Text(text) => &**text,
            other => panic!("{other:?}"),
        });
        assert_eq!(texts, expected.collect::<Vec<_>>());
    }
    let field = Field::new("vendor", DataType::Utf8, true);
    assert!(check_texts(&field, 1, &many.rows, 45).is_ok());
    let refused = check_texts(&field, 1, &many.rows, 44).expect_err("does not fit");
    assert!(matches!(refused, OutputError::TooMuchText { bytes: 45, .. }), "{refused}");
}

/// The type and values of a streamed column of integers that comes in these parts, of which this
/// many bytes are kept.
fn streamed(parts: &[&[i128]], is_wide: bool, kept_max_bytes: usize) -> (DataType, Vec<i128>) {
    let mut bytes = Vec::new();
    let mut arrow =
        Arrow::new(vec!["n".to_owned()], &mut bytes).stream(vec![is_wide], Some(kept_max_bytes));
    for part in parts {
        let rows = part.iter().map(|number| vec![Value::Int(*number)]).collect();
        arrow.write(&Table { kinds: vec![AnswerKind::Sum], rows }).expect("written");
    }
    arrow.finish().expect("finished");
    let reader = FileReader::try_new(Cursor::new(bytes), None).expect("a file");
    let data_type = reader.schema().field(0).data_type().clone();
    let mut found = Vec::new();
    for batch in reader {
        let batch = batch.expect("a batch");
        let column = batch.column(0);
        match &data_type {
            DataType::Int64 => {
                found.extend(
                    column.as_primitive::<Int64Type>().values().iter().map(|n| i128::from(*n)),
                );
            }
            _ => found.extend(column.as_primitive::<Decimal128Type>().values()),
        }
    }
    (data_type, found)
}

/// Even if only the last part has some that do not fit.
#[test]
fn integers_of_streams_have_room_in_their_type() {
    let (small, large) = ([1_i128, 2], [i128::from(i64::MAX) + 1]);
    let decimal = DataType::Decimal128(38, 0);
    let all = |parts: &[&[i128]]| parts.concat();
    for (parts, is_wide, kept, expected) in [
        (&[&small[..], &large, &[]][..], true, 1 << 20, &decimal),
        (&[&small[..], &small, &[]], true, 1 << 20, &DataType::Int64),
        (&[&small[..], &small, &[]], false, 0, &DataType::Int64),
        // More than is kept: later values are not known.
        (&[&small[..], &small, &large], true, 0, &decimal),
        (&[&small[..], &small, &small], true, 100, &decimal),
        (&[&[][..]], true, 0, &DataType::Int64),
    ] {
        assert_eq!(streamed(parts, is_wide, kept), (expected.clone(), all(parts)), "{parts:?}");
    }
}
