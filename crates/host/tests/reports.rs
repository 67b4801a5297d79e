//! Reports about functions and their maps from a small target that lies.

mod fake_target;

use bpfof_host::{Controller, Error, FunctionId, FunctionReportEntry, Options, Status};
use bpfof_nvme::vendor_specific::{MapCommand, MapReportEntry};
use bpfof_nvme::{AdminCommand, ReportContent};
use fake_target::{Answer, NQN, Shared};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A connection to a target that answers some admin commands by `says`.
fn connect_to(
    says: impl Fn(AdminCommand) -> Option<Answer> + Send + 'static,
) -> (Controller, Arc<Shared>) {
    let (address, shared) = fake_target::start();
    let url = format!("nvme-tcp://{address}/{NQN}").parse().unwrap();
    let controller = Controller::connect(&url, Options::default()).unwrap();
    *shared.says.lock().unwrap() = Some(Box::new(says));
    (controller, shared)
}

/// An answer that reports its full length, cut to the room there is.
fn report(mut data: Vec<u8>, room_bytes: u32) -> Answer {
    let length = data.len() as u32;
    data.truncate(room_bytes as usize);
    (Status::SUCCESS, length, 0, data)
}

fn map_report(kind: u8, key_bytes: u32, value_bytes: u32, max_entries: u32) -> MapReportEntry {
    let name = "m".into();
    MapReportEntry { map: 1, kind, key_bytes, value_bytes, max_entries, name, ..Default::default() }
}

#[test]
fn impossible_maps_are_refused() {
    let cannot_be = [
        (2, 8, 4, 1),
        (2, 4, 4096, 4097),
        (1, 0, 4, 1),
        (1, 257, 4, 1),
        (1, 4, 0, 1),
        (1, 4, 4097, 1),
        (1, 4, 4, 1 << 20 | 1),
        (1, u32::MAX, u32::MAX, u32::MAX),
    ];
    let can_be = [(2, 4, 4096, 4096), (2, 4, 1, 1 << 24), (1, 256, 4096, 1000), (1, 1, 1, 100)];
    for (sizes, is_well) in
        cannot_be.map(|sizes| (sizes, false)).into_iter().chain(can_be.map(|sizes| (sizes, true)))
    {
        let (kind, key_bytes, value_bytes, max_entries) = sizes;
        let entry = map_report(kind, key_bytes, value_bytes, max_entries);
        let (mut controller, _) = connect_to(move |command| match command {
            AdminCommand::Map(MapCommand::Report { length_bytes, .. }) => {
                Some(report(entry.to_bytes().to_vec(), length_bytes))
            }
            _ => None,
        });
        match controller.maps() {
            Ok(maps) => assert!(is_well && maps.len() == 1, "{sizes:?}"),
            Err(Error::BadAnswer(_)) => assert!(!is_well, "{sizes:?}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads a map with 8 bytes per entry and room for 40,000: for a first slot, `page` gives the slot to continue from and
/// the number of entries before it.
fn read_map(page: fn(u32) -> (u32, u32)) -> Result<usize, Error> {
    read_map_of(40_000, page)
}

fn read_map_of(max_entries: u32, page: fn(u32) -> (u32, u32)) -> Result<usize, Error> {
    let entry = map_report(1, 4, 4, max_entries);
    let (mut controller, _) = connect_to(move |command| match command {
        AdminCommand::Map(MapCommand::Report { length_bytes, .. }) => {
            Some(report(entry.to_bytes().to_vec(), length_bytes))
        }
        AdminCommand::Map(MapCommand::Read { first_slot, .. }) => {
            let (next, entries) = page(first_slot);
            Some((Status::SUCCESS, next, entries, vec![5; 8 * entries as usize]))
        }
        _ => None,
    });
    let map = controller.map("m")?;
    controller.map_entries(&map).map(|entries| entries.len())
}

#[test]
fn maps_are_read_to_their_end_and_not_further() {
    // All entries in the first slots were removed.
    let entries = read_map(|first_slot| match first_slot {
        0 => (16_384, 0),
        16_384 => (16_390, 6),
        _ => (0, 10),
    });
    assert_eq!(entries.unwrap(), 16);
    let refused: [fn(u32) -> (u32, u32); 4] = [
        |_| (1, 0),
        |first_slot| (first_slot + 1000, 0),
        |first_slot| (first_slot + 1, 1000),
        |_| (40_000, 1),
    ];
    for page in refused {
        let error = read_map(page).unwrap_err();
        assert!(matches!(error, Error::BadAnswer(_)), "{error}");
    }
    // All entries are requested one by one.
    let error = read_map_of(1 << 20, |first_slot| (first_slot + 1, 0)).unwrap_err();
    assert!(error.to_string().contains("without entries"), "{error}");
}

/// A target that answers Function Report by a closure, from the kind of the report, a function and a controller.
fn report_on_functions(
    says: impl Fn(ReportContent, u32, u16) -> Vec<u8> + Send + 'static,
) -> (Controller, Arc<Shared>) {
    connect_to(move |command| match command {
        AdminCommand::FunctionReport { function, length_bytes, content, controller } => {
            Some(report(says(content, function, controller), length_bytes))
        }
        _ => None,
    })
}

fn entries(functions: impl IntoIterator<Item = u32>, name: &str) -> Vec<u8> {
    let entry =
        |function| FunctionReportEntry { function, name: name.into(), ..Default::default() };
    functions.into_iter().flat_map(|function| entry(function).to_bytes()).collect()
}

#[test]
fn reports_on_other_programs_are_bounded() {
    let ids = |ids: &[u16]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    let lists: [(&'static [u16], &'static [u32]); 4] =
        [(&[1, 2, 3], &[7, 8]), (&[1, 2, 2], &[7]), (&[1, 2, 1], &[7]), (&[1, 2], &[7, 8, 7])];
    for (index, (associations, functions)) in lists.into_iter().enumerate() {
        let (mut controller, _) = report_on_functions(move |content, _, _| match content {
            ReportContent::Associations => ids(associations),
            ReportContent::Entries => entries(functions.iter().copied(), "f"),
            _ => Vec::new(),
        });
        match controller.foreign_functions() {
            Ok(found) => assert_eq!((index, found.len()), (0, 4)),
            Err(error) => assert!(matches!(error, Error::BadAnswer(_)) && index > 0, "{error}"),
        }
    }
    // 100 MB in all.
    let (mut controller, _) = report_on_functions(move |content, _, _| match content {
        ReportContent::Associations => ids(&(1..400).collect::<Vec<u16>>()),
        ReportContent::Entries => entries(1..32, "f"),
        ReportContent::LastFault => vec![b'x'; 8192],
        _ => Vec::new(),
    });
    let error = controller.foreign_functions().unwrap_err();
    assert!(matches!(error, Error::BadAnswer(_)), "{error}");
}

#[test]
fn a_trace_has_no_more_lines_than_targets_keep() {
    let (mut controller, _) = report_on_functions(|_, function, _| {
        (0..function).flat_map(|line| format!("x {line}\n").into_bytes()).collect()
    });
    let trace = controller.trace(FunctionId(33)).unwrap();
    assert_eq!((trace.len(), &trace[0][..], &trace[32][..]), (33, "x 0", "x 32"));
    assert!(controller.trace(FunctionId(0)).unwrap().is_empty());
    let error = controller.trace(FunctionId(1000)).unwrap_err();
    assert!(matches!(error, Error::BadAnswer(_)), "{error}");
}

#[test]
fn texts_of_a_target_lose_control_characters() {
    let (mut controller, shared) = report_on_functions(|content, _, _| match content {
        ReportContent::Entries => b"\x1b[2J\nok: \xe2\x80\xaeno\0padding".to_vec(),
        _ => b"\x1b]0;x\x07\n".to_vec(),
    });
    shared.reject.store(true, Ordering::SeqCst);
    let Err(Error::FunctionRejected(message)) = controller.load_function(b"object", 0) else {
        panic!("accepted");
    };
    assert_eq!(message, "?[2J?ok: ?no");
    let fault = controller.last_fault(FunctionId(1)).unwrap();
    assert_eq!(fault.as_deref(), Some("?]0;x??"));
    assert_eq!(controller.trace(FunctionId(1)).unwrap(), ["?]0;x?"]);
    let (mut controller, _) = report_on_functions(|_, _, _| entries([1 << 31], "\x1b[2Jf"));
    let error = controller.installed_function("g").unwrap_err().to_string();
    assert!(error.contains("\u{fffd}[2Jf") && !error.contains('\x1b'), "{error}");
}
