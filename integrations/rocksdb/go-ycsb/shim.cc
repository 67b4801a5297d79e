/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "shim.h"

#include "../bench/settle.h"

#include <bpfof/rocksdb.h>

#include <rocksdb/table.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

using rocksdb::Slice;
using rocksdb::Status;

struct ycsb_db {
	std::unique_ptr<bpf_of::PushdownDB> db;
};

static_assert(YCSB_WAYS == bpf_of::WAYS, "a way has no name and no counter in shim.h");

namespace {

constexpr int LEVELS = 5;
constexpr int LEVEL_RATIO = 6;
/* The size of the whole database in units of the first level: 1 + 6 + 36 + 216, the last level not
 * quite full. */
constexpr uint64_t WHOLE_TO_FIRST_LEVEL = 232;
constexpr uint64_t FIRST_LEVEL_BYTES_MIN = 64 << 10;
/* Connections in addition to those of clients: for compactions. */
constexpr size_t SPARE_READERS = 8;

constexpr unsigned READY_MS = 10000;

/* A copy that C can free. If memory for it is missing, no error can be reported at all. */
char *copied(const std::string &text)
{
	char *copy = strdup(text.c_str());

	if (!copy)
		std::abort();
	return copy;
}

/* Runs a function that returns a Status. Exceptions must not reach C. */
template <typename Work> char *guarded(const Work &work)
{
	try {
		const Status status = work();

		return status.ok() ? nullptr : copied(status.ToString());
	} catch (const std::exception &error) {
		return copied(error.what());
	}
}

Status give(const Slice &from, ycsb_bytes *to)
{
	/* An empty value has memory, too, so that NULL always means that there is no value. */
	to->data = static_cast<char *>(std::malloc(std::max<size_t>(from.size(), 1)));
	to->length = from.size();
	if (!to->data)
		return Status::MemoryLimit("no memory for the value");
	if (!from.empty())
		std::memcpy(to->data, from.data(), from.size());
	return Status::OK();
}

void append_with_length(const Slice &value, std::string *to)
{
	for (int shift = 0; shift < 32; shift += 8)
		to->push_back(static_cast<char>(value.size() >> shift));
	to->append(value.data(), value.size());
}

/*
 * Five levels however small the database is, so that a Get has several tables to search, as in a large
 * one. Without block cache, compression and filters each of them costs a read, as in the other
 * benchmark of this integration.
 */
rocksdb::Options settings_of(const ycsb_options &options)
{
	rocksdb::Options settings;
	rocksdb::BlockBasedTableOptions table;
	const uint64_t first_level =
		std::max(options.bytes / WHOLE_TO_FIRST_LEVEL, FIRST_LEVEL_BYTES_MIN);

	settings.create_if_missing = settings.error_if_exists = options.create != 0;
	settings.num_levels = LEVELS;
	settings.max_bytes_for_level_base = first_level;
	settings.max_bytes_for_level_multiplier = LEVEL_RATIO;
	settings.target_file_size_base = first_level;
	settings.write_buffer_size = first_level;
	settings.compression = rocksdb::kNoCompression;
	settings.max_open_files = -1;
	table.no_block_cache = true;
	settings.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
	return settings;
}

bpf_of::Mode mode_of(ycsb_mode mode)
{
	switch (mode) {
	case YCSB_PLAIN:
		return bpf_of::Mode::kPlain;
	case YCSB_BLOCKS:
		return bpf_of::Mode::kBlocks;
	default:
		return bpf_of::Mode::kChains;
	}
}

Status open(const ycsb_options &options, ycsb_db **opened)
{
	bpf_of::PushdownOptions pushdown;
	auto opening = std::make_unique<ycsb_db>();
	bpf_of::PushdownDB *db = nullptr;

	pushdown.url = options.url;
	pushdown.device = options.device;
	/* Plain reads use the same connections as chains, so that both can be compared. */
	pushdown.target_reads = !pushdown.url.empty();
	pushdown.readers_max = options.threads + SPARE_READERS;
	const Status status =
		bpf_of::PushdownDB::Open(settings_of(options), pushdown, options.path, &db);

	if (!status.ok())
		return status;
	opening->db.reset(db);
	db->set_mode(mode_of(options.mode));
	*opened = opening.release();
	return status;
}

Status settle(ycsb_db *db)
{
	Status status = db->db->Flush(rocksdb::FlushOptions());

	if (status.ok())
		status = bench::settle(db->db.get());
	if (status.ok() && !db->db->wait_ready(READY_MS))
		status = Status::TimedOut(
			"the tables were not known within ten seconds", db->db->last_error());
	return status;
}

Status scan(ycsb_db *db, const Slice &from, size_t count, ycsb_bytes *values)
{
	const std::unique_ptr<rocksdb::Iterator> iterator(db->db->NewIterator(rocksdb::ReadOptions()));
	std::string found;

	for (iterator->Seek(from); count > 0 && iterator->Valid(); iterator->Next(), count--)
		append_with_length(iterator->value(), &found);
	const Status status = iterator->status();

	return status.ok() ? give(found, values) : status;
}

Slice slice(const void *data, size_t length)
{
	return Slice(static_cast<const char *>(data), length);
}

} /* namespace */

char *ycsb_open(const ycsb_options *options, ycsb_db **db)
{
	return guarded([&] { return open(*options, db); });
}

char *ycsb_close(ycsb_db *db)
{
	const std::unique_ptr<ycsb_db> closing(db);

	return guarded([&] { return closing->db->Close(); });
}

char *ycsb_settle(ycsb_db *db)
{
	return guarded([&] { return settle(db); });
}

char *ycsb_put(ycsb_db *db, const void *key, size_t key_length, const void *value, size_t value_length)
{
	return guarded([&] {
		return db->db->Put(
			rocksdb::WriteOptions(), slice(key, key_length), slice(value, value_length));
	});
}

char *ycsb_get(ycsb_db *db, const void *key, size_t key_length, ycsb_bytes *value, int *found)
{
	return guarded([&] {
		rocksdb::PinnableSlice pinned;
		const Status status = db->db->Get(rocksdb::ReadOptions(), db->db->DefaultColumnFamily(),
			slice(key, key_length), &pinned);

		*found = status.ok();
		if (status.IsNotFound())
			return Status::OK();
		return status.ok() ? give(pinned, value) : status;
	});
}

char *ycsb_scan(ycsb_db *db, const void *from, size_t from_length, size_t count, ycsb_bytes *values)
{
	return guarded([&] { return scan(db, slice(from, from_length), count, values); });
}

char *ycsb_delete(ycsb_db *db, const void *key, size_t key_length)
{
	return guarded([&] { return db->db->Delete(rocksdb::WriteOptions(), slice(key, key_length)); });
}

void ycsb_stats(ycsb_db *db, struct ycsb_stats *stats)
{
	const bpf_of::PushdownStats counted = db->db->stats();

	for (size_t way = 0; way < YCSB_WAYS; way++) {
		stats->gets[way] = counted.gets[way];
		stats->names[way] = name(static_cast<bpf_of::ReadPath>(way));
	}
	stats->blocks = counted.blocks;
	stats->seeks = counted.seeks;
}

char *ycsb_last_error(ycsb_db *db)
{
	return copied(db->db->last_error());
}
