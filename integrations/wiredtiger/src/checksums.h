/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The checksum that each page of a file has by its address. The address itself stays with WiredTiger, and a read is not
 * told of it; but pages that are read or written say what they and their children have.
 */
#ifndef BPFOF_WIREDTIGER_CHECKSUMS_H
#define BPFOF_WIREDTIGER_CHECKSUMS_H

#include "sparse.h"

namespace bpf_of {

/* By places in units, in which addresses count. */
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
