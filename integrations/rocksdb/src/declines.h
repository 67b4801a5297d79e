/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* How often chains of a family are wasted, because they decline and RocksDB has to read the key. */
#ifndef BPFOF_ROCKSDB_DECLINES_H
#define BPFOF_ROCKSDB_DECLINES_H

#include "thread_random.h"

#include <atomic>
#include <cstdint>

namespace bpf_of {

class Declines {
    public:
	/* A chain has ended. An update by another thread at the same time may be lost. */
	void add(bool is_declined)
	{
		const uint32_t old = part_.load(std::memory_order_relaxed);
		const uint32_t now = old - old / READS_OF_AVERAGE + (is_declined ? ONE / READS_OF_AVERAGE : 0);

		/* Most families have no declines, and then write nothing to memory that other threads
		 * read. */
		if (now != old)
			part_.store(now, std::memory_order_relaxed);
	}

	/* Whether to leave a read to RocksDB without a chain: more than half of the last chains were
	 * declined. One of TRIED_EVERY reads tries a chain anyway. */
	bool are_likely() const
	{
		return part_.load(std::memory_order_relaxed) > ONE / 2 && (thread_random() >> 32) % TRIED_EVERY != 0;
	}

    private:
	static constexpr uint32_t ONE = 1 << 20;
	static constexpr uint32_t READS_OF_AVERAGE = 16;
	static constexpr uint32_t TRIED_EVERY = 16;

	std::atomic<uint32_t> part_{0};
};

} /* namespace bpf_of */

#endif
