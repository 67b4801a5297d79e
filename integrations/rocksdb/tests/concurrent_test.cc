/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Many threads: reads see the versions of keys that they must (versions.h), and at snapshots the plain
 * library's answers. Meanwhile tables are flushed, compacted, ingested and deleted.
 *
 * With REPORTS set it runs until its input ends, and answers each input line with the counts of Gets by
 * way so far.
 */
#include "database.h"
#include "versions.h"

#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <thread>
#include <vector>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::ReadOptions;
using rocksdb::Status;
using rocksdb::WriteOptions;

namespace {

constexpr uint64_t KEYS_OF_A_WRITER = 600;
constexpr uint64_t WRITERS = 3;
/* The last writer ingests tables instead of writing. */
constexpr uint64_t INGESTER = WRITERS - 1;
constexpr uint64_t KEYS = WRITERS * KEYS_OF_A_WRITER;

struct Test {
	PushdownDB *db;
	std::string directory;
	Versions versions{KEYS};
	const bool reports = std::getenv("REPORTS") != nullptr;
	std::atomic<bool> input_ended{false};
	std::atomic<bool> stop{false};
	std::atomic<uint64_t> reads{0};
};

std::string key_of(uint64_t number)
{
	char text[32];

	std::snprintf(
		text, sizeof(text), "key%08llu", static_cast<unsigned long long>(number * 37 % KEYS));
	return text;
}

void write_all(Test &test, uint64_t writer)
{
	Random random(writer);

	while (!test.stop) {
		const uint64_t number = writer * KEYS_OF_A_WRITER + random.below(KEYS_OF_A_WRITER);
		const uint64_t version = test.versions.begin(number);
		const std::string key = key_of(number);

		if (is_deletion(version))
			check_ok(test.db->Delete(WriteOptions(), key), "deleting");
		else
			check_ok(test.db->Put(WriteOptions(), key, value_of(key, version)), "writing");
		test.versions.complete(number, version);
	}
}

void ingest(Test &test)
{
	const std::string path = test.directory + "/ingested.sst";
	Random random(99);

	while (!test.stop) {
		rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), test.db->GetOptions());
		std::vector<std::pair<std::string, uint64_t>> numbers;

		for (uint64_t i = 0; i < 50; i++) {
			const uint64_t number =
				INGESTER * KEYS_OF_A_WRITER + random.below(KEYS_OF_A_WRITER);

			numbers.emplace_back(key_of(number), number);
		}
		std::sort(numbers.begin(), numbers.end());
		numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
		check_ok(writer.Open(path), "making a table");
		for (const auto &entry : numbers) {
			const uint64_t version = test.versions.begin(entry.second);

			if (is_deletion(version))
				check_ok(writer.Delete(entry.first), "adding to a table");
			else
				check_ok(writer.Put(entry.first, value_of(entry.first, version)),
					"adding to a table");
		}
		check_ok(writer.Finish(), "finishing a table");
		rocksdb::IngestExternalFileOptions how;

		how.move_files = true;
		check_ok(test.db->IngestExternalFile({path}, how), "ingesting");
		for (const auto &entry : numbers)
			test.versions.complete(entry.second, test.versions.most(entry.second));
	}
}

void compact(Test &test)
{
	Random random(5);

	while (!test.stop) {
		const std::string from = key_of(random.below(KEYS)), to = key_of(random.below(KEYS));
		const rocksdb::Slice first = std::min(from, to), last = std::max(from, to);

		check_ok(test.db->Flush(rocksdb::FlushOptions()), "flushing");
		check_ok(test.db->CompactRange(rocksdb::CompactRangeOptions(), &first, &last),
			"compacting");
		/* A pause, so that readers also meet tables that stay for a moment. */
		std::this_thread::sleep_for(std::chrono::milliseconds(20));
	}
}

/* Makes at least this many reads, and on a busy machine as many more as chains need to get their share.
 */
void read_all(Test &test, uint64_t reader, uint64_t reads, uint64_t chains_wanted)
{
	constexpr uint64_t PATIENCE = 50;
	const auto is_enough = [&](uint64_t i) {
		if (test.reports)
			return test.input_ended.load();
		return i >= PATIENCE * reads ||
		       (i >= reads && i % 64 == 0 && chains(test.db->stats()) >= chains_wanted);
	};
	std::vector<uint64_t> seen(KEYS);
	Random random(1000 + reader);
	std::string value;

	for (uint64_t i = 0; !is_enough(i); i++) {
		const uint64_t number = random.below(KEYS);
		const std::string key = key_of(number);
		const uint64_t least = test.versions.least(number);
		const Status status =
			test.db->Get(ReadOptions(), test.db->DefaultColumnFamily(), key, &value);

		check_version(key, status, value, least, test.versions.most(number), &seen[number]);
		test.reads++;
	}
}

void read_at_snapshots(Test &test, uint64_t snapshots)
{
	Random random(77);
	rocksdb::DB *plain = test.db->GetBaseDB();

	for (uint64_t i = 0; test.reports ? !test.input_ended : i < snapshots; i++) {
		ReadOptions at;

		at.snapshot = test.db->GetSnapshot();
		for (int key = 0; key < 40; key++) {
			const std::string name = key_of(random.below(KEYS));
			std::string value, expected;
			const Status status =
				test.db->Get(at, test.db->DefaultColumnFamily(), name, &value);
			const Status should =
				plain->Get(at, plain->DefaultColumnFamily(), name, &expected);

			CHECK(status.code() == should.code() && (!status.ok() || value == expected),
				"%s: %s '%s' instead of %s '%s'", name.c_str(),
				status.ToString().c_str(), value.c_str(), should.ToString().c_str(),
				expected.c_str());
		}
		test.db->ReleaseSnapshot(at.snapshot);
	}
}

void report(Test &test)
{
	std::string line;

	while (std::getline(std::cin, line)) {
		const bpf_of::PushdownStats stats = test.db->stats();
		const auto of = [&stats](ReadPath way) { return static_cast<unsigned long long>(stats[way]); };

		std::printf("target %llu here %llu busy %llu\n", of(ReadPath::kTarget), of(ReadPath::kHere),
			of(ReadPath::kBusy));
		std::fflush(stdout);
	}
	test.input_ended = true;
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);
	const Kind kind = {"", rocksdb::kSnappyCompression, BINARY, 5, size_t{1} << 30};
	/* The default of the ordinary test is 40,000. */
	const char *wanted = std::getenv("READS");
	const uint64_t reads = wanted ? std::strtoull(wanted, nullptr, 10) : 40000;
	const uint64_t chains_wanted = reads / 100;
	Test test;

	test.directory = where.directory;
	test.db = open_database(where, kind, small_tables(kind), "concurrent");
	std::vector<std::thread> changing, reading;

	for (uint64_t writer = 0; writer < INGESTER; writer++)
		changing.emplace_back(write_all, std::ref(test), writer);
	changing.emplace_back(ingest, std::ref(test));
	changing.emplace_back(compact, std::ref(test));
	for (uint64_t reader = 0; reader < 3; reader++)
		reading.emplace_back(read_all, std::ref(test), reader, reads / 3, chains_wanted);
	reading.emplace_back(read_at_snapshots, std::ref(test), reads / 200);
	if (test.reports)
		report(test);
	for (std::thread &thread : reading)
		thread.join();
	test.stop = true;
	for (std::thread &thread : changing)
		thread.join();
	std::printf("concurrent, %llu reads:", static_cast<unsigned long long>(test.reads.load()));
	print_ways(*test.db);
	const bpf_of::PushdownStats stats = test.db->stats();

	CHECK(chains(stats) >= chains_wanted, "chains answered too few reads");
	CHECK(stats[ReadPath::kFailed] == 0, "%s", test.db->last_error().c_str());
	delete test.db;
	std::filesystem::remove_all(where.directory + "/concurrent");
	return 0;
}
