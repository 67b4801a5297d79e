/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * RocksDB over disaggregated storage: reads in one round trip, with the RocksDB that the
 * distribution ships.
 *
 *     bpf_of::PushdownOptions pushdown;
 *     pushdown.url = "nvme-tcp://10.0.0.2:4420/nqn.2026-01.io.example:db";
 *     pushdown.device = "/dev/nvme1n1";
 *     bpf_of::PushdownDB *db;
 *     rocksdb::Status status = bpf_of::PushdownDB::Open(options, pushdown, "/mnt/db", &db);
 *
 * From then on it is a rocksdb::DB. Get() searches what is in memory first, as RocksDB does it; if
 * that does not settle it, one command lets the target look the key up in all tables that may hold
 * it, newest first, instead of a read for each. MultiGet() does that for all its keys at once, in as few
 * commands as their tables allow. Seeks of iterators fetch the blocks of all levels together. Everything else, and every Get() that cannot
 * be done so, is the ordinary RocksDB. The answer is the same; stats() tells which way they went.
 */
#ifndef BPFOF_ROCKSDB_H
#define BPFOF_ROCKSDB_H

#include <rocksdb/utilities/stackable_db.h>
#include <rocksdb/version.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace bpf_of {

/* How reads are served. */
enum class Mode : uint8_t {
	/* As RocksDB does it: one block after the other. */
	kPlain,
	/* Get() and MultiGet() by chains at the target; seeks of iterators fetch their blocks at once.
	 */
	kChains,
	/* Get() fetches all blocks that the key may be in at once, too, and RocksDB searches them. */
	kBlocks,
	/* As kChains, but each key of a MultiGet() is a command of its own, with one chain. */
	kSingleChains,
};

/* Whether the target searches the tables of a key at once, or one after the other until one has the key. */
enum class Speculate : uint8_t {
	kNever,
	/* As long as that takes clearly less time, and most of the blocks would be read anyway: on slow
	 * drives. Both are measured. */
	kWhenFaster,
	kAlways,
};

struct PushdownOptions {
	/*
	 * The target, nvme-tcp://HOST[:PORT]/NQN[?ns=N], with who this host is and its keys as bpfof_open()
	 * takes them; or the user's hosts.toml says that. Or grantd:PATH, the socket of a grant daemon,
	 * for a process that must not read whole namespaces (docs/grants.md): target_reads has no effect
	 * then. With several portals, HOST[:PORT],HOST[:PORT]…, chains go on by another when one is lost
	 * (docs/failover.md). Empty: there is none, and chains of reads run on this machine; for trying it out.
	 */
	std::string url;
	/*
	 * What the target's namespace is on this machine: a block device, or the target's image file.
	 * With a grant daemon any file or directory of the file system that is meant, or nothing.
	 */
	std::string device;
	/*
	 * Memory for the indices and range deletions of all tables together, in bytes. A database needs
	 * about 0.9 % of its size. Of tables beyond that the target reads the index, too, where it can.
	 */
	size_t index_bytes_max = size_t{1} << 30;
	/* The longest value that comes with the answer, in bytes, at most VALUE_BYTES_MAX; with merge operands,
	 * of which each takes 4 bytes more. Once a column family has a longer one, its answers have room for
	 * VALUE_BYTES_MAX. Longer ones are read as RocksDB does it. Those in blob files do not count. */
	uint32_t value_bytes_max = 4096;
	/* Calls that the target serves at once. More are served by RocksDB. */
	size_t readers_max = 64;
	/*
	 * Connections to the target that they share: one for each processor, and at most so many. 0: each
	 * has one of its own.
	 */
	uint32_t lanes_max = UINT32_MAX;
	/*
	 * Open files that tables take together, at most; 0: half of the soft limit of the process
	 * (RLIMIT_NOFILE). RocksDB has all tables open, as max_open_files = -1 says, but the descriptor of one
	 * that it does not read is closed for another's, and opened again when it does. Chains need none.
	 */
	size_t descriptors_max = 0;
	/*
	 * Reads of tables that RocksDB makes itself go to the target on the same connections, past this
	 * machine's kernel and page cache; those that cannot, and everything else, go to the file
	 * system.
	 */
	bool target_reads = false;
	/*
	 * The part of all Get() calls that memory does not settle, 0 to 1, that RocksDB does itself, so
	 * that the blocks they need come into its block cache. Chains bring nothing there.
	 */
	double sample_rate = 0.01;
	/*
	 * Sample fewer, down to a 16th of that, while the samples cost more time than the cache saves.
	 * Both are measured all the time.
	 */
	bool adapt_sampling = true;
	/* As text never, when-faster or always. */
	Speculate speculate = Speculate::kWhenFaster;

	/* Where stats() are appended when the database is closed, a line of JSON; empty: nowhere. */
	std::string report;

	static constexpr uint32_t VALUE_BYTES_MAX = 16000;

	/*
	 * Sets what `text` names: "url=…;device=…;sample_rate=0", with the names of above, sizes in bytes, and
	 * true or false. InvalidArgument says what of it makes no sense.
	 */
	static rocksdb::Status parse(const std::string &text, PushdownOptions *options);
	/* The same for one of them. */
	rocksdb::Status set(const std::string &name, const std::string &value);
};

/* Which way a Get() went. */
enum class ReadPath : uint8_t {
	kMemory,  /* memtables and block cache settled it */
	kNoTable, /* no table could have the key */
	kTarget,  /* one chain at the target, or several at once */
	kHere,	  /* the same on this machine: there is no target, or it does not know the files yet */
	kBlocks,  /* the blocks of all tables were fetched at once, and RocksDB searched them */
	/* The others were left to RocksDB. */
	kPlain,	     /* that is the mode */
	kSampled,    /* for the block cache */
	kOptions,    /* its ReadOptions ask for what chains do not do, or the key is too long */
	kFamily,     /* its column family cannot be pushed down */
	kStale,	     /* the set of tables was just changing */
	kTable,	     /* a table that chains cannot read: dictionary, unknown format, no memory; or a range
		      * deletion that RocksDB has to apply */
	kManyTables, /* more tables than one chain may have */
	kBusy,	     /* no connection was free, or the target is gone */
	kDeclined,   /* the chain met a value, merge operands or a block too long, or would have met it, as most chains
		      * of the family do; docs/rocksdb.md has all */
	kFailed,     /* the chain failed; last_error() tells why */
	/* Not answered: Status::TimedOut. */
	kTimedOut, /* the target was waited for until ReadOptions::deadline, or for io_timeout */
};
constexpr size_t WAYS = 16;

/* A word for each way, for people. */
const char *name(ReadPath way);

struct PushdownStats {
	/* Get() calls, and keys of MultiGet(), by ReadPath. */
	std::array<uint64_t, WAYS> gets{};
	/* Of these, keys whose tables were searched at once. */
	uint64_t at_once = 0;
	/* Blocks that chains read. */
	uint64_t blocks = 0;
	/* Values that were read from blob files behind a chain. */
	uint64_t blobs = 0;
	/* Seeks of iterators whose blocks were fetched together. */
	uint64_t seeks = 0;
	/* The part of Gets that is sampled at the moment, where there is a block cache. */
	double sample_rate = 0;
	/* Bytes on the connections to the target, without TCP and IP headers. */
	uint64_t sent_bytes = 0;
	uint64_t received_bytes = 0;
	/* Tables that are known, those of them that chains cannot read, and memory of their indices and range
	 * deletions. */
	uint64_t tables = 0;
	uint64_t tables_refused = 0;
	uint64_t index_bytes = 0;

	uint64_t operator[](ReadPath way) const { return gets[static_cast<size_t>(way)]; }
};

class PushdownDB : public rocksdb::StackableDB {
    public:
	/*
	 * Opens the database at `path` and connects to the target. The files must lie on a file system
	 * on options.device, directly or on a partition of it.
	 *
	 * InvalidArgument if the options rule pushdown out, with the reason: max_open_files must be -1
	 * (else tables would have to be opened in the middle of a search), the Env must be the
	 * default one, and unordered_write, two_write_queues, open_files_async and rate-limited deletion be off.
	 * IOError if the target cannot be reached. What DB::Open() fails with.
	 *
	 * A column family is pushed down unless it has another comparator than the bytewise one, or another
	 * table format; then kFamily counts. Its merge operator is that of the options in another object,
	 * of the same name, which GetOptions() has, too.
	 *
	 * The database reads its tables by an Env of its own: that of GetOptions() is good as long as
	 * the database.
	 *
	 * A target that is lost is looked for once a second; RocksDB does everything meanwhile.
	 */
	static rocksdb::Status Open(const rocksdb::Options &options, const PushdownOptions &pushdown,
		const std::string &path, PushdownDB **db);

	/*
	 * The same for a database with several column families, as DB::Open() takes them. Each is
	 * pushed down for which that is possible.
	 */
	static rocksdb::Status Open(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles, PushdownDB **db);

	/*
	 * The same for a database that is only read, as DB::OpenForReadOnly(): what writes, and what creates or drops
	 * families, fails, and no process may write to it meanwhile.
	 */
	static rocksdb::Status OpenForReadOnly(const rocksdb::Options &options, const PushdownOptions &pushdown,
		const std::string &path, PushdownDB **db, bool error_if_wal_file_exists = false);
	static rocksdb::Status OpenForReadOnly(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles, PushdownDB **db,
		bool error_if_wal_file_exists = false);

	/*
	 * The same for a secondary instance, as DB::OpenAsSecondary(): it follows a database that another process has
	 * open, on this machine, each time that TryCatchUpWithPrimary() is called. It reads what was written up to then.
	 * Each of its tables takes a descriptor: descriptors_max does not count. Reads with a snapshot are RocksDB's.
	 */
	static rocksdb::Status OpenAsSecondary(const rocksdb::Options &options, const PushdownOptions &pushdown,
		const std::string &path, const std::string &secondary_path, PushdownDB **db);
	static rocksdb::Status OpenAsSecondary(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, const std::string &secondary_path,
		const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles, PushdownDB **db);

	~PushdownDB() override;

	/*
	 * Get() is as DB::Get(), and linearizable with all that changes the database meanwhile: the tables
	 * that are searched are those of the version whose memtables were searched before (view.h).
	 * MultiGet() is as DB::MultiGet(): all keys are read at the same moment; keys of several column
	 * families may share commands.
	 */
	using rocksdb::StackableDB::Get;
	using rocksdb::StackableDB::MultiGet;
#if ROCKSDB_MAJOR >= 9
	/* All other forms of DB call these. With timestamps they are RocksDB's. */
	rocksdb::Status Get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value, std::string *timestamp) override;
	void MultiGet(const rocksdb::ReadOptions &options, size_t count,
		rocksdb::ColumnFamilyHandle **families, const rocksdb::Slice *keys,
		rocksdb::PinnableSlice *values, std::string *timestamps, rocksdb::Status *statuses,
		bool sorted = false) override;
#else
	rocksdb::Status Get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value) override;
	/* Those with timestamps are RocksDB's, unless no timestamp is asked for. */
	rocksdb::Status Get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value, std::string *timestamp) override;
	std::vector<rocksdb::Status> MultiGet(const rocksdb::ReadOptions &options,
		const std::vector<rocksdb::ColumnFamilyHandle *> &families,
		const std::vector<rocksdb::Slice> &keys, std::vector<std::string> *values,
		std::vector<std::string> *timestamps) override;

	void MultiGet(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		size_t count, const rocksdb::Slice *keys, rocksdb::PinnableSlice *values,
		rocksdb::Status *statuses, bool sorted = false) override;
	void MultiGet(const rocksdb::ReadOptions &options, size_t count,
		rocksdb::ColumnFamilyHandle **families, const rocksdb::Slice *keys,
		rocksdb::PinnableSlice *values, rocksdb::Status *statuses, bool sorted = false) override;
	std::vector<rocksdb::Status> MultiGet(const rocksdb::ReadOptions &options,
		const std::vector<rocksdb::ColumnFamilyHandle *> &families,
		const std::vector<rocksdb::Slice> &keys, std::vector<std::string> *values) override;
#endif

	using rocksdb::StackableDB::NewIterator;
	/* As DB::NewIterator(). */
	rocksdb::Iterator *NewIterator(
		const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family) override;

	/* As in DB. Families that are created are pushed down as those that are opened, until their handle is
	 * deleted. */
	rocksdb::Status CreateColumnFamily(const rocksdb::ColumnFamilyOptions &options, const std::string &name,
		rocksdb::ColumnFamilyHandle **handle) override;
	rocksdb::Status CreateColumnFamilies(const rocksdb::ColumnFamilyOptions &options,
		const std::vector<std::string> &names,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles) override;
	rocksdb::Status CreateColumnFamilies(const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles) override;
	rocksdb::Status CreateColumnFamilyWithImport(const rocksdb::ColumnFamilyOptions &options,
		const std::string &name, const rocksdb::ImportColumnFamilyOptions &how,
		const rocksdb::ExportImportFilesMetaData &metadata,
		rocksdb::ColumnFamilyHandle **handle) override;
#if ROCKSDB_MAJOR >= 9
	rocksdb::Status CreateColumnFamilyWithImport(const rocksdb::ColumnFamilyOptions &options,
		const std::string &name, const rocksdb::ImportColumnFamilyOptions &how,
		const std::vector<const rocksdb::ExportImportFilesMetaData *> &metadata,
		rocksdb::ColumnFamilyHandle **handle) override;
#endif

	/* As in DB. The column family is pushed down until its handle is deleted. */
	rocksdb::Status DropColumnFamily(rocksdb::ColumnFamilyHandle *family) override;
	rocksdb::Status DropColumnFamilies(
		const std::vector<rocksdb::ColumnFamilyHandle *> &families) override;

	/* As DB::TryCatchUpWithPrimary(). Reads are left to RocksDB while it runs, and after it has failed until it
	 * succeeds. */
	rocksdb::Status TryCatchUpWithPrimary() override;

	/* As DB::Close(). Reads are left to RocksDB from then on. */
	rocksdb::Status Close() override;
#if ROCKSDB_MAJOR >= 9
	/* As DB::WaitForCompact(). */
	rocksdb::Status WaitForCompact(const rocksdb::WaitForCompactOptions &options) override;
#endif

	using rocksdb::StackableDB::SetDBOptions;
	/* As DB::SetDBOptions(), but max_open_files must stay as it is: InvalidArgument. */
	rocksdb::Status SetDBOptions(
		const std::unordered_map<std::string, std::string> &options) override;

	using rocksdb::StackableDB::GetIntProperty;
	using rocksdb::StackableDB::GetProperty;
	/*
	 * As in DB, and stats() by name: "bpfof.gets." with what name() says of a ReadPath ('-' for a space),
	 * "bpfof.blocks" and so on; "bpfof.ready", 1 if wait_ready() would not wait; as text also
	 * "bpfof.sample-rate", "bpfof.stats", all of stats() as JSON, and "bpfof.last-error".
	 */
	bool GetProperty(rocksdb::ColumnFamilyHandle *family, const rocksdb::Slice &property,
		std::string *value) override;
	bool GetIntProperty(rocksdb::ColumnFamilyHandle *family, const rocksdb::Slice &property,
		uint64_t *value) override;

	/* As in DB; StackableDB forgets these. */
	rocksdb::Status Resume() override { return db_->Resume(); }
	void GetAllColumnFamilyMetaData(std::vector<rocksdb::ColumnFamilyMetaData> *families) override
	{
		db_->GetAllColumnFamilyMetaData(families);
	}
	rocksdb::Status GetStatsHistory(uint64_t from_s, uint64_t to_s,
		std::unique_ptr<rocksdb::StatsHistoryIterator> *history) override
	{
		return db_->GetStatsHistory(from_s, to_s, history);
	}
#if ROCKSDB_MAJOR >= 9
	rocksdb::Status WriteWithCallback(const rocksdb::WriteOptions &options, rocksdb::WriteBatch *updates,
		rocksdb::UserWriteCallback *callback) override
	{
		return db_->WriteWithCallback(options, updates, callback);
	}
#endif
#if ROCKSDB_MAJOR >= 11
	rocksdb::Status IngestWriteBatchWithIndex(const rocksdb::WriteOptions &options,
		std::shared_ptr<rocksdb::WriteBatchWithIndex> batch) override
	{
		return db_->IngestWriteBatchWithIndex(options, std::move(batch));
	}
#endif

	/* Changes how reads are served from now on; at first it is kChains. For comparisons. */
	void set_mode(Mode mode);

	PushdownStats stats() const;
	/* Why the last chain failed, or a table was refused, or the target does not know where a table
	 * lies, of which chains run here then; or "". */
	std::string last_error() const;
	/* Waits until the tables of the moment are known, here and at the target, at most so long; whether they
	 * are. For tests and measurements: reads before are right, too. */
	bool wait_ready(unsigned timeout_ms);

    private:
	friend class Opening;
	struct State;
	class ManyGets;

	PushdownDB(std::shared_ptr<rocksdb::DB> db, std::unique_ptr<State> state);

	/* Creates a family by `create`, with the options that this is handed, and follows it. */
	template <typename Create>
	rocksdb::Status create(const rocksdb::ColumnFamilyOptions &options, const std::string &name,
		rocksdb::ColumnFamilyHandle **handle, Create create);
	/* Writes what PushdownOptions::report asks for. */
	void report() const;
	rocksdb::Status get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value);
	/* MultiGet() of keys of which each has a family. */
	void multi_get(const rocksdb::ReadOptions &options, size_t count,
		rocksdb::ColumnFamilyHandle **families, const rocksdb::Slice *keys,
		rocksdb::PinnableSlice *values, rocksdb::Status *statuses, bool sorted);
	/* The same of keys that are not all left to RocksDB. */
	void get_many(const rocksdb::ReadOptions &options, size_t count,
		rocksdb::ColumnFamilyHandle **families, const rocksdb::Slice *keys,
		rocksdb::PinnableSlice *values, rocksdb::Status *statuses);

	std::unique_ptr<State> state_;
};

} /* namespace bpf_of */

#endif
