//! `bpfof file …`: where files lie in a namespace.

use bpfof_host::files::{FileLayout, NamespaceDevice, file_layout};
use bpfof_host::{Controller, NamespaceInfo, Options, TargetUrl};
use bpfof_terminal::{Outcome, output, target_url, tell};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show where files lie in a target's namespace, or why chains cannot read them there.
    Map(Map),
}

#[derive(Args)]
pub(crate) struct Map {
    /// The target that serves the namespace: nvme-tcp://HOST:PORT/NQN?ns=1.
    #[arg(long, env = "BPFOF_TARGET", value_parser = target_url)]
    target: TargetUrl,
    /// The namespace as a device of this machine: the block device of the kernel's NVMe/TCP host,
    /// or the disk or image that a target on this machine serves.
    #[arg(long, value_name = "PATH")]
    device: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Files on that namespace (ext4 or XFS).
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Map(options) => map(options),
    }
}

fn map(options: &Map) -> Outcome {
    let mut controller = Controller::connect(&options.target, Options::default())?;
    let info = controller.identify_namespace(options.target.nsid)?;
    let device = NamespaceDevice::new(&options.device)?;
    let mut failed = 0;
    let mut found = Vec::new();
    for path in &options.files {
        match layout(path, &device, &info) {
            Ok(layout) => found.push((path, layout)),
            Err(problem) => {
                failed += 1;
                tell(format_args!("{}: {problem}", path.display()));
            }
        }
    }
    let mut out = output();
    if options.json {
        let list: Vec<Value> = found.iter().map(|(path, layout)| to_json(path, layout)).collect();
        writeln!(out, "{}", Value::from(list))?;
    } else {
        for (path, layout) in &found {
            print(&mut out, path, layout)?;
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(format!("{failed} of {} files cannot be mapped", options.files.len()).into()),
    }
}

fn layout(
    path: &Path,
    device: &NamespaceDevice,
    info: &NamespaceInfo,
) -> Result<FileLayout, Box<dyn std::error::Error>> {
    Ok(file_layout(&File::open(path)?, device, info)?)
}

fn to_json(path: &Path, layout: &FileLayout) -> Value {
    let extents: Vec<Value> = layout
        .extents()
        .iter()
        .map(|extent| json!([extent.file_offset, extent.device_offset, extent.length_bytes]))
        .collect();
    json!({
        "path": path.to_string_lossy(),
        "length_bytes": layout.length_bytes(),
        "has_gaps": layout.has_gaps(),
        "extents": extents,
    })
}

fn print(out: &mut impl Write, path: &Path, layout: &FileLayout) -> io::Result<()> {
    let count = layout.extents().len();
    let gaps = if layout.has_gaps() { ", with gaps" } else { "" };
    writeln!(out, "{}: {} bytes, {count} extents{gaps}", path.display(), layout.length_bytes())?;
    for extent in layout.extents() {
        let (file, device) = (extent.file_offset, extent.device_offset);
        writeln!(out, "  {file:>14} at {device:>14}: {} bytes", extent.length_bytes)?;
    }
    Ok(())
}
