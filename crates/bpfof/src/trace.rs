//! `bpfof trace`.

mod chrome;

use crate::observed;
use bpfof_controller::{TraceRequest, Traced};
use bpfof_operations::client::{Client, ControlSocket};
use bpfof_terminal::{Outcome, end_signals, output, tell};
use chrome::ChromeFile;
use clap::Args;
use serde::Deserialize;
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    control: ControlSocket,
    /// Trace only one chain in N.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Only chains that take longer than this: 250us, 5ms, 1s.
    #[arg(long, value_name = "TIME", value_parser = parse_us)]
    slower: Option<u64>,
    /// Only chains of the host with this name.
    #[arg(long, value_name = "NQN")]
    host: Option<String>,
    /// Only chains of the function with this name.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// End after N chains [default: at Ctrl-C].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Print a line of JSON for each chain.
    #[arg(long)]
    json: bool,
    /// Write a file for the trace viewer of a browser (chrome://tracing, ui.perfetto.dev) instead.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    chrome: Option<PathBuf>,
}

/// A time with its unit, in µs.
fn parse_us(text: &str) -> Result<u64, String> {
    let units = [("us", 1), ("µs", 1), ("ms", 1000), ("s", 1_000_000)];
    let time = units.iter().find_map(|(unit, us)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*us)
    });
    time.ok_or_else(|| "a whole number with us, ms or s, for example 5ms".to_owned())
}

pub(crate) fn run(options: &Options) -> Outcome {
    let mut client = Client::connect(&options.control.socket)?;
    let is_enough = end_on_time_or_signal(&client, options.seconds)?;
    let request = TraceRequest {
        every: options.every,
        slower_us: options.slower,
        host: options.host.clone(),
        function: options.function.clone(),
    };
    client.call("trace", serde_json::to_value(&request)?)?;
    // Overwrite the file only once the trace has begun.
    let mut chrome = options.chrome.as_deref().map(ChromeFile::create).transpose()?;
    let (mut told, mut skipped) = (0, 0);
    while let Some(notified) = client.notified()? {
        // The last notification has only this.
        skipped += notified["skipped"].as_u64().unwrap_or_default();
        if notified.get("class").is_none() || options.count.is_some_and(|count| told >= count) {
            continue;
        }
        let traced = Traced::deserialize(&notified)?;
        told += 1;
        if options.count == Some(told) {
            is_enough.store(true, Ordering::Relaxed);
            let end = client.ender()?;
            std::thread::spawn(end);
        }
        match &mut chrome {
            Some(file) => file.add(&traced.chain)?,
            None if options.json => writeln!(output(), "{notified}")?,
            None => write!(output(), "{}", observed::chain(&traced.chain))?,
        }
    }
    if let Some(file) = chrome {
        file.finish()?;
    }
    let more = match skipped {
        0 => String::new(),
        _ => format!("; {skipped} more were skipped, too many to show: take one in N by --every"),
    };
    tell(format_args!("{told} chains{more}"));
    match is_enough.load(Ordering::Relaxed) {
        true => Ok(()),
        false => {
            Err("the target has ended the trace: it is stopping, or this client was too slow"
                .into())
        }
    }
}

/// Ends the client's notifications when the time is over, and on Ctrl-C, SIGTERM and the loss of the terminal; the
/// returned flag is then set.
fn end_on_time_or_signal(client: &Client, seconds: Option<u64>) -> io::Result<Arc<AtomicBool>> {
    let mut signals = Signals::new(end_signals())?;
    let is_enough = Arc::new(AtomicBool::new(false));
    let ender = || {
        let (end, flag) = (client.ender()?, Arc::clone(&is_enough));
        io::Result::Ok(move || {
            flag.store(true, Ordering::Relaxed);
            end();
        })
    };
    let end = ender()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            end();
        }
    })?;
    if let Some(seconds) = seconds {
        let end = ender()?;
        std::thread::Builder::new().name("clock".into()).spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            end();
        })?;
    }
    Ok(is_enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_us("250us"), Ok(250));
        assert_eq!(parse_us("5 ms"), Ok(5000));
        assert_eq!(parse_us("1s"), Ok(1_000_000));
        for wrong in ["", "5", "ms", "-1ms", "1.5ms", "99999999999999999999s"] {
            assert!(parse_us(wrong).is_err(), "{wrong}");
        }
    }
}
