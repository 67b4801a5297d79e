/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "database.h"

#include "check.h"
#include "open.h"

#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/metadata.h>
#include <rocksdb/perf_context.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace bench {

using rocksdb::Slice;
using rocksdb::Status;

namespace {

namespace fs = std::filesystem;

/* Number of levels with tables. */
constexpr size_t LEVELS = 5;
constexpr double BLOOM_BITS_PER_KEY = 10;

/* Memory for keys being loaded, before they become a table. */
constexpr size_t LOADING_BUFFER_BYTES = 64 << 20;

/* Keys are loaded in steps of this prime, so that the most frequent keys of Zipf's distributions, which
 * have the first indices, are in tables of all ages. */
constexpr uint64_t STRIDE = 1000000007;

/* Approximate size of a blob's place in a table. */
constexpr uint32_t BLOB_PLACE_BYTES = 12;

/* Bytes of a key and its value in a table. */
uint64_t entry_bytes(const Shape &shape)
{
	return KEY_BYTES + (shape.values == Values::kBlob ? BLOB_PLACE_BYTES : shape.value_bytes);
}

uint64_t bytes_of(const Shape &shape)
{
	return shape.keys * entry_bytes(shape);
}

/* The operand that is merged onto the value of a key. */
std::string operand_of(const Slice &key)
{
	return std::string(key.data(), 4);
}

class Appends : public rocksdb::AssociativeMergeOperator {
    public:
	bool Merge(const Slice &, const Slice *before, const Slice &operand, std::string *after,
		rocksdb::Logger *) const override
	{
		if (before)
			after->assign(before->data(), before->size());
		after->append(operand.data(), operand.size());
		return true;
	}
	const char *Name() const override { return "Appends"; }
};

std::string shape_path(const std::string &path)
{
	return path + "/bpfof-bench";
}

Status store_shape(const std::string &path, const Shape &shape)
{
	const std::string to = shape_path(path);
	std::ofstream file(to);

	file << shape.keys << ' ' << shape.value_bytes << ' ' << name(shape.values) << '\n';
	file.close();
	return file ? Status::OK() : Status::IOError("writing " + to);
}

std::unique_ptr<rocksdb::DB> opened(
	const rocksdb::Options &options, const std::string &path, Status *status)
{
	rocksdb::DB *db = nullptr;

	*status = bpf_of::open_database(&db, options, path);
	return std::unique_ptr<rocksdb::DB>(db);
}

Status put(rocksdb::DB *db, const Shape &shape, bool is_operand, uint64_t index)
{
	rocksdb::WriteOptions options;
	const std::string key = key_of(index);

	options.disableWAL = true;
	return is_operand ? db->Merge(options, key, operand_of(key))
			  : db->Put(options, key, value_of(key, shape.value_bytes));
}

/* Moves all tables of level 0 to another level, as tables of the ordinary size. */
Status compact_into(rocksdb::DB *db, int level)
{
	rocksdb::CompactionOptions options;
	rocksdb::ColumnFamilyMetaData metadata;
	std::vector<std::string> tables;

	db->GetColumnFamilyMetaData(&metadata);
	for (const rocksdb::SstFileMetaData &table : metadata.levels[0].files)
		tables.push_back(table.name);
	options.compression = rocksdb::kNoCompression;
	options.output_file_size_limit = db->GetOptions().target_file_size_base;
	return db->CompactFiles(options, tables, level);
}

/*
 * Loads the oldest keys into the last level, newer ones into those above it, and the newest into level
 * 0: each level is filled to four fifths of its size, and has tables for the whole range of keys, as in
 * a database that has long been in use. Normal compactions would leave freshly drained levels: full of
 * gaps, and not the same each time. With merges all keys are in the last level, and their operands
 * above it.
 */
Status load(rocksdb::DB *db, const Shape &shape)
{
	const rocksdb::Options options = db->GetOptions();
	const bool merges = shape.values == Values::kMerge;
	const uint64_t base = options.max_bytes_for_level_base * 4 / 5 / entry_bytes(shape);
	std::array<uint64_t, LEVELS> share{};
	uint64_t above = share[0] = std::max<uint64_t>(base / 4, 1), loaded = 0;
	uint64_t of_level = std::max<uint64_t>(base, 1);

	for (size_t level = 1; level + 1 < LEVELS; level++) {
		above += share[level] = of_level;
		of_level *= static_cast<uint64_t>(options.max_bytes_for_level_multiplier);
	}
	share[LEVELS - 1] = merges ? shape.keys : shape.keys - above;
	if (merges)
		share[LEVELS - 2] += shape.keys - above;
	for (size_t level = LEVELS; level-- > 0;) {
		Status status;

		std::fprintf(stderr, "level %zu: %llu keys\n", level,
			static_cast<unsigned long long>(share[level]));
		for (const uint64_t end = loaded + share[level]; loaded < end && status.ok(); loaded++)
			status = put(db, shape, merges && level + 1 < LEVELS, loaded * STRIDE % shape.keys);
		if (status.ok())
			status = db->Flush(rocksdb::FlushOptions());
		if (status.ok() && level > 0)
			status = compact_into(db, static_cast<int>(level));
		if (!status.ok())
			return status;
	}
	return Status::OK();
}

/* Reads blocks of random keys as RocksDB does without a cache; returns their average per Get. */
Status blocks_per_get(const Shape &shape, const std::string &path, double *blocks)
{
	constexpr int GETS = 2000;
	Status status;
	const auto db = opened(options_of(shape, Opening(), nullptr), path, &status);
	Random random(2);
	std::string value;

	if (!status.ok())
		return status;
	const uint64_t before = rocksdb::get_perf_context()->block_read_count;

	for (int i = 0; i < GETS; i++) {
		const std::string key = key_of(random.below(shape.keys));

		status = db->Get(rocksdb::ReadOptions(), key, &value);
		if (status.ok() && !is_value_of(key, value, shape))
			status = Status::Corruption("wrong value of " + key, value);
		if (!status.ok())
			return status;
	}
	const uint64_t read = rocksdb::get_perf_context()->block_read_count - before;

	*blocks = static_cast<double>(read) / GETS;
	return status;
}

Status print(const Shape &shape, const std::string &path)
{
	rocksdb::ColumnFamilyMetaData metadata;
	double blocks = 0;
	Status status = blocks_per_get(shape, path, &blocks);

	if (!status.ok())
		return status;
	const auto db = opened(options_of(shape, Opening(), nullptr), path, &status);

	if (!status.ok())
		return status;
	db->GetColumnFamilyMetaData(&metadata);
	std::printf("{\"keys\": %llu, \"value_bytes\": %u, \"values\": \"%s\", \"bytes\": %llu, \"tables\": %zu, "
		    "\"blocks_per_get\": %.2f, "
		    "\"levels\": [",
		static_cast<unsigned long long>(shape.keys), shape.value_bytes, name(shape.values),
		static_cast<unsigned long long>(metadata.size), metadata.file_count, blocks);
	const char *between = "";

	for (const rocksdb::LevelMetaData &level : metadata.levels) {
		if (level.files.empty())
			continue;
		std::printf("%s{\"level\": %d, \"tables\": %zu, \"bytes\": %llu}", between, level.level,
			level.files.size(), static_cast<unsigned long long>(level.size));
		between = ", ";
	}
	std::printf("]}\n");
	return status;
}

} /* namespace */

rocksdb::Options options_of(
	const Shape &shape, const Opening &opening, std::shared_ptr<rocksdb::Cache> cache)
{
	rocksdb::Options options;
	rocksdb::BlockBasedTableOptions table;

	/*
	 * Five levels at any number of keys: 0.4, 2.1, 12.4 % and the rest below level 0. Tables and
	 * memtables are as large as the first level: 4 MB by default.
	 */
	options.max_bytes_for_level_base = bytes_of(shape) / 232;
	options.max_bytes_for_level_multiplier = 6;
	options.num_levels = LEVELS;
	options.target_file_size_base = options.max_bytes_for_level_base;
	options.write_buffer_size = options.max_bytes_for_level_base;
	options.compression = rocksdb::kNoCompression;
	options.max_open_files = -1;
	options.use_direct_reads = opening.direct_reads;
	table.no_block_cache = opening.cache_bytes == 0;
	table.block_cache = std::move(cache);
	table.cache_index_and_filter_blocks = opening.evictable_index;
	if (opening.bloom)
		table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(BLOOM_BITS_PER_KEY));
	options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
	if (shape.values == Values::kMerge)
		options.merge_operator = std::make_shared<Appends>();
	options.enable_blob_files = shape.values == Values::kBlob;
	return options;
}

std::string key_of(uint64_t index)
{
	static const char DIGITS[] = "0123456789abcdef";
	/* A bijection: different indices have different keys. */
	uint64_t mixed = Random(index).next();
	std::string key(KEY_BYTES, '0');

	for (size_t i = KEY_BYTES; i-- > 0; mixed >>= 4)
		key[i] = DIGITS[mixed & 15];
	return key;
}

std::string value_of(const std::string &key, uint32_t value_bytes)
{
	std::string value;

	while (value.size() < value_bytes)
		value += key;
	value.resize(value_bytes);
	return value;
}

bool is_value_of(const Slice &key, const Slice &value, const Shape &shape)
{
	const std::string operand = shape.values == Values::kMerge ? operand_of(key) : "";

	return value.size() == shape.value_bytes + operand.size() && value.starts_with(key) &&
	       value.ends_with(operand);
}

const char *name(Values values)
{
	static const char *const NAMES[VALUES] = {"plain", "merge", "blob"};

	return NAMES[static_cast<size_t>(values)];
}

Status load_shape(const std::string &path, Shape *shape)
{
	std::ifstream file(shape_path(path));
	std::string word = name(Values::kPlain);

	if (file >> shape->keys >> shape->value_bytes) {
		/* Older databases, which had only one kind of values, lack this word. */
		file >> word;
		for (size_t values = 0; values < VALUES; values++) {
			shape->values = static_cast<Values>(values);
			if (word == name(shape->values))
				return Status::OK();
		}
	}
	return Status::NotFound(
		path + " is not a complete database of this program", "make one with the command create");
}

Copy::Copy(const std::string &path, Status *status) : path_(path + ".run")
{
	std::error_code error;

	/* Removes a copy that a killed run has left. */
	fs::remove_all(path_, error);
	fs::create_directory(path_, error);
	for (const fs::directory_entry &entry : fs::directory_iterator(path, error)) {
		const fs::path to = fs::path(path_) / entry.path().filename();

		if (error)
			break;
		if (entry.path().extension() == ".sst" || entry.path().extension() == ".blob")
			fs::create_hard_link(entry.path(), to, error);
		else
			fs::copy_file(entry.path(), to, error);
	}
	if (error)
		*status = Status::IOError("copying " + path + " to " + path_, error.message());
}

Copy::~Copy()
{
	std::error_code ignored;

	fs::remove_all(path_, ignored);
}

Status create(const std::string &path, const Shape &shape)
{
	Shape found;

	if (load_shape(path, &found).ok()) {
		if (found.keys != shape.keys || found.value_bytes != shape.value_bytes ||
			found.values != shape.values)
			return Status::InvalidArgument(path + " has another database",
				"its " + std::to_string(found.keys) + " keys have " + name(found.values) +
					" values of " + std::to_string(found.value_bytes) +
					" bytes; give these as options, or another folder");
		return print(found, path);
	}
	if (fs::exists(path))
		return Status::InvalidArgument(
			path + " exists, and is not a complete database of this program",
			"remove it, or give another folder");
	Opening with_filters;

	/* Filters are present for runs that use them; other runs do not read them. */
	with_filters.bloom = true;
	rocksdb::Options options = options_of(shape, with_filters, nullptr);
	Status status;

	options.create_if_missing = true;
	options.disable_auto_compactions = true;
	options.write_buffer_size = LOADING_BUFFER_BYTES;
	/* Renamed when it is complete. */
	const std::string part = path + ".part";
	std::error_code error;

	fs::remove_all(part, error);
	{
		const auto db = opened(options, part, &status);

		if (status.ok())
			status = load(db.get(), shape);
		if (status.ok())
			status = db->Close();
	}
	if (status.ok())
		status = store_shape(part, shape);
	if (status.ok())
		fs::rename(part, path, error);
	if (error)
		status = Status::IOError("renaming " + part + " to " + path, error.message());
	return status.ok() ? print(shape, path) : status;
}

} /* namespace bench */
