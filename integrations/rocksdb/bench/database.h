/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The database that is measured: its contents, how it is made, and the options with which it is
 * opened. */
#ifndef BPFOF_ROCKSDB_BENCH_DATABASE_H
#define BPFOF_ROCKSDB_BENCH_DATABASE_H

#include <rocksdb/db.h>

#include <cstdint>
#include <memory>
#include <string>

namespace bench {

/* Bytes of a key. */
constexpr size_t KEY_BYTES = 16;
constexpr uint32_t VALUE_BYTES_MIN = KEY_BYTES, VALUE_BYTES_MAX = 4096;
constexpr uint64_t KEYS_MIN = 100000;

/* Where values are stored. */
enum class Values : uint8_t {
	kPlain, /* in tables */
	kMerge, /* in tables of the last level, and for each key a merge operand in a level above */
	kBlob,	/* in blob files */
};
constexpr size_t VALUES = 3;

const char *name(Values values);

/* The contents of a database. */
struct Shape {
	/* The keys are those of indices 0 to keys - 1. */
	uint64_t keys = 9000000;
	uint32_t value_bytes = 100;
	Values values = Values::kPlain;
};

/* How a database is opened. */
struct Opening {
	/* Block cache; 0 for none. */
	size_t cache_bytes = 0;
	/* Index blocks are cached and evicted like others; otherwise tables hold them. */
	bool evictable_index = false;
	/* The tables' Bloom filters are used. */
	bool bloom = false;
	/* Reads bypass the page cache. */
	bool direct_reads = false;
};

/* The options of a database, always the same except for Opening. */
rocksdb::Options options_of(
	const Shape &shape, const Opening &opening, std::shared_ptr<rocksdb::Cache> cache);

/* The key of an index. Keys of consecutive indices are scattered. */
std::string key_of(uint64_t index);
/* The value of a key, which begins with the key; and whether a read has returned it, with the operand
 * after it if there are merges. */
std::string value_of(const std::string &key, uint32_t value_bytes);
bool is_value_of(const rocksdb::Slice &key, const rocksdb::Slice &value, const Shape &shape);

/* Reads the shape, which is in a file beside the tables. NotFound unless the folder has a complete
 * database of this program. */
rocksdb::Status load_shape(const std::string &path, Shape *shape);

/* A copy of a closed database, beside it, that lives as long as this object. Tables and blob files are
 * hard links. */
class Copy {
    public:
	/* IOError if it cannot be made. */
	Copy(const std::string &path, rocksdb::Status *status);
	~Copy();
	Copy(const Copy &) = delete;
	Copy &operator=(const Copy &) = delete;

	const std::string &path() const { return path_; }

    private:
	std::string path_;
};

/* Makes a database in a new folder, or keeps an existing one of the same shape; prints its composition,
 * and the blocks per Get, as JSON. InvalidArgument if the folder has another database. */
rocksdb::Status create(const std::string &path, const Shape &shape);

} /* namespace bench */

#endif
