//! The table of helpers: number, name in C, and price of each.

/// Price of a call of a helper, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Price {
    /// Always the same.
    Fixed(u64),
    /// At least this; the helper charges for its work itself.
    AtLeast(u64),
    /// For a helper that works on r3 bytes at r1: a fixed price, plus r3 shifted to the right by the second number.
    /// Native code charges and checks these itself.
    Bulk(u64, u8),
}

/// Price of every helper except the bulk ones, in addition to what it charges itself: leaving and entering native code.
const CALL: Price = Price::AtLeast(25);

/// Makes the enum of helpers and the functions that look up their properties.
macro_rules! helpers {
    ($($(#[$doc:meta])* $helper:ident = $number:literal, $name:literal, $price:expr;)*) => {
        /// A helper's number, the immediate of the call instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Helper {
            $($(#[$doc])* $helper = $number,)*
        }

        impl Helper {
            /// All helpers.
            pub const ALL: &[Helper] = &[$(Helper::$helper,)*];

            /// Its name in C.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Helper::$helper => $name,)*
                }
            }

            /// Price of a call.
            pub(crate) const fn price(self) -> Price {
                match self {
                    $(Helper::$helper => $price,)*
                }
            }
        }
    };
}

helpers! {
    /// `bpfof_memcmp(a, b, len)`.
    Memcmp = 1, "bpfof_memcmp", Price::Bulk(10, 3);
    /// `bpfof_memmove(to, from, len)`: two stores may cross a page boundary.
    Memmove = 2, "bpfof_memmove", Price::Bulk(46, 3);
    /// `bpfof_memset(to, value, len)`: likewise.
    Memset = 3, "bpfof_memset", Price::Bulk(46, 3);
    /// `bpfof_crc32c(data, crc, len)`.
    Crc32c = 4, "bpfof_crc32c", Price::Bulk(40, 2);
    /// `bpfof_find(data, byte, len)`.
    Find = 5, "bpfof_find", Price::Bulk(40, 3);
    /// `bpfof_tail_call(function)`: the price includes placing static data.
    TailCall = 6, "bpfof_tail_call", Price::Fixed(500);
    /// `bpfof_parse_int(text, len, base, value)`.
    ParseInt = 7, "bpfof_parse_int", CALL;
    /// `bpfof_xxh3(data, seed, len)`.
    Xxh3 = 8, "bpfof_xxh3", Price::Bulk(40, 3);
    /// `bpfof_parse_double(text, len, value)`.
    ParseDouble = 9, "bpfof_parse_double", CALL;
    /// `bpfof_double(operation, a, b)`.
    Double = 10, "bpfof_double", Price::Fixed(32);
    /// `bpfof_decompress(algorithm, to, to_size, from, from_size)`.
    Decompress = 11, "bpfof_decompress", CALL;
    /// `bpfof_workspace()`.
    Workspace = 12, "bpfof_workspace", Price::Fixed(25);
    /// `bpfof_trace(text, len, value)`: functions of other threads may wait for the same lines.
    Trace = 13, "bpfof_trace", Price::Fixed(1000);
    /// `bpfof_find_any(data, bytes, len)`.
    FindAny = 14, "bpfof_find_any", Price::Bulk(60, 2);
    /// `bpfof_find_all(data, len, bytes, list, most)`.
    FindAll = 15, "bpfof_find_all", CALL;
    /// `bpfof_map_get(map, key, value)`.
    MapGet = 32, "bpfof_map_get", CALL;
    /// `bpfof_map_set(map, key, value, flags)`.
    MapSet = 33, "bpfof_map_set", CALL;
    /// `bpfof_map_delete(map, key)`.
    MapDelete = 34, "bpfof_map_delete", CALL;
    /// `bpfof_map_add(map, key, offset, delta)`.
    MapAdd = 35, "bpfof_map_add", CALL;
}

impl Helper {
    /// The helper with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Helper> {
        const BY_NUMBER: [Option<Helper>; 64] = {
            let mut by_number = [None; 64];
            let mut index = 0;
            while index < Helper::ALL.len() {
                by_number[Helper::ALL[index] as usize] = Some(Helper::ALL[index]);
                index += 1;
            }
            by_number
        };
        usize::try_from(number).ok().and_then(|number| *BY_NUMBER.get(number)?)
    }

    /// Whether it works on r3 bytes at r1. All other helpers go through `Helper::run`.
    pub(crate) const fn is_bulk(self) -> bool {
        matches!(self.price(), Price::Bulk(..))
    }

    /// Price of a call, if it is always the same.
    pub(crate) const fn fixed_cost(self) -> Option<u64> {
        match self.price() {
            Price::Fixed(units) => Some(units),
            _ => None,
        }
    }

    /// Price of a bulk helper: the fixed part, and by how many bits the length in bytes is shifted to the right for the
    /// other part.
    pub(crate) const fn bulk_price(self) -> (u64, u8) {
        match self.price() {
            Price::Bulk(fixed, shift) => (fixed, shift),
            Price::Fixed(units) | Price::AtLeast(units) => (units, 63),
        }
    }

    /// Price of a bulk helper for `len` bytes.
    pub(crate) const fn bulk_cost(self, len: u64) -> u64 {
        let (fixed, shift) = self.bulk_price();
        // No overflow: lengths that no budget can pay for must not wrap.
        fixed + (len >> shift)
    }

    /// Whether a bulk helper writes to r1.
    pub(crate) const fn writes(self) -> bool {
        matches!(self, Helper::Memmove | Helper::Memset)
    }

    /// Whether r2 of a bulk helper is a pointer to r3 bytes to read, rather than a value.
    pub(crate) const fn reads_second(self) -> bool {
        matches!(self, Helper::Memcmp | Helper::Memmove)
    }
}
