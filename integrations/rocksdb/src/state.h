/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What a PushdownDB consists of, and the steps of its reads. */
#ifndef BPFOF_ROCKSDB_STATE_H
#define BPFOF_ROCKSDB_STATE_H

#include "bpfof/rocksdb.h"

#include "iterator.h"
#include "sampling.h"
#include "prefetch_buffer.h"

namespace bpf_of {

struct PushdownDB::State {
	std::shared_ptr<TableFiles> files;
	std::shared_ptr<IndexMemory> memory;
	std::shared_ptr<Scans> scans = std::make_shared<Scans>();
	/* By number; null for those that cannot be pushed down. */
	std::vector<std::shared_ptr<VersionTracker>> families;
	size_t scratch_bytes;
	const std::string report;
	Sampling sampling;
	std::atomic<Mode> mode{Mode::kChains};
	std::array<std::atomic<uint64_t>, WAYS> gets{};
	std::atomic<uint64_t> blocks{0};
	mutable std::mutex mutex;
	std::string last_error;

	explicit State(const PushdownOptions &options)
		: report(options.report), sampling(options.sample_rate, options.adapt_sampling)
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
		const uint32_t number = handle->GetID();

		return number < families.size() ? families[number].get() : nullptr;
	}
	void leave(const rocksdb::ColumnFamilyHandle *handle)
	{
		if (VersionTracker *live = family(handle))
			live->stop();
	}

	/* Whether reads with these options can be anything but RocksDB's own. */
	static bool can_push_down(const rocksdb::ReadOptions &options);
	bool leaves_to_rocksdb(const rocksdb::ReadOptions &options,
		rocksdb::ColumnFamilyHandle *const *families, size_t count, ReadPath *why) const;
	/* Versions with a larger tag are not seen. Without a snapshot all that is in the tables counts:
	 * it was written before the search. */
	static uint64_t newest_tag(const rocksdb::ReadOptions &options);
	/* Whether to leave this read, which memory has not settled, to RocksDB for its block cache. */
	bool is_sample(const VersionTracker &live, const rocksdb::ReadOptions &options) const;
	/* A search in memory only, of which `missing` tells where it ended; null if it has settled it.
	 */
	static rocksdb::Status search_memory(rocksdb::DB *db, const rocksdb::ReadOptions &options,
		rocksdb::ColumnFamilyHandle *family, const rocksdb::Slice &key,
		rocksdb::PinnableSlice *value, const TableFile **missing);
	/* Whether the view is still that of the family's newest version; else a newer one will be made. */
	static bool is_current(rocksdb::DB *db, VersionTracker *live, rocksdb::ColumnFamilyHandle *family, const View *view);
	/* Searches tables as planned. kTarget, kHere: `status` and `value` are the answer. */
	ReadPath run_chain(Plan &plan, const rocksdb::Slice &key, uint64_t newest_tag,
		rocksdb::Status *status, rocksdb::PinnableSlice *value);
	/* What a chain that has ended has found, as run_chain(). */
	ReadPath take_answer(const struct bpfof_chain &chain, rocksdb::Status *status,
		rocksdb::PinnableSlice *value);
	/* Fetches what the plans name, all in one round trip. */
	bool stage(const std::vector<const Plan *> &plans, PrefetchBuffer *stage) const;
};

} /* namespace bpf_of */

#endif
