/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One table file: known to libbpfof, with its index in memory if there is room. */
#ifndef BPFOF_ROCKSDB_TABLE_H
#define BPFOF_ROCKSDB_TABLE_H

#include "open.h"
#include "sst.h"
#include "table_file.h"

#include <rocksdb/table_properties.h>

#include <atomic>

#include "sst_get.h"

namespace bpf_of {

/* The largest block that a chain reads, without its trailer. */
constexpr uint64_t BLOCK_BYTES_MAX = SST_BLOCK_BYTES_MAX - SST_TRAILER_BYTES;

/* Memory left for indices and range deletions, shared by all tables. */
class IndexMemory {
    public:
	explicit IndexMemory(size_t bytes_max) : bytes_max_(bytes_max) {}

	size_t left() const
	{
		size_t used = used_.load(std::memory_order_relaxed);

		return used < bytes_max_ ? bytes_max_ - used : 0;
	}
	/* False if fewer bytes are left. */
	bool take(size_t bytes)
	{
		size_t used = used_.load(std::memory_order_relaxed);

		while (used <= bytes_max_ && bytes <= bytes_max_ - used) {
			if (used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed))
				return true;
		}
		return false;
	}
	void give_back(size_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
	size_t used() const { return used_.load(std::memory_order_relaxed); }

    private:
	const size_t bytes_max_;
	std::atomic<size_t> used_{0};
};

class Table {
    public:
	/*
	 * Opens the file and determines whether chains can read it; if not, refusal() says why. Fails
	 * only if the file does not exist; in a secondary such a file, which RocksDB may have open, is
	 * refused instead. `properties` may be null: tables of LevelDB have none.
	 */
	static rocksdb::Status open(TableFiles &files, std::shared_ptr<IndexMemory> memory,
		const std::string &path, const rocksdb::TableProperties *properties, Access access,
		std::shared_ptr<const Table> *table);

	~Table();
	Table(const Table &) = delete;
	Table &operator=(const Table &) = delete;

	/* "" if chains can read the table. A refused table may have its index in memory, too. */
	const std::string &refusal() const { return refusal_; }
	/* Whether it was refused because it could not be read, which may be temporary: no free
	 * descriptor, for example. */
	bool is_unread() const { return is_unread_; }
	const TableFile &file() const { return *file_; }
	const std::shared_ptr<const TableFile> &shared_file() const { return file_; }

	/*
	 * The largest sequence number, as it stands in the table, of its range deletions that cover the
	 * key, among the numbers up to `newest`. Null if the table has none, or they are not known.
	 */
	std::optional<uint64_t> covering(const rocksdb::Slice &key, uint64_t newest) const
	{
		return deletions_ ? deletions_->covering(key, newest) : std::nullopt;
	}

	/*
	 * The block where a chain begins that looks for the newest version of a key not newer than
	 * newest_tag. False: this table has no such version.
	 */
	bool seek(const rocksdb::Slice &key, uint64_t newest_tag, struct sst_table *start) const;

	/*
	 * Advances to the data block that may have older versions of the key than that of `start`,
	 * which seek() returned. False: no block may, or the target reads the index.
	 */
	bool seek_older(const rocksdb::Slice &key, struct sst_table *start) const;

	/* Whether RocksDB, about to read at `offset`, has already asked a filter for the key. */
	bool has_passed_filter(uint64_t offset) const
	{
		return filters_keys_ && index_ && offset < index_->data_end();
	}

	/* The data block of seek(), and that of seek_older(), also for tables that chains cannot read.
	 * False: none, or the index is not in memory. */
	bool find(const rocksdb::Slice &key, uint64_t newest_tag, sst::Handle *block) const
	{
		return index_ && index_->seek(key, newest_tag, block);
	}
	bool find_older(const rocksdb::Slice &key, sst::Handle *block) const
	{
		return index_ && index_->goes_on(key, *block) && index_->next(block);
	}

	/*
	 * Whether a Get() of the key that was about to read `size` bytes at `offset` had found no
	 * version in this table before. False if that is not known.
	 */
	bool is_untouched(const rocksdb::Slice &key, uint64_t newest_tag, uint64_t offset, size_t size) const;

	/* The blocks that a scan needs, as sst::Index::scan() returns them. False: none, or the index
	 * is not in memory. */
	bool scan(const rocksdb::Slice &first, const rocksdb::Slice *last, uint64_t ahead_bytes,
		sst::Run *run, rocksdb::Slice *end) const
	{
		return index_ && index_->scan(first, last, ahead_bytes, run, end);
	}

    private:
	explicit Table(std::shared_ptr<IndexMemory> memory) : memory_(std::move(memory)) {}

	/* Reads the footer, the index if there is room, and the range deletions. */
	rocksdb::Status read(const rocksdb::TableProperties &properties);
	rocksdb::Status read_deletions(int fd, const sst::Footer &footer);

	const std::shared_ptr<IndexMemory> memory_;
	std::shared_ptr<const TableFile> file_;
	std::string refusal_;
	bool is_unread_ = false;
	/* Whether it has a filter of whole keys. */
	bool filters_keys_ = false;
	/* Where a chain begins if it reads the index itself. */
	struct sst_table top_ = {};
	/* Null if the target reads the index. */
	std::unique_ptr<sst::Index> index_;
	/* Null if there are none. */
	std::unique_ptr<RangeDeletions> deletions_;
};

} /* namespace bpf_of */

#endif
