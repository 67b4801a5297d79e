/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Databases of the tests: many small tables with few bytes. */
#ifndef BPFOF_ROCKSDB_TESTS_DATABASE_H
#define BPFOF_ROCKSDB_TESTS_DATABASE_H

#include "check.h"

#include <bpfof/rocksdb.h>
#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <filesystem>

/* The directory of the databases, and the target that serves its file system; without a target chains
 * run on this machine. */
struct Place {
	std::string directory;
	std::string url;
	std::string device;
};

inline Place place(int argc, char **argv)
{
	CHECK(argc == 2 || argc == 4, "usage: %s DIRECTORY [URL DEVICE]", argv[0]);
	Place place;

	place.directory = argv[1];
	if (argc == 4) {
		place.url = argv[2];
		place.device = argv[3];
	}
	return place;
}

struct Kind {
	const char *name;
	rocksdb::CompressionType compression;
	rocksdb::BlockBasedTableOptions::IndexType index;
	uint32_t format_version;
	size_t index_bytes_max;
	/* Samples would fill RocksDB's cache and make the other counts random. */
	double sample_rate = 0;
	/* Connections that readers share; 0: each has its own. */
	uint32_t lanes_max = UINT32_MAX;
	bpf_of::Speculate speculate = bpf_of::Speculate::kWhenFaster;
};

constexpr rocksdb::BlockBasedTableOptions::IndexType BINARY =
	rocksdb::BlockBasedTableOptions::kBinarySearch;
constexpr rocksdb::BlockBasedTableOptions::IndexType PARTITIONED =
	rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
constexpr rocksdb::BlockBasedTableOptions::IndexType FIRST_KEYS =
	rocksdb::BlockBasedTableOptions::kBinarySearchWithFirstKey;

inline rocksdb::Options small_tables(const Kind &kind)
{
	rocksdb::Options options;
	rocksdb::BlockBasedTableOptions table;

	options.create_if_missing = true;
	options.max_open_files = -1;
	options.write_buffer_size = 64 << 10;
	options.target_file_size_base = 32 << 10;
	options.max_bytes_for_level_base = 128 << 10;
	options.max_bytes_for_level_multiplier = 3;
	options.compression = kind.compression;
	options.max_background_jobs = 2;
	table.block_size = 512;
	table.format_version = kind.format_version;
	table.index_type = kind.index;
	table.metadata_block_size = 256;
	/* The cache is absent or small, so that chains have something to do. */
	if (kind.sample_rate > 0)
		table.block_cache = rocksdb::NewLRUCache(64 << 10);
	else
		table.no_block_cache = true;
	options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
	return options;
}

inline bpf_of::PushdownDB *open_database(
	const Place &place, const Kind &kind, rocksdb::Options options, const std::string &name)
{
	bpf_of::PushdownOptions pushdown;
	bpf_of::PushdownDB *db;

	/* Removes files of an earlier run. */
	std::filesystem::remove_all(place.directory + "/" + name);
	pushdown.url = place.url;
	pushdown.device = place.device;
	pushdown.index_bytes_max = kind.index_bytes_max;
	pushdown.sample_rate = kind.sample_rate;
	pushdown.lanes_max = kind.lanes_max;
	pushdown.speculate = kind.speculate;
	const rocksdb::Status status =
		bpf_of::PushdownDB::Open(options, pushdown, place.directory + "/" + name, &db);

	check_ok(status, "opening a database");
	return db;
}

inline void print_ways(const bpf_of::PushdownDB &db)
{
	const bpf_of::PushdownStats stats = db.stats();

	for (size_t way = 0; way < bpf_of::WAYS; way++) {
		if (stats.gets[way])
			std::printf(" %s %llu,", name(static_cast<bpf_of::ReadPath>(way)),
				static_cast<unsigned long long>(stats.gets[way]));
	}
	std::printf(" at once %llu, blocks %llu, tables %llu (%llu refused)\n",
		static_cast<unsigned long long>(stats.at_once),
		static_cast<unsigned long long>(stats.blocks),
		static_cast<unsigned long long>(stats.tables),
		static_cast<unsigned long long>(stats.tables_refused));
}

/* Chains that gave an answer, at the target or on this machine. */
inline uint64_t chains(const bpf_of::PushdownStats &stats)
{
	return stats[bpf_of::ReadPath::kTarget] + stats[bpf_of::ReadPath::kHere];
}

#endif
