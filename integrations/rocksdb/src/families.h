/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The column families that are followed, from the opening of the database on or later. */
#ifndef BPFOF_ROCKSDB_FAMILIES_H
#define BPFOF_ROCKSDB_FAMILIES_H

#include "version_tracker.h"

namespace bpf_of {

/* Trackers by the numbers of their families, which RocksDB never uses twice; and RocksDB's events for them. */
class Families : public rocksdb::EventListener {
    public:
	/* A secondary instance does not know when its primary drops a family. */
	explicit Families(bool is_secondary);

	/* The tracker of a family, or null. Waits for nobody; good as long as the program has a handle. */
	VersionTracker *find(uint32_t number) const
	{
		const Slots *slots = slots_.load(std::memory_order_acquire);

		return number < slots->count ? slots->trackers[number].load(std::memory_order_acquire) : nullptr;
	}
	/* The same, to be kept. */
	std::shared_ptr<VersionTracker> share(uint32_t number) const;
	std::vector<std::shared_ptr<VersionTracker>> all() const;

	/*
	 * Follows a family. `own` is a handle that the tracker gives back; null for the default family. Without
	 * `is_own` it is the program's: until that is deleted.
	 */
	void follow(uint32_t number, std::shared_ptr<VersionTracker> tracker, rocksdb::DB *db,
		rocksdb::ColumnFamilyHandle *handle, bool is_own);
	/* It was dropped: it is followed until the program has deleted its handle. */
	void drop(uint32_t number);
	/* Follows none any more. */
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
		/* The handle by which it is followed; null for the default family. */
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
	/* Of which the last is in use; readers may still look into the others. */
	std::vector<std::unique_ptr<Slots>> made_;
};

} /* namespace bpf_of */

#endif
