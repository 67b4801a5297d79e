/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Objects on top of the database, and other ways of opening and closing it: transactions,
 * WaitForCompact() with close_db, and families of a database that is open for reading only.
 */
#include "database.h"

#include <rocksdb/utilities/transaction.h>
#include <rocksdb/utilities/transaction_db.h>

#include <vector>

using bpf_of::PushdownDB;
using rocksdb::ColumnFamilyDescriptor;
using rocksdb::ColumnFamilyHandle;
using rocksdb::ReadOptions;
using rocksdb::Status;
using rocksdb::Transaction;
using rocksdb::TransactionDB;
using rocksdb::WriteOptions;

namespace {

constexpr uint64_t KEYS = 3000;
const Kind KIND = {"wrapped", rocksdb::kNoCompression, BINARY, 5, size_t{1} << 30};

std::string key_of(uint64_t number)
{
	return "key" + std::to_string(1000000 + number);
}

bpf_of::PushdownOptions at(const Place &place)
{
	bpf_of::PushdownOptions pushdown;

	pushdown.url = place.url;
	pushdown.device = place.device;
	pushdown.sample_rate = 0;
	return pushdown;
}

void write_in_transactions(TransactionDB *db)
{
	for (uint64_t number = 0; number < KEYS; number++) {
		const std::unique_ptr<Transaction> transaction(db->BeginTransaction(WriteOptions()));
		std::string value;

		check_ok(transaction->Put(key_of(number), "value " + std::to_string(number)), "writing");
		check_ok(transaction->Get(ReadOptions(), key_of(number), &value), "reading its own write");
		check_ok(number % 3 ? transaction->Commit() : transaction->Rollback(), "ending a transaction");
	}
}

/* The second transaction that wants a key waits until it times out. */
void check_conflict(TransactionDB *db)
{
	rocksdb::TransactionOptions soon;
	std::string value;

	soon.lock_timeout = 10;
	const std::unique_ptr<Transaction> first(db->BeginTransaction(WriteOptions(), soon));
	const std::unique_ptr<Transaction> second(db->BeginTransaction(WriteOptions(), soon));

	check_ok(first->GetForUpdate(ReadOptions(), key_of(1), &value), "locking");
	CHECK(value == "value 1" && second->Put(key_of(1), "").IsTimedOut(), "two have a lock");
}

/* A TransactionDB on top: chains read the writes of its transactions. */
void test_transactions(const Place &place)
{
	const std::string path = place.directory + "/wrapped";
	rocksdb::DBOptions options = small_tables(KIND);
	std::vector<ColumnFamilyDescriptor> families = {
		{rocksdb::kDefaultColumnFamilyName, small_tables(KIND)}};
	std::vector<ColumnFamilyHandle *> handles;
	std::vector<size_t> compacted;
	PushdownDB *db;
	TransactionDB *wrapped;

	std::filesystem::remove_all(path);
	TransactionDB::PrepareWrap(&options, &families, &compacted);
	check_ok(PushdownDB::Open(options, at(place), path, families, &handles, &db), "opening");
	check_ok(TransactionDB::WrapStackableDB(db, rocksdb::TransactionDBOptions(), compacted, handles, &wrapped),
		"putting transactions on top");
	write_in_transactions(wrapped);
	check_ok(wrapped->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	for (uint64_t number = 0; number < KEYS; number++) {
		std::string value;
		const Status status = wrapped->Get(ReadOptions(), key_of(number), &value);

		CHECK(number % 3 ? status.ok() && value == "value " + std::to_string(number) : status.IsNotFound(),
			"%s: %s", key_of(number).c_str(), status.ToString().c_str());
	}
	check_conflict(wrapped);
	print_ways(*db);
	CHECK(chains(db->stats()) > KEYS / 2, "%s", db->last_error().c_str());
	check_ok(wrapped->DestroyColumnFamilyHandle(handles[0]), "giving a handle back");
	delete wrapped;
}

/* Uses the database of test_transactions(). */
void test_reading_only(const Place &place)
{
	std::vector<ColumnFamilyHandle *> handles;
	PushdownDB *db;
	std::string value;

	check_ok(PushdownDB::OpenForReadOnly(small_tables(KIND), at(place), place.directory + "/wrapped",
			 {{rocksdb::kDefaultColumnFamilyName, small_tables(KIND)}}, &handles, &db),
		"opening for reading");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	ColumnFamilyHandle *const only = handles[0];

	CHECK(db->CreateColumnFamilies(small_tables(KIND), {"a", "b"}, &handles).IsNotSupported() && handles.empty(),
		"families were created");
	CHECK(db->DropColumnFamily(only).IsNotSupported(), "a family was dropped");
	check_ok(db->Get(ReadOptions(), only, key_of(1), &value), "reading");
	CHECK(value == "value 1", "%s", value.c_str());
	check_ok(db->DestroyColumnFamilyHandle(only), "giving a handle back");
	delete db;
}

#if ROCKSDB_MAJOR >= 9
/* With a family that the tracker follows by a handle of its own. */
void test_closing_after_compactions(const Place &place)
{
	const std::string path = place.directory + "/closed";
	rocksdb::WaitForCompactOptions closes;
	rocksdb::DBOptions options = small_tables(KIND);
	std::vector<ColumnFamilyHandle *> handles;
	PushdownDB *db;

	std::filesystem::remove_all(path);
	options.create_missing_column_families = true;
	closes.close_db = true;
	check_ok(PushdownDB::Open(options, at(place), path,
			 {{rocksdb::kDefaultColumnFamilyName, small_tables(KIND)}, {"other", small_tables(KIND)}},
			 &handles, &db),
		"opening");
	for (uint64_t number = 0; number < KEYS; number++)
		check_ok(db->Put(WriteOptions(), handles[number % 2], key_of(number), "value"), "writing");
	for (ColumnFamilyHandle *handle : handles)
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving a handle back");
	check_ok(db->WaitForCompact(closes), "waiting");
	delete db;
}
#endif

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);

	test_transactions(where);
	test_reading_only(where);
#if ROCKSDB_MAJOR >= 9
	test_closing_after_compactions(where);
#endif
	return 0;
}
