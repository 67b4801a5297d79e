/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The cost of answers: wasted chains, bytes, and waits for RocksDB's mutex. */
#include "answers.h"

#include <rocksdb/perf_context.h>
#include <rocksdb/statistics.h>

#include <filesystem>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::WriteOptions;

/* Chains adapt to values for which they have no room, and are skipped while most of them are
 * declined. */
void test_long_values(const Place &place, const Kind &kind)
{
	constexpr uint64_t GETS = 400;
	rocksdb::Options options = small_tables(kind);

	options.disable_auto_compactions = true;
	PushdownDB *db = open_database(place, kind, options, "long");
	Model model;
	std::vector<std::string> names;
	const auto write_all = [&](size_t bytes) {
		for (uint64_t number = 0; number < 20; number++) {
			model[key_of(number)] = std::string(bytes, 'v') + std::to_string(number);
			check_ok(db->Put(WriteOptions(), key_of(number), model[key_of(number)]), "writing");
		}
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	};
	const auto get_some = [&](uint64_t count) {
		for (uint64_t i = 0; i < count; i++)
			check_get(db, model, key_of(i % 20), nullptr);
	};

	/* There is more room than usual. */
	write_all(8000);
	get_some(GETS);
	CHECK(db->stats()[ReadPath::kDeclined] == 1 && chains(db->stats()) == GETS - 1, "%llu were declined",
		static_cast<unsigned long long>(db->stats()[ReadPath::kDeclined]));

	/* No scratch has room for these. */
	write_all(20000);
	bpf_of::PushdownStats before = db->stats();

	get_some(GETS);
	for (uint64_t number = 0; number < 20; number++)
		names.push_back(key_of(number));
	for (uint64_t i = 0; i < GETS; i += names.size())
		check_many_of(db, model, names);
	bpf_of::PushdownStats after = db->stats();

	CHECK(after[ReadPath::kDeclined] - before[ReadPath::kDeclined] == 2 * GETS, "ways of long values");
	CHECK(after.blocks - before.blocks < GETS / 2, "chains read %llu blocks for declined values",
		static_cast<unsigned long long>(after.blocks - before.blocks));

	write_all(10);
	get_some(2 * GETS);
	before = db->stats();
	get_some(GETS);
	check_many_of(db, model, names);
	after = db->stats();
	CHECK(chains(after) - chains(before) == GETS + names.size(), "short values are not read by chains");
	std::printf("long values:");
	print_ways(*db);
	delete db;
}

/* Bytes that the seek of a scan sends to the target, and receives. */
static std::pair<uint64_t, uint64_t> traffic_of_seek(PushdownDB *db, const ReadOptions &options, const std::string &key)
{
	const bpf_of::PushdownStats before = db->stats();
	{
		const std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(options));

		if (key.empty())
			scan->SeekToFirst();
		else
			scan->Seek(key);
		CHECK(scan->Valid() && scan->key() == key_of(KEYS / 2), "%s", scan->status().ToString().c_str());
	}
	const bpf_of::PushdownStats after = db->stats();

	CHECK(after.seeks == before.seeks + 1, "its blocks are not fetched together");
	return {after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes};
}

/* A scan with a lower bound fetches blocks at that bound: it costs what a seek to the bound costs, in
 * one round trip. */
void test_lower_bound(const Place &place, const Kind &kind)
{
	const std::string path = place.directory + "/bound", lower = key_of(KEYS / 2);
	const Slice bound = lower;
	rocksdb::Options options = small_tables(kind);
	bpf_of::PushdownOptions pushdown;
	ReadOptions bounded;
	PushdownDB *db;

	options.disable_auto_compactions = true;
	pushdown.url = place.url;
	pushdown.device = place.device;
	/* Blocks that are fetched alone count as well; connecting must not count. */
	pushdown.target_reads = true;
	pushdown.lanes_max = 1;
	std::filesystem::remove_all(path);
	check_ok(PushdownDB::Open(options, pushdown, path, &db), "opening a database");
	for (int table = 0; table < 3; table++) {
		for (uint64_t number = table; number < KEYS; number += 3)
			check_ok(db->Put(WriteOptions(), key_of(number), std::to_string(number)), "writing");
		check_ok(db->Put(WriteOptions(), lower, "at the bound"), "writing");
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	}
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	bounded.iterate_lower_bound = &bound;
	traffic_of_seek(db, ReadOptions(), lower);
	const auto wanted = traffic_of_seek(db, ReadOptions(), lower);

	CHECK(traffic_of_seek(db, bounded, "") == wanted, "the first key");
	CHECK(traffic_of_seek(db, bounded, "a") == wanted, "a key before the bound");
	CHECK(traffic_of_seek(db, bounded, lower) == wanted, "the bound");
	CHECK(place.url.empty() || wanted.second > 1000, "no blocks were fetched");
	delete db;
	std::filesystem::remove_all(path);
}

/* A tailing iterator sees later writes. It moves to newer versions, and its seeks fetch the blocks of
 * their tables together. */
void test_tailing(const Place &place, const Kind &kind)
{
	rocksdb::Options options = small_tables(kind);
	ReadOptions tailing;
	Model model;

	options.disable_auto_compactions = true;
	PushdownDB *db = open_database(place, kind, options, "tailing");
	const auto write_all = [&](const std::string &value) {
		for (uint64_t number = 0; number < 300; number++) {
			model[key_of(number)] = value;
			check_ok(db->Put(WriteOptions(), key_of(number), value), "writing");
		}
		check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compacting");
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	};

	write_all("first");
	tailing.tailing = true;
	std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(tailing));

	for (const char *value : {"second", "third"}) {
		write_all(value);
		const uint64_t before = db->stats().seeks;
		auto expected = model.find(key_of(150));

		scan->Seek(key_of(150));
		for (int steps = 0; steps < 30; steps++) {
			check_at(*scan, model, expected++);
			scan->Next();
		}
		CHECK(db->stats().seeks == before + 1, "the blocks of a seek are not fetched together");
	}
	scan.reset();
	delete db;
}

/* Readers do not wait for writers: they need RocksDB's mutex only for a version that is new to them. */
void test_mutex(const Place &place, const Kind &kind)
{
	constexpr uint64_t GETS = 500;
	rocksdb::Options options = small_tables(kind);

	options.statistics = rocksdb::CreateDBStatistics();
	PushdownDB *db = open_database(place, kind, options, "mutex");
	Model model;

	for (uint64_t number = 0; number < KEYS; number++)
		model[key_of(number)] = std::to_string(number);
	for (const auto &entry : model)
		check_ok(db->Put(WriteOptions(), entry.first, entry.second), "writing");
	for (uint64_t round = 1; round <= 3; round++) {
		check_ok(db->Put(WriteOptions(), key_of(0), "new"), "writing");
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		model[key_of(0)] = "new";
		check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compacting");
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		check_get(db, model, key_of(1), nullptr);
		rocksdb::SetPerfLevel(rocksdb::kEnableTime);
		const uint64_t before = rocksdb::get_perf_context()->db_mutex_lock_nanos;

		for (uint64_t number = 1; number <= GETS; number++)
			check_get(db, model, key_of(number), nullptr);
		CHECK(rocksdb::get_perf_context()->db_mutex_lock_nanos == before,
			"Gets take the mutex of the database");
		rocksdb::SetPerfLevel(rocksdb::kDisable);
		CHECK(chains(db->stats()) == round * (GETS + 1), "%llu chains",
			static_cast<unsigned long long>(chains(db->stats())));
	}
	/* The program's statistics still count. */
	CHECK(options.statistics->getTickerCount(rocksdb::NUMBER_KEYS_WRITTEN) == KEYS + 3, "keys written");
	CHECK(options.statistics->getTickerCount(rocksdb::NUMBER_SUPERVERSION_ACQUIRES) > 0, "acquisitions");
	const std::string path = db->GetName();

	delete db;
	/* Databases open for reading only have no writers, and need no snapshots. */
	bpf_of::PushdownOptions pushdown;

	pushdown.url = place.url;
	pushdown.device = place.device;
	pushdown.sample_rate = 0;
	options.env = nullptr;
	check_ok(PushdownDB::OpenForReadOnly(options, pushdown, path, &db), "opening for reading");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_many_of(db, model, {key_of(1), key_of(2)});
	rocksdb::SetPerfLevel(rocksdb::kEnableTime);
	const uint64_t before = rocksdb::get_perf_context()->db_mutex_lock_nanos;

	check_many_of(db, model, {key_of(3), key_of(4), key_of(5)});
	CHECK(rocksdb::get_perf_context()->db_mutex_lock_nanos == before, "a MultiGet takes the mutex");
	rocksdb::SetPerfLevel(rocksdb::kDisable);
	CHECK(chains(db->stats()) == 5, "%llu chains", static_cast<unsigned long long>(chains(db->stats())));
	delete db;
}
