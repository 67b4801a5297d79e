//! Lookups in sets of tables against an ordered map, on this machine, over plain reads.

use bpfof_host::Status;
use bpfof_host::files::{
    Executor, FileMaps, FirstRead, Policy, PushdownFile, PushdownReader, ReadError, StorageFunction,
};
use bpfof_sorted::{
    GET_OBJECT, Lookup, Root, Shape, TableError, TableWriter, describe_abort, get_argument,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

type Model = BTreeMap<u64, Option<Vec<u8>>>;

struct Set {
    reader: PushdownReader,
    function: StorageFunction,
    files: Vec<PushdownFile>,
    roots: Vec<Root>,
}

impl Set {
    /// Tables of the models, newest first.
    fn new(folder: &Path, tables: &[(Vec<u8>, Root)]) -> Set {
        let maps = FileMaps::local();
        let mut set = Set {
            reader: PushdownReader::new(&maps, Policy { local: false, ..Policy::default() })
                .expect("no target to ask"),
            function: maps.load_function(GET_OBJECT, 0).expect("good"),
            files: Vec::new(),
            roots: Vec::new(),
        };
        for (index, (bytes, root)) in tables.iter().enumerate() {
            let path = folder.join(index.to_string());
            std::fs::write(&path, bytes).expect("written");
            set.files.push(maps.open(&path).expect("opens"));
            set.roots.push(*root);
        }
        set
    }

    fn get(&mut self, key: u64) -> Result<Vec<u8>, ReadError> {
        let mut scratch = get_argument(key, &self.roots).expect("1 to 16 tables");
        let first = FirstRead {
            file: 0,
            offset_bytes: self.roots[0].offset,
            size_bytes: self.roots[0].size,
        };
        let info = self.reader.read_pushdown(&self.files, first, &self.function, &mut scratch)?;
        assert_eq!(info.executor, Executor::FallBack);
        Ok(scratch)
    }
}

fn table(model: &Model, shape: Shape) -> (Vec<u8>, Root) {
    let mut writer = TableWriter::new(shape);
    for (key, value) in model {
        writer.add(*key, value.as_deref()).expect("in order");
    }
    writer.finish()
}

fn expected(models: &[Model], key: u64) -> Lookup<'_> {
    let hit = models.iter().enumerate().find_map(|(index, model)| Some((index, model.get(&key)?)));
    match hit {
        None => Lookup::NotFound,
        Some((index, None)) => Lookup::Deleted(index as u32),
        Some((index, Some(value))) => Lookup::Found(index as u32, value),
    }
}

fn models() -> impl Strategy<Value = Vec<Model>> {
    let value = proptest::option::weighted(0.8, proptest::collection::vec(any::<u8>(), 0..300));
    let model = proptest::collection::btree_map(0..200_u64, value, 0..120);
    proptest::collection::vec(model, 1..17)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lookups_agree_with_the_model(
        models in models(), data_block_bytes in 1..5000_usize, fanout in 2..40_usize,
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let shape = Shape { data_block_bytes, fanout };
        let tables: Vec<_> = models.iter().map(|model| table(model, shape)).collect();
        let mut set = Set::new(folder.path(), &tables);
        for key in 0..201 {
            let answer = set.get(key).expect("undamaged");
            prop_assert_eq!(Lookup::parse(&answer), Some(expected(&models, key)), "key {}", key);
        }
    }

    /// Damage leads to an error or a wrong answer, never to a fault.
    #[test]
    fn damaged_tables_end_in_an_error(
        models in models(), at in any::<proptest::sample::Index>(), byte in any::<u8>(),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let shape = Shape { data_block_bytes: 500, fanout: 4 };
        let mut tables: Vec<_> = models.iter().map(|model| table(model, shape)).collect();
        let first = &mut tables[0].0;
        let at = at.index(first.len());
        first[at] = byte;
        let mut set = Set::new(folder.path(), &tables);
        for key in 0..201 {
            match set.get(key) {
                Ok(answer) => prop_assert!(Lookup::parse(&answer).is_some()),
                Err(ReadError::Command(error)) => prop_assert!(
                    error.status.same_code(Status::READ_OUTSIDE_FILE)
                        || error.status.same_code(Status::FUNCTION_ABORT)
                            && describe_abort(error.dw0) != describe_abort(99),
                    "{}", error
                ),
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }
}

/// Each entry has its own block; with two children for each index block the tree would be too deep.
#[test]
fn tables_are_no_deeper_than_lookups_go() {
    let model: Model = (0..300).map(|key| (2 * key, Some(vec![7; 3]))).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let tables = [table(&model, Shape { data_block_bytes: 1, fanout: 2 })];
    let mut set = Set::new(folder.path(), &tables);
    for key in 0..601 {
        let answer = set.get(key).expect("it is searched");
        assert_eq!(
            Lookup::parse(&answer),
            Some(expected(std::slice::from_ref(&model), key)),
            "{key}"
        );
    }
}

#[test]
fn invalid_entries_and_requests_are_refused() {
    let mut writer = TableWriter::new(Shape::default());
    writer.add(5, Some(b"five")).expect("the first");
    assert_eq!(writer.add(5, None), Err(TableError::Order { key: 5, last: 5 }));
    let long = vec![0; bpfof_sorted::BLOCK_MAX_BYTES];
    assert_eq!(writer.add(6, Some(&long)), Err(TableError::ValueTooLong(long.len())));
    assert!(get_argument(1, &[]).is_none());
    assert_eq!(Lookup::parse(b"short"), None);
}
