/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Bytes of tables that were fetched together, before RocksDB asks for them one after the other. */
#ifndef BPFOF_ROCKSDB_PREFETCH_BUFFER_H
#define BPFOF_ROCKSDB_PREFETCH_BUFFER_H

#include "table_file.h"

namespace bpf_of {

class PrefetchBuffer {
    public:
	/* Reads ranges in one round trip, in addition to what is here, as TableFiles::read(). Unless all is
	 * read nothing is added. */
	Fetched fetch(const TableFiles &files, const std::vector<FileRange> &ranges, int64_t timeout_us);

	/* Serves a read of RocksDB, if all of it is here. */
	bool serve(const TableFile &file, uint64_t offset, size_t size, char *scratch,
		rocksdb::Slice *result) const;

	void clear();

	size_t size_bytes() const { return size_bytes_; }

    private:
	struct Staged {
		FileRange range;
		const char *bytes;
	};

	std::vector<Staged> staged_;
	/* One for each fetch. */
	std::vector<std::unique_ptr<char[]>> buffers_;
	size_t size_bytes_ = 0;
};

/* RocksDB reads what is staged. */
class ReadPrefetched final : public ReadScope {
    public:
	explicit ReadPrefetched(const PrefetchBuffer &stage) : stage_(stage) {}

	bool read(const TableFile &file, uint64_t offset, size_t size, int64_t, char *scratch,
		rocksdb::Slice *result, rocksdb::IOStatus *status) override
	{
		*status = rocksdb::IOStatus::OK();
		return stage_.serve(file, offset, size, scratch, result);
	}

    private:
	const PrefetchBuffer &stage_;
};

} /* namespace bpf_of */

#endif
