/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "lookup.h"
#include "state.h"

#include <rocksdb/snapshot.h>

#include <algorithm>
#include <optional>

namespace bpf_of {

using rocksdb::ColumnFamilyHandle;
using rocksdb::PinnableSlice;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

namespace {

/* Chains of one MultiGet() that run at once; each has a scratch of its own. */
constexpr size_t BATCH_MAX = 64;

/* A key that memory has not settled, and where it may be. */
struct Pending {
	/* Its place among the keys of the call. */
	size_t key;
	Plan plan;
};

} /* namespace */

/* One MultiGet(), whose keys are all read at one snapshot. */
class PushdownDB::ManyGets {
    public:
	ManyGets(State &state, const VersionTracker &live, rocksdb::DB *db, const ReadOptions &at,
		ColumnFamilyHandle *family, const Slice *keys, PinnableSlice *values, Status *statuses)
		: state_(state), live_(live), db_(db), at_(at), newest_tag_(State::newest_tag(at)),
		  family_(family), keys_(keys), values_(values), statuses_(statuses)
	{
	}

	/* Searches memory for all keys; how many it has not settled. */
	size_t search_memory(size_t count)
	{
		for (size_t key = 0; key < count; key++) {
			const TableFile *missing;

			statuses_[key] = State::search_memory(
				db_, at_, family_, keys_[key], &values_[key], &missing);
			if (missing)
				missing_.emplace_back(key, missing);
		}
		state_.count(ReadPath::kMemory, count - missing_.size());
		return missing_.size();
	}

	/* Finds the tables for each key that is left, and settles those that need none. */
	void plan(const View &view)
	{
		for (const auto &[key, missing] : missing_) {
			const Slice &wanted = keys_[key];
			Pending pending = {key, {}};
			ReadPath why = ReadPath::kNoTable;

			values_[key].Reset();
			if (wanted.size() > KEY_BYTES_MAX)
				plainly(key, ReadPath::kOptions);
			else if (state_.is_sample(live_, at_))
				plainly(key, ReadPath::kSampled);
			else if (!make_plan(view, wanted, newest_tag_, *missing, &pending.plan, &why))
				plainly(key, why);
			else if (pending.plan.tables > 0)
				pending_.push_back(pending);
			else
				none(key);
		}
	}

	/* Fetches all blocks that the keys may be in, and lets RocksDB search them. */
	void search_blocks()
	{
		std::vector<const Plan *> plans;
		PrefetchBuffer stage;

		for (const Pending &pending : pending_)
			plans.push_back(&pending.plan);
		const ReadPath way = state_.stage(plans, &stage) ? ReadPath::kBlocks : ReadPath::kBusy;
		ReadPrefetched scope(stage);

		for (const Pending &pending : pending_)
			plainly(pending.key, way);
	}

	/* Looks all keys up by chains, many at a time. */
	void run_chains()
	{
		const Reader reader(state_.files->target().session());

		if (!reader.get()) {
			for (const Pending &pending : pending_)
				plainly(pending.key, ReadPath::kBusy);
			return;
		}
		for (size_t first = 0; first < pending_.size(); first += BATCH_MAX)
			run_chains(
				reader, &pending_[first], std::min(BATCH_MAX, pending_.size() - first));
	}

    private:
	void run_chains(const Reader &reader, const Pending *pending, size_t count)
	{
		std::vector<unsigned char> scratch(count * state_.scratch_bytes);
		std::vector<struct bpfof_chain> chains(count);

		for (size_t i = 0; i < count; i++)
			make_chain(&chains[i], pending[i].plan, keys_[pending[i].key], newest_tag_,
				reader.session().sst_get(), &scratch[i * state_.scratch_bytes],
				state_.scratch_bytes);
		bpfof_read_pushdown_batch(reader.get(), chains.data(), count);
		for (size_t i = 0; i < count; i++) {
			const size_t key = pending[i].key;
			const ReadPath way = state_.take_answer(chains[i], &statuses_[key], &values_[key]);

			if (way == ReadPath::kTarget || way == ReadPath::kHere)
				state_.count(way);
			else
				plainly(key, way);
		}
	}

	void plainly(size_t key, ReadPath why)
	{
		state_.count(why);
		values_[key].Reset();
		statuses_[key] = db_->Get(at_, family_, keys_[key], &values_[key]);
	}

	void none(size_t key)
	{
		state_.count(ReadPath::kNoTable);
		statuses_[key] = Status::NotFound();
	}

	State &state_;
	const VersionTracker &live_;
	rocksdb::DB *const db_;
	const ReadOptions &at_;
	const uint64_t newest_tag_;
	ColumnFamilyHandle *const family_;
	const Slice *const keys_;
	PinnableSlice *const values_;
	Status *const statuses_;
	/* Keys, and where the search in memory ended. */
	std::vector<std::pair<size_t, const TableFile *>> missing_;
	std::vector<Pending> pending_;
};

void PushdownDB::MultiGet(const ReadOptions &options, ColumnFamilyHandle *family, size_t count,
	const Slice *keys, PinnableSlice *values, Status *statuses, bool sorted)
{
	const auto plainly = [&](const ReadOptions &how, ReadPath why, size_t affected) {
		state_->count(why, affected);
		for (size_t i = 0; i < count; i++)
			values[i].Reset();
		db_->MultiGet(how, family, count, keys, values, statuses, sorted);
	};
	VersionTracker *live = state_->family(family);
	const Mode mode = state_->mode.load(std::memory_order_relaxed);

	if (mode == Mode::kPlain)
		return plainly(options, ReadPath::kPlain, count);
	if (!State::can_push_down(options))
		return plainly(options, ReadPath::kOptions, count);
	if (!live)
		return plainly(options, ReadPath::kFamily, count);
	ReadOptions at = options;
	std::optional<rocksdb::ManagedSnapshot> snapshot;

	if (!at.snapshot) {
		snapshot.emplace(db_);
		at.snapshot = snapshot->snapshot();
	}
	/* The order of these three, as in Get(), is what makes the answers right: view.h. */
	const std::shared_ptr<const View> view = live->view();
	ManyGets gets(*state_, *live, db_, at, family, keys, values, statuses);
	const size_t left = gets.search_memory(count);

	if (left == 0)
		return;
	if (!State::is_current(live, view.get()))
		return plainly(at, ReadPath::kStale, left);
	gets.plan(*view);
	if (mode == Mode::kBlocks)
		gets.search_blocks();
	else
		gets.run_chains();
}

std::vector<Status> PushdownDB::MultiGet(const ReadOptions &options,
	const std::vector<ColumnFamilyHandle *> &families, const std::vector<Slice> &keys,
	std::vector<std::string> *values)
{
	const size_t count = keys.size();
	const auto is_other = [&](const ColumnFamilyHandle *family) { return family != families[0]; };

	if (count == 0 || std::any_of(families.begin(), families.end(), is_other)) {
		state_->count(ReadPath::kFamily, count);
		return db_->MultiGet(options, families, keys, values);
	}
	std::vector<PinnableSlice> found(count);
	std::vector<Status> statuses(count);

	MultiGet(options, families[0], count, keys.data(), found.data(), statuses.data());
	values->resize(count);
	for (size_t i = 0; i < count; i++)
		(*values)[i].assign(found[i].data(), found[i].size());
	return statuses;
}

} /* namespace bpf_of */
