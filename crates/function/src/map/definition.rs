//! The properties of a map: declared in an object, and the same in every place where the map is
//! made.

/// Maximum size of a key in bytes: a file name or a long database key. Hashing such a key takes
/// half a microsecond.
pub const MAX_KEY_BYTES: usize = 256;
/// Maximum size of a value in bytes: fits into a default scratch.
pub const MAX_VALUE_BYTES: usize = 4096;
/// Maximum memory of one map in bytes: room for 600,000 counters with keys of 8 bytes.
pub const MAX_MAP_BYTES: u64 = 16 << 20;
/// Maximum length of a name in bytes: fits into Map Report.
pub const MAX_NAME_BYTES: usize = 32;

/// How a map finds its entries. The numbers are those of Linux, and are sent over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MapKind {
    /// Keys of any bytes; entries are added and removed.
    Hash = 1,
    /// The key is an index, a u32; all entries always exist, initially zero.
    Array = 2,
}

impl MapKind {
    /// The kind with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<MapKind> {
        [MapKind::Hash, MapKind::Array].into_iter().find(|kind| *kind as u32 == number)
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MapKind::Hash => "hash",
            MapKind::Array => "array",
        }
    }
}

/// The reason why a map cannot be made as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The name is not a C identifier, or is too long.
    #[error("its name is not an identifier of 1 to {MAX_NAME_BYTES} characters")]
    Name,
    /// Keys are empty or too long.
    #[error("its keys have {0} bytes; 1 to {MAX_KEY_BYTES} are allowed")]
    KeyBytes(u64),
    /// Keys of an array are not a u32.
    #[error("its keys have {0} bytes; keys of an array are a __u32")]
    ArrayKey(u64),
    /// Values are empty or too long.
    #[error("its values have {0} bytes; 1 to {MAX_VALUE_BYTES} are allowed")]
    ValueBytes(u64),
    /// There are no entries.
    #[error("it has no max_entries")]
    NoEntries,
    /// More memory than [`MAX_MAP_BYTES`].
    #[error("it takes {0} bytes; the limit is {MAX_MAP_BYTES} (declare fewer or smaller entries)")]
    TooLarge(u64),
}

/// The declared properties of a map: name, kind and sizes, within the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDefinition {
    name: String,
    kind: MapKind,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
}

impl MapDefinition {
    /// A map of this name and kind, with keys and values of these sizes in bytes.
    ///
    /// # Errors
    /// If something exceeds a limit.
    pub fn new(
        name: &str,
        kind: MapKind,
        (key_bytes, value_bytes): (u64, u64),
        max_entries: u32,
    ) -> Result<MapDefinition, DefinitionError> {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts || name.len() > MAX_NAME_BYTES || !name.chars().all(is_letter) {
            return Err(DefinitionError::Name);
        }
        if kind == MapKind::Array && key_bytes != 4 {
            return Err(DefinitionError::ArrayKey(key_bytes));
        }
        let within = |bytes: u64, max: usize| (1..=max as u64).contains(&bytes);
        if !within(key_bytes, MAX_KEY_BYTES) {
            return Err(DefinitionError::KeyBytes(key_bytes));
        }
        if !within(value_bytes, MAX_VALUE_BYTES) {
            return Err(DefinitionError::ValueBytes(value_bytes));
        }
        if max_entries == 0 {
            return Err(DefinitionError::NoEntries);
        }
        let (key_bytes, value_bytes) = (key_bytes as u32, value_bytes as u32);
        let made =
            MapDefinition { name: name.to_owned(), kind, key_bytes, value_bytes, max_entries };
        match made.memory_bytes() {
            bytes if bytes > MAX_MAP_BYTES => Err(DefinitionError::TooLarge(bytes)),
            _ => Ok(made),
        }
    }

    /// Its name in C.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Hash or array.
    #[must_use]
    pub fn kind(&self) -> MapKind {
        self.kind
    }

    /// Size of a key in bytes.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.key_bytes as usize
    }

    /// Size of a value in bytes.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.value_bytes as usize
    }

    /// Size of a key and a value in bytes.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        self.key_bytes() + self.value_bytes()
    }

    /// Maximum number of entries.
    #[must_use]
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Memory that the map takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let entries = u64::from(self.max_entries);
        match self.kind {
            MapKind::Array => entries * self.value_bytes() as u64,
            // A link for each entry, and as many buckets or up to twice as many.
            MapKind::Hash => {
                let links = 4 * (entries + entries.next_power_of_two());
                entries * self.entry_bytes() as u64 + links
            }
        }
    }

    /// Describes name, kind and sizes.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} {:?} of {} entries, keys of {} bytes, values of {}",
            self.kind.name(),
            self.name,
            self.max_entries,
            self.key_bytes,
            self.value_bytes
        )
    }
}
