/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The tables that RocksDB has open: all of them, from its point of view, but with a bounded number of
 * descriptors. A table without a descriptor is opened by its path when it is read, and one that was not
 * read lately is closed for it.
 */
#ifndef BPFOF_ROCKSDB_TABLE_READS_H
#define BPFOF_ROCKSDB_TABLE_READS_H

#include <rocksdb/file_system.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bpf_of {

class TableReads;

/* A table that RocksDB has open; its lifetime is RocksDB's. */
class TableHandle {
    public:
	~TableHandle();
	TableHandle(const TableHandle &) = delete;
	TableHandle &operator=(const TableHandle &) = delete;

	/* Returns the open file, after opening it if necessary. IOError if that fails. */
	rocksdb::IOStatus file(std::shared_ptr<rocksdb::FSRandomAccessFile> *file) const;
	/* Sets the access pattern, also for later reopening. */
	void hint(rocksdb::FSRandomAccessFile::AccessPattern pattern);

    private:
	friend class TableReads;

	/* place_ of a table without a descriptor; otherwise it is an index of TableReads::open_. */
	static constexpr size_t NONE = SIZE_MAX;
	/* It stays open to its end and does not count: its path is gone, or RocksDB has mapped its
	 * pages. */
	static constexpr size_t FOR_EVER = SIZE_MAX - 1;

	TableHandle(std::shared_ptr<TableReads> reads, std::string path, const rocksdb::FileOptions &options)
		: reads_(std::move(reads)), path_(std::move(path)), options_(options)
	{
	}

	const std::shared_ptr<TableReads> reads_;
	const std::string path_;
	const rocksdb::FileOptions options_;
	/* Accessed with std::atomic_load() and std::atomic_store(). */
	mutable std::shared_ptr<rocksdb::FSRandomAccessFile> open_;
	std::atomic<rocksdb::FSRandomAccessFile::AccessPattern> pattern_{rocksdb::FSRandomAccessFile::kNormal};
	/* Whether it was read since the hand last passed. */
	mutable std::atomic<bool> is_used_{true};
	/* Guarded by the mutex of reads_. */
	mutable size_t place_ = NONE;
};

/* All open tables. */
class TableReads : public std::enable_shared_from_this<TableReads> {
    public:
	/* `descriptors_max`: the largest number of descriptors. */
	TableReads(std::shared_ptr<rocksdb::FileSystem> files, size_t descriptors_max)
		: files_(std::move(files)), descriptors_max_(descriptors_max)
	{
	}

	/* Opens a table. As FileSystem::NewRandomAccessFile(). */
	rocksdb::IOStatus open(const std::string &path, const rocksdb::FileOptions &options,
		std::unique_ptr<TableHandle> *handle);

	/* The path will soon no longer name its file: open handles keep the file open to their end. */
	void keep(const std::string &path);

    private:
	friend class TableHandle;

	rocksdb::IOStatus open(const TableHandle &handle, std::shared_ptr<rocksdb::FSRandomAccessFile> *file);
	/* Gives the table a descriptor's place, and closes another table for it if necessary. The mutex
	 * must be held. */
	void enter(const TableHandle &handle);
	/* The mutex must be held. */
	void leave(const TableHandle &handle);

	const std::shared_ptr<rocksdb::FileSystem> files_;
	const size_t descriptors_max_;
	std::mutex mutex_;
	/* Tables with a descriptor, in the order of the hand. */
	std::vector<const TableHandle *> open_;
	size_t hand_ = 0;
	/* The keys point into the handles. */
	std::unordered_multimap<std::string_view, const TableHandle *> by_path_;
};

} /* namespace bpf_of */

#endif
