//! The network between host and target: a pair of virtual Ethernet devices, one of which is in the target's own network
//! namespace. Each end may be throttled, by the kernel's token bucket.

use super::private::tool;
use bpfof_terminal::Outcome;
use std::process::{Child, Command, Stdio};

const HOST_DEVICE: &str = "host";
const TARGET_DEVICE: &str = "target";
const HOST_ADDRESS: &str = "10.0.0.1/24";
/// The target's address on the link.
pub(super) const TARGET_ADDRESS: &str = "10.0.0.2";
/// The target's port; the network has no other services.
pub(super) const PORT: u16 = 4420;
/// Bytes that may leave at once: some kernel ticks of 25 Gb/s.
const BURST: &str = "4mb";
/// How long data above the rate may wait.
const WAIT: &str = "10ms";

/// The target's network; dropping it ends the network and the processes in it.
pub(super) struct Network {
    /// A process that keeps the network, and ends together with this one.
    holder: Child,
}

impl Network {
    pub(super) fn new() -> Result<Network, Box<dyn std::error::Error>> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder =
            command.spawn().map_err(|error| format!("cannot start unshare: {error}"))?;
        echo(&mut holder)?;
        let network = Network { holder };
        let pid = network.pid();
        let link = ["link", "add", HOST_DEVICE, "type", "veth", "peer", "name", TARGET_DEVICE];
        tool("ip", &[link.as_slice(), &["netns", &pid]].concat())?;
        tool("ip", &["addr", "add", HOST_ADDRESS, "dev", HOST_DEVICE])?;
        tool("ip", &["link", "set", HOST_DEVICE, "up"])?;
        let inside = |arguments: &[&str]| {
            tool("nsenter", &[&["--net", "--target", &pid, "--", "ip"], arguments].concat())
        };
        inside(&["link", "set", "lo", "up"])?;
        inside(&["addr", "add", &format!("{TARGET_ADDRESS}/24"), "dev", TARGET_DEVICE])?;
        inside(&["link", "set", TARGET_DEVICE, "up"])?;
        Ok(network)
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    /// The prefix of commands that run in the target's network.
    pub(super) fn prefix(&self) -> Vec<String> {
        let words = ["nsenter", "--net", "--target", &self.pid(), "--"];
        words.map(str::to_owned).to_vec()
    }

    /// Throttles both ends to this many Gb/s.
    pub(super) fn throttle(&self, gigabits: u32) -> Outcome {
        let rate = format!("{gigabits}gbit");
        let of = |device| {
            let queue = ["qdisc", "replace", "dev", device, "root", "tbf"];
            [queue.as_slice(), &["rate", &rate, "burst", BURST, "latency", WAIT]].concat()
        };
        tool("tc", &of(HOST_DEVICE))?;
        let pid = self.pid();
        let inside = ["--net", "--target", &pid, "--", "tc"];
        tool("nsenter", &[inside.as_slice(), &of(TARGET_DEVICE)].concat())
    }
}

/// Returns once the process runs, and so has its network.
fn echo(holder: &mut Child) -> std::io::Result<()> {
    use std::io::{Read, Write};
    if let (Some(input), Some(output)) = (&mut holder.stdin, &mut holder.stdout) {
        input.write_all(b"\n")?;
        output.read_exact(&mut [0])?;
    }
    Ok(())
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
