//! Function Load, Function Unload and Function Report (docs/protocol.md).

use super::context::{Answered, Command, Context, Outcome};
use super::upload::{self, Kind, Part};
use crate::association::PartialUpload;
use crate::command_log::Topic;
use crate::controller::{Controller, Counters};
use crate::declared_maps::{self, DeclaredMap};
use crate::kept::is_kept;
use crate::limits::{ASSOCIATION_UNITS, MAX_ASSOCIATION_CODE_BYTES, MAX_FUNCTIONS};
use crate::loader::{Load, Loaded};
use crate::queue::State;
use crate::refusal::{Refusal, Reply};
use crate::subsystem::Subsystem;
use crate::transport::Payload;
use bpfof_chain::{Function, Trace};
use bpfof_function::abi::MAX_OBJECT_BYTES;
use bpfof_nvme::vendor_specific::{FunctionDigest, FunctionReportEntry, MapAddress, NO_FAULT};
use bpfof_nvme::{AdminCommand, Installation, ReportContent, Status, Upload};
use log::Level;
use std::sync::Arc;

/// Function Load.
pub(super) fn load(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    upload: Upload,
    installation: Installation,
) -> Answered {
    let name_bytes = if installation.named { Installation::NAME_BYTES } else { 0 };
    let what = (Kind::Function, name_bytes + MAX_OBJECT_BYTES);
    match upload::take_part(cx, command, what, upload, installation)? {
        Part::NeedData(length) => Ok(Outcome::NeedData(length)),
        Part::Taken => Ok(Outcome::DONE),
        Part::Whole(object) => compile(cx, command, object),
    }
}

fn compile(cx: &mut Context<'_>, command: &Command<'_>, upload: PartialUpload) -> Answered {
    let PartialUpload { installation, data: object, memory, .. } = upload;
    let controller = cx.controller();
    let admin = cx.admin();
    if admin.is_loading {
        let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        return Err(Refusal::new(status, "another function of the association is being loaded"));
    }
    let full = match () {
        () if own_functions(&controller).0 >= MAX_FUNCTIONS => {
            Some(format!("the association has {MAX_FUNCTIONS} functions; unload one first"))
        }
        // Takes weeks of continuous loading; ids are never reused.
        () if is_kept(admin.last_function + 1) => {
            Some("the association has used all its function ids; reconnect".to_owned())
        }
        () => None,
    };
    if let Some(message) = full {
        admin.load_message.clone_from(&message);
        return Err(Refusal::new(Status::RESOURCE_LIMIT.with_dnr(), message));
    }
    admin.is_loading = true;
    admin.last_function += 1;
    let function = admin.last_function;
    let command = cx.occupy(command, State::Load);
    let serial = cx.connection.serial;
    let host = Arc::clone(controller.host());
    let load = Load { command, serial, function, installation, object, host, _memory: memory };
    cx.executor.outbox.loads.push(load);
    Ok(Outcome::Pending)
}

/// Installs a compiled function, and answers the command that loaded it.
pub(crate) fn loaded(cx: &mut Context<'_>, loaded: Loaded) {
    let Loaded { command, installation, outcome, .. } = loaded;
    // The command may have been dropped, and its slot reused by another.
    if !matches!(cx.connection.queue.slot(command.slot).state, State::Load) {
        return;
    }
    let taken = cx.connection.queue.vacate(command.slot);
    let (controller, subsystem) = (cx.controller(), cx.subsystem());
    let now_ns = cx.executor.now_ns;
    let admin = cx.admin();
    admin.is_loading = false;
    let last_map = &mut admin.last_function_map;
    let installed =
        outcome.map_err(|message| Refusal::new(Status::FUNCTION_REJECTED, message)).and_then(
            |function| install(function, installation, (&controller, &subsystem, now_ns), last_map),
        );
    let reply = match installed {
        Ok(id) => {
            admin.load_message.clear();
            if installation.kept {
                cx.executor.spend(subsystem.associations() as u64 * ASSOCIATION_UNITS);
            }
            Reply::dword(id)
        }
        Err(refusal) => {
            admin.load_message = refusal.cause();
            cx.connection.note(Level::Info, now_ns, format_args!("Function Load: {refusal}"));
            refusal.status().with_dnr().into()
        }
    };
    cx.respond(&taken, reply, Payload::None);
}

/// Number of the association's own functions, and the total size of their machine code in bytes.
fn own_functions(controller: &Controller) -> (usize, usize) {
    let tables = controller.tables();
    let own = tables.functions().iter().filter(|function| !is_kept(function.id));
    own.fold((0, 0), |(count, bytes), function| (count + 1, bytes + function.native.code_bytes()))
}

/// Installs a compiled function in its association, or in all of them. Returns its id.
fn install(
    mut function: Function,
    installation: Installation,
    (controller, subsystem, now_ns): (&Controller, &Subsystem, u64),
    last_map: &mut u32,
) -> Result<u32, Refusal> {
    let full = |message: String| Refusal::new(Status::RESOURCE_LIMIT, message);
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
            "the function has {bytes} bytes of machine code, but the association's other functions \
             already use {used} of {MAX_ASSOCIATION_CODE_BYTES} bytes; unload some first"
        )));
    }
    let bytes = function.native.memory_bytes() + Trace::MEMORY_BYTES;
    let memory = controller.host().memory.charge(bytes);
    function.memory = Some(memory.map_err(|error| full(error.to_string()))?);
    let id = match installation.kept {
        true => subsystem.keep_function(function, controller, now_ns)?,
        false => install_own(function, controller, last_map)?,
    };
    let (host, when) = (controller.host(), (Level::Info, now_ns));
    host.log.note(Topic::Commands, when, &host.nqn, format_args!("function {id} is {about}"));
    Ok(id)
}

/// Installs a function of an association's own, with its maps. Only its admin connection calls this.
fn install_own(
    function: Function,
    controller: &Controller,
    last_map: &mut u32,
) -> Result<u32, Refusal> {
    let tables = controller.tables();
    let own = tables.function_maps().iter().filter(|known| !is_kept(known.id));
    let known: Vec<DeclaredMap> = own.map(|known| DeclaredMap::of(known)).collect();
    let wanted = function.native.program().maps();
    let declared = declared_maps::declare(wanted, &known, last_map, 0)?;
    let (id, function) = (function.id, Arc::new(function));
    // No other thread changes the association's own maps in the meantime.
    let installed = declared_maps::make(&declared, &tables, (&controller.host().memory, 0), None)
        .and_then(|maps| {
            controller
                .try_update(|tables| tables.with_function_and_maps(Arc::clone(&function), maps))
        });
    installed.map_err(|full| Refusal::new(Status::RESOURCE_LIMIT, full.to_string()))?;
    controller.counters.begin(id);
    Ok(id)
}

/// Function Unload.
pub(super) fn unload(cx: &mut Context<'_>, function: u32) -> Answered {
    let (controller, subsystem) = (cx.controller(), cx.subsystem());
    if controller.tables().function(function).is_none() {
        return Err(unknown(function));
    }
    if is_kept(function) {
        if !subsystem.owns(&controller, function) {
            let status = Status::OPERATION_DENIED.with_dnr();
            return Err(Refusal::new(status, "the function was installed by another host"));
        }
        cx.executor.spend(subsystem.associations() as u64 * ASSOCIATION_UNITS);
        subsystem.drop_function(function);
    } else {
        controller.update(|tables| tables.without_function(function));
        controller.counters.remove(function);
    }
    Ok(Outcome::DONE)
}

fn unknown(function: u32) -> Refusal {
    Refusal::new(Status::UNKNOWN_FUNCTION.with_dnr(), format!("there is no function {function}"))
}

/// Function Report.
pub(super) fn report(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    (owner, function, content): (u16, u32, ReportContent),
    length_bytes: u32,
) -> Answered {
    let subsystem = cx.subsystem();
    let controller = subsystem.association_for(&cx.controller(), owner).ok_or_else(|| {
        let cause = format!("the host has no association {owner}");
        Refusal::new(Status::UNKNOWN_FUNCTION.with_dnr(), cause)
    })?;
    let mut report = match content {
        ReportContent::Associations => associations(&controller, &subsystem),
        ReportContent::Entries
            if function == AdminCommand::LAST_LOAD_MESSAGE && owner == MapAddress::OWN =>
        {
            cx.admin().load_message.clone().into_bytes()
        }
        ReportContent::LastFault => last_fault_message(function, &controller, &subsystem)?,
        ReportContent::Trace => trace(function, &controller, &subsystem)?,
        ReportContent::Entries => entries(function, &controller, &subsystem)?,
        ReportContent::Digests => digests(function, &controller)?,
    };
    let dw0 = report.len() as u32;
    report.truncate(length_bytes as usize);
    command.check_room(report.len())?;
    Ok(Outcome::Data(Reply::dword(dw0), report))
}

/// The function with this id, or all functions.
fn wanted(function: u32, controller: &Controller) -> Result<Vec<Arc<Function>>, Refusal> {
    let tables = controller.tables();
    let is_all = function == AdminCommand::ALL_FUNCTIONS;
    if !is_all && tables.function(function).is_none() {
        return Err(unknown(function));
    }
    let is_it = |known: &&Arc<Function>| is_all || known.id == function;
    Ok(tables.functions().iter().filter(is_it).cloned().collect())
}

/// docs/protocol.md, Function Report, CDW12 4.
fn digests(function: u32, controller: &Controller) -> Result<Vec<u8>, Refusal> {
    let entry = |installed: &Arc<Function>| {
        let digest = installed.native.program().digest();
        FunctionDigest { function: installed.id, digest }.to_bytes()
    };
    Ok(wanted(function, controller)?.iter().flat_map(entry).collect())
}

/// docs/protocol.md, Function Report, CDW12 0.
fn entries(
    function: u32,
    controller: &Controller,
    subsystem: &Subsystem,
) -> Result<Vec<u8>, Refusal> {
    let entry = |installed: &Arc<Function>| {
        let counters = counters(installed.id, controller, subsystem);
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
    };
    Ok(wanted(function, controller)?.iter().flat_map(|known| entry(known).to_bytes()).collect())
}

/// docs/protocol.md, Function Report, CDW12 3.
fn associations(controller: &Controller, subsystem: &Subsystem) -> Vec<u8> {
    let all = subsystem.associations_for(controller);
    let others = all.iter().map(|other| other.id).filter(|id| *id != controller.id);
    [controller.id].into_iter().chain(others).flat_map(u16::to_le_bytes).collect()
}

/// The counters of a function. For a kept function, those of the association, or of all associations if it is the
/// owner.
fn counters(function: u32, controller: &Controller, subsystem: &Subsystem) -> Counters {
    match is_kept(function) && subsystem.owns(controller, function) {
        true => subsystem.kept_counters.get(function),
        false => controller.counters.get(function),
    }
}

/// docs/protocol.md, Function Report, CDW12 2.
fn trace(
    function: u32,
    controller: &Controller,
    subsystem: &Subsystem,
) -> Result<Vec<u8>, Refusal> {
    let tables = controller.tables();
    let installed = tables.function(function).ok_or_else(|| unknown(function))?;
    let here = tables.trace_of(function);
    let here = here.filter(|_| !subsystem.owns(controller, function));
    Ok(here.unwrap_or(&installed.trace).report().into_bytes())
}

/// docs/protocol.md, Function Report, CDW12 1.
fn last_fault_message(
    function: u32,
    controller: &Controller,
    subsystem: &Subsystem,
) -> Result<Vec<u8>, Refusal> {
    let tables = controller.tables();
    let installed = tables.function(function).ok_or_else(|| unknown(function))?;
    let fault = counters(function, controller, subsystem).last_fault;
    let message = fault.map(|fault| fault.explain(installed.native.program()));
    Ok(message.unwrap_or_default().into_bytes())
}
