//! Answers of commands: the variable parts of a completion, and why a command is refused.

use bpfof_chain::ChainError;
use bpfof_nvme::Status;
use std::borrow::Cow;
use std::fmt;

/// A completion's variable parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    pub(crate) dw0: u32,
    pub(crate) dw1: u32,
}

impl Reply {
    /// Success, with this command-specific dword.
    pub(crate) fn dword(dw0: u32) -> Reply {
        Reply { dw0, ..Reply::default() }
    }
}

impl From<Status> for Reply {
    fn from(status: Status) -> Self {
        Reply { status, dw0: 0, dw1: 0 }
    }
}

/// Why a command is refused: the reply is for the host, the cause for the log.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) reply: Reply,
    /// The invalid field of the command or of its data, if any.
    field: &'static str,
    cause: Cause,
}

#[derive(Clone, Debug)]
enum Cause {
    Words(Cow<'static, str>),
    /// The error of a chain, which becomes text only where it is read.
    Chain(ChainError),
}

impl Refusal {
    /// A refusal with this status.
    pub(crate) fn new(status: Status, cause: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { reply: status.into(), field: "", cause: Cause::Words(cause.into()) }
    }

    /// A chain has failed after `hops` hops (docs/protocol.md, Statuses).
    pub(crate) fn of_chain(error: ChainError, hops: u32) -> Refusal {
        let (mut status, dw0) = error.status();
        if error != ChainError::Interrupted {
            status = status.with_dnr();
        }
        let reply = Reply { status, dw0, dw1: hops };
        Refusal { reply, field: "", cause: Cause::Chain(error) }
    }

    /// Invalid Field in Command: this field.
    pub(crate) fn field(field: &'static str, cause: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { field, ..Refusal::new(Status::INVALID_FIELD.with_dnr(), cause) }
    }

    /// The same refusal, naming this field.
    pub(crate) fn of_field(self, field: &'static str) -> Refusal {
        Refusal { field, ..self }
    }

    /// The same refusal with these command-specific dwords.
    pub(crate) fn with_dwords(mut self, dw0: u32, dw1: u32) -> Refusal {
        (self.reply.dw0, self.reply.dw1) = (dw0, dw1);
        self
    }

    /// The cause in words, without the status.
    pub(crate) fn cause(&self) -> String {
        match &self.cause {
            Cause::Words(words) => words.clone().into_owned(),
            Cause::Chain(error) => error.to_string(),
        }
    }

    /// The status that the host gets.
    pub(crate) fn status(&self) -> Status {
        self.reply.status
    }
}

impl From<Status> for Refusal {
    /// A status that needs no explanation.
    fn from(status: Status) -> Self {
        Refusal::new(status, "")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { reply: Reply { status, dw0, dw1 }, field, cause } = self;
        write!(f, "{status}")?;
        if (*dw0, *dw1) != (0, 0) {
            write!(f, ", DW0 {dw0:#x}, DW1 {dw1:#x}")?;
        }
        if !field.is_empty() {
            write!(f, ": field {field}")?;
        }
        match cause {
            Cause::Words(words) if words.is_empty() => Ok(()),
            Cause::Words(words) => write!(f, ": {words}"),
            Cause::Chain(error) => write!(f, ": {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interrupted_chain_may_be_sent_again() {
        let status = |error| Refusal::of_chain(error, 3).status();
        assert_eq!(status(ChainError::Interrupted), Status::COMMAND_INTERRUPTED);
        assert_eq!(status(ChainError::Device), Status::UNRECOVERED_READ_ERROR.with_dnr());
        assert_eq!(status(ChainError::HopBudget), Status::HOP_BUDGET_EXHAUSTED.with_dnr());
    }
}
