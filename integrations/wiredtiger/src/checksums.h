/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The checksum that each page of a file has by its address. The address itself stays with WiredTiger, and a read is not
 * told of it; but pages that are read or written say what they and their children have.
 */
#ifndef BPFOF_WIREDTIGER_CHECKSUMS_H
#define BPFOF_WIREDTIGER_CHECKSUMS_H

#include "zeroed.h"

#include <atomic>
#include <cstdint>

namespace bpf_of {

/* By places in units, in which addresses count. */
class Checksums {
    public:
	Checksums() = default;
	~Checksums()
	{
		for (size_t i = 0; parts_ && i < PARTS; i++)
			Owned(parts_[i].load());
	}
	Checksums(const Checksums &) = delete;
	Checksums &operator=(const Checksums &) = delete;

	void note(uint64_t at, uint32_t checksum)
	{
		if (std::atomic<uint32_t> *const part = at < MAX && parts_ ? obtain(at / PART_UNITS) : nullptr)
			part[at % PART_UNITS].store(checksum, std::memory_order_relaxed);
	}
	/* 0 if it is not known. */
	uint32_t find(uint64_t at) const
	{
		const std::atomic<uint32_t> *const part =
			at < MAX && parts_ ? parts_[at / PART_UNITS].load(std::memory_order_acquire) : nullptr;

		return part ? part[at % PART_UNITS].load(std::memory_order_relaxed) : 0;
	}

    private:
	/* 256 KiB, of which the system gives what is used. */
	static constexpr uint64_t PART_UNITS = 1 << 16;
	using Part = std::atomic<std::atomic<uint32_t> *>;
	using Owned = Zeroed<std::atomic<uint32_t>, PART_UNITS>;
	/* For files of 2 TiB with units of 512 bytes. Of what lies behind nothing is known. */
	static constexpr size_t PARTS = 1 << 16;
	static constexpr uint64_t MAX = PARTS * PART_UNITS;

	/* Null without memory. */
	std::atomic<uint32_t> *obtain(size_t number)
	{
		std::atomic<uint32_t> *part = parts_[number].load(std::memory_order_acquire);

		if (part)
			return part;
		Owned made = make_zeroed<std::atomic<uint32_t>, PART_UNITS>();

		if (!made || parts_[number].compare_exchange_strong(part, made.get()))
			return made.release();
		return part;
	}

	/* Null without memory. */
	const Zeroed<Part, PARTS> parts_ = make_zeroed<Part, PARTS>();
};

} /* namespace bpf_of */

#endif
