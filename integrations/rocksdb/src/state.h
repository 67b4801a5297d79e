/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The state of a PushdownDB, and the steps of its reads. */
#ifndef BPFOF_ROCKSDB_STATE_H
#define BPFOF_ROCKSDB_STATE_H

#include "bpfof/rocksdb.h"

#include "families.h"
#include "iterator.h"
#include "lookup.h"
#include "open.h"
#include "sampling.h"
#include "prefetch_buffer.h"
#include "speculation.h"

#include <functional>

namespace bpf_of {

/* A read of a key that memory has not settled, and the place of its answer. */
struct KeyRead {
	const rocksdb::Slice &key;
	const VersionTracker &live;
	const View &view;
	const SearchEnd &end;
	const TimeLimit &limit;
	rocksdb::Status *status;
	rocksdb::PinnableSlice *value;
	/* From its plan. */
	uint32_t tables;
	uint64_t deleted_below;
};

/* A read whose chains have ended. */
struct ChainRead {
	KeyRead read;
	/* kTarget or kHere, unless something failed. */
	ReadPath way;
	Found found;

	bool is_good() const { return way == ReadPath::kTarget || way == ReadPath::kHere; }
};

struct PushdownDB::State {
	std::shared_ptr<TableFiles> files;
	std::shared_ptr<IndexMemory> memory;
	std::shared_ptr<Scans> scans = std::make_shared<Scans>();
	const std::shared_ptr<Families> families;
	/* Bytes of scratch of a chain, and of a chain whose family has a merge operator. */
	size_t scratch_bytes;
	size_t merge_scratch_bytes;
	/* No family is followed, whenever it is created. Set before the database is used. */
	bool is_left = false;
	const std::string report;
	const Access access;
	/* In a secondary instance: how often catching up with the primary has begun or ended. Odd while
	 * it runs, and after it has failed. */
	std::atomic<uint64_t> catch_ups{0};
	std::timed_mutex catching_up;
	/* Whether DBOptions::rate_limiter is set; with ReadOptions::rate_limiter_priority it limits
	 * reads, too. */
	bool has_rate_limiter = false;
	Sampling sampling;
	Speculation speculation;
	/* For MultiGets, whose times differ. */
	Speculation speculation_of_many;
	std::atomic<Mode> mode{Mode::kChains};
	/* Not in the cache line of the fields above, which each Get only reads. */
	alignas(CACHE_LINE_BYTES) std::array<std::atomic<uint64_t>, WAYS> gets{};
	std::atomic<uint64_t> blocks{0};
	std::atomic<uint64_t> at_once{0};
	std::atomic<uint64_t> blobs{0};
	mutable std::mutex mutex;
	std::string last_error;

	State(const PushdownOptions &options, Access opened_for)
		: families(std::make_shared<Families>(opened_for == Access::kSecondary)), report(options.report),
		  access(opened_for), sampling(options.sample_rate, options.adapt_sampling),
		  speculation(options.speculate), speculation_of_many(options.speculate)
	{
	}

	void count(ReadPath way, uint64_t keys = 1)
	{
		const uint64_t before =
			gets[static_cast<size_t>(way)].fetch_add(keys, std::memory_order_relaxed);

		if (way == ReadPath::kTarget &&
			(before + keys) / Sampling::WINDOW > before / Sampling::WINDOW)
			sampling.adapt(counted(ReadPath::kMemory), counted(ReadPath::kSampled));
	}
	uint64_t counted(ReadPath way) const
	{
		return gets[static_cast<size_t>(way)].load(std::memory_order_relaxed);
	}
	VersionTracker *family(const rocksdb::ColumnFamilyHandle *handle) const
	{
		return families->find(handle->GetID());
	}
	/* A tracker for a family, which must then be opened with the merge operator that `family` now
	 * has; null if it cannot be pushed down. */
	std::shared_ptr<VersionTracker> follow(rocksdb::ColumnFamilyDescriptor *family) const;
	/* Follows a newly created family, if it has a tracker, until the program deletes the family's
	 * handle. */
	void add(std::shared_ptr<VersionTracker> tracker, rocksdb::DB *db, rocksdb::ColumnFamilyHandle *handle);

	/* Whether reads with these options may be pushed down. */
	bool can_push_down(const rocksdb::ReadOptions &options) const;
	bool leaves_to_rocksdb(const rocksdb::ReadOptions &options,
		rocksdb::ColumnFamilyHandle *const *families, size_t count, ReadPath *why) const;
	/* The tag of the newest visible version. Without a snapshot the published versions count, as in
	 * RocksDB's own Get, because tables may have versions that are not published yet. Call this
	 * after the search in memory, never before it: versions that have left memory meanwhile must be
	 * visible. */
	static uint64_t newest_tag(const rocksdb::DB *db, const rocksdb::ReadOptions &options);
	static WantedKey wanted(const rocksdb::Slice &key, uint64_t newest_tag, const VersionTracker &live,
		const rocksdb::ReadOptions &options)
	{
		return {key, newest_tag, live.merge() != nullptr, options.ignore_range_deletions};
	}
	/* Everything read in between is from one moment of the primary if is_still() is true: moment()
	 * returns catch_ups, and is_still() whether that was even and has not changed since. Without a
	 * primary it is always true. */
	uint64_t moment() const { return catch_ups.load(std::memory_order_acquire); }
	bool is_still(uint64_t moment) const { return moment % 2 == 0 && this->moment() == moment; }
	/* Whether to leave this read, which memory has not settled, to RocksDB for its block cache. */
	bool is_sample(const VersionTracker &live, const rocksdb::ReadOptions &options) const;
	/* Searches memory only. `end`, empty before, receives where the search ended; if it has a
	 * table, memory has not settled the key. */
	static rocksdb::Status search_memory(rocksdb::DB *db, const rocksdb::ReadOptions &options,
		rocksdb::ColumnFamilyHandle *family, const rocksdb::Slice &key,
		rocksdb::PinnableSlice *value, SearchEnd *end);
	/* Whether the view, which was taken before memory was searched, is of the version that was
	 * searched, the last that this thread used. If not, a newer view will be made. */
	bool is_current(rocksdb::DB *db, VersionTracker *live, rocksdb::ColumnFamilyHandle *family,
		const View *view) const;
	/* Bytes of scratch of a chain that looks for this key. */
	size_t scratch_bytes_of(const VersionTracker &live, const rocksdb::Slice &key) const
	{
		if (key.size() > USUAL_KEY_BYTES_MAX || live.needs_all_scratch())
			return BPFOF_SCRATCH_MAX;
		return live.merge() ? merge_scratch_bytes : scratch_bytes;
	}
	/* RocksDB's own Get. If there is a target, the blocks that it needs of the view's tables are
	 * fetched in one round trip. */
	rocksdb::Status get_together(rocksdb::DB *db, const rocksdb::ReadOptions &options,
		rocksdb::ColumnFamilyHandle *family, const VersionTracker &live, const View *view,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value) const;
	/* Fetches the blocks of a plan, and then lets RocksDB read by `plainly`, which gets the way. */
	rocksdb::Status search_blocks(const Plan &plan, const TimeLimit &limit,
		const std::function<rocksdb::Status(ReadPath)> &plainly);
	/* Searches tables as planned. kTarget, kHere, kNoTable, kTimedOut: the read has its answer. */
	ReadPath run_plan(Plan &plan, const KeyRead &read, uint64_t newest_tag);
	/* Reads the results of ended chains for the parts of a plan; their scratch must still exist. */
	ChainRead take_chains(const struct bpfof_chain *chains, uint32_t parts, const KeyRead &read);
	/* Reads the values that are in blob files, all in one round trip. */
	void read_blobs(std::vector<ChainRead> *reads, int64_t timeout_us);
	/* Makes the answer from the results; returns the way as run_plan(). */
	static ReadPath take_answer(ChainRead *read);
	/* Makes the answer from the results of memory and tables. False: RocksDB has to read the
	 * key. */
	static bool settle(Found *found, const KeyRead &read);
	void failed(const std::string &why);
	/* The blocks that plans name, if they are data blocks; the blocks below an index block are not
	 * known. */
	static std::vector<FileRange> blocks_of(const Plan &plan);
};

} /* namespace bpf_of */

#endif
