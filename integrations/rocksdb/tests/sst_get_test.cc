// SPDX-License-Identifier: Apache-2.0 OR MIT
// sst_get OBJECT: the storage function against tables that RocksDB wrote, in all the forms that it
// claims to read: the same answers as DB::Get, and from damaged tables an error or the same answer.
#include <ftw.h>
#include <rocksdb/convenience.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/wide_columns.h>

#include <map>
#include <memory>
#include <random>
#include <set>

#include "formats.h"
#include "open.h"
#include "sst_lookup.h"

namespace {

using rocksdb::BlockBasedTableOptions;

// How tables are written.
struct Form {
	uint32_t version = 5;
	rocksdb::CompressionType compression = rocksdb::kNoCompression;
	rocksdb::ChecksumType checksum = rocksdb::kXXH3;
	bool partitioned = false;
	int index_interval = 1;
	bool hash = false;
	size_t block_size = 256;

	uint8_t levels() const { return partitioned ? 2 : 1; }

	std::string Name() const
	{
		return "format " + std::to_string(version) + ", compression " +
		       std::to_string(compression) + ", checksum " + std::to_string(checksum) +
		       ", index levels " + std::to_string(levels()) + ", restarts every " +
		       std::to_string(index_interval) + (hash ? ", hash" : "") + ", blocks of " +
		       std::to_string(block_size);
	}

	rocksdb::ColumnFamilyOptions Options() const
	{
		BlockBasedTableOptions table;
		table.format_version = version;
		table.checksum = checksum;
		table.index_type = partitioned ? BlockBasedTableOptions::kTwoLevelIndexSearch
					       : BlockBasedTableOptions::kBinarySearch;
		table.metadata_block_size = 128;
		table.index_block_restart_interval = index_interval;
		table.data_block_index_type = hash ? BlockBasedTableOptions::kDataBlockBinaryAndHash
						   : BlockBasedTableOptions::kDataBlockBinarySearch;
		table.block_size = block_size;
		rocksdb::ColumnFamilyOptions options;
		options.compression = compression;
		options.disable_auto_compactions = true;
		options.num_levels = 4;
		options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
		return options;
	}
};

std::vector<Form> AllForms()
{
	std::vector<Form> forms;
	for (uint32_t version = 2; version <= NEWEST_FORMAT; version++)
		for (auto compression : {rocksdb::kNoCompression, rocksdb::kSnappyCompression,
			     rocksdb::kLZ4Compression, rocksdb::kLZ4HCCompression, rocksdb::kZSTD})
			for (auto checksum : {rocksdb::kNoChecksum, rocksdb::kCRC32c, rocksdb::kXXH3})
				for (bool partitioned : {false, true})
					for (int interval : {1, 16})
						for (bool hash : {false, true})
							for (size_t block_size : {256, 4096})
								forms.push_back({version, compression,
									checksum, partitioned, interval,
									hash, block_size});
	return forms;
}

// A database of its own, removed at the end. It is in memory unless TMPDIR says otherwise: on a disk
// most of the time would go into making thousands of small tables durable.
class Database {
    public:
	Database()
	{
		const char *temporary = getenv("TMPDIR");
		path_ = std::string(temporary ? temporary : "/dev/shm") + "/sst_get_test.XXXXXX";
		CHECK(mkdtemp(&path_[0]), "making %s: %s", path_.c_str(), strerror(errno));
		rocksdb::Options options;
		options.create_if_missing = true;
		options.info_log_level = rocksdb::FATAL_LEVEL;
		CHECK_OK(bpf_of::open_database(&db_, options, path_));
		write_.disableWAL = true;
	}
	Database(const Database &) = delete;
	Database &operator=(const Database &) = delete;
	~Database()
	{
		delete db_;
		nftw(
			path_.c_str(),
			[](const char *path, const struct stat *, int, struct FTW *) {
				return remove(path);
			},
			16, FTW_DEPTH | FTW_PHYS);
	}

	// Begins with an empty column family of this form.
	void Begin(const Form &form)
	{
		form_ = form;
		CHECK_OK(db_->CreateColumnFamily(form.Options(), "tables", &family_));
	}

	void End()
	{
		for (const auto *snapshot : snapshots_)
			db_->ReleaseSnapshot(snapshot);
		snapshots_.clear();
		CHECK_OK(db_->DropColumnFamily(family_));
		CHECK_OK(db_->DestroyColumnFamilyHandle(family_));
	}

	void Put(const std::string &key, const std::string &value)
	{
		CHECK_OK(db_->Put(write_, family_, key, value));
	}
	void Delete(const std::string &key) { CHECK_OK(db_->Delete(write_, family_, key)); }
	void SingleDelete(const std::string &key) { CHECK_OK(db_->SingleDelete(write_, family_, key)); }
	void PutEntity(const std::string &key)
	{
		CHECK_OK(db_->PutEntity(write_, family_, key, {{"column", "value"}}));
	}

	// Flushes memtables into tables of a level, in files of up to file_size bytes.
	void Flush(int level, uint64_t file_size = UINT64_MAX)
	{
		CHECK_OK(db_->Flush(rocksdb::FlushOptions(), family_));
		if (level == 0)
			return;
		rocksdb::ColumnFamilyMetaData data;
		db_->GetColumnFamilyMetaData(family_, &data);
		std::vector<std::string> files;
		for (const auto &file : data.levels[0].files)
			files.push_back(file.name);
		rocksdb::CompactionOptions options;
		options.compression = form_.compression;
		options.output_file_size_limit = file_size;
		CHECK_OK(db_->CompactFiles(options, family_, files, level));
	}

	void Snapshot() { snapshots_.push_back(db_->GetSnapshot()); }

	rocksdb::Status Get(
		const std::string &key, const rocksdb::Snapshot *snapshot, std::string *value)
	{
		rocksdb::ReadOptions options;
		options.snapshot = snapshot;
		return db_->Get(options, family_, key, value);
	}

	const std::vector<const rocksdb::Snapshot *> &snapshots() const { return snapshots_; }
	Tables Open() const { return Tables(db_, family_, form_.version, form_.levels()); }
	rocksdb::DB *db() { return db_; }
	rocksdb::ColumnFamilyHandle *family() { return family_; }

    private:
	std::string path_;
	Form form_;
	rocksdb::DB *db_ = nullptr;
	rocksdb::ColumnFamilyHandle *family_ = nullptr;
	rocksdb::WriteOptions write_;
	std::vector<const rocksdb::Snapshot *> snapshots_;
};

constexpr int kKeys = 50;
// A key with so many versions that they fill several blocks of 4 KiB.
const std::string kHot = "key0030hot";
constexpr int kHotVersions = 12;

// Even numbers are written, odd ones are not. Some keys are long, some are prefixes of others.
std::string Key(int number)
{
	char digits[16];
	snprintf(digits, sizeof(digits), "key%04d", number);
	return digits + std::string(number % 5 ? 0 : number % 40, 'x');
}

std::string Value(int number, int round, size_t size)
{
	const std::string part = std::to_string(number) + "." + std::to_string(round) + ",";
	std::string value;
	while (value.size() < size)
		value += part;
	return value;
}

// Four rounds of writes to three levels; snapshots keep replaced versions.
void Fill(Database *database)
{
	for (int i = 0; i < kKeys; i += 2)
		database->Put(Key(i), Value(i, 0, 30 + i % 50));
	database->Flush(3, 2048);
	database->Snapshot();
	for (int i = 0; i < kKeys; i += 2) {
		if (i % 20 == 0)
			database->SingleDelete(Key(i));
		else if (i % 6 == 0)
			database->Delete(Key(i));
		else if (i % 8 == 0)
			database->Put(Key(i), Value(i, 1, 60));
	}
	for (int version = 0; version < kHotVersions; version++) {
		database->Put(kHot, Value(version, 1, 700));
		database->Snapshot();
	}
	database->Flush(2);
	for (int i = 0; i < kKeys; i += 14)
		database->Put(Key(i + i % 4), Value(i, 2, 90));
	database->Delete(kHot);
	database->Put(Key(12), "");
	database->Flush(0);
	database->Snapshot();
	for (int i = 0; i < kKeys; i += 10)
		database->Put(Key(i), Value(i, 3, 40));
	database->Put(kHot, "again");
	database->Delete(Key(28));
	database->Flush(0);
}

// Counts what has occurred, so that no test passes because something never did.
struct Seen {
	std::map<uint32_t, uint64_t> statuses;
	std::map<int, uint64_t> flags, compressions;
	uint32_t most_blocks = 0;
};

void Compare(Chains *chains, Database *database, const Tables &tables, const std::string &key,
	const rocksdb::Snapshot *snapshot, const std::string &form, Seen *seen)
{
	const auto number =
		snapshot ? snapshot->GetSequenceNumber() : database->db()->GetLatestSequenceNumber();
	const Outcome outcome = chains->Get(tables.For(key), key, NewestTag(number));
	std::string wanted;
	const rocksdb::Status status = database->Get(key, snapshot, &wanted);
	const std::string what = form + ": key " + key + " at " + std::to_string(number);

	CHECK(!outcome.error, "%s: %s", what.c_str(), outcome.message.c_str());
	if (status.IsNotFound()) {
		CHECK(outcome.Absent(), "%s: status %u", what.c_str(), outcome.answer.status);
	} else {
		CHECK_OK(status);
		CHECK(outcome.answer.status == SST_FOUND, "%s: status %u", what.c_str(),
			outcome.answer.status);
		CHECK(outcome.value == wanted && outcome.answer.value_size == wanted.size(),
			"%s: %s for %s", what.c_str(), outcome.value.c_str(), wanted.c_str());
		CHECK(outcome.answer.tag >> 8 <= number && (outcome.answer.tag & 0xff) == 1,
			"%s: tag %llx", what.c_str(), outcome.answer.tag);
	}
	seen->statuses[outcome.answer.status]++;
	seen->most_blocks = std::max(seen->most_blocks, outcome.answer.blocks);
}

void TestForm(Chains *chains, Database *database, const Form &form, size_t turn, Seen *seen)
{
	database->Begin(form);
	Fill(database);
	{
		const Tables tables = database->Open();
		const auto &snapshots = database->snapshots();
		const std::string name = form.Name();

		for (const Table &table : tables.All()) {
			CHECK(!!(table.where.flags & SST_INDEX_DELTA) == (form.version >= 4), "%s",
				name.c_str());
			seen->flags[table.where.flags]++;
			seen->compressions[table.compression]++;
		}
		for (int i = 0; i < kKeys; i++) {
			// Compares each key at one of the snapshots, another for each form, or now.
			const size_t number = (i * 5 + turn) % (snapshots.size() + 1);
			Compare(chains, database, tables, Key(i),
				number < snapshots.size() ? snapshots[number] : nullptr, name, seen);
		}
		for (const auto *snapshot : snapshots)
			Compare(chains, database, tables, kHot, snapshot, name, seen);
		for (const char *key : {"", "a", "key", "key0030hos", "key0030hotter", "zzz"})
			Compare(chains, database, tables, key, nullptr, name, seen);
		for (const Table &table : tables.All())
			chains->Forget(table);
	}
	database->End();
}

void TestForms(Chains *chains, Database *database)
{
	const std::vector<Form> forms = AllForms();
	const uint64_t before = chains->chains;
	Seen seen;
	for (size_t turn = 0; turn < forms.size(); turn++)
		TestForm(chains, database, forms[turn], turn, &seen);
	for (uint32_t status : {SST_NOT_FOUND, SST_FOUND, SST_DELETED})
		CHECK(seen.statuses[status] > 0, "status %u never occurred", status);
	for (int flags = 0; flags < 4; flags++)
		CHECK(seen.flags[flags] > 0, "index flags %d never occurred", flags);
	for (int compression : {0, 1, 4, 5, 7})
		CHECK(seen.compressions[compression] > 0, "no index had compression %d", compression);
	CHECK(seen.most_blocks >= 9, "no key was looked for in more than %u blocks", seen.most_blocks);
	printf("%zu forms of tables: %llu lookups as DB::Get; %llu found, %llu deleted, %llu absent\n",
		forms.size(), (unsigned long long)(chains->chains - before),
		(unsigned long long)seen.statuses[SST_FOUND],
		(unsigned long long)seen.statuses[SST_DELETED],
		(unsigned long long)seen.statuses[SST_NOT_FOUND]);
}

// Tests that do not depend on the form: unknown types, values without room, the data block itself as
// the beginning, invalid arguments.
void TestAnswers(Chains *chains, Database *database)
{
	Form form;
	form.block_size = 1 << 20;
	database->Begin(form);
	database->Put("b", "value of b");
	database->PutEntity("entity");
	database->Put("long", Value(0, 0, 5000));
	database->Flush(0);
	const std::vector<Table> tables = database->Open().All();
	Table table = tables[0];
	table.fd = open(table.path.c_str(), O_RDONLY | O_CLOEXEC);

	const auto entity = chains->Get({table}, "entity", UINT64_MAX);
	CHECK(entity.answer.status == SST_OTHER && (entity.answer.tag & 0xff) == 0x16 &&
			entity.value.empty(),
		"entity: status %u", entity.answer.status);
	const auto is_long = chains->Get({table}, "long", UINT64_MAX);
	CHECK(is_long.answer.status == SST_TOO_LONG && is_long.answer.value_size >= 5000 &&
			is_long.value.empty(),
		"long: status %u", is_long.answer.status);
	const auto fits = chains->Get({table}, "long", UINT64_MAX, 8192);
	CHECK(fits.answer.status == SST_FOUND && fits.value == Value(0, 0, 5000), "long, with room");

	rocksdb::TablePropertiesCollection properties;
	CHECK_OK(database->db()->GetPropertiesOfAllTables(database->family(), &properties));
	Table data = table;
	data.where.offset = 0;
	data.where.size = properties.begin()->second->data_size - SST_TRAILER_BYTES;
	data.where.levels = 0;
	const auto in_data = chains->Get({data}, "b", UINT64_MAX);
	CHECK(in_data.value == "value of b" && in_data.answer.blocks == 1, "b: %s",
		in_data.message.c_str());
	for (const char *key : {"a", "c", "z"})
		CHECK(chains->Get({data}, key, UINT64_MAX).answer.status == SST_NOT_FOUND, "%s", key);

	const auto small = chains->Get({table}, "b", UINT64_MAX,
		sizeof(sst_get_request) + sizeof(sst_table) + 2);
	CHECK(small.Damaged() && small.code == DAMAGE_KEY_TOO_LONG, "code %u", small.code);
	Table unknown = table;
	unknown.where.checksum = 3;
	const auto refused = chains->Get({unknown}, "b", UINT64_MAX);
	CHECK(refused.Damaged() && refused.code == DAMAGE_REQUEST, "code %u", refused.code);
	unknown = table;
	unknown.where.flags = 4;
	CHECK(chains->Get({unknown}, "b", UINT64_MAX).code == DAMAGE_REQUEST, "an unknown flag");
	chains->Forget(table);
	close(table.fd);
	database->End();
	puts("answers: other types, long values, a data block to begin with, refused arguments");
}

// A copy of the database's only table, to be damaged.
Table Copy(const Table &table, std::string *contents)
{
	Table copy = table;
	copy.fd = open(table.path.c_str(), O_RDONLY | O_CLOEXEC);
	contents->resize(lseek(copy.fd, 0, SEEK_END));
	CHECK(pread(copy.fd, &(*contents)[0], contents->size(), 0) == ssize_t(contents->size()),
		"reading %s", table.path.c_str());
	close(copy.fd);
	copy.path += ".damaged";
	copy.fd = open(copy.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(copy.fd >= 0, "making %s: %s", copy.path.c_str(), strerror(errno));
	CHECK(pwrite(copy.fd, contents->data(), contents->size(), 0) == ssize_t(contents->size()),
		"writing %s", copy.path.c_str());
	return copy;
}

// Flips bits of each block. With a checksum every lookup is as before or reports damage, and some do;
// without one it ends, and neither by a fault nor by the limits of chains.
uint64_t Damage(Chains *chains, Database *database, const Form &form, std::mt19937 *random)
{
	database->Begin(form);
	for (int i = 0; i < kKeys; i += 2)
		database->Put(Key(i), Value(i, 0, 30 + i % 50));
	database->Flush(0);
	std::string contents;
	const Table table = Copy(database->Open().All()[0], &contents);
	const size_t end = table.where.offset + table.where.size + SST_TRAILER_BYTES;
	const bool checked = form.checksum != rocksdb::kNoChecksum;
	uint64_t damaged = 0;

	for (int i = 0; i < kKeys; i += 2)
		CHECK(chains->Get({table}, Key(i), UINT64_MAX).value == Value(i, 0, 30 + i % 50),
			"%s: %s", form.Name().c_str(), Key(i).c_str());
	for (size_t at = (*random)() % 16; at < end; at += 1 + (*random)() % 90) {
		const uint8_t flipped = uint8_t(contents[at]) ^ (1 + (*random)() % 255);
		bool told = false;
		CHECK(pwrite(table.fd, &flipped, 1, at) == 1, "writing %s", table.path.c_str());
		for (int i = 0; i < kKeys; i += 2) {
			const Outcome outcome = chains->Get({table}, Key(i), UINT64_MAX);
			told |= outcome.Damaged();
			CHECK(outcome.error == 0 || outcome.error == ECANCELED ||
					(!checked && outcome.error == ERANGE),
				"%s, byte %zu: %s", form.Name().c_str(), at, outcome.message.c_str());
			if (!checked)
				continue;
			CHECK(!outcome.Damaged() || outcome.code == DAMAGE_CHECKSUM, "code %u",
				outcome.code);
			CHECK(outcome.Damaged() || outcome.value == Value(i, 0, 30 + i % 50),
				"%s, byte %zu: %s", form.Name().c_str(), at, Key(i).c_str());
		}
		CHECK(told || !checked, "%s: damage of byte %zu was not noticed", form.Name().c_str(), at);
		damaged += told;
		CHECK(pwrite(table.fd, &contents[at], 1, at) == 1, "writing %s", table.path.c_str());
	}
	chains->Forget(table);
	close(table.fd);
	unlink(table.path.c_str());
	database->End();
	return damaged;
}

void TestDamage(Chains *chains, Database *database)
{
	std::mt19937 random(20240117);
	const uint64_t before = chains->chains;
	uint64_t damaged = 0;
	for (auto checksum : {rocksdb::kNoChecksum, rocksdb::kCRC32c, rocksdb::kXXH3})
		for (auto compression : {rocksdb::kNoCompression, rocksdb::kSnappyCompression,
			     rocksdb::kLZ4Compression, rocksdb::kZSTD}) {
			Form form;
			form.compression = compression;
			form.checksum = checksum;
			form.version = checksum == rocksdb::kCRC32c ? 3 : NEWEST_FORMAT;
			form.partitioned = compression != rocksdb::kLZ4Compression;
			form.index_interval = compression == rocksdb::kSnappyCompression ? 1 : 16;
			form.hash = checksum != rocksdb::kCRC32c;
			const uint64_t told = Damage(chains, database, form, &random);
			CHECK(told > 0, "%s: no damage was reported", form.Name().c_str());
			damaged += told;
		}
	printf("damage: %llu places reported, %llu lookups\n", (unsigned long long)damaged,
		(unsigned long long)(chains->chains - before));
}

} // namespace

int main(int count, char **arguments)
{
	CHECK(count == 2, "usage: sst_get_test OBJECT, the compiled sst_get.bpf.c");
	Chains chains(arguments[1]);
	Database database;
	TestAnswers(&chains, &database);
	TestDamage(&chains, &database);
	TestForms(&chains, &database);
	return 0;
}
