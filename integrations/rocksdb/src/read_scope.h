/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What becomes of the reads of tables that RocksDB makes while it serves one call. The file system
 * that it reads by asks the scope of the thread first.
 */
#ifndef BPFOF_ROCKSDB_READ_SCOPE_H
#define BPFOF_ROCKSDB_READ_SCOPE_H

#include <rocksdb/file_system.h>

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

	/* Serves or refuses a read as FSRandomAccessFile::Read() does; false if it is to be made. */
	virtual bool read(const TableFile &file, uint64_t offset, size_t size, char *scratch,
		rocksdb::Slice *result, rocksdb::IOStatus *status) = 0;

    protected:
	~ReadScope() { current_ = outer_; }

    private:
	static inline thread_local ReadScope *current_ = nullptr;

	ReadScope *const outer_;
};

/*
 * Nothing is read: the call ends at the first block that is not in memory, as if reading it had
 * failed, and this tells which table that was. Nothing before it has the answer, then.
 */
class StopAtRead final : public ReadScope {
    public:
	bool read(const TableFile &file, uint64_t, size_t, char *, rocksdb::Slice *,
		rocksdb::IOStatus *status) override
	{
		if (!missing_)
			missing_ = &file;
		*status = rocksdb::IOStatus::Aborted();
		return true;
	}

	/* Null if the call needed no read. Good as long as the view is that of the call. */
	const TableFile *missing() const { return missing_; }

    private:
	const TableFile *missing_ = nullptr;
};

} /* namespace bpf_of */

#endif
