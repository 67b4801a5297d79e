//! The parts of the benchmark, and their queries.

use super::data::{AMOUNTS, RECORD_BYTES, SCHEMA};
use super::measure::{ARROW, Asked, Path, Row, in_turn};
use super::rig::{DEPTH, Link, Rig, Run};
use bpfof_query_bench::{Ask, Form, Plain, Query};
use bpfof_terminal::progress::ProgressBar;
use clap::ValueEnum;

type Failure = Box<dyn std::error::Error>;

/// The parts that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// A fold and returned rows, by the number of rows that pass: processor time of both sides, and bytes.
    Selectivity,
    /// Count, sum, groups, top, histogram, over records and CSV.
    Queries,
    /// Over links of 10 and 25 Gb/s and loopback, against DuckDB and pyarrow over plain reads.
    Network,
    /// One function against the same work as two and three functions, by the size of reads (e2BPF, figure 6.4).
    Composed,
    /// Loading, reading, filtering, sending, by the size of the file and by the filter factor (e2BPF, figures 6.7 to
    /// 6.9).
    Stacked,
    /// A query of a file of 1 MiB.
    Small,
}

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) repetitions: usize,
    pub(super) is_quick: bool,
}

/// Selectivities, in rows of a thousand.
const SELECTIVITIES: [i32; 8] = [0, 1, 10, 100, 250, 500, 750, 1000];
/// The selectivities for which rows are returned.
const ROWS: [i32; 3] = [1, 10, 100];
/// Sizes of reads for one function, and for the same work as two and three functions.
const BLOCKS: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 57344];
/// The percentages that a filter removes, as in e2BPF.
const FILTER_FACTORS: [i32; 5] = [0, 25, 50, 75, 100];
/// Rows of a thousand that pass where the number does not matter: a half.
const HALF: i32 = 500;
/// How often the small file is queried, and the stages are loaded.
const SMALL_TIMES: usize = 50;

/// Sizes of files for the stacked cost: in steps of 16 MB, as in e2BPF.
pub(super) fn sizes(is_quick: bool) -> Vec<u64> {
    let count = if is_quick { 1 } else { 7 };
    (1..=count).map(|step| step * (16 << 20)).collect()
}

fn chosen<T: Copy>(all: &[T], is_quick: bool) -> Vec<T> {
    if is_quick { all.iter().step_by(3).copied().collect() } else { all.to_vec() }
}

/// A format of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Records,
    Csv,
    Arrow,
}

impl Format {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Format::Records => "records",
            Format::Csv => "csv",
            Format::Arrow => ARROW,
        }
    }

    fn schema(self) -> Option<String> {
        (self == Format::Records).then(|| SCHEMA.to_owned())
    }

    fn file(self, rig: &Rig) -> (std::path::PathBuf, u64) {
        match self {
            Format::Records => (rig.files.records.clone(), rig.files.bytes),
            Format::Csv => (rig.files.csv.clone(), rig.files.csv_bytes),
            Format::Arrow => (rig.files.arrow.clone().unwrap_or_default(), rig.files.bytes),
        }
    }
}

/// Five aggregates after two conditions.
fn fold(below: i32) -> String {
    format!(
        "SELECT count(*), sum(amount), min(amount), max(amount), avg(amount) FROM rows \
         WHERE zone >= 10 AND amount < {below}"
    )
}

/// The same without the average, which adds no information, for all engines.
fn fold_for_engines(below: i32) -> String {
    format!(
        "SELECT count(*), sum(amount), min(amount), max(amount) FROM rows WHERE zone >= 10 AND amount < {below}"
    )
}

/// Replaces `FROM rows` with the file.
fn of_file(sql: &str, file: &std::path::Path) -> String {
    sql.replace("FROM rows", &format!("FROM '{}'", file.display()))
}

fn query(
    sql: &str,
    file: &std::path::Path,
    format: Format,
    form: Form,
    block: Option<u32>,
) -> Query {
    Query {
        sql: of_file(sql, file),
        schema: format.schema(),
        form,
        chains: DEPTH,
        block_max_bytes: block,
    }
}

fn pushed<'a>(link: Link, query: Query) -> Path<'a> {
    ("pushed", Box::new(move |rig: &mut Rig| rig.ask(link, &Ask::Query(query.clone()))))
}

fn plainly<'a>(name: &'static str, link: Link, file: std::path::PathBuf, plain: Plain) -> Path<'a> {
    let ask = Ask::Plain { path: file, depth: DEPTH, plain };
    (name, Box::new(move |rig: &mut Rig| rig.ask(link, &ask)))
}

fn asked(part: &'static str, format: Format, query: &str, link: Link, bytes: u64) -> Asked {
    let rows = (format == Format::Records).then_some(bytes / RECORD_BYTES);
    let query = query.to_owned();
    Asked { part, format: format.name(), query, link, block_bytes: None, file_bytes: bytes, rows }
}

/// A fold by selectivity: pushed down, with the same stages on the host, and by compiled code on the host; and returned
/// rows.
pub(super) fn selectivity(
    rig: &mut Rig,
    extent: Extent,
    bar: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let (file, bytes) = Format::Records.file(rig);
    let link = Link::Loopback;
    for below in chosen(&SELECTIVITIES, extent.is_quick) {
        bar.set_message(format!("a fold of {} % of the rows", f64::from(below) / 10.0));
        let make = |form| query(&fold(below), &file, Format::Records, form, None);
        let mut paths = [
            pushed(link, make(Form::Stages)),
            plainly("stages here", link, file.clone(), Plain::Stages(make(Form::Fused))),
            plainly("plain", link, file.clone(), Plain::Filter { below }),
            plainly("reads", link, file.clone(), Plain::Discard),
        ];
        let asked = asked("selectivity", Format::Records, "fold", link, bytes);
        let turn = in_turn(rig, &asked, &mut paths, extent.repetitions)?;
        let mut told = turn.iter().filter_map(|row| row.selectivity);
        if told.next().is_some_and(|first| told.any(|other| other != first)) {
            return Err(format!("the paths do not find the same rows: {turn:?}").into());
        }
        rows.extend(turn);
        bar.inc(1);
    }
    for below in chosen(&ROWS, extent.is_quick) {
        bar.set_message(format!("{} % of the rows", f64::from(below) / 10.0));
        let sql = format!("SELECT id, fare FROM rows WHERE zone >= 10 AND amount < {below}");
        let mut paths = [
            pushed(link, query(&sql, &file, Format::Records, Form::Stages, None)),
            plainly("plain", link, file.clone(), Plain::Filter { below }),
        ];
        let asked = asked("selectivity", Format::Records, "rows", link, bytes);
        rows.extend(in_turn(rig, &asked, &mut paths, extent.repetitions)?);
        bar.inc(1);
    }
    Ok(rows)
}

/// Names and SQL of the queries. Those that reduce little are last.
const QUERIES: [(&str, &str); 8] = [
    ("count", "SELECT count(*) FROM rows WHERE amount < 500"),
    ("sum", "SELECT sum(amount) FROM rows"),
    (
        "5 aggregates",
        "SELECT count(*), sum(fare), min(fare), max(fare), avg(fare) FROM rows WHERE zone >= 10 AND amount < 500",
    ),
    ("10 groups", "SELECT kind, count(*), sum(amount) FROM rows GROUP BY kind"),
    ("150 groups", "SELECT zone, count(*), sum(amount) FROM rows GROUP BY zone"),
    ("top 10", "SELECT id, fare FROM rows ORDER BY fare DESC LIMIT 10"),
    ("histogram", "SELECT histogram(fare, 0, 700, 64) FROM rows"),
    ("100,000 groups", "SELECT customer, count(*) FROM rows GROUP BY customer"),
];
/// The query that reduces least.
pub(super) const MANY_GROUPS: &str = "100,000 groups";

/// Each query, on each format.
pub(super) fn queries(
    rig: &mut Rig,
    extent: Extent,
    bar: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let link = Link::Loopback;
    let arrow = rig.files.arrow.as_ref().map(|_| Format::Arrow);
    for format in [Format::Records, Format::Csv].into_iter().chain(arrow) {
        let (file, bytes) = format.file(rig);
        for (name, sql) in QUERIES {
            bar.set_message(format!("{name} of {}", format.name()));
            let asked = asked("queries", format, name, link, bytes);
            // The records of many groups are all sent: one repetition is enough.
            let repetitions = if name == MANY_GROUPS { 1 } else { extent.repetitions };
            let mut paths = [
                pushed(link, query(sql, &file, format, Form::Stages, None)),
                plainly("reads", link, file.clone(), Plain::Discard),
            ];
            rows.extend(in_turn(rig, &asked, &mut paths, repetitions)?);
            bar.inc(1);
        }
        let mut paths = [pushed(link, query(&fold(HALF), &file, format, Form::Stages, None))];
        let asked = asked("queries", format, "fold of a half", link, bytes);
        rows.extend(in_turn(rig, &asked, &mut paths, extent.repetitions)?);
    }
    Ok(rows)
}

/// The fold over each link, against other engines over plain reads.
pub(super) fn network(
    rig: &mut Rig,
    extent: Extent,
    bar: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let has_engines = rig.engine_versions().is_some();
    let links = [Link::Ten, Link::TwentyFive, Link::Loopback];
    for link in links {
        rig.choose(link)?;
        for format in [Format::Records, Format::Csv] {
            bar.set_message(format!("{} over {}", format.name(), link.name()));
            let (file, bytes) = format.file(rig);
            let question = query(&fold_for_engines(HALF), &file, format, Form::Stages, None);
            let expected = numbers(&rig.ask(link, &Ask::Query(question.clone()))?)?;
            let mut paths =
                vec![pushed(link, question), plainly("reads", link, file.clone(), Plain::Discard)];
            if format == Format::Records {
                paths.push(plainly("plain", link, file.clone(), Plain::Filter { below: HALF }));
            }
            for engine in ["duckdb", "pyarrow"].into_iter().filter(|_| has_engines) {
                let (file, expected) = (file.clone(), expected.clone());
                let ask = move |rig: &mut Rig| {
                    let sql = fold_for_engines(HALF);
                    let (run, answer) =
                        rig.ask_engine(link, engine, (format.name(), &file), (&sql, HALF))?;
                    if answer != expected {
                        return Err(format!("its answer is {answer:?}, ours {expected:?}").into());
                    }
                    Ok(run)
                };
                paths.push((engine, Box::new(ask)));
            }
            let asked = asked("network", format, "fold of a half", link, bytes);
            rows.extend(in_turn(rig, &asked, &mut paths, extent.repetitions)?);
            bar.inc(1);
        }
    }
    Ok(rows)
}

/// The numbers of an answer of one row, in order.
fn numbers(run: &Run) -> Result<Vec<f64>, Failure> {
    let text = &run.cost.answer;
    let value: serde_json::Value = serde_json::from_str(text)?;
    let row = value.get(0).and_then(|row| row.as_object()).ok_or("the answer has no row")?;
    let of = |name: &str| row.get(name).and_then(serde_json::Value::as_f64);
    let all: Option<Vec<f64>> =
        ["count(*)", "sum(amount)", "min(amount)", "max(amount)"].into_iter().map(of).collect();
    Ok(all.ok_or_else(|| format!("the answer is {text}"))?)
}

/// The same work as one function, as two and as three, by the size of reads (figure 6.4 of the thesis).
pub(super) fn composed(
    rig: &mut Rig,
    extent: Extent,
    bar: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let (file, bytes) = Format::Records.file(rig);
    let link = Link::Loopback;
    let forms = [
        ("one function", Form::Fused),
        ("two functions", Form::Selected),
        ("three functions", Form::Stages),
        ("reads only", Form::Read),
    ];
    for block in chosen(&BLOCKS, extent.is_quick).into_iter().rev() {
        bar.set_message(format!("functions on {block} bytes"));
        let mut paths: Vec<Path<'_>> = Vec::new();
        for (name, form) in forms {
            let query = query(&fold(HALF), &file, Format::Records, form, Some(block));
            paths.push((name, Box::new(move |rig| rig.ask(link, &Ask::Query(query.clone())))));
        }
        let mut asked = asked("composed", Format::Records, "fold of a half", link, bytes);
        asked.block_bytes = Some(block);
        rows.extend(in_turn(rig, &asked, &mut paths, extent.repetitions)?);
        bar.inc(1);
    }
    Ok(rows)
}

/// The parts of the time of a query of one chain, and of the same query over plain reads (figures 6.7 to 6.9 of the
/// thesis): by the size of the file, and by the filter factor.
pub(super) fn stacked(
    rig: &mut Rig,
    extent: Extent,
    bar: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let link = Link::Loopback;
    for bytes in sizes(extent.is_quick) {
        let file = rig.sized(bytes);
        for factor in FILTER_FACTORS {
            bar.set_message(format!("{} MiB, {factor} % filtered", bytes >> 20));
            let below = AMOUNTS * (100 - factor) / 100;
            let one = |form| {
                let query = query(&fold(below), &file, Format::Records, form, None);
                Ask::Query(Query { chains: 1, ..query })
            };
            let (whole, reads) = (one(Form::Stages), one(Form::Read));
            let filter =
                Ask::Plain { path: file.clone(), depth: 1, plain: Plain::Filter { below } };
            let discard = Ask::Plain { path: file.clone(), depth: 1, plain: Plain::Discard };
            let mut paths: Vec<Path<'_>> = Vec::new();
            for (name, ask) in [
                ("load", Ask::Load),
                ("pushed", whole),
                ("reads at the target", reads),
                ("plain", filter),
                ("plain reads", discard),
            ] {
                paths.push((name, Box::new(move |rig| rig.ask(link, &ask))));
            }
            let query = format!("ff{factor}");
            let asked = asked("stacked", Format::Records, &query, link, bytes);
            rows.extend(in_turn(rig, &asked, &mut paths, extent.repetitions)?);
            bar.inc(1);
        }
    }
    Ok(rows)
}

/// A query of a file of 1 MiB, by a connected process.
pub(super) fn small(rig: &mut Rig, extent: Extent, bar: &ProgressBar) -> Result<Vec<Row>, Failure> {
    bar.set_message("a small file".to_owned());
    let (file, link) = (rig.files.small.clone(), Link::Loopback);
    let bytes = std::fs::metadata(&file)?.len();
    let mut paths = [pushed(link, query(&fold(HALF), &file, Format::Records, Form::Stages, None))];
    let asked = asked("small", Format::Records, "fold of a half", link, bytes);
    let times = if extent.is_quick { 3 } else { SMALL_TIMES };
    let rows = in_turn(rig, &asked, &mut paths, times);
    bar.inc(1);
    rows
}

/// Number of steps of a part, for progress.
pub(super) fn steps(part: Part, is_quick: bool) -> usize {
    let of = |length: usize| if is_quick { length.div_ceil(3) } else { length };
    match part {
        Part::Selectivity => of(SELECTIVITIES.len()) + of(ROWS.len()),
        Part::Queries => 3 * QUERIES.len(),
        Part::Network => 6,
        Part::Composed => of(BLOCKS.len()),
        Part::Stacked => sizes(is_quick).len() * FILTER_FACTORS.len(),
        Part::Small => 1,
    }
}
