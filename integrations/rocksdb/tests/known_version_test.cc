/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A thread knows its version until RocksDB gives it another. */
#include "known_version.h"

#include "check.h"
#include "open.h"

#include <rocksdb/db.h>

#include <functional>
#include <memory>
#include <thread>

using bpf_of::is_known_version;
using bpf_of::know_version;

namespace {

/* A thread that uses more than eight families knows the version of each. */
constexpr uint64_t FAMILY = 7, OTHER = 15, VERSION = 100;

void get(rocksdb::DB *db)
{
	std::string value;

	check_ok(db->Get(rocksdb::ReadOptions(), "key", &value), "reading");
}

void flush(rocksdb::DB *db)
{
	check_ok(db->Put(rocksdb::WriteOptions(), "key", "value"), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
}

void in_a_thread(const std::function<void()> &what)
{
	std::thread(what).join();
}

void test_thread(rocksdb::DB *db)
{
	know_version(FAMILY, VERSION);
	CHECK(!is_known_version(FAMILY, VERSION), "RocksDB has never said that it counts");
	get(db);
	CHECK(!is_known_version(FAMILY, VERSION), "another version was current then");
	know_version(FAMILY, VERSION);
	know_version(OTHER, VERSION + 1);
	for (int i = 0; i < 3; i++) {
		get(db);
		CHECK(is_known_version(FAMILY, VERSION), "no new version was installed");
		CHECK(is_known_version(OTHER, VERSION + 1), "no new version was installed");
	}
	CHECK(!is_known_version(FAMILY, VERSION + 1), "another version");
	CHECK(!is_known_version(OTHER, VERSION), "of another family");
	in_a_thread([] { CHECK(!is_known_version(FAMILY, VERSION), "another thread"); });
	in_a_thread([db] { flush(db); });
	get(db);
	CHECK(!is_known_version(FAMILY, VERSION), "there is a new version");
	CHECK(!is_known_version(OTHER, VERSION + 1), "the new version may be of any family");
}

} /* namespace */

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: known_version_test DIRECTORY");
	rocksdb::Options options;
	rocksdb::DB *opened = nullptr;

	options.create_if_missing = true;
	options.statistics = bpf_of::watch_versions(nullptr);
	check_ok(bpf_of::open_database(&opened, options, argv[1]), "opening");
	const std::unique_ptr<rocksdb::DB> db(opened);

	in_a_thread([&] { flush(db.get()); });
	in_a_thread([&] { test_thread(db.get()); });
	check_ok(db->Close(), "closing");
	return 0;
}
