//! Compares the answers that hosts get with the model.

use super::Checked;
use super::hosts::{Manner, Stage};
use super::model::Fate;
use super::network::{MICROSECOND, MILLISECOND, Time};
use super::requests::{Pending, What};
use super::world::{Phase, World};
use bpfof_host::RequestError;
use bpfof_nvme::Status;

/// Maximum wait of a read of memory, whatever else runs: the current turn, with a slice and a call beyond its end; the
/// turn that serves the read; and some time for a thread to wake up.
const READ_WAIT_MAX: Time = 2 * (200 + 20 + 200) * MICROSECOND + 100 * MICROSECOND;
/// The same for a chain of a few hops, which needs an arena that other chains occupy.
const CHAIN_WAIT_MAX: Time = 50 * MILLISECOND;

impl World {
    /// A request on a link has ended.
    pub(super) fn answered(
        &mut self,
        link: usize,
        tag: u64,
        result: Result<(Vec<u8>, u32, u32), RequestError>,
    ) -> Checked {
        let Some(pending) = self.pending.remove(&tag) else {
            return Err(format!("link {link}: request {tag} ends twice"));
        };
        if pending.link != link {
            let of = pending.link;
            return Err(format!("link {link}: the answer to request {tag} of link {of}"));
        }
        self.trace(|| match &result {
            Ok((data, dw0, _)) => {
                format!("link {link}: request {tag}: {} bytes, DW0 {dw0:#x}", data.len())
            }
            Err(error) => format!("link {link}: request {tag}: {error}"),
        });
        // A request that was lost with its connection has no client any more.
        if let Some(client) = &self.clients[link] {
            self.hosts[client.host].last_answer = self.now;
        }
        self.check_wait(&pending)?;
        let begun = pending.begun;
        let outcome = match result {
            Ok((data, dw0, _)) => self.succeeded(&pending, &data, dw0),
            Err(RequestError::Command(error)) => self.failed(&pending, error.status),
            Err(RequestError::DataDigest) => Err("data is damaged".to_owned()),
            Err(RequestError::Lost(_) | RequestError::Unknown(_)) => {
                self.done.lost += 1;
                self.end_writes(&pending, Fate::Lost { link })
            }
        };
        self.model.end(begun);
        outcome.map_err(|error| format!("link {link}, request {tag}, {:?}: {error}", pending.what))
    }

    /// Checks that a modest host has not waited for others.
    fn check_wait(&self, pending: &Pending) -> Checked {
        let Pending { link, what, .. } = pending;
        let host = self.clients[*link].as_ref().map(|client| client.host);
        if self.phase != Phase::Run
            || host.is_none_or(|host| self.hosts[host].manner != Manner::Modest)
        {
            return Ok(());
        }
        let wait = self.links[*link].told_at.saturating_sub(self.links[*link].asked_at);
        let wait_max = match what {
            What::Read { space: 2, .. } => READ_WAIT_MAX,
            _ => CHAIN_WAIT_MAX,
        };
        match wait <= wait_max {
            true => Ok(()),
            false => Err(format!("link {link}: {what:?} waited for {} µs", wait / MICROSECOND)),
        }
    }

    fn succeeded(&mut self, pending: &Pending, data: &[u8], dw0: u32) -> Checked {
        let Pending { link, begun, ref what } = *pending;
        let host = self.clients[link].as_ref().map(|client| client.host);
        match what {
            What::Connect
            | What::Enable
            | What::Disable
            | What::Status
            | What::Queues
            | What::Shutdown => self.started(link, what, true, dw0),
            What::Plain | What::Disconnect => Ok(()),
            What::NoFunction | What::BehindEnd | What::Spin => Err("it succeeds".into()),
            What::Read { space, first, count } => {
                let block_bytes = self.shapes[*space].block_bytes as usize;
                if data.len() != count * block_bytes {
                    return Err(format!("{} bytes are read", data.len()));
                }
                for (block, bytes) in (*first..).zip(data.chunks(block_bytes)) {
                    let found = self.contents.find(bytes)?;
                    self.model.seen((*space, block), found, begun)?;
                }
                Ok(())
            }
            What::Write { fua, .. } => self.end_writes(pending, Fate::Applied { durable: *fua }),
            What::Flush { space } => {
                self.model.flushed(*space, begun);
                Ok(())
            }
            What::Compare { space, first, expected } => {
                for (block, found) in (*first..).zip(expected) {
                    self.model.seen((*space, block), *found, begun)?;
                }
                Ok(())
            }
            What::Chain(call) => {
                let host = host.ok_or("the host is gone")?;
                self.check_chain(host, call, begun, (data, dw0))
            }
            What::Chains(calls, room) => {
                let host = host.ok_or("the host is gone")?;
                self.check_vector((link, host), (calls, *room), begun, (data, dw0))
            }
            What::Spins(count) => super::vectors::check_spins(*count, data),
            What::Map { file, version } => {
                let (host, now) = (host.ok_or("the host is gone")?, self.model.tick());
                self.hosts[host].maps.was_set(*file, *version, now);
                Ok(())
            }
        }
    }

    fn failed(&mut self, pending: &Pending, status: Status) -> Checked {
        let Pending { link, begun, ref what } = *pending;
        let host = self.clients[link].as_ref().map(|client| client.host);
        let disk_failed =
            [Status::WRITE_FAULT, Status::CAPACITY_EXCEEDED, Status::UNRECOVERED_READ_ERROR]
                .iter()
                .any(|known| known.same_code(status));
        let unexpected = || Err(format!("{status}"));
        match what {
            What::Connect if self.may_refuse(link) => self.started(link, what, false, 0),
            What::Connect
                if self.lacks_memory() && status.same_code(Status::CONNECT_CONTROLLER_BUSY) =>
            {
                self.started(link, what, false, 0)
            }
            What::Map { .. } if self.lacks_memory() && status.same_code(Status::RESOURCE_LIMIT) => {
                Ok(())
            }
            What::Spin if status.same_code(Status::HOP_BUDGET_EXHAUSTED) => Ok(()),
            What::BehindEnd if status.same_code(Status::LBA_OUT_OF_RANGE) => Ok(()),
            What::NoFunction
                if status.same_code(Status::FUNCTION_REJECTED)
                    || self.lacks_memory() && status.same_code(Status::RESOURCE_LIMIT) =>
            {
                if let Some(host) = host {
                    self.hosts[host].loads = false;
                }
                Ok(())
            }
            What::Compare { space, first, expected }
                if status.same_code(Status::COMPARE_FAILURE) =>
            {
                let mut places = (*first..).zip(expected);
                let model = &self.model;
                match places.all(|(block, found)| model.is_certain((*space, block), *found, begun))
                {
                    true => Err("it fails, although the blocks can only hold that".into()),
                    false => Ok(()),
                }
            }
            What::Chain(call) => {
                let host = host.ok_or("the host is gone")?;
                self.check_chain_error((link, host), call, begun, status)
            }
            // An operation that waited for others until its host was gone.
            What::Read { .. } | What::Flush { .. } | What::Compare { .. } | What::Plain
                if status.same_code(Status::ABORTED_SQ_DELETION)
                    && host.is_some_and(|host| self.may_close(link, host)) =>
            {
                Ok(())
            }
            // Write Zeroes that was cut short.
            What::Write { .. }
                if status.same_code(Status::ABORTED_SQ_DELETION)
                    && host.is_some_and(|host| self.may_close(link, host)) =>
            {
                self.end_writes(pending, Fate::Perhaps)
            }
            What::Write { .. } if disk_failed && self.settings.disk_errors => {
                self.end_writes(pending, Fate::Perhaps)
            }
            What::Read { .. } | What::Flush { .. } | What::Compare { .. } | What::Plain
                if disk_failed && self.settings.disk_errors =>
            {
                Ok(())
            }
            What::Write { .. } => {
                self.end_writes(pending, Fate::Never)?;
                unexpected()
            }
            _ => unexpected(),
        }
    }

    /// Whether a queue may be refused: its association may have ended or be in a reset, or its id may belong to a queue
    /// whose end the target has not noticed.
    fn may_refuse(&self, link: usize) -> bool {
        let is_lane = |client: &super::hosts::Client| !client.is_admin();
        self.clients[link].as_ref().is_some_and(is_lane)
            && self.stage(link) == Some(Stage::Starting)
    }

    /// Tells the model the fate of the blocks that a request writes, if any.
    fn end_writes(&mut self, pending: &Pending, fate: Fate) -> Checked {
        let What::Write { space, blocks, .. } = &pending.what else { return Ok(()) };
        for (block, write) in blocks {
            self.model.written((*space, *block), *write, pending.begun, fate)?;
        }
        Ok(())
    }
}
