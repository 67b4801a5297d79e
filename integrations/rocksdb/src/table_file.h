/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Files of tables, and the file system by which RocksDB reads them: that of the machine, but for
 * reads that a scope serves (read_scope.h) or that go to the target, and with few descriptors.
 */
#ifndef BPFOF_ROCKSDB_TABLE_FILE_H
#define BPFOF_ROCKSDB_TABLE_FILE_H

#include "read_scope.h"
#include "session.h"
#include "time_limit.h"

#include <string_view>
#include <unordered_map>

namespace bpf_of {

class TableFiles;

/* A file of a table or of blobs, which does not change, known to libbpfof by its path. It takes no descriptor. */
class TableFile : public std::enable_shared_from_this<TableFile> {
    public:
	~TableFile();
	TableFile(const TableFile &) = delete;
	TableFile &operator=(const TableFile &) = delete;

	/* What stands for it where libbpfof takes descriptors. */
	int number() const { return number_; }
	const std::string &path() const { return path_; }
	uint64_t size_bytes() const { return size_bytes_; }
	/* RocksDB reads it by direct I/O, and so asks for multiples of so many bytes; 1 if it does not. */
	size_t alignment() const { return alignment_.load(std::memory_order_relaxed); }
	void read_in(size_t alignment) const { alignment_.store(alignment, std::memory_order_relaxed); }
	/* Or a blob file. */
	bool is_table() const;

    private:
	friend class TableFiles;

	TableFile(std::shared_ptr<TableFiles> files, std::string path, int number, uint64_t size_bytes)
		: files_(std::move(files)), path_(std::move(path)), number_(number), size_bytes_(size_bytes)
	{
	}

	const std::shared_ptr<TableFiles> files_;
	const std::string path_;
	const int number_;
	const uint64_t size_bytes_;
	mutable std::atomic<size_t> alignment_{1};
};

/* A range of a file, in bytes. */
struct FileRange {
	std::shared_ptr<const TableFile> file;
	uint64_t offset;
	size_t size;
};

/* Those that are known, by their paths. */
class TableFiles : public std::enable_shared_from_this<TableFiles> {
    public:
	explicit TableFiles(std::shared_ptr<Target> target) : target_(std::move(target)) {}

	/* Makes a file known, unless it is: all who have it have the same object. `file` is empty
	 * before. IOError if there is none. */
	rocksdb::Status open(const std::string &path, std::shared_ptr<const TableFile> *file);
	/* Connects again if the target was lost, and lets it know all files. */
	void reconnect();

	/*
	 * Reads ranges into `to`, one behind the other, through the target if there is one: all in
	 * one round trip, for which it waits so long. kNot also if one of them is behind the end of its
	 * file, or no reader is free.
	 */
	Fetched read(const std::vector<FileRange> &ranges, int64_t timeout_us, char *to) const;
	/* The same, each to a place of its own. */
	Fetched read(const std::vector<FileRange> &ranges, int64_t timeout_us, char *const *to) const;

	const Target &target() const { return *target_; }

    private:
	friend class TableFile;

	static void add(const TableFile &file, const Session &session);
	/* Keeps all files that were added. */
	std::shared_ptr<void> add_all(const Session &session);

	const std::shared_ptr<Target> target_;
	std::mutex mutex_;
	/* The keys are the files' own. */
	std::unordered_map<std::string_view, std::weak_ptr<const TableFile>> known_;
	/* Numbers go down from here: -1 is an error, and those above are descriptors. */
	int next_number_ = -2;
};

/* What a read ends with for which the time is over. */
rocksdb::IOStatus timed_out();

/*
 * The machine's file system, of which at most so many descriptors are open for tables. Reads of tables are
 * offered to the thread's scope. With `target_reads` those that it leaves, and those of blob files, go to the
 * target, as far as that can be reached.
 */
std::shared_ptr<rocksdb::FileSystem> make_file_system(
	std::shared_ptr<TableFiles> files, bool target_reads, size_t descriptors_max);

} /* namespace bpf_of */

#endif
