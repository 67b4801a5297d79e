/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "bpfof/rocksdb.h"

#include "blob.h"
#include "iterator.h"
#include "known_version.h"
#include "lookup.h"
#include "state.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

namespace bpf_of {

/* Frees the blob under a PinnableSlice. */
static void free_blob(void *memory, void *)
{
	delete[] static_cast<char *>(memory);
}

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
		"timed out",
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
	/* Before the database is destroyed: trackers ask it for its versions until then. */
	state_->families->stop();
}

Status PushdownDB::Close()
{
	state_->families->stop();
	return StackableDB::Close();
}

Status PushdownDB::SetDBOptions(const std::unordered_map<std::string, std::string> &options)
{
	if (options.count("max_open_files"))
		return Status::InvalidArgument(
			"max_open_files cannot be changed", "pushdown needs all tables to be open");
	return StackableDB::SetDBOptions(options);
}

Status PushdownDB::TryCatchUpWithPrimary()
{
	std::atomic<uint64_t> &catch_ups = state_->catch_ups;

	if (state_->access != Access::kSecondary)
		return StackableDB::TryCatchUpWithPrimary();
	std::lock_guard<std::timed_mutex> lock(state_->catching_up);

	/* Memtables change before their tables do. Meanwhile, and if RocksDB has given up half-way,
	 * RocksDB serves all reads. */
	catch_ups.fetch_add(1 - catch_ups.load() % 2);
	const auto all = state_->families->all();
	std::vector<std::shared_ptr<const View>> before;

	for (const auto &live : all)
		before.push_back(live->view());
	const Status status = StackableDB::TryCatchUpWithPrimary();

	for (size_t i = 0; i < all.size(); i++) {
		if (status.ok())
			all[i]->poke();
		else
			all[i]->distrust(before[i]);
	}
	if (status.ok())
		catch_ups.fetch_add(1);
	return status;
}

#if ROCKSDB_MAJOR >= 9
Status PushdownDB::WaitForCompact(const rocksdb::WaitForCompactOptions &options)
{
	rocksdb::WaitForCompactOptions waits = options;

	/* RocksDB would close itself while trackers still use it. */
	waits.close_db = false;
	const Status status = StackableDB::WaitForCompact(waits);

	return status.ok() && options.close_db ? Close() : status;
}
#endif

void PushdownDB::set_mode(Mode mode)
{
	state_->mode = mode;
}

bool PushdownDB::State::can_push_down(const ReadOptions &options) const
{
	/* Secondary instances of RocksDB have no snapshots. */
	if (access == Access::kSecondary && options.snapshot)
		return false;
#if ROCKSDB_MAJOR >= 9
	/* With this threshold a Get() may succeed with a subcode, which chains do not report. */
	if (options.merge_operand_count_threshold)
		return false;
#endif
	/* RocksDB charges its limiter for its own reads only. */
	if (options.rate_limiter_priority != rocksdb::Env::IO_TOTAL && has_rate_limiter)
		return false;
	return options.read_tier == rocksdb::kReadAllTier && !options.timestamp;
}

uint64_t PushdownDB::State::newest_tag(const rocksdb::DB *db, const ReadOptions &options)
{
	const uint64_t newest =
		options.snapshot ? options.snapshot->GetSequenceNumber() : db->GetLatestSequenceNumber();

	return newest << 8 | 0xff;
}

bool PushdownDB::State::is_sample(const VersionTracker &live, const ReadOptions &options) const
{
	return live.has_block_cache() && options.fill_cache && sampling.is_sample();
}

Status PushdownDB::State::search_memory(rocksdb::DB *db, const ReadOptions &options,
	ColumnFamilyHandle *family, const Slice &key, PinnableSlice *value, SearchEnd *end)
{
	StopAtRead stop(end);

	value->Reset();
	return db->Get(options, family, key, value);
}

bool PushdownDB::State::is_current(
	rocksdb::DB *db, VersionTracker *live, ColumnFamilyHandle *family, const View *view) const
{
	uint64_t version;

	if (view && (access == Access::kReadOnly || is_known_version(live->number(), view->version)))
		return true;
	/* The first view is made without being asked for. */
	if (!view || live->is_outdated(*view) || !VersionTracker::current_version(db, family, &version))
		return false;
	if (version != view->version) {
		live->see(version);
		return false;
	}
	know_version(live->number(), version);
	return true;
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
	if (!state_->can_push_down(options) || key.size() > KEY_BYTES_MAX)
		return plainly(ReadPath::kOptions);
	if (!live)
		return plainly(ReadPath::kFamily);

	Sampling::Read read(state_->sampling);
	/* The order of these steps makes the answer correct: view.h. */
	const uint64_t moment = state_->moment();
	const std::shared_ptr<const View> view = live->view();
	SearchEnd end;
	Status status = State::search_memory(db_, options, family, key, value, &end);

	if (!end.table) {
		state_->count(ReadPath::kMemory);
		read.end(Sampling::Kind::kMemory);
		return status;
	}
	const auto together = [&](ReadPath why) {
		const Status read = state_->get_together(db_, options, family, *live, view.get(), key, value);

		state_->count(read.IsTimedOut() ? ReadPath::kTimedOut : why);
		return read;
	};

	/* Checked before as well: asking for the version's number would wait for the catch-up. */
	if (!state_->is_still(moment) || !state_->is_current(db_, live, family, view.get()) ||
		!state_->is_still(moment))
		return together(ReadPath::kStale);
	if (state_->is_sample(*live, options)) {
		read.begin();
		status = together(ReadPath::kSampled);
		read.end(Sampling::Kind::kSample);
		return status;
	}
	const uint64_t newest_tag = State::newest_tag(db_, options);
	const TimeLimit limit(options);
	Plan plan;
	ReadPath way = ReadPath::kNoTable;

	if (!make_plan(*view, State::wanted(key, newest_tag, *live, options), end, &plan, &way))
		return together(way);
	value->Reset();
	if (mode == Mode::kBlocks && plan.tables > 0)
		return state_->search_blocks(plan, limit, plainly);
	if (plan.tables > 0 && live->declines().are_likely())
		return together(ReadPath::kDeclined);
	way = state_->run_plan(
		plan, {key, *live, *view, end, limit, &status, value, plan.tables, plan.deleted_below}, newest_tag);
	/* RocksDB needs the blocks that the chain has read, or some that it could not read. */
	if (way == ReadPath::kDeclined || way == ReadPath::kFailed)
		return together(way);
	if (way != ReadPath::kTarget && way != ReadPath::kHere && way != ReadPath::kNoTable &&
		way != ReadPath::kTimedOut)
		return plainly(way);
	state_->count(way);
	if (way == ReadPath::kTarget || way == ReadPath::kHere)
		read.end(Sampling::Kind::kChain);
	return status;
}

Status PushdownDB::State::get_together(rocksdb::DB *db, const ReadOptions &options, ColumnFamilyHandle *family,
	const VersionTracker &live, const View *view, const Slice &key, PinnableSlice *value) const
{
	value->Reset();
	if (!view || !files->target().session()->has_target())
		return db->Get(options, family, key, value);
	FetchTogether scope([&](const TableFile &first, uint64_t offset, int64_t timeout_us, PrefetchBuffer *stage) {
		const WantedKey what = wanted(key, newest_tag(db, options), live, options);

		return stage->fetch(*files, key_blocks(*view, what, first, offset), timeout_us);
	});

	return db->Get(options, family, key, value);
}

Status PushdownDB::State::search_blocks(
	const Plan &plan, const TimeLimit &limit, const std::function<Status(ReadPath)> &plainly)
{
	PrefetchBuffer stage;
	std::vector<FileRange> blocks = blocks_of(plan);
	const Fetched fetched = blocks.empty() ? Fetched::kAll : stage.fetch(*files, std::move(blocks), limit.timeout_us());

	if (fetched == Fetched::kTimedOut) {
		count(ReadPath::kTimedOut);
		return timed_out();
	}
	if (fetched == Fetched::kNot)
		return plainly(ReadPath::kBusy);
	ReadPrefetched scope(stage);

	return plainly(ReadPath::kBlocks);
}

ReadPath PushdownDB::State::run_plan(Plan &plan, const KeyRead &read, uint64_t newest_tag)
{
	if (plan.tables == 0) {
		Found none;

		return settle(&none, read) ? ReadPath::kNoTable : ReadPath::kDeclined;
	}
	std::optional<Speculation::Read> speculates;

	if (plan.tables > 1)
		speculates.emplace(speculation);
	const uint32_t parts = parts_of(plan, speculates && speculates->is_at_once());
	const size_t scratch_bytes = scratch_bytes_of(read.live, read.key);
	alignas(8) unsigned char one_scratch[BPFOF_SCRATCH_MAX];
	const std::unique_ptr<unsigned char[]> more(parts > 1 ? new unsigned char[parts * scratch_bytes] : nullptr);
	unsigned char *const scratch = more ? more.get() : one_scratch;
	struct bpfof_chain chains[PARTS_MAX];
	FileList files_of_plan;
	{
		const Reader reader(files->target().session());

		if (!reader.get())
			return ReadPath::kBusy;
		files_of_plan.add(&plan);
		for (uint32_t i = 0; i < parts; i++)
			make_chain(&chains[i], plan, Part::of(plan, parts, i), files_of_plan, read.key, newest_tag,
				reader.session().sst_get(), scratch + i * scratch_bytes, scratch_bytes);
		run_within(reader.get(), chains, parts, read.limit);
	}
	ChainRead ended = take_chains(chains, parts, read);

	if (speculates && ended.is_good())
		speculates->end({1, ended.found.tables, plan.tables});
	else if (speculates && ended.way == ReadPath::kTimedOut)
		speculates->time_out(1);
	if (ended.found.is_blob) {
		std::vector<ChainRead> one;

		one.push_back(std::move(ended));
		read_blobs(&one, read.limit.timeout_us());
		return take_answer(&one[0]);
	}
	return take_answer(&ended);
}

void PushdownDB::State::failed(const std::string &why)
{
	std::lock_guard<std::mutex> lock(mutex);

	last_error = why;
}

ChainRead PushdownDB::State::take_chains(const struct bpfof_chain *chains, uint32_t parts, const KeyRead &read)
{
	ChainRead ended = {read, ReadPath::kFailed, Found()};
	std::string error;

	ended.way = read_answers(chains, parts, &ended.found, &error);
	ended.found.hide(read.tables, read.deleted_below);
	blocks.fetch_add(ended.found.blocks, std::memory_order_relaxed);
	if (parts > 1)
		at_once.fetch_add(1, std::memory_order_relaxed);
	if (ended.way == ReadPath::kFailed)
		failed(error);
	if (ended.found.lacks_scratch)
		read.live.note_lack_of_scratch();
	return ended;
}

void PushdownDB::State::read_blobs(std::vector<ChainRead> *reads, int64_t timeout_us)
{
	BlobReads wanted;

	for (size_t i = 0; i < reads->size(); i++) {
		ChainRead &read = (*reads)[i];

		if (read.is_good() && read.found.is_blob &&
			!wanted.add(read.found.value, read.read.key, read.read.view.blobs, i))
			read.way = ReadPath::kDeclined;
	}
	const Fetched fetched = wanted.fetch(*files, timeout_us);
	const bool were_read = fetched == Fetched::kAll;

	blobs.fetch_add(wanted.count(), std::memory_order_relaxed);
	for (size_t i = 0; i < wanted.count(); i++) {
		ChainRead &read = (*reads)[wanted.of(i)];
		const Status status =
			were_read ? wanted.take(i, read.read.key, &read.found.blob) : Status::Busy();

		read.found.value = read.found.blob.contents;
		if (status.ok())
			continue;
		read.way = fetched == Fetched::kTimedOut ? ReadPath::kTimedOut
			   : were_read		     ? ReadPath::kFailed
						     : ReadPath::kBusy;
		if (were_read)
			failed(status.ToString());
	}
}

ReadPath PushdownDB::State::take_answer(ChainRead *read)
{
	if (read->is_good() && !settle(&read->found, read->read))
		read->way = ReadPath::kDeclined;
	read->read.live.declines().add(read->way == ReadPath::kDeclined);
	if (read->way == ReadPath::kTimedOut)
		*read->read.status = timed_out();
	return read->way;
}

bool PushdownDB::State::settle(Found *found, const KeyRead &read)
{
	const FollowedMerge *merge = read.live.merge();

	*read.status = Status::OK();
	if (found->operands.empty() && read.end.operands.empty()) {
		if (found->blob.memory)
			read.value->PinSlice(found->value, free_blob, found->blob.memory.release(), nullptr);
		else if (found->has_value)
			read.value->PinSelf(found->value);
		else
			*read.status = Status::NotFound();
		return true;
	}
	/* If the merge fails, RocksDB reads the key and reports the error. */
	if (!merge || !merge->merge(read.key, found->has_value ? &found->value : nullptr, read.end.operands,
			      found->operands, read.live.logger(), read.value->GetSelf()))
		return false;
	read.value->PinSelf();
	return true;
}

std::vector<FileRange> PushdownDB::State::blocks_of(const Plan &plan)
{
	std::vector<FileRange> ranges;

	for (uint32_t i = 0; i < plan.tables; i++) {
		const struct sst_table &start = plan.starts[i];

		if (start.levels == 0)
			ranges.push_back(
				{plan.of[i]->shared_file(), start.offset, start.size + SST_TRAILER_BYTES});
	}
	return ranges;
}

PushdownStats PushdownDB::stats() const
{
	PushdownStats stats;

	for (size_t way = 0; way < WAYS; way++)
		stats.gets[way] = state_->gets[way].load(std::memory_order_relaxed);
	stats.blocks = state_->blocks.load(std::memory_order_relaxed);
	stats.at_once = state_->at_once.load(std::memory_order_relaxed);
	stats.blobs = state_->blobs.load(std::memory_order_relaxed);
	stats.seeks = state_->scans->staged.load(std::memory_order_relaxed);
	stats.index_bytes = state_->memory->used();
	stats.sample_rate = state_->sampling.part();
	for (const auto &live : state_->families->all())
		live->count(&stats);
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
	for (const auto &live : state_->families->all()) {
		const std::string error = live->last_error();

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
		return live->wait_ready(end);
	};

	for (;;) {
		/* A thread that catches up with the primary holds RocksDB's mutex. */
		if (!state_->catching_up.try_lock_until(end))
			return false;
		const uint64_t moment = state_->moment();

		state_->catching_up.unlock();
		const auto all = state_->families->all();

		/* The last catch-up has failed. */
		if (all.empty() || moment % 2)
			return false;
		const bool are_ready = std::all_of(all.begin(), all.end(), ready);

		if (state_->is_still(moment) || Clock::now() >= end)
			return are_ready && state_->is_still(moment);
	}
}

rocksdb::Iterator *PushdownDB::NewIterator(const ReadOptions &options, ColumnFamilyHandle *family)
{
	VersionTracker *live = state_->family(family);

	if (!live || !state_->can_push_down(options) || state_->mode == Mode::kPlain)
		return db_->NewIterator(options, family);
	std::shared_ptr<const View> view = live->view();
	std::unique_ptr<rocksdb::Iterator> plain(db_->NewIterator(options, family));

	return make_iterator(std::move(plain), options, std::move(view),
		state_->families->share(family->GetID()), state_->files, state_->scans);
}

} /* namespace bpf_of */
