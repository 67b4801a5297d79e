//! Chains: from a start to an outcome, one hop at a time.

mod plan;

use crate::chain::{
    Answer, ChainError, ChainId, DeviceRead, FileRead, FileVersion, InvalidOutput, Limits,
    Progress, Start, Usage,
};
use crate::cost;
use crate::free_arenas::FreeArenas;
use crate::installed::Installed;
pub use crate::installed::MAX_TAIL_CALLS;
use crate::suspended::Suspended;
use crate::tables::{MapIndex, Tables};
use bpfof_function::abi::{MAX_READS, context};
use bpfof_function::{Arena, Exit, Limit};

/// A read of a hop.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    file: u32,
    offset: u64,
    /// The bytes asked for, in the data area.
    start: u32,
    end: u32,
    /// The whole units that contain those bytes: their place in the data area, and the namespace offset of the first
    /// one.
    data_at: u32,
    length: u32,
    device_offset: u64,
    /// Whether these units are contiguous in the namespace.
    in_one_piece: bool,
}

/// One chain. The fields that a hop with one read needs are in the first cache lines.
// 24 fields in one structure, not in parts: the compiler may not reorder them across the cache lines
// that a hop touches.
#[derive(Debug)]
#[repr(C, align(64))]
struct Chain {
    arena: Arena,
    /// Serial of the tables in which the function and the files were found; 0 if they have not been found.
    found_in: u64,
    function_index: usize,
    /// Device reads of this hop that have not completed.
    pending: u32,
    hop: u32,
    last_function: u32,
    instructions_left: u64,
    bytes_left: u64,
    unit_mask: u64,
    file_count: usize,
    read_count: usize,
    device_failed: bool,
    running: bool,
    /// The chain rests at the end of this hop.
    gives_way: bool,
    /// A device read of this hop was cancelled.
    interrupted: bool,
    /// The read of this hop whose call is next.
    next_call: u32,
    answer_max_bytes: u32,
    function: u32,
    namespace: u32,
    maps: [MapIndex; MAX_READS],
    reads: [Read; MAX_READS],
    files: [FileVersion; MAX_READS],
    map_serials: [u64; MAX_READS],
    owner: u64,
}

/// The result of a hop.
enum Step {
    Reads,
    Calls,
    Rest,
    Done(u32),
}

/// Runs the chains of one thread.
#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    /// Units after which the calls of a hop are interrupted.
    slice: u64,
    /// Units of work done since the last [`Engine::take_spent`].
    spent: u64,
    chains: Vec<Chain>,
    free: FreeArenas,
}

impl Engine {
    /// An engine without chains. Arenas are allocated on first use and kept.
    pub fn new(limits: Limits) -> Engine {
        Engine {
            limits,
            slice: u64::MAX,
            spent: 0,
            chains: Vec::new(),
            free: FreeArenas::default(),
        }
    }

    /// Interrupts the calls of a hop once they have taken this many units; the default is to make all calls at once.
    pub fn with_slice(self, units: u64) -> Engine {
        Engine { slice: units, ..self }
    }

    /// Units of work done since the last [`take_spent`](Self::take_spent).
    #[inline]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Returns the units of work done since the last call, and resets the count.
    #[inline]
    pub fn take_spent(&mut self) -> u64 {
        std::mem::take(&mut self.spent)
    }

    /// Subtracts units that have already been paid for.
    #[inline]
    pub fn refund(&mut self, units: u64) {
        self.spent = self.spent.saturating_sub(units);
    }

    /// The limits that the engine was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Chains that have been started and not released.
    pub fn running(&self) -> usize {
        self.chains.len() - self.free.len()
    }

    /// Whether a chain has been started, and neither released nor suspended.
    #[inline]
    pub fn is_running(&self, id: ChainId) -> bool {
        self.chains.get(id.index()).is_some_and(|chain| chain.running)
    }

    /// Starts a chain and emits its first reads. Report each read with [`completed`](Engine::completed), even if the
    /// chain is no longer wanted.
    pub fn start(
        &mut self,
        start: &Start<'_>,
        tables: &Tables,
        mut emit: impl FnMut(DeviceRead),
    ) -> Result<ChainId, ChainError> {
        if tables.function_index(start.function).is_none() {
            return Err(ChainError::UnknownFunction);
        }
        let id = self.acquire(start.owner)?;
        let Engine { limits, spent, chains, .. } = self;
        let chain = &mut chains[id.index()];
        chain.begin(start, limits);
        *spent += cost::start(start.scratch_bytes);
        let first = (start.first_file, start.first_offset_bytes, start.first_size_bytes);
        let started =
            chain.find(tables).and_then(|()| chain.plan_one(id, tables, first, spent, &mut emit));
        match started {
            Ok(()) => Ok(id),
            Err(error) => {
                self.release(id);
                Err(error)
            }
        }
    }

    /// Reports that one device read of a chain has ended, with its data in place if `ok`. After the last read of the
    /// hop, calls the function and emits the next reads.
    #[inline]
    pub fn completed(
        &mut self,
        id: ChainId,
        ok: bool,
        tables: &Tables,
        emit: impl FnMut(DeviceRead),
    ) -> Progress {
        let Engine { limits, slice, spent, chains, .. } = self;
        chains[id.index()].completed((id, ok), (limits, *slice), tables, spent, emit)
    }

    /// Marks a read as cancelled rather than failed. Call it before reporting the read as not `ok`. If the chain
    /// ends because of its reads, it then ends with [`ChainError::Interrupted`].
    pub fn interrupt(&mut self, id: ChainId) {
        self.chains[id.index()].interrupted = true;
    }

    /// For devices that copy: `bring` copies the data of a read into the arena; then reports the read as
    /// [`completed`](Engine::completed) does.
    #[inline(always)]
    pub fn perform(
        &mut self,
        read: &DeviceRead,
        bring: impl FnOnce(&mut [u8]),
        ok: bool,
        tables: &Tables,
        emit: impl FnMut(DeviceRead),
    ) -> Progress {
        let Engine { limits, slice, spent, chains, .. } = self;
        let chain = &mut chains[read.chain.index()];
        let start = read.data_at as usize;
        bring(chain.arena.data_mut(start..start + read.length as usize));
        chain.completed((read.chain, ok), (limits, *slice), tables, spent, emit)
    }

    /// Continues the calls of a hop after [`Progress::Calls`]. If `wanted` is false the chain ends as if the device had
    /// failed.
    pub fn go_on(
        &mut self,
        id: ChainId,
        wanted: bool,
        tables: &Tables,
        emit: impl FnMut(DeviceRead),
    ) -> Progress {
        let Engine { limits, slice, spent, chains, .. } = self;
        let chain = &mut chains[id.index()];
        chain.device_failed |= !wanted;
        chain.run_hop(id, (limits, *slice), tables, spent, emit)
    }

    /// Whether a chain waits for exactly one device read.
    #[inline]
    pub fn awaits_one(&self, id: ChainId) -> bool {
        self.chains[id.index()].pending == 1
    }

    /// Asks a chain to rest at the end of its hop, so that another can have its arena.
    pub fn give_way(&mut self, id: ChainId) {
        self.chains[id.index()].gives_way = true;
    }

    /// Takes a [resting](Progress::Rest) chain out of its arena, which is free afterwards.
    pub fn suspend(&mut self, id: ChainId) -> Suspended {
        let chain = &mut self.chains[id.index()];
        let suspended = Suspended {
            arena: chain.arena.save(),
            owner: chain.owner,
            namespace: chain.namespace,
            unit_mask: chain.unit_mask,
            function: chain.function,
            last_function: chain.last_function,
            files: chain.files[..chain.file_count].into(),
            map_serials: chain.map_serials[..chain.file_count].into(),
            answer_max_bytes: chain.answer_max_bytes,
            hop: chain.hop,
            bytes_left: chain.bytes_left,
            instructions_left: chain.instructions_left,
        };
        self.spent += cost::move_state(suspended.bytes());
        self.release(id);
        suspended
    }

    /// Continues a chain that was [suspended](Engine::suspend), perhaps in another arena, and emits the reads it had
    /// requested.
    ///
    /// # Errors
    /// As [`start`](Engine::start); the chain is over then, except after [`ChainError::TooManyChains`].
    pub fn resume(
        &mut self,
        suspended: &Suspended,
        tables: &Tables,
        mut emit: impl FnMut(DeviceRead),
    ) -> Result<ChainId, ChainError> {
        let id = self.acquire(suspended.owner)?;
        let Engine { spent, chains, .. } = self;
        *spent += cost::move_state(suspended.bytes());
        let chain = &mut chains[id.index()];
        chain.restore(suspended);
        let found = chain.find_anew(tables, !suspended.map_serials.is_empty());
        match found.and_then(|()| chain.plan_next(id, tables, spent, &mut emit)) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.release(id);
                Err(error)
            }
        }
    }

    /// Frees arenas beyond the first `keep`, from the last one down to the last in which a chain runs. Running chains
    /// keep their ids.
    pub fn trim(&mut self, keep: usize) {
        while self.chains.len() > keep && self.chains.last().is_some_and(|chain| !chain.running) {
            self.chains.pop();
        }
        let count = self.chains.len() as u32;
        self.free.trim(count);
    }

    /// Number of arenas, in use or not.
    pub fn arenas(&self) -> usize {
        self.chains.len()
    }

    /// Where a read's data goes, for devices that copy.
    ///
    /// # Panics
    /// If the read is not one that this engine emitted.
    #[inline]
    pub fn data_mut(&mut self, read: &DeviceRead) -> &mut [u8] {
        let start = read.data_at as usize;
        self.chains[read.chain.index()].arena.data_mut(start..start + read.length as usize)
    }

    /// Where a read's data goes, for devices that write on their own: valid for the read's length
    /// until the chain is released, which must not happen before the device is done.
    pub fn data_ptr(&mut self, read: &DeviceRead) -> *mut u8 {
        self.chains[read.chain.index()].arena.data_ptr().wrapping_add(read.data_at as usize)
    }

    /// Scratch of a finished chain, the answer at its start.
    pub fn scratch(&self, id: ChainId) -> &[u8] {
        self.chains[id.index()].arena.scratch()
    }

    /// Returns the resources that a chain has used so far.
    #[inline]
    pub fn usage(&self, id: ChainId) -> Usage {
        let chain = &self.chains[id.index()];
        let bytes = self.limits.bytes - chain.bytes_left;
        let units = self.limits.instructions - chain.instructions_left;
        let Chain { function, last_function, hop: hops, .. } = *chain;
        Usage { function, last_function, hops, bytes, units }
    }

    /// The reads that a chain waits for, or those of its latest hop.
    pub fn reads(&self, id: ChainId) -> impl Iterator<Item = FileRead> + '_ {
        let Chain { reads, read_count, files, .. } = &self.chains[id.index()];
        let read = |&Read { file, offset, start, end, .. }: &Read| {
            let file = files[file as usize].id;
            FileRead { file, offset_bytes: offset, size_bytes: end - start }
        };
        reads[..*read_count].iter().map(read)
    }

    /// Gives a finished chain's arena back.
    pub fn release(&mut self, id: ChainId) {
        let chain = &mut self.chains[id.index()];
        assert!(chain.running && chain.pending == 0, "released while the device may write");
        chain.running = false;
        self.free.put(id.0, chain.owner);
    }

    fn acquire(&mut self, owner: u64) -> Result<ChainId, ChainError> {
        let index = match self.free.take(owner) {
            Some(index) => index,
            None if self.chains.len() < self.limits.chains => {
                self.chains.push(Chain::new(owner));
                self.chains.len() as u32 - 1
            }
            None => return Err(ChainError::TooManyChains),
        };
        let chain = &mut self.chains[index as usize];
        if chain.owner != owner {
            self.spent += cost::WIPE;
            chain.arena.wipe();
            chain.owner = owner;
        }
        chain.running = true;
        Ok(ChainId(index))
    }
}

impl Chain {
    fn new(owner: u64) -> Chain {
        Chain {
            arena: Arena::new(),
            owner,
            running: false,
            namespace: 0,
            unit_mask: 0,
            function: 0,
            last_function: 0,
            files: Default::default(),
            file_count: 0,
            found_in: 0,
            function_index: 0,
            maps: Default::default(),
            map_serials: Default::default(),
            answer_max_bytes: 0,
            hop: 0,
            bytes_left: 0,
            instructions_left: 0,
            reads: Default::default(),
            read_count: 0,
            pending: 0,
            device_failed: false,
            gives_way: false,
            interrupted: false,
            next_call: 0,
        }
    }

    fn begin(&mut self, start: &Start<'_>, limits: &Limits) {
        assert!((1..=MAX_READS).contains(&start.files.len()), "the request's parser bounds files");
        // The function and maps found for the arena's previous chain stay valid for a chain with the same function and
        // files.
        let is_alike = self.function == start.function
            && self.namespace == start.namespace
            && self.files[..self.file_count] == *start.files;
        if !is_alike {
            self.found_in = 0;
        }
        self.namespace = start.namespace;
        self.unit_mask = u64::from(start.unit_bytes) - 1;
        self.function = start.function;
        self.last_function = start.function;
        self.files[..start.files.len()].copy_from_slice(start.files);
        self.file_count = start.files.len();
        self.answer_max_bytes = start.answer_max_bytes;
        self.hop = 0;
        self.bytes_left = limits.bytes;
        self.instructions_left = limits.instructions;
        self.begin_reading();
        self.arena.begin_chain(start.argument, start.scratch_bytes as usize);
    }

    fn begin_reading(&mut self) {
        self.pending = 0;
        self.device_failed = false;
        self.gives_way = false;
        self.interrupted = false;
        self.next_call = 0;
    }

    fn restore(&mut self, suspended: &Suspended) {
        self.namespace = suspended.namespace;
        self.unit_mask = suspended.unit_mask;
        self.function = suspended.function;
        self.last_function = suspended.last_function;
        self.file_count = suspended.files.len();
        self.files[..self.file_count].copy_from_slice(&suspended.files);
        self.map_serials[..suspended.map_serials.len()].copy_from_slice(&suspended.map_serials);
        self.answer_max_bytes = suspended.answer_max_bytes;
        self.hop = suspended.hop;
        self.bytes_left = suspended.bytes_left;
        self.instructions_left = suspended.instructions_left;
        self.begin_reading();
        self.arena.restore(&suspended.arena);
    }

    /// Finds the function and the files, whose maps must have the versions in the request (BPF-oF §4.2.1). The result
    /// stays valid as long as the tables are the same.
    #[inline]
    fn find(&mut self, tables: &Tables) -> Result<(), ChainError> {
        if self.found_in == tables.serial() { Ok(()) } else { self.find_anew(tables, false) }
    }

    /// The same after a read: all maps must be the same as before it. A map may have been removed and set again meanwhile,
    /// with the same version, and its blocks may have been another file's for some time.
    #[inline]
    fn find_again(&mut self, tables: &Tables) -> Result<(), ChainError> {
        if self.found_in == tables.serial() { Ok(()) } else { self.find_anew(tables, true) }
    }

    #[cold]
    fn find_anew(&mut self, tables: &Tables, has_read: bool) -> Result<(), ChainError> {
        self.found_in = 0;
        self.function_index =
            tables.function_index(self.function).ok_or(ChainError::UnknownFunction)?;
        for index in 0..self.file_count {
            let file = self.files[index];
            let unknown = ChainError::UnknownFile(index as u32);
            let found = tables.find_map(self.namespace, file.id).ok_or(unknown)?;
            let is_another = has_read && found.serial != self.map_serials[index];
            if found.version != file.version || is_another {
                return Err(ChainError::StaleFileMap(index as u32));
            }
            self.maps[index] = found.index;
            self.map_serials[index] = found.serial;
        }
        self.found_in = tables.serial();
        Ok(())
    }

    /// One of the reads of the hop has ended.
    #[inline(always)]
    fn completed(
        &mut self,
        (id, ok): (ChainId, bool),
        limits: (&Limits, u64),
        tables: &Tables,
        spent: &mut u64,
        emit: impl FnMut(DeviceRead),
    ) -> Progress {
        debug_assert!(self.running && self.pending > 0);
        self.pending -= 1;
        self.device_failed |= !ok;
        if self.pending > 0 {
            return Progress::Reads;
        }
        self.next_call = 0;
        self.run_hop(id, limits, tables, spent, emit)
    }

    #[inline(always)]
    fn run_hop(
        &mut self,
        id: ChainId,
        limits: (&Limits, u64),
        tables: &Tables,
        spent: &mut u64,
        mut emit: impl FnMut(DeviceRead),
    ) -> Progress {
        match self.hop(id, limits, tables, spent, &mut emit) {
            Ok(Step::Reads) => Progress::Reads,
            Ok(Step::Done(length_bytes)) => {
                Progress::Done(Ok(Answer { hops: self.hop, length_bytes }))
            }
            Ok(Step::Calls) => Progress::Calls,
            Ok(Step::Rest) => Progress::Rest,
            Err(error) => Progress::Done(Err((error, self.hop))),
        }
    }

    /// Makes the calls of a hop from `next_call` on, and asks for the next reads.
    #[inline(always)]
    fn hop(
        &mut self,
        id: ChainId,
        (limits, slice): (&Limits, u64),
        tables: &Tables,
        spent: &mut u64,
        emit: &mut impl FnMut(DeviceRead),
    ) -> Result<Step, ChainError> {
        let begins = self.next_call == 0;
        if begins {
            // All blocks of the hop were read, even if the function is called on only some of them.
            *spent += cost::hop(self.hop_bytes());
        }
        if self.device_failed {
            return Err(match self.interrupted {
                true => ChainError::Interrupted,
                false => ChainError::Device,
            });
        }
        if begins {
            self.arena.begin_hop(self.hop);
            self.hop += 1;
        }
        self.find_again(tables)?;
        let ends = match self.read_count {
            // The usual case of a lookup.
            1 => self.call(0, limits, tables, spent)?,
            _ => self.calls((limits, slice), tables, spent)?,
        };
        if let Some(step) = ends {
            return Ok(step);
        }
        if self.hop >= limits.hops {
            return Err(ChainError::HopBudget);
        }
        if self.gives_way {
            return Ok(Step::Rest);
        }
        self.plan_next(id, tables, spent, emit)?;
        Ok(Step::Reads)
    }

    /// Bytes of the data area that this hop's reads fill.
    #[inline(always)]
    fn hop_bytes(&self) -> u32 {
        let last = self.read_count.checked_sub(1).and_then(|last| self.reads.get(last));
        last.map_or(0, |last| last.data_at + last.length)
    }

    /// Makes calls from `next_call` on. Returns their result, or `None` if the next reads are to be planned.
    #[inline(never)]
    fn calls(
        &mut self,
        (limits, slice): (&Limits, u64),
        tables: &Tables,
        spent: &mut u64,
    ) -> Result<Option<Step>, ChainError> {
        let until = spent.saturating_add(slice);
        while (self.next_call as usize) < self.read_count {
            let index = self.next_call as usize;
            self.next_call += 1;
            let ends = self.call(index, limits, tables, spent)?;
            if ends.is_some() {
                return Ok(ends);
            }
            if *spent > until && (self.next_call as usize) < self.read_count {
                return Ok(Some(Step::Calls));
            }
        }
        Ok(None)
    }

    /// Calls the function on one read of the hop, and the functions that it tail-calls. Returns a step if the chain has
    /// ended.
    #[inline(always)]
    fn call(
        &mut self,
        index: usize,
        limits: &Limits,
        tables: &Tables,
        spent: &mut u64,
    ) -> Result<Option<Step>, ChainError> {
        let read = &self.reads[index];
        *spent += cost::CALL;
        let data = read.start as usize..read.end as usize;
        let limit = self.arena.begin_call(data, read.offset, read.file, index as u32);
        let granted = self.instructions_left.min(u64::from(limits.instructions_per_call));
        let mut budget = granted as i64;
        let function =
            tables.functions().get(self.function_index).ok_or(ChainError::UnknownFunction)?;
        self.last_function = function.id;
        let mut installed = Installed::new(tables, function);
        let exit = function.native.call(&mut self.arena, limit, &mut budget, &mut installed);
        let code = match exit {
            Ok(Exit::Return(code)) => Ok(code),
            Ok(Exit::TailCall(_)) => self.tail_calls(installed, (limit, spent), &mut budget),
            Err(fault) => {
                *spent += function.native.unpaid_after_fault(limit);
                Err(ChainError::Fault(fault))
            }
        };
        let used = granted - budget as u64;
        self.instructions_left -= used;
        *spent += used;
        match code? as u32 {
            0 if self.arena.context_u32(context::DONE) != 0 => self.answer().map(Some),
            0 => Ok(None),
            code => Err(ChainError::Abort(code)),
        }
    }

    /// Runs the tail-called functions one after the other. Returns the return value of the last one.
    #[cold]
    fn tail_calls(
        &mut self,
        mut before: Installed<'_>,
        (limit, spent): (Limit, &mut u64),
        budget: &mut i64,
    ) -> Result<u64, ChainError> {
        loop {
            let next = before.next.take().expect("a tail call has found its function");
            self.last_function = next.id;
            let Installed { tables, lines_left, tail_calls_left, .. } = before;
            let mut installed =
                Installed { lines_left, tail_calls_left, ..Installed::new(tables, &next) };
            let exit = next.native.call(&mut self.arena, limit, budget, &mut installed);
            match exit {
                Ok(Exit::Return(code)) => return Ok(code),
                Err(fault) => {
                    *spent += next.native.unpaid_after_fault(limit);
                    return Err(ChainError::Fault(fault));
                }
                Ok(Exit::TailCall(_)) => {
                    before.next = installed.next;
                    (before.lines_left, before.tail_calls_left) =
                        (installed.lines_left, installed.tail_calls_left);
                }
            }
        }
    }

    fn answer(&self) -> Result<Step, ChainError> {
        let length = self.arena.context_u32(context::OUT_LEN);
        if length as usize > self.arena.scratch().len() {
            return Err(ChainError::InvalidOutput(InvalidOutput::AnswerOutsideScratch));
        }
        if length > self.answer_max_bytes {
            return Err(ChainError::AnswerTooLong(length));
        }
        Ok(Step::Done(length))
    }
}
