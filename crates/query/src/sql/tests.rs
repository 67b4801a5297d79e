//! Statements, their plans and their refusals.

use super::{Question, SqlError, Statement};
use crate::plan::{
    Aggregate, AnswerKind, Arithmetic, Column, Compare, Format, Kind, Measure, Predicate,
    Reduction, Scalar, Schema, Table, Value,
};

fn schema() -> Schema {
    let column =
        |(name, kind): (&str, Kind)| Column { name: name.to_owned(), kind, nullable: false };
    let columns =
        [("id", Kind::U64), ("zone", Kind::I32), ("fare", Kind::F64), ("vendor", Kind::Utf8)];
    Schema { columns: columns.into_iter().map(column).collect() }
}

fn ask(text: &str) -> Result<Question, SqlError> {
    let format = Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() };
    Statement::parse(text)?.bind(&schema(), &format)
}

fn question(text: &str) -> Question {
    ask(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    ask(text).map(|question| panic!("{text}: {question:?}")).unwrap_err().to_string()
}

fn filter(condition: &str) -> Predicate {
    question(&format!("SELECT * FROM 'a' WHERE {condition}")).plan().filter.clone()
}

fn int(value: i128) -> Scalar {
    Scalar::Literal(Value::Int(value))
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

#[test]
fn files_are_named_in_quotes() {
    let files = |text: &str| Statement::parse(text).expect("a statement").files().to_vec();
    assert_eq!(files("SELECT * FROM '/mnt/d/a-*.csv'"), ["/mnt/d/a-*.csv"]);
    assert_eq!(files("select count(*) from files('a', 'b*') as t;"), ["a", "b*"]);
    assert!(refusal("SELECT * FROM trips").contains("FROM trips is not a file: write FROM 'FILE'"));
    assert!(refusal("SELECT 1").contains("names no files"));
    assert!(refusal("SELECT * FROM read_csv('a')").contains("read_csv() is not supported"));
    assert!(refusal("SELECT * FROM files()").contains("paths in quotes"));
}

#[test]
fn rows() {
    let asked =
        question("SELECT *, fare * 2 AS twice FROM 'a' AS t WHERE t.zone = 3 LIMIT 10 OFFSET 5");
    assert_eq!(asked.names(), ["id", "zone", "fare", "vendor", "twice"]);
    assert!(asked.streams());
    let twice =
        Scalar::Arithmetic(Arithmetic::Multiply, Box::new(Scalar::Column(2)), Box::new(int(2)));
    let columns = (0..4).map(Scalar::Column).chain([twice]).collect();
    assert_eq!(asked.plan().reduction, Reduction::Rows { columns, limit: Some(15) });
    assert_eq!(asked.plan().filter, Predicate::Compare(Compare::Equal, Scalar::Column(1), int(3)));
}

#[test]
fn one_key_of_order_with_a_limit_is_the_top() {
    let asked = question("SELECT id FROM 'a' ORDER BY fare DESC LIMIT 3 OFFSET 1");
    let (by, columns) = (Scalar::Column(2), vec![Scalar::Column(0)]);
    assert_eq!(asked.plan().reduction, Reduction::Top { by, descending: true, count: 4, columns });
    let none = question("SELECT id FROM 'a' ORDER BY fare LIMIT 0");
    let columns = vec![Scalar::Column(0)];
    assert_eq!(none.plan().reduction, Reduction::Rows { columns, limit: Some(0) });
    for sorted_here in [
        "SELECT id FROM 'a' ORDER BY fare",
        "SELECT id FROM 'a' ORDER BY fare, id LIMIT 3",
        "SELECT id FROM 'a' ORDER BY fare NULLS FIRST LIMIT 3",
    ] {
        let asked = question(sorted_here);
        assert!(
            matches!(asked.plan().reduction, Reduction::Rows { limit: None, .. }),
            "{sorted_here}"
        );
        assert!(!asked.streams());
        assert_eq!(asked.names(), ["id"]);
    }
}

#[test]
fn groups() {
    let asked = question(
        "SELECT zone, count(*), sum(fare) AS total, sum(fare) / count(*) FROM 'a' GROUP BY 1 \
         HAVING count(*) > 1 AND max(id) < 9 ORDER BY total DESC, count(*)",
    );
    assert_eq!(asked.names(), ["zone", "count(*)", "total", "sum(fare) / count(*)"]);
    let of = |measure, of| Aggregate { measure, of };
    assert_eq!(
        asked.plan().reduction,
        Reduction::Groups {
            keys: vec![Scalar::Column(1)],
            aggregates: vec![
                of(Measure::CountAll, int(1)),
                of(Measure::Sum, Scalar::Column(2)),
                of(Measure::Max, Scalar::Column(0)),
            ],
        }
    );
    let row = |zone, count, sum, max| {
        [zone, count]
            .map(Value::Int)
            .into_iter()
            .chain([Value::Float(sum), Value::Int(max)])
            .collect()
    };
    let same = AnswerKind::Same;
    let table = Table {
        kinds: vec![same(Kind::I32), AnswerKind::Count, AnswerKind::Float, same(Kind::U64)],
        rows: vec![
            row(1, 1, 9.0, 1),
            row(2, 2, 3.0, 2),
            row(3, 4, 5.0, 3),
            row(4, 4, 5.0, 9),
            row(5, 2, 5.0, 3),
        ],
    };
    let answer = asked.answers().next(table).expect("no overflow");
    assert_eq!(answer.kinds[3], AnswerKind::Float);
    let zones: Vec<&Value> = answer.rows.iter().map(|row| &row[0]).collect();
    assert_eq!(zones, [&Value::Int(5), &Value::Int(3), &Value::Int(2)]);
    assert_eq!(answer.rows[1][3], Value::Float(1.25));
}

#[test]
fn distinct_and_group_by_all_are_groups() {
    let keys = vec![Scalar::Column(3), Scalar::Column(1)];
    let asked = question("SELECT DISTINCT vendor, zone FROM 'a'");
    assert_eq!(
        asked.plan().reduction,
        Reduction::Groups { keys: keys.clone(), aggregates: vec![] }
    );
    let asked = question("SELECT vendor, zone, avg(fare) FROM 'a' GROUP BY ALL");
    let mean = Aggregate { measure: Measure::Mean, of: Scalar::Column(2) };
    assert_eq!(asked.plan().reduction, Reduction::Groups { keys, aggregates: vec![mean] });
    let asked = question("SELECT zone / 10 AS tens, stddev(fare) FROM 'a' GROUP BY tens");
    let Reduction::Groups { keys, .. } = &asked.plan().reduction else { panic!("groups") };
    assert!(matches!(keys[..], [Scalar::Arithmetic(Arithmetic::Divide, ..)]));
}

/// As for columns: an exact match first, else regardless of case.
#[test]
fn names_of_items_are_found_as_those_of_columns() {
    let by = |text: &str| match &question(text).plan().reduction {
        Reduction::Top { by, .. } => by.clone(),
        other => panic!("{text}: {other:?}"),
    };
    let negative = by("SELECT -1 * fare AS x FROM 'a' ORDER BY x LIMIT 1");
    assert_eq!(by("SELECT -1 * fare AS Fare FROM 'a' ORDER BY fare LIMIT 1"), negative);
    let fare = Scalar::Column(2);
    assert_eq!(by("SELECT -1 * fare AS Fare FROM 'a' ORDER BY \"fare\" LIMIT 1"), fare);
    assert_eq!(by("SELECT -1 * fare AS Fare, fare FROM 'a' ORDER BY fare LIMIT 1"), fare);
    // The name is ambiguous.
    assert_eq!(by("SELECT -1 * fare AS Fare, 1 AS FARE FROM 'a' ORDER BY fare LIMIT 1"), fare);
    let asked = question("SELECT zone, count(*) AS Trips FROM 'a' GROUP BY zone ORDER BY trips");
    assert_eq!(asked.names(), ["zone", "Trips"]);
    let asked = question("SELECT zone / 10 AS Tens, count(*) FROM 'a' GROUP BY tens");
    let Reduction::Groups { keys, .. } = &asked.plan().reduction else { panic!("groups") };
    assert!(matches!(keys[..], [Scalar::Arithmetic(Arithmetic::Divide, ..)]));
}

#[test]
fn counts_of_constants_are_counts_of_rows() {
    let aggregates = |text: &str| match &question(text).plan().reduction {
        Reduction::Groups { aggregates, .. } => aggregates.clone(),
        other => panic!("{text}: {other:?}"),
    };
    let all = vec![Aggregate { measure: Measure::CountAll, of: int(1) }];
    for count in ["count(1)", "count('x')", "count(1), count(*), count(2.5)"] {
        assert_eq!(aggregates(&format!("SELECT {count} FROM 'a'")), all, "{count}");
    }
    assert_eq!(aggregates("SELECT count(NULL) FROM 'a'")[0].measure, Measure::Count);
}

#[test]
fn zeroes_of_both_signs_are_different_constants() {
    let asked = question(
        "SELECT sum(fare / 0.0), sum(fare / -0.0), sum(fare / -0.0), sum(fare / 0.0) FROM 'a'",
    );
    let Reduction::Groups { aggregates, .. } = &asked.plan().reduction else { panic!("groups") };
    assert_eq!(aggregates.len(), 2);
    let quotient = |zero: f64| {
        let zero = Box::new(Scalar::Literal(Value::Float(zero)));
        Scalar::Arithmetic(Arithmetic::Divide, Box::new(Scalar::Column(2)), zero)
    };
    assert!(aggregates[0].of.is(&quotient(0.0)) && aggregates[1].of.is(&quotient(-0.0)));
    assert!(!aggregates[0].of.is(&quotient(-0.0)));
}

#[test]
fn integers_that_may_leave_64_bits_are_known() {
    let wide = |items: &str| question(&format!("SELECT {items} FROM 'a'")).wide_integers();
    // zone has 32 bits, id 64 without a sign.
    assert_eq!(wide("zone * zone, zone * zone * zone, zone + 1"), [false, true, false]);
    assert_eq!(wide("id, id + 1, fare, fare * 2"), [true, true, false, false]);
    assert_eq!(wide("CAST(id + 1 AS BIGINT), 7"), [false, false]);
    assert_eq!(wide("id * id * id * id * id"), [true]);
}

#[test]
fn histograms() {
    let asked = question("SELECT histogram(fare, 0, 100.5, 64) FROM 'a'");
    let of = Scalar::Column(2);
    assert_eq!(
        asked.plan().reduction,
        Reduction::Histogram { of, low: 0.0, high: 100.5, bins: 64 }
    );
    assert_eq!(asked.names(), ["low", "high", "count"]);
    assert!(refusal("SELECT histogram(fare, 1, 1, 64) FROM 'a'").contains("LOW below HIGH"));
    assert!(refusal("SELECT histogram(fare, 0, 1, 64) AS h FROM 'a'").contains("and AS"));
    assert!(refusal("SELECT histogram(vendor, 0, 1, 64) FROM 'a'").contains("vendor is text"));
}

#[test]
fn conditions() {
    use Predicate::{And, Constant, In, IsNan, IsNull, Not, Or, StartsWith};
    let column = Scalar::Column;
    let compare = |op, column, value| Predicate::Compare(op, Scalar::Column(column), int(value));
    let one = || compare(Compare::Equal, 1, 1);
    let not = |predicate| Not(Box::new(predicate));
    let cases = [
        ("zone = 1 AND zone = 1 AND (zone = 1)", And(vec![one(), one(), one()])),
        ("zone = 1 OR NOT zone = 1", Or(vec![one(), not(one())])),
        ("ZONE <> -1", compare(Compare::NotEqual, 1, -1)),
        (
            "zone BETWEEN 1 AND 2",
            And(vec![compare(Compare::AtLeast, 1, 1), compare(Compare::AtMost, 1, 2)]),
        ),
        ("zone NOT IN (1, 2)", not(In(column(1), vec![Value::Int(1), Value::Int(2)]))),
        ("vendor IN ('a')", In(column(3), vec![text("a")])),
        ("vendor LIKE 'CM%'", StartsWith(column(3), "CM".to_owned())),
        ("starts_with(vendor, 'CM')", StartsWith(column(3), "CM".to_owned())),
        ("fare IS NOT NULL", not(IsNull(column(2)))),
        ("isnan(fare)", IsNan(column(2))),
        ("true", Constant(true)),
    ];
    for (condition, predicate) in cases {
        assert_eq!(filter(condition), predicate, "{condition}");
    }
    let time = filter("vendor >= TIMESTAMP '2020-09-14'");
    let literal = Scalar::Literal(text("2020-09-14"));
    assert_eq!(time, Predicate::Compare(Compare::AtLeast, column(3), literal));
}

/// A later time of a day is a longer text, and `T` and a space differ.
#[test]
fn times_are_compared_with_text_only_if_bytes_have_the_same_order() {
    let literal = || Scalar::Literal(text("2020-09-14"));
    let compare = |op| Predicate::Compare(op, Scalar::Column(3), literal());
    for (condition, op) in [
        ("vendor >= DATE '2020-09-14'", Compare::AtLeast),
        ("vendor < DATE '2020-09-14'", Compare::Less),
    ] {
        assert_eq!(filter(condition), compare(op), "{condition}");
    }
    let turned = Predicate::Compare(Compare::Greater, literal(), Scalar::Column(3));
    assert_eq!(filter("DATE '2020-09-14' > vendor"), turned);
    let refused = |condition: &str| refusal(&format!("SELECT * FROM 'a' WHERE {condition}"));
    for condition in [
        "vendor >= TIMESTAMP '2020-09-14 12:00:00'",
        "vendor < TIMESTAMP '2020-09-14T12:00:00'",
        "vendor >= DATE 'yesterday'",
        "vendor >= DATE '2020-9-4'",
        "vendor >= DATE '2020-02-30'",
        "vendor >= DATE ''",
    ] {
        let refusal = refused(condition);
        assert!(refusal.contains("write the text as it is in the files"), "{refusal}");
        assert!(refusal.contains("is not a day such as"), "{refusal}");
    }
    for condition in [
        "vendor = DATE '2020-09-14'",
        "vendor <> DATE '2020-09-14'",
        "vendor > DATE '2020-09-14'",
        "vendor <= TIMESTAMP '2020-09-14'",
        "DATE '2020-09-14' >= vendor",
        "vendor BETWEEN DATE '2020-09-14' AND DATE '2020-09-15'",
        "vendor IN (DATE '2020-09-14')",
    ] {
        let refusal = refused(condition);
        assert!(refusal.contains("by >= or <"), "{condition}: {refusal}");
    }
    assert!(refused("vendor LIKE DATE '2020-09-14'").contains("LIKE takes a constant"));
    assert!(refused("id >= DATE '2020-09-14'").contains("they cannot be compared"));
    assert!(refused("DATE '2020-09-14' > DATE '2020-09-13'").contains("constants"));
}

#[test]
fn unsupported_sql_is_refused_by_name() {
    let cases = [
        ("SELEKT 1", "not understood as SQL"),
        ("SELECT * FROM 'a'; SELECT * FROM 'b'", "one statement"),
        ("DELETE FROM 'a'", "DELETE is not supported: files can only be read"),
        ("WITH t AS (SELECT 1) SELECT * FROM t", "WITH is not supported"),
        ("SELECT * FROM 'a' UNION SELECT * FROM 'b'", "UNION is not supported"),
        ("SELECT * FROM 'a', 'b'", "JOIN is not supported"),
        ("SELECT * FROM 'a' JOIN 'b' ON true", "JOIN is not supported"),
        ("SELECT * FROM (SELECT * FROM 'a')", "FROM (SELECT * FROM 'a') is not supported"),
        ("SELECT a FROM 'a' AS t(b, a)", "a list of columns after FROM is not supported"),
        ("SELECT * FROM 'a' WITH ORDINALITY", "WITH after FROM is not supported"),
        ("SELECT id FROM 'a' WITH (NOLOCK)", "WITH after FROM is not supported"),
        ("SELECT * EXCLUDE (id) FROM 'a'", "is not supported: write *, or name the columns"),
        ("SELECT count(DISTINCT id) FROM 'a'", "count(DISTINCT id) is not supported"),
        ("SELECT sum(id) FILTER (WHERE zone = 1) FROM 'a'", "FILTER is not supported"),
        ("SELECT sum(id) OVER () FROM 'a'", "OVER (a window function) is not supported"),
        (
            "SELECT median(id) FROM 'a'",
            "the function median is not supported: aggregates are count",
        ),
        ("SELECT CASE WHEN id = 1 THEN 2 END FROM 'a'", "CASE is not supported"),
        ("SELECT CAST(id AS VARCHAR) FROM 'a'", "CAST AS VARCHAR is not supported"),
        ("SELECT CAST(id AS DOUBLE FORMAT '9') FROM 'a'", "FORMAT '9') is not supported"),
        ("SELECT CAST(vendor AS BIGINT) FROM 'a'", "vendor is text, but only numbers can be cast"),
        ("SELECT extract(year FROM id) FROM 'a'", "only dates and times have such parts"),
        ("SELECT date_trunc(id) FROM 'a'", "write date_trunc('PART', TIME)"),
        ("SELECT id FROM 'a' WHERE id IN (SELECT 1)", "a query inside a query is not supported"),
        ("SELECT id FROM 'a' WHERE vendor LIKE '%x'", "LIKE '%x' is not supported"),
        ("SELECT id FROM 'a' WHERE vendor ILIKE 'x%'", "ILIKE is not supported"),
        ("SELECT id FROM 'a' WHERE id % 2 = 0", "id % 2 is not supported"),
        ("SELECT id FROM 'a' WHERE id IN (1, NULL)", "NULL in a list of IN is not supported"),
        ("SELECT id FROM 'a' ORDER BY ALL", "ORDER BY ALL is not supported"),
        ("SELECT id FROM 'a' GROUP BY CUBE (id)", "is not supported"),
        ("SELECT id FROM 'a' QUALIFY id = 1", "QUALIFY is not supported"),
    ];
    for (text, expected) in cases {
        let refusal = refusal(text);
        assert!(refusal.contains(expected), "{text}: {refusal}");
    }
}

#[test]
fn invalid_statements_are_refused_with_advice() {
    let cases = [
        ("SELECT nope FROM 'a'", "there is no column nope; the columns are id, zone, fare, vendor"),
        ("SELECT \"ID\" FROM 'a'", "there is no column ID"),
        ("SELECT id FROM 'a' WHERE zone = '1'", "zone is an integer and '1' is text"),
        ("SELECT id FROM 'a' WHERE zone", "zone is not a condition"),
        ("SELECT sum(vendor) FROM 'a'", "vendor is text, but a number is needed"),
        ("SELECT vendor + 1 FROM 'a'", "vendor is text, but a number is needed"),
        ("SELECT zone, count(*) FROM 'a'", "zone differs within a group"),
        ("SELECT *, count(*) FROM 'a' GROUP BY zone", "instead of *"),
        ("SELECT id FROM 'a' WHERE sum(id) > 1", "is not allowed here"),
        ("SELECT sum(sum(id)) FROM 'a'", "is not allowed here"),
        ("SELECT date_trunc('day', max(id)) FROM 'a'", "max(id) is an integer, but only dates"),
        ("SELECT id FROM 'a' GROUP BY 2", "there is no column 2; the answer has 1"),
        ("SELECT id FROM 'a' LIMIT -1", "not a row count"),
        ("SELECT sum(id, 1) FROM 'a'", "sum takes one expression"),
        ("SELECT min(*) FROM 'a'", "min takes one expression"),
    ];
    for (text, expected) in cases {
        let refusal = refusal(text);
        assert!(refusal.contains(expected), "{text}: {refusal}");
    }
}

#[test]
fn some_of_many_columns_are_listed() {
    let column = |at| Column { name: format!("c{at}"), kind: Kind::I64, nullable: false };
    let refusal = |columns| {
        let schema = Schema { columns: (0..columns).map(column).collect() };
        let format = Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() };
        let statement = Statement::parse("SELECT nope FROM 'a'").expect("a statement");
        statement.bind(&schema, &format).expect_err("refused").to_string()
    };
    assert!(refusal(20).ends_with("c18, c19"));
    assert!(refusal(4000).ends_with("c18, c19 and 3980 more"));
}

#[test]
fn deep_and_long_statements_are_refused_or_fit() {
    let sum = |terms: usize| format!("SELECT {} FROM 'a'", vec!["1"; terms].join(" + "));
    assert!(ask(&sum(150)).is_ok());
    assert!(refusal(&sum(1000)).contains("deeper than 200 levels"));
    assert!(refusal(&sum(100_000)).contains("names and operators"));
    assert!(refusal(&format!("SELECT {}1", "(".repeat(3000))).contains("not understood"));
    let list = vec!["1234567"; 50_000].join(", ");
    assert!(
        matches!(filter(&format!("id IN ({list})")), Predicate::In(_, values) if values.len() == 50_000)
    );
    let all = vec!["id = 1"; 1000].join(" AND ");
    assert!(matches!(filter(&all), Predicate::And(all) if all.len() == 1000));
    assert!(refusal(&" ".repeat(2 << 20)).contains("at most 1048576"));
}

#[test]
fn rows_that_stream_are_counted_over_all_parts() {
    let asked = question("SELECT id FROM 'a' LIMIT 3 OFFSET 2");
    let part = |ids: std::ops::Range<i128>| Table {
        kinds: vec![AnswerKind::Same(Kind::U64)],
        rows: ids.map(|id| vec![Value::Int(id)]).collect(),
    };
    let mut answers = asked.answers();
    let mut ids = Vec::new();
    for range in [0..1, 1..3, 3..9] {
        ids.extend(answers.next(part(range)).expect("no arithmetic").rows);
    }
    assert_eq!(ids, part(2..5).rows);
}

#[test]
fn missing_values_and_nan_come_last() {
    let values = [Value::Null, Value::Float(f64::NAN), Value::Float(1.0), Value::Float(2.0)];
    for (order, expected) in [
        ("fare", ["1.0", "2.0", "NaN", "Null"]),
        ("fare DESC", ["2.0", "1.0", "NaN", "Null"]),
        ("fare DESC NULLS FIRST", ["Null", "2.0", "1.0", "NaN"]),
    ] {
        let asked = question(&format!("SELECT fare FROM 'a' ORDER BY {order}"));
        let kinds = vec![AnswerKind::Same(Kind::F64); 2];
        let rows = values.iter().map(|value| vec![value.clone(); 2]).collect();
        let answer = asked.answers().next(Table { kinds, rows }).expect("no arithmetic");
        let told = answer.rows.iter().map(|row| match &row[0] {
            Value::Float(value) => format!("{value:?}"),
            other => format!("{other:?}"),
        });
        assert_eq!(told.collect::<Vec<_>>(), expected, "{order}");
    }
}
