//! Buffers for direct I/O that are used again.

use crate::limits::SPARE_BYTES;
use bpfof_device::IoBuffer;

/// A few spare buffers.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    buffers: Vec<IoBuffer>,
    /// What they take.
    spare_bytes: usize,
}

impl BufferPool {
    /// A buffer of `length` bytes, a spare one if it is large enough. Its contents may be left over from
    /// earlier use: whoever takes it overwrites them before they are seen.
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
