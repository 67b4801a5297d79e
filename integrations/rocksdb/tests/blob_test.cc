/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Values in blob files, with one thread: every answer must be that of a model and of the plain
 * library. */
#include "database.h"

#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/snapshot.h>
#include <unistd.h>

#include <algorithm>
#include <map>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::WriteOptions;

namespace {

constexpr uint64_t KEYS = 1200;
/* Shorter values are in the tables. */
constexpr uint64_t BLOB_BYTES_MIN = 60;

using Model = std::map<std::string, std::string>;

std::string key_of(uint64_t number)
{
	return "key" + std::to_string(100000 + number * 7 % KEYS) + std::string(number % 5, 'k');
}

/* Values of all lengths; some are compressible, and most begin in the same way. */
std::string value_of(Random &random)
{
	const size_t length = random.below(20) == 0 ? 20000 : random.below(800);
	std::string value = std::to_string(random.next());

	while (value.size() < length)
		value += random.below(4) ? "........" : std::to_string(random.next());
	return value;
}

rocksdb::Options options_of(const Kind &kind, rocksdb::CompressionType blob_compression)
{
	rocksdb::Options options = small_tables(kind);

	options.enable_blob_files = true;
	options.min_blob_size = BLOB_BYTES_MIN;
	options.blob_file_size = 64 << 10;
	options.blob_compression_type = blob_compression;
	options.enable_blob_garbage_collection = true;
	options.blob_garbage_collection_age_cutoff = 0.7;
	check_ok(rocksdb::MergeOperator::CreateFromString(
			 rocksdb::ConfigOptions(), "id=StringAppendOperator;delimiter=,", &options.merge_operator),
		"making an operator");
	return options;
}

void change(PushdownDB *db, Model &model, Random &random)
{
	const std::string key = key_of(random.below(KEYS)), value = value_of(random);
	const uint64_t what = random.below(10);

	if (what == 0) {
		check_ok(db->Delete(WriteOptions(), key), "deleting");
		model.erase(key);
	} else if (what == 1) {
		check_ok(db->Merge(WriteOptions(), key, "merged"), "merging");
		model[key] += model[key].empty() ? "merged" : ",merged";
	} else {
		check_ok(db->Put(WriteOptions(), key, value), "writing");
		model[key] = value;
	}
}

void check_value(const Model &model, const std::string &key, const Status &status, const Slice &value)
{
	const auto found = model.find(key);

	CHECK(found == model.end() ? status.IsNotFound() : status.ok() && value == found->second,
		"%s: %s, %zu bytes", key.c_str(), status.ToString().c_str(), value.size());
}

void check_all(PushdownDB *db, const Model &model, const rocksdb::Snapshot *at)
{
	ReadOptions options;
	std::vector<std::string> names;

	options.snapshot = at;
	for (uint64_t number = 0; number < KEYS; number += 2) {
		rocksdb::PinnableSlice value;

		names.push_back(key_of(number));
		const Status status = db->Get(options, db->DefaultColumnFamily(), names.back(), &value);

		check_value(model, names.back(), status, value);
	}
	const std::vector<Slice> keys(names.begin(), names.end());
	std::vector<rocksdb::PinnableSlice> values(keys.size());
	std::vector<Status> statuses(keys.size());

	db->MultiGet(options, db->DefaultColumnFamily(), keys.size(), keys.data(), values.data(),
		statuses.data());
	for (size_t i = 0; i < keys.size(); i++)
		check_value(model, names[i], statuses[i], values[i]);
}

void test_answers(const Place &place, const Kind &kind, rocksdb::CompressionType blob_compression)
{
	PushdownDB *db = open_database(place, kind, options_of(kind, blob_compression), "blobs");
	Model model, old_model;
	const rocksdb::Snapshot *snapshot = nullptr;
	Random random(5);

	for (int round = 0; round < 6; round++) {
		for (int i = 0; i < 1500; i++)
			change(db, model, random);
		if (round == 2) {
			snapshot = db->GetSnapshot();
			old_model = model;
		}
		if (round != 3)
			check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		/* Collects garbage: blobs move to other files. */
		if (round == 4)
			check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr),
				"compacting");
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		check_all(db, model, nullptr);
		if (snapshot)
			check_all(db, old_model, snapshot);
	}
	db->ReleaseSnapshot(snapshot);
	const bpf_of::PushdownStats stats = db->stats();

	std::printf("blobs, %s, %llu of them:", kind.name, static_cast<unsigned long long>(stats.blobs));
	print_ways(*db);
	CHECK(stats.blobs > chains(stats) / 3 && chains(stats) > 1000, "few blobs were read behind chains");
	CHECK(place.url.empty() || stats[ReadPath::kTarget] > stats[ReadPath::kHere], "few at the target");
	/* On this machine a chain fails if RocksDB has just deleted one of its tables. */
	CHECK(place.url.empty() || stats[ReadPath::kFailed] == 0, "%s", db->last_error().c_str());
	/* Operands may end a block of a table whose index the target searches. */
	CHECK(stats[ReadPath::kDeclined] == 0 || kind.index_bytes_max == 0, "blobs were declined");
	delete db;
}

/* RocksDB reads values that are too long for chains. */
void test_long(const Place &place, const Kind &kind)
{
	PushdownDB *db = open_database(place, kind, options_of(kind, rocksdb::kNoCompression), "blobs");
	const std::string longest(1 << 20, 'l'), longer = longest + "l";
	std::string value;

	check_ok(db->Put(WriteOptions(), "longest", longest), "writing");
	check_ok(db->Put(WriteOptions(), "longer", longer), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_ok(db->Get(ReadOptions(), "longest", &value), "reading");
	CHECK(value == longest && db->stats().blobs == 1 && chains(db->stats()) == 1, "a blob of 1 MiB");
	check_ok(db->Get(ReadOptions(), "longer", &value), "reading");
	CHECK(value == longer && db->stats()[ReadPath::kDeclined] == 1, "a blob that is longer");
	delete db;
}

/* Blobs with a compression that chains do not know are not fetched. */
void test_unknown_compression(const Place &place, const Kind &kind)
{
	const std::vector<rocksdb::CompressionType> supported = rocksdb::GetSupportedCompressions();

	CHECK(std::find(supported.begin(), supported.end(), rocksdb::kZlibCompression) != supported.end(),
		"this RocksDB has no zlib, which the test needs");
	PushdownDB *db = open_database(place, kind, options_of(kind, rocksdb::kZlibCompression), "blobs");
	const std::string wanted(1000, 'z');
	std::string value;

	check_ok(db->Put(WriteOptions(), "key", wanted), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_ok(db->Get(ReadOptions(), "key", &value), "reading");
	CHECK(value == wanted, "%zu bytes", value.size());
	CHECK(db->stats()[ReadPath::kDeclined] == 1 && db->stats().blobs == 0, "it was fetched");
	delete db;
}

/* Flips each byte of a record: no read may return a value that was not written. */
void test_damage(const Place &place, const Kind &kind)
{
	PushdownDB *db = open_database(place, kind, options_of(kind, rocksdb::kNoCompression), "blobs");
	const std::string key = "key", wanted(100, 'v');
	const size_t header_bytes = 30, record_bytes = 32 + key.size() + wanted.size();
	std::string path;

	check_ok(db->Put(WriteOptions(), key, wanted), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	for (const auto &entry : std::filesystem::directory_iterator(db->GetName())) {
		if (entry.path().extension() == ".blob")
			path = entry.path();
	}
	const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
	uint64_t failed = 0;

	CHECK(fd >= 0, "%s cannot be opened", path.c_str());
	for (size_t at = header_bytes; at < header_bytes + record_bytes; at++) {
		std::string value;
		char byte, flipped;

		CHECK(::pread(fd, &byte, 1, at) == 1, "reading a blob file");
		flipped = byte ^ 4;
		CHECK(::pwrite(fd, &flipped, 1, at) == 1, "damaging a blob file");
		const Status status = db->Get(ReadOptions(), key, &value);

		CHECK(status.IsCorruption(), "byte %zu: %s '%s'", at, status.ToString().c_str(), value.c_str());
		CHECK(db->stats()[ReadPath::kFailed] == ++failed, "byte %zu: %s", at, db->last_error().c_str());
		CHECK(::pwrite(fd, &byte, 1, at) == 1, "mending a blob file");
		check_ok(db->Get(ReadOptions(), key, &value), "reading");
		CHECK(value == wanted, "'%s'", value.c_str());
	}
	CHECK(db->last_error().find("blob of 100 bytes") != std::string::npos, "%s", db->last_error().c_str());
	::close(fd);
	delete db;
	std::printf("damage: %llu places\n", static_cast<unsigned long long>(failed));
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);
	Kind kinds[] = {
		{"none", rocksdb::kSnappyCompression, BINARY, 5, size_t{1} << 30},
		{"Snappy, index at the target", rocksdb::kNoCompression, PARTITIONED, 5, 0},
		{"LZ4", rocksdb::kLZ4Compression, PARTITIONED, 4, size_t{1} << 30},
		{"Zstandard", rocksdb::kZSTD, BINARY, 5, size_t{1} << 30},
	};

	for (const auto speculate : {bpf_of::Speculate::kNever, bpf_of::Speculate::kAlways}) {
		for (Kind &kind : kinds)
			kind.speculate = speculate;
		test_answers(where, kinds[0], rocksdb::kNoCompression);
		test_answers(where, kinds[1], rocksdb::kSnappyCompression);
		test_answers(where, kinds[2], rocksdb::kLZ4Compression);
		test_answers(where, kinds[3], rocksdb::kZSTD);
	}
	kinds[0].speculate = bpf_of::Speculate::kWhenFaster;
	test_long(where, kinds[0]);
	test_unknown_compression(where, kinds[0]);
	/* A target may have read a block before it was damaged. */
	if (where.url.empty())
		test_damage(where, kinds[0]);
	std::filesystem::remove_all(where.directory + "/blobs");
	return 0;
}
