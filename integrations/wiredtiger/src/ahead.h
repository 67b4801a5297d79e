/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Leaves that a cursor moving from row to row is going to need: they are read together with one that it
 * needs now, and kept until WiredTiger asks for them. A leaf is used only if none of its bytes was
 * written since it was read: then it equals a read at that moment, whatever else has happened.
 */
#ifndef BPFOF_WIREDTIGER_AHEAD_H
#define BPFOF_WIREDTIGER_AHEAD_H

#include "table.h"

#include <algorithm>
#include <cstring>

namespace bpf_of {

class Ahead {
    public:
	/* The most bytes and pages that are kept. */
	static constexpr uint32_t BYTES_MAX = 56 << 10;
	static constexpr size_t PAGES_MAX = 64;

	/* Starts with the distance that other cursors have gone, in bytes. */
	void begin_as(uint32_t usual) { usual_ = usual; }
	/* How far the cursor usually goes from a row, in bytes, including its current run. */
	uint32_t usual() const { return (3 * usual_ + gone_) / 4; }

	/* The cursor goes to another row: the distance from the last rows predicts the next
	 * distance. */
	void reposition()
	{
		usual_ = usual();
		gone_ = 0;
	}
	/* Bytes to read after the row that is sought; 0 for a cursor that does not move on. */
	uint32_t wanted_by_search() const { return usual_ >= LEAST ? std::min(usual_ + FIRST / 2, BYTES_MAX) : 0; }
	/* Bytes to read after the page with the next row. */
	uint32_t wanted_by_step() const
	{
		const uint32_t rest = usual_ > gone_ ? usual_ - gone_ : 0;

		return std::min(std::max({FIRST, gone_, rest}), BYTES_MAX);
	}
	/* The cursor has moved to a page of this many bytes. */
	void step(uint32_t bytes) { gone_ = std::min(gone_ + bytes, BYTES_MAX); }

	/* Forgets all pages. Pages added afterwards were read after this moment of the file's write
	 * log. */
	void begin(File *file, uint64_t since)
	{
		file_ = file->number();
		since_ = since;
		pages_.clear();
		data_.clear();
	}
	void add(uint64_t offset, const char *from, uint32_t bytes)
	{
		if (pages_.size() == PAGES_MAX || data_.size() + bytes > BYTES_MAX)
			return;
		pages_.push_back({offset, bytes, uint32_t(data_.size())});
		data_.insert(data_.end(), from, from + bytes);
	}
	/* Takes a page. *was_written if it was kept but is no longer valid. */
	bool take(File *file, uint64_t offset, size_t bytes, void *to, bool *was_written) const
	{
		for (const Page &page : pages_) {
			if (page.offset != offset || page.bytes != bytes || file_ != file->number())
				continue;
			memcpy(to, data_.data() + page.at, bytes);
			/* Checked after the copy: a read would not see later writes either. */
			*was_written = !file->log().is_clean(offset, bytes, since_);
			return !*was_written;
		}
		return false;
	}
	/* Gives the memory back. */
	void release()
	{
		pages_.clear();
		data_ = std::vector<char>();
	}

    private:
	/* The first read-ahead, and the least usual distance that is worth one. */
	static constexpr uint32_t FIRST = 4 << 10;
	static constexpr uint32_t LEAST = 256;

	struct Page {
		uint64_t offset;
		uint32_t bytes;
		uint32_t at;
	};

	std::vector<Page> pages_;
	std::vector<char> data_;
	uint64_t file_ = 0;
	uint64_t since_ = 0;
	/* Bytes of pages that the cursor has moved to: since it was positioned, and usually. */
	uint32_t gone_ = 0;
	uint32_t usual_ = 0;
};

} /* namespace bpf_of */

#endif
