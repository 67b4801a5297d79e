/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The order of leaves, as internal pages that were read or written have shown it. It only decides what
 * to read ahead; outdated entries do no harm.
 */
#ifndef BPFOF_WIREDTIGER_NEIGHBOURS_H
#define BPFOF_WIREDTIGER_NEIGHBOURS_H

#include "checksums.h"

namespace bpf_of {

/* The place of a page, in bytes; `bytes` is 0 if there is none. */
struct Place {
	uint64_t offset = 0;
	uint32_t bytes = 0;
};

class Neighbours {
    public:
	/*
	 * Notes the leaves of a page that is read or written, if it is an internal page of a row store,
	 * and the checksums of all its children. Addresses count in units of `unit_bytes`; if that is
	 * unknown, 0, no leaves are noted. Returns whether leaves are deleted, or may be: compressed
	 * pages are not looked into.
	 */
	bool note(const void *page, size_t bytes, uint32_t unit_bytes, Checksums *checksums);
	/* The leaf after the page at this place, or before it, if it is known. */
	Place behind(uint64_t offset, uint32_t unit_bytes) const { return find(offset, unit_bytes, true); }
	Place before(uint64_t offset, uint32_t unit_bytes) const { return find(offset, unit_bytes, false); }

    private:
	/* Places are in units of unit_bytes. The lower bits of a leaf's own place are its index. If
	 * several threads write an entry at once, both leaves may be lost. */
	struct Entry {
		/* own place, and place of the leaf after it */
		std::atomic<uint64_t> behind;
		/* place of the leaf before it, and the sizes of that leaf and of the one after it */
		std::atomic<uint64_t> before;
	};
	/* 4 MiB of address space for each file; memory is allocated as it is used. */
	static constexpr size_t ENTRIES = 1 << 18;

	Place find(uint64_t offset, uint32_t unit_bytes, bool is_behind) const;

	/* Null if there was no memory. */
	const Zeroed<Entry, ENTRIES> entries_ = make_zeroed<Entry, ENTRIES>();
};

} /* namespace bpf_of */

#endif
