//! `bpfof xrp`: the kernel module that runs chains in the interrupt of NVMe drives.

use bpfof_device::xrp::{DriverOffsets, XrpDomain};
use bpfof_function::Object;
use bpfof_function::kernel::missing_helpers;
use bpfof_host::files::{kernel_domain, load_into_kernel};
use bpfof_terminal::{Outcome, run_tool};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const MODULE: &str = "bpfof_xrp";
const DEBUGFS: &str = "/sys/kernel/debug/bpfof_xrp";

#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Xrp,
}

#[derive(Subcommand)]
enum Xrp {
    /// Load the module, with the offsets in this kernel's structures that it needs (root)
    Load(Load),
    /// Check which functions the kernel accepts for a drive; none stays loaded (root)
    Check(Check),
    /// List drives whose chains run in the kernel, with their functions and files (root)
    List(Output),
    /// Show whether the module is loaded, how it guards the drive's lock, and its counters (root)
    Status(Output),
    /// Remove the module; refused while a program uses it (root)
    Unload,
}

#[derive(Args)]
struct Load {
    /// The module's file [default: the one installed for this kernel]
    #[arg(long)]
    module: Option<PathBuf>,
}

#[derive(Args)]
struct Check {
    /// Block device of an NVMe namespace, /dev/nvmeXnY.
    device: PathBuf,
    /// Objects with storage functions.
    objects: Vec<PathBuf>,
}

#[derive(Args)]
struct Output {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Outcome {
    match &options.command {
        Xrp::Load(load) => self::load(load),
        Xrp::Check(check) => self::check(check),
        Xrp::List(output) => list(output),
        Xrp::Status(output) => status(output),
        Xrp::Unload => unload(),
    }
}

fn load(load: &Load) -> Outcome {
    if XrpDomain::is_possible() {
        println!("{MODULE} is loaded already");
        return Ok(());
    }
    let offsets = DriverOffsets::find();
    let status = offsets.status.ok_or(
        "the types of this kernel (/sys/kernel/btf) do not have nvme_request.status, without which failed reads \
         are not noticed; load the NVMe driver first (modprobe nvme)",
    )?;
    let status = format!("status_offset={status}");
    let lock = offsets.submission_lock.map(|offset| format!("sq_lock_offset={offset}"));
    let module = load.module.as_deref().map(Path::to_string_lossy);
    let (program, name) = match &module {
        Some(path) => ("insmod", path.as_ref()),
        None => ("modprobe", MODULE),
    };
    run_tool(Command::new(program).args([name, &status]).args(&lock)).map_err(|said| {
        format!(
            "cannot load {MODULE}: {said}. Install bpfof-dkms and this kernel's headers, or build it (make -C \
             kernel) and name the file with --module; the kernel's log says more (dmesg)"
        )
    })?;
    let guard = if lock.is_some() { "A and B" } else { "A" };
    println!("{MODULE} is loaded; guard {guard}");
    Ok(())
}

fn check(check: &Check) -> Outcome {
    must_be_loaded()?;
    let device = check.device.display();
    let mut domain = kernel_domain(&check.device)
        .map_err(|error| format!("chains over {device} cannot run in the kernel: {error}"))?;
    println!("{device}: chains can run in the kernel");
    let mut refused = 0;
    for path in &check.objects {
        let read = std::fs::read(path);
        let bytes = read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let object =
            Object::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        for entry in object.entries() {
            match load_into_kernel(&mut domain, &entry.program) {
                Ok(number) => {
                    domain.remove_function(number);
                    print!("{}: the kernel accepts it", entry.name);
                    match missing_helpers(&entry.program).join(", ") {
                        missing if missing.is_empty() => println!(),
                        missing => println!("; chains that call {missing} run in user space"),
                    }
                }
                Err(error) => {
                    refused += 1;
                    println!("{}: the kernel refuses it: {error}", entry.name);
                }
            }
        }
    }
    match refused {
        0 => Ok(()),
        _ => Err(format!("{refused} functions would run in user space").into()),
    }
}

fn unload() -> Outcome {
    run_tool(Command::new("rmmod").arg(MODULE)).map_err(|said| {
        format!("cannot unload {MODULE}: {said}. Programs that use it must end first")
    })?;
    Ok(())
}

fn must_be_loaded() -> Result<(), String> {
    match XrpDomain::is_possible() {
        true => Ok(()),
        false => Err(format!("{MODULE} is not loaded (bpfof xrp load)")),
    }
}

/// A file of the module in debugfs.
fn read(name: &str) -> Result<String, String> {
    let path = Path::new(DEBUGFS).join(name);
    std::fs::read_to_string(&path).map_err(|error| {
        format!("cannot read {}: {error}. It needs root, and debugfs mounted", path.display())
    })
}

#[derive(Serialize)]
struct Status {
    loaded: bool,
    /// `A`: the interrupted code holds no spinlock; `B`: no processor holds the lock of the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<&'static str>,
    counters: BTreeMap<String, u64>,
}

fn status(output: &Output) -> Outcome {
    let loaded = XrpDomain::is_possible();
    let mut status = Status { loaded, guard: None, counters: BTreeMap::new() };
    if loaded {
        let parameter = format!("/sys/module/{MODULE}/parameters/sq_lock_offset");
        let offset = std::fs::read_to_string(parameter).unwrap_or_default();
        status.guard = Some(if offset.starts_with('-') { "A" } else { "A and B" });
        for line in read("counters")?.lines() {
            let Some((name, count)) = line.split_once(' ') else { continue };
            status.counters.insert(name.to_owned(), count.parse().unwrap_or(0));
        }
    }
    if output.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else if loaded {
        println!("{MODULE} is loaded; guard {}", status.guard.unwrap_or("?"));
        for (name, count) in &status.counters {
            println!("{name:<24}{count:>14}");
        }
    } else {
        println!("{MODULE} is not loaded (bpfof xrp load)");
    }
    Ok(())
}

#[derive(Serialize)]
struct Domain {
    id: u64,
    drive: String,
    slots: u64,
    functions: u64,
    files: u64,
}

fn list(output: &Output) -> Outcome {
    must_be_loaded()?;
    let text = read("domains")?;
    let domains: Vec<Domain> = text.lines().filter_map(domain).collect();
    if output.json {
        println!("{}", serde_json::to_string_pretty(&domains)?);
        return Ok(());
    }
    println!("{:>4} {:<16} {:>6} {:>10} {:>6}", "id", "drive", "slots", "functions", "files");
    for Domain { id, drive, slots, functions, files } in domains {
        println!("{id:>4} {drive:<16} {slots:>6} {functions:>10} {files:>6}");
    }
    Ok(())
}

/// `1 nvme0n1 slots 1 functions 1 files 2`
fn domain(line: &str) -> Option<Domain> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse().ok();
    Some(Domain {
        id: number(0)?,
        drive: (*words.get(1)?).to_owned(),
        slots: number(3)?,
        functions: number(5)?,
        files: number(7)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_module_are_read() {
        let found = domain("1 nvme0n1 slots 1 functions 3 files 2").expect("a domain");
        assert_eq!((found.id, found.drive.as_str()), (1, "nvme0n1"));
        assert_eq!((found.slots, found.functions, found.files), (1, 3, 2));
        assert!(domain("nonsense").is_none());
    }
}
