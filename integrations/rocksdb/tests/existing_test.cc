/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A database that somebody else has made: random reads of keys that it has, and of neighbours that it
 * has not, are those of the plain library.
 *
 *     existing_test DATABASE [URL DEVICE]
 */
#include "database.h"

#include <rocksdb/utilities/options_util.h>

#include <vector>

using bpf_of::PushdownDB;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;

namespace {

constexpr size_t READS = 4000;
constexpr size_t AT_ONCE = 50;
constexpr size_t STEPS = 40;

/* Keys of all parts of the database, each with one that follows it and is not there. */
std::vector<std::string> some_keys(rocksdb::DB *plain)
{
	std::unique_ptr<rocksdb::Iterator> scan(plain->NewIterator(ReadOptions()));
	std::vector<std::string> all, some;
	Random random(11);

	for (scan->SeekToFirst(); scan->Valid(); scan->Next())
		all.push_back(scan->key().ToString());
	check_ok(scan->status(), "scanning");
	CHECK(!all.empty(), "the database is empty");
	while (some.size() < READS) {
		some.push_back(all[random.below(all.size())]);
		some.push_back(some.back() + '!');
	}
	return some;
}

void check_gets(PushdownDB *db, const std::vector<std::string> &keys)
{
	for (size_t first = 0; first < keys.size(); first += AT_ONCE) {
		const std::vector<Slice> batch(keys.begin() + first, keys.begin() + first + AT_ONCE);
		std::vector<std::string> values;
		const std::vector<Status> statuses = db->MultiGet(ReadOptions(), batch, &values);

		for (size_t i = 0; i < AT_ONCE; i++) {
			std::string value, expected;
			const Status status = db->Get(ReadOptions(), batch[i], &value);
			const Status should = db->GetBaseDB()->Get(ReadOptions(), batch[i], &expected);

			CHECK(status == should && value == expected, "%s: %s",
				batch[i].ToString(true).c_str(), status.ToString().c_str());
			CHECK(statuses[i] == should && (!should.ok() || values[i] == expected),
				"%s: %s", batch[i].ToString(true).c_str(),
				statuses[i].ToString().c_str());
		}
	}
}

void check_scans(PushdownDB *db, const std::vector<std::string> &keys)
{
	std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(ReadOptions()));
	std::unique_ptr<rocksdb::Iterator> plain(db->GetBaseDB()->NewIterator(ReadOptions()));

	for (size_t key = 0; key < keys.size(); key += 40) {
		scan->Seek(keys[key]);
		plain->Seek(keys[key]);
		for (size_t step = 0; step < STEPS && plain->Valid(); step++) {
			CHECK(scan->Valid() && scan->key() == plain->key() &&
					scan->value() == plain->value(),
				"step %zu from %s", step, Slice(keys[key]).ToString(true).c_str());
			scan->Next();
			plain->Next();
		}
		CHECK(scan->Valid() == plain->Valid(), "the end");
		check_ok(scan->status(), "scanning");
	}
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);
	rocksdb::DBOptions options;
	std::vector<rocksdb::ColumnFamilyDescriptor> families;
	std::vector<rocksdb::ColumnFamilyHandle *> handles;
	bpf_of::PushdownOptions pushdown;
	PushdownDB *db;

	/* As it was made. */
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
	check_ok(PushdownDB::Open(options, pushdown, where.directory, families, &handles, &db),
		"opening");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const std::vector<std::string> keys = some_keys(db->GetBaseDB());

	check_gets(db, keys);
	check_scans(db, keys);
	std::printf("%s:", where.directory.c_str());
	print_ways(*db);
	const bpf_of::PushdownStats stats = db->stats();

	CHECK(chains(stats) > READS / 2 && stats.seeks > 10, "%s", db->last_error().c_str());
	CHECK(where.url.empty() || stats[bpf_of::Way::kTarget] > READS / 2, "%s",
		db->last_error().c_str());
	for (rocksdb::ColumnFamilyHandle *handle : handles)
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving back a handle");
	delete db;
	return 0;
}
