//! The cost of stages: gigabytes that one second of processor time processes, on this machine, including reads. `cargo
//! bench -p bpfof-query [-- MEGABYTES]`.

use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, UInt64Array};
use arrow_ipc::writer::FileWriter;
use bpfof_host::files::FileMaps;
use bpfof_query::infer::Source;
use bpfof_query::{
    Aggregate, CSV_NULLS, Column, Compare, Field, Format, Kind, Measure, OwnStages, Plan,
    Predicate, Reduction, Runner, Scalar, Schema, Settings, SourceFile, Stages, Value, parts,
};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn mix(row: u64) -> u64 {
    let z = (row ^ row >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

const KINDS: [(&str, Kind); 5] = [
    ("id", Kind::U64),
    ("zone", Kind::I32),
    ("amount", Kind::I32),
    ("fare", Kind::F64),
    ("time", Kind::I64),
];

fn row(row: u64) -> (u64, i32, i32, f64, i64) {
    let dice = mix(row);
    let fare = (dice >> 8) as u16 as f64 / 100.0;
    (row, (dice % 150) as i32, (dice >> 20) as i32 % 1000, fare, 1_600_000_000 + row as i64)
}

fn records(rows: u64) -> (Format, Vec<u8>) {
    let mut bytes = Vec::with_capacity(rows as usize * 32);
    for (id, zone, amount, fare, time) in (0..rows).map(row) {
        bytes.extend(id.to_le_bytes());
        bytes.extend(zone.to_le_bytes());
        bytes.extend(amount.to_le_bytes());
        bytes.extend(fare.to_le_bytes());
        bytes.extend(time.to_le_bytes());
    }
    let places = [(0, 8), (8, 4), (12, 4), (16, 8), (24, 8)];
    let fields = places.map(|(offset_bytes, width_bytes)| Field { offset_bytes, width_bytes });
    (Format::Fixed { header_bytes: 0, record_bytes: 32, fields: fields.to_vec() }, bytes)
}

fn lines(rows: u64) -> (Format, Vec<u8>) {
    let mut text = String::new();
    for (id, zone, amount, fare, time) in (0..rows).map(row) {
        let _ = writeln!(text, "{id},{zone},{amount},{fare},{time},some text that nobody asks for");
    }
    let nulls = CSV_NULLS.map(str::to_owned).to_vec();
    (Format::Csv { delimiter: b',', header_bytes: 0, nulls }, text.into_bytes())
}

/// Batches of 65,536 rows, as in Feather files.
fn columns(rows: u64) -> (Format, Vec<u8>) {
    let batch = |from: u64| {
        let all = || (from..rows.min(from + (1 << 16))).map(row);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(UInt64Array::from_iter_values(all().map(|row| row.0)))),
            ("zone", Arc::new(Int32Array::from_iter_values(all().map(|row| row.1)))),
            ("amount", Arc::new(Int32Array::from_iter_values(all().map(|row| row.2)))),
            ("fare", Arc::new(Float64Array::from_iter_values(all().map(|row| row.3)))),
            ("time", Arc::new(Int64Array::from_iter_values(all().map(|row| row.4)))),
        ];
        RecordBatch::try_from_iter(columns).expect("of one length")
    };
    let mut writer = FileWriter::try_new(Vec::new(), &batch(0).schema()).expect("memory");
    for from in (0..rows).step_by(1 << 16) {
        writer.write(&batch(from)).expect("memory");
    }
    let bytes = writer.into_inner().expect("memory");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.arrow");
    std::fs::write(&path, &bytes).expect("room");
    let source = Source::find(&[path.to_str().expect("UTF-8").to_owned()], &Default::default());
    (source.expect("an Arrow file").format, bytes)
}

fn of(measure: Measure, column: usize) -> Aggregate {
    Aggregate { measure, of: Scalar::Column(column) }
}

fn compares(column: usize, compare: Compare, with: i128) -> Predicate {
    Predicate::Compare(compare, Scalar::Column(column), Scalar::Literal(Value::Int(with)))
}

/// Name, filter and reduction of each query.
fn queries() -> Vec<(&'static str, Predicate, Reduction)> {
    let always = Predicate::Constant(true);
    let half =
        Predicate::And(vec![compares(1, Compare::AtLeast, 10), compares(2, Compare::Less, 500)]);
    let wide = Predicate::And(vec![
        compares(0, Compare::AtLeast, 10_000),
        compares(4, Compare::Less, 1_600_000_000 + 2_000_000),
    ]);
    let groups = |keys, aggregates| Reduction::Groups { keys, aggregates };
    let five = |column| {
        let all = [Measure::CountAll, Measure::Sum, Measure::Min, Measure::Max, Measure::Mean];
        all.map(|measure| of(measure, column)).to_vec()
    };
    let zone = || vec![Scalar::Column(1)];
    let top = Reduction::Top {
        by: Scalar::Column(3),
        descending: true,
        count: 10,
        columns: vec![Scalar::Column(0), Scalar::Column(3)],
    };
    let histogram = Reduction::Histogram { of: Scalar::Column(3), low: 0.0, high: 700.0, bins: 64 };
    vec![
        ("count", always.clone(), groups(Vec::new(), vec![of(Measure::CountAll, 0)])),
        ("2 conditions, 5 of an integer", half.clone(), groups(Vec::new(), five(2))),
        ("2 conditions, 5 of a double", half, groups(Vec::new(), five(3))),
        ("150 groups, 5 of an integer", always.clone(), groups(zone(), five(2))),
        ("150 groups, 5 of a double", always.clone(), groups(zone(), five(3))),
        ("top 10 by a double", always.clone(), top),
        ("histogram of a double", always.clone(), histogram),
        ("2 conditions, 5 of 8 bytes", wide, groups(Vec::new(), five(4))),
    ]
}

fn measure(stages: &Stages<'_>, path: &Path, plan: &Plan) {
    let mut runner = Runner::new(stages, plan, Settings::default()).expect("a good plan");
    let file = SourceFile::at(path, &plan.format).expect("the file");
    let part = &parts(plan, &[file], u64::MAX)[0];
    let (cpu, start) = (cpu_s(), Instant::now());
    let partial = runner.run(part, &mut |_| true).expect("good rows");
    let (cpu, wall) = (cpu_s() - cpu, start.elapsed().as_secs_f64());
    let rows = partial.finish(plan).expect("of this plan").rows.len();
    let stats = runner.stats();
    // For Arrow, counts only the columns that are read.
    let gigabytes = stats.scanned_bytes as f64 * 1e-9;
    println!(
        "  {:6.2} GB/CPU-s  {:6.2} GB/s  {:7.0} bytes/hop  {rows:4} rows  {} chains, {} again",
        gigabytes / cpu,
        gigabytes / wall,
        stats.scanned_bytes as f64 / stats.hops as f64,
        stats.chains,
        stats.again,
    );
}

fn main() {
    let megabytes = std::env::args().filter_map(|argument| argument.parse().ok()).next();
    let megabytes: u64 = megabytes.unwrap_or(256);
    // Direct reads, if the file system supports them.
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let maps = FileMaps::local();
    let stages = Stages::new(&maps);
    for (name, (format, bytes)) in [
        ("Arrow", columns(megabytes * 31_250)),
        ("records of 32 bytes", records(megabytes * 31_250)),
        ("CSV", lines(megabytes * 14_000)),
    ] {
        let path = folder.path().join("rows");
        std::fs::write(&path, &bytes).expect("room");
        std::fs::File::open(&path).and_then(|file| file.sync_all()).expect("written");
        for (query, filter, reduction) in queries() {
            // A query that reads no column.
            let is_nothing = query == "count" && name == "Arrow";
            if is_nothing {
                continue;
            }
            let column = |(name, kind): (&str, Kind)| Column {
                name: name.to_owned(),
                kind,
                nullable: false,
            };
            let schema = Schema { columns: KINDS.map(column).to_vec() };
            let plan = Plan {
                schema,
                format: format.clone(),
                filter,
                reduction,
                own: OwnStages::default(),
            };
            println!("{name}: {query}");
            measure(&stages, &path, &plan);
        }
    }
}
