/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A table's file as WiredTiger has it open, and how its searches are best served. */
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

/* How much of something there was lately. Threads that count at once may lose a count. */
class Share {
    public:
	/* It begins with none, or with all. */
	explicit Share(bool is_all = false) : value_(is_all ? ONE : 0) {}

	void count(bool is_so)
	{
		const uint32_t now = value_.load(std::memory_order_relaxed);

		value_.store(now - now / WEIGHT + (is_so ? ONE / WEIGHT : 0), std::memory_order_relaxed);
	}
	/* Whether it is more than so many of a hundred. */
	bool is_above(uint32_t percent) const
	{
		return value_.load(std::memory_order_relaxed) > ONE / 100 * percent;
	}

    private:
	static constexpr uint32_t ONE = 1u << 24;
	static constexpr uint32_t WEIGHT = 64;

	std::atomic<uint32_t> value_;
};

/* What lasts as long as the database is open: a table by the name of its file. */
struct Table {
	explicit Table(std::string name) : name(std::move(name)) {}

	const std::string name;
	/* Whether its metadata was read, and what it says. */
	std::atomic<bool> is_known{false};
	/* Row-store pages that wt_get can read. */
	std::atomic<bool> is_suitable{false};
	std::atomic<uint32_t> allocation_bytes{0};
	std::atomic<uint8_t> compressor{0};

	/*
	 * A range was truncated: leaves may be deleted in memory only, so that values in the file are no answers
	 * until it is opened again.
	 */
	std::atomic<bool> is_truncated{false};
	/*
	 * The same for leaves that internal pages in the file have as deleted, or may have. It stays when the file is
	 * opened again, because WiredTiger may have such pages without reading them, in its block cache.
	 */
	std::atomic<bool> has_deleted{false};

	/* Pages that come into the cache and had been there before: it is full. */
	Share returning;
	/* Chains for values that gave pages. */
	Share declining;
	/* Chains for pages that read more than one. */
	Share descending{true};
	/* How far the cursor that was closed last usually went from a row, in bytes of leaves. */
	std::atomic<uint32_t> usual_ahead{0};
};

/* An open data file, which only WiredTiger writes, through this. */
class File {
    public:
	File(Table *table, int fd, uint64_t size, bool is_direct);
	~File();
	File(const File &) = delete;
	File &operator=(const File &) = delete;

	Table *table() const { return table_; }
	int fd() const { return fd_; }
	/* Of no other file of the process, also none that is open later. */
	uint64_t number() const { return number_; }
	WriteLog &log() { return log_; }
	const Neighbours &neighbours() const { return neighbours_; }
	/* What the address of the page there has; 0 if it is not known. */
	uint32_t checksum(uint64_t offset) const
	{
		const uint32_t unit = table_->allocation_bytes.load(std::memory_order_relaxed);

		return unit ? checksums_.find(offset / unit) : 0;
	}

	/* Whether nothing was written there yet. */
	bool is_behind_end(uint64_t end) const { return end > end_.load(std::memory_order_relaxed); }

	/* 0 or errno. */
	int read(uint64_t offset, size_t bytes, void *to);
	int write(uint64_t offset, size_t bytes, const void *from, Target *target);
	int size(uint64_t *bytes) const;
	int sync();

	/* Whether chains may read it in this session, which is told of it if it was not. */
	bool is_shared_with(Session *session);
	/* The session of which chains read it, if it still is this one, forgets it. */
	void forget(Target *target);

	/* Notes that this page comes into the cache; whether it had been there before. */
	bool note_page(uint64_t offset)
	{
		const uint32_t unit = table_->allocation_bytes.load(std::memory_order_relaxed);

		return unit && pages_.add(offset / unit);
	}
	/* The same, and what the page says of itself and its children. */
	void note_read(uint64_t offset, size_t bytes, const void *page)
	{
		table_->returning.count(note_page(offset));
		note_content(offset, bytes, page);
	}

    private:
	int extend(uint64_t end, Target *target);
	/* So many bytes behind those that are needed are written in advance, when it ends there. */
	uint64_t room_ahead(uint64_t at) const;
	int transfer(bool is_write, uint64_t offset, size_t bytes, char *memory);
	/* What a page that is read or written says of itself and its children. */
	void note_content(uint64_t offset, size_t bytes, const void *page);

	Table *const table_;
	const int fd_;
	const uint64_t number_;
	/* Past the page cache, or nothing is pushed down. */
	std::atomic<bool> is_direct_;
	WriteLog log_;
	Neighbours neighbours_;
	Checksums checksums_;
	/* The session that knows it. */
	std::atomic<uint64_t> session_{0};
	/* Nothing was written behind this. */
	std::atomic<uint64_t> end_;
	std::mutex extending_;
	std::mutex sharing_;
	PageSet pages_;
};

} /* namespace bpf_of */

#endif
