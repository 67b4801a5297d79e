//! Example for the crate `rocksdb`: writes, reads everything back in three ways, and prints how the reads were served.
//! `lookup DATABASE SETTINGS`, with settings like `url=…;device=…`.

use rocksdb::{BlockBasedOptions, DB, IteratorMode, Options};
use std::time::Duration;

const KEYS: u64 = 50_000;
/// Keys of one `multi_get`.
const MANY: u64 = 32;

fn key(number: u64) -> String {
    format!("key {number:08}")
}

fn value(number: u64) -> Option<Vec<u8>> {
    (number < KEYS && number % 7 != 0).then(|| format!("value {}", number * number).into_bytes())
}

fn count(db: &DB, name: &str) -> Result<u64, rocksdb::Error> {
    Ok(db.property_int_value(name)?.unwrap_or_else(|| panic!("there is no property {name}")))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(settings)) = (arguments.next(), arguments.next()) else {
        return Err("usage: lookup DATABASE SETTINGS".into());
    };
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_max_open_files(-1);
    options.set_write_buffer_size(256 << 10);
    options.set_target_file_size_base(256 << 10);
    options.set_max_bytes_for_level_base(1 << 20);
    let refused = bpfof_rocksdb::open(&options, &path, "device=/nowhere").expect_err("refused");
    assert!(refused.to_string().contains("url and device must be given together"), "{refused}");

    let db = bpfof_rocksdb::open(&options, &path, &settings)?;

    for number in 0..KEYS {
        db.put(key(number), format!("value {}", number * number))?;
        if number % 7 == 0 {
            db.delete(key(number))?;
        }
    }
    db.flush()?;
    while count(&db, "bpfof.ready")? == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in (0..KEYS + 1000).step_by(5) {
        assert_eq!(db.get(key(number))?, value(number), "key {number}");
    }
    for first in (0..KEYS).step_by(1000) {
        let numbers: Vec<u64> = (first..first + MANY).collect();
        for (number, found) in numbers.iter().zip(db.multi_get(numbers.iter().map(|n| key(*n)))) {
            assert_eq!(found?, value(*number), "key {number}");
        }
    }
    let mut found = 0;
    for entry in db.iterator(IteratorMode::Start) {
        let (at, is) = entry?;
        let number = std::str::from_utf8(&at)?[4..].parse()?;
        assert_eq!(Some(is.into_vec()), value(number), "key {number}");
        found += 1;
    }
    assert_eq!(found, (0..KEYS).filter(|number| value(*number).is_some()).count());
    println!("{}", db.property_value("bpfof.stats")?.expect("a property"));
    drop(db);

    // With an empty cache: the scan has filled the previous one.
    options.set_block_based_table_factory(&BlockBasedOptions::default());
    let db = bpfof_rocksdb::open_for_read_only(&options, &path, false, &settings)?;
    while count(&db, "bpfof.ready")? == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in (0..KEYS + 1000).step_by(50) {
        assert_eq!(db.get(key(number))?, value(number), "key {number}");
    }
    assert!(count(&db, "bpfof.gets.target")? + count(&db, "bpfof.gets.here")? > KEYS / 50 / 2);
    assert!(db.put(key(0), "value").is_err(), "it was written to");
    drop(db);

    let primary = DB::open(&options, &path)?;
    let db =
        bpfof_rocksdb::open_as_secondary(&options, &path, format!("{path}.follower"), &settings)?;
    primary.put("written later", "value")?;
    assert_eq!(db.get("written later")?, None);
    db.try_catch_up_with_primary()?;
    assert_eq!(db.get("written later")?.as_deref(), Some(&b"value"[..]));
    while count(&db, "bpfof.ready")? == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in (0..KEYS + 1000).step_by(50) {
        assert_eq!(db.get(key(number))?, value(number), "key {number}");
    }
    assert!(count(&db, "bpfof.gets.target")? + count(&db, "bpfof.gets.here")? > KEYS / 50 / 2);
    Ok(())
}
