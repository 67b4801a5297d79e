//! `bpfof bench kv`: BPF-KV at a target, or in a file of this machine.

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
            Err("--tls is for a target, which --executor local does without".into())
        }
        KvCommand { executor: KvExecutor::Local, options, .. } if !options.batch.is_empty() => {
            Err("--batch is for a target, which --executor local does without".into())
        }
        KvCommand { executor: KvExecutor::Local, options, .. } if !options.threads.is_empty() => {
            Err("--threads is for a target, which --executor local does without".into())
        }
        KvCommand { executor: KvExecutor::Local, file, options } => {
            local::run(options, file.as_deref())
        }
        KvCommand { file: Some(_), .. } => {
            Err("--file is for --executor local; a target has --target".into())
        }
        KvCommand { options, .. } if options.tls => tls::run(options),
        KvCommand { options, .. } if !options.batch.is_empty() => batch::run(options),
        KvCommand { options, .. } if !options.threads.is_empty() => threads::run(options),
        KvCommand { options, .. } => remote::run(options),
    }
}
