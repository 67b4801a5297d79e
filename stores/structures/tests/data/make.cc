// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Writes a database whose one table is leveldb.ldb or rocksdb.sst. 150 keys have a first value
// (sequence numbers from 1), every third a second one, and every fifth is deleted at last.
//
//     c++ -std=c++17 -DLEVELDB make.cc -o make -lleveldb    # LevelDB 1.23
//     c++ -std=c++17 make.cc -o make -lrocksdb              # RocksDB 7.8
//     ./make db
#include <cstdio>
#include <cstdlib>
#ifdef LEVELDB
#include <leveldb/db.h>
namespace store = leveldb;
#else
#include <rocksdb/db.h>
#include <rocksdb/table.h>
namespace store = rocksdb;
#endif

static void must(const store::Status &status)
{
	if (status.ok())
		return;
	fprintf(stderr, "%s\n", status.ToString().c_str());
	exit(1);
}

int main(int, char **argv)
{
	store::Options options;
	options.create_if_missing = true;
	options.compression = store::kNoCompression;
#ifdef LEVELDB
	options.block_size = 256;
#else
	store::BlockBasedTableOptions table;
	table.format_version = 2;
	table.checksum = store::kCRC32c;
	table.block_size = 256;
	options.table_factory.reset(store::NewBlockBasedTableFactory(table));
	options.db_host_id = "";
#endif
	store::DB *db;
	must(store::DB::Open(options, argv[1], &db));
	const auto put = [&](const char *format, int number) {
		char key[16], value[32];

		snprintf(key, sizeof(key), "key%05d", number);
		snprintf(value, sizeof(value), format, number);
		must(db->Put({}, key, value));
	};
	for (int i = 0; i < 150; i++)
		put("first %d", i);
	// Otherwise old versions do not reach the table.
	const auto *snapshot = db->GetSnapshot();
	for (int i = 0; i < 150; i += 3)
		put("second %d", i);
	for (int i = 0; i < 150; i += 5) {
		char key[16];

		snprintf(key, sizeof(key), "key%05d", i);
		must(db->Delete({}, key));
	}
#ifdef LEVELDB
	db->CompactRange(nullptr, nullptr);
#else
	must(db->Flush({}));
#endif
	db->ReleaseSnapshot(snapshot);
	delete db;
}
