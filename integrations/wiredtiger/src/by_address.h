/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The extension's data about WiredTiger's cursors and sessions, found by their addresses. */
#ifndef BPFOF_WIREDTIGER_BY_ADDRESS_H
#define BPFOF_WIREDTIGER_BY_ADDRESS_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace bpf_of {

/* Threads may use it at once, but each address by one at a time: it is divided into parts with a lock
 * each. */
template <typename Value> class ByAddress {
    public:
	/* Null if there is none. The value stays in place until it is forgotten. */
	Value *find(const void *address)
	{
		Part &part = part_of(address);
		std::lock_guard<std::mutex> lock(part.mutex);
		const auto found = part.values.find(address);

		return found == part.values.end() ? nullptr : found->second.get();
	}

	/* The value of the address; a new one if there is none. */
	Value *obtain(const void *address)
	{
		Part &part = part_of(address);
		std::lock_guard<std::mutex> lock(part.mutex);
		std::unique_ptr<Value> &value = part.values[address];

		if (!value)
			value = std::make_unique<Value>();
		return value.get();
	}

	/* The object that had this address is gone. */
	void forget(const void *address)
	{
		Part &part = part_of(address);
		std::lock_guard<std::mutex> lock(part.mutex);

		part.values.erase(address);
	}

	size_t size()
	{
		size_t size = 0;

		for (Part &part : parts_) {
			std::lock_guard<std::mutex> lock(part.mutex);

			size += part.values.size();
		}
		return size;
	}

    private:
	struct alignas(64) Part {
		std::mutex mutex;
		std::unordered_map<const void *, std::unique_ptr<Value>> values;
	};

	Part &part_of(const void *address)
	{
		const uint64_t mixed = (reinterpret_cast<uintptr_t>(address) >> 4) * 0x9e3779b97f4a7c15ull;

		return parts_[mixed >> 56];
	}

	std::array<Part, 256> parts_;
};

} /* namespace bpf_of */

#endif
