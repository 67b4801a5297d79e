/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Bytes of tables that were fetched together, before RocksDB asks for them one after the other. */
#ifndef BPFOF_ROCKSDB_PREFETCH_BUFFER_H
#define BPFOF_ROCKSDB_PREFETCH_BUFFER_H

#include "table_file.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace bpf_of {

class PrefetchBuffer {
    public:
	/* Reads ranges in one round trip and adds them to the buffer, as TableFiles::read(), duplicates
	 * only once; in files that RocksDB reads by direct I/O, extended to the aligned reads that it
	 * will make. Adds nothing unless all was read. kNot if `ranges` is empty. */
	Fetched fetch(const TableFiles &files, std::vector<FileRange> ranges, int64_t timeout_us);

	/* Serves a read of RocksDB, if the buffer has all of it. */
	bool serve(const TableFile &file, uint64_t offset, size_t size, char *scratch,
		rocksdb::Slice *result) const;

	/* Whether the buffer has any range of the file. */
	bool has(const TableFile &file) const;

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

/* Serves RocksDB's reads from a buffer. */
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

/*
 * RocksDB's own Get, whose blocks are fetched together: when it needs a block of a table of the view, the
 * blocks of that table and of all later ones that may have the key are fetched with it. The answer is
 * RocksDB's, whatever the view has.
 */
class FetchTogether final : public ReadScope {
    public:
	using Fetch = std::function<Fetched(
		const TableFile &missing, uint64_t offset, int64_t timeout_us, PrefetchBuffer *stage)>;

	explicit FetchTogether(Fetch fetch) : fetch_(std::move(fetch)) {}

	bool read(const TableFile &file, uint64_t offset, size_t size, int64_t timeout_us, char *scratch,
		rocksdb::Slice *result, rocksdb::IOStatus *status) override
	{
		*status = rocksdb::IOStatus::OK();
		const bool is_done = std::find(done_.begin(), done_.end(), &file) != done_.end();

		if (!is_done && !stage_.has(file)) {
			const Fetched fetched = fetch_(file, offset, timeout_us, &stage_);

			if (fetched == Fetched::kTimedOut)
				*status = timed_out();
			if (fetched != Fetched::kAll)
				return fetched == Fetched::kTimedOut;
			done_.push_back(&file);
		}
		return stage_.serve(file, offset, size, scratch, result);
	}

    private:
	const Fetch fetch_;
	PrefetchBuffer stage_;
	/* Tables for which blocks have been fetched: only those of later tables if it has no index in memory. */
	std::vector<const TableFile *> done_;
};

} /* namespace bpf_of */

#endif
