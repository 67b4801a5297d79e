//! Commands of admin queues, and fabrics commands.

use crate::connection::{Close, Connection, Reply, State};
use crate::controller::{Controller, Counters};
use crate::events::Events;
use crate::executor::Executor;
use crate::features::Feature;
use crate::function_maps::{self, DeclaredMap};
use crate::identify;
use crate::limits::{
    MAP_UNITS, MAX_ASSOCIATION_CODE_BYTES, MAX_ASSOCIATION_EXTENTS, MAX_FILE_MAPS, MAX_FUNCTIONS,
    MAX_MAP_BYTES, MAX_QUEUE_ENTRIES, MAX_TRANSFER_BYTES,
};
use crate::loader::Load;
use crate::subsystem::{Refusal, is_kept};
use crate::{discovery, logs};
use bpfof_chain::{Extent, FileMap, Function, Trace};
use bpfof_function::abi::MAX_OBJECT_BYTES;
use bpfof_function::memory::{Charge, MemoryFull};
use bpfof_nvme::fabrics::{Cap, ControllerConfig, Version, offset};
use bpfof_nvme::log_page::lid;
use bpfof_nvme::vendor::{FileMapObject, FunctionReportEntry, NO_FAULT};
use bpfof_nvme::{
    AdminCommand, FabricsCommand, Installation, ReportContent, Sgl, Sqe, Status, Upload,
};
use log::Level;
use std::sync::Arc;

/// Function Report: the message of the last load.
const LAST_LOAD: u32 = u32::MAX;

/// What a byte of a file map costs, in units: it is parsed, checked and indexed.
const MAP_UNITS_PER_BYTE: u64 = 8;

/// What an admin connection keeps between commands.
#[derive(Debug, Default)]
pub(crate) struct AdminState {
    function_upload: Option<PartialUpload>,
    map_upload: Option<PartialUpload>,
    /// Why the last Function Load was refused; empty if it was not.
    load_message: String,
    last_function: u32,
    last_function_map: u32,
    /// One at a time: a load takes memory and a thread.
    loading: bool,
    pub(crate) events: Events,
}

#[derive(Debug)]
struct PartialUpload {
    total: u32,
    installation: Installation,
    data: Vec<u8>,
    /// All of it.
    memory: Charge,
}

impl AdminState {
    /// Bytes held of uploads that are not complete.
    pub(crate) fn upload_bytes(&self) -> usize {
        let parts = [&self.function_upload, &self.map_upload];
        parts.into_iter().flatten().map(|partial| partial.data.len()).sum()
    }
}

pub(crate) type Answered = Result<(), Reply>;

pub(crate) fn invalid_field() -> Reply {
    Status::INVALID_FIELD.with_dnr().into()
}

impl Connection {
    /// A command of the admin queue with its data, if that is here.
    pub(crate) fn admin_command(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Close> {
        let controller = Arc::clone(self.controller.as_ref().expect("an admin queue has one"));
        let answered = match AdminCommand::parse(sqe) {
            Ok(AdminCommand::Fabrics(command)) => self.admin_fabrics(sqe.cid, command, &controller),
            Ok(_) if !controller.is_ready() => {
                Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into())
            }
            Ok(command) => self.ready_command(sqe, command, data, &controller, x),
            Err(status) => Err(status.into()),
        };
        if let Err(reply) = answered {
            self.refuse(sqe, reply, x.now_ns);
        }
        Ok(())
    }

    fn ready_command(
        &mut self,
        sqe: &Sqe,
        command: AdminCommand,
        data: &[u8],
        controller: &Arc<Controller>,
        x: &mut Executor,
    ) -> Answered {
        let cid = sqe.cid;
        let has_cache = || controller.subsystem.traits().has_volatile_cache;
        match command {
            AdminCommand::Identify { cns, nsid, csi, .. } => {
                let page = identify::page(controller, cns, nsid, csi)?;
                self.answer(sqe, Reply::default(), &page)
            }
            AdminCommand::GetLogPage {
                lid: lid::CHANGED_NAMESPACES,
                rae,
                length_bytes,
                offset_bytes,
                ..
            } if !controller.subsystem.is_discovery() => {
                self.changed_namespaces(sqe, (offset_bytes, length_bytes), rae, controller)
            }
            AdminCommand::GetLogPage { lid, lsp, rae, length_bytes, offset_bytes, nsid } => {
                // Before the page is made: what comes in between is news.
                let generation = controller.subsystem.log_generation();
                let page = self.log((lid, lsp), nsid, controller, x)?;
                self.log_page(sqe, &page, offset_bytes, length_bytes)?;
                if controller.subsystem.is_discovery() {
                    self.has_read_discovery_log(generation, rae);
                }
                Ok(())
            }
            AdminCommand::SetFeatures { fid, cdw11, save, nsid } => {
                if save {
                    return Err(Status::FEATURE_NOT_SAVEABLE.with_dnr().into());
                }
                let dw0 = self.set_feature((fid, cdw11, nsid), controller, has_cache())?;
                self.complete(cid, Reply { dw0, ..Reply::default() });
                Ok(())
            }
            AdminCommand::GetFeatures { fid, sel, cdw11, .. } => {
                match self.feature((fid, sel, cdw11), controller, has_cache())? {
                    Feature::Dword(dw0) => self.complete(cid, Reply { dw0, ..Reply::default() }),
                    Feature::Data(data) => return self.answer(sqe, Reply::default(), &data),
                }
                Ok(())
            }
            AdminCommand::AsyncEventRequest => self.park_async_event(cid),
            // Nothing can be taken back once a device has it: DW0 bit 0 says "not aborted".
            AdminCommand::Abort { .. } => {
                self.complete(cid, Reply { dw0: 1, ..Reply::default() });
                Ok(())
            }
            AdminCommand::KeepAlive => {
                self.complete(cid, Reply::default());
                Ok(())
            }
            AdminCommand::Fabrics(_) | AdminCommand::Unknown(_) => {
                Err(Status::INVALID_OPCODE.with_dnr().into())
            }
            // Functions and file maps belong to subsystems with namespaces.
            _ if controller.subsystem.is_discovery() => {
                Err(Status::INVALID_OPCODE.with_dnr().into())
            }
            vendor => self.vendor_command(sqe, vendor, data, controller, x),
        }
    }

    /// docs/protocol.md, Admin commands.
    fn vendor_command(
        &mut self,
        sqe: &Sqe,
        command: AdminCommand,
        data: &[u8],
        controller: &Arc<Controller>,
        x: &mut Executor,
    ) -> Answered {
        let cid = sqe.cid;
        match command {
            AdminCommand::FunctionUnload { function } => self.unload(cid, function, controller),
            AdminCommand::FunctionReport { function, length_bytes, content } => {
                let report = match content {
                    ReportContent::LastFault => last_fault_message(function, controller)?,
                    ReportContent::Trace => trace(function, controller)?,
                    ReportContent::Entries => self.report(function, controller)?,
                };
                let dw0 = report.len() as u32;
                let shown = report.len().min(length_bytes as usize);
                self.answer(sqe, Reply { dw0, ..Reply::default() }, &report[..shown])
            }
            AdminCommand::PushdownIdentify { length_bytes } => {
                let limits = identify::pushdown_limits(&x.target.limits).to_bytes();
                let shown = limits.len().min(length_bytes as usize);
                self.answer(sqe, Reply::default(), &limits[..shown])
            }
            AdminCommand::FunctionLoad(upload, installation) => {
                self.upload(sqe, upload, installation, data, controller, x)
            }
            AdminCommand::FileMapSet(upload) => {
                self.upload(sqe, upload, Installation::default(), data, controller, x)
            }
            AdminCommand::Map(command) => self.map_command(sqe, command, data, controller, x),
            _ => Err(Status::INVALID_OPCODE.with_dnr().into()),
        }
    }

    /// A log page, whole (NVMe Base 2.0 §5.16).
    fn log(
        &self,
        (lid, lsp): (u8, u8),
        nsid: u32,
        controller: &Controller,
        x: &Executor,
    ) -> Result<Vec<u8>, Reply> {
        match (lid, controller.subsystem.is_discovery()) {
            (lid::DISCOVERY, true) => {
                let generation = controller.subsystem.log_generation();
                Ok(discovery::log_page(&x.target, generation, &self.ends))
            }
            (_, true) => Err(Status::INVALID_LOG_PAGE.with_dnr().into()),
            (_, false) => logs::page(lid, (lsp, nsid), controller),
        }
    }

    /// NVMe Base 2.0 §5.16: what lies behind a page's end reads as zero.
    pub(crate) fn log_page(
        &mut self,
        sqe: &Sqe,
        page: &[u8],
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Answered {
        // Bits 1:0 of the offset are zero (§5.16, LPOL).
        if !offset_bytes.is_multiple_of(4) {
            return Err(invalid_field());
        }
        let start = usize::try_from(offset_bytes).map_err(|_| invalid_field())?;
        let rest = page.get(start..).ok_or_else(invalid_field)?;
        if length_bytes > u64::from(MAX_TRANSFER_BYTES) {
            return Err(invalid_field());
        }
        let mut answer = rest.to_vec();
        answer.resize((length_bytes as usize).min(sqe.sgl.length_bytes as usize), 0);
        self.answer(sqe, Reply::default(), &answer)
    }

    /// Sends an admin command's data, which must fit what the host offers.
    pub(crate) fn answer(&mut self, sqe: &Sqe, reply: Reply, data: &[u8]) -> Answered {
        if sqe.sgl.kind != Sgl::TRANSPORT && !data.is_empty() {
            return Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into());
        }
        if (sqe.sgl.length_bytes as usize) < data.len() {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr().into());
        }
        self.send_data(sqe.cid, reply, data.len(), |to| to.own().extend_from_slice(data));
        Ok(())
    }

    fn admin_fabrics(
        &mut self,
        cid: u16,
        command: FabricsCommand,
        controller: &Controller,
    ) -> Answered {
        match command {
            FabricsCommand::PropertyGet { offset, size8 } => {
                let value = property(offset, size8, controller).ok_or_else(invalid_field)?;
                let reply =
                    Reply { dw0: value as u32, dw1: (value >> 32) as u32, ..Reply::default() };
                self.complete(cid, reply);
                Ok(())
            }
            FabricsCommand::PropertySet { offset: offset::CC, size8: false, value } => {
                let config = ControllerConfig::from(value as u32);
                let resets = controller.resets();
                self.reset_queues |= controller.configure(config);
                if resets != controller.resets()
                    && let Some(admin) = &mut self.admin
                {
                    admin.events.clear();
                }
                log::debug!("{}: controller configuration {value:#x}", self.name());
                self.complete(cid, Reply::default());
                Ok(())
            }
            FabricsCommand::PropertySet { .. } => Err(invalid_field()),
            FabricsCommand::Connect { .. } => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into()),
            // Only for I/O queues (NVMe Base 2.0 §6.4).
            FabricsCommand::Disconnect => Err(Status::INVALID_QUEUE_TYPE.with_dnr().into()),
            _ => Err(Status::INVALID_OPCODE.with_dnr().into()),
        }
    }

    /// Whether this connection ends when the queues of a controller do, or, with `and_admin`, the
    /// controller itself. The host may have opened queues since it reset the controller, before a
    /// reactor hears of that: those stay.
    pub(crate) fn ends_with(&self, controller: &Arc<Controller>, and_admin: bool) -> bool {
        let its = self.controller.as_ref().is_some_and(|its| Arc::ptr_eq(its, controller));
        let came = self.queue.as_ref().map_or(0, |queue| queue.resets);
        its && (and_admin || self.admin.is_none() && came != controller.resets())
    }

    /// Fabrics commands on a connected I/O queue: only Disconnect.
    pub(crate) fn io_fabrics(
        &mut self,
        sqe: &Sqe,
        command: FabricsCommand,
        now_ns: u64,
    ) -> Result<(), Close> {
        let status = match command {
            FabricsCommand::Disconnect => {
                self.complete(sqe.cid, Reply::default());
                return Err(Close::Disconnect);
            }
            FabricsCommand::Connect { .. } => Status::COMMAND_SEQUENCE_ERROR,
            _ => Status::INVALID_OPCODE,
        };
        self.refuse(sqe, status.with_dnr(), now_ns);
        Ok(())
    }

    /// docs/protocol.md, Uploads. Without its data yet, asks for it first.
    fn upload(
        &mut self,
        sqe: &Sqe,
        upload: Upload,
        installation: Installation,
        data: &[u8],
        controller: &Arc<Controller>,
        x: &mut Executor,
    ) -> Answered {
        let length = sqe.sgl.length_bytes;
        let is_function = sqe.opcode == bpfof_nvme::opcode::admin::FUNCTION_LOAD;
        let limit = if is_function { MAX_OBJECT_BYTES } else { MAX_MAP_BYTES };
        let slot = self.open_upload(is_function);
        let fits = upload.offset_bytes.checked_add(length);
        let in_order = upload.offset_bytes == 0
            || slot.as_ref().is_some_and(|partial| {
                (partial.data.len(), partial.total, partial.installation)
                    == (upload.offset_bytes as usize, upload.total_bytes, installation)
            });
        let good = length > 0
            && upload.total_bytes as usize <= limit
            && fits.is_some_and(|end| end <= upload.total_bytes)
            && length <= MAX_TRANSFER_BYTES
            && in_order;
        if !good {
            *slot = None;
            return Err(invalid_field());
        }
        if data.len() != length as usize {
            if sqe.sgl.kind != Sgl::TRANSPORT {
                return Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into());
            }
            let sqe = *sqe;
            self.request_data(sqe.cid, length, x, |data| State::AdminData { sqe, data });
            return Ok(());
        }
        if upload.offset_bytes == 0 {
            *slot = None;
            let total = upload.total_bytes;
            let memory = controller.host().memory.charge(total as usize);
            let memory = memory.map_err(|full| self.no_memory("an upload", &full, x))?;
            let data = Vec::with_capacity(total as usize);
            let fresh = PartialUpload { total, installation, data, memory };
            *self.open_upload(is_function) = Some(fresh);
        }
        let slot = self.open_upload(is_function);
        let Some(partial) = slot else { return Err(invalid_field()) };
        partial.data.extend_from_slice(data);
        if partial.data.len() < upload.total_bytes as usize {
            self.complete(sqe.cid, Reply::default());
            return Ok(());
        }
        let Some(whole) = slot.take() else { return Err(invalid_field()) };
        if is_function {
            self.load(sqe.cid, whole, controller, x)
        } else {
            self.set_map(sqe.cid, &whole.data, controller, x)
        }
    }

    /// The host's share of the memory, or all of it, is used up: the log says which.
    fn no_memory(&mut self, what: &str, full: &MemoryFull, x: &Executor) -> Reply {
        self.note(Level::Warn, x.now_ns, format_args!("no memory for {what}: {full}"));
        Status::RESOURCE_LIMIT.into()
    }

    fn open_upload(&mut self, is_function: bool) -> &mut Option<PartialUpload> {
        let admin = self.admin.get_or_insert_default();
        if is_function { &mut admin.function_upload } else { &mut admin.map_upload }
    }

    fn load(
        &mut self,
        cid: u16,
        upload: PartialUpload,
        controller: &Arc<Controller>,
        x: &mut Executor,
    ) -> Answered {
        let PartialUpload { installation, data: object, memory, .. } = upload;
        let admin = self.admin.get_or_insert_default();
        if admin.loading {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into());
        }
        if own_functions(controller).0 >= MAX_FUNCTIONS {
            admin.load_message =
                format!("the association has {MAX_FUNCTIONS} functions; unload one first");
            return Err(Status::RESOURCE_LIMIT.with_dnr().into());
        }
        // After weeks of nothing but loads; an id is never used again.
        if is_kept(admin.last_function + 1) {
            admin.load_message = "the association has used all its ids; connect again".to_owned();
            return Err(Status::RESOURCE_LIMIT.with_dnr().into());
        }
        admin.loading = true;
        admin.last_function += 1;
        let function = admin.last_function;
        let command = self.occupy(cid, State::Load);
        let serial = self.serial;
        let host = Arc::clone(controller.host());
        let load = Load { command, serial, function, installation, object, host, _memory: memory };
        x.loads.push(load);
        Ok(())
    }

    /// A compilation has ended: installs the function and answers.
    pub(crate) fn loaded(
        &mut self,
        slot: u16,
        installation: Installation,
        outcome: Result<Function, String>,
        x: &mut Executor,
    ) {
        // It may have been forgotten, and the slot be another command's.
        if !matches!(self.slots[usize::from(slot)].state, State::Load) {
            return;
        }
        let (cid, _) = self.vacate(slot);
        let (Some(admin), Some(controller)) = (&mut self.admin, &self.controller) else { return };
        admin.loading = false;
        let installed =
            outcome.map_err(|message| (Status::FUNCTION_REJECTED, message)).and_then(|function| {
                install(function, installation, (controller, &mut admin.last_function_map))
            });
        match installed {
            Ok(id) => {
                admin.load_message.clear();
                self.complete(cid, Reply { dw0: id, ..Reply::default() });
            }
            Err((status, message)) => {
                admin.load_message.clone_from(&message);
                self.note(Level::Info, x.now_ns, format_args!("function refused: {message}"));
                self.complete(cid, status.with_dnr().into());
            }
        }
    }

    fn unload(&mut self, cid: u16, function: u32, controller: &Controller) -> Answered {
        if controller.tables().function(function).is_none() {
            return Err(Status::UNKNOWN_FUNCTION.with_dnr().into());
        }
        if is_kept(function) {
            if !controller.subsystem.owns(controller, function) {
                return Err(Status::OPERATION_DENIED.with_dnr().into());
            }
            controller.subsystem.drop_function(function);
        } else {
            controller.update(|tables| tables.without_function(function));
            controller.counters.remove(function);
        }
        self.complete(cid, Reply::default());
        Ok(())
    }

    /// docs/protocol.md, File Map Set.
    fn set_map(
        &mut self,
        cid: u16,
        object: &[u8],
        controller: &Controller,
        x: &mut Executor,
    ) -> Answered {
        // The other maps are looked at, and the table of them is copied.
        let others = controller.tables().map_count() as u64;
        x.spend(object.len() as u64 * MAP_UNITS_PER_BYTE + others * MAP_UNITS);
        let map = FileMapObject::parse(object).map_err(|_| invalid_field())?;
        let index = x.find(&controller.subsystem, map.nsid).ok_or_else(invalid_field)?;
        let tables = controller.tables();
        if map.version == 0 {
            controller.update(|tables| tables.without_map(map.file));
            self.complete(cid, Reply::default());
            return Ok(());
        }
        let too_many = tables.map_count() >= MAX_FILE_MAPS && !tables.has_map(map.file);
        let extents = tables.extent_count(map.file) + map.extents.len();
        if too_many || extents > MAX_ASSOCIATION_EXTENTS {
            return Err(Status::RESOURCE_LIMIT.with_dnr().into());
        }
        let extents = map.extents.iter().map(|extent| Extent {
            file_offset: extent.file_offset,
            device_offset: extent.device_offset,
            length: extent.length_bytes,
        });
        let namespace = x.namespace(index);
        let checked = FileMap::new(
            map.nsid,
            map.version,
            map.length_bytes,
            extents.collect(),
            namespace.size_bytes(),
            namespace.block_bytes(),
        );
        let checked = match checked {
            Ok(checked) => checked,
            Err(error) => {
                let what = format_args!("map of file {} refused: {error}", map.file);
                self.note(Level::Info, x.now_ns, what);
                return Err(invalid_field());
            }
        };
        let memory = controller.host().memory.charge(checked.memory_bytes());
        let set = memory.and_then(|memory| {
            controller.try_update(|tables| tables.with_counted_map(map.file, checked, Some(memory)))
        });
        set.map_err(|full| self.no_memory("a file map", &full, x))?;
        self.complete(cid, Reply::default());
        Ok(())
    }

    /// docs/protocol.md, Function Report.
    fn report(&mut self, function: u32, controller: &Controller) -> Result<Vec<u8>, Reply> {
        if function == LAST_LOAD {
            return Ok(self.admin.get_or_insert_default().load_message.clone().into_bytes());
        }
        let tables = controller.tables();
        if function != 0 && tables.function(function).is_none() {
            return Err(Status::UNKNOWN_FUNCTION.with_dnr().into());
        }
        let wanted = tables.functions().iter().filter(|f| function == 0 || f.id == function);
        Ok(wanted
            .flat_map(|installed| {
                let counters = counters(installed.id, controller);
                FunctionReportEntry {
                    function: installed.id,
                    instructions: installed.instructions,
                    native_bytes: installed.native.code_bytes() as u32,
                    fault_pc: counters.last_fault.map_or(NO_FAULT, |fault| fault.pc),
                    chains: counters.chains,
                    hops: counters.hops,
                    read_bytes: counters.read_bytes,
                    faults: counters.faults,
                    aborts: counters.aborts,
                    compile_us: installed.native.compile_time().as_micros() as u64,
                    name: installed.name.as_str().into(),
                }
                .to_bytes()
            })
            .collect())
    }
}

/// How many functions the association has of its own, and the bytes of their machine code.
fn own_functions(controller: &Controller) -> (usize, usize) {
    let tables = controller.tables();
    let own = tables.functions().iter().filter(|function| !is_kept(function.id));
    own.fold((0, 0), |(count, bytes), function| (count + 1, bytes + function.native.code_bytes()))
}

/// Gives a compiled function to its association, or to all. Returns its id.
fn install(
    mut function: Function,
    installation: Installation,
    (controller, last_map): (&Controller, &mut u32),
) -> Result<u32, Refusal> {
    let full = |message: String| (Status::RESOURCE_LIMIT, message);
    let bytes = function.native.code_bytes();
    let about = format!(
        "{:?}: {} instructions, {bytes} bytes of code, compiled in {:?}",
        function.name,
        function.instructions,
        function.native.compile_time(),
    );
    let used = own_functions(controller).1;
    if !installation.kept && used + bytes > MAX_ASSOCIATION_CODE_BYTES {
        return Err(full(format!(
            "{bytes} bytes of machine code, where the association's other functions take {used} of \
             {MAX_ASSOCIATION_CODE_BYTES} bytes; unload some first"
        )));
    }
    let bytes = function.native.memory_bytes() + Trace::MEMORY_BYTES;
    let memory = controller.host().memory.charge(bytes);
    function.memory = Some(memory.map_err(|error| full(error.to_string()))?);
    let id = match installation.kept {
        true => controller.subsystem.keep_function(function, controller)?,
        false => install_own(function, controller, last_map)?,
    };
    log::info!("{}: function {id} is {about}", controller.host_nqn());
    Ok(id)
}

/// Gives an association a function of its own, with its maps. Only its admin connection does that.
fn install_own(
    function: Function,
    controller: &Controller,
    last_map: &mut u32,
) -> Result<u32, Refusal> {
    let tables = controller.tables();
    let own = tables.function_maps().iter().filter(|known| !is_kept(known.id));
    let known: Vec<DeclaredMap> = own.map(|known| DeclaredMap::of(known)).collect();
    let wanted = function.native.program().maps();
    let declared = function_maps::declare(wanted, &known, last_map, 0)?;
    let (id, function) = (function.id, Arc::new(function));
    // Nobody else changes the tables' own maps meanwhile.
    let installed =
        function_maps::make(&declared, &tables, &controller.host().memory).and_then(|maps| {
            controller
                .try_update(|tables| tables.with_function_and_maps(Arc::clone(&function), maps))
        });
    installed.map_err(|full| (Status::RESOURCE_LIMIT, full.to_string()))?;
    controller.counters.begin(id);
    Ok(id)
}

/// What is known of a function: of a kept one what concerns the association, or all if it owns it.
fn counters(function: u32, controller: &Controller) -> Counters {
    match is_kept(function) && controller.subsystem.owns(controller, function) {
        true => controller.subsystem.kept_counters.get(function),
        false => controller.counters.get(function),
    }
}

/// docs/protocol.md, Function Report, CDW12 2.
fn trace(function: u32, controller: &Controller) -> Result<Vec<u8>, Reply> {
    let tables = controller.tables();
    let installed = tables.function(function).ok_or(Status::UNKNOWN_FUNCTION.with_dnr())?;
    let here = tables.trace_of(function);
    let here = here.filter(|_| !controller.subsystem.owns(controller, function));
    Ok(here.unwrap_or(&installed.trace).report().into_bytes())
}

/// docs/protocol.md, Function Report, CDW12 1.
fn last_fault_message(function: u32, controller: &Controller) -> Result<Vec<u8>, Reply> {
    let tables = controller.tables();
    let installed = tables.function(function).ok_or(Status::UNKNOWN_FUNCTION.with_dnr())?;
    let fault = counters(function, controller).last_fault;
    let message = fault.map(|fault| fault.explain(installed.native.program()));
    Ok(message.unwrap_or_default().into_bytes())
}

/// Properties (NVMe Base 2.0 §3.1.3). None for an unknown one or a wrong size.
fn property(at: u32, size8: bool, controller: &Controller) -> Option<u64> {
    match (at, size8) {
        (offset::CAP, true) => Some(
            Cap {
                mqes: MAX_QUEUE_ENTRIES - 1,
                cqr: true,
                timeout_500ms: 20,
                css: 1,
                ..Cap::default()
            }
            .into(),
        ),
        (offset::VS, false) => Some(Version::V1_4.0.into()),
        (offset::CC, false) => Some(u32::from(controller.config()).into()),
        (offset::CSTS, false) => Some(u32::from(controller.status()).into()),
        _ => None,
    }
}
