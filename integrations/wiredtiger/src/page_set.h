/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Which pages of a file were in the cache. */
#ifndef BPFOF_WIREDTIGER_PAGE_SET_H
#define BPFOF_WIREDTIGER_PAGE_SET_H

#include "sparse.h"

namespace bpf_of {

/* By places in units, in which addresses count. What two threads add at once may get lost. */
class PageSet {
    public:
	/* Whether it was there. */
	bool add(uint64_t at)
	{
		const uint64_t bit = 1ull << at % 64;
		std::atomic<uint64_t> *const word = words_.obtain(at / 64);

		if (!word)
			return false;
		const uint64_t before = word->load(std::memory_order_relaxed);

		if (!(before & bit))
			word->store(before | bit, std::memory_order_relaxed);
		return before & bit;
	}

    private:
	Sparse<uint64_t> words_;
};

} /* namespace bpf_of */

#endif
