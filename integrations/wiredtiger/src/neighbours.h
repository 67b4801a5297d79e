/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Which leaf comes before and behind which, as the internal pages said that passed. It tells what to read ahead
 * of its time, and no more: nothing is wrong if it is no longer so.
 */
#ifndef BPFOF_WIREDTIGER_NEIGHBOURS_H
#define BPFOF_WIREDTIGER_NEIGHBOURS_H

#include "checksums.h"

namespace bpf_of {

/* Where a page is, in bytes; nowhere if it has none. */
struct Place {
	uint64_t offset = 0;
	uint32_t bytes = 0;
};

class Neighbours {
    public:
	/*
	 * Notes the leaves of a page that is read or written, if it is an internal page of a row store, and the
	 * checksums of all its children. Addresses count in units of so many bytes; if that is not known, 0, no leaves
	 * are noted. Whether some of the leaves are deleted, or may be: what is compressed is not looked into.
	 */
	bool note(const void *page, size_t bytes, uint32_t unit_bytes, Checksums *checksums);
	/* The leaf behind the page at this place, or before it, if that is known. */
	Place behind(uint64_t offset, uint32_t unit_bytes) const { return find(offset, unit_bytes, true); }
	Place before(uint64_t offset, uint32_t unit_bytes) const { return find(offset, unit_bytes, false); }

    private:
	/* In units, with the leaf's own place below. Written by several threads at once: then both may be lost. */
	struct Entry {
		/* own place, and that of the leaf behind it */
		std::atomic<uint64_t> behind;
		/* place of the leaf before it, and the sizes of that and of the one behind it */
		std::atomic<uint64_t> before;
	};
	/* 4 MiB for each file, of which the system gives what is used. */
	static constexpr size_t ENTRIES = 1 << 18;

	Place find(uint64_t offset, uint32_t unit_bytes, bool is_behind) const;

	/* Null without memory. */
	const Zeroed<Entry, ENTRIES> entries_ = make_zeroed<Entry, ENTRIES>();
};

} /* namespace bpf_of */

#endif
