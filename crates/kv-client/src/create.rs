//! Writes databases, to files and to the namespaces of targets.

use crate::error::WriteError;
use crate::session::connect;
use bpfkv::create::{Extent, Progress, write_database};
use bpfof_host::{Options, TargetUrl};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes a database to a file that does not exist yet. Until it is whole, and if this process ends before,
/// it is PATH.partial, which another attempt replaces; after an error there is no file.
///
/// # Errors
/// [`WriteError`].
pub fn create_file(path: &Path, extent: &Extent, progress: Progress<'_>) -> Result<(), WriteError> {
    let named = |source| WriteError::File { path: path.to_owned(), source };
    if path.exists() {
        return Err(named(io::ErrorKind::AlreadyExists.into()));
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&partial);
    let file = file.map_err(named)?;
    // Held by nobody if it is of a creation that was killed.
    file.try_lock().map_err(|error| named(error.into()))?;
    file.set_len(0).map_err(named)?;
    let written = write_file(&file, extent, progress, &named);
    // Not over a file that somebody has made meanwhile.
    let whole = written.and_then(|()| std::fs::hard_link(&partial, path).map_err(named));
    let _ = std::fs::remove_file(&partial);
    whole
}

fn write_file(
    file: &File,
    extent: &Extent,
    progress: Progress<'_>,
    named: &dyn Fn(io::Error) -> WriteError,
) -> Result<(), WriteError> {
    file.set_len(extent.layout().file_bytes()).map_err(named)?;
    write_database(extent, &mut |offset, bytes| file.write_all_at(bytes, offset), progress)?;
    file.sync_all().map_err(named)
}

/// Writes a database over a target's namespace. Its root is written last: what a creation leaves that ends
/// before is no database.
///
/// # Errors
/// [`WriteError`].
pub fn create_on_target(
    url: &TargetUrl,
    extent: &Extent,
    progress: Progress<'_>,
) -> Result<(), WriteError> {
    let (mut controller, mut lane) = connect(url, Options::default())?;
    let nsid = url.nsid;
    let info = controller.identify_namespace(nsid)?;
    let (have_bytes, need_bytes) = (info.size_bytes(), extent.layout().file_bytes());
    if have_bytes < need_bytes {
        let levels = extent.layout().levels();
        return Err(WriteError::TooSmall { nsid, have_bytes, levels, need_bytes });
    }
    let mut blocks = WholeBlocks { block: info.block_bytes as usize, offset: 0, data: Vec::new() };
    let mut root = Vec::new();
    let mut send = |offset, bytes: &[u8]| match offset {
        0 => {
            let mut rest = bytes.to_vec();
            root = rest[..info.block_bytes as usize].to_vec();
            rest[..root.len()].fill(0);
            lane.write(nsid, 0, &rest).map_err(io::Error::other)
        }
        _ => lane.write(nsid, offset, bytes).map_err(io::Error::other),
    };
    write_database(extent, &mut |offset, bytes| blocks.write(offset, bytes, &mut send), progress)?;
    blocks.finish(&mut send).map_err(WriteError::End)?;
    lane.flush(nsid)?;
    lane.write(nsid, 0, &root)?;
    lane.flush(nsid)?;
    controller.disconnect()?;
    Ok(())
}

/// Makes writes of whole logical blocks out of writes of 512-byte blocks at ascending offsets.
/// What lies between them becomes zero, in so far as it shares a logical block with them.
struct WholeBlocks {
    block: usize,
    /// Where `data` goes: a multiple of the block.
    offset: u64,
    data: Vec<u8>,
}

type Send<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

impl WholeBlocks {
    fn write(&mut self, offset: u64, bytes: &[u8], send: Send<'_>) -> io::Result<()> {
        let end = self.offset + self.data.len() as u64;
        if offset >= end.next_multiple_of(self.block as u64) && offset != end {
            self.finish(send)?;
            self.offset = offset / self.block as u64 * self.block as u64;
        }
        self.data.resize((offset - self.offset) as usize, 0);
        self.data.extend_from_slice(bytes);
        let whole = self.data.len() / self.block * self.block;
        if whole > 0 {
            send(self.offset, &self.data[..whole])?;
            self.data.drain(..whole);
            self.offset += whole as u64;
        }
        Ok(())
    }

    fn finish(&mut self, send: Send<'_>) -> io::Result<()> {
        if self.data.is_empty() {
            return Ok(());
        }
        self.data.resize(self.data.len().next_multiple_of(self.block), 0);
        send(self.offset, &self.data)?;
        self.data.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_writes_become_whole_blocks() {
        let mut disk = vec![0xff; 65536];
        let mut send = |offset: u64, bytes: &[u8]| {
            assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
            disk[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        let mut blocks = WholeBlocks { block: 4096, offset: 0, data: Vec::new() };
        for (offset, length, byte) in
            [(0, 512, 1), (512, 8192, 2), (9216, 512, 3), (33280, 4096, 4), (61440, 4096, 5)]
        {
            blocks.write(offset, &vec![byte; length], &mut send).expect("sends");
        }
        blocks.finish(&mut send).expect("sends");
        let expected = |at: usize| match at {
            0..512 => 1,
            512..8704 => 2,
            8704..9216 => 0,
            9216..9728 => 3,
            9728..12288 => 0,
            12288..32768 => 0xff,
            32768..33280 => 0,
            33280..37376 => 4,
            37376..40960 => 0,
            61440.. => 5,
            _ => 0xff,
        };
        let wrong = disk.iter().enumerate().position(|(at, byte)| *byte != expected(at));
        assert_eq!(wrong, None);
    }
}
