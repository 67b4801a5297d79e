/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Merges, with one thread: every answer must be that of a model and of the plain library, with operands
 * in memtables, in one table, in blocks of a table and in several tables, with and without a value
 * below them.
 */
#include "database.h"
#include "read_scope.h"

#include <rocksdb/convenience.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/snapshot.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/utilities/options_util.h>

#include <map>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::WriteOptions;

namespace {

constexpr uint64_t KEYS = 1500;
/* Keys written so often that their operands fill several blocks. */
constexpr uint64_t HOT = 40;

using Model = std::map<std::string, std::string>;

std::string key_of(uint64_t number)
{
	char text[32];

	std::snprintf(text, sizeof(text), number % 3 ? "user%06llu" : "user%06lluxyz",
		static_cast<unsigned long long>(number));
	return text;
}

/* Appends, so that another order or number of operands gives another value. Compaction keeps operands
 * apart. */
class Appends : public rocksdb::MergeOperator {
    public:
	/* ShouldMerge() is true from this many operands on; 0: never. */
	explicit Appends(size_t enough) : enough_(enough) {}

	bool FullMergeV2(const MergeOperationInput &in, MergeOperationOutput *out) const override
	{
		/* It may read the database. */
		CHECK(!bpf_of::ReadScope::current(), "the operator is called within a scope");
		if (in.key == "broken")
			return false;
		/* A single operand is the value. */
		if (!in.existing_value && in.operand_list.size() == 1) {
			out->existing_operand = in.operand_list[0];
			return true;
		}
		out->new_value = in.existing_value ? in.existing_value->ToString() : "";
		for (const Slice &operand : in.operand_list)
			out->new_value += operand.ToString();
		return true;
	}
	bool ShouldMerge(const std::vector<Slice> &operands) const override
	{
		CHECK(!bpf_of::ReadScope::current(), "the operator is called within a scope");
		return enough_ && operands.size() >= enough_;
	}
	const char *Name() const override { return "Appends"; }

    private:
	const size_t enough_;
};

struct Shape {
	Kind kind;
	/* 0: no block cache. */
	size_t cache_bytes;
	bool caches_indices;
	size_t enough;
};

rocksdb::Options options_of(const Shape &shape)
{
	rocksdb::Options options = small_tables(shape.kind);
	auto *table = options.table_factory->GetOptions<rocksdb::BlockBasedTableOptions>();

	options.merge_operator = std::make_shared<Appends>(shape.enough);
	/* Flushes and compactions merge all operands that they find: where a Get does not, its result
	 * would depend on them. */
	if (shape.enough) {
		options.disable_auto_compactions = true;
		options.write_buffer_size = 4 << 20;
	}
	if (shape.cache_bytes) {
		table->no_block_cache = false;
		table->block_cache = rocksdb::NewLRUCache(shape.cache_bytes, 0);
		table->filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
		table->cache_index_and_filter_blocks = shape.caches_indices;
	}
	return options;
}

/* Changes one key, in the database and in the model. */
void change(PushdownDB *db, Model &model, Random &random)
{
	const uint64_t number = random.below(4) == 0 ? random.below(HOT) : random.below(KEYS);
	const std::string key = key_of(number), value = std::to_string(random.below(100)) + ",";
	const uint64_t what = random.below(number < HOT ? 400 : 12);

	if (what == 0) {
		check_ok(db->Delete(WriteOptions(), key), "deleting");
		model.erase(key);
	} else if (what == 1) {
		check_ok(db->Put(WriteOptions(), key, value), "writing");
		model[key] = value;
	} else {
		check_ok(db->Merge(WriteOptions(), key, value), "merging");
		model[key] += value;
	}
}

/* Ingests operands in a table. */
void ingest(PushdownDB *db, Model &model, const std::string &directory, Random &random)
{
	rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), db->GetOptions());
	const std::string path = directory + "/merges.sst";
	const uint64_t first = random.below(KEYS - 150);
	Model added;

	for (uint64_t number = first; number < first + 150; number++)
		added[key_of(number)] = "i" + std::to_string(number) + ",";
	check_ok(writer.Open(path), "making a table");
	for (const auto &entry : added) {
		check_ok(writer.Merge(entry.first, entry.second), "adding to a table");
		model[entry.first] += entry.second;
	}
	check_ok(writer.Finish(), "finishing a table");
	rocksdb::IngestExternalFileOptions how;

	how.move_files = true;
	check_ok(db->IngestExternalFile({path}, how), "ingesting");
}

/* Checks that both read the same, and without a limit of operands the model's value. */
void check_key(PushdownDB *db, const Model *model, const std::string &key, const Status &status,
	const std::string &value, const ReadOptions &options)
{
	std::string plain;
	const Status wanted = db->GetBaseDB()->Get(options, key, &plain);

	CHECK(status.code() == wanted.code() && (!status.ok() || value == plain), "%s: %s '%s' instead of %s '%s'",
		key.c_str(), status.ToString().c_str(), value.c_str(), wanted.ToString().c_str(),
		plain.c_str());
	if (!model)
		return;
	const auto found = model->find(key);

	CHECK(found == model->end() ? status.IsNotFound() : status.ok() && value == found->second,
		"%s: %s '%s'", key.c_str(), status.ToString().c_str(), value.c_str());
}

void check_all(PushdownDB *db, const Model *model, const rocksdb::Snapshot *at)
{
	ReadOptions options;
	std::vector<std::string> names;

	options.snapshot = at;
	for (uint64_t number = 0; number < KEYS + 20; number += number < HOT ? 1 : 3) {
		std::string value;

		names.push_back(key_of(number));
		const Status status = db->Get(options, names.back(), &value);

		check_key(db, model, names.back(), status, value, options);
	}
	const std::vector<Slice> keys(names.begin(), names.end());
	std::vector<rocksdb::PinnableSlice> values(keys.size());
	std::vector<Status> statuses(keys.size());

	db->MultiGet(options, db->DefaultColumnFamily(), keys.size(), keys.data(), values.data(),
		statuses.data());
	for (size_t i = 0; i < keys.size(); i++)
		check_key(db, model, names[i], statuses[i], values[i].ToString(), options);
}

void check_stats(const Place &place, const Shape &shape, const PushdownDB &db)
{
	const bpf_of::PushdownStats stats = db.stats();
	const uint64_t settled = chains(stats) + stats[ReadPath::kNoTable];
	uint64_t others = 0;

	std::printf("merges, %s:", shape.kind.name);
	print_ways(db);
	for (const uint64_t count : stats.gets)
		others += count;
	others -= settled + stats[ReadPath::kMemory];
	/* Without an index it is unknown whether operands in memory belong to the table where the
	 * search ends. */
	if (shape.kind.index_bytes_max == 0)
		others -= stats[ReadPath::kDeclined];
	CHECK(settled > others, "chains answered too few reads");
	CHECK(place.url.empty() || stats[ReadPath::kTarget] > others, "the target answered too few reads");
	CHECK(stats[ReadPath::kFamily] == 0, "the family is not pushed down");
	/* On this machine a chain fails if RocksDB has just deleted one of its tables. */
	CHECK(place.url.empty() || stats[ReadPath::kFailed] == 0, "%s", db.last_error().c_str());
}

void test_answers(const Place &place, const Shape &shape)
{
	PushdownDB *db = open_database(place, shape.kind, options_of(shape), "merges");
	Model model, old_model;
	const rocksdb::Snapshot *snapshot = nullptr;
	Random random(11);

	for (int round = 0; round < 7; round++) {
		for (int i = 0; i < 2500; i++)
			change(db, model, random);
		if (round == 1)
			check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		if (round == 2)
			ingest(db, model, place.directory, random);
		if (round == 3) {
			snapshot = db->GetSnapshot();
			old_model = model;
		}
		if (round == 5)
			check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr),
				"compacting");
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		check_all(db, shape.enough ? nullptr : &model, nullptr);
		if (snapshot)
			check_all(db, shape.enough ? nullptr : &old_model, snapshot);
	}
	db->ReleaseSnapshot(snapshot);
	check_stats(place, shape, *db);
	delete db;
}

Status get(PushdownDB *db, const std::string &key, std::string *value)
{
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const Status status = db->Get(ReadOptions(), key, value);

	check_key(db, nullptr, key, status, *value, ReadOptions());
	return status;
}

void flush(PushdownDB *db)
{
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
}

/* Single keys, for which the exact counts are known. */
void test_each(const Place &place, const Shape &shape)
{
	rocksdb::Options options = options_of(shape);
	std::string value;

	options.disable_auto_compactions = true;
	PushdownDB *db = open_database(place, shape.kind, options, "each");

	/* A search stops at a deletion: it does not meet the value below, but the operand above. */
	check_ok(db->Put(WriteOptions(), "deleted", "old"), "writing");
	flush(db);
	check_ok(db->Delete(WriteOptions(), "deleted"), "deleting");
	flush(db);
	check_ok(db->Merge(WriteOptions(), "deleted", "new"), "merging");
	check_ok(get(db, "deleted", &value), "reading");
	CHECK(value == "new" && chains(db->stats()) == 1, "'%s'", value.c_str());

	/* Operands in memory, and no table with the key. */
	check_ok(db->Merge(WriteOptions(), "deleted~", "memory"), "merging");
	check_ok(get(db, "deleted~", &value), "reading");
	CHECK(value == "memory" && chains(db->stats()) == 1, "'%s'", value.c_str());

	/* More operands than an answer holds. */
	const std::string piece(900, 'p');

	for (int i = 0; i < 16; i++) {
		check_ok(db->Merge(WriteOptions(), "many", piece + std::to_string(i)), "merging");
		if (i == 3)
			flush(db);
	}
	flush(db);
	check_ok(get(db, "many", &value), "reading");
	CHECK(db->stats()[ReadPath::kDeclined] == 1, "operands that are too long");

	/* RocksDB reports the operator's failure. */
	check_ok(db->Merge(WriteOptions(), "broken", "one"), "merging");
	flush(db);
	CHECK(get(db, "broken", &value).IsCorruption(), "an operator that fails");
	CHECK(db->stats()[ReadPath::kDeclined] == 2, "an operator that fails");

	/* Operands under a range deletion in memory, and in a table. */
	check_ok(db->Merge(WriteOptions(), "ranged", "below"), "merging");
	flush(db);
	check_ok(db->DeleteRange(WriteOptions(), db->DefaultColumnFamily(), "r", "s"), "deleting a range");
	check_ok(db->Merge(WriteOptions(), "ranged", "above"), "merging");
	check_ok(get(db, "ranged", &value), "reading");
	CHECK(value == "above", "'%s'", value.c_str());
	flush(db);
	check_ok(get(db, "ranged", &value), "reading");
	CHECK(value == "above", "'%s'", value.c_str());
	CHECK(db->stats()[ReadPath::kTable] == 1, "operands on both sides of a range deletion");
	delete db;
}

/* With few tables in level 0 and none below, RocksDB does not compare ranges: it stops at a table that
 * cannot have the key, after operands that a compaction may have moved behind it. */
void test_end_outside(const Place &place, const Shape &shape)
{
	rocksdb::Options options = options_of(shape);
	std::string value;

	options.disable_auto_compactions = true;
	PushdownDB *db = open_database(place, shape.kind, options, "outside");

	check_ok(db->Put(WriteOptions(), "key", "value"), "writing");
	flush(db);
	check_ok(db->Put(WriteOptions(), "z", "another"), "writing");
	flush(db);
	check_ok(get(db, "key", &value), "reading");
	CHECK(value == "value" && chains(db->stats()) == 1, "'%s'", value.c_str());
	check_ok(db->Merge(WriteOptions(), "key", ",operand"), "merging");
	check_ok(get(db, "key", &value), "reading");
	CHECK(value == "value,operand", "'%s'", value.c_str());
	CHECK(db->stats()[ReadPath::kDeclined] == 1, "RocksDB compares ranges also with few tables in one level");
	delete db;
}

/* The options file names the program's operator, with its own options. */
void test_options_file(const Place &place, const Shape &shape)
{
	rocksdb::ConfigOptions config;
	rocksdb::Options options = options_of(shape);
	std::string value;

	check_ok(rocksdb::MergeOperator::CreateFromString(
			 config, "id=StringAppendOperator;delimiter=+", &options.merge_operator),
		"making an operator");
	PushdownDB *db = open_database(place, shape.kind, options, "options");

	check_ok(db->Put(WriteOptions(), "key", "a"), "writing");
	flush(db);
	check_ok(db->Merge(WriteOptions(), "key", "b"), "merging");
	check_ok(get(db, "key", &value), "reading");
	CHECK(value == "a+b" && chains(db->stats()) == 1, "'%s'", value.c_str());
	const std::string path = db->GetName();

	delete db;
	rocksdb::DBOptions read;
	std::vector<rocksdb::ColumnFamilyDescriptor> families;

	config.ignore_unknown_options = true;
	config.env = rocksdb::Env::Default();
	check_ok(rocksdb::LoadLatestOptions(config, path, &read, &families), "reading options");
	rocksdb::Options again(read, families[0].options);

	again.env = rocksdb::Env::Default();
	again.table_factory = options.table_factory;
	bpf_of::PushdownOptions pushdown;

	check_ok(PushdownDB::Open(again, pushdown, path, &db), "opening it again");
	check_ok(db->Merge(WriteOptions(), "key", "c"), "merging");
	check_ok(get(db, "key", &value), "reading");
	CHECK(value == "a+b+c", "'%s'", value.c_str());
	delete db;
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);
	const Shape shapes[] = {
		{{"Snappy", rocksdb::kSnappyCompression, BINARY, 5, size_t{1} << 30}, 0, false, 0},
		{{"index at the target", rocksdb::kNoCompression, PARTITIONED, 5, 0}, 0, false, 0},
		{{"a small cache", rocksdb::kLZ4Compression, BINARY, 5, size_t{1} << 30}, 24 << 10, false, 0},
		{{"a small cache, also of indices", rocksdb::kNoCompression, BINARY, 5, size_t{1} << 30}, 48 << 10,
			true, 0},
		{{"partitions in a small cache", rocksdb::kZSTD, PARTITIONED, 4, size_t{1} << 30}, 48 << 10, true, 0},
		{{"five operands are enough", rocksdb::kZSTD, BINARY, 4, size_t{1} << 30}, 24 << 10, false, 5},
	};

	for (Shape shape : shapes) {
		for (const auto speculate : {bpf_of::Speculate::kNever, bpf_of::Speculate::kAlways}) {
			shape.kind.speculate = speculate;
			test_answers(where, shape);
			std::filesystem::remove_all(where.directory + "/merges");
		}
	}
	test_each(where, shapes[0]);
	test_end_outside(where, shapes[0]);
	test_options_file(where, shapes[0]);
	return 0;
}
