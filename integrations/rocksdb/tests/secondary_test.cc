/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A secondary instance: it must read the primary's state of its last catch-up, and no other. */
#include "answers.h"

#include <atomic>
#include <fstream>
#include <thread>

using bpf_of::Mode;
using bpf_of::PushdownDB;
using bpf_of::PushdownOptions;
using bpf_of::ReadPath;
using rocksdb::ColumnFamilyHandle;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::WriteOptions;

namespace {

const Kind KIND = {"LZ4", rocksdb::kLZ4Compression, BINARY, 5, size_t{1} << 30};

/* Opens a database with plain RocksDB for writing; it compacts by itself, or only when the test asks
 * for it. */
rocksdb::DB *open_primary(const std::string &path, bool compacts, const std::string &logs = "")
{
	rocksdb::DB *db;

	rocksdb::Options options = small_tables(KIND);

	options.disable_auto_compactions = !compacts;
	options.wal_dir = logs;
	std::filesystem::remove_all(path);
#if ROCKSDB_MAJOR >= 10
	std::unique_ptr<rocksdb::DB> opened;

	check_ok(rocksdb::DB::Open(options, path, &opened), "opening a primary");
	db = opened.release();
#else
	check_ok(rocksdb::DB::Open(options, path, &db), "opening a primary");
#endif
	return db;
}

PushdownDB *open_secondary(const Place &place, const std::string &path, const std::string &logs = "")
{
	PushdownOptions pushdown;
	rocksdb::Options options = small_tables(KIND);
	PushdownDB *db;

	options.wal_dir = logs;
	pushdown.url = place.url;
	pushdown.device = place.device;
	pushdown.sample_rate = 0;
	/* It keeps all of its tables open nevertheless. */
	pushdown.descriptors_max = 1;
	check_ok(PushdownDB::OpenAsSecondary(options, pushdown, path, place.directory + "/follower", &db),
		"opening a secondary");
	return db;
}

void write_some(rocksdb::DB *db, Random &random, int count)
{
	for (int i = 0; i < count; i++) {
		const std::string key = key_of(random.below(KEYS));

		if (random.below(6) == 0)
			check_ok(db->Delete(WriteOptions(), key), "deleting");
		else
			check_ok(db->Put(WriteOptions(), key, std::to_string(random.next())), "writing");
	}
}

/* The answers of RocksDB's own secondary. These are not always the primary's: in 7.8 memtables remain
 * whose writes were flushed, and hide newer writes of the same keys. */
Model plain_answers(PushdownDB *db)
{
	Model model;

	db->set_mode(Mode::kPlain);
	for (uint64_t number = 0; number < KEYS; number++) {
		std::string value;
		const Status status = db->Get(ReadOptions(), key_of(number), &value);

		CHECK(status.ok() || status.IsNotFound(), "%s", status.ToString().c_str());
		if (status.ok())
			model[key_of(number)] = value;
	}
	db->set_mode(Mode::kChains);
	return model;
}

void check_some(PushdownDB *db, const Model &model)
{
	std::vector<std::string> names;

	for (uint64_t number = 0; number < KEYS; number += 5) {
		check_get(db, model, key_of(number), nullptr);
		if (model.count(key_of(number)))
			names.push_back(key_of(number));
	}
	check_many_of(db, model, names);
}

/* Changes by the primary meanwhile must not change answers, although it deletes tables that are
 * read. */
void test_following(const Place &place)
{
	const std::string path = place.directory + "/followed";
	std::unique_ptr<rocksdb::DB> primary(open_primary(path, false));
	Random random(5);
	size_t changed = 0;

	write_some(primary.get(), random, 3000);
	check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
	std::unique_ptr<PushdownDB> db(open_secondary(place, path));
	Model model = plain_answers(db.get());

	for (int round = 0; round < 6; round++) {
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		check_some(db.get(), model);
		write_some(primary.get(), random, 1500);
		check_some(db.get(), model);
		if (round % 3 == 1)
			check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
		if (round % 3 == 2)
			check_ok(primary->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compacting");
		check_some(db.get(), model);
		check_ok(db->TryCatchUpWithPrimary(), "catching up");
		Model next = plain_answers(db.get());

		changed += next != model;
		model = std::move(next);
		check_some(db.get(), model);
	}
	CHECK(changed > 3, "the primary was followed %zu times", changed);
	std::printf("following:");
	print_ways(*db);
	const bpf_of::PushdownStats stats = db->stats();

	CHECK(chains(stats) > 10000 && chains(stats) > 4 * stats[ReadPath::kStale], "chains answered too few reads");
	CHECK(place.url.empty() || stats[ReadPath::kTarget] > 5000, "the target answered too few reads");
	CHECK(stats[ReadPath::kFailed] == 0 && stats.tables_refused == 0, "%s", db->last_error().c_str());

	CHECK(db->Put(WriteOptions(), "key", "value").IsNotSupported(), "a secondary writes");
	ColumnFamilyHandle *family;

	CHECK(db->CreateColumnFamily(small_tables(KIND), "one", &family).IsNotSupported(), "a secondary makes a family");
	/* Served by RocksDB; the answer does not matter. */
	ReadOptions at;
	std::string value;

	at.snapshot = db->GetSnapshot();
	const uint64_t before = db->stats()[ReadPath::kOptions];

	db->Get(at, key_of(1), &value);
	CHECK(!at.snapshot || db->stats()[ReadPath::kOptions] == before + 1, "a read with a snapshot");
	db->ReleaseSnapshot(at.snapshot);
}

/* One thread writes pairs of keys together; another lets the secondary catch up. Readers must see one
 * version of both keys, unless the secondary catches up between the two reads (RocksDB's own reads may then
 * differ, too), and no older version after a newer one. */
void test_moments(const Place &place)
{
	constexpr uint64_t PAIRS = 200;
	const std::string path = place.directory + "/moments";
	std::unique_ptr<rocksdb::DB> primary(open_primary(path, true));
	std::atomic<bool> stop{false};
	/* Odd while the secondary catches up. */
	std::atomic<uint64_t> catch_ups{0};
	std::atomic<uint64_t> read{0}, compared{0};
	const auto write = [&](uint64_t pair, uint64_t version) {
		rocksdb::WriteBatch batch;
		const std::string value = std::to_string(version) + std::string(100, 'v');

		batch.Put("a" + std::to_string(pair), value);
		batch.Put("z" + std::to_string(pair), value);
		check_ok(primary->Write(WriteOptions(), &batch), "writing");
	};

	for (uint64_t pair = 0; pair < PAIRS; pair++)
		write(pair, 0);
	check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
	std::unique_ptr<PushdownDB> db(open_secondary(place, path));

	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const auto read_pairs = [&](uint64_t seed) {
		Random random(seed);
		std::vector<uint64_t> seen(PAIRS);

		while (!stop) {
			const uint64_t pair = random.below(PAIRS);
			const std::string first = "a" + std::to_string(pair), second = "z" + std::to_string(pair);
			std::vector<std::string> values;
			std::string one;
			const uint64_t before = catch_ups;
			const std::vector<Status> statuses = db->MultiGet(ReadOptions(), {first, second}, &values);

			check_ok(statuses[0], "reading");
			check_ok(statuses[1], "reading");
			if (before % 2 == 0 && catch_ups == before) {
				CHECK(values[0] == values[1], "%s and %s", values[0].c_str(), values[1].c_str());
				compared++;
			}
			check_ok(db->Get(ReadOptions(), second, &one), "reading");
			const uint64_t many = std::stoull(values[0]), single = std::stoull(one);

			CHECK(seen[pair] <= many && many <= single, "versions %llu, %llu, %llu",
				static_cast<unsigned long long>(seen[pair]), static_cast<unsigned long long>(many),
				static_cast<unsigned long long>(single));
			seen[pair] = single;
			read++;
		}
	};
	std::thread writer([&] {
		Random random(1);

		for (uint64_t version = 1; !stop; version++) {
			write(random.below(PAIRS), version);
			if (version % 500 == 0)
				check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
			if (version % 10 == 0)
				std::this_thread::sleep_for(std::chrono::milliseconds(1));
		}
	});
	std::thread follower([&] {
		while (!stop) {
			catch_ups++;
			check_ok(db->TryCatchUpWithPrimary(), "catching up");
			catch_ups++;
			std::this_thread::sleep_for(std::chrono::milliseconds(3));
		}
	});
	std::thread reader(read_pairs, 2), another(read_pairs, 3);
	const auto enough = [&] {
		return catch_ups > 600 && read > 3000 && compared > 1000 && chains(db->stats()) > 100;
	};
	const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);

	while (!enough() && std::chrono::steady_clock::now() < deadline)
		std::this_thread::sleep_for(std::chrono::milliseconds(10));
	stop = true;
	for (std::thread *thread : {&writer, &follower, &reader, &another})
		thread->join();
	std::printf("moments: caught up %llu times,", static_cast<unsigned long long>(catch_ups / 2));
	print_ways(*db);
	CHECK(enough(), "caught up %llu times, read %llu times, compared %llu times, %llu chains: %s",
		static_cast<unsigned long long>(catch_ups / 2), static_cast<unsigned long long>(read),
		static_cast<unsigned long long>(compared),
		static_cast<unsigned long long>(chains(db->stats())), db->last_error().c_str());
	CHECK(db->stats()[ReadPath::kFailed] == 0, "%s", db->last_error().c_str());
}

/* RocksDB serves tables that were deleted before the library opened them, and only these. */
void test_deleted(const Place &place)
{
	const std::string path = place.directory + "/deleted";
	std::unique_ptr<rocksdb::DB> primary(open_primary(path, false));
	Random random(9);

	write_some(primary.get(), random, 3000);
	check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
	std::unique_ptr<PushdownDB> db(open_secondary(place, path));

	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	for (int round = 0; round < 5; round++) {
		write_some(primary.get(), random, 300);
		check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
		check_ok(db->TryCatchUpWithPrimary(), "catching up");
		/* Deletes the new table at once. */
		check_ok(primary->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compacting");
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		check_some(db.get(), plain_answers(db.get()));
	}
	std::printf("deleted:");
	print_ways(*db);
	CHECK(db->stats()[ReadPath::kFailed] == 0, "%s", db->last_error().c_str());
}

/* After a failed catch-up RocksDB serves reads until one succeeds. */
void test_failure(const Place &place)
{
	const std::string path = place.directory + "/failing";
	Random random(3);

	std::filesystem::remove_all(path + ".away");
	std::unique_ptr<rocksdb::DB> primary(open_primary(path, false));

	write_some(primary.get(), random, 3000);
	check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
	std::unique_ptr<PushdownDB> db(open_secondary(place, path));
	const Model model = plain_answers(db.get());

	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_some(db.get(), model);
	const uint64_t found = chains(db->stats());

	CHECK(found > 500, "%llu chains", static_cast<unsigned long long>(found));
	/* A file takes the place of the folder with the logs. */
	std::filesystem::rename(path, path + ".away");
	std::ofstream(path) << "no folder";
	CHECK(!db->TryCatchUpWithPrimary().ok(), "caught up without logs of the primary");
	CHECK(!db->wait_ready(10), "ready although catching up failed");
	check_some(db.get(), model);
	CHECK(chains(db->stats()) == found && db->stats()[ReadPath::kStale] > 500, "reads were not left to RocksDB");
	std::filesystem::remove(path);
	std::filesystem::rename(path + ".away", path);
	check_ok(db->TryCatchUpWithPrimary(), "catching up");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_some(db.get(), model);
	CHECK(chains(db->stats()) > found + 500, "no chains afterwards");
}

/* The instance learns of the tables, but cannot read the logs: RocksDB lists tables that it does not
 * read itself. */
void test_half_a_failure(const Place &place)
{
	const std::string path = place.directory + "/half", logs = path + ".logs", away = logs + ".away";
	Random random(4);

	for (const std::string &folder : {logs, away})
		std::filesystem::remove_all(folder);
	std::unique_ptr<rocksdb::DB> primary(open_primary(path, false, logs));

	write_some(primary.get(), random, 3000);
	check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
	std::unique_ptr<PushdownDB> db(open_secondary(place, path, logs));

	for (int round = 0; round < 4; round++) {
		/* With a view of the previous version, and without. */
		if (round % 2 == 0)
			CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		write_some(primary.get(), random, 1000);
		check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
		std::filesystem::rename(logs, away);
		CHECK(!db->TryCatchUpWithPrimary().ok(), "it has caught up without logs");
		std::filesystem::rename(away, logs);
		check_some(db.get(), plain_answers(db.get()));
		check_ok(db->TryCatchUpWithPrimary(), "catching up");
		/* Time for a view to be made by mistake. */
		db->wait_ready(50);
		check_some(db.get(), plain_answers(db.get()));
		/* A change of the version ends that state. */
		write_some(primary.get(), random, 100);
		check_ok(primary->Flush(rocksdb::FlushOptions()), "flushing");
		check_ok(db->TryCatchUpWithPrimary(), "catching up");
	}
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const uint64_t before = chains(db->stats());

	check_some(db.get(), plain_answers(db.get()));
	CHECK(chains(db->stats()) > before + 500, "no chains afterwards");
}

/* A dropped family is freed when the program deletes its handle; RocksDB reports no drop to a
 * secondary. */
void test_dropped(const Place &place)
{
	const std::string path = place.directory + "/dropped";
	std::unique_ptr<rocksdb::DB> primary(open_primary(path, false));
	ColumnFamilyHandle *family;
	Random random(6);

	check_ok(primary->CreateColumnFamily(small_tables(KIND), "one", &family), "making a family");
	write_some(primary.get(), random, 1000);
	check_ok(primary->Put(WriteOptions(), family, "key", "value"), "writing");
	check_ok(primary->Flush(rocksdb::FlushOptions(), {primary->DefaultColumnFamily(), family}), "flushing");
	PushdownOptions pushdown;
	PushdownDB *opened;
	std::vector<ColumnFamilyHandle *> handles;

	pushdown.url = place.url;
	pushdown.device = place.device;
	check_ok(PushdownDB::OpenAsSecondary(small_tables(KIND), pushdown, path, place.directory + "/follower",
			 {{rocksdb::kDefaultColumnFamilyName, small_tables(KIND)}, {"one", small_tables(KIND)}}, &handles,
			 &opened),
		"opening a secondary");
	std::unique_ptr<PushdownDB> db(opened);
	std::string value;

	CHECK(db->wait_ready(20000) && db->stats().tables == 2, "%s", db->last_error().c_str());
	check_ok(primary->DropColumnFamily(family), "dropping");
	check_ok(primary->DestroyColumnFamilyHandle(family), "closing");
	check_ok(db->TryCatchUpWithPrimary(), "catching up");
	check_ok(db->Get(ReadOptions(), handles[1], "key", &value), "reading a dropped family");
	check_ok(db->DestroyColumnFamilyHandle(handles[1]), "closing");
	CHECK(db->stats().tables == 1, "the table of a dropped family is kept");
	check_some(db.get(), plain_answers(db.get()));
	check_ok(db->DestroyColumnFamilyHandle(handles[0]), "closing");
	CHECK(db->wait_ready(20000) && db->stats().tables == 1, "the default family is not followed");
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);

	test_following(where);
	test_deleted(where);
	test_failure(where);
	test_half_a_failure(where);
	test_dropped(where);
	test_moments(where);
	return 0;
}
