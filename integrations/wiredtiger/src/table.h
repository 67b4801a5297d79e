/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A table's file as WiredTiger has it open, and statistics that decide how its searches are served. */
#ifndef BPFOF_WIREDTIGER_TABLE_H
#define BPFOF_WIREDTIGER_TABLE_H

#include "neighbours.h"
#include "page_set.h"
#include "session.h"
#include "write_log.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace bpf_of {

/* The recent share of an outcome. Of counts by several threads at the same time one may be lost. */
class Share {
    public:
	/* The initial share is 0 or 100 %. */
	explicit Share(bool is_all = false) : value_(is_all ? ONE : 0) {}

	void count(bool is_so)
	{
		const uint32_t now = value_.load(std::memory_order_relaxed);

		value_.store(now - now / WEIGHT + (is_so ? ONE / WEIGHT : 0), std::memory_order_relaxed);
	}
	/* Whether the share exceeds this percentage. */
	bool is_above(uint32_t percent) const
	{
		return value_.load(std::memory_order_relaxed) > ONE / 100 * percent;
	}

    private:
	static constexpr uint32_t ONE = 1u << 24;
	static constexpr uint32_t WEIGHT = 64;

	std::atomic<uint32_t> value_;
};

/* Data about a table, by the name of its file, that lasts as long as the database is open. */
struct Table {
	explicit Table(std::string name) : name(std::move(name)) {}

	const std::string name;
	/* Whether its metadata was read; the following members are from there. */
	std::atomic<bool> is_known{false};
	/* Whether its pages are row-store pages that wt_get can read. */
	std::atomic<bool> is_suitable{false};
	std::atomic<uint32_t> allocation_bytes{0};
	std::atomic<uint8_t> compressor{0};

	/*
	 * A range was truncated: leaves may be deleted in memory only, so that values in the file are
	 * not valid answers until it is opened again.
	 */
	std::atomic<bool> is_truncated{false};
	/*
	 * The same for leaves that internal pages in the file mark, or may mark, as deleted. It stays
	 * set when the file is opened again, because WiredTiger may have such pages without reading
	 * them, in its block cache.
	 */
	std::atomic<bool> has_deleted{false};

	/* The share of pages read into the cache that had been there before; a large share means that
	 * the cache is full. */
	Share returning;
	/* The share of chains for values that returned pages. */
	Share declining;
	/* The share of chains for pages that read more than one. */
	Share descending{true};
	/* The distance that the last closed cursor usually went from a row, in bytes of leaves. */
	std::atomic<uint32_t> usual_ahead{0};
};

/* An open data file. Only WiredTiger writes it, through this object. */
class File {
    public:
	File(Table *table, int fd, uint64_t size, bool is_direct);
	~File();
	File(const File &) = delete;
	File &operator=(const File &) = delete;

	Table *table() const { return table_; }
	int fd() const { return fd_; }
	/* Unique among all files of the process, including later ones. */
	uint64_t number() const { return number_; }
	WriteLog &log() { return log_; }
	const Neighbours &neighbours() const { return neighbours_; }
	/* The checksum in the address of the page there; 0 if it is not known. */
	uint32_t checksum(uint64_t offset) const
	{
		const uint32_t unit = table_->allocation_bytes.load(std::memory_order_relaxed);

		return unit ? checksums_.find(offset / unit) : 0;
	}

	/* Whether `end` is beyond the bytes that were written. */
	bool is_behind_end(uint64_t end) const { return end > end_.load(std::memory_order_relaxed); }

	/* Return 0 or errno. */
	int read(uint64_t offset, size_t bytes, void *to);
	int write(uint64_t offset, size_t bytes, const void *from, Target *target);
	int size(uint64_t *bytes) const;
	int sync();

	/* Whether chains of this session may read the file; adds the file to the session if
	 * necessary. */
	bool is_shared_with(Session *session);
	/* Removes the file from the session that knows it, if that is still the current one. */
	void forget(Target *target);

	/* Notes that this page is read into the cache. Returns whether it had been there before. */
	bool note_page(uint64_t offset)
	{
		const uint32_t unit = table_->allocation_bytes.load(std::memory_order_relaxed);

		return unit && pages_.add(offset / unit);
	}
	/* The same, and notes the content of the page. */
	void note_read(uint64_t offset, size_t bytes, const void *page)
	{
		table_->returning.count(note_page(offset));
		note_content(offset, bytes, page);
	}

    private:
	int extend(uint64_t end, Target *target);
	/* Bytes to write in advance after the needed ones, for a file that ends at `at`. */
	uint64_t room_ahead(uint64_t at) const;
	bool ends_at(uint64_t offset) const;
	int transfer(bool is_write, uint64_t offset, size_t bytes, char *memory);
	/* Notes the checksums and the neighbours that a page contains. */
	void note_content(uint64_t offset, size_t bytes, const void *page);

	Table *const table_;
	const int fd_;
	const uint64_t number_;
	/* Whether it is opened past the page cache; otherwise nothing is pushed down. */
	std::atomic<bool> is_direct_;
	WriteLog log_;
	Neighbours neighbours_;
	Checksums checksums_;
	/* The number of the session that knows the file. */
	std::atomic<uint64_t> session_{0};
	/* No bytes were written beyond this. */
	std::atomic<uint64_t> end_;
	std::mutex extending_;
	std::mutex sharing_;
	PageSet pages_;
};

} /* namespace bpf_of */

#endif
