/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "bpfof/rocksdb.h"

#include "iterator.h"
#include "lookup.h"
#include "state.h"

#include <algorithm>
#include <chrono>
#include <functional>

namespace bpf_of {

using rocksdb::ColumnFamilyHandle;
using rocksdb::PinnableSlice;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

const char *name(ReadPath way)
{
	static const char *const NAMES[WAYS] = {
		"memory",
		"no table",
		"target",
		"here",
		"blocks",
		"plain",
		"sampled",
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

PushdownDB::PushdownDB(std::shared_ptr<rocksdb::DB> db, std::unique_ptr<State> state)
	: StackableDB(std::move(db)), state_(std::move(state))
{
}

PushdownDB::~PushdownDB()
{
	report();
	/* Before the database goes: it is asked for its versions until then. */
	for (const auto &live : state_->families) {
		if (live)
			live->stop();
	}
}

Status PushdownDB::Close()
{
	for (const auto &live : state_->families) {
		if (live)
			live->stop();
	}
	return StackableDB::Close();
}

Status PushdownDB::DropColumnFamily(ColumnFamilyHandle *family)
{
	const Status status = StackableDB::DropColumnFamily(family);

	if (status.ok())
		state_->leave(family);
	return status;
}

Status PushdownDB::DropColumnFamilies(const std::vector<ColumnFamilyHandle *> &families)
{
	/* As RocksDB does it: one after the other, until one cannot be dropped. */
	for (ColumnFamilyHandle *family : families) {
		const Status status = DropColumnFamily(family);

		if (!status.ok())
			return status;
	}
	return Status::OK();
}

Status PushdownDB::SetDBOptions(const std::unordered_map<std::string, std::string> &options)
{
	if (options.count("max_open_files"))
		return Status::InvalidArgument(
			"max_open_files cannot be changed", "pushdown needs all tables to be open");
	return StackableDB::SetDBOptions(options);
}

void PushdownDB::set_mode(Mode mode)
{
	state_->mode = mode;
}

bool PushdownDB::State::can_push_down(const ReadOptions &options)
{
	return options.read_tier == rocksdb::kReadAllTier && !options.timestamp &&
	       !options.deadline.count() && !options.io_timeout.count();
}

uint64_t PushdownDB::State::newest_tag(const ReadOptions &options)
{
	return options.snapshot ? options.snapshot->GetSequenceNumber() << 8 | 0xff : UINT64_MAX;
}

bool PushdownDB::State::is_sample(const VersionTracker &live, const ReadOptions &options) const
{
	return live.has_block_cache() && options.fill_cache && sampling.is_sample();
}

Status PushdownDB::State::search_memory(rocksdb::DB *db, const ReadOptions &options,
	ColumnFamilyHandle *family, const Slice &key, PinnableSlice *value, const TableFile **missing)
{
	StopAtRead stop;

	value->Reset();
	Status status = db->Get(options, family, key, value);

	*missing = stop.missing();
	return status;
}

bool PushdownDB::State::is_current(
	rocksdb::DB *db, VersionTracker *live, ColumnFamilyHandle *family, const View *view)
{
	uint64_t version;

	if (view && VersionTracker::current_version(db, family, &version) && version == view->version)
		return true;
	live->poke();
	return false;
}

Status PushdownDB::Get(const ReadOptions &options, ColumnFamilyHandle *family, const Slice &key,
	PinnableSlice *value, std::string *timestamp)
{
	if (!timestamp)
		return get(options, family, key, value);
	state_->count(ReadPath::kOptions);
	value->Reset();
	return db_->Get(options, family, key, value, timestamp);
}

#if ROCKSDB_MAJOR < 9
Status PushdownDB::Get(
	const ReadOptions &options, ColumnFamilyHandle *family, const Slice &key, PinnableSlice *value)
{
	return get(options, family, key, value);
}
#endif

namespace {

/*
 * RocksDB's own Get, whose blocks are fetched together: when it needs one of a table of the view, those of all
 * tables behind that may have the key come with it. The answer is RocksDB's, whatever the view has.
 */
class FetchTogether final : public ReadScope {
    public:
	using Fetch = std::function<bool(const TableFile &missing, PrefetchBuffer *stage)>;

	explicit FetchTogether(Fetch fetch) : fetch_(std::move(fetch)) {}

	bool read(const TableFile &file, uint64_t offset, size_t size, char *scratch, Slice *result,
		rocksdb::IOStatus *status) override
	{
		*status = rocksdb::IOStatus::OK();
		if (stage_.size_bytes() == 0 && !fetch_(file, &stage_))
			return false;
		return stage_.serve(file, offset, size, scratch, result);
	}

    private:
	const Fetch fetch_;
	PrefetchBuffer stage_;
};

} /* namespace */

Status PushdownDB::get(
	const ReadOptions &options, ColumnFamilyHandle *family, const Slice &key, PinnableSlice *value)
{
	const auto plainly = [&](ReadPath why) {
		state_->count(why);
		value->Reset();
		return db_->Get(options, family, key, value);
	};
	const Mode mode = state_->mode.load(std::memory_order_relaxed);
	VersionTracker *live = state_->family(family);

	if (mode == Mode::kPlain)
		return plainly(ReadPath::kPlain);
	if (!State::can_push_down(options) || key.size() > KEY_BYTES_MAX)
		return plainly(ReadPath::kOptions);
	if (!live)
		return plainly(ReadPath::kFamily);

	Sampling::Read read(state_->sampling);
	/* The order of these three is what makes the answer right: view.h. */
	const std::shared_ptr<const View> view = live->view();
	const TableFile *missing;
	Status status = State::search_memory(db_, options, family, key, value, &missing);

	if (!missing) {
		state_->count(ReadPath::kMemory);
		read.end(Sampling::Kind::kMemory);
		return status;
	}
	const auto together = [&](ReadPath why) {
		if (!view || !state_->files->target().session()->has_target())
			return plainly(why);
		FetchTogether scope([&](const TableFile &first, PrefetchBuffer *stage) {
			Plan plan;
			ReadPath ignored;

			return make_plan(*view, key, State::newest_tag(options), first, &plan, &ignored) &&
			       state_->stage({&plan}, stage);
		});

		return plainly(why);
	};

	if (!State::is_current(db_, live, family, view.get()))
		return together(ReadPath::kStale);
	if (state_->is_sample(*live, options)) {
		read.begin();
		status = together(ReadPath::kSampled);
		read.end(Sampling::Kind::kSample);
		return status;
	}
	const uint64_t newest_tag = State::newest_tag(options);
	Plan plan;
	ReadPath way = ReadPath::kNoTable;

	if (!make_plan(*view, key, newest_tag, *missing, &plan, &way))
		return plainly(way);
	value->Reset();
	if (plan.tables == 0) {
		state_->count(ReadPath::kNoTable);
		return Status::NotFound();
	}
	if (mode == Mode::kBlocks) {
		PrefetchBuffer stage;

		if (!state_->stage({&plan}, &stage))
			return plainly(ReadPath::kBusy);
		ReadPrefetched scope(stage);

		return plainly(ReadPath::kBlocks);
	}
	way = state_->run_chain(plan, key, newest_tag, &status, value);
	if (way != ReadPath::kTarget && way != ReadPath::kHere)
		return plainly(way);
	state_->count(way);
	read.end(Sampling::Kind::kChain);
	return status;
}

ReadPath PushdownDB::State::run_chain(
	Plan &plan, const Slice &key, uint64_t newest_tag, Status *status, PinnableSlice *value)
{
	alignas(8) unsigned char scratch[BPFOF_SCRATCH_MAX];
	const Reader reader(files->target().session());
	struct bpfof_chain chain;
	FileList files_of_plan;

	if (!reader.get())
		return ReadPath::kBusy;
	files_of_plan.add(&plan);
	make_chain(&chain, plan, files_of_plan, key, newest_tag, reader.session().sst_get(), scratch, scratch_bytes);
	bpfof_read_pushdown_batch(reader.get(), &chain, 1);
	return take_answer(chain, status, value);
}

ReadPath PushdownDB::State::take_answer(
	const struct bpfof_chain &chain, Status *status, PinnableSlice *value)
{
	uint32_t blocks_read;
	std::string error;
	const ReadPath way = read_answer(chain, status, value, &blocks_read, &error);

	if (way == ReadPath::kFailed) {
		std::lock_guard<std::mutex> lock(mutex);

		last_error = error;
	}
	blocks.fetch_add(blocks_read, std::memory_order_relaxed);
	return way;
}

bool PushdownDB::State::stage(const std::vector<const Plan *> &plans, PrefetchBuffer *stage) const
{
	std::vector<FileRange> ranges;

	for (const Plan *plan : plans) {
		for (uint32_t i = 0; i < plan->tables; i++) {
			const struct sst_table &start = plan->starts[i];

			/* Otherwise it is an index, and what follows is not known. */
			if (start.levels == 0)
				ranges.push_back({plan->of[i]->shared_file(), start.offset,
					start.size + SST_TRAILER_BYTES});
		}
	}
	return stage->fetch(*files, ranges);
}

PushdownStats PushdownDB::stats() const
{
	PushdownStats stats;

	for (size_t way = 0; way < WAYS; way++)
		stats.gets[way] = state_->gets[way].load(std::memory_order_relaxed);
	stats.blocks = state_->blocks.load(std::memory_order_relaxed);
	stats.seeks = state_->scans->staged.load(std::memory_order_relaxed);
	stats.index_bytes = state_->memory->used();
	stats.sample_rate = state_->sampling.part();
	for (const auto &live : state_->families) {
		if (live)
			live->count(&stats);
	}
	state_->files->target().count(&stats);
	return stats;
}

std::string PushdownDB::last_error() const
{
	{
		std::lock_guard<std::mutex> lock(state_->mutex);

		if (!state_->last_error.empty())
			return state_->last_error;
	}
	for (const auto &live : state_->families) {
		const std::string error = live ? live->last_error() : "";

		if (!error.empty())
			return error;
	}
	return "";
}

bool PushdownDB::wait_ready(unsigned timeout_ms)
{
	using Clock = std::chrono::steady_clock;
	const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
	const auto ready = [&](const std::shared_ptr<VersionTracker> &live) {
		return !live || live->wait_ready(end);
	};

	return !state_->families.empty() &&
	       std::all_of(state_->families.begin(), state_->families.end(), ready);
}

rocksdb::Iterator *PushdownDB::NewIterator(const ReadOptions &options, ColumnFamilyHandle *family)
{
	VersionTracker *live = state_->family(family);

	if (!live || !State::can_push_down(options) || state_->mode == Mode::kPlain)
		return db_->NewIterator(options, family);
	std::shared_ptr<const View> view = live->view();
	std::unique_ptr<rocksdb::Iterator> plain(db_->NewIterator(options, family));

	return make_iterator(std::move(plain), options, std::move(view),
		state_->families[family->GetID()], state_->files, state_->scans);
}

} /* namespace bpf_of */
