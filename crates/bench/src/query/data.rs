//! The queried files: the same rows as records and as CSV.

use std::io::{BufWriter, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::Path;

/// Fields of records, 32 bytes in total, in the form of `--schema`.
pub(super) const SCHEMA: &str = "id u64, zone i32, amount i32, fare f64, kind i32, customer i32";
pub(super) const RECORD_BYTES: u64 = 32;
const HEADER: &str = "id,zone,amount,fare,kind,customer,note\n";
/// Amounts are uniform below this.
pub(super) const AMOUNTS: i32 = 1000;
const ZONES: u64 = 150;
const KINDS: u64 = 10;
const CUSTOMERS: u64 = 100_000;

struct Row {
    id: u64,
    zone: i32,
    amount: i32,
    fare_cents: u64,
    kind: i32,
    customer: i32,
}

/// SplitMix64, seeded by the row's number.
fn dice(row: u64) -> u64 {
    let z = (row.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ (row >> 31);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn row(id: u64) -> Row {
    let (first, second) = (dice(id), dice(!id));
    Row {
        id,
        zone: (first % ZONES) as i32,
        amount: ((first >> 32) % AMOUNTS as u64) as i32,
        fare_cents: second & 0xffff,
        kind: ((second >> 16) % KINDS) as i32,
        customer: ((second >> 32) % CUSTOMERS) as i32,
    }
}

/// Is called now and then with the bytes written, and says whether to go on.
pub(super) type OnBytes<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// Writes records of this many bytes, a multiple of 32.
///
/// # Errors
/// Of the file; `Interrupted` if `on_bytes` has ended it.
pub(super) fn records(path: &Path, bytes: u64, on_bytes: OnBytes<'_>) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    for id in 0..bytes / RECORD_BYTES {
        let Row { zone, amount, fare_cents, kind, customer, .. } = row(id);
        file.write_all(&id.to_le_bytes())?;
        file.write_all(&zone.to_le_bytes())?;
        file.write_all(&amount.to_le_bytes())?;
        file.write_all(&(fare_cents as f64 / 100.0).to_le_bytes())?;
        file.write_all(&kind.to_le_bytes())?;
        file.write_all(&customer.to_le_bytes())?;
        if id % (1 << 15) == 0 {
            go_on(on_bytes(id * RECORD_BYTES))?;
        }
    }
    file.into_inner()?.sync_all()
}

fn go_on(flow: ControlFlow<()>) -> std::io::Result<()> {
    if flow.is_break() { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
}

/// Writes CSV of at least this many bytes, in whole lines.
///
/// # Errors
/// As [`records`].
pub(super) fn csv(path: &Path, bytes: u64, on_bytes: OnBytes<'_>) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    file.write_all(HEADER.as_bytes())?;
    let (mut written, mut line) = (HEADER.len() as u64, Vec::new());
    for id in 0.. {
        if written >= bytes {
            break;
        }
        let Row { id, zone, amount, fare_cents, kind, customer } = row(id);
        let (whole, cents) = (fare_cents / 100, fare_cents % 100);
        line.clear();
        writeln!(
            line,
            "{id},{zone},{amount},{whole}.{cents:02},{kind},{customer},some text that nobody asks for"
        )?;
        file.write_all(&line)?;
        written += line.len() as u64;
        if id % (1 << 15) == 0 {
            go_on(on_bytes(written))?;
        }
    }
    file.into_inner()?.sync_all()
}
