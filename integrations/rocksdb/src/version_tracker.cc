/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "version_tracker.h"

#include <rocksdb/env.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <atomic>
#include <system_error>

namespace bpf_of {

/* Listing the tables takes RocksDB's mutex, longer with more tables. The pause after it is this many
 * times its duration. */
constexpr int PAUSE_AFTER_LISTING = 3;
/* Pauses after a view could not be made; doubled each time. */
constexpr std::chrono::milliseconds PAUSE_MIN{10};
constexpr std::chrono::milliseconds PAUSE_MAX{1000};
/* How long a new view waits for the target to know its new tables. Meanwhile RocksDB reads them: they
 * were just written and are in memory, while chains would have to wait. */
constexpr std::chrono::milliseconds MAPPED_WITHIN{20};
/* How often deleted tables are released, and a lost target is tried again. */
constexpr std::chrono::seconds TIDY_EVERY{1};

/* Whether tables of this family are cached by blocks. */
static bool caches_blocks(const rocksdb::ColumnFamilyOptions &options)
{
	const auto *table = options.table_factory->GetOptions<rocksdb::BlockBasedTableOptions>();

	return table && !table->no_block_cache;
}

static uint64_t next_number()
{
	static std::atomic<uint64_t> last{0};

	return ++last;
}

VersionTracker::VersionTracker(std::shared_ptr<TableFiles> files, std::shared_ptr<IndexMemory> memory,
	const rocksdb::ColumnFamilyDescriptor &family, std::shared_ptr<const FollowedMerge> merge, Access access)
	: number_(next_number()), files_(std::move(files)), memory_(std::move(memory)), family_(family.name),
	  has_block_cache_(caches_blocks(family.options)), merge_(std::move(merge)), access_(access)
{
}

VersionTracker::~VersionTracker()
{
	stop();
}

void VersionTracker::start(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *handle, bool is_own)
{
	db_ = db;
	handle_ = handle ? handle : db->DefaultColumnFamily();
	is_own_ = handle && is_own;
	logger_ = db->GetDBOptions().info_log;
	poked_ = true;
	try {
		thread_ = std::thread([this] { run(); });
	} catch (const std::system_error &error) {
		std::lock_guard<std::mutex> lock(mutex_);

		/* There will never be a view: RocksDB serves the family. */
		stopping_ = true;
		rocksdb::Warn(logger_, "bpf-of: family %s is not pushed down: cannot start a thread: %s",
			family_.c_str(), error.what());
	}
}

void VersionTracker::stop()
{
	std::lock_guard<std::mutex> stops(stop_mutex_);
	{
		std::lock_guard<std::mutex> lock(mutex_);

		stopping_ = true;
		wake_.notify_one();
	}
	if (thread_.joinable())
		thread_.join();
	views_.clear();
	tables_.clear();
	ahead_.clear();
	{
		std::lock_guard<std::mutex> lock(mutex_);

		view_.store(nullptr);
		known_ = refused_ = 0;
	}
	std::lock_guard<std::mutex> lock(handle_mutex_);

	if (handle_ && is_own_)
		db_->DestroyColumnFamilyHandle(handle_);
	handle_ = nullptr;
}

void VersionTracker::poke()
{
	std::lock_guard<std::mutex> lock(mutex_);

	poked_ = true;
	wake_.notify_one();
}

void VersionTracker::created(const rocksdb::TableFileCreationInfo &info)
{
	if (!info.status.ok() || info.cf_name != family_)
		return;
	std::lock_guard<std::mutex> lock(mutex_);

	if (stopping_)
		return;
	created_.push_back({info.file_path, info.table_properties});
	wake_.notify_one();
}

void VersionTracker::deleted(const rocksdb::TableFileDeletionInfo &info)
{
	std::lock_guard<std::mutex> lock(mutex_);

	if (stopping_)
		return;
	deleted_.push_back(info.file_path);
}

bool VersionTracker::raise(uint64_t version)
{
	uint64_t seen = newest_seen_.load(std::memory_order_relaxed);

	while (seen < version &&
		!newest_seen_.compare_exchange_weak(seen, version, std::memory_order_relaxed))
		;
	return seen < version;
}

void VersionTracker::see(uint64_t version)
{
	if (raise(version))
		poke();
}

bool VersionTracker::current_version(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *handle, uint64_t *version)
{
	return db->GetIntProperty(handle, rocksdb::DB::Properties::kCurrentSuperVersionNumber, version);
}

std::shared_ptr<const View> VersionTracker::current()
{
	std::lock_guard<std::mutex> lock(handle_mutex_);
	std::shared_ptr<const View> now = view();
	uint64_t version;

	return handle_ && current_version(db_, handle_, &version) && now && now->version == version ? now : nullptr;
}

bool VersionTracker::wait_ready(std::chrono::steady_clock::time_point end)
{
	std::unique_lock<std::mutex> lock(mutex_);

	for (;;) {
		if (stopping_)
			return true;
		lock.unlock();
		const std::shared_ptr<const View> now = current();

		if (now)
			return is_mapped(*now, *files_, end);
		lock.lock();
		if (stopping_)
			return true;
		poked_ = true;
		wake_.notify_one();
		if (refreshed_.wait_until(lock, end) == std::cv_status::timeout)
			return false;
	}
}

void VersionTracker::distrust(const std::shared_ptr<const View> &before)
{
	std::lock_guard<std::mutex> handle_lock(handle_mutex_);
	uint64_t version;

	if (!handle_ || !current_version(db_, handle_, &version))
		return;
	std::lock_guard<std::mutex> lock(mutex_);

	distrusted_ = version;
	if (view() != before)
		view_.store(nullptr);
}

bool VersionTracker::is_distrusted(uint64_t version) const
{
	std::lock_guard<std::mutex> lock(mutex_);

	return version == distrusted_;
}

void VersionTracker::run()
{
	Clock::time_point next_tidy = Clock::now() + TIDY_EVERY;
	std::unique_lock<std::mutex> lock(mutex_);
	const auto due = [&] { return poked_ ? std::min(next_listing_, next_tidy) : next_tidy; };

	while (!stopping_) {
		while (!stopping_ && created_.empty() && Clock::now() < due())
			wake_.wait_until(lock, due());
		std::vector<Created> created;
		const bool lists = poked_ && !stopping_ && Clock::now() >= next_listing_;

		created.swap(created_);
		poked_ = poked_ && !lists;
		lock.unlock();
		/* Created tables belong to no version yet; reading their indices early saves time
		 * later. */
		open_created(created);
		if (lists)
			refresh();
		if (Clock::now() >= next_tidy) {
			tidy();
			next_tidy = Clock::now() + TIDY_EVERY;
		}
		drop_replaced();
		lock.lock();
		refreshed_.notify_all();
	}
}

void VersionTracker::tidy()
{
	std::vector<std::string> deleted;
	{
		std::lock_guard<std::mutex> lock(mutex_);

		deleted.swap(deleted_);
		/* Some tables are deleted without a flush or a compaction. */
		poked_ = poked_ || !deleted.empty();
	}
	for (const std::string &path : deleted)
		ahead_.erase(path);
	files_->reconnect();
	files_->close_idle();
}

void VersionTracker::drop_replaced()
{
	if (views_.empty())
		return;
	const auto is_unused = [](const std::shared_ptr<const View> &view) { return view.use_count() == 1; };

	views_.erase(std::remove_if(views_.begin(), views_.end() - 1, is_unused), views_.end() - 1);
}

void VersionTracker::open_created(const std::vector<Created> &created)
{
	for (const Created &file : created) {
		std::shared_ptr<const Table> table;
		const rocksdb::Status status =
			Table::open(*files_, memory_, file.path, &file.properties, access_, &table);

		/* On failure the table was deleted at once, and no version will ask for it. */
		if (status.ok())
			ahead_[file.path] = std::move(table);
	}
}

void VersionTracker::refresh()
{
	const std::shared_ptr<const View> now = this->view();
	std::shared_ptr<View> view;
	Tables tables;
	uint64_t version;

	/* Most calls of poke() do not mean that there is another version. Listing the tables takes
	 * RocksDB's mutex. */
	if (now && !has_unread_ && current_version(db_, handle_, &version) && version == now->version)
		return;
	const rocksdb::Status status = make_view(&view, &tables);

	if (!status.ok())
		return try_again(status);
	size_t refused = 0;
	std::string refusal;

	has_unread_ = false;
	for (const auto &entry : tables) {
		has_unread_ = has_unread_ || entry.second->is_unread();
		if (!entry.second->refusal().empty()) {
			refused++;
			refusal = entry.second->refusal();
		}
		ahead_.erase(entry.first);
	}
	/* RocksDB does not tell a secondary about created and deleted tables: the remaining ones are in
	 * no view. */
	if (access_ == Access::kSecondary)
		ahead_.clear();
	/* The first view does not wait: its tables are not in memory. */
	if (now)
		wait_mapped(tables);
	tables_.swap(tables);
	if (has_unread_)
		pause();
	else
		pause_ = std::chrono::milliseconds(0);
	std::lock_guard<std::mutex> lock(mutex_);

	if (view->version != distrusted_)
		view_.store(view);
	views_.push_back(std::move(view));
	poked_ = poked_ || has_unread_;
	known_ = tables_.size();
	refused_ = refused;
	last_error_ = refusal;
}

void VersionTracker::wait_mapped(const Tables &tables) const
{
	const std::shared_ptr<Session> session = files_->target().session();
	const Clock::time_point end = Clock::now() + MAPPED_WITHIN;

	for (const auto &[path, table] : tables) {
		if (tables_.count(path) == 0 && !is_mapped(*table, *session, end))
			return;
	}
}

void VersionTracker::pause()
{
	pause_ = std::clamp(2 * pause_, PAUSE_MIN, PAUSE_MAX);
	next_listing_ = std::max(next_listing_, Clock::now() + pause_);
}

void VersionTracker::try_again(const rocksdb::Status &why)
{
	/* There is a newer version already. */
	const bool is_late = why.IsTryAgain();

	if (!is_late)
		pause();
	std::lock_guard<std::mutex> lock(mutex_);

	poked_ = true;
	if (!is_late)
		last_error_ = why.ToString();
}

rocksdb::Status VersionTracker::make_view(std::shared_ptr<View> *made, Tables *tables)
{
	auto view = std::make_shared<View>();
	rocksdb::ColumnFamilyMetaData family;
	uint64_t after;

	if (!current_version(db_, handle_, &view->version))
		return rocksdb::Status::NotSupported("this RocksDB does not report the version number of a column family");
	raise(view->version);
	if (is_distrusted(view->version))
		return rocksdb::Status::Incomplete("the instance failed to catch up with its primary",
			"RocksDB reads the family itself until it changes");
	const Clock::time_point begun = Clock::now();

	db_->GetColumnFamilyMetaData(handle_, &family);
	const Clock::time_point listed = Clock::now();

	next_listing_ = listed + PAUSE_AFTER_LISTING * (listed - begun);
	if (!current_version(db_, handle_, &after) || after != view->version)
		return rocksdb::Status::TryAgain("the set of tables changed while it was listed");
	rocksdb::Status status;

	for (const rocksdb::LevelMetaData &level : family.levels) {
		std::vector<Range> ranges(level.files.size());

		for (size_t i = 0; status.ok() && i < ranges.size(); i++)
			status = range(level.files[i], &ranges[i], tables);
		if (level.level == 0)
			view->newest = std::move(ranges);
		else if (!ranges.empty())
			view->levels.emplace_back(std::move(ranges));
	}
	if (status.ok())
		status = open_blobs(family.blob_files, &view->blobs);
	if (status.ok())
		*made = std::move(view);
	else if (current_version(db_, handle_, &after) && after != view->version)
		/* A file may be missing because of that. */
		status = rocksdb::Status::TryAgain("there is a newer version");
	return status;
}

rocksdb::Status VersionTracker::open_blobs(
	const std::vector<rocksdb::BlobMetaData> &files, BlobFiles *blobs)
{
	const std::shared_ptr<const View> before = view();

	for (const rocksdb::BlobMetaData &blob : files) {
		std::shared_ptr<const TableFile> &file = (*blobs)[blob.blob_file_number];

		if (before && before->blobs.count(blob.blob_file_number)) {
			file = before->blobs.at(blob.blob_file_number);
			continue;
		}
		/* Some versions of RocksDB report names with a leading slash. */
		const size_t name = blob.blob_file_name.find_first_not_of('/');
		const rocksdb::Status status =
			files_->open(blob.blob_file_path + "/" + blob.blob_file_name.substr(name), &file);

		if (!status.ok() && access_ != Access::kSecondary)
			return status;
		/* The primary has deleted it; RocksDB may have it open. */
		if (!status.ok())
			blobs->erase(blob.blob_file_number);
	}
	return rocksdb::Status::OK();
}

rocksdb::Status VersionTracker::range(const rocksdb::SstFileMetaData &file, Range *range, Tables *tables)
{
	const std::string path = file.directory + "/" + file.relative_filename;
	std::shared_ptr<const Table> table = find(path);

	if (!table) {
		/* The table was part of the database when it was opened, or was ingested. */
		rocksdb::TablePropertiesCollection all;
		rocksdb::Range keys(file.smallestkey, file.largestkey);
		rocksdb::Status status = db_->GetPropertiesOfTablesInRange(handle_, &keys, 1, &all);

		if (!status.ok())
			return status;
		const auto found = all.find(path);

		if (found == all.end())
			return rocksdb::Status::NotFound(path, "not in the current version");
		status = Table::open(*files_, memory_, path, found->second.get(), access_, &table);
		if (!status.ok())
			return status;
		ahead_[path] = table;
	}
	range->smallest = file.smallestkey;
	range->largest = file.largestkey;
	/* It is not known of tables that RocksDB of ten years ago wrote. */
	range->smallest_sequence = file.smallest_seqno <= file.largest_seqno ? file.smallest_seqno : 0;
	range->table = table;
	(*tables)[path] = std::move(table);
	return rocksdb::Status::OK();
}

std::shared_ptr<const Table> VersionTracker::find(const std::string &path) const
{
	for (const Tables *tables : {&ahead_, &tables_}) {
		const auto found = tables->find(path);

		/* A table that could not be read is tried again. */
		if (found != tables->end() && !found->second->is_unread())
			return found->second;
	}
	return nullptr;
}

void VersionTracker::count(PushdownStats *stats) const
{
	std::lock_guard<std::mutex> lock(mutex_);

	stats->tables += known_;
	stats->tables_refused += refused_;
}

std::string VersionTracker::last_error() const
{
	{
		std::lock_guard<std::mutex> lock(mutex_);

		if (!last_error_.empty())
			return last_error_;
	}
	const std::shared_ptr<const View> now = view();

	return now ? why_not_mapped(*now, *files_) : "";
}

} /* namespace bpf_of */
