//! A request that is kept until its completion is reported, so that it can be sent again.

use crate::{FileVersion, PushdownCall, Request};
use bpfof_nvme::Sqe;
use bpfof_nvme::opcode::nvm;

/// When a request on a lost connection may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// At once: it changes nothing.
    AtOnce,
    /// When the first target cannot carry it out any more. Executing it twice has the same effect
    /// as once.
    Later,
    /// Never: executing it twice may differ from executing it once.
    Never,
}

/// A copy of a request. Its memory is reused for the next one.
#[derive(Debug, Default)]
pub(super) struct Kept {
    form: Form,
    /// The data that it sends, or the argument of a chain.
    data: Vec<u8>,
    files: Vec<FileVersion>,
}

/// The fields of a request that are not behind references; its references are empty.
#[derive(Debug)]
struct Form(Request<'static>);

impl Default for Form {
    fn default() -> Self {
        Self(Request::Flush { nsid: 0 })
    }
}

impl Kept {
    pub(super) fn keep(&mut self, request: &Request<'_>) {
        let (mut data, mut files): (&[u8], &[FileVersion]) = (&[], &[]);
        self.data.clear();
        self.form = Form(match *request {
            Request::Read { nsid, offset_bytes, length_bytes } => {
                Request::Read { nsid, offset_bytes, length_bytes }
            }
            Request::Write { nsid, offset_bytes, data: bytes, fua } => {
                data = bytes;
                Request::Write { nsid, offset_bytes, data: &[], fua }
            }
            Request::Flush { nsid } => Request::Flush { nsid },
            Request::WriteZeroes { nsid, offset_bytes, length_bytes, fua } => {
                Request::WriteZeroes { nsid, offset_bytes, length_bytes, fua }
            }
            Request::Pushdown(call) => {
                (data, files) = (call.scratch, call.files);
                Request::Pushdown(PushdownCall { scratch: &[], files: &[], ..call })
            }
            // Kept in encoded form.
            Request::PushdownVector(call) => {
                call.parts().encode_into(&mut self.data);
                let sqe = Sqe::new(nvm::PUSHDOWN_VECTOR, call.nsid);
                Request::Raw { sqe, data_out: &[], data_in_max_bytes: call.room_bytes }
            }
            Request::Raw { sqe, data_out, data_in_max_bytes } => {
                data = data_out;
                Request::Raw { sqe, data_out: &[], data_in_max_bytes }
            }
        });
        // The memory of a slot is that of its longest request, not up to twice as much.
        self.data.reserve_exact(data.len());
        self.data.extend_from_slice(data);
        self.files.clear();
        self.files.extend_from_slice(files);
    }

    pub(super) fn request(&self) -> Request<'_> {
        match self.form.0 {
            Request::Write { nsid, offset_bytes, fua, .. } => {
                Request::Write { nsid, offset_bytes, data: &self.data, fua }
            }
            Request::Pushdown(call) => {
                Request::Pushdown(PushdownCall { scratch: &self.data, files: &self.files, ..call })
            }
            Request::Raw { sqe, data_in_max_bytes, .. } => {
                Request::Raw { sqe, data_out: &self.data, data_in_max_bytes }
            }
            other => other,
        }
    }

    /// When it may be sent again, if the first target may have carried it out or may still do so.
    pub(super) const fn again(&self) -> Again {
        match self.form.0 {
            Request::Write { .. } | Request::WriteZeroes { .. } => Again::Later,
            Request::Raw { sqe, .. } => match sqe.opcode {
                nvm::FLUSH
                | nvm::READ
                | nvm::COMPARE
                | nvm::VERIFY
                | nvm::PUSHDOWN_SHORT
                | nvm::PUSHDOWN
                | nvm::PUSHDOWN_VECTOR => Again::AtOnce,
                nvm::WRITE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT => Again::Later,
                _ => Again::Never,
            },
            Request::Read { .. }
            | Request::Flush { .. }
            | Request::Pushdown(_)
            | Request::PushdownVector(_) => Again::AtOnce,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PushdownVectorCall;
    use bpfof_nvme::vendor_specific::{FirstRead, FirstReads, VectorArguments};

    #[test]
    fn a_kept_request_is_the_request() {
        let files = [FileVersion { id: 7, version: 3 }];
        let (data, nsid, offset_bytes) = (&[1, 2, 3][..], 1, 512);
        let call = PushdownCall {
            nsid,
            function: 5,
            files: &files,
            first_file: 0,
            first_offset_bytes: 4096,
            first_size_bytes: 512,
            scratch: data,
            scratch_size_bytes: 64,
            answer_max_bytes: 32,
        };
        let raw = |opcode| Request::Raw {
            sqe: Sqe::new(opcode, nsid),
            data_out: data,
            data_in_max_bytes: 9,
        };
        let requests = [
            (Request::Read { nsid, offset_bytes, length_bytes: 512 }, Again::AtOnce),
            (Request::Write { nsid, offset_bytes, data, fua: true }, Again::Later),
            (Request::Flush { nsid }, Again::AtOnce),
            (
                Request::WriteZeroes { nsid, offset_bytes, length_bytes: 512, fua: false },
                Again::Later,
            ),
            (Request::Pushdown(call), Again::AtOnce),
            (raw(nvm::VERIFY), Again::AtOnce),
            (raw(nvm::WRITE), Again::Later),
            (raw(nvm::DATASET_MANAGEMENT), Again::Later),
            // Zone Append.
            (raw(0x7D), Again::Never),
            (raw(0xC1), Again::Never),
        ];
        let mut kept = Kept::default();
        for (request, again) in requests {
            kept.keep(&request);
            assert_eq!(format!("{:?}", kept.request()), format!("{request:?}"));
            assert_eq!(kept.again(), again, "{request:?}");
        }
    }

    #[test]
    fn a_kept_request_takes_only_the_memory_of_its_data() {
        let (mut kept, all) = (Kept::default(), [7_u8; 700]);
        for bytes in [600, 700, 100] {
            let data = &all[..bytes];
            kept.keep(&Request::Write { nsid: 1, offset_bytes: 0, data, fua: false });
        }
        assert_eq!(kept.data.capacity(), 700);
    }

    #[test]
    fn a_kept_vector_is_its_bytes() {
        let first = FirstRead { file: 0, offset_bytes: 4096, size_bytes: 512 };
        let call = PushdownVectorCall {
            nsid: 1,
            function: 5,
            files: &[FileVersion { id: 7, version: 3 }],
            first: FirstReads::Same(first),
            arguments: VectorArguments::Equal { count: 2, bytes: &[1; 16] },
            scratch_size_bytes: 64,
            answer_max_bytes: 32,
            room_bytes: 256,
        };
        let mut encoded = Vec::new();
        call.parts().encode_into(&mut encoded);
        let mut kept = Kept::default();
        kept.keep(&Request::Flush { nsid: 1 });
        kept.keep(&Request::PushdownVector(&call));
        let Request::Raw { sqe, data_out, data_in_max_bytes } = kept.request() else {
            panic!("it is sent as it was encoded")
        };
        assert_eq!((sqe.opcode, sqe.nsid), (nvm::PUSHDOWN_VECTOR, 1));
        assert_eq!((data_out, data_in_max_bytes), (&encoded[..], 256));
        assert_eq!(kept.again(), Again::AtOnce);
    }
}
