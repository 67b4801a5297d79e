/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "neighbours.h"

#include <linux/types.h>

#include <cstring>

#include "wt_get.h"

namespace bpf_of {

namespace {

/* Types of long cells: the upper four bits of their first byte. */
constexpr uint8_t CELL_INTERNAL = 1;
constexpr uint8_t CELL_LEAF_LAST = 3;
constexpr uint8_t CELL_VALUE_COPY = 9;
/* Flags of long cells. */
constexpr uint8_t CELL_HAS_WINDOW = 8;
constexpr uint8_t CELL_HAS_NUMBER = 4;
constexpr uint8_t WINDOW_NUMBERS = 0x7e;
/* Long cells of keys store the length minus 64. */
constexpr uint8_t CELL_KEY = 5;
constexpr uint64_t SHORT_BYTES_MAX = 64;

/* Parses a page cell by cell; after a failure it returns nothing more. */
class Cells {
    public:
	Cells(const uint8_t *at, const uint8_t *end) : at_(at), end_(end) {}

	bool has_failed() const { return !at_; }
	/* A long cell of type 0 with no other bits than flags: a deleted address, with further fields
	 * in newer versions. */
	bool is_deleted_address() const { return at_ < end_ && !(*at_ & ~(CELL_HAS_WINDOW | CELL_HAS_NUMBER)); }

	/* Takes the next cell: returns its type, and its content. Short cells are keys. */
	uint8_t take(Cells *content)
	{
		const uint8_t first = byte();
		uint64_t bytes = first >> 2;

		if (!(first & 3)) {
			skip_window(first);
			bytes = packed() + (first >> 4 == CELL_KEY ? SHORT_BYTES_MAX : 0);
		} else if ((first & 3) != 1) {
			/* A key with a prefix, or a value: internal pages have neither. */
			at_ = nullptr;
		}
		if (first >> 4 >= CELL_VALUE_COPY && !(first & 3))
			at_ = nullptr;
		if (!at_ || bytes > uint64_t(end_ - at_)) {
			at_ = nullptr;
			return 0;
		}
		*content = Cells(at_, at_ + bytes);
		at_ += bytes;
		return first & 3 ? CELL_KEY : first >> 4;
	}

	uint64_t packed()
	{
		const uint8_t first = byte();
		uint64_t value = 0;

		if ((first & 0xc0) == 0x80)
			return first & 0x3f;
		if ((first & 0xe0) == 0xc0)
			return ((first & 0x1f) << 8 | byte()) + 64;
		if ((first & 0xf0) != 0xe0 || (first & 0xf) > 8)
			at_ = nullptr;
		for (int left = first & 0xf; at_ && left; left--)
			value = value << 8 | byte();
		return value + 8256;
	}

    private:
	uint8_t byte()
	{
		if (at_ && at_ < end_)
			return *at_++;
		at_ = nullptr;
		return 0;
	}

	void skip_window(uint8_t first)
	{
		if (first >> 4 < CELL_KEY && first & CELL_HAS_WINDOW)
			for (uint8_t window = byte() & WINDOW_NUMBERS; window; window &= window - 1)
				packed();
		if (first & CELL_HAS_NUMBER)
			packed();
	}

	const uint8_t *at_, *end_;
};

uint32_t number_at(const uint8_t *page, size_t at)
{
	uint32_t number;

	memcpy(&number, page + at, sizeof(number));
	return number;
}

/* Place and size in units. */
struct Leaf {
	uint32_t at;
	uint16_t units;
};

/* The place of a leaf; 0, where the file has its descriptor, for other addresses. Notes any child's
 * checksum. */
Leaf leaf_of(uint8_t type, Cells address, Checksums *checksums)
{
	const uint64_t at = address.packed() + 1, units = address.packed(), checksum = address.packed();

	if (address.has_failed() || type < CELL_INTERNAL || type > CELL_LEAF_LAST)
		return {0, 0};
	checksums->note(at, uint32_t(checksum));
	if (type == CELL_INTERNAL || at > UINT32_MAX || units > UINT16_MAX)
		return {0, 0};
	return {uint32_t(at), uint16_t(units)};
}

} /* namespace */

bool Neighbours::note(const void *page, size_t bytes, uint32_t unit_bytes, Checksums *checksums)
{
	const uint8_t *const from = static_cast<const uint8_t *>(page);

	if (bytes < WT_CLEAR_BYTES || from[WT_PAGE_TYPE] != WT_TYPE_ROW_INTERNAL)
		return false;
	const uint32_t end = number_at(from, WT_PAGE_MEMORY_BYTES);

	if (from[WT_PAGE_FLAGS] & (WT_FLAG_COMPRESSED | WT_FLAG_ENCRYPTED) || end > bytes || end < WT_PAGE_CELLS)
		return true;
	Cells cells(from + WT_PAGE_CELLS, from + end);
	Leaf before = {0, 0}, own = {0, 0};

	/* One round more than there are children, for the last one. */
	for (uint32_t left = number_at(from, WT_PAGE_ENTRIES) / 2 + 1; left; left--) {
		Cells content(nullptr, nullptr);
		Leaf behind = {0, 0};

		if (left > 1) {
			cells.take(&content);
			if (cells.has_failed() || cells.is_deleted_address())
				return true;
			const uint8_t type = cells.take(&content);

			if (cells.has_failed())
				return true;
			behind = leaf_of(type, content, checksums);
		}
		if (own.at && entries_ && unit_bytes) {
			Entry &entry = entries_[own.at % ENTRIES];

			entry.behind.store(uint64_t(own.at) << 32 | behind.at, std::memory_order_relaxed);
			entry.before.store(uint64_t(before.at) << 32 | uint32_t(before.units) << 16 | behind.units,
				std::memory_order_relaxed);
		}
		before = own;
		own = behind;
	}
	return false;
}

Place Neighbours::find(uint64_t offset, uint32_t unit_bytes, bool is_behind) const
{
	const uint64_t own = unit_bytes ? offset / unit_bytes : 0;

	if (!entries_ || !own)
		return {};
	const Entry &entry = entries_[own % ENTRIES];
	const uint64_t behind = entry.behind.load(std::memory_order_relaxed);
	const uint64_t before = entry.before.load(std::memory_order_relaxed);

	if (behind >> 32 != own)
		return {};
	const uint64_t at = is_behind ? uint32_t(behind) : before >> 32;
	const uint64_t units = is_behind ? uint16_t(before) : uint16_t(before >> 16);

	return {at * unit_bytes, uint32_t(units * unit_bytes)};
}

} /* namespace bpf_of */
