//! Buffers for direct I/O that are reused.

use crate::limits::SPARE_BYTES;
use bpfof_device::IoBuffer;

/// A few spare buffers.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    buffers: Vec<IoBuffer>,
    /// Their memory.
    spare_bytes: usize,
}

impl BufferPool {
    /// A buffer of `length` bytes, a spare one if it is large enough. It may still have the contents of an earlier use:
    /// the caller must overwrite them before they can be read.
    pub(crate) fn take(&mut self, length: usize) -> IoBuffer {
        if let Some(mut buffer) = self.buffers.pop() {
            self.spare_bytes -= buffer.capacity();
            if buffer.capacity() >= length {
                buffer.set_len(length);
                return buffer;
            }
        }
        IoBuffer::new(length)
    }

    /// Keeps a buffer for later, unless there are enough.
    pub(crate) fn recycle(&mut self, buffer: IoBuffer) {
        if self.spare_bytes + buffer.capacity() <= SPARE_BYTES {
            self.spare_bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }
}
