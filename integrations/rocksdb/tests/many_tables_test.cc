/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A database of TABLES tables, in two column families: how long it takes to open, how much memory that
 * takes, and that Gets of all its tables go to the target.
 */
#include "check.h"
#include "database.h"

#include <rocksdb/sst_file_writer.h>

#include <chrono>
#include <fstream>
#include <sys/resource.h>
#include <thread>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t KEYS_OF_TABLE = 40;
constexpr uint64_t READS = 20000;
constexpr int THREADS = 4;
/* Descriptors other than tables: sockets of readers, and RocksDB's other files. */
constexpr rlim_t DESCRIPTORS_BESIDE = 200;
constexpr unsigned READY_MS = 120000;

double seconds_since(Clock::time_point begin)
{
	return std::chrono::duration<double>(Clock::now() - begin).count();
}

/* Memory of this process, in KiB. */
uint64_t resident()
{
	std::ifstream status("/proc/self/status");
	std::string word;

	while (status >> word) {
		if (word == "VmRSS:") {
			status >> word;
			return std::stoull(word);
		}
	}
	CHECK(false, "/proc/self/status has no VmRSS");
	return 0;
}

/* At most as many descriptors as there are tables; tables may take half of them. */
rlim_t limit_descriptors(uint64_t tables)
{
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "reading the limit of open files");
	limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, std::max<rlim_t>(tables, 2 * DESCRIPTORS_BESIDE));
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setting the limit of open files");
	return limit.rlim_cur;
}

size_t open_descriptors()
{
	const std::filesystem::directory_iterator all("/proc/self/fd");

	return static_cast<size_t>(std::distance(begin(all), end(all)));
}

std::string key_of(uint64_t number)
{
	char text[32];

	std::snprintf(text, sizeof(text), "key %012llu", static_cast<unsigned long long>(number));
	return text;
}

std::string value_of(uint64_t number)
{
	return "value " + std::to_string(number * number) + std::string(60, '.');
}

/* Every other number is a key. */
bool is_key(uint64_t number)
{
	return number % 2 == 0;
}

/* Makes tables of consecutive keys, and ingests them all at once. */
void ingest(rocksdb::DB *db, rocksdb::ColumnFamilyHandle *family, const rocksdb::Options &options,
	const std::string &directory, uint64_t tables)
{
	std::vector<std::string> paths;

	for (uint64_t table = 0; table < tables; table++) {
		rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);

		paths.push_back(directory + "/" + std::to_string(table) + ".made");
		check_ok(writer.Open(paths.back()), "opening a table");
		for (uint64_t i = 0; i < 2 * KEYS_OF_TABLE; i += 2) {
			const uint64_t number = 2 * KEYS_OF_TABLE * table + i;

			check_ok(writer.Put(key_of(number), value_of(number)), "writing a table");
		}
		check_ok(writer.Finish(), "ending a table");
	}
	rocksdb::IngestExternalFileOptions how;

	how.move_files = true;
	check_ok(db->IngestExternalFile(family, paths, how), "ingesting tables");
}

/* Makes a database of this many tables, in all families together. */
void make(const rocksdb::Options &options, const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
	const std::string &path, uint64_t tables)
{
	std::vector<rocksdb::ColumnFamilyHandle *> handles;
	PushdownDB *db;

	std::filesystem::remove_all(path);
	std::filesystem::create_directories(path);
	check_ok(PushdownDB::Open(options, bpf_of::PushdownOptions(), path, families, &handles, &db), "making a database");
	for (auto *handle : handles) {
		ingest(db, handle, options, path, tables / families.size());
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving back a handle");
	}
	delete db;
}

void read(PushdownDB *db, const std::vector<rocksdb::ColumnFamilyHandle *> &families,
	uint64_t keys, uint64_t seed)
{
	Random random(seed);

	for (uint64_t i = 0; i < READS / THREADS; i++) {
		const uint64_t number = random.below(2 * keys);
		std::string value;
		const rocksdb::Status status = db->Get(rocksdb::ReadOptions(),
			families[random.below(families.size())], key_of(number), &value);

		if (is_key(number))
			CHECK(status.ok() && value == value_of(number), "key %s: %s",
				key_of(number).c_str(), status.ToString().c_str());
		else
			CHECK(status.IsNotFound(), "key %s: %s", key_of(number).c_str(),
				status.ToString().c_str());
	}
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place place = ::place(argc, argv);
	const char *const asked = std::getenv("TABLES");
	const uint64_t tables = asked ? std::strtoull(asked, nullptr, 10) : 800;
	const std::string path = place.directory + "/many";
	rocksdb::Options options = small_tables(
		{"", rocksdb::kNoCompression, BINARY, 5, size_t{1} << 30});

	/* Tables stay as they are ingested. */
	options.disable_auto_compactions = true;
	options.create_missing_column_families = true;
	const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
		{rocksdb::kDefaultColumnFamilyName, options}, {"second", options}};
	std::vector<rocksdb::ColumnFamilyHandle *> handles;
	bpf_of::PushdownOptions pushdown;
	PushdownDB *db;

	CHECK(tables >= 2, "TABLES must be at least 2");
	const rlim_t limit = limit_descriptors(tables);

	make(options, families, path, tables);
	pushdown.sample_rate = 0;
	pushdown.url = place.url;
	pushdown.device = place.device;
	const uint64_t before = resident();
	const Clock::time_point begin = Clock::now();

	check_ok(PushdownDB::Open(options, pushdown, path, families, &handles, &db), "opening it");
	const double opened = seconds_since(begin);

	CHECK(db->wait_ready(READY_MS), "the tables are not known");
	const double known = seconds_since(begin);
	/* last_error() names a table that the target does not know, as long as there is one. */
	while (!db->last_error().empty()) {
		CHECK(seconds_since(begin) < READY_MS / 1000, "%s", db->last_error().c_str());
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	}
	const double mapped = seconds_since(begin);
	const uint64_t taken = resident() - before;
	const uint64_t keys = tables / 2 * KEYS_OF_TABLE;
	std::vector<std::thread> readers;

	for (int i = 0; i < THREADS; i++)
		readers.emplace_back([&, i] { read(db, handles, keys, i + 1); });
	for (std::thread &reader : readers)
		reader.join();
	const size_t open = open_descriptors();
	const bpf_of::PushdownStats stats = db->stats();
	const uint64_t there = stats[place.url.empty() ? ReadPath::kHere : ReadPath::kTarget];

	std::printf("%llu tables: open %.2f s, known %.2f s, at the target %.2f s; memory %llu KiB, of "
		    "which indices %llu; %zu of %llu descriptors;",
		static_cast<unsigned long long>(stats.tables), opened, known, mapped,
		static_cast<unsigned long long>(taken),
		static_cast<unsigned long long>(stats.index_bytes >> 10), open,
		static_cast<unsigned long long>(limit));
	/* Half for RocksDB, and a quarter for chains without a target, or on XFS. */
	CHECK(open <= 3 * limit / 4 + DESCRIPTORS_BESIDE, "too many descriptors are open");
	print_ways(*db);
	CHECK(stats.tables == tables / 2 * 2 && stats.tables_refused == 0, "%s", db->last_error().c_str());
	/* Half of the keys do not exist: for some of them RocksDB or an index says so. */
	const uint64_t settled = there + stats[ReadPath::kNoTable] + stats[ReadPath::kMemory];

	CHECK(settled >= READS && there >= READS * 95 / 100, "few Gets were pushed down");
	for (auto *handle : handles)
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving back a handle");
	delete db;
	std::filesystem::remove_all(path);
	return 0;
}
