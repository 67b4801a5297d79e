/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Keeps the view of the current version up to date in a thread of its own: neither RocksDB's threads,
 * which report events to it, nor readers wait for it.
 */
#ifndef BPFOF_ROCKSDB_VERSION_TRACKER_H
#define BPFOF_ROCKSDB_VERSION_TRACKER_H

#include "declines.h"
#include "merge.h"
#include "open.h"
#include "view.h"

#include <rocksdb/db.h>
#include <rocksdb/listener.h>

#include <chrono>
#include <condition_variable>
#include <thread>
#include <unordered_map>

namespace bpf_of {

class VersionTracker {
    public:
	/* Follows a column family of block-based tables; `merge` is its merge operator, or null. */
	VersionTracker(std::shared_ptr<TableFiles> files, std::shared_ptr<IndexMemory> memory,
		const rocksdb::ColumnFamilyDescriptor &family, std::shared_ptr<const FollowedMerge> merge,
		Access access = Access::kPrimary);
	~VersionTracker();
	VersionTracker(const VersionTracker &) = delete;
	VersionTracker &operator=(const VersionTracker &) = delete;

	/*
	 * Begins to follow the family, until stop(); the database and the handle must exist until then.
	 * With `is_own` the tracker deletes the handle. Null is the default family, whose handle the
	 * database keeps.
	 */
	void start(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *handle, bool is_own);
	void stop();

	/* Unique: no other tracker has or had this number. */
	uint64_t number() const { return number_; }

	/* The newest view; null before the first. */
	std::shared_ptr<const View> view() const { return view_.load(); }

	/* Whether RocksDB keeps data blocks in a cache. */
	bool has_block_cache() const { return has_block_cache_; }

	const FollowedMerge *merge() const { return merge_.get(); }
	/* The database's logger, for the merge operator. */
	rocksdb::Logger *logger() const { return logger_.get(); }

	/* Whether chains get the largest scratch: one of them had no room for a key or a value with
	 * less. */
	bool needs_all_scratch() const { return needs_all_scratch_.load(std::memory_order_relaxed); }
	void note_lack_of_scratch() const { needs_all_scratch_.store(true, std::memory_order_relaxed); }
	/* Counts the declined chains of the family. */
	Declines &declines() const { return declines_; }

	/* Tells the tracker that there may be a newer version than that of the view. */
	void poke();

	/* Whether a version newer than the view's was seen; the tracker will then make a new view. */
	bool is_outdated(const View &view) const
	{
		return newest_seen_.load(std::memory_order_relaxed) > view.version;
	}
	/* Tells the tracker the number of the current version. */
	void see(uint64_t version);
	/* A secondary has failed to catch up: RocksDB may list newer tables than the current version
	 * has. Only `before`, if it is a view, can still be right; otherwise RocksDB reads the family
	 * itself until there is another version. */
	void distrust(const std::shared_ptr<const View> &before);

	/* Waits until the view is that of the current version, and the target knows where its tables
	 * lie or cannot know it, at most until `end`. Returns whether that is so, or the family is no
	 * longer followed. */
	bool wait_ready(std::chrono::steady_clock::time_point end);

	/* Adds the numbers of known and refused tables. */
	void count(PushdownStats *stats) const;
	/* Why a table was last refused, or the view could not be made; "" if there was no problem. */
	std::string last_error() const;

	/* The number of the current version of a family. */
	static bool current_version(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *handle, uint64_t *version);

	/* Events: RocksDB has written or deleted a table, of any family. */
	void created(const rocksdb::TableFileCreationInfo &info);
	void deleted(const rocksdb::TableFileDeletionInfo &info);

    private:
	/* A table that was written, and will soon be part of a version. */
	struct Created {
		std::string path;
		rocksdb::TableProperties properties;
	};
	using Tables = std::unordered_map<std::string, std::shared_ptr<const Table>>;
	using Clock = std::chrono::steady_clock;

	void run();
	/* Does work that is not urgent. */
	void tidy();
	void open_created(const std::vector<Created> &created);
	void refresh();
	bool is_distrusted(uint64_t version) const;
	/* Waits briefly until the target knows where new tables lie. */
	void wait_mapped(const Tables &tables) const;
	/* Frees replaced views that are no longer in use. */
	void drop_replaced();
	/* Notes the number of a version; whether it is newer than all before. */
	bool raise(uint64_t version);
	rocksdb::Status make_view(std::shared_ptr<View> *view, Tables *tables);
	rocksdb::Status range(const rocksdb::SstFileMetaData &file, Range *range, Tables *tables);
	/* Opens the blob files of a version. */
	rocksdb::Status open_blobs(const std::vector<rocksdb::BlobMetaData> &files, BlobFiles *blobs);
	std::shared_ptr<const Table> find(const std::string &path) const;
	/* Delays the next listing, longer than after the last failure. */
	void pause();
	/* Schedules another attempt after the view could not be made. */
	void try_again(const rocksdb::Status &why);
	/* The view, if it is that of the current version; otherwise, and after stop(), null. */
	std::shared_ptr<const View> current();

	const uint64_t number_;
	const std::shared_ptr<TableFiles> files_;
	const std::shared_ptr<IndexMemory> memory_;
	const std::string family_;
	const bool has_block_cache_;
	const std::shared_ptr<const FollowedMerge> merge_;
	const Access access_;
	mutable std::atomic<bool> needs_all_scratch_{false};
	mutable Declines declines_;
	std::shared_ptr<rocksdb::Logger> logger_;
	rocksdb::DB *db_ = nullptr;
	rocksdb::ColumnFamilyHandle *handle_ = nullptr;
	bool is_own_ = false;
	/* Held while threads other than the tracker's use the handle, and while it is given back. */
	std::mutex handle_mutex_;
	/* Held by stop(). */
	std::mutex stop_mutex_;
	std::thread thread_;

	SharedPerProcessor<const View> view_;
	/* The largest version number that any thread has seen; numbers only grow. */
	std::atomic<uint64_t> newest_seen_{0};

	/* Used by the thread only: the tables of the view, and tables that were created since. */
	Tables tables_;
	Tables ahead_;
	/* The last view, and earlier ones that a read may still use: the thread frees them, so that
	 * reads need not. */
	std::vector<std::shared_ptr<const View>> views_;
	/* The earliest time of the next listing; and the pause after the last failure. */
	Clock::time_point next_listing_{};
	std::chrono::milliseconds pause_{0};
	/* A table of the view could not be read: the view is remade although no version is newer. */
	bool has_unread_ = false;

	mutable std::mutex mutex_;
	std::condition_variable wake_;
	std::condition_variable refreshed_;
	bool poked_ = false;
	bool stopping_ = false;
	/* See distrust(); the initial value is no version's number. */
	uint64_t distrusted_ = UINT64_MAX;
	std::vector<Created> created_;
	/* Paths of deleted tables, which may never have been part of a view. */
	std::vector<std::string> deleted_;
	std::string last_error_;
	size_t known_ = 0;
	size_t refused_ = 0;
};

} /* namespace bpf_of */

#endif
