/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The checksum in the address of each page of a file. The address itself stays with WiredTiger, which
 * does not pass it to reads; but pages that are read or written contain their own checksum and those of
 * their children.
 */
#ifndef BPFOF_WIREDTIGER_CHECKSUMS_H
#define BPFOF_WIREDTIGER_CHECKSUMS_H

#include "sparse.h"

namespace bpf_of {

/* Places are in units of the allocation size, as in addresses. */
class Checksums {
    public:
	void note(uint64_t at, uint32_t checksum)
	{
		if (std::atomic<uint32_t> *const its = all_.obtain(at))
			its->store(checksum, std::memory_order_relaxed);
	}
	/* 0 if it is not known. */
	uint32_t find(uint64_t at) const { return all_.get(at); }

    private:
	Sparse<uint32_t> all_;
};

} /* namespace bpf_of */

#endif
