//! Little-endian fields at fixed offsets, and the macro that lays structures out from one table.

/// A value with a fixed little-endian encoding.
pub(crate) trait Field: Sized {
    /// Size of the encoding in bytes.
    const BYTES: usize;
    /// Reads the field at `at`; bytes past the end of `from` count as zero.
    fn get(from: &[u8], at: usize) -> Self;
    /// Writes the field at `at`; does nothing if it would not fit.
    fn put(&self, to: &mut [u8], at: usize);
}

macro_rules! integer_fields {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            const BYTES: usize = size_of::<$kind>();
            #[inline]
            fn get(from: &[u8], at: usize) -> Self {
                Self::from_le_bytes(<[u8; size_of::<$kind>()]>::get(from, at))
            }
            #[inline]
            fn put(&self, to: &mut [u8], at: usize) {
                self.to_le_bytes().put(to, at);
            }
        }
    )*};
}
integer_fields!(u8, u16, u32, u64, u128);

impl<const N: usize> Field for [u8; N] {
    const BYTES: usize = N;
    #[inline]
    fn get(from: &[u8], at: usize) -> Self {
        match from.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
            Some(found) => *found,
            None => [0; N],
        }
    }
    #[inline]
    fn put(&self, to: &mut [u8], at: usize) {
        if let Some(place) = to.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
            *place = *self;
        }
    }
}

/// The integer of type `T` at offset `at` of `from`.
#[inline]
pub(crate) fn get<T: Field>(from: &[u8], at: usize) -> T {
    T::get(from, at)
}

/// Writes `value` at offset `at` of `to`.
#[inline]
pub(crate) fn put<T: Field>(to: &mut [u8], at: usize, value: T) {
    value.put(to, at);
}

/// Whether a `T` at offset `at` lies within `size` bytes.
pub(crate) const fn fits<T: Field>(at: usize, size: usize) -> bool {
    at + T::BYTES <= size
}

/// Defines a structure and its layout: `offset => field: type`, one line per field. `BYTES`,
/// `from_bytes` and `to_bytes` follow from the table; bytes without a field are written as zero.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident [$size:literal] {
            $( $(#[$field_meta:meta])* $at:literal => $field:ident: $kind:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $kind, )*
        }

        impl $name {
            /// Size on the wire, in bytes.
            pub const BYTES: usize = $size;

            /// Reads the structure. Bytes that no field covers are ignored.
            #[must_use]
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                Self { $( $field: <$kind as $crate::bytes::Field>::get(bytes, $at), )* }
            }

            /// Writes the structure; reserved bytes are zero.
            #[must_use]
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $(
                    const {
                        assert!($crate::bytes::fits::<$kind>($at, $size));
                    }
                    $crate::bytes::Field::put(&self.$field, &mut bytes, $at);
                )*
                bytes
            }
        }
    };
}
pub(crate) use wire_struct;
