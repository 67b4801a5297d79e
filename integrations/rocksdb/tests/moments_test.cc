/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * All keys of a MultiGet are read at one moment, although each is searched by itself: keys that are written in one
 * batch have the same value, and keys whose table is deleted are there all or none.
 */
#include "database.h"

#include <rocksdb/convenience.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::PinnableSlice;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

namespace {

/* More than twice the keys whose chains run at once. */
constexpr size_t KEYS = 600;
constexpr Kind KIND = {"", rocksdb::kNoCompression, BINARY, 5, size_t{1} << 30};

struct Test {
	PushdownDB *db;
	std::vector<std::string> keys;
	std::atomic<bool> stop{false};
};

std::vector<std::string> make_keys()
{
	std::vector<std::string> keys;

	for (size_t i = 0; i < KEYS; i++)
		keys.push_back("key" + std::to_string(1000 + i));
	return keys;
}

/* Reads all keys again and again: they have one value, or none of them has any. */
void read_all(Test &test)
{
	const std::vector<Slice> keys(test.keys.begin(), test.keys.end());
	std::vector<PinnableSlice> values(KEYS);
	std::vector<Status> statuses(KEYS);

	while (!test.stop) {
		std::set<std::string> seen;

		test.db->MultiGet(ReadOptions(), test.db->DefaultColumnFamily(), KEYS, keys.data(), values.data(),
			statuses.data());
		for (size_t i = 0; i < KEYS; i++) {
			CHECK(statuses[i].ok() || statuses[i].IsNotFound(), "%s", statuses[i].ToString().c_str());
			seen.insert(statuses[i].ok() ? values[i].ToString() : "none");
		}
		CHECK(seen.size() == 1, "the keys have %s and %s", seen.begin()->c_str(), seen.rbegin()->c_str());
	}
}

void write_all(Test &test, uint64_t number)
{
	rocksdb::WriteBatch batch;

	for (const std::string &key : test.keys)
		check_ok(batch.Put(key, "value" + std::to_string(number)), "adding to a batch");
	check_ok(test.db->Write(rocksdb::WriteOptions(), &batch), "writing");
}

/* Writes until chains have answered enough, and ends the readers. */
template <typename Change> void change(Test &test, uint64_t chains_wanted, Change change)
{
	std::vector<std::thread> readers;

	for (int i = 0; i < 2; i++)
		readers.emplace_back(read_all, std::ref(test));
	for (uint64_t number = 0; number < 100 || (number < 2000 && chains(test.db->stats()) < chains_wanted);
		number++)
		change(number);
	test.stop = true;
	for (std::thread &reader : readers)
		reader.join();
	print_ways(*test.db);
	CHECK(chains(test.db->stats()) >= chains_wanted, "chains answered too few reads");
}

void compact(Test &test)
{
	rocksdb::CompactRangeOptions how;

	how.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
	check_ok(test.db->Flush(rocksdb::FlushOptions()), "flushing");
	check_ok(test.db->CompactRange(how, nullptr, nullptr), "compacting");
	test.db->wait_ready(10000);
}

/* No snapshot hides that a table is deleted. */
void test_deleted_tables(const Place &place)
{
	Test test;

	test.keys = make_keys();
	test.db = open_database(place, KIND, small_tables(KIND), "moments");
	change(test, 10 * KEYS, [&](uint64_t number) {
		write_all(test, number);
		compact(test);
		std::this_thread::sleep_for(std::chrono::milliseconds(2));
		check_ok(rocksdb::DeleteFilesInRange(
				 test.db, test.db->DefaultColumnFamily(), nullptr, nullptr),
			"deleting the table");
	});
	delete test.db;
	std::filesystem::remove_all(place.directory + "/moments");
}

/* With a family that is updated in place there are no snapshots in the whole database. */
void test_without_snapshots(const Place &place)
{
	rocksdb::Options options = small_tables(KIND);
	Test test;

	options.allow_concurrent_memtable_write = false;
	options.write_buffer_size = 64 << 20;
	test.keys = make_keys();
	test.db = open_database(place, KIND, options, "moments");
	rocksdb::ColumnFamilyOptions in_place(options);
	rocksdb::ColumnFamilyHandle *counters;

	in_place.inplace_update_support = true;
	check_ok(test.db->CreateColumnFamily(in_place, "counters", &counters), "making a family");
	CHECK(!test.db->GetSnapshot(), "there are snapshots");
	change(test, 0, [&](uint64_t number) {
		write_all(test, number);
		if (number % 10 == 0)
			compact(test);
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	});
	CHECK(test.db->stats()[ReadPath::kOptions] > 0, "MultiGets are not RocksDB's");
	check_ok(test.db->DestroyColumnFamilyHandle(counters), "closing the family");
	delete test.db;
	std::filesystem::remove_all(place.directory + "/moments");
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);

	test_deleted_tables(where);
	test_without_snapshots(where);
	return 0;
}
