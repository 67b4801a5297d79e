/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The column families that are followed, since the database was opened or since their creation. */
#ifndef BPFOF_ROCKSDB_FAMILIES_H
#define BPFOF_ROCKSDB_FAMILIES_H

#include "version_tracker.h"

namespace bpf_of {

/* Trackers by the numbers of their families, which RocksDB never reuses; passes RocksDB's events to
 * them. */
class Families : public rocksdb::EventListener {
    public:
	/* A secondary instance does not learn when its primary drops a family. */
	explicit Families(bool is_secondary);

	/* The tracker of a family, or null. Does not block; valid as long as the program has a handle
	 * of the family. */
	VersionTracker *find(uint32_t number) const
	{
		const Slots *slots = slots_.load(std::memory_order_acquire);

		return number < slots->count ? slots->trackers[number].load(std::memory_order_acquire) : nullptr;
	}
	/* The same with shared ownership. */
	std::shared_ptr<VersionTracker> share(uint32_t number) const;
	std::vector<std::shared_ptr<VersionTracker>> all() const;

	/*
	 * Follows a family. `handle` is null for the default family. With `is_own` the tracker deletes
	 * it; otherwise it is the program's, and the family is followed until the program deletes it.
	 */
	void follow(uint32_t number, std::shared_ptr<VersionTracker> tracker, rocksdb::DB *db,
		rocksdb::ColumnFamilyHandle *handle, bool is_own);
	/* The family was dropped: it is followed until the program has deleted its handle. */
	void drop(uint32_t number);
	/* Stops following all families. */
	void stop();

	void OnTableFileCreated(const rocksdb::TableFileCreationInfo &info) override;
	void OnTableFileDeleted(const rocksdb::TableFileDeletionInfo &info) override;
	void OnFlushCompleted(rocksdb::DB *, const rocksdb::FlushJobInfo &info) override { poke(info.cf_id); }
	void OnCompactionCompleted(rocksdb::DB *, const rocksdb::CompactionJobInfo &info) override
	{
		poke(info.cf_id);
	}
	void OnExternalFileIngested(rocksdb::DB *, const rocksdb::ExternalFileIngestionInfo &info) override;
	void OnColumnFamilyHandleDeletionStarted(rocksdb::ColumnFamilyHandle *handle) override;

    private:
	struct Slots {
		explicit Slots(uint32_t count)
			: count(count), trackers(new std::atomic<VersionTracker *>[count]())
		{
		}

		const uint32_t count;
		const std::unique_ptr<std::atomic<VersionTracker *>[]> trackers;
	};
	struct Followed {
		uint32_t number;
		std::shared_ptr<VersionTracker> tracker;
		/* The handle through which the family is followed; null for the default family. */
		const rocksdb::ColumnFamilyHandle *handle;
		bool is_own;
		bool is_dropped;
	};

	void poke(uint32_t number);
	void put(uint32_t number, VersionTracker *tracker);

	const bool is_secondary_;
	std::atomic<const Slots *> slots_;
	mutable std::mutex mutex_;
	std::vector<Followed> followed_;
	/* The last is in use; readers may still look into the others. */
	std::vector<std::unique_ptr<Slots>> made_;
};

} /* namespace bpf_of */

#endif
