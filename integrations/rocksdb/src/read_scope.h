/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What becomes of the reads of tables that RocksDB makes while it serves one call. The file system
 * that it reads by asks the scope of the thread first.
 */
#ifndef BPFOF_ROCKSDB_READ_SCOPE_H
#define BPFOF_ROCKSDB_READ_SCOPE_H

#include <rocksdb/file_system.h>

#include <string>
#include <vector>

namespace bpf_of {

class TableFile;

/* Counts for this thread from its construction to its end; the innermost one counts. */
class ReadScope {
    public:
	ReadScope() : outer_(current_) { current_ = this; }
	ReadScope(const ReadScope &) = delete;
	ReadScope &operator=(const ReadScope &) = delete;

	/* That of this thread, or null. */
	static ReadScope *current() { return current_; }

	/* Serves or refuses a read as FSRandomAccessFile::Read() does; false if it is to be made. With a
	 * timeout in microseconds, or TimeLimit::NONE. */
	virtual bool read(const TableFile &file, uint64_t offset, size_t size, int64_t timeout_us, char *scratch,
		rocksdb::Slice *result, rocksdb::IOStatus *status) = 0;

	/* A Get() has met a merge operand: the last of these, which are newest first. */
	virtual void meet(const std::vector<rocksdb::Slice> &) {}

    protected:
	~ReadScope() { current_ = outer_; }

    private:
	static inline thread_local ReadScope *current_ = nullptr;

	ReadScope *const outer_;
};

/* Where a search in memory has ended. */
struct SearchEnd {
	/* The table of the first block that was missing; null if none was. Good as long as the view is that
	 * of the call. */
	const TableFile *table = nullptr;
	/* What was to be read of it. */
	uint64_t offset = 0;
	size_t size = 0;
	/* Merge operands that were found before, newest first. */
	std::vector<std::string> operands;
};

/*
 * Nothing is read of tables: the call ends at the first block that is not in memory, as if reading it had
 * failed. Nothing before it has the answer, then. The place of a blob that was in memory leads to the last
 * read that there is, which is made.
 */
class StopAtRead final : public ReadScope {
    public:
	explicit StopAtRead(SearchEnd *end) : end_(end) {}

	bool read(const TableFile &file, uint64_t offset, size_t size, int64_t timeout_us, char *scratch,
		rocksdb::Slice *result, rocksdb::IOStatus *status) override;

	/* RocksDB goes on behind a filter that it cannot read; what it finds there, the chain finds, too. */
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
