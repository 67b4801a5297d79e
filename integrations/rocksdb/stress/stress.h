/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Shared state of the stress test's threads, and its keys. */
#ifndef BPFOF_ROCKSDB_STRESS_STRESS_H
#define BPFOF_ROCKSDB_STRESS_STRESS_H

#include "../tests/database.h"
#include "../tests/versions.h"

#include <rocksdb/merge_operator.h>
#include <unistd.h>

#include <mutex>
#include <shared_mutex>
#include <thread>

/*
 * Keys have numbers. Each range of numbers is written in its own way, by one thread. Except for the
 * last ranges their names are mixed, so that tables hold keys of all of them.
 */
struct FileRange {
	uint64_t first;
	uint64_t keys;

	uint64_t pick(Random &random) const { return first + random.below(keys); }
};

/* Put and Delete. */
constexpr FileRange SINGLE = {0, 1000};
/* Written by ingested tables. */
constexpr FileRange INGESTED = {1000, 500};
/* Put once, then SingleDelete. */
constexpr FileRange ONCE = {1500, 300};
/* Pairs written together, with the same version: a key, and the key TO_TWIN further. */
constexpr FileRange TWINS = {1800, 300};
constexpr uint64_t TO_TWIN = TWINS.keys;
/* Merge, Put and Delete. */
constexpr FileRange MERGED = {TWINS.first + 2 * TWINS.keys, 300};
/* The mixed ranges end here. */
constexpr uint64_t MIXED_KEYS = MERGED.first + MERGED.keys;
/* Also deleted in ranges; names in the order of their numbers. */
constexpr FileRange RANGED = {MIXED_KEYS, 400};
/* Likewise, by ingested tables. */
constexpr FileRange INGESTED_RANGES = {RANGED.first + RANGED.keys, 100};
constexpr uint64_t KEYS = INGESTED_RANGES.first + INGESTED_RANGES.keys;

/* Maps the numbers below MIXED_KEYS one to one to names, with neighbours far apart. */
constexpr uint64_t MIXER = 37;
static_assert(MIXED_KEYS % MIXER != 0, "no two keys have one name");

std::string key_of(uint64_t number);

/* The merge operator of families that merge, and the operand that turns a key's previous version into
 * this one. */
std::shared_ptr<rocksdb::MergeOperator> merge_operator();
std::string operand_of(const std::string &key, uint64_t version);

/* Keys before, between and after the written ones, which never exist. */
std::string missing_key(Random &random);

/* The prefix of keys that are not checked, whose files are dropped. */
constexpr const char *DROPPED = "zzz";

struct Settings {
	Place place;
	/* One of the two is 0. */
	uint64_t seconds = 0;
	uint64_t reads = 0;
	/* Fail if memory or files have grown; the directory is on a file system of its own. */
	bool check_leaks = false;
	/* Fill that file system in the middle of each round. */
	bool fill_disk = false;
	/* The target may go away and come back. */
	bool target_may_die = false;
	/* A Get() that takes longer is reported; 0: none is. */
	uint64_t slow_ms = 0;
};

class Test {
    public:
	explicit Test(const Settings &settings) : settings(settings) {}

	const Settings settings;
	bpf_of::PushdownDB *db = nullptr;
	/* The family of this round, and both families. */
	rocksdb::ColumnFamilyHandle *family = nullptr;
	std::vector<rocksdb::ColumnFamilyHandle *> families;
	std::atomic<bool> stop{false};
	/* Odd while the disk is full, or RocksDB has not yet recovered from it. */
	std::atomic<uint64_t> disk_full{0};
	/* Held while a table is ingested. RocksDB 7.8 cannot ingest once its disk was full: it fails an
	 * assertion. So no table is ingested until the database is reopened. */
	bool ingests = true;
	std::mutex ingesting;
	/* Held shared during writes. DB::Resume() of RocksDB 7.8 never ends if it meets a delayed
	 * writer, so there are no writes while RocksDB recovers. Shared locks might starve the
	 * exclusive one, so the flag keeps writers from taking them. */
	std::atomic<bool> recovers{false};
	std::shared_timed_mutex writing;
	/* Checked so far: single keys, keys of several at once, steps of iterators. */
	std::atomic<uint64_t> gets{0};
	std::atomic<uint64_t> keys_at_once{0};
	std::atomic<uint64_t> steps{0};
	/* Writes, ingested tables and so on. */
	std::atomic<uint64_t> changes{0};

	/* Whether the family has a merge operator: one of the two has. */
	bool merges() const { return family != families[0]; }
	/* Versions of the keys in this round's column family. */
	Versions &versions() { return versions_[family == families[0] ? 0 : 1]; }

	std::string database() const { return settings.place.directory + "/stress"; }
	/* RocksDB 7.8 continues to write to a log after a failed write, and then fails. So its log is
	 * elsewhere if the disk is to be full. */
	std::string logs() const
	{
		return std::filesystem::temp_directory_path().string() + "/bpfof-stress-" +
		       std::to_string(::getpid());
	}
	/* The file that fills the disk. */
	std::string filler() const { return settings.place.directory + "/filler"; }

    private:
	Versions versions_[2] = {Versions(KEYS), Versions(KEYS)};
};

/* Threads that change the database, until test.stop. */
std::vector<std::thread> start_changing(Test &test);

/* Threads that read and check, until test.stop. */
std::vector<std::thread> start_reading(Test &test, uint64_t round);

/* Checks every key while there are no changes: by Get(), or by iterators in both directions. */
void get_everything(Test &test);
void scan_everything(Test &test);

#endif
