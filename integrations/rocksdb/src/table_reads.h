/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Tables as RocksDB has them open: all of them, as it believes, with a bounded number of descriptors. A table
 * that is read and has none is opened by its path, and one that was not read lately is closed for that.
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

/* A table that RocksDB has open, for as long as it has. */
class TableHandle {
    public:
	~TableHandle();
	TableHandle(const TableHandle &) = delete;
	TableHandle &operator=(const TableHandle &) = delete;

	/* The open file, which is opened if it is not. IOError if that fails. */
	rocksdb::IOStatus file(std::shared_ptr<rocksdb::FSRandomAccessFile> *file) const;
	/* How it will be read, also once it is opened again. */
	void hint(rocksdb::FSRandomAccessFile::AccessPattern pattern);

    private:
	friend class TableReads;

	/* Its place among those that have a descriptor. */
	static constexpr size_t NONE = SIZE_MAX;
	/* It is open until its end, beside those: its path is gone, or RocksDB has its pages. */
	static constexpr size_t FOR_EVER = SIZE_MAX - 1;

	TableHandle(std::shared_ptr<TableReads> reads, std::string path, const rocksdb::FileOptions &options)
		: reads_(std::move(reads)), path_(std::move(path)), options_(options)
	{
	}

	const std::shared_ptr<TableReads> reads_;
	const std::string path_;
	const rocksdb::FileOptions options_;
	/* By std::atomic_load() and std::atomic_store(). */
	mutable std::shared_ptr<rocksdb::FSRandomAccessFile> open_;
	std::atomic<rocksdb::FSRandomAccessFile::AccessPattern> pattern_{rocksdb::FSRandomAccessFile::kNormal};
	/* Whether it was read since the hand has passed. */
	mutable std::atomic<bool> is_used_{true};
	/* By the lock of reads_. */
	mutable size_t place_ = NONE;
};

/* All of them. */
class TableReads : public std::enable_shared_from_this<TableReads> {
    public:
	/* At most so many descriptors. */
	TableReads(std::shared_ptr<rocksdb::FileSystem> files, size_t descriptors_max)
		: files_(std::move(files)), descriptors_max_(descriptors_max)
	{
	}

	/* Opens a table. As FileSystem::NewRandomAccessFile(). */
	rocksdb::IOStatus open(const std::string &path, const rocksdb::FileOptions &options,
		std::unique_ptr<TableHandle> *handle);

	/* The path is about to be no longer that of its file: who has it open keeps it, until the end. */
	void keep(const std::string &path);

    private:
	friend class TableHandle;

	rocksdb::IOStatus open(const TableHandle &handle, std::shared_ptr<rocksdb::FSRandomAccessFile> *file);
	/* Gives it a place among those that are open, and closes another one for that. With the lock. */
	void enter(const TableHandle &handle);
	/* With the lock. */
	void leave(const TableHandle &handle);

	const std::shared_ptr<rocksdb::FileSystem> files_;
	const size_t descriptors_max_;
	std::mutex mutex_;
	/* Those that are open, in the order in which the hand looks at them. */
	std::vector<const TableHandle *> open_;
	size_t hand_ = 0;
	/* The keys are the tables' own. */
	std::unordered_multimap<std::string_view, const TableHandle *> by_path_;
};

} /* namespace bpf_of */

#endif
