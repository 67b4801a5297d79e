/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Workloads: mixes of operations, and clients that perform them and check the answers. */
#ifndef BPFOF_ROCKSDB_BENCH_WORKLOAD_H
#define BPFOF_ROCKSDB_BENCH_WORKLOAD_H

#include "database.h"
#include "zipf.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace bench {

enum class Pick : uint8_t {
	kUniform,
	kZipf,
	kLatest, /* Zipf's distribution, the newest key the most frequent */
};

struct Workload {
	std::string name;
	Pick pick = Pick::kUniform;
	double theta = 0;
	/* Percentages of operations; the rest are reads. */
	unsigned updates = 0, inserts = 0, read_modify_writes = 0, scans = 0;
	/* Keys of a scan; the maximum if is_scan_random. */
	uint32_t scan_length = 0;
	bool is_scan_random = false;
	/* Keys of a MultiGet(); 0 if reads are Get(). */
	uint32_t keys_of_read = 0;

	bool writes() const { return updates + inserts + read_modify_writes > 0; }
};

/* All names, for --help. */
extern const char *const WORKLOADS;

/* Finds a workload by its name. False if there is none. */
bool parse_workload(const std::string &name, Workload *workload);

/* The database as clients see it. */
class World {
    public:
	World(rocksdb::DB *db, const Shape &shape)
		: db_(db), shape_(shape), keys_(shape.keys)
	{
	}

	rocksdb::DB *db() const { return db_; }
	/* The shape with which the database was created. */
	const Shape &shape() const { return shape_; }
	/* Keys that have been inserted. */
	uint64_t keys() const { return keys_.load(std::memory_order_acquire); }
	/* Inserts the next key. */
	rocksdb::Status insert();

    private:
	rocksdb::DB *db_;
	const Shape shape_;
	/* Serializes insertions, so that all indices below keys_ exist. */
	std::mutex inserting_;
	std::atomic<uint64_t> keys_;
};

/* Performs one thread's operations. */
class Client {
    public:
	Client(World &world, const Workload &workload, const Zipf &zipf, uint64_t seed)
		: world_(world), workload_(workload), zipf_(zipf), random_(seed)
	{
	}

	/* Performs one operation. Corruption if an answer is wrong. */
	rocksdb::Status operate();

    private:
	std::string pick();
	rocksdb::Status check(const std::string &key, const rocksdb::Status &status,
		const rocksdb::Slice &value) const;
	rocksdb::Status read(const std::string &key);
	rocksdb::Status read_many();
	rocksdb::Status write(const std::string &key);
	rocksdb::Status scan(const std::string &first);

	World &world_;
	const Workload &workload_;
	const Zipf &zipf_;
	Random random_;
	rocksdb::PinnableSlice value_;
};

} /* namespace bench */

#endif
