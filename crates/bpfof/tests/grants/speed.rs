//! The cost of grants: chains through the daemon are compared with chains of a process that has an association of its
//! own, in turns.

use super::World;
use super::hostile::{MINE, filled};
use bpfof_host::files::{
    Executor, FileMaps, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    ReadPushdown, StorageFunction,
};
use bpfof_host::grant::GrantClient;
use std::fs;
use std::time::{Duration, Instant};

const DEPTH: usize = 32;
const ROUND: Duration = Duration::from_millis(300);
const ROUNDS: usize = 20;

struct Side {
    // The fields are dropped in this order.
    reader: PushdownReader,
    file: [PushdownFile; 1],
    function: StorageFunction,
    _maps: FileMaps,
    chains: u64,
}

impl Side {
    fn new(maps: FileMaps, world: &World) -> Side {
        let object = fs::read(&world.object).expect("read");
        let function = maps.load_function(&object, 0).expect("good");
        let file = [maps.open(world.folder.join("file")).expect("opened")];
        assert!(maps.wait_mapped(&file[0], Duration::from_secs(5)), "{:?}", file[0].refusal());
        let reader = PushdownReader::new(&maps, Policy::default()).expect("a lane");
        Side { reader, file, function, _maps: maps, chains: 0 }
    }

    fn run(&mut self) {
        let end = Instant::now() + ROUND;
        let Side { reader, file, function, chains, .. } = self;
        while Instant::now() < end || reader.in_flight() > 0 {
            while reader.in_flight() < DEPTH && Instant::now() < end {
                let call = ReadPushdown {
                    files: file,
                    first_read: FirstRead { file: 0, offset_bytes: 0, size_bytes: 4096 },
                    function,
                    scratch: &[],
                    scratch_size_bytes: 4096,
                    answer_max_bytes: 4096,
                };
                reader.submit(0, &call).expect("makes sense");
            }
            reader.wait(Duration::from_secs(5), &mut |completion| {
                let (_, info) = completion.result.expect("it runs");
                assert_eq!(info.executor, Executor::Target);
                *chains += 1;
            });
        }
    }
}

/// `make grants` runs this, on an idle machine.
#[test]
#[ignore = "a measurement"]
fn grants_cost_little() {
    let world = World::new("ext4", 96 << 20).expect("this needs root");
    fs::write(world.folder.join("file"), filled(MINE, 1 << 20)).expect("written");
    let device = NamespaceDevice::new(world.disk.image()).expect("an image");
    let own = FileMaps::new(world.disk.connect(), 1, device).expect("a target");
    let client = GrantClient::connect(world.socket(), None).expect("it connects");
    let granted = FileMaps::granted(client).expect("it starts");
    let (mut own, mut granted) = (Side::new(own, &world), Side::new(granted, &world));
    for _ in 0..ROUNDS {
        own.run();
        granted.run();
    }
    let ratio = granted.chains as f64 / own.chains as f64;
    println!("granted {} chains, own {}: {ratio:.3}", granted.chains, own.chains);
    assert!(ratio >= 0.95, "grants cost more than a twentieth");
}
