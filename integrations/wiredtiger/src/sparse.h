/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A number for each place of a file; memory is allocated only for the parts in use. */
#ifndef BPFOF_WIREDTIGER_SPARSE_H
#define BPFOF_WIREDTIGER_SPARSE_H

#include "zeroed.h"

#include <atomic>
#include <cstdint>

namespace bpf_of {

/* All are 0 at first. Threads may use it at once. */
template <typename Number> class Sparse {
    public:
	Sparse() = default;
	~Sparse()
	{
		for (size_t i = 0; parts_ && i < PARTS; i++)
			Owned(parts_[i].load());
	}
	Sparse(const Sparse &) = delete;
	Sparse &operator=(const Sparse &) = delete;

	/* The number to write to; null without memory, and for places beyond the limit. */
	std::atomic<Number> *obtain(uint64_t at)
	{
		std::atomic<Number> *const part = at < MAX && parts_ ? obtain_part(at / PART_PLACES) : nullptr;

		return part ? part + at % PART_PLACES : nullptr;
	}
	Number get(uint64_t at) const
	{
		const std::atomic<Number> *const part =
			at < MAX && parts_ ? parts_[at / PART_PLACES].load(std::memory_order_acquire) : nullptr;

		return part ? part[at % PART_PLACES].load(std::memory_order_relaxed) : 0;
	}

    private:
	static constexpr uint64_t PART_PLACES = 1 << 16;
	using Part = std::atomic<std::atomic<Number> *>;
	using Owned = Zeroed<std::atomic<Number>, PART_PLACES>;
	/* Enough for files of 2 TiB with places of 512 bytes. Numbers beyond are 0. */
	static constexpr size_t PARTS = 1 << 16;
	static constexpr uint64_t MAX = PARTS * PART_PLACES;

	/* Null without memory. */
	std::atomic<Number> *obtain_part(size_t number)
	{
		std::atomic<Number> *part = parts_[number].load(std::memory_order_acquire);

		if (part)
			return part;
		Owned made = make_zeroed<std::atomic<Number>, PART_PLACES>();

		if (!made || parts_[number].compare_exchange_strong(part, made.get()))
			return made.release();
		return part;
	}

	/* Null without memory. */
	const Zeroed<Part, PARTS> parts_ = make_zeroed<Part, PARTS>();
};

} /* namespace bpf_of */

#endif
