/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The view of the current version, kept up by a thread of its own: RocksDB's threads tell it what
 * happens and wait for nothing, and neither do readers.
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
	 * Begins to follow it, until stop(); the database and the handle must be there until then. A handle of
	 * its own it gives back. Null is the default family, of which the database keeps one.
	 */
	void start(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *handle, bool is_own);
	void stop();

	/* No other tracker has or had it. */
	uint64_t number() const { return number_; }

	/* The newest view; null before the first. */
	std::shared_ptr<const View> view() const { return view_.load(); }

	/* Whether RocksDB keeps data blocks in a cache. */
	bool has_block_cache() const { return has_block_cache_; }

	const FollowedMerge *merge() const { return merge_.get(); }
	/* The database's, for the merge operator. */
	rocksdb::Logger *logger() const { return logger_.get(); }

	/* Whether chains get all of the scratch that there is: one had no room for a key or a value with less. */
	bool needs_all_scratch() const { return needs_all_scratch_.load(std::memory_order_relaxed); }
	void note_lack_of_scratch() const { needs_all_scratch_.store(true, std::memory_order_relaxed); }
	/* Of the chains of the family. */
	Declines &declines() const { return declines_; }

	/* There may be another version than that of the view. */
	void poke();

	/* Whether somebody has seen a newer version than that of a view, of which there will be a view then. */
	bool is_outdated(const View &view) const
	{
		return newest_seen_.load(std::memory_order_relaxed) > view.version;
	}
	/* The current version has this number. */
	void see(uint64_t version);
	/* A secondary has failed to catch up: RocksDB may tell newer tables than those that the current version has. Of that
	 * no view but the one of `before` is right, if it is one: without it RocksDB reads the family itself until there is
	 * another version. */
	void distrust(const std::shared_ptr<const View> &before);

	/* Waits until the view is that of the current version, and the target knows where its tables lie or cannot
	 * know, at most until then; whether it is so, or the family is not followed any more. */
	bool wait_ready(std::chrono::steady_clock::time_point end);

	/* Adds the tables. */
	void count(PushdownStats *stats) const;
	/* Why a table was refused last, or the view could not be made; "" if nothing was wrong. */
	std::string last_error() const;

	/* The number of the current version of a family. */
	static bool current_version(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *handle, uint64_t *version);

	/* RocksDB has written a table, of whichever family, or deleted one. */
	void created(const rocksdb::TableFileCreationInfo &info);
	void deleted(const rocksdb::TableFileDeletionInfo &info);

    private:
	/* A table that was written, and will be part of a version soon. */
	struct Created {
		std::string path;
		rocksdb::TableProperties properties;
	};
	using Tables = std::unordered_map<std::string, std::shared_ptr<const Table>>;
	using Clock = std::chrono::steady_clock;

	void run();
	/* What is not urgent. */
	void tidy();
	void open_created(const std::vector<Created> &created);
	void refresh();
	bool is_distrusted(uint64_t version) const;
	/* Waits a moment until the target knows where tables lie that are new. */
	void wait_mapped(const Tables &tables) const;
	/* Lets views go that were replaced and that nobody uses. */
	void drop_replaced();
	/* Whether the number was not seen before. */
	bool raise(uint64_t version);
	rocksdb::Status make_view(std::shared_ptr<View> *view, Tables *tables);
	rocksdb::Status range(const rocksdb::SstFileMetaData &file, Range *range, Tables *tables);
	/* Opens the blob files of a version. */
	rocksdb::Status open_blobs(const std::vector<rocksdb::BlobMetaData> &files, BlobFiles *blobs);
	std::shared_ptr<const Table> find(const std::string &path) const;
	/* Lists again later than after the last failure. */
	void pause();
	/* The view could not be made: it is tried again. */
	void try_again(const rocksdb::Status &why);
	/* The view, if it is that of the current version; null also after stop(). */
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
	/* Held by whoever uses the handle and is not the thread, and by who gives it back. */
	std::mutex handle_mutex_;
	/* Held by who stops it. */
	std::mutex stop_mutex_;
	std::thread thread_;

	SharedPerProcessor<const View> view_;
	/* The largest number of a version that anybody has seen: they only grow. */
	std::atomic<uint64_t> newest_seen_{0};

	/* The thread's own: the tables of the view, and those that were created since. */
	Tables tables_;
	Tables ahead_;
	/* The last view, and those before it that a read may still use: the thread frees them, and no read. */
	std::vector<std::shared_ptr<const View>> views_;
	/* Not before that the tables are listed again; and how long after the last failure that was. */
	Clock::time_point next_listing_{};
	std::chrono::milliseconds pause_{0};
	/* A table of the view could not be read: another view is made, though no version is newer. */
	bool has_unread_ = false;

	mutable std::mutex mutex_;
	std::condition_variable wake_;
	std::condition_variable refreshed_;
	bool poked_ = false;
	bool stopping_ = false;
	/* See distrust(); no version has the number that it is at first. */
	uint64_t distrusted_ = UINT64_MAX;
	std::vector<Created> created_;
	/* Paths of tables that are gone, perhaps before they were part of a view. */
	std::vector<std::string> deleted_;
	std::string last_error_;
	size_t known_ = 0;
	size_t refused_ = 0;
};

} /* namespace bpf_of */

#endif
