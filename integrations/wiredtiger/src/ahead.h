/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Leaves that a cursor which goes from row to row is going to need: read together with one that it needs now, and
 * kept until WiredTiger asks for them. One is used only if none of its bytes was written since it was read: then
 * it is what a read would give at that moment, whatever else has happened.
 */
#ifndef BPFOF_WIREDTIGER_AHEAD_H
#define BPFOF_WIREDTIGER_AHEAD_H

#include "table.h"

#include <algorithm>
#include <cstring>

namespace bpf_of {

class Ahead {
    public:
	/* The bytes that are kept at most, and the pages. */
	static constexpr uint32_t BYTES_MAX = 56 << 10;
	static constexpr size_t PAGES_MAX = 64;

	/* For a cursor that goes on as far as others have, in bytes. */
	void begin_as(uint32_t usual) { usual_ = usual; }
	/* How far it usually goes from a row, in bytes, the last one included. */
	uint32_t usual() const { return (3 * usual_ + gone_) / 4; }

	/* The cursor goes to another row: how far it went from the last ones tells how far it will go. */
	void reposition()
	{
		usual_ = usual();
		gone_ = 0;
	}
	/* So many bytes behind the row that is sought; none for a cursor that does not go on. */
	uint32_t wanted_by_search() const { return usual_ >= LEAST ? std::min(usual_ + FIRST / 2, BYTES_MAX) : 0; }
	/* So many behind the page that the next row is on. */
	uint32_t wanted_by_step() const
	{
		const uint32_t rest = usual_ > gone_ ? usual_ - gone_ : 0;

		return std::min(std::max({FIRST, gone_, rest}), BYTES_MAX);
	}
	/* The cursor has gone on to a page of so many bytes. */
	void step(uint32_t bytes) { gone_ = std::min(gone_ + bytes, BYTES_MAX); }

	/* Forgets all pages; those that are added now were read after this moment of the file's write log. */
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
	/* Takes a page; *was_written if it was there and is no longer good. */
	bool take(File *file, uint64_t offset, size_t bytes, void *to, bool *was_written) const
	{
		for (const Page &page : pages_) {
			if (page.offset != offset || page.bytes != bytes || file_ != file->number())
				continue;
			memcpy(to, data_.data() + page.at, bytes);
			/* After it was copied: what is written from now on would not be seen by a read either. */
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
	/* Read ahead at first, and what is worth asking for. */
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
	/* Bytes of pages that the cursor has gone on to, since it was positioned, and usually. */
	uint32_t gone_ = 0;
	uint32_t usual_ = 0;
};

} /* namespace bpf_of */

#endif
