//! Where the bytes of a block device lie in a namespace: contiguously, or according to the tables of volumes.

use super::device_mapper::{Control, Target};
use std::sync::Arc;

/// Where a block device lies in the namespace.
#[derive(Clone, Debug)]
pub(crate) enum Placement {
    /// Contiguously, from this byte on.
    At(u64),
    /// A volume, or a partition of one.
    Volume(Arc<Volume>),
}

/// A volume of the device mapper, with the volumes below it.
#[derive(Debug)]
pub(crate) struct Volume {
    layer: Layer,
    /// The tables from which the layer was derived, by device number.
    tables: Vec<(u64, Vec<Target>)>,
    control: Arc<Control>,
}

/// A device between a file system and the namespace.
#[derive(Debug)]
pub(super) enum Layer {
    /// Its bytes lie in the namespace, from this byte on.
    At(u64),
    /// Its bytes are elsewhere, or stored transformed, for this reason.
    Elsewhere(String),
    /// The bytes of the layer below, from this byte on.
    Part(u64, Box<Layer>),
    /// A volume, by its segments.
    Mapped(Vec<Segment>),
}

/// A part of a volume, in bytes: chunks, taken from each of the stripes in turn.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) chunk: u64,
    pub(super) stripes: Vec<Layer>,
}

impl Volume {
    pub(super) const fn new(
        layer: Layer,
        tables: Vec<(u64, Vec<Target>)>,
        control: Arc<Control>,
    ) -> Self {
        Self { layer, tables, control }
    }
}

impl Placement {
    /// Calls `take` with the place in the namespace, and the length, of each piece of these bytes.
    ///
    /// # Errors
    /// Why some of the bytes are not in the namespace.
    pub(crate) fn each(
        &self,
        offset: u64,
        length: u64,
        take: &mut dyn FnMut(u64, u64),
    ) -> Result<(), String> {
        match self {
            Self::At(base) => Layer::At(*base).each(offset, length, take),
            Self::Volume(volume) => volume.layer.each(offset, length, take),
        }
    }

    /// The place of its first byte, if it lies contiguously.
    pub(crate) const fn base(&self) -> Option<u64> {
        match self {
            Self::At(base) => Some(*base),
            Self::Volume(_) => None,
        }
    }

    /// Whether no volume's table has changed. Costs a system call for each volume.
    pub(crate) fn holds(&self) -> bool {
        let Self::Volume(volume) = self else { return true };
        let is_same = |(device, table): &(u64, Vec<Target>)| {
            volume.control.table(*device).is_ok_and(|now| now == *table)
        };
        volume.tables.iter().all(is_same)
    }
}

impl Layer {
    pub(super) fn each(
        &self,
        offset: u64,
        length: u64,
        take: &mut dyn FnMut(u64, u64),
    ) -> Result<(), String> {
        match self {
            // An offset that overflows is beyond any namespace.
            Self::At(base) => take(base.saturating_add(offset), length),
            Self::Elsewhere(why) => return Err(why.clone()),
            Self::Part(start, below) => {
                return below.each(offset.saturating_add(*start), length, take);
            }
            Self::Mapped(segments) => {
                let (mut at, end) = (offset, offset.saturating_add(length));
                while at < end {
                    let after = segments.partition_point(|segment| segment.start <= at);
                    let segment = after.checked_sub(1).and_then(|index| segments.get(index));
                    let segment = segment.filter(|segment| at - segment.start < segment.length);
                    let segment =
                        segment.ok_or_else(|| format!("the volume has no segment at byte {at}"))?;
                    at += segment.piece(at, end - at, take)?;
                }
            }
        }
        Ok(())
    }
}

impl Segment {
    /// Passes the contiguous piece from byte `at` of the volume on, of at most `most` bytes, to `take`. Returns its
    /// length.
    fn piece(&self, at: u64, most: u64, take: &mut dyn FnMut(u64, u64)) -> Result<u64, String> {
        let within = at - self.start;
        let (index, into) = (within / self.chunk, within % self.chunk);
        let count = self.stripes.len() as u64;
        let length = most.min(self.chunk - into).min(self.length - within);
        let stripe = self.stripes.get((index % count) as usize);
        let stripe = stripe.ok_or("the volume has no stripes")?;
        stripe.each(index / count * self.chunk + into, length, take)?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(layer: &Layer, offset: u64, length: u64) -> Result<Vec<(u64, u64)>, String> {
        let mut found = Vec::new();
        layer.each(offset, length, &mut |at, length| found.push((at, length)))?;
        Ok(found)
    }

    fn part(start: u64, below: Layer) -> Layer {
        Layer::Part(start, Box::new(below))
    }

    fn linear(start: u64, length: u64, stripe: Layer) -> Segment {
        Segment { start, length, chunk: length, stripes: vec![stripe] }
    }

    #[test]
    fn segments_and_stripes_lead_to_the_namespace() {
        // A partition from byte 1000 of a volume: 4096 bytes from 100,000 on, then two stripes of 512 bytes, then
        // another disk.
        let elsewhere = Layer::Elsewhere("another disk".to_owned());
        let volume = Layer::Mapped(vec![
            linear(0, 4096, Layer::At(100_000)),
            Segment {
                start: 4096,
                length: 4096,
                chunk: 512,
                stripes: vec![part(512, Layer::At(0)), Layer::At(50_000)],
            },
            linear(8192, 4096, elsewhere),
        ]);
        assert_eq!(pieces(&volume, 0, 4096), Ok(vec![(100_000, 4096)]));
        let over = vec![(104_000, 96), (512, 512), (50_000, 512), (1024, 100)];
        assert_eq!(pieces(&volume, 4000, 1220), Ok(over));
        assert_eq!(pieces(&volume, 8191, 1), Ok(vec![(50_000 + 2047, 1)]));
        assert_eq!(pieces(&volume, 8191, 2), Err("another disk".to_owned()));
        assert!(pieces(&volume, 12_287, 2).is_err_and(|why| why == "another disk"));
        assert!(
            pieces(&volume, 12_288, 1).is_err_and(|why| why.contains("no segment at byte 12288"))
        );
        assert_eq!(pieces(&part(1000, volume), 3096, 4), Ok(vec![(512, 4)]));
        assert_eq!(pieces(&Layer::At(u64::MAX), 1, 2), Ok(vec![(u64::MAX, 2)]));
    }

    proptest! {
        /// For any stripes, each byte of the pieces is where the kernel's rule puts it.
        #[test]
        fn stripes_are_the_kernels(
            count in 1_u64..5, chunk in 1_u64..9, rows in 1_u64..6, offset in 0_u64..200, length in 1_u64..200,
        ) {
            let size = count * chunk * rows;
            let stripes = (0..count).map(|stripe| Layer::At(stripe * 1_000_000)).collect();
            let volume = Layer::Mapped(vec![Segment { start: 7, length: size, chunk, stripes }]);
            let found = pieces(&volume, 7 + offset, length);
            prop_assert_eq!(found.is_ok(), offset + length <= size);
            let mut at = offset;
            for (place, length) in found.unwrap_or_default() {
                for byte in 0..length {
                    let (number, within) = (at / chunk, at % chunk);
                    let wanted = number % count * 1_000_000 + number / count * chunk + within;
                    prop_assert_eq!(place + byte, wanted);
                    at += 1;
                }
            }
        }
    }
}
