//! Faults of connections, processes, power and disks; also the normal operation of disks.

use super::Plant;
use super::disk::{Action, Data};
use super::machine::Machine;
use super::network::{MILLISECOND, SECOND, Time, Trouble};
use super::world::{Event, OnDisk, Phase, World};
use super::{Checked, disk::Operation};
use crate::operation::FileOperation;
use bpfof_device::IoBuffer;

const EIO: i32 = 5;
/// Maximum delay until a host notices that the target has closed its connection: earlier data is delivered first.
const LATE: Time = 8 * SECOND;

impl World {
    /// Causes one fault, and schedules the next.
    pub(super) fn fault(&mut self) -> Checked {
        if self.phase != Phase::Run || self.faults_left == 0 {
            return Ok(());
        }
        self.faults_left -= 1;
        let pause = match self.random.below(4) {
            0 => self.random.below(2 * SECOND),
            _ => self.random.below(10 * MILLISECOND),
        };
        self.after(pause, Event::Fault);
        match self.random.below(10) {
            0..=2 => self.cut_some_link(),
            3 => self.trouble_some_link(),
            4 => self.host_sleeps(),
            5 | 6 => self.target_dies(false),
            _ => self.target_dies(true),
        }
        Ok(())
    }

    fn some_link(&mut self) -> Option<usize> {
        let open: Vec<usize> =
            (0..self.links.len()).filter(|link| self.clients[*link].is_some()).collect();
        (!open.is_empty()).then(|| self.random.pick(&open))
    }

    /// Breaks a connection; each end notices at its own time.
    fn cut_some_link(&mut self) {
        let Some(index) = self.some_link() else { return };
        self.trace(|| format!("link {index}: cut"));
        self.done.cuts += 1;
        let link = &mut self.links[index];
        link.breaks();
        link.to_target.cut(&mut self.random);
        link.to_host.cut(&mut self.random);
        self.deliver_soon(index, true);
        self.deliver_soon(index, false);
    }

    /// Silences a connection, for a while or, if the target checks for signs of life, forever.
    fn trouble_some_link(&mut self) {
        let Some(index) = self.some_link() else { return };
        let Some(client) = &self.clients[index] else { return };
        let for_ever = self.hosts[client.host].kato_ms > 0 && self.random.one_in(2);
        let trouble = match for_ever {
            true => Trouble::Dead,
            false => Trouble::Stalled(self.now + self.random.below(20 * SECOND)),
        };
        self.trace(|| format!("link {index}: {trouble:?}"));
        self.done.cuts += 1;
        let link = &mut self.links[index];
        link.trouble = trouble;
        match trouble {
            Trouble::Stalled(until) => link.is_silent_until(until, LATE),
            _ => link.breaks(),
        }
    }

    /// Makes a host inactive, perhaps for longer than its keep-alive timeout.
    fn host_sleeps(&mut self) {
        let host = self.random.index(self.hosts.len());
        let until = self.now + self.random.below(8 * SECOND);
        self.trace(|| format!("host {host}: sleeps until {until} ns"));
        self.hosts[host].sleeps_until = until;
        for (link, client) in self.clients.iter().enumerate() {
            if client.as_ref().is_some_and(|client| client.host == host) {
                self.links[link].is_silent_until(until, LATE);
            }
        }
    }

    /// Kills the target's process, with `power` also the disks' caches. It restarts later.
    pub(super) fn target_dies(&mut self, power: bool) {
        let Some(machine) = self.machine.take() else { return };
        self.trace(|| if power { "power loss" } else { "the target dies" }.to_owned());
        match power {
            true => self.done.power_losses += 1,
            false => self.done.crashes += 1,
        }
        drop(machine);
        self.forget_process();
        for (_, OnDisk { operation, .. }) in std::mem::take(&mut self.on_disk) {
            if let Some(disk) = self.disks[operation.disk].as_mut().filter(|_| !power) {
                disk.abandon(operation, &mut self.random);
            }
        }
        for disk in self.disks.iter_mut().flatten() {
            match power {
                true => disk.power_lost(&mut self.random),
                false => disk.target_died(),
            }
        }
        self.model.target_died(power);
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if link.server.take().is_some() {
                link.excused = true;
                link.to_target.drop_all();
                link.to_host.cut(&mut self.random);
                self.deliver_soon(index, false);
                self.report_if_gone(index);
            }
        }
        let pause = match self.random.below(8) {
            0 => self.random.below(3 * SECOND),
            _ => self.random.below(20 * MILLISECOND),
        };
        self.after(pause, Event::Restart);
    }

    /// Submits an operation of the target to a disk.
    pub(super) fn submit_to_disk(&mut self, core: usize, operation: FileOperation) {
        let (disk, place, action, data, command) = match operation {
            FileOperation::Read { namespace, buffer, offset, command } => {
                let place = (offset, buffer.len() as u64);
                (namespace, place, Action::Read, Data::Buffer(buffer), Some(command))
            }
            FileOperation::ChainRead { namespace, read } => {
                let place = (read.device_offset, u64::from(read.length));
                let data = Data::Copy(vec![0; read.length as usize]);
                (namespace, place, Action::ChainRead(read), data, None)
            }
            FileOperation::Write { namespace, buffer, offset, fua, command } => {
                let place = (offset, buffer.len() as u64);
                (namespace, place, Action::Write { fua }, Data::Buffer(buffer), Some(command))
            }
            FileOperation::Sync { namespace, command } => {
                (namespace, (0, 0), Action::Sync { upto: 0 }, Data::None, Some(command))
            }
            FileOperation::Zero { namespace, offset, length, command, .. } => {
                (namespace, (offset, length), Action::Zero, Data::None, Some(command))
            }
        };
        let Some(known) = &self.disks[disk] else { return };
        let operation = known.submit(disk, place, action, data, &mut self.random);
        let failure = match operation.action {
            _ if !self.settings.disk_errors || !self.random.one_in(60) => None,
            // The disk is full: only a part was written.
            Action::Write { .. } if self.random.one_in(2) => Some(0),
            _ => Some(-EIO),
        };
        let id = self.next_operation;
        self.next_operation += 1;
        let mut entry = OnDisk { core, command, failure, operation };
        if self.has(Plant::AnswersBeforeWriting)
            && matches!(entry.operation.action, Action::Write { fua: false })
            && let Some(command) = entry.command.take()
        {
            let length = place.1 as i32;
            self.machine().file_done(core, command, length, Some(IoBuffer::new(length as usize)));
            self.turn_soon(core);
        }
        self.on_disk.insert(id, entry);
        let delay = self.delay();
        self.after(delay, Event::Disk { operation: id });
    }

    /// Lets a disk access some blocks of an operation, or complete it.
    pub(super) fn disk_works(&mut self, id: u64) {
        let Some(entry) = self.on_disk.get_mut(&id) else { return };
        let Some(disk) = &mut self.disks[entry.operation.disk] else { return };
        // An operation that fails does so at a random point.
        let fails_now = entry.failure.is_some() && self.random.one_in(3);
        if !fails_now && !disk.step(&mut entry.operation, &mut self.random) {
            let delay = self.delay();
            return self.after(delay, Event::Disk { operation: id });
        }
        let Some(entry) = self.on_disk.remove(&id) else { return };
        if entry.failure.is_none() {
            disk.complete(&entry.operation);
        }
        if self.has(Plant::ForgetsCompletions) && self.random.one_in(100) {
            return;
        }
        let core = entry.core;
        if let Some(machine) = &mut self.machine {
            tell(machine, entry);
        }
        self.turn_soon(core);
    }
}

/// Reports a completed operation to the target.
fn tell(machine: &mut Machine, entry: OnDisk) {
    let OnDisk { core, command, failure, operation: Operation { action, data, .. } } = entry;
    match (action, data, command) {
        (Action::ChainRead(read), Data::Copy(bytes), _) => {
            machine.chain_read(core, read, failure.is_none().then_some(bytes));
        }
        (_, Data::Buffer(buffer), Some(command)) => {
            let result = failure.unwrap_or(buffer.len() as i32);
            machine.file_done(core, command, result, Some(buffer));
        }
        (_, _, Some(command)) => machine.file_done(core, command, failure.unwrap_or(0), None),
        _ => {}
    }
}
