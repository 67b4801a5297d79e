//! Types of the `object` library for reading ELF objects.

use object::LittleEndian;
use object::read::elf::{ElfFile64, ElfSection64};

pub(crate) type Elf<'a> = ElfFile64<'a, LittleEndian>;
pub(crate) type Section<'a, 'e> = ElfSection64<'a, 'e, LittleEndian>;
