//! skip_list URL OBJECT KEY...: looks keys up in the skip list of docs/writing-functions.md.

use bpfof_host::{Controller, FileVersion, Options, PushdownCall};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("a URL is missing")?.parse()?;
    let object = std::fs::read(arguments.next().ok_or("an object is missing")?)?;

    let mut controller = Controller::connect(&url, Options::default())?;
    let skip_get = controller.load_function(&object, 0)?;
    let mut lane = controller.open_lane()?;
    for key in arguments {
        let argument = key.parse::<u64>()?.to_le_bytes();
        let call = PushdownCall {
            nsid: 1,
            function: skip_get.0,
            files: &[FileVersion { id: 0, version: 1 }], // the whole namespace
            first_file: 0,
            first_offset_bytes: 0, // the head
            first_size_bytes: 152,
            scratch: &argument,
            scratch_size_bytes: 24, // struct skip_query
            answer_max_bytes: 24,
        };
        let mut answer = Vec::new();
        match lane.pushdown(&call, &mut answer) {
            Err(error) => println!("{key}: {error}"),
            Ok(chain) => match answer.last_chunk() {
                Some(value) => {
                    println!("{key}: {} ({} hops)", u64::from_le_bytes(*value), chain.hops)
                }
                None => println!("{key}: not found ({} hops)", chain.hops),
            },
        }
    }
    Ok(())
}
