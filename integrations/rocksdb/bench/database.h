/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The database that is measured: what is in it, how it is made, and with which options it is opened. */
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

/* Where values are. */
enum class Values : uint8_t {
	kPlain, /* in tables */
	kMerge, /* in tables of the last level, and for each key a merge operand in a level above */
	kBlob,	/* in blob files */
};
constexpr size_t VALUES = 3;

const char *name(Values values);

/* What is in a database. */
struct Shape {
	/* Indices 0 to this are keys. */
	uint64_t keys = 9000000;
	uint32_t value_bytes = 100;
	Values values = Values::kPlain;
};

/* How a database is opened. */
struct Opening {
	/* Block cache; 0 for none. */
	size_t cache_bytes = 0;
	/* Index blocks are in the block cache and leave it like others; otherwise tables hold them. */
	bool evictable_index = false;
	/* The tables' Bloom filters are asked. */
	bool bloom = false;
	/* Reads bypass the page cache. */
	bool direct_reads = false;
};

/* The options of a database, always the same but for what Opening says. */
rocksdb::Options options_of(
	const Shape &shape, const Opening &opening, std::shared_ptr<rocksdb::Cache> cache);

/* The key of an index. Keys of consecutive indices lie anywhere. */
std::string key_of(uint64_t index);
/* What is written of it, which begins with the key, and whether that is what was read: with the operand behind
 * it, if there are merges. */
std::string value_of(const std::string &key, uint32_t value_bytes);
bool is_value_of(const rocksdb::Slice &key, const rocksdb::Slice &value, const Shape &shape);

/* It is kept in a file beside the tables. NotFound if the folder has no whole database of ours. */
rocksdb::Status load_shape(const std::string &path, Shape *shape);

/* A copy of a closed database, beside it, for as long as this lives. Tables and blob files are hard links. */
class Copy {
    public:
	/* IOError, if it cannot be made. */
	Copy(const std::string &path, rocksdb::Status *status);
	~Copy();
	Copy(const Copy &) = delete;
	Copy &operator=(const Copy &) = delete;

	const std::string &path() const { return path_; }

    private:
	std::string path_;
};

/* Makes a database in a folder that is not there, or leaves alone one of the same shape; prints what it
 * consists of, and the blocks of a Get, as JSON. InvalidArgument for another database. */
rocksdb::Status create(const std::string &path, const Shape &shape);

} /* namespace bench */

#endif
