//! `bpfof doctor`: problems of this machine for a target, and their remedies.

use bpfof_controller::parse_address;
use bpfof_device::Ring;
use bpfof_device::xrp::XrpDomain;
use bpfof_terminal::Outcome;
use clap::Args;
use serde::Serialize;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

/// First kernel with the features of io_uring that a target uses.
const KERNEL: (u32, u32) = (6, 1);
/// First kernel for which the module of `bpfof xrp` is made.
const MODULE_KERNEL: (u32, u32) = (6, 12);
/// Descriptors: a connection takes one, and a target may have 4096.
const DESCRIPTORS: u64 = 8192;

#[derive(Args)]
pub(crate) struct Options {
    /// The address a target would listen on.
    #[arg(long, default_value = "127.0.0.1:4420", value_parser = parse_address)]
    listen: SocketAddr,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    /// A target runs, but not as well as it could.
    Warning,
    /// A target does not run.
    Problem,
}

#[derive(Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

fn finding(
    check: &'static str,
    good: bool,
    otherwise: Verdict,
    found: String,
    remedy: &'static str,
) -> Finding {
    let verdict = if good { Verdict::Good } else { otherwise };
    Finding { check, verdict, found, remedy: (!good).then_some(remedy) }
}

pub(crate) fn run(options: &Options) -> Outcome {
    let findings = [
        kernel(),
        io_uring(),
        descriptors(),
        port(options.listen),
        processors(),
        large_pages(),
        kernel_tls(),
        clang(),
        chains_in_the_kernel(),
    ];
    if options.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        for Finding { check, verdict, found, remedy } in &findings {
            let mark = match verdict {
                Verdict::Good => "ok     ",
                Verdict::Warning => "warning",
                Verdict::Problem => "PROBLEM",
            };
            println!("{mark} {check}: {found}");
            if let Some(remedy) = remedy {
                println!("        {remedy}");
            }
        }
    }
    if findings.iter().any(|finding| finding.verdict == Verdict::Problem) {
        return Err("a target cannot run here until the problems above are solved".into());
    }
    Ok(())
}

fn kernel() -> Finding {
    let (release, version) = release();
    let remedy = "install Linux 6.1 or later";
    finding("kernel", version >= KERNEL, Verdict::Problem, release, remedy)
}

fn release() -> (String, (u32, u32)) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (release, version)
}

/// Whether the module of `bpfof xrp` can be loaded on this machine.
fn chains_in_the_kernel() -> Finding {
    const CHECK: &str = "chains in the kernel";
    let no = |found: &str, remedy| {
        finding(CHECK, false, Verdict::Warning, format!("not here: {found}"), remedy)
    };
    if XrpDomain::is_possible() {
        return finding(CHECK, true, Verdict::Warning, "the module is loaded".to_owned(), "");
    }
    let (release, version) = release();
    let uname = rustix::system::uname();
    if !cfg!(target_arch = "x86_64") {
        return no("the module is made for x86-64", "chains over NVMe drives run in user space");
    }
    if version < MODULE_KERNEL {
        let remedy =
            "install Linux 6.12 or later; until then chains over NVMe drives run in user space";
        return no(&format!("Linux {release}"), remedy);
    }
    if uname.version().to_string_lossy().contains("PREEMPT_RT") {
        let remedy = "boot a kernel without PREEMPT_RT: with it nothing guards the drive's lock";
        return no("the kernel is PREEMPT_RT", remedy);
    }
    if !std::path::Path::new("/proc/modules").exists() {
        return no("the kernel loads no modules", "boot a kernel with CONFIG_MODULES");
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return no("the kernel has no BTF", "boot a kernel with CONFIG_DEBUG_INFO_BTF");
    }
    let found = "possible, as far as can be seen; the module is not loaded".to_owned();
    let remedy = "for short chains over NVMe drives of this machine: install bpfof-dkms, then bpfof xrp load, which says \
                  what is missing";
    finding(CHECK, false, Verdict::Warning, found, remedy)
}

fn io_uring() -> Finding {
    let (good, found) = match Ring::new(8) {
        Ok(_) => (true, "available".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    let remedy = "set kernel.io_uring_disabled to 0, or allow io_uring in the container";
    finding("io_uring", good, Verdict::Problem, found, remedy)
}

/// A target raises its own limit as far as it may.
fn descriptors() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let found = limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let good = limit.is_none_or(|limit| limit >= DESCRIPTORS);
    let remedy = "for thousands of connections raise it: as root, ulimit -H -n 8192";
    finding("open files", good, Verdict::Warning, found, remedy)
}

fn port(listen: SocketAddr) -> Finding {
    let (good, found, remedy) = match TcpListener::bind(listen) {
        Ok(_) => (true, format!("{listen} is free"), ""),
        Err(error) => (false, format!("{listen}: {error}"), bind_remedy(error.kind())),
    };
    finding("port", good, Verdict::Problem, found, remedy)
}

fn bind_remedy(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::AddrInUse => {
            "stop what listens there (ss -ltnp), or choose another port for --listen"
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address (ip address)",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: choose another one for --listen"
        }
        _ => "choose another --listen",
    }
}

fn processors() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let remedy = "benchmarks need two: one for the host, one for the target";
    finding("processors", count > 1, Verdict::Warning, count.to_string(), remedy)
}

fn large_pages() -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let found = std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let good = !found.is_empty() && !found.contains("[never]");
    let found = if found.is_empty() { "not supported".to_owned() } else { found };
    let remedy = "memory namespaces are faster with it: echo madvise to \
                  /sys/kernel/mm/transparent_hugepage/enabled";
    finding("transparent large pages", good, Verdict::Warning, found, remedy)
}

fn kernel_tls() -> Finding {
    let good = bpfof_tls::ktls::is_available().is_ok();
    let found = match good {
        true => "available",
        false => "not available: a target seals TLS records itself",
    };
    let remedy = "for less work with TLS: modprobe tls, and for later starts \
                  echo tls > /etc/modules-load.d/tls.conf (a kernel without CONFIG_TLS has no such module)";
    finding("kernel TLS", good, Verdict::Warning, found.to_owned(), remedy)
}

fn clang() -> Finding {
    let name = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let output = Command::new(&name).arg("--print-targets").stderr(Stdio::null()).output();
    let (good, found) = match output {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("bpf") => {
            (true, format!("{name} compiles for BPF"))
        }
        Ok(_) => (false, format!("{name} does not compile for BPF")),
        Err(error) => (false, format!("{name}: {error}")),
    };
    let remedy = "needed only to compile storage functions: apt-get install clang";
    finding("clang", good, Verdict::Warning, found, remedy)
}
