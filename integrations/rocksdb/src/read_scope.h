/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Decides how the reads of tables that RocksDB makes during one call are served. The file system
 * through which RocksDB reads asks the scope of the thread first.
 */
#ifndef BPFOF_ROCKSDB_READ_SCOPE_H
#define BPFOF_ROCKSDB_READ_SCOPE_H

#include <rocksdb/file_system.h>

#include <string>
#include <vector>

namespace bpf_of {

class TableFile;

/* In effect for this thread from its construction to its destruction; scopes nest, and the innermost
 * counts. */
class ReadScope {
    public:
	ReadScope() : outer_(current_) { current_ = this; }
	ReadScope(const ReadScope &) = delete;
	ReadScope &operator=(const ReadScope &) = delete;

	/* The scope of this thread, or null. */
	static ReadScope *current() { return current_; }

	/* Serves or refuses a read as FSRandomAccessFile::Read() does; false if the read is to be made
	 * normally. The timeout is in microseconds, or TimeLimit::NONE. */
	virtual bool read(const TableFile &file, uint64_t offset, size_t size, int64_t timeout_us, char *scratch,
		rocksdb::Slice *result, rocksdb::IOStatus *status) = 0;

	/* A Get() has met a merge operand: the last of these, which are newest first. */
	virtual void meet(const std::vector<rocksdb::Slice> &) {}

    protected:
	~ReadScope() { current_ = outer_; }

    private:
	friend class Outside;

	static inline thread_local ReadScope *current_ = nullptr;

	ReadScope *const outer_;
};

/* No scope is in effect for this thread while this exists: a program's code that RocksDB calls, such as a merge
 * operator, may read the database itself. */
class Outside {
    public:
	Outside() : scope_(ReadScope::current_) { ReadScope::current_ = nullptr; }
	~Outside() { ReadScope::current_ = scope_; }
	Outside(const Outside &) = delete;
	Outside &operator=(const Outside &) = delete;

    private:
	ReadScope *const scope_;
};

/* Where a search in memory ended. */
struct SearchEnd {
	/* The table of the first block that was missing; null if none was. Valid as long as the call's
	 * view. */
	const TableFile *table = nullptr;
	/* The read that was to be made. */
	uint64_t offset = 0;
	size_t size = 0;
	/* Merge operands that were found before, newest first. */
	std::vector<std::string> operands;
};

/*
 * Refuses reads of tables: the call ends at the first block that is not in memory, as if reading it had
 * failed. So nothing that was searched before has the answer. The read of a blob whose place was found
 * in memory is made: it is the last read of the call.
 */
class StopAtRead final : public ReadScope {
    public:
	explicit StopAtRead(SearchEnd *end) : end_(end) {}

	bool read(const TableFile &file, uint64_t offset, size_t size, int64_t timeout_us, char *scratch,
		rocksdb::Slice *result, rocksdb::IOStatus *status) override;

	/* After a filter that it cannot read RocksDB continues; the chain finds again what RocksDB
	 * finds there. */
	void meet(const std::vector<rocksdb::Slice> &operands) override
	{
		while (!end_->table && end_->operands.size() < operands.size())
			end_->operands.push_back(operands[end_->operands.size()].ToString());
	}

    private:
	SearchEnd *const end_;
};

} /* namespace bpf_of */

#endif
