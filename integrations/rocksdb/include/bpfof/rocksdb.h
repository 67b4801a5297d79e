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
 * The result is a rocksdb::DB. Get() searches memory first, as RocksDB does; if the key is not settled
 * there, one command lets the target search all tables that may hold it, newest first, instead of one
 * read for each table. MultiGet() does so for all its keys at once, in as few commands as their tables
 * allow. A seek of an iterator fetches the blocks of all levels together. RocksDB serves everything
 * else, and every Get() that chains cannot serve. The answers are the same; stats() counts how they
 * were found.
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

/* Releases 8.0 to 9.9 have other interfaces of merge operators, and are not tested. */
#if ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR < 708 ||                                                         \
	(ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR >= 800 && ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR < 910)
#error "bpf-of supports RocksDB 7.8 to 7.10, and 9.10 and later; use one of these"
#endif

namespace bpf_of {

/* How reads are served. */
enum class Mode : uint8_t {
	/* As RocksDB does: one block after the other. */
	kPlain,
	/* Get() and MultiGet() by chains at the target; a seek of an iterator fetches its blocks at
	 * once.
	 */
	kChains,
	/* Get() also fetches all blocks that may hold the key at once, and RocksDB searches them. */
	kBlocks,
	/* As kChains, but each key of a MultiGet() is a command of its own, with one chain. */
	kSingleChains,
};

/* Whether the target searches the tables of a key at once, or one after the other until one has the key. */
enum class Speculate : uint8_t {
	kNever,
	/* When that is clearly faster and most of the blocks would be read anyway: on slow drives. The
	 * library measures both. */
	kWhenFaster,
	kAlways,
};

struct PushdownOptions {
	/*
	 * The target: nvme-tcp://HOST[:PORT]/NQN[?ns=N], with this host's NQN and keys as bpfof_open()
	 * takes them, or from the user's hosts.toml. Or grantd:PATH, the socket of a grant daemon, for
	 * a process that must not read whole namespaces (docs/grants.md); target_reads then has no
	 * effect. With several portals, HOST[:PORT],HOST[:PORT]…, chains move to another portal when
	 * one is lost (docs/failover.md). Empty: no target; chains run on this machine, to try the
	 * library out.
	 */
	std::string url;
	/*
	 * The target's namespace as this machine sees it: a block device, or the target's image file.
	 * With a grant daemon: any file or directory of the database's file system, or empty.
	 */
	std::string device;
	/*
	 * Memory for the indices and range deletions of all tables together, in bytes. A database needs
	 * about 0.9 % of its size. Beyond this limit the target reads the indices of further tables,
	 * too, where it can.
	 */
	size_t index_bytes_max = size_t{1} << 30;
	/* The longest value that an answer returns, in bytes, at most VALUE_BYTES_MAX; with merge
	 * operands, value and operands together, and 4 bytes more for each operand. Once a column family
	 * has had a longer value, its answers have room for VALUE_BYTES_MAX. RocksDB reads longer values
	 * itself. Values in blob files do not count. */
	uint32_t value_bytes_max = 4096;
	/* Calls that the target serves at once. RocksDB serves further calls. */
	size_t readers_max = 64;
	/*
	 * Connections to the target, which calls share: one for each processor, but at most this many.
	 * 0: each call has its own.
	 */
	uint32_t lanes_max = UINT32_MAX;
	/*
	 * Open files of all tables together, at most; 0: half of the soft limit of the process
	 * (RLIMIT_NOFILE). RocksDB keeps all tables open (max_open_files = -1), but the library closes
	 * the descriptors of tables that RocksDB does not read to make room, and reopens them on
	 * demand. Chains need no descriptors.
	 */
	size_t descriptors_max = 0;
	/*
	 * Sends RocksDB's own reads of tables to the target, on the same connections, past this
	 * machine's kernel and page cache. Reads that cannot go there, and everything else, use the
	 * file system.
	 */
	bool target_reads = false;
	/*
	 * The share of the Get() calls not settled in memory, 0 to 1, that RocksDB serves itself, so
	 * that their blocks enter its block cache. Chains do not fill the cache.
	 */
	double sample_rate = 0.01;
	/*
	 * Samples fewer calls, down to a 16th of that, while samples cost more time than the cache
	 * saves. The library measures both continuously.
	 */
	bool adapt_sampling = true;
	/* In text form: never, when-faster or always. */
	Speculate speculate = Speculate::kWhenFaster;

	/* File to which stats() are appended, as a line of JSON, when the database is closed; empty:
	 * none. */
	std::string report;

	static constexpr uint32_t VALUE_BYTES_MAX = 16000;

	/*
	 * Sets the options that `text` names: "url=…;device=…;sample_rate=0", with the names above,
	 * sizes in bytes, and true or false. InvalidArgument names the part that is invalid.
	 */
	static rocksdb::Status parse(const std::string &text, PushdownOptions *options);
	/* Sets one option in the same way. */
	rocksdb::Status set(const std::string &name, const std::string &value);
};

/* How a Get() was served. */
enum class ReadPath : uint8_t {
	kMemory,  /* memtables and block cache settled it */
	kNoTable, /* no table could have the key */
	kTarget,  /* one chain at the target, or several at once */
	kHere,	  /* chains on this machine: there is no target, or it does not know the files yet */
	kBlocks,  /* the blocks of all tables were fetched at once, and RocksDB searched them */
	/* RocksDB served the others. */
	kPlain,	     /* the mode is kPlain */
	kSampled,    /* for the block cache */
	kOptions,    /* its ReadOptions ask for something chains cannot do, or the key is too long */
	kFamily,     /* its column family cannot be pushed down */
	kStale,	     /* the set of tables was just changing */
	kTable,	     /* a table that chains cannot read: dictionary, unknown format, no memory; or a range
		      * deletion that RocksDB has to apply */
	kManyTables, /* more tables than one chain may have */
	kBusy,	     /* no connection was free, or the target is lost */
	kDeclined,   /* the chain met a value, merge operands or a block that was too long, or was not run because
		      * most chains of the family are declined; docs/rocksdb.md lists all reasons */
	kFailed,     /* the chain failed; last_error() tells why */
	/* Not answered: Status::TimedOut. */
	kTimedOut, /* the target did not answer by ReadOptions::deadline, or within io_timeout */
};
constexpr size_t WAYS = 16;

/* A readable name for each way. */
const char *name(ReadPath way);

struct PushdownStats {
	/* Get() calls, and keys of MultiGet(), by ReadPath. */
	std::array<uint64_t, WAYS> gets{};
	/* Of these calls and keys, how many had their tables searched at once. */
	uint64_t at_once = 0;
	/* Blocks that chains read. */
	uint64_t blocks = 0;
	/* Values that were read from blob files after a chain. */
	uint64_t blobs = 0;
	/* Seeks of iterators whose blocks were fetched together. */
	uint64_t seeks = 0;
	/* The share of Gets that is sampled now, if there is a block cache. */
	double sample_rate = 0;
	/* Bytes on the connections to the target, without TCP and IP headers. */
	uint64_t sent_bytes = 0;
	uint64_t received_bytes = 0;
	/* Known tables, those of them that chains cannot read, and the memory of their indices and
	 * range deletions. */
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
	 * InvalidArgument, with the reason, if the options rule pushdown out: max_open_files must be -1
	 * (otherwise a search in memory would have to open tables), the Env must be the default one,
	 * and unordered_write, two_write_queues, open_files_async and rate-limited deletion must be
	 * off. IOError if the target cannot be reached. Otherwise the errors of DB::Open().
	 *
	 * A column family is pushed down unless its comparator is not the bytewise one, or its tables
	 * are not block-based; its reads then count as kFamily. Its merge operator is wrapped in an
	 * object of the same name, which GetOptions() returns, too.
	 *
	 * The database reads its tables through an Env of its own: the Env of GetOptions() is valid as
	 * long as the database exists.
	 *
	 * When the target is lost, the library tries to reach it once a second; RocksDB serves all
	 * reads meanwhile.
	 */
	static rocksdb::Status Open(const rocksdb::Options &options, const PushdownOptions &pushdown,
		const std::string &path, PushdownDB **db);

	/*
	 * The same for a database with several column families, as DB::Open() takes them. Each family
	 * that can be pushed down is.
	 */
	static rocksdb::Status Open(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles, PushdownDB **db);

	/*
	 * The same for a database that is only read, as DB::OpenForReadOnly(): calls that write, or
	 * create or drop families, fail, and no process may write to the database meanwhile.
	 */
	static rocksdb::Status OpenForReadOnly(const rocksdb::Options &options, const PushdownOptions &pushdown,
		const std::string &path, PushdownDB **db, bool error_if_wal_file_exists = false);
	static rocksdb::Status OpenForReadOnly(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles, PushdownDB **db,
		bool error_if_wal_file_exists = false);

	/*
	 * The same for a secondary instance, as DB::OpenAsSecondary(): it follows a database that
	 * another process on this machine has open. Each call of TryCatchUpWithPrimary() makes the
	 * primary's writes up to then visible. Each of its tables takes a descriptor: descriptors_max
	 * does not apply. RocksDB serves reads with a snapshot.
	 */
	static rocksdb::Status OpenAsSecondary(const rocksdb::Options &options, const PushdownOptions &pushdown,
		const std::string &path, const std::string &secondary_path, PushdownDB **db);
	static rocksdb::Status OpenAsSecondary(const rocksdb::DBOptions &options, const PushdownOptions &pushdown,
		const std::string &path, const std::string &secondary_path,
		const std::vector<rocksdb::ColumnFamilyDescriptor> &families,
		std::vector<rocksdb::ColumnFamilyHandle *> *handles, PushdownDB **db);

	~PushdownDB() override;

	/*
	 * Get() is as DB::Get(), and linearizable with all concurrent changes of the database: it
	 * searches the tables of the version whose memtables it searched before (view.h). MultiGet() is
	 * as DB::MultiGet(): all keys are read at the same moment; keys of several column families may
	 * share commands.
	 */
	using rocksdb::StackableDB::Get;
	using rocksdb::StackableDB::MultiGet;
#if ROCKSDB_MAJOR >= 9
	/* All other forms of DB call these. RocksDB serves calls with timestamps. */
	rocksdb::Status Get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value, std::string *timestamp) override;
	void MultiGet(const rocksdb::ReadOptions &options, size_t count,
		rocksdb::ColumnFamilyHandle **families, const rocksdb::Slice *keys,
		rocksdb::PinnableSlice *values, std::string *timestamps, rocksdb::Status *statuses,
		bool sorted = false) override;
#else
	rocksdb::Status Get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value) override;
	/* RocksDB serves calls that ask for a timestamp. */
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

	/* As in DB. Families created here are pushed down like those given to Open(), until their
	 * handle is deleted. */
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

	/* As DB::TryCatchUpWithPrimary(). RocksDB serves all reads while it runs, and after it has
	 * failed, until it succeeds. */
	rocksdb::Status TryCatchUpWithPrimary() override;

	/* As DB::Close(). RocksDB serves all reads from then on. */
	rocksdb::Status Close() override;
#if ROCKSDB_MAJOR >= 9
	/* As DB::WaitForCompact(). */
	rocksdb::Status WaitForCompact(const rocksdb::WaitForCompactOptions &options) override;
#endif

	using rocksdb::StackableDB::SetDBOptions;
	/* As DB::SetDBOptions(), but changing max_open_files is refused: InvalidArgument. */
	rocksdb::Status SetDBOptions(
		const std::unordered_map<std::string, std::string> &options) override;

	using rocksdb::StackableDB::GetIntProperty;
	using rocksdb::StackableDB::GetProperty;
	/*
	 * As in DB, and stats() by name: "bpfof.gets." followed by the name() of a ReadPath ('-' for a
	 * space), "bpfof.blocks" and so on; "bpfof.ready", 1 if wait_ready() would not wait; as text
	 * also "bpfof.sample-rate", "bpfof.stats", all of stats() as JSON, and "bpfof.last-error".
	 */
	bool GetProperty(rocksdb::ColumnFamilyHandle *family, const rocksdb::Slice &property,
		std::string *value) override;
	bool GetIntProperty(rocksdb::ColumnFamilyHandle *family, const rocksdb::Slice &property,
		uint64_t *value) override;

	/* As in DB; StackableDB does not forward these. */
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

	/* Changes how reads are served from now on; the initial mode is kChains. For comparisons. */
	void set_mode(Mode mode);

	PushdownStats stats() const;
	/* Why the last chain failed, or a table was refused, or the target does not know where a table
	 * lies, so that its chains run on this machine; or "". */
	std::string last_error() const;
	/* Waits until the current tables are known, here and at the target, at most `timeout_ms`;
	 * returns whether they are. For tests and measurements: earlier reads are correct, too. */
	bool wait_ready(unsigned timeout_ms);

    private:
	friend class Opening;
	struct State;
	class ManyGets;

	PushdownDB(std::shared_ptr<rocksdb::DB> db, std::unique_ptr<State> state);

	/* Creates a family by `create`, which gets the adapted options, and follows the family. */
	template <typename Create>
	rocksdb::Status create(const rocksdb::ColumnFamilyOptions &options, const std::string &name,
		rocksdb::ColumnFamilyHandle **handle, Create create);
	/* Writes the report of PushdownOptions::report. */
	void report() const;
	rocksdb::Status get(const rocksdb::ReadOptions &options, rocksdb::ColumnFamilyHandle *family,
		const rocksdb::Slice &key, rocksdb::PinnableSlice *value);
	/* MultiGet() of keys that may belong to different families. */
	void multi_get(const rocksdb::ReadOptions &options, size_t count,
		rocksdb::ColumnFamilyHandle **families, const rocksdb::Slice *keys,
		rocksdb::PinnableSlice *values, rocksdb::Status *statuses, bool sorted);
	/* The same, unless RocksDB serves all keys. */
	void get_many(const rocksdb::ReadOptions &options, size_t count,
		rocksdb::ColumnFamilyHandle **families, const rocksdb::Slice *keys,
		rocksdb::PinnableSlice *values, rocksdb::Status *statuses, bool sorted);

	std::unique_ptr<State> state_;
};

} /* namespace bpf_of */

#endif
