//! What queries answer on this machine, compared with what the values say.

mod world;

use bpfof_host::files::FileMaps;
use bpfof_query::Settings;
use proptest::prelude::*;
use world::{Dice, World};

/// Runs a world's plan; what is wrong with the answer.
fn check(world: &World, settings: Settings, part_max_bytes: u64) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows");
    std::fs::write(&path, &world.bytes).expect("room");
    let maps = FileMaps::local();
    let (table, _) = world
        .run(&maps, &path, settings, part_max_bytes)
        .map_err(|error| format!("{error}: {world:?}"))?;
    world.check(&table)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

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
}
