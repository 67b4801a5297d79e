//! Compiles functions on one thread for all reactors, which serve others meanwhile. However many hosts
//! load functions at the same time, they cost one processor.

use crate::executor::Load;
use crate::reactor::{Mailbox, Message};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Takes functions to be compiled. The thread ends with the last of its clones.
#[derive(Clone)]
pub(crate) struct Compiler {
    queue: Sender<(Load, Mailbox)>,
}

impl Compiler {
    /// Starts the thread, which runs wherever the caller's may.
    pub(crate) fn start() -> io::Result<Compiler> {
        let (queue, loads) = channel();
        std::thread::Builder::new().name("compile".into()).spawn(move || run(&loads))?;
        Ok(Compiler { queue })
    }

    /// Compiles a function in its turn; the outcome comes to the mailbox as a message.
    pub(crate) fn compile(&self, load: Load, mailbox: Mailbox) {
        // The thread lives as long as this.
        let _ = self.queue.send((load, mailbox));
    }
}

fn run(loads: &Receiver<(Load, Mailbox)>) {
    for (load, mailbox) in loads {
        let outcome = catch_unwind(AssertUnwindSafe(|| load.run())).unwrap_or_else(|_| {
            Err("the compiler gave up on it, which is a defect of the target".into())
        });
        let Load { command, serial, installation, .. } = load;
        let outcome = Box::new(outcome);
        mailbox.send(Message::Loaded { command, serial, installation, outcome });
    }
}
