/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Files of tables, and the file system through which RocksDB reads them: that of the machine, except for
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

/* An immutable file of a table or of blobs, known to libbpfof by its path. It takes no descriptor. */
class TableFile : public std::enable_shared_from_this<TableFile> {
    public:
	~TableFile();
	TableFile(const TableFile &) = delete;
	TableFile &operator=(const TableFile &) = delete;

	/* Stands for the file where libbpfof takes descriptors. */
	int number() const { return number_; }
	const std::string &path() const { return path_; }
	uint64_t size_bytes() const { return size_bytes_; }
	/* RocksDB reads the file by direct I/O, in multiples of this many bytes; 1 if it does not. */
	size_t alignment() const { return alignment_.load(std::memory_order_relaxed); }
	void read_in(size_t alignment) const { alignment_.store(alignment, std::memory_order_relaxed); }
	/* False for a blob file. */
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

/* The known files, by path. */
class TableFiles : public std::enable_shared_from_this<TableFiles> {
    public:
	explicit TableFiles(std::shared_ptr<Target> target) : target_(std::move(target)) {}

	/* Makes a file known, unless it is: each file has one object, shared by all users. `file` must
	 * be empty before. IOError if there is no such file. */
	rocksdb::Status open(const std::string &path, std::shared_ptr<const TableFile> *file);
	/* Connects again if the target was lost, and makes all files known to it. */
	void reconnect();
	/* See Session. */
	void close_idle() { target_->close_idle(); }

	/*
	 * Reads ranges into `to`, one after the other, through the target if there is one: all in one
	 * round trip, within the timeout. kNot also if a range is beyond the end of its file, no reader
	 * is free, or a file is one of other TableFiles.
	 */
	Fetched read(const std::vector<FileRange> &ranges, int64_t timeout_us, char *to) const;
	/* The same, with a separate destination for each range. */
	Fetched read(const std::vector<FileRange> &ranges, int64_t timeout_us, char *const *to) const;

	const Target &target() const { return *target_; }
	/* Whether a file is one of these. */
	bool has(const TableFile &file) const;

    private:
	friend class TableFile;

	static void add(const TableFile &file, const Session &session);
	/* Makes all files known to a session. The returned object keeps these files. */
	std::shared_ptr<void> add_all(const Session &session);

	const std::shared_ptr<Target> target_;
	std::mutex mutex_;
	/* The keys point into the files. */
	std::unordered_map<std::string_view, std::weak_ptr<const TableFile>> known_;
	/* Numbers descend from here: -1 is an error, and numbers above it are descriptors. */
	int next_number_ = -2;
};

/* The status of a read that took too long. */
rocksdb::IOStatus timed_out();

/*
 * The machine's file system, with at most this many descriptors open for tables. Reads of tables are
 * first offered to the thread's scope. With `target_reads` the remaining ones, and reads of blob files,
 * go to the target while it can be reached.
 */
std::shared_ptr<rocksdb::FileSystem> make_file_system(
	std::shared_ptr<TableFiles> files, bool target_reads, size_t descriptors_max);

} /* namespace bpf_of */

#endif
