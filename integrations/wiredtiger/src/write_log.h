/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Records which parts of a file were written and when: in units of 512 bytes, some of which share an
 * entry. */
#ifndef BPFOF_WIREDTIGER_WRITE_LOG_H
#define BPFOF_WIREDTIGER_WRITE_LOG_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace bpf_of {

class WriteLog {
    public:
	/* The current moment. */
	uint64_t now() const { return last_.load(std::memory_order_seq_cst); }

	/* Must be called before and after these bytes are written. */
	void note(uint64_t offset, uint64_t bytes)
	{
		const uint64_t number = last_.fetch_add(1, std::memory_order_seq_cst) + 1;

		each(offset, bytes, [&](std::atomic<uint64_t> &place) {
			uint64_t last = place.load(std::memory_order_seq_cst);

			/* Another writer may have stored a later number, which must stay. */
			while (last < number && !place.compare_exchange_weak(last, number, std::memory_order_seq_cst))
				;
			return true;
		});
	}

	/* Whether none of these bytes was written since then. */
	bool is_clean(uint64_t offset, uint64_t bytes, uint64_t since)
	{
		return each(offset, bytes, [&](const std::atomic<uint64_t> &place) {
			return place.load(std::memory_order_seq_cst) <= since;
		});
	}

    private:
	static constexpr uint64_t UNIT_BYTES = 512;
	/* 64 KiB for each file. */
	static constexpr size_t PLACES = 8192;

	template <typename Visit> bool each(uint64_t offset, uint64_t bytes, const Visit &visit)
	{
		const uint64_t end = (offset + bytes + UNIT_BYTES - 1) / UNIT_BYTES;

		for (uint64_t unit = offset / UNIT_BYTES; unit < end; unit++)
			if (!visit(places_[unit % PLACES]))
				return false;
		return true;
	}

	std::atomic<uint64_t> last_{0};
	std::atomic<uint64_t> places_[PLACES] = {};
};

} /* namespace bpf_of */

#endif
