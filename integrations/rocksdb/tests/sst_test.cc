// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Index against tables that RocksDB wrote: for every version of every key, whether the block it names
// holds that version, according to an independent reader of data blocks; then the same tables damaged,
// and tables that no RocksDB would write.
//
//     g++ -std=c++17 -I../src sst_test.cc ../src/sst.cc -o sst_test -lrocksdb -lsnappy -llz4 -lzstd
//     ./sst_test
#include "sst.h"

#include <fcntl.h>
#include <lz4.h>
#include <rocksdb/db.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/debug.h>
#include <snappy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "formats.h"
#include "open.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <set>

using bpf_of::sst::Footer;
using bpf_of::sst::Handle;
using bpf_of::sst::Index;
using bpf_of::sst::IndexShape;
using bpf_of::sst::read_footer;
using rocksdb::Slice;
using rocksdb::Status;

namespace {

// The current test subject, for failure messages.
std::string subject;
thread_local size_t allocations;
thread_local size_t largest_allocation;

constexpr size_t kPlenty = 1 << 20;

#define CHECK(condition) Check((condition), #condition, __LINE__)
#define MUST(call)                                                                                     \
	do {                                                                                           \
		const Status must = (call);                                                            \
		Check(must.ok(), #call " is " + must.ToString(), __LINE__);                            \
	} while (0)

void Fail(const std::string &what, int line)
{
	fprintf(stderr, "sst_test.cc:%d: check failed: %s (%s)\n", line, what.c_str(), subject.c_str());
	exit(1);
}

void Check(bool holds, const char *what, int line)
{
	if (!holds)
		Fail(what, line);
}

void Check(bool holds, const std::string &what, int line)
{
	if (!holds)
		Fail(what, line);
}

} // namespace

// Not inlined, so that the compiler always sees matching pairs of new and delete.
__attribute__((noinline)) void *operator new(size_t bytes)
{
	allocations++;
	if (bytes > largest_allocation)
		largest_allocation = bytes;
	void *memory = malloc(bytes);
	if (memory == nullptr)
		throw std::bad_alloc();
	return memory;
}

__attribute__((noinline)) void operator delete(void *memory) noexcept
{
	free(memory);
}
__attribute__((noinline)) void operator delete(void *memory, size_t) noexcept
{
	free(memory);
}

namespace {

using TableOptions = rocksdb::BlockBasedTableOptions;

struct Case {
	uint32_t format_version;
	rocksdb::CompressionType compression;
	rocksdb::ChecksumType checksum;
	TableOptions::IndexType index;
	int restart_interval;

	bool partitioned() const { return index == TableOptions::kTwoLevelIndexSearch; }
	bool first_keys() const { return index == TableOptions::kBinarySearchWithFirstKey; }
};

std::string NameOf(const Case &c)
{
	return "format_version " + std::to_string(c.format_version) + ", compression " +
	       std::to_string(c.compression) + ", checksum " + std::to_string(c.checksum) +
	       ", index " + std::to_string(c.index) + ", restarts every " +
	       std::to_string(c.restart_interval);
}

struct Version {
	std::string key;
	uint64_t tag;
	std::string value;
};

// Whether a version precedes key and tag, in the order of tables.
bool IsBefore(const Version &version, const Slice &key, uint64_t tag)
{
	const int order = Slice(version.key).compare(key);
	return order != 0 ? order < 0 : version.tag > tag;
}

// A table and its versions, in order.
struct Table {
	std::string bytes;
	std::vector<Version> versions;
	IndexShape shape;
	uint64_t data_blocks;
	uint64_t data_bytes;
};

// A file in memory.
class File {
    public:
	explicit File(const std::string &bytes) : fd_(memfd_create("sst_test", 0))
	{
		CHECK(fd_ >= 0 &&
			write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
	}
	~File() { close(fd_); }
	int fd() const { return fd_; }
	void Put(size_t offset, char byte) { CHECK(pwrite(fd_, &byte, 1, offset) == 1); }

    private:
	int fd_;
};

std::string ReadFile(const std::string &path)
{
	FILE *file = fopen(path.c_str(), "rb");
	CHECK(file != nullptr);
	std::string bytes;
	char part[4096];
	for (size_t got; (got = fread(part, 1, sizeof(part), file)) > 0;)
		bytes.append(part, got);
	fclose(file);
	return bytes;
}

rocksdb::Options OptionsOf(const Case &c)
{
	rocksdb::BlockBasedTableOptions table;
	table.format_version = c.format_version;
	table.checksum = c.checksum;
	table.block_size = 256;
	table.metadata_block_size = 256;
	table.index_block_restart_interval = c.restart_interval;
	table.index_type = c.index;
	table.no_block_cache = true;
	rocksdb::Options options;
	options.create_if_missing = true;
	options.compression = c.compression;
	options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
	options.info_log_level = rocksdb::FATAL_LEVEL;
	options.stats_dump_period_sec = 0;
	options.disable_auto_compactions = true;
	return options;
}

// Keys of several lengths; some are prefixes of the next.
std::string KeyOf(int number)
{
	char key[32];
	snprintf(key, sizeof(key), "row%05d", number / 3);
	return key + std::string(number % 3 * 5, static_cast<char>('a' + number % 7));
}

std::string ValueOf(int number)
{
	return std::string(20 + number % 50, static_cast<char>('A' + number % 26));
}

void ReadTable(const Case &c, const std::string &path, Table *table)
{
	table->bytes = ReadFile(path);
	rocksdb::SstFileReader reader(OptionsOf(c));
	MUST(reader.Open(path));
	const auto properties = reader.GetTableProperties();
	table->shape.user_keys = properties->index_key_is_user_key != 0;
	table->shape.delta = properties->index_value_is_delta_encoded != 0;
	table->shape.partitioned = properties->index_partitions != 0;
	table->shape.first_keys = c.first_keys();
	table->data_blocks = properties->num_data_blocks;
	table->data_bytes = properties->data_size;
	CHECK(table->shape.partitioned == c.partitioned());
	CHECK(!c.partitioned() || properties->index_partitions > 1);
	CHECK(table->shape.delta == (c.format_version >= 4));
	CHECK(table->data_blocks > 20);
}

// Compacted from several flushes, with many versions of each key, kept by snapshots; the versions of
// one key fill many blocks.
Table VersionsTable(const Case &c, const std::string &directory)
{
	const rocksdb::Options options = OptionsOf(c);
	rocksdb::DB *opened;
	MUST(bpf_of::open_database(&opened, options, directory));
	std::unique_ptr<rocksdb::DB> db(opened);
	rocksdb::WriteOptions quick;
	quick.disableWAL = true;
	std::vector<const rocksdb::Snapshot *> snapshots;
	for (int round = 0; round < 40; round++) {
		for (int number = 0; number < 60; number += 1 + round % 5 * 3) {
			if (number % 9 == 0 && round % 4 == 3) {
				MUST(db->Delete(quick, KeyOf(number)));
			} else {
				MUST(db->Put(quick, KeyOf(number), ValueOf(number + round)));
			}
		}
		for (int number = 0; number < 3; number++)
			MUST(db->Put(quick, KeyOf(31), ValueOf(number)));
		snapshots.push_back(db->GetSnapshot());
		if (round % 20 == 19)
			MUST(db->Flush(rocksdb::FlushOptions()));
	}
	MUST(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr));
	std::vector<rocksdb::KeyVersion> found;
	MUST(rocksdb::GetAllKeyVersions(db.get(), "", "\xff", 1 << 20, &found));
	std::vector<rocksdb::LiveFileMetaData> files;
	db->GetLiveFilesMetaData(&files);
	CHECK(files.size() == 1);
	Table table;
	for (const auto &version : found) {
		table.versions.push_back({version.user_key,
			version.sequence << 8 | static_cast<uint8_t>(version.type), version.value});
	}
	ReadTable(c, directory + files[0].name, &table);
	CHECK(!table.shape.user_keys);
	for (const auto *snapshot : snapshots)
		db->ReleaseSnapshot(snapshot);
	MUST(db->Close());
	db.reset();
	MUST(rocksdb::DestroyDB(directory, options));
	return table;
}

// As for ingestion: one version of each key, all with sequence number 0.
Table SingleTable(const Case &c, const std::string &path, int keys)
{
	rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), OptionsOf(c));
	MUST(writer.Open(path));
	std::map<std::string, std::string> sorted;
	for (int number = 0; number < keys; number++)
		sorted[KeyOf(number)] = ValueOf(number);
	Table table;
	for (const auto &[key, value] : sorted) {
		MUST(writer.Put(key, value));
		table.versions.push_back({key, 1, value});
	}
	MUST(writer.Finish());
	ReadTable(c, path, &table);
	CHECK(table.shape.user_keys == (c.format_version >= 3));
	CHECK(unlink(path.c_str()) == 0);
	return table;
}

// An independent reader of data blocks: fails the test at any irregularity.

uint32_t Varint(const std::string &bytes, size_t *at)
{
	uint32_t value = 0;
	for (int shift = 0;; shift += 7) {
		const uint32_t byte = static_cast<uint8_t>(bytes.at((*at)++));
		value |= (byte & 127) << shift;
		if (byte < 128)
			return value;
	}
}

std::string Contents(const Table &table, const Handle &block)
{
	const std::string raw = table.bytes.substr(block.offset, block.size);
	const char kind = table.bytes.at(block.offset + block.size);
	if (kind == 0)
		return raw;
	std::string contents;
	if (kind == 1) {
		CHECK(snappy::Uncompress(raw.data(), raw.size(), &contents));
		return contents;
	}
	size_t at = 0;
	contents.resize(Varint(raw, &at));
	if (kind == 4) {
		CHECK(LZ4_decompress_safe(&raw[at], &contents[0], static_cast<int>(raw.size() - at),
			      static_cast<int>(contents.size())) == static_cast<int>(contents.size()));
	} else {
		CHECK(kind == 7);
		CHECK(ZSTD_decompress(&contents[0], contents.size(), &raw[at], raw.size() - at) ==
			contents.size());
	}
	return contents;
}

std::vector<Version> DataBlock(const Table &table, const Handle &block)
{
	const std::string contents = Contents(table, block);
	uint32_t restarts;
	memcpy(&restarts, &contents.at(contents.size() - 4), 4);
	std::vector<Version> versions;
	std::string key;
	for (size_t at = 0; at < contents.size() - 4 * (restarts + 1);) {
		const uint32_t shared = Varint(contents, &at);
		const uint32_t unshared = Varint(contents, &at);
		const uint32_t value_size = Varint(contents, &at);
		key = key.substr(0, shared) + contents.substr(at, unshared);
		at += unshared;
		Version version{key.substr(0, key.size() - 8), 0, contents.substr(at, value_size)};
		memcpy(&version.tag, &key.at(key.size() - 8), 8);
		versions.push_back(version);
		at += value_size;
	}
	return versions;
}

// The blocks of a table that were read.
class Blocks {
    public:
	explicit Blocks(const Table &table) : table_(table) {}
	const std::vector<Version> &At(const Handle &block)
	{
		CHECK(sizes_.emplace(block.offset, block.size).first->second == block.size);
		auto &versions = blocks_[block.offset];
		if (versions.empty())
			versions = DataBlock(table_, block);
		return versions;
	}
	size_t count() const { return blocks_.size(); }
	const std::map<uint64_t, std::vector<Version>> &all() const { return blocks_; }
	uint64_t EndOf(uint64_t offset) const { return offset + sizes_.at(offset) + 5; }
	uint64_t bytes() const
	{
		uint64_t sum = 0;
		for (const auto &[offset, size] : sizes_)
			sum += size + 5;
		return sum;
	}

    private:
	const Table &table_;
	std::map<uint64_t, uint64_t> sizes_;
	std::map<uint64_t, std::vector<Version>> blocks_;
};

// Counts of checks, to be printed.
size_t tables, present, absent, beyond, spanning, damaged, refused;
// Kinds of compression that index blocks had.
std::set<int> index_compressions;

// Compares Seek with the list of all versions. True if a version exists.
bool CheckSeek(const Table &table, const Index &index, Blocks *blocks, const Slice &key, uint64_t tag)
{
	size_t low = 0;
	size_t high = table.versions.size();
	while (low < high) {
		const size_t middle = (low + high) / 2;
		if (IsBefore(table.versions[middle], key, tag))
			low = middle + 1;
		else
			high = middle;
	}
	const bool exists = low < table.versions.size() && table.versions[low].key == key;
	Handle block;
	const size_t allocations_before = allocations;
	const bool found = index.seek(key, tag, &block);
	CHECK(allocations == allocations_before);
	if (!found) {
		CHECK(!exists);
		beyond++;
		return false;
	}
	// The first visible version is the one that Get must find.
	const Version *seen = nullptr;
	for (const Version &version : blocks->At(block)) {
		if (seen == nullptr && !IsBefore(version, key, tag))
			seen = &version;
	}
	if (exists) {
		CHECK(seen != nullptr && seen->key == key && seen->tag == table.versions[low].tag);
		CHECK(seen->value == table.versions[low].value);
		present++;
	} else {
		CHECK(seen == nullptr || seen->key != key);
		absent++;
	}
	return exists;
}

// Compares Scan with the contents of the blocks, all of which were read before.
void CheckScan(const Index &index, const Blocks &blocks, const Slice &first, const Slice *last,
	uint64_t ahead_bytes)
{
	Handle block;
	bpf_of::sst::Run run;
	Slice end;
	const size_t allocations_before = allocations;
	const bool found = index.scan(first, last, ahead_bytes, &run, &end);
	CHECK(found == index.seek(first, UINT64_MAX, &block));
	CHECK(allocations == allocations_before);
	if (!found)
		return;
	CHECK(run.offset == block.offset);
	const uint64_t run_end = run.offset + run.size, enough = blocks.EndOf(run.offset) + ahead_bytes;
	uint64_t previous = 0;
	for (const auto &[offset, versions] : blocks.all()) {
		const bool is_in = offset >= run.offset && offset < run_end;
		// Whole blocks, of which each but the first was still needed.
		CHECK(!is_in || blocks.EndOf(offset) <= run_end);
		CHECK(!is_in || offset == run.offset || blocks.EndOf(previous) < enough);
		CHECK(!is_in || Slice(versions.back().key).compare(end) <= 0);
		// Blocks that were left out are not part of the scan, or there was enough.
		CHECK(offset < run_end || run_end >= enough ||
			(last && Slice(versions.front().key).compare(*last) >= 0));
		// No block was taken that begins after the scan, except the one that would have `last`.
		if (is_in && offset != run.offset && last)
			CHECK(Slice(blocks.all().at(previous).back().key).compare(*last) < 0);
		previous = offset;
	}
}

void CheckScans(const Table &table, const Index &index, const Blocks &blocks)
{
	const std::vector<Version> &versions = table.versions;
	const size_t step = versions.size() / 20 + 1;
	for (size_t i = 0; i < versions.size(); i += step) {
		for (const uint64_t ahead : {0, 1, 5000, 1 << 30}) {
			CheckScan(index, blocks, versions[i].key, nullptr, ahead);
			for (size_t j = 0; j < versions.size(); j += step) {
				const Slice last = versions[j].key;
				CheckScan(index, blocks, versions[i].key, &last, ahead);
				CheckScan(index, blocks, versions[i].key + '\0', &last, ahead);
			}
		}
	}
	CheckScan(index, blocks, "\xff\xff", nullptr, 0);
}

void CheckAllSeeks(const Table &table, const Index &index)
{
	Blocks blocks(table);
	std::map<std::string, std::set<uint64_t>> places;
	for (const Version &version : table.versions) {
		CHECK(CheckSeek(table, index, &blocks, version.key, version.tag));
		CHECK(CheckSeek(table, index, &blocks, version.key, version.tag | 0xff));
		if (version.tag > 0)
			CheckSeek(table, index, &blocks, version.key, version.tag - 1);
		Handle block;
		CHECK(index.seek(version.key, version.tag, &block));
		places[version.key].insert(block.offset);
	}
	// Every block was named, and they fill the space that RocksDB reports.
	CHECK(blocks.count() == table.data_blocks);
	CHECK(blocks.bytes() == table.data_bytes);
	CheckScans(table, index, blocks);
	for (const auto &[key, offsets] : places) {
		spanning += offsets.size() > 1;
		CHECK(CheckSeek(table, index, &blocks, key, UINT64_MAX));
		CheckSeek(table, index, &blocks, key, 0);
		CHECK(!CheckSeek(table, index, &blocks, key + '\0', UINT64_MAX));
		CHECK(!CheckSeek(
			table, index, &blocks, key.substr(0, key.size() - 1) + '\x01', UINT64_MAX));
	}
	CHECK(!CheckSeek(table, index, &blocks, "", UINT64_MAX));
	CHECK(!CheckSeek(table, index, &blocks, "row", 0));
	const size_t beyond_before = beyond;
	CHECK(!CheckSeek(table, index, &blocks, "\xff\xff", UINT64_MAX));
	CHECK(beyond == beyond_before + 1);
}

void CheckTable(const Case &c, const Table &table)
{
	const File file(table.bytes);
	Footer footer;
	MUST(read_footer(file.fd(), table.bytes.size(), &footer));
	CHECK(footer.format_version == c.format_version);
	CHECK(footer.checksum == static_cast<uint8_t>(c.checksum));
	CHECK(footer.blocks_end == table.bytes.size() - 53);
	CHECK(footer.metaindex.offset > footer.index.offset);
	index_compressions.insert(table.bytes[footer.index.offset + footer.index.size]);

	std::unique_ptr<Index> index;
	MUST(Index::read(file.fd(), footer, table.shape, kPlenty, &index));
	CheckAllSeeks(table, *index);
	const size_t bytes = index->memory_bytes();
	CHECK(bytes > 16 * table.data_blocks && bytes < 64 * table.data_blocks + 256);
	CHECK(Index::read(file.fd(), footer, table.shape, bytes - 1, &index).IsMemoryLimit());
	CHECK(Index::read(file.fd(), footer, table.shape, 0, &index).IsMemoryLimit());
	MUST(Index::read(file.fd(), footer, table.shape, 2 * bytes, &index));
	tables++;
}

std::vector<Case> AllCases()
{
	std::vector<Case> cases;
	for (uint32_t format_version = 2; format_version <= NEWEST_FORMAT; format_version++)
		for (auto compression : {rocksdb::kNoCompression, rocksdb::kSnappyCompression,
			     rocksdb::kLZ4Compression, rocksdb::kZSTD})
			for (auto checksum : {rocksdb::kNoChecksum, rocksdb::kCRC32c, rocksdb::kXXH3})
				for (auto index :
					{TableOptions::kBinarySearch, TableOptions::kTwoLevelIndexSearch,
						TableOptions::kBinarySearchWithFirstKey})
					for (int restart_interval : {1, 16})
						cases.push_back({format_version, compression, checksum,
							index, restart_interval});
	return cases;
}

// Reads a damaged table. If that succeeds, its blocks must be inside the table, and if `exact`, they
// must be the right ones.
Status ReadDamaged(const File &file, const Table &table, IndexShape shape, const Index *exact)
{
	Footer footer;
	Status status = read_footer(file.fd(), table.bytes.size(), &footer);
	std::unique_ptr<Index> index;
	if (status.ok()) {
		CHECK(footer.format_version >= 2 && footer.format_version <= 7);
		CHECK(footer.checksum == 0 || footer.checksum == 1 || footer.checksum == 4);
		CHECK(footer.metaindex.offset <= footer.blocks_end);
		CHECK(footer.metaindex.size <= footer.blocks_end - footer.metaindex.offset);
	}
	if (status.ok())
		status = Index::read(file.fd(), footer, shape, kPlenty, &index);
	damaged++;
	if (!status.ok()) {
		refused++;
		CHECK(status.IsCorruption() || status.IsNotSupported() || status.IsMemoryLimit());
		return status;
	}
	CHECK(index->memory_bytes() <= 2 * kPlenty);
	for (size_t number = 0; number < table.versions.size(); number += 7) {
		const Version &version = table.versions[number];
		Handle block, right;
		const bool found = index->seek(version.key, version.tag, &block);
		if (found)
			CHECK(block.offset + block.size + 5 <= footer.blocks_end);
		if (exact == nullptr)
			continue;
		CHECK(found && exact->seek(version.key, version.tag, &right));
		CHECK(block.offset == right.offset && block.size == right.size);
	}
	return status;
}

void CheckDamage(const Case &c, const Table &table)
{
	File file(table.bytes);
	Footer footer;
	MUST(read_footer(file.fd(), table.bytes.size(), &footer));
	std::unique_ptr<Index> index;
	MUST(Index::read(file.fd(), footer, table.shape, kPlenty, &index));
	const bool verified = c.checksum != rocksdb::kNoChecksum;
	// Footers before format_version 6 have no checksum, but their fields about blocks are verified
	// by the checksum of the blocks.
	for (size_t bit = footer.blocks_end * 8; bit < table.bytes.size() * 8; bit++) {
		file.Put(bit / 8, static_cast<char>(table.bytes[bit / 8] ^ 1 << bit % 8));
		ReadDamaged(file, table, table.shape, verified ? index.get() : nullptr);
		file.Put(bit / 8, table.bytes[bit / 8]);
	}
	// All levels of the index are between the data and this.
	const uint64_t end = footer.index.offset + footer.index.size + 5;
	size_t accepted = 0;
	for (size_t bit = table.data_bytes * 8; bit < end * 8; bit += verified ? 9 : 3) {
		file.Put(bit / 8, static_cast<char>(table.bytes[bit / 8] ^ 1 << bit % 8));
		accepted += ReadDamaged(file, table, table.shape, nullptr).ok();
		file.Put(bit / 8, table.bytes[bit / 8]);
	}
	CHECK(!verified || accepted == 0);
	// Read with the wrong shape.
	for (int shape = 0; shape < 8; shape++) {
		ReadDamaged(
			file, table, {(shape & 1) != 0, (shape & 2) != 0, (shape & 4) != 0}, nullptr);
	}
	// Cut off: anywhere for the footer, and before its end for the index.
	Footer cut;
	for (uint64_t size = table.bytes.size() + 60; --size > table.bytes.size() - 60;) {
		CHECK(read_footer(file.fd(), size, &cut).ok() == (size == table.bytes.size()));
	}
	for (uint64_t size = 0; size < 60; size++)
		CHECK(!read_footer(file.fd(), size, &cut).ok());
	CHECK(ftruncate(file.fd(), static_cast<off_t>(end - 1)) == 0);
	CHECK(Index::read(file.fd(), footer, table.shape, kPlenty, &index).IsCorruption());
	CHECK(read_footer(-1, table.bytes.size(), &footer).IsIOError());
}

std::string PutVarint(uint64_t value)
{
	std::string bytes;
	for (; value > 127; value >>= 7)
		bytes += static_cast<char>(value | 128);
	return bytes + static_cast<char>(value);
}

// Reads a table, without checksums, whose index is this block after 1 MiB of other blocks.
Status ReadMade(const std::string &contents, char compression, IndexShape shape, size_t max_bytes,
	std::string other = "")
{
	other.resize(1 << 20);
	const std::string handle = PutVarint(other.size()) + PutVarint(contents.size());
	std::string footer(1, 0);
	footer += handle + handle;
	footer.resize(41);
	footer += std::string("\5\0\0\0", 4) + "\xf7\xcf\xf4\x85\xb7\x41\xe2\x88";
	const std::string bytes = other + contents + compression + std::string(4, 0) + footer;
	const File file(bytes);
	Footer read;
	MUST(read_footer(file.fd(), bytes.size(), &read));
	std::unique_ptr<Index> index;
	return Index::read(file.fd(), read, shape, max_bytes, &index);
}

const std::string one_restart("\0\0\0\0\1\0\0\0", 8);

// An entry that shares no prefix.
std::string Entry(const std::string &key, const std::string &value)
{
	return std::string(1, 0) + PutVarint(key.size()) + PutVarint(value.size()) + key + value;
}

std::string Place(uint64_t offset, uint64_t size)
{
	return PutVarint(offset) + PutVarint(size);
}

void CheckMade()
{
	subject = "tables made by hand";
	const IndexShape plain{true, false, false};
	const std::string block = Place(0, 100);
	const std::string next = Place(105, 100);
	MUST(ReadMade(one_restart, 0, plain, kPlenty));
	MUST(ReadMade(Entry("a", block) + Entry("b", next) + one_restart, 0, plain, kPlenty));
	for (const std::string &bad : {
		     std::string(),
		     std::string("\0\0\0", 3),
		     std::string("\0\0\0\0", 4),
		     std::string("\0\0\0\0\2\0\0\0", 8),
		     std::string("\0\0\0\0\1\0\0\x80", 8),
		     Entry("b", block) + Entry("a", next) + one_restart,
		     Entry("a", block) + Entry("a", next) + one_restart,
		     Entry("a", block) + Entry("b", block) + one_restart,
		     Entry("a", block + "x") + one_restart,
		     std::string("\0\1\3a", 4) + block + Entry("b", next) + one_restart,
		     Entry("a", Place(0, 1 << 21)) + one_restart,
		     Entry("a", Place(UINT64_MAX, 1)) + one_restart,
		     Entry("a", Place(1, UINT64_MAX)) + one_restart,
		     "\1" + Entry("a", block) + one_restart,
	     }) {
		CHECK(ReadMade(bad, 0, plain, kPlenty).IsCorruption());
	}
	const IndexShape tags{false, false, false};
	CHECK(ReadMade(Entry("a", block) + one_restart, 0, tags, kPlenty).IsCorruption());
	CHECK(ReadMade(one_restart, 2, plain, kPlenty).IsNotSupported());
}

// Two partitions; the first key of each has no predecessor.
void CheckMadePartitions()
{
	const std::string low = Entry("a", Place(200, 1)) + one_restart;
	const std::string place = Place(300, 1);
	const auto read = [&](const std::string &high) {
		const std::string top = Entry("a", Place(0, low.size())) +
					Entry("b", Place(low.size() + 5, high.size())) + one_restart;
		return ReadMade(top, 0, {true, false, true}, kPlenty, low + std::string(5, 0) + high);
	};
	MUST(read(Entry("ab", place) + one_restart));
	CHECK(read(std::string("\1\1\3b", 4) + place + one_restart).IsCorruption());
}

// Small blocks that claim to be large.
void CheckMadeLarge()
{
	const IndexShape plain{true, false, false};
	const IndexShape delta{true, true, false};
	// Sizes as differences: 100 - 101 is not a valid size.
	const std::string first = std::string("\0\1", 2) + "a" + Place(0, 100);
	MUST(ReadMade(first + "\1\1b" + PutVarint(199) + one_restart, 0, delta, kPlenty));
	CHECK(ReadMade(first + "\1\1b" + PutVarint(201) + one_restart, 0, delta, kPlenty)
			.IsCorruption());
	largest_allocation = 0;
	for (char compression : {1, 4, 5, 7}) {
		const std::string two_gigabytes = PutVarint(INT_MAX) + std::string(20, 0);
		CHECK(ReadMade(two_gigabytes, compression, plain, SIZE_MAX).IsCorruption());
	}
	CHECK(largest_allocation < 1 << 22);
	CHECK(ReadMade(std::string(5000, 'x'), 0, plain, 1000).IsMemoryLimit());
	CHECK(ReadMade(PutVarint(600000) + std::string(20, 0), 7, plain, 1000).IsMemoryLimit());
	std::string longer = first;
	for (unsigned shared = 1; shared < 3000; shared++) {
		longer += PutVarint(shared) + "\1a" + PutVarint(0);
	}
	CHECK(ReadMade(longer + one_restart, 0, delta, 100000).IsMemoryLimit());
}

// Computes the CRC bit by bit.
uint32_t SlowCrc(const std::string &bytes)
{
	uint32_t crc = UINT32_MAX;
	for (const char byte : bytes) {
		crc ^= static_cast<uint8_t>(byte);
		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

// The examples of RFC 3720, B.4, and all lengths.
void CheckCrc()
{
	subject = "CRC-32C";
	CHECK(SlowCrc(std::string(32, 0)) == 0x8a9136aa);
	std::string bytes;
	for (unsigned length = 0; length < 200; length++) {
		const uint32_t crc = SlowCrc(bytes);
		CHECK(bpf_of::sst::masked_crc32c(bytes.data(), length) ==
			((crc >> 15) | (crc << 17)) + 0xa282ead8);
		bytes += static_cast<char>(length * 89 + (length >> 3));
	}
}

} // namespace

int main()
{
	CheckCrc();
	CheckMade();
	CheckMadePartitions();
	CheckMadeLarge();
	char directory[] = "/dev/shm/sst_test.XXXXXX";
	CHECK(mkdtemp(directory) != nullptr);
	for (const Case &c : AllCases()) {
		subject = NameOf(c) + ", versions";
		CheckTable(c, VersionsTable(c, std::string(directory) + "/db"));
		subject = NameOf(c) + ", single";
		const std::string path = std::string(directory) + "/single.sst";
		CheckTable(c, SingleTable(c, path, 700));
		subject = NameOf(c) + ", damaged";
		// Keys with tags and whole values, and keys without tags with differences.
		if ((c.format_version == 2 && c.restart_interval == 1) ||
			(c.format_version >= 5 && c.restart_interval == 16)) {
			CheckDamage(c, SingleTable(c, path, 300));
		}
	}
	CHECK(rmdir(directory) == 0);
	CHECK(index_compressions == (std::set<int>{0, 1, 4, 7}));
	CHECK(spanning > 0 && absent > 0 && damaged > refused);
	printf("%zu tables: %zu versions in the block named, %zu absent from it, %zu beyond all "
	       "blocks; "
	       "%zu keys over several blocks\n",
		tables, present, absent, beyond, spanning);
	printf("%zu damages: %zu refused\n", damaged, refused);
	return 0;
}
