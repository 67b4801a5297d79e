//! librdmacm and libibverbs, loaded on first use: their functions, and the parts of their structures in use (rdma-core:
//! `infiniband/verbs.h`, `rdma/rdma_cma.h`).
//!
//! Nothing is linked, so a program also runs where they are not installed. Both libraries keep their layouts within a
//! major version; assertions below compare sizes and offsets with those of rdma-core 44 and 56.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

/// `struct rdma_event_channel`.
#[repr(C)]
pub(super) struct EventChannel {
    pub(super) fd: c_int,
}

/// The beginning of `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    device: *mut c_void,
    pub(super) ops: ContextOps,
}

/// The members of `struct ibv_context_ops` that the header's inline functions call.
#[repr(C)]
pub(super) struct ContextOps {
    _before_poll: [*mut c_void; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _before_post: [*mut c_void; 12],
    pub(super) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
}

/// `struct ibv_pd`, which is opaque here.
#[repr(C)]
pub(super) struct Pd {
    _inside: [u8; 0],
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    context: *mut Context,
    pub(super) fd: c_int,
    _refcnt: c_int,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    _before: [u64; 4],
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Sge {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, with the member of its unions that RDMA uses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWr {
    pub(super) id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sge: *mut Sge,
    pub(super) sge_count: c_int,
    pub(super) opcode: c_int,
    pub(super) flags: c_uint,
    pub(super) _immediate: u32,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    pub(super) _rest: [u32; 19],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RecvWr {
    pub(super) id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sge: *mut Sge,
    pub(super) sge_count: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) id: u64,
    pub(super) status: c_int,
    pub(super) _opcode: c_int,
    pub(super) vendor_error: u32,
    pub(super) length: u32,
    pub(super) _rest: [u32; 6],
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
    pub(super) kind: c_int,
    pub(super) signals_all: c_int,
}

/// The beginning of `struct rdma_cm_id`.
#[repr(C)]
pub(super) struct CmId {
    pub(super) verbs: *mut Context,
    channel: *mut EventChannel,
    context: *mut c_void,
    pub(super) qp: *mut Qp,
    /// `struct rdma_addr` begins with both addresses: this end's, and the peer's.
    pub(super) source: [u8; 128],
    pub(super) destination: [u8; 128],
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConnParam {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

/// The beginning of `struct rdma_cm_event`.
#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    listen_id: *mut CmId,
    pub(super) kind: c_int,
    pub(super) status: c_int,
    pub(super) param: ConnParam,
}

const _: () = {
    assert!(offset_of!(Context, ops) == 8);
    assert!(offset_of!(ContextOps, poll_cq) == 88);
    assert!(offset_of!(ContextOps, req_notify_cq) == 96);
    assert!(offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(ContextOps, post_recv) == 208);
    assert!(offset_of!(CompChannel, fd) == 8);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, remote_key) == 48);
    assert!(size_of::<RecvWr>() == 32);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, length) == 20);
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, kind) == 52);
    assert!(offset_of!(CmId, qp) == 24 && offset_of!(CmId, destination) == 160);
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, qp_num) == 16);
    assert!(offset_of!(CmEvent, kind) == 16 && offset_of!(CmEvent, param) == 24);
};

/// `IBV_WR_RDMA_WRITE`, `IBV_WR_SEND`, `IBV_WR_RDMA_READ`.
pub(super) const WR_WRITE: c_int = 0;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_READ: c_int = 4;
/// `IBV_SEND_SIGNALED`.
pub(super) const SEND_SIGNALED: c_uint = 2;
/// `IBV_ACCESS_LOCAL_WRITE`.
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
/// `IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ`.
pub(super) const ACCESS_REMOTE: c_int = 2 | 4;
/// `IBV_QPT_RC`.
pub(super) const QPT_RC: c_int = 2;
/// `RDMA_MAX_INIT_DEPTH`: the smaller of what the peer's card answers and what this end's card can request.
pub(super) const MAX_INITIATOR_DEPTH: u8 = 0xff;
/// `RDMA_MAX_RESP_RES`: as many concurrent RDMA Reads as this end's card can answer.
pub(super) const MAX_RESPONDER_RESOURCES: u8 = 0xff;
/// `RDMA_PS_TCP`.
pub(super) const PS_TCP: c_int = 0x0106;

/// Kinds of [`CmEvent`] (`enum rdma_cm_event_type`).
pub(super) const ADDRESS_RESOLVED: c_int = 0;
pub(super) const ADDRESS_ERROR: c_int = 1;
pub(super) const ROUTE_RESOLVED: c_int = 2;
pub(super) const ROUTE_ERROR: c_int = 3;
pub(super) const CONNECT_REQUEST: c_int = 4;
pub(super) const CONNECT_ERROR: c_int = 6;
pub(super) const UNREACHABLE: c_int = 7;
pub(super) const REJECTED: c_int = 8;
pub(super) const ESTABLISHED: c_int = 9;
pub(super) const DISCONNECTED: c_int = 10;
pub(super) const DEVICE_REMOVAL: c_int = 11;
pub(super) const ADDR_CHANGE: c_int = 14;
pub(super) const TIMEWAIT_EXIT: c_int = 15;

macro_rules! library {
    ($($from:ident { $($name:ident($($argument:ty),*) -> $result:ty;)* })*) => {
        /// The functions in use, by name.
        #[derive(Debug)]
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                $(let $from = open(stringify!($from))?;)*
                Ok(Library {
                    $($($name: {
                        let found = symbol($from, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the library's header declares a function of this name with these
                        // arguments and this result.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(found)
                        }
                    },)*)*
                })
            }
        }
    };
}

library! {
    libibverbs {
        ibv_alloc_pd(*mut Context) -> *mut Pd;
        ibv_dealloc_pd(*mut Pd) -> c_int;
        ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_dereg_mr(*mut Mr) -> c_int;
        ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
        ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        ibv_destroy_cq(*mut Cq) -> c_int;
        ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut Cq, c_uint) -> ();
    }
    librdmacm {
        rdma_create_event_channel() -> *mut EventChannel;
        rdma_destroy_event_channel(*mut EventChannel) -> ();
        rdma_create_id(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
        rdma_destroy_id(*mut CmId) -> c_int;
        rdma_bind_addr(*mut CmId, *const c_void) -> c_int;
        rdma_listen(*mut CmId, c_int) -> c_int;
        rdma_resolve_addr(*mut CmId, *const c_void, *const c_void, c_int) -> c_int;
        rdma_resolve_route(*mut CmId, c_int) -> c_int;
        rdma_connect(*mut CmId, *mut ConnParam) -> c_int;
        rdma_get_cm_event(*mut EventChannel, *mut *mut CmEvent) -> c_int;
        rdma_ack_cm_event(*mut CmEvent) -> c_int;
        rdma_migrate_id(*mut CmId, *mut EventChannel) -> c_int;
        rdma_create_qp(*mut CmId, *mut Pd, *mut QpInitAttr) -> c_int;
        rdma_destroy_qp(*mut CmId) -> ();
        rdma_accept(*mut CmId, *mut ConnParam) -> c_int;
        rdma_reject(*mut CmId, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut CmId) -> c_int;
    }
}

/// The libraries, which stay loaded.
///
/// # Errors
/// They are not installed, or are too old.
pub(super) fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

fn open(name: &str) -> Result<*mut c_void, String> {
    let file = format!("{name}.so.1\0");
    // SAFETY: the name ends with a zero. The library's initialisation touches nothing of ours.
    let handle = unsafe { libc::dlopen(file.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return Err(format!(
            "{}; RDMA needs librdmacm.so.1 and libibverbs.so.1 of rdma-core (Debian: librdmacm1 and \
             ibverbs-providers; Fedora: librdmacm and libibverbs)",
            last_error()
        ));
    }
    Ok(handle)
}

fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    // SAFETY: the library stays loaded, and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if found.is_null() {
        return Err(format!("{}; RDMA needs a newer rdma-core", last_error()));
    }
    Ok(found)
}

/// The dynamic linker's message for the last failure.
fn last_error() -> String {
    // SAFETY: the call has no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker gave no reason".to_owned();
    }
    // SAFETY: the text ends with a zero, and is read before this thread calls the linker again.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
