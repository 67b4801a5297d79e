/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "opening.h"

#include "known_version.h"
#include "lookup.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <sys/resource.h>
#include <unordered_map>

namespace bpf_of {

using rocksdb::ColumnFamilyDescriptor;
using rocksdb::ColumnFamilyHandle;
using rocksdb::Status;

namespace {

/* Whether DB::Open() returns before all tables are open, which RocksDB before 11 does not do. */
template <typename Options>
auto opens_later(const Options &options, int) -> decltype(options.open_files_async != false)
{
	return options.open_files_async;
}

template <typename Options>
bool opens_later(const Options &, long)
{
	return false;
}

/* Why a database with these options cannot be pushed down, and what to do; "" if it can. */
std::string refuse(const rocksdb::DBOptions &options, const PushdownOptions &pushdown)
{
	if (options.max_open_files != -1)
		return "max_open_files must be -1: otherwise a search in memory may have to open tables";
	if (opens_later(options, 0))
		return "open_files_async must be off: otherwise a search in memory may have to open a table";
	if (options.env && options.env != rocksdb::Env::Default())
		return "env must be Env::Default(): the files are opened by their paths";
	if (options.unordered_write || options.two_write_queues)
		return "unordered_write and two_write_queues must be off: with them tables may hold "
		       "entries that are not visible yet";
	if (options.sst_file_manager && options.sst_file_manager->GetDeleteRateBytesPerSecond() > 0)
		return "the sst_file_manager must not limit the rate of deletions: it truncates files "
		       "that are still being read";
	if (pushdown.value_bytes_max > PushdownOptions::VALUE_BYTES_MAX)
		return "value_bytes_max must be at most " +
		       std::to_string(PushdownOptions::VALUE_BYTES_MAX);
	if (pushdown.readers_max == 0)
		return "readers_max must be at least 1";
	/* A grant daemon that serves one namespace needs no device. */
	if (pushdown.url.empty() != pushdown.device.empty() && pushdown.url.rfind("grantd:", 0) != 0)
		return "url and device must be given together; device may be omitted only with a grant daemon";
	if (!(pushdown.sample_rate >= 0 && pushdown.sample_rate <= 1))
		return "sample_rate must be from 0 to 1";
	return "";
}

/* The largest number of descriptors for tables. */
size_t descriptors(const PushdownOptions &pushdown, Access access)
{
	struct rlimit limit;

	/* A primary deletes tables that its secondaries still read, and that could not be opened
	 * again. */
	if (access == Access::kSecondary)
		return SIZE_MAX;
	if (pushdown.descriptors_max > 0)
		return pushdown.descriptors_max;
	return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::max<size_t>(limit.rlim_cur / 2, 1) : 512;
}

/* Whether tables and memtables of a column family are of the kind that chains can search. */
bool is_plain(const rocksdb::ColumnFamilyOptions &options)
{
	return options.comparator == rocksdb::BytewiseComparator() &&
	       options.table_factory->IsInstanceOf(rocksdb::TableFactory::kBlockBasedTableName());
}

} /* namespace */

std::shared_ptr<VersionTracker> PushdownDB::State::follow(ColumnFamilyDescriptor *family) const
{
	std::shared_ptr<FollowedMerge> merge;

	if (is_left || !is_plain(family->options))
		return nullptr;
	if (family->options.merge_operator) {
		merge = std::make_shared<FollowedMerge>(family->options.merge_operator);
		family->options.merge_operator = merge;
	}
	return std::make_shared<VersionTracker>(files, memory, *family, std::move(merge), access);
}

Status Opening::begin(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
	const std::string &path, Access access, std::vector<ColumnFamilyDescriptor> *families,
	std::unique_ptr<Opening> *opening)
{
	const std::string refusal = refuse(options, pushdown);

	if (!refusal.empty())
		return Status::InvalidArgument("pushdown for " + path, refusal);
	std::shared_ptr<Target> target;
	const Status status = Target::open(pushdown, &target);

	if (!status.ok())
		return status;
	std::unique_ptr<Opening> begun(new Opening());
	auto state = std::make_unique<PushdownDB::State>(pushdown, access);

	state->has_rate_limiter = options.rate_limiter != nullptr;
	state->files = std::make_shared<TableFiles>(std::move(target));
	state->memory = std::make_shared<IndexMemory>(pushdown.index_bytes_max);
	state->scratch_bytes = scratch_bytes_for(pushdown.value_bytes_max, false);
	state->merge_scratch_bytes = scratch_bytes_for(pushdown.value_bytes_max, true);
	begun->env_ = rocksdb::NewCompositeEnv(
		make_file_system(state->files, pushdown.target_reads, descriptors(pushdown, access)));
	std::unordered_map<std::string, int> times;

	for (const ColumnFamilyDescriptor &family : *families)
		times[family.name]++;
	/* A family is followed until its handle is deleted, so it may have only one. */
	for (ColumnFamilyDescriptor &family : *families)
		begun->followed_.push_back(times[family.name] == 1 ? state->follow(&family) : nullptr);
	begun->state_ = std::move(state);
	*opening = std::move(begun);
	return Status::OK();
}

void Opening::adapt(rocksdb::DBOptions *options) const
{
	options->env = env_.get();
	options->listeners.push_back(state_->families);
	options->statistics = watch_versions(options->statistics);
}

void Opening::leave_to_rocksdb()
{
	for (std::shared_ptr<VersionTracker> &followed : followed_)
		followed.reset();
	state_->is_left = true;
	state_->mode = Mode::kPlain;
}

PushdownDB *Opening::end(rocksdb::DB *opened, const std::vector<ColumnFamilyHandle *> &handles)
{
	for (size_t i = 0; i < followed_.size(); i++) {
		const uint32_t number = handles[i] ? handles[i]->GetID() : 0;

		if (followed_[i])
			state_->families->follow(number, std::move(followed_[i]), opened, handles[i], true);
	}
	/* The database uses the Env until its end. */
	const std::shared_ptr<rocksdb::DB> owned(opened, [env = env_](rocksdb::DB *last) { delete last; });

	return new PushdownDB(owned, std::move(state_));
}

/* PushdownDB::Open() of a database that `open` opens. */
template <typename Open>
static Status open_families(const Open &open, const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
	const std::string &path, const std::vector<ColumnFamilyDescriptor> &families,
	std::vector<ColumnFamilyHandle *> *handles, PushdownDB **db)
{
	std::unique_ptr<Opening> opening;
	std::vector<ColumnFamilyDescriptor> all = families;
	Status status = Opening::begin(options, pushdown, path, Open::ACCESS, &all, &opening);

	*db = nullptr;
	if (!status.ok())
		return status;
	/* Followed families are listed twice, to get a handle for the tracker beside the caller's. */
	std::vector<ColumnFamilyHandle *> own(families.size());
	rocksdb::DBOptions ours = options;
	rocksdb::DB *opened;

	for (size_t i = 0; i < families.size(); i++) {
		if (opening->is_followed(i) && families[i].name != rocksdb::kDefaultColumnFamilyName)
			all.push_back(all[i]);
	}
	opening->adapt(&ours);
	status = open_database_by(open, &opened, ours, path, all, handles);
	if (!status.ok())
		return status;
	for (size_t i = 0, next = families.size(); i < families.size(); i++) {
		if (opening->is_followed(i) && families[i].name != rocksdb::kDefaultColumnFamilyName)
			own[i] = (*handles)[next++];
	}
	handles->resize(families.size());
	*db = opening->end(opened, own);
	return status;
}

/* The same for the default column family alone. */
template <typename Open>
static Status open_default(const Open &open, const rocksdb::Options &options, const PushdownOptions &pushdown,
	const std::string &path, PushdownDB **db)
{
	std::vector<ColumnFamilyHandle *> handles;
	const Status status = open_families(
		open, options, pushdown, path, {{rocksdb::kDefaultColumnFamilyName, options}}, &handles, db);

	/* The database has a handle of its own. */
	if (status.ok())
		(*db)->DestroyColumnFamilyHandle(handles[0]);
	return status;
}

Status PushdownDB::Open(const rocksdb::Options &options, const PushdownOptions &pushdown,
	const std::string &path, PushdownDB **db)
{
	return open_default(OpenForAll(), options, pushdown, path, db);
}

Status PushdownDB::Open(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
	const std::string &path, const std::vector<ColumnFamilyDescriptor> &families,
	std::vector<ColumnFamilyHandle *> *handles, PushdownDB **db)
{
	return open_families(OpenForAll(), options, pushdown, path, families, handles, db);
}

Status PushdownDB::OpenForReadOnly(const rocksdb::Options &options, const PushdownOptions &pushdown,
	const std::string &path, PushdownDB **db, bool error_if_wal_file_exists)
{
	return open_default(OpenForReading{error_if_wal_file_exists}, options, pushdown, path, db);
}

Status PushdownDB::OpenForReadOnly(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
	const std::string &path, const std::vector<ColumnFamilyDescriptor> &families,
	std::vector<ColumnFamilyHandle *> *handles, PushdownDB **db, bool error_if_wal_file_exists)
{
	return open_families(
		OpenForReading{error_if_wal_file_exists}, options, pushdown, path, families, handles, db);
}

Status PushdownDB::OpenAsSecondary(const rocksdb::Options &options, const PushdownOptions &pushdown,
	const std::string &path, const std::string &secondary_path, PushdownDB **db)
{
	return open_default(OpenFollowing{secondary_path}, options, pushdown, path, db);
}

Status PushdownDB::OpenAsSecondary(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
	const std::string &path, const std::string &secondary_path,
	const std::vector<ColumnFamilyDescriptor> &families, std::vector<ColumnFamilyHandle *> *handles,
	PushdownDB **db)
{
	return open_families(OpenFollowing{secondary_path}, options, pushdown, path, families, handles, db);
}

} /* namespace bpf_of */
