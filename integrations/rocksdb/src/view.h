/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The tables of one version of the database.
 *
 * Why answers are right. RocksDB counts the versions of a column family: of its memtables and its set
 * of tables. A Get() takes the view, of version n, searches memtables and block cache with the plain
 * library, and asks for the number of the current version after that. If it is n, then what was
 * searched in memory was of version n, too, because numbers only grow; so whatever is not in those
 * memtables is in the tables of the view, or nowhere, and the Get() takes effect at the moment of
 * that search. A thread that still has the version of which it has found that out does not ask again
 * (known_version.h). What happens later does not matter: tables never change, and the view keeps them known
 * until nobody uses them. A table that RocksDB deletes meanwhile keeps its blocks as long as the target
 * has its map: libbpfof keeps the inode, and its lease, without a descriptor (docs/files.md). A chain that
 * runs on this machine opens its tables by their paths, and fails if one is gone; whatever fails is left to
 * RocksDB, as is a Get() of which the number is another.
 *
 * RocksDB searches tables newest first, and stopped at the first one of which a block was missing. So
 * the tables before that one do not have the key, and none of their range deletions covers it: there it
 * would have stopped as well. The chain begins with the table where it stopped. Where a range deletion of a
 * table covers the key, the search ends with that table: what is in those behind it is deleted, and so is
 * what the table itself has, if it is older than the deletion.
 * Chains that search parts of these tables at once are read in the order of the tables, up to the one that has the
 * key: so what they find together is what one chain would have found.
 *
 * Memtables of a secondary instance also change under one number, while it catches up with its primary, and tables of the
 * view may be deleted by that. State::moment() tells whether it has begun to since before the search in memory: then all
 * is left to RocksDB. In between all stands still; a tag that is taken after that is as good, because tables of the view
 * have nothing newer.
 *
 * A table of the view may have the place of a value in a blob file. Versions have all blob files that their
 * tables name, so the view keeps these open, too, and they never change either.
 *
 * With merges RocksDB goes on behind what it finds, up to a value or a deletion. What it had met when it
 * stopped are the newest operands of the same moment, in memtables and in the tables before; the chain
 * finds those that follow, and what they are merged onto, in the table where it stopped and those behind.
 * That it had met none in that table itself is made sure of; else the Get() is left to RocksDB.
 */
#ifndef BPFOF_ROCKSDB_VIEW_H
#define BPFOF_ROCKSDB_VIEW_H

#include "blob.h"
#include "key_prefixes.h"
#include "table.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace bpf_of {

/* A table with the range of its keys. */
struct Range {
	std::string smallest;
	std::string largest;
	uint64_t smallest_sequence;
	std::shared_ptr<const Table> table;
};

/* Tables that follow one another by key. */
struct Level {
	std::vector<Range> ranges;
	/* Of the largest keys. */
	KeyPrefixes largest;

	explicit Level(std::vector<Range> in_order) : ranges(std::move(in_order))
	{
		largest.build(ranges.size(), [this](size_t number) { return rocksdb::Slice(ranges[number].largest); });
	}

	/* The first that does not end before the key. */
	std::vector<Range>::const_iterator not_before(const rocksdb::Slice &key) const
	{
		const auto [low, high] = largest.narrow(key);

		return std::partition_point(ranges.begin() + low, ranges.begin() + high,
			[&](const Range &range) { return key.compare(range.largest) > 0; });
	}
};

struct View {
	/* rocksdb.current-super-version-number */
	uint64_t version = 0;
	/* Level 0, newest first. */
	std::vector<Range> newest;
	/* The other levels, upper first, each by key. */
	std::vector<Level> levels;
	BlobFiles blobs;

	/* Calls `is_good` with each table until it gives false; whether it never does. */
	template <typename IsGood> bool all_tables(IsGood is_good) const
	{
		const auto is_good_range = [&](const Range &range) { return is_good(*range.table); };

		return std::all_of(newest.begin(), newest.end(), is_good_range) &&
		       std::all_of(levels.begin(), levels.end(), [&](const Level &level) {
			       return std::all_of(level.ranges.begin(), level.ranges.end(), is_good_range);
		       });
	}
};

/* The blocks that one key may be in, newest first: where to begin in each table, and with merges where the
 * search may have to go on. */
struct Plan {
	uint32_t tables = 0;
	/* In the last table versions with sequence numbers below this one, as they stand there, are deleted. */
	uint64_t deleted_below = 0;
	int fds[SST_TABLES_MAX];
	struct sst_table starts[SST_TABLES_MAX];
	/* Good as long as the view. */
	const Table *of[SST_TABLES_MAX];
};

/* What a Get() looks for. */
struct WantedKey {
	rocksdb::Slice key;
	/* Sequence number << 8 | type: newer versions are not seen. */
	uint64_t newest_tag;
	/* The family has a merge operator. */
	bool merges;
	bool ignores_range_deletions;
};

/*
 * Makes the plan for the newest version of a key, and with `merges` for those that it may have to be merged with.
 * RocksDB stopped at `end`: the tables before that were searched. False if chains cannot do it; then `way` tells why.
 */
bool make_plan(const View &view, const WantedKey &wanted, const SearchEnd &end, Plan *plan, ReadPath *way);

/* The data blocks that RocksDB's own search for the same key needs from table `missing` on, which it was to read at
 * `offset`; also of tables that chains cannot read, as far as their indices are in memory. Not all of them if they are
 * very many, and only that of `missing` if a filter of that has not excluded the key. */
std::vector<FileRange> key_blocks(
	const View &view, const WantedKey &wanted, const TableFile &missing, uint64_t offset);

/*
 * The blocks that a scan from `key` on needs, from table `missing` on; for tables without index
 * nothing. In the lowest level these are the block of `key` and `ahead_bytes` behind it, and in those
 * above it what holds keys of the same range. Nothing is needed from `upper_bound` on, if that is not
 * null.
 */
std::vector<FileRange> scan_blocks(const View &view, const rocksdb::Slice &key,
	const rocksdb::Slice *upper_bound, uint64_t ahead_bytes, const TableFile &missing);

/* Whether the target knows where a table lies, or all tables of a view; or cannot know, or is not there. That is waited
 * for until `end`. */
bool is_mapped(const Table &table, const Session &session, std::chrono::steady_clock::time_point end);
bool is_mapped(const View &view, const TableFiles &files, std::chrono::steady_clock::time_point end);

/* Why the target does not know where a table of the view lies, of which chains run here then; "" if it
 * knows where all of them lie, or is not there. */
std::string why_not_mapped(const View &view, const TableFiles &files);

} /* namespace bpf_of */

#endif
