/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The pages of a file that have been in the cache. */
#ifndef BPFOF_WIREDTIGER_PAGE_SET_H
#define BPFOF_WIREDTIGER_PAGE_SET_H

#include "sparse.h"

namespace bpf_of {

/* Places are in units, as in addresses. Of two additions at the same time one may be lost. */
class PageSet {
    public:
	/* Adds a page; returns whether it was in the set. */
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
