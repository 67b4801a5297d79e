/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "view.h"

#include <algorithm>
#include <cerrno>
#include <climits>

namespace bpf_of {

namespace {

/* Limits of the blocks that are fetched for RocksDB's own Get, in number and in bytes. */
constexpr size_t KEY_BLOCKS_MAX = 64;
constexpr size_t KEY_BLOCKS_BYTES_MAX = 2 << 20;

/* Calls `use` with the tables that RocksDB may search for a key, newest first, until it returns false;
 * whether it never does. Tables of level 0 need not have the key in their range. */
template <typename Use> bool each_table_for(const View &view, const rocksdb::Slice &key, Use use)
{
	for (const Range &range : view.newest) {
		if (!use(range))
			return false;
	}
	for (const Level &level : view.levels) {
		/* Two neighbours may share the key at their border. */
		for (auto range = level.not_before(key);
			range != level.ranges.end() && key.compare(range->smallest) >= 0; ++range) {
			if (!use(*range))
				return false;
		}
	}
	return true;
}

/* Whether a table may have a wanted version. It may not if all its versions are newer; that excludes
 * also tables ingested after the snapshot, whose keys have no sequence numbers. */
bool may_have(const Range &range, const WantedKey &wanted)
{
	return wanted.key.compare(range.smallest) >= 0 && wanted.key.compare(range.largest) <= 0 &&
	       range.smallest_sequence <= wanted.newest_tag >> 8;
}

/*
 * The sequence number, as it stands in the table, of the range deletion that ends the search for the
 * key: older versions in that table and all versions in later tables are deleted. Null if there is
 * none.
 */
std::optional<uint64_t> deleted_below(const Range &range, const WantedKey &wanted)
{
	const std::optional<uint64_t> covering = wanted.ignores_range_deletions
							 ? std::nullopt
							 : range.table->covering(wanted.key, wanted.newest_tag >> 8);

	/* In ingested tables all numbers are 0 and stand for the number of the table; if the table has
	 * none either, no older table has the key. */
	return covering && *covering == 0 && range.smallest_sequence == 0 ? std::nullopt : covering;
}

class Planner {
    public:
	Planner(const WantedKey &wanted, const SearchEnd &end, Plan *plan, ReadPath *way)
		: wanted_(wanted), end_(end), plan_(plan), way_(way)
	{
	}

	/* Whether the table where RocksDB stopped was among the added tables. */
	bool has_begun() const { return has_begun_; }

	/* Adds a table if it may have the key and was not searched yet. False: give up. */
	bool add(const Range &range)
	{
		const bool is_end = end_.table == &range.table->file();

		has_begun_ = has_begun_ || is_end;
		/* RocksDB does not always compare ranges before it reads a table. The list may be newer than
		 * the version that RocksDB has searched (RocksDB 11): where RocksDB stopped at a table that
		 * cannot have the key, operands that it met before may have moved to tables behind it. */
		if (is_end && !end_.operands.empty() && !may_have(range, wanted_))
			return give_up(ReadPath::kDeclined);
		if (!has_begun_ || is_deleted_ || !may_have(range, wanted_))
			return true;
		if (!range.table->refusal().empty())
			return give_up(ReadPath::kTable);
		/* RocksDB has met operands of this table: they would count twice. */
		if (is_end && !end_.operands.empty() &&
			!range.table->is_untouched(wanted_.key, wanted_.newest_tag, end_.offset, end_.size))
			return give_up(ReadPath::kDeclined);
		const std::optional<uint64_t> below = deleted_below(range, wanted_);

		/* RocksDB distinguishes operands newer and older than the deletion. It also knows
		 * whether the range of the table includes its largest key. */
		if (below && (wanted_.merges || wanted_.key == range.largest))
			return give_up(ReadPath::kTable);
		is_deleted_ = below.has_value();
		const uint32_t before = plan_->tables;

		if (!add_blocks(*range.table))
			return false;
		if (is_deleted_ && plan_->tables > before)
			plan_->deleted_below = *below;
		return true;
	}

    private:
	bool add_blocks(const Table &table)
	{
		struct sst_table start;

		if (!table.seek(wanted_.key, wanted_.newest_tag, &start))
			return true;
		do {
			if (start.size > BLOCK_BYTES_MAX)
				return give_up(ReadPath::kDeclined);
			if (plan_->tables == SST_TABLES_MAX)
				return give_up(ReadPath::kManyTables);
			plan_->fds[plan_->tables] = table.file().number();
			plan_->of[plan_->tables] = &table;
			plan_->starts[plan_->tables] = start;
			plan_->tables++;
		} while (wanted_.merges && table.seek_older(wanted_.key, &start));
		return true;
	}

	bool give_up(ReadPath way)
	{
		*way_ = way;
		return false;
	}

	const WantedKey &wanted_;
	const SearchEnd &end_;
	bool has_begun_ = false;
	/* By a range deletion of the last added table: later tables do not matter. */
	bool is_deleted_ = false;
	Plan *const plan_;
	ReadPath *const way_;
};

} /* namespace */

bool make_plan(const View &view, const WantedKey &wanted, const SearchEnd &end, Plan *plan, ReadPath *way)
{
	Planner planner(wanted, end, plan, way);

	if (!each_table_for(view, wanted.key, [&](const Range &range) { return planner.add(range); }))
		return false;
	if (!planner.has_begun())
		*way = ReadPath::kStale;
	return planner.has_begun();
}

std::vector<FileRange> key_blocks(
	const View &view, const WantedKey &wanted, const TableFile &missing, uint64_t offset)
{
	std::vector<FileRange> blocks;
	size_t bytes = 0;
	bool is_met = false;

	each_table_for(view, wanted.key, [&](const Range &range) {
		const Table &table = *range.table;
		const bool is_missing = &table.file() == &missing;
		sst::Handle block;

		is_met = is_met || is_missing;
		if (!is_met || !may_have(range, wanted))
			return true;
		for (bool found = table.find(wanted.key, wanted.newest_tag, &block); found;
			found = wanted.merges && table.find_older(wanted.key, &block)) {
			const size_t size = block.size + SST_TRAILER_BYTES;

			if (blocks.size() == KEY_BLOCKS_MAX || size > KEY_BLOCKS_BYTES_MAX - bytes)
				return false;
			blocks.push_back({table.shared_file(), block.offset, size});
			bytes += size;
		}
		/* A table whose filter has not excluded the key nearly always has it. */
		const bool is_likely = is_missing && table.has_passed_filter(offset) && !wanted.merges;

		return !is_likely && !deleted_below(range, wanted);
	});
	return blocks;
}

std::vector<FileRange> scan_blocks(const View &view, const rocksdb::Slice &key,
	const rocksdb::Slice *upper_bound, uint64_t ahead_bytes, const TableFile &missing)
{
	std::vector<FileRange> blocks;
	rocksdb::Slice last, end;
	bool has_last = upper_bound != nullptr, is_met = false;
	const auto add = [&](const Range &range) {
		sst::Run run;

		if (is_met)
			return;
		is_met = &range.table->file() == &missing;
		/* RocksDB searches for the key in each table that begins before the bound. */
		if (key.compare(range.largest) > 0 ||
			(upper_bound && upper_bound->compare(range.smallest) <= 0) ||
			!range.table->scan(key, has_last ? &last : nullptr, ahead_bytes, &run, &end))
			return;
		blocks.push_back({range.table->shared_file(), run.offset, run.size});
		if (!has_last || end.compare(last) < 0)
			last = end;
		has_last = true;
	};

	if (upper_bound)
		last = *upper_bound;
	for (auto level = view.levels.rbegin(); level != view.levels.rend(); ++level) {
		const auto range = level->not_before(key);

		if (range != level->ranges.end())
			add(*range);
	}
	for (auto range = view.newest.rbegin(); range != view.newest.rend(); ++range)
		add(*range);
	/* If the table is not in this view, RocksDB reads another version, whose tables differ. */
	if (!is_met)
		blocks.clear();
	return blocks;
}

bool is_mapped(const Table &table, const Session &session, std::chrono::steady_clock::time_point end)
{
	using std::chrono::milliseconds;
	const auto left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now());
	const int timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));

	return bpfof_wait_mapped(session.get(), table.file().number(), timeout_ms) == 0 || errno != ETIMEDOUT;
}

bool is_mapped(const View &view, const TableFiles &files, std::chrono::steady_clock::time_point end)
{
	const std::shared_ptr<Session> session = files.target().session();

	return view.all_tables([&](const Table &table) { return is_mapped(table, *session, end); });
}

std::string why_not_mapped(const View &view, const TableFiles &files)
{
	const std::shared_ptr<Session> session = files.target().session();
	std::string found;

	view.all_tables([&](const Table &table) {
		const bool is_mapped = bpfof_wait_mapped(session->get(), table.file().number(), 0) == 0;

		found = is_mapped || errno == ENOTCONN ? "" : bpfof_error();
		return found.empty();
	});
	return found;
}

} /* namespace bpf_of */
