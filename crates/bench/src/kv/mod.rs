//! `bpfof bench kv`: BPF-KV at a target, or in a file on this machine.

mod batch;
pub(crate) mod driver;
mod local;
pub(crate) mod options;
pub(crate) mod plot;
pub(crate) mod remote;
pub(crate) mod report;
mod threads;
mod tls;

pub(crate) use options::KvCommand;

use bpfof_terminal::Outcome;
use options::KvExecutor;

pub(crate) fn run(command: &KvCommand) -> Outcome {
    match command {
        KvCommand { executor: KvExecutor::Local, options, .. } if options.tls => {
            Err("--tls needs a target, and cannot be used with --executor local".into())
        }
        KvCommand { executor: KvExecutor::Local, options, .. } if !options.batch.is_empty() => {
            Err("--batch needs a target, and cannot be used with --executor local".into())
        }
        KvCommand { executor: KvExecutor::Local, options, .. } if !options.threads.is_empty() => {
            Err("--threads needs a target, and cannot be used with --executor local".into())
        }
        KvCommand { executor: KvExecutor::Local, file, options } => {
            local::run(options, file.as_deref())
        }
        KvCommand { file: Some(_), .. } => {
            Err("--file needs --executor local; for a target use --target".into())
        }
        KvCommand { options, .. } if options.tls => tls::run(options),
        KvCommand { options, .. } if !options.batch.is_empty() => batch::run(options),
        KvCommand { options, .. } if !options.threads.is_empty() => threads::run(options),
        KvCommand { options, .. } => remote::run(options),
    }
}
