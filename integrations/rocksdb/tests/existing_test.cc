/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A database that this test has not made: random reads of its keys, and of neighbours that do not
 * exist, must equal those of the plain library, also with the database opened for reading only; then
 * the same at snapshots, while it is overwritten, deleted from, flushed, compacted and ingested into.
 *
 *     existing_test DATABASE [URL DEVICE]
 *
 * READS in the environment is the number of keys read by Get(), and again by MultiGet() (4,000).
 */
#include "database.h"

#include <rocksdb/sst_file_writer.h>
#include <rocksdb/utilities/options_util.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

using bpf_of::PushdownDB;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::WriteOptions;

namespace {

constexpr size_t AT_ONCE = 50;
constexpr size_t STEPS = 40;
constexpr size_t READERS = 2;

size_t wanted_reads()
{
	const char *text = std::getenv("READS");
	const size_t reads = text ? std::strtoull(text, nullptr, 10) : 4000;

	CHECK(reads >= 1000, "READS=%s: at least 1000 reads are needed", text);
	return reads;
}

std::vector<std::string> all_keys(rocksdb::DB *plain)
{
	std::unique_ptr<rocksdb::Iterator> scan(plain->NewIterator(ReadOptions()));
	std::vector<std::string> all;

	for (scan->SeekToFirst(); scan->Valid(); scan->Next())
		all.push_back(scan->key().ToString());
	check_ok(scan->status(), "scanning");
	CHECK(!all.empty(), "the database is empty");
	return all;
}

/* Keys of all parts of the database, each with a following key that does not exist. */
std::vector<std::string> some_keys(const std::vector<std::string> &all, Random &random)
{
	std::vector<std::string> some;

	while (some.size() < AT_ONCE) {
		some.push_back(all[random.below(all.size())]);
		some.push_back(some.back() + '!');
	}
	return some;
}

void check_gets(PushdownDB *db, const ReadOptions &how, const std::vector<std::string> &keys)
{
	const std::vector<Slice> batch(keys.begin(), keys.end());
	std::vector<std::string> values;
	const std::vector<Status> statuses = db->MultiGet(how, batch, &values);

	for (size_t i = 0; i < batch.size(); i++) {
		std::string value, expected;
		const Status status = db->Get(how, batch[i], &value);
		const Status should = db->GetBaseDB()->Get(how, batch[i], &expected);

		CHECK(status == should && value == expected, "%s: %s", batch[i].ToString(true).c_str(),
			status.ToString().c_str());
		CHECK(statuses[i] == should && (!should.ok() || values[i] == expected), "%s: %s",
			batch[i].ToString(true).c_str(), statuses[i].ToString().c_str());
	}
}

void check_scan(PushdownDB *db, const ReadOptions &how, const std::string &from)
{
	std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(how));
	std::unique_ptr<rocksdb::Iterator> plain(db->GetBaseDB()->NewIterator(how));

	scan->Seek(from);
	plain->Seek(from);
	for (size_t step = 0; step < STEPS && plain->Valid(); step++) {
		CHECK(scan->Valid() && scan->key() == plain->key() && scan->value() == plain->value(),
			"step %zu from %s", step, Slice(from).ToString(true).c_str());
		scan->Next();
		plain->Next();
	}
	CHECK(scan->Valid() == plain->Valid(), "the end");
	check_ok(scan->status(), "scanning");
}

/* All reads of a round must see one state of the database. */
void check_round(
	PushdownDB *db, const ReadOptions &how, const std::vector<std::string> &all, Random &random)
{
	const std::vector<std::string> keys = some_keys(all, random);

	check_gets(db, how, keys);
	check_scan(db, how, keys.front());
}

void ingest(
	PushdownDB *db, const std::string &path, const std::vector<std::string> &all, Random &random)
{
	rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), db->GetOptions());
	rocksdb::IngestExternalFileOptions how;
	const size_t first = random.below(all.size());

	check_ok(writer.Open(path), "making a table");
	for (size_t i = first; i < std::min(all.size(), first + 100); i += 3)
		check_ok(writer.Put(all[i], "ingested " + std::to_string(random.below(1000))),
			"filling a table");
	check_ok(writer.Finish(), "finishing a table");
	how.move_files = true;
	check_ok(db->IngestExternalFile({path}, how), "ingesting");
}

/* Changes the keys continuously, in all ways, until `stop`. */
void change(PushdownDB *db, const std::string &directory, const std::vector<std::string> &all,
	const std::atomic<bool> &stop)
{
	const std::string table = directory + ".sst";
	Random random(12);

	for (uint64_t i = 0; !stop; i++) {
		const std::string &key = all[random.below(all.size())];

		if (i % 4 == 0)
			check_ok(db->Delete(WriteOptions(), key), "deleting");
		else
			check_ok(db->Put(WriteOptions(), key, "written " + std::to_string(i)),
				"writing");
		if (i % 500 == 0)
			ingest(db, table, all, random);
		if (i % 2000 == 0)
			check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		if (i % 20000 == 0)
			check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr),
				"compacting");
		std::this_thread::sleep_for(std::chrono::microseconds(100));
	}
}

/* Reads at a snapshot must not change. */
void read_snapshots(PushdownDB *db, const std::vector<std::string> &all, size_t reads, uint64_t seed)
{
	Random random(seed);

	for (size_t done = 0; done < reads; done += AT_ONCE) {
		ReadOptions how;

		how.snapshot = db->GetSnapshot();
		check_round(db, how, all, random);
		db->ReleaseSnapshot(how.snapshot);
	}
}

void read_while_it_changes(
	PushdownDB *db, const std::string &directory, const std::vector<std::string> &all, size_t reads)
{
	std::vector<std::thread> readers;
	std::atomic<bool> stop{false};
	std::thread changes([&] { change(db, directory, all, stop); });

	for (size_t reader = 0; reader < READERS; reader++)
		readers.emplace_back(read_snapshots, db, std::cref(all), reads / READERS, 100 + reader);
	for (std::thread &reader : readers)
		reader.join();
	stop = true;
	changes.join();
}

/* Reads each of the families; there are no writes. */
void read_only(const Place &where, const rocksdb::DBOptions &options, const bpf_of::PushdownOptions &pushdown,
	const std::vector<rocksdb::ColumnFamilyDescriptor> &families, size_t reads)
{
	std::vector<rocksdb::ColumnFamilyHandle *> handles;
	PushdownDB *db;

	check_ok(PushdownDB::OpenForReadOnly(options, pushdown, where.directory, families, &handles, &db),
		"opening for reading");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const std::vector<std::string> all = all_keys(db->GetBaseDB());
	Random random(10);

	for (size_t done = 0; done < reads; done += AT_ONCE) {
		ReadOptions how;

		how.snapshot = done / AT_ONCE % 2 ? db->GetSnapshot() : nullptr;
		check_round(db, how, all, random);
		if (how.snapshot)
			db->ReleaseSnapshot(how.snapshot);
	}
	CHECK(db->Put(WriteOptions(), all[0], "").IsNotSupported(), "it was written to");
	std::printf("%s, for reading:", where.directory.c_str());
	print_ways(*db);
	const bpf_of::PushdownStats stats = db->stats();

	CHECK(chains(stats) > reads / 2 && stats[bpf_of::ReadPath::kStale] == 0, "%s", db->last_error().c_str());
	for (rocksdb::ColumnFamilyHandle *handle : handles)
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving back a handle");
	delete db;
}

/* Bytes that this process has read from devices. */
uint64_t device_bytes()
{
	std::ifstream counters("/proc/self/io");
	std::string name;
	uint64_t value = 0;

	while (counters >> name >> value) {
		if (name == "read_bytes:")
			return value;
	}
	CHECK(false, "%s", "/proc/self/io has no read_bytes");
	return 0;
}

/* RocksDB asks for whole pages, which the fetched blocks must cover. */
void seek_with_direct_reads(const Place &where, rocksdb::DBOptions options,
	const bpf_of::PushdownOptions &pushdown,
	const std::vector<rocksdb::ColumnFamilyDescriptor> &families, size_t seeks)
{
	std::vector<rocksdb::ColumnFamilyHandle *> handles;
	PushdownDB *db;

	options.use_direct_reads = true;
	check_ok(PushdownDB::OpenForReadOnly(options, pushdown, where.directory, families, &handles, &db),
		"opening for direct reads");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const std::vector<std::string> all = all_keys(db->GetBaseDB());
	std::unique_ptr<rocksdb::Iterator> iterator(db->NewIterator(ReadOptions()));
	Random random(12);
	const uint64_t before = device_bytes();

	for (size_t i = 0; i < seeks; i++) {
		const std::string &key = all[random.below(all.size())];

		iterator->Seek(key);
		CHECK(iterator->Valid() && iterator->key() == key, "%s: %s", key.c_str(),
			iterator->status().ToString().c_str());
	}
	const uint64_t read = device_bytes() - before;

	CHECK(db->stats().seeks > seeks / 2 && read < seeks * 512,
		"%zu seeks, of which %llu came together, have read %llu bytes here", seeks,
		static_cast<unsigned long long>(db->stats().seeks), static_cast<unsigned long long>(read));
	iterator.reset();
	for (rocksdb::ColumnFamilyHandle *handle : handles)
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving back a handle");
	delete db;
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);
	const size_t reads = wanted_reads();
	rocksdb::DBOptions options;
	std::vector<rocksdb::ColumnFamilyDescriptor> families;
	std::vector<rocksdb::ColumnFamilyHandle *> handles;
	bpf_of::PushdownOptions pushdown;
	PushdownDB *db;

	/* With the options with which it was made. */
	check_ok(rocksdb::LoadLatestOptions(
			 rocksdb::ConfigOptions(), where.directory, &options, &families),
		"reading the database's options");
	options.max_open_files = -1;
	for (rocksdb::ColumnFamilyDescriptor &family : families) {
		auto *table =
			family.options.table_factory->GetOptions<rocksdb::BlockBasedTableOptions>();

		CHECK(table, "tables of another kind");
		table->no_block_cache = true;
		table->block_cache = nullptr;
	}
	pushdown.url = where.url;
	pushdown.device = where.device;
	read_only(where, options, pushdown, families, reads / 4);
	if (!where.url.empty())
		seek_with_direct_reads(where, options, pushdown, families, reads / 4);
	check_ok(PushdownDB::Open(options, pushdown, where.directory, families, &handles, &db),
		"opening");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const std::vector<std::string> all = all_keys(db->GetBaseDB());
	Random random(11);

	for (size_t done = 0; done < reads; done += AT_ONCE)
		check_round(db, ReadOptions(), all, random);
	std::printf("%s:", where.directory.c_str());
	print_ways(*db);
	const bpf_of::PushdownStats stats = db->stats();

	CHECK(chains(stats) > reads / 2 && stats.seeks > 10, "%s", db->last_error().c_str());
	CHECK(where.url.empty() || stats[bpf_of::ReadPath::kTarget] > reads / 2, "%s",
		db->last_error().c_str());
	read_while_it_changes(db, where.directory, all, reads);
	std::printf("%s, changing:", where.directory.c_str());
	print_ways(*db);
	CHECK(chains(db->stats()) > chains(stats), "%s", db->last_error().c_str());
	for (rocksdb::ColumnFamilyHandle *handle : handles)
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving back a handle");
	delete db;
	return 0;
}
