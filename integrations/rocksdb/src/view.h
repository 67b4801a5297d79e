/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The tables of one version of the database.
 *
 * Why answers are right. RocksDB numbers the versions of a column family, each with its memtables and
 * its set of tables. A Get() takes the view, of version n, searches memtables and block cache with the
 * plain library, and then asks for the number of the current version. If it is n, the search in memory
 * used version n, too, because numbers only grow; so an entry that is not in those memtables is in the
 * tables of the view, or does not exist, and the Get() takes effect at the moment of that search. A
 * thread that still has a version whose number it has checked does not ask again (known_version.h).
 * Later changes do not matter: tables never change, and the view keeps them known as long as it is in
 * use. A table that RocksDB deletes meanwhile keeps its blocks as long as the target has its map:
 * libbpfof keeps the inode, and its lease, without a descriptor (docs/files.md). A chain that runs on
 * this machine opens its tables by their paths, and fails if one is gone. RocksDB serves Gets whose
 * chains failed, and Gets for which the number differs.
 *
 * RocksDB searches tables newest first, and stopped at the first table with a missing block. So the
 * tables before that one do not have the key, and none of their range deletions covers it: RocksDB
 * would have stopped there as well. The chain begins with the table where RocksDB stopped. Where a
 * range deletion of a table covers the key, the search ends with that table: versions in later tables
 * are deleted, and so are versions in the table itself that are older than the deletion.
 * Chains that search parts of these tables at once are read in the order of the tables, up to the chain
 * that has the key: so together they find what one chain would have found.
 *
 * In a secondary instance memtables also change under one number, while it catches up with its primary,
 * and tables of the view may be deleted meanwhile. State::moment() shows whether catching up has begun
 * since before the search in memory: then RocksDB serves the read. Otherwise nothing changes in
 * between; a tag that is taken later is as good, because tables of the view have no newer versions.
 *
 * A table of the view may have the place of a value in a blob file. Versions list all blob files that
 * their tables name, so the view keeps these open, too, and they never change either.
 *
 * With merge operands RocksDB continues its search, up to a value or a deletion. The operands that it
 * had met when it stopped are the newest of the same moment, in memtables and in earlier tables; the
 * chain finds the following ones, and the value below them, in the table where RocksDB stopped and in
 * later ones. The plan makes sure that RocksDB had met no operand in that table itself; otherwise
 * RocksDB serves the Get().
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

/* Tables with ascending ranges of keys. */
struct Level {
	std::vector<Range> ranges;
	/* Prefixes of the largest keys. */
	KeyPrefixes largest;

	explicit Level(std::vector<Range> in_order) : ranges(std::move(in_order))
	{
		largest.build(ranges.size(), [this](size_t number) { return rocksdb::Slice(ranges[number].largest); });
	}

	/* The first table that does not end before the key. */
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

	/* Calls `is_good` with each table until it returns false; whether it never does. */
	template <typename IsGood> bool all_tables(IsGood is_good) const
	{
		const auto is_good_range = [&](const Range &range) { return is_good(*range.table); };

		return std::all_of(newest.begin(), newest.end(), is_good_range) &&
		       std::all_of(levels.begin(), levels.end(), [&](const Level &level) {
			       return std::all_of(level.ranges.begin(), level.ranges.end(), is_good_range);
		       });
	}
};

/* The blocks that may hold a key, newest first: where to begin in each table, and with merges where the
 * search may have to continue. */
struct Plan {
	uint32_t tables = 0;
	/* In the last table versions with smaller sequence numbers, as they stand there, are
	 * deleted. */
	uint64_t deleted_below = 0;
	int fds[SST_TABLES_MAX];
	struct sst_table starts[SST_TABLES_MAX];
	/* Valid as long as the view. */
	const Table *of[SST_TABLES_MAX];
};

/* The key and the versions that a Get() looks for. */
struct WantedKey {
	rocksdb::Slice key;
	/* Sequence number << 8 | type: newer versions are not visible. */
	uint64_t newest_tag;
	/* Whether the family has a merge operator. */
	bool merges;
	bool ignores_range_deletions;
};

/*
 * Makes the plan for the newest version of a key, and with `merges` for the versions that it may be
 * merged with. RocksDB stopped at `end`: earlier tables were searched. False if chains cannot read the
 * key; `way` then says why.
 */
bool make_plan(const View &view, const WantedKey &wanted, const SearchEnd &end, Plan *plan, ReadPath *way);

/* The data blocks that RocksDB's own search for the same key needs, starting in table `missing`, which
 * it was about to read at `offset`; also of tables that chains cannot read, as far as their indices are
 * in memory. Not all blocks if there are very many, and only those of `missing` if its filter has not
 * excluded the key. */
std::vector<FileRange> key_blocks(
	const View &view, const WantedKey &wanted, const TableFile &missing, uint64_t offset);

/*
 * The blocks that a scan from `key` on needs, starting with table `missing`; none for tables without an
 * index. In the lowest level these are the block of `key` and `ahead_bytes` after it, and in the levels
 * above it the blocks with keys of the same range. No blocks from `upper_bound` on, if that is not
 * null.
 */
std::vector<FileRange> scan_blocks(const View &view, const rocksdb::Slice &key,
	const rocksdb::Slice *upper_bound, uint64_t ahead_bytes, const TableFile &missing);

/* Whether the target knows where a table lies, or all tables of a view; true also if it cannot know, or
 * is not there. Waits for that until `end`. */
bool is_mapped(const Table &table, const Session &session, std::chrono::steady_clock::time_point end);
bool is_mapped(const View &view, const TableFiles &files, std::chrono::steady_clock::time_point end);

/* Why the target does not know where a table of the view lies, so that its chains run on this machine;
 * "" if it knows where all of them lie, or is not there. */
std::string why_not_mapped(const View &view, const TableFiles &files);

} /* namespace bpf_of */

#endif
