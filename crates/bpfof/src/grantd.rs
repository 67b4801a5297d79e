//! `bpfof grantd`.

use crate::daemon;
use bpfof_grantd::{Config, ConfigError, Daemon, Served, hold_leases, outlast_predecessor};
use bpfof_host::TargetUrl;
use bpfof_terminal::{Outcome, complete_url, end_signals, target_url};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::fd::AsFd;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Options {
    /// Where clients connect [default: /run/bpfof/grantd.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Permissions of the socket: users who may write to it may request grants [default: 0660].
    #[arg(long, value_name = "OCTAL")]
    mode: Option<String>,
    /// Group of the socket, by name or number.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// A target and namespace whose files are granted: nvme-tcp://HOST:PORT/NQN?ns=1. Repeatable, with a
    /// --device for each.
    #[arg(long = "target", value_name = "URL", value_parser = target_url)]
    targets: Vec<TargetUrl>,
    /// The namespace of --target as a device of this machine: the block device of the kernel's NVMe/TCP host, or the
    /// disk or image file that a target on this machine serves. A wrong device of the right size grants the wrong
    /// blocks.
    #[arg(long = "device", value_name = "PATH")]
    devices: Vec<PathBuf>,
    /// Let clients load functions of their own, besides calling those installed at the target. Code of users who do not
    /// trust each other then runs in one process, the target, and shares its caches.
    #[arg(long)]
    allow_own_functions: bool,
    /// Grant files on ext4 that their owners could truncate in spite of a lease. A hostile owner can then read what
    /// other files later store in the freed blocks. Without this option, files must be immutable, or owned by root and
    /// writable by root only.
    #[arg(long)]
    trust_owners: bool,
    /// TOML file with socket, mode, group, allow-own-functions, trust-owners, clients, clients-per-user,
    /// files-per-user, extents-per-user, lanes-per-client, and [[namespace]] with target and device;
    /// options override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON line once the daemon listens.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: daemon::Daemon,
    /// Run as the process that holds the leases if the daemon dies.
    #[arg(long, hide = true)]
    hold_leases: bool,
}

pub(crate) fn run(options: &Options) -> Outcome {
    if options.hold_leases {
        return hold();
    }
    serve(options).inspect_err(|_| outlast_predecessor())
}

fn serve(options: &Options) -> Outcome {
    daemon::begin(&options.daemon)?;
    // Before the daemon starts, so that no signal is lost.
    let mut signals = Signals::new(end_signals())?;
    let config = configuration(options)?;
    let socket = config.socket.clone();
    let daemon = Daemon::start(config)?;
    if options.json {
        println!("{}", serde_json::json!({ "socket": socket.to_string_lossy() }));
    }
    if let Some(signal) = signals.forever().next() {
        log::info!("signal {signal}: revoking all grants");
    }
    daemon.stop();
    Ok(())
}

/// Runs as the process that holds the leases. It must outlive the daemon, so signals to the daemon do not end it.
fn hold() -> Outcome {
    let _signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    // Fails only for a leader of a process group, which a child is not.
    let _ = rustix::process::setsid();
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(hold_leases(socket)?)
}

fn configuration(options: &Options) -> Result<Config, Box<dyn std::error::Error>> {
    let mut config = match &options.config {
        Some(path) => {
            let mut config = Config::from_file(path)?;
            config.namespaces.iter_mut().try_for_each(|served| complete_url(&mut served.url))?;
            config
        }
        None => Config::default(),
    };
    if options.targets.len() != options.devices.len() {
        return Err("give one --device for each --target".into());
    }
    if !options.targets.is_empty() {
        let pairs = options.targets.iter().zip(&options.devices);
        let served = |(url, device): (&TargetUrl, &PathBuf)| Served {
            url: url.clone(),
            device: device.clone(),
        };
        config.namespaces = pairs.map(served).collect();
    }
    if let Some(socket) = &options.socket {
        config.socket.clone_from(socket);
    }
    options.mode.as_deref().map_or(Ok::<(), ConfigError>(()), |mode| config.set_mode(mode))?;
    config.group = options.group.clone().or(config.group);
    config.allow_own_functions |= options.allow_own_functions;
    config.trust_owners |= options.trust_owners;
    config.holder = vec![std::env::current_exe()?, "grantd".into(), "--hold-leases".into()];
    Ok(config)
}
