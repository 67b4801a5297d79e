/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The checksum that each page of a file has by its address. The address itself stays with WiredTiger, and a read is not
 * told of it; but pages that are read or written say what they and their children have.
 */
#ifndef BPFOF_WIREDTIGER_CHECKSUMS_H
#define BPFOF_WIREDTIGER_CHECKSUMS_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace bpf_of {

/* By places in units, in which addresses count. */
class Checksums {
    public:
	Checksums() = default;
	~Checksums()
	{
		for (size_t i = 0; parts_ && i < PARTS; i++)
			free(parts_[i].load());
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
	using Part = std::atomic<std::atomic<uint32_t> *>;
	struct Free {
		void operator()(void *memory) const { free(memory); }
	};
	/* 256 KiB, of which the system gives what is used. */
	static constexpr uint64_t PART_UNITS = 1 << 16;
	/* For files of 2 TiB with units of 512 bytes. Of what lies behind nothing is known. */
	static constexpr size_t PARTS = 1 << 16;
	static constexpr uint64_t MAX = PARTS * PART_UNITS;

	/* Null without memory. */
	std::atomic<uint32_t> *obtain(size_t number)
	{
		std::atomic<uint32_t> *part = parts_[number].load(std::memory_order_acquire);

		if (part)
			return part;
		std::atomic<uint32_t> *const made = static_cast<std::atomic<uint32_t> *>(calloc(PART_UNITS, sizeof(*made)));

		if (!made || parts_[number].compare_exchange_strong(part, made))
			return made;
		free(made);
		return part;
	}

	/* Null without memory. */
	const std::unique_ptr<Part[], Free> parts_{static_cast<Part *>(calloc(PARTS, sizeof(Part)))};
};

} /* namespace bpf_of */

#endif
