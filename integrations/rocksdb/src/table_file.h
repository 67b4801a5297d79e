/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Files of tables, and the file system by which RocksDB reads them: that of the machine, but for
 * reads that a scope serves (read_scope.h) or that go to the target.
 */
#ifndef BPFOF_ROCKSDB_TABLE_FILE_H
#define BPFOF_ROCKSDB_TABLE_FILE_H

#include "read_scope.h"
#include "session.h"

#include <unordered_map>

namespace bpf_of {

class TableFiles;

/* A file of a table, which does not change, open for reading and known to libbpfof. */
class TableFile : public std::enable_shared_from_this<TableFile> {
    public:
	~TableFile();
	TableFile(const TableFile &) = delete;
	TableFile &operator=(const TableFile &) = delete;

	int fd() const { return fd_; }
	uint64_t size_bytes() const { return size_bytes_; }

    private:
	friend class TableFiles;

	TableFile(std::shared_ptr<TableFiles> files, std::string path, int fd, uint64_t size_bytes)
		: files_(std::move(files)), path_(std::move(path)), fd_(fd), size_bytes_(size_bytes)
	{
	}

	const std::shared_ptr<TableFiles> files_;
	const std::string path_;
	const int fd_;
	const uint64_t size_bytes_;
};

/* A range of a file, in bytes. */
struct FileRange {
	std::shared_ptr<const TableFile> file;
	uint64_t offset;
	size_t size;
};

/* Those that are open, by their paths. */
class TableFiles : public std::enable_shared_from_this<TableFiles> {
    public:
	explicit TableFiles(std::shared_ptr<Target> target) : target_(std::move(target)) {}

	/* Opens a file, unless it is open: all who have it open have the same object. `file` is empty
	 * before. IOError if that fails. */
	rocksdb::Status open(const std::string &path, std::shared_ptr<const TableFile> *file);
	/* Connects again if the target was lost, and lets it know all files that are open. */
	void reconnect();

	/*
	 * Reads ranges into `to`, one behind the other, through the target if there is one: all in
	 * one round trip. Fails also if one of them is behind the end of its file, or no reader is
	 * free.
	 */
	bool read(const std::vector<FileRange> &ranges, char *to) const;

	const Target &target() const { return *target_; }

    private:
	friend class TableFile;

	const std::shared_ptr<Target> target_;
	std::mutex mutex_;
	std::unordered_map<std::string, std::weak_ptr<const TableFile>> open_;
};

/*
 * The machine's file system. Reads of tables are offered to the thread's scope. With `target_reads`
 * those that it leaves go to the target, as far as that can be reached.
 */
std::shared_ptr<rocksdb::FileSystem> make_file_system(
	std::shared_ptr<TableFiles> files, bool target_reads);

} /* namespace bpf_of */

#endif
