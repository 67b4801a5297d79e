//! RocksDB with pushdown as one of the programs that must not notice a failover: its stress test checks each answer
//! while the database changes, and fails if a chain fails.

use crate::disk::Disk;
use crate::integration::build_only;
use crate::workers::Progress;
use bpfof_host::TargetUrl;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Gets that take longer are reported.
const SLOW_MS: &str = "10";
const PROGRAM: &str = "bpfof-rocksdb-stress";

pub(crate) struct Stress {
    process: Child,
    gets: Arc<Progress>,
}

impl Stress {
    /// Starts the stress test, for this time and a little more.
    pub(crate) fn start(disk: &Disk, url: &TargetUrl, lasts: Duration) -> Stress {
        let mut process = Command::new(build_only(PROGRAM).join(PROGRAM))
            .arg(disk.mount())
            .args([url.to_string(), disk.image().display().to_string()])
            .args(["--seconds", &lasts.as_secs().max(1).to_string(), "--slow", SLOW_MS])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (output, gets) = (process.stdout.take().expect("piped"), Arc::<Progress>::default());
        let slow = Arc::clone(&gets);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let told = line.strip_prefix("a Get took ").and_then(|ms| ms.strip_suffix(" ms"));
                match told.map(str::parse) {
                    Some(ms) => slow.note(Duration::from_millis(ms.expect("a number"))),
                    None => println!("RocksDB: {line}"),
                }
            }
        });
        Stress { process, gets }
    }

    /// Whether it still runs; panics if it has failed.
    pub(crate) fn runs(&mut self) -> bool {
        let ended = self.process.try_wait().expect("it can be waited for");
        assert!(ended.is_none_or(|status| status.success()), "RocksDB: {ended:?}");
        ended.is_none()
    }

    pub(crate) fn take_longest(&self) -> Duration {
        self.gets.take_longest()
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
