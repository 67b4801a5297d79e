/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "view.h"

#include <algorithm>

namespace bpf_of {

namespace {

class Planner {
    public:
	Planner(const rocksdb::Slice &key, uint64_t newest_tag, Plan *plan, Way *way)
		: key_(key), newest_tag_(newest_tag), plan_(plan), way_(way)
	{
	}

	/* Adds a table if it may have the key. False: give up. */
	bool add(const Range &range)
	{
		/* All that is in it is newer: so are tables that were ingested later, in whose keys no
		 * sequence number stands. */
		if (key_.compare(range.smallest) < 0 || key_.compare(range.largest) > 0 ||
			range.smallest_sequence > newest_tag_ >> 8)
			return true;
		if (!range.table->refusal().empty())
			return give_up(Way::kTable);
		struct sst_table start;

		if (!range.table->seek(key_, newest_tag_, &start))
			return true;
		if (start.size > BLOCK_BYTES_MAX)
			return give_up(Way::kDeclined);
		if (plan_->tables == SST_TABLES_MAX)
			return give_up(Way::kManyTables);
		plan_->fds[plan_->tables] = range.table->fd();
		plan_->starts[plan_->tables] = start;
		plan_->tables++;
		return true;
	}

    private:
	bool give_up(Way way)
	{
		*way_ = way;
		return false;
	}

	const rocksdb::Slice key_;
	const uint64_t newest_tag_;
	Plan *const plan_;
	Way *const way_;
};

} /* namespace */

bool make_plan(const View &view, const rocksdb::Slice &key, uint64_t newest_tag, Plan *plan, Way *way)
{
	Planner planner(key, newest_tag, plan, way);

	for (const Range &range : view.newest) {
		if (!planner.add(range))
			return false;
	}
	for (const std::vector<Range> &level : view.levels) {
		auto range = std::partition_point(level.begin(), level.end(),
			[&](const Range &range) { return key.compare(range.largest) > 0; });

		/* Two neighbours may have the same key at their border. */
		for (; range != level.end() && key.compare(range->smallest) >= 0; ++range) {
			if (!planner.add(*range))
				return false;
		}
	}
	return true;
}

} /* namespace bpf_of */
