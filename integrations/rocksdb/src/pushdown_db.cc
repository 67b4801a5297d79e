/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "bpfof/rocksdb.h"

#include "live.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/table.h>

#include <cstring>

namespace bpf_of {

using rocksdb::Slice;
using rocksdb::Status;

namespace {

/* Longer keys do not leave scratch enough room for those that the function takes out of blocks. */
constexpr size_t KEY_BYTES_MAX = 256;
/* Room for the request and a key of a block, or for the answer without its value. */
constexpr size_t SCRATCH_BYTES_MIN =
	sizeof(struct sst_get_request) + SST_TABLES_MAX * sizeof(struct sst_table) + 4 * KEY_BYTES_MAX;

static_assert(sizeof(struct sst_get_answer) + PushdownOptions::VALUE_BYTES_MAX <= BPFOF_SCRATCH_MAX,
	"the longest value fits scratch");

/* Why a database with these options cannot be pushed down, and what to do; "" if it can. */
std::string refuse(const rocksdb::Options &options, const PushdownOptions &pushdown)
{
	if (options.max_open_files != -1)
		return "max_open_files must be -1: with fewer the library cannot tell without reading "
		       "that a key is missing";
	if (options.env != rocksdb::Env::Default())
		return "env must be Env::Default(): the files are opened by their paths";
	if (options.unordered_write || options.two_write_queues)
		return "unordered_write and two_write_queues must be off: with them tables may hold "
		       "what is not visible yet";
	if (options.sst_file_manager && options.sst_file_manager->GetDeleteRateBytesPerSecond() > 0)
		return "the sst_file_manager must not limit the rate of deletions: it cuts off files "
		       "that are still read";
	if (pushdown.value_bytes_max > PushdownOptions::VALUE_BYTES_MAX)
		return "value_bytes_max must be at most " +
		       std::to_string(PushdownOptions::VALUE_BYTES_MAX);
	if (pushdown.readers_max == 0)
		return "readers_max must be at least 1";
	if (pushdown.url.empty() != pushdown.device.empty())
		return "url and device belong together: both, or none";
	return "";
}

/* Whether tables and memtables of a column family are of the kind that chains can search. */
bool is_plain(const rocksdb::ColumnFamilyOptions &options)
{
	return !options.merge_operator && options.comparator == rocksdb::BytewiseComparator() &&
	       options.table_factory->IsInstanceOf(rocksdb::TableFactory::kBlockBasedTableName());
}

} /* namespace */

struct PushdownDB::State {
	std::shared_ptr<Session> session;
	std::shared_ptr<LiveTables> live;
	size_t scratch_bytes;
	bool is_plain;
	std::array<std::atomic<uint64_t>, WAYS> gets{};
	std::atomic<uint64_t> blocks{0};
	mutable std::mutex mutex;
	std::string last_error;

	void count(Way way) { gets[static_cast<size_t>(way)].fetch_add(1, std::memory_order_relaxed); }

	/* Searches tables as planned. kTarget or kHere: `status` and `value` are the answer. */
	Way search(const Plan &plan, const Slice &key, uint64_t newest_tag, Status *status,
		rocksdb::PinnableSlice *value);
	Way failed(const struct bpfof_result &result);
};

const char *name(Way way)
{
	static const char *const NAMES[WAYS] = {
		"memory",
		"no table",
		"target",
		"here",
		"options",
		"column family",
		"stale",
		"table",
		"many tables",
		"busy",
		"declined",
		"failed",
	};

	return NAMES[static_cast<size_t>(way)];
}

PushdownDB::PushdownDB(rocksdb::DB *db, std::unique_ptr<State> state)
	: StackableDB(db), state_(std::move(state))
{
}

PushdownDB::~PushdownDB()
{
	/* Before the database goes: it is asked for its versions until then. */
	state_->live->stop();
}

Status PushdownDB::Close()
{
	state_->live->stop();
	return StackableDB::Close();
}

Status PushdownDB::SetDBOptions(const std::unordered_map<std::string, std::string> &options)
{
	if (options.count("max_open_files"))
		return Status::InvalidArgument(
			"max_open_files cannot be changed", "pushdown needs all tables to be open");
	return StackableDB::SetDBOptions(options);
}

Status PushdownDB::Open(const rocksdb::Options &options, const PushdownOptions &pushdown,
	const std::string &path, PushdownDB **db)
{
	const std::string refusal = refuse(options, pushdown);

	*db = nullptr;
	if (!refusal.empty())
		return Status::InvalidArgument("pushdown for " + path, refusal);
	auto state = std::make_unique<State>();
	Status status = Session::open(pushdown, &state->session);

	if (!status.ok())
		return status;
	state->live = std::make_shared<LiveTables>(state->session, pushdown.index_bytes_max);
	state->is_plain = is_plain(options);
	state->scratch_bytes =
		std::max(SCRATCH_BYTES_MIN, sizeof(struct sst_get_answer) + pushdown.value_bytes_max);
	rocksdb::Options with_listener = options;
	rocksdb::DB *opened;

	/* Else nobody would take what it hears. */
	if (state->is_plain)
		with_listener.listeners.push_back(state->live);
	status = rocksdb::DB::Open(with_listener, path, &opened);
	if (!status.ok())
		return status;
	if (state->is_plain)
		state->live->start(opened);
	*db = new PushdownDB(opened, std::move(state));
	return Status::OK();
}

Status PushdownDB::Get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
	const Slice &key, rocksdb::PinnableSlice *value)
{
	const auto plainly = [&](Way why) {
		state_->count(why);
		value->Reset();
		return db_->Get(options, family, key, value);
	};

	if (options.read_tier != rocksdb::kReadAllTier || options.timestamp ||
		options.deadline.count() || options.io_timeout.count() || key.size() > KEY_BYTES_MAX)
		return plainly(Way::kOptions);
	if (family->GetID() != 0 || !state_->is_plain)
		return plainly(Way::kFamily);

	/* The order of these three is what makes the answer right: view.h. */
	const std::shared_ptr<const View> view = state_->live->view();
	rocksdb::ReadOptions in_memory = options;

	in_memory.read_tier = rocksdb::kBlockCacheTier;
	value->Reset();
	Status status = db_->Get(in_memory, family, key, value);

	if (!status.IsIncomplete()) {
		state_->count(Way::kMemory);
		return status;
	}
	uint64_t version;

	if (!view || !LiveTables::current_version(db_, &version) || version != view->version) {
		state_->live->poke();
		return plainly(Way::kStale);
	}
	/* Without a snapshot all that is in the tables counts: it was written before the search. */
	const uint64_t newest_tag =
		options.snapshot ? options.snapshot->GetSequenceNumber() << 8 | 0xff : UINT64_MAX;
	Plan plan;
	Way way = Way::kNoTable;

	if (!make_plan(*view, key, newest_tag, &plan, &way))
		return plainly(way);
	value->Reset();
	if (plan.tables == 0)
		status = Status::NotFound();
	else
		way = state_->search(plan, key, newest_tag, &status, value);
	if (way != Way::kNoTable && way != Way::kTarget && way != Way::kHere)
		return plainly(way);
	state_->count(way);
	return status;
}

Way PushdownDB::State::search(const Plan &plan, const Slice &key, uint64_t newest_tag, Status *status,
	rocksdb::PinnableSlice *value)
{
	alignas(8) unsigned char scratch[BPFOF_SCRATCH_MAX];
	const struct sst_get_request request = {
		newest_tag, static_cast<__u32>(key.size()), plan.tables};
	const size_t tables_size = plan.tables * sizeof(struct sst_table);

	std::memcpy(scratch, &request, sizeof(request));
	std::memcpy(scratch + sizeof(request), plan.starts, tables_size);
	std::memcpy(scratch + sizeof(request) + tables_size, key.data(), key.size());
	Reader reader(*session);

	if (!reader.get())
		return Way::kBusy;
	const struct bpfof_read first = {
		plan.starts[0].offset, plan.starts[0].size + SST_TRAILER_BYTES, 0};
	struct bpfof_result result;
	const ssize_t length =
		bpfof_read_pushdown(reader.get(), plan.fds, plan.tables, &first, session->sst_get(),
			scratch, scratch_bytes, sizeof(request) + tables_size + key.size(), &result);
	struct sst_get_answer answer;

	if (length < static_cast<ssize_t>(sizeof(answer)))
		return failed(result);
	std::memcpy(&answer, scratch, sizeof(answer));
	/* It comes from another machine. */
	if (answer.value_size > length - sizeof(answer) && answer.status == SST_FOUND)
		return failed(result);
	blocks.fetch_add(answer.blocks, std::memory_order_relaxed);
	if (answer.status == SST_FOUND)
		value->PinSelf(
			Slice(reinterpret_cast<char *>(scratch) + sizeof(answer), answer.value_size));
	else if (answer.status == SST_NOT_FOUND || answer.status == SST_DELETED)
		*status = Status::NotFound();
	else
		return Way::kDeclined;
	if (answer.status == SST_FOUND)
		*status = Status::OK();
	return result.executor == BPFOF_AT_TARGET ? Way::kTarget : Way::kHere;
}

Way PushdownDB::State::failed(const struct bpfof_result &result)
{
	std::lock_guard<std::mutex> lock(mutex);

	last_error =
		result.length >= 0 ? "the answer of the storage function is cut off" : result.message;
	return Way::kFailed;
}

PushdownStats PushdownDB::stats() const
{
	PushdownStats stats;

	for (size_t way = 0; way < WAYS; way++)
		stats.gets[way] = state_->gets[way].load(std::memory_order_relaxed);
	stats.blocks = state_->blocks.load(std::memory_order_relaxed);
	state_->live->count(&stats);
	return stats;
}

std::string PushdownDB::last_error() const
{
	{
		std::lock_guard<std::mutex> lock(state_->mutex);

		if (!state_->last_error.empty())
			return state_->last_error;
	}
	return state_->live->last_error();
}

bool PushdownDB::wait_ready(unsigned timeout_ms)
{
	return state_->is_plain && state_->live->wait_ready(timeout_ms);
}

} /* namespace bpf_of */
