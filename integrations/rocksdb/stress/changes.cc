/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* All changes of a database while it is read. */
#include "stress.h"

#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/write_batch.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::WriteBatch;
using rocksdb::WriteOptions;

namespace {

void sleep_ms(uint64_t time_ms)
{
	std::this_thread::sleep_for(std::chrono::milliseconds(time_ms));
}

/* Sleeps in pieces, so that the end of the test is not delayed. */
void pause(const Test &test, uint64_t time_ms)
{
	for (; time_ms > 0 && !test.stop; time_ms -= std::min<uint64_t>(time_ms, 20))
		sleep_ms(std::min<uint64_t>(time_ms, 20));
}

/* A change, which may fail only if the disk was full at some moment of it. */
class Attempt {
    public:
	explicit Attempt(Test &test) : test_(test), before_(test.disk_full) {}

	bool succeeds(const Status &status, const char *what)
	{
		if (status.ok()) {
			test_.changes++;
			return true;
		}
		CHECK(before_ % 2 == 1 || test_.disk_full != before_, "%s: %s", what,
			status.ToString().c_str());
		sleep_ms(5);
		return false;
	}

    private:
	Test &test_;
	const uint64_t before_;
};

/* Writes a batch, which gives these keys these versions. */
void write(Test &test, WriteBatch *batch, const std::vector<std::pair<uint64_t, uint64_t>> &versions)
{
	while (test.recovers)
		sleep_ms(5);
	const std::shared_lock<std::shared_timed_mutex> lock(test.writing);
	Attempt attempt(test);

	if (!attempt.succeeds(test.db->Write(WriteOptions(), batch), "writing"))
		return;
	for (const auto &entry : versions)
		test.versions().complete(entry.first, entry.second);
}

/* Writers are fast: after BURST writes they pause for PAUSE_MS, so that there is time for reads. */
constexpr uint64_t BURST = 40;
constexpr uint64_t PAUSE_MS = 4;

/* Adds the next version of a key to the batch, and returns it. */
uint64_t add_next(Test &test, WriteBatch *batch, uint64_t number)
{
	const uint64_t version = test.versions().begin(number);
	const std::string key = key_of(number);

	if (is_deletion(version))
		batch->Delete(test.family, key);
	else
		batch->Put(test.family, key, value_of(key, version));
	return version;
}

void write_singles(Test &test)
{
	Random random(1);

	for (uint64_t i = 0; !test.stop; i++) {
		const uint64_t number = SINGLE.pick(random);
		const uint64_t version = test.versions().begin(number);
		const std::string key = key_of(number);
		WriteBatch batch;

		if (is_deletion(version))
			batch.Delete(test.family, key);
		else if (version % 23 == 0)
			batch.PutEntity(test.family, key,
				{{rocksdb::kDefaultWideColumnName, value_of(key, version)},
					{"other", "column"}});
		else
			batch.Put(test.family, key, value_of(key, version));
		write(test, &batch, {{number, version}});
		if (i % BURST == 0)
			sleep_ms(PAUSE_MS);
	}
}

/* Whether a key's last version is known to have been written. */
bool is_complete(Test &test, uint64_t number)
{
	return test.versions().most(number) == test.versions().least(number);
}

/* RocksDB requires that of two writes of a key exactly the second is a SingleDelete(). So a key is left
 * alone if it is unknown whether its last write was done, because the disk was full. */
void write_once(Test &test)
{
	Random random(2);

	for (uint64_t i = 0; !test.stop; i++) {
		const uint64_t number = ONCE.pick(random);
		const std::string key = key_of(number);
		WriteBatch batch;
		uint64_t version;

		if (i % BURST == 0)
			sleep_ms(PAUSE_MS);
		if (test.disk_full % 2 == 1 || !is_complete(test, number))
			continue;
		if (is_deletion(test.versions().most(number))) {
			version = test.versions().begin(number);
			batch.Put(test.family, key, value_of(key, version));
		} else {
			version = test.versions().begin_deletion(number);
			batch.SingleDelete(test.family, key);
		}
		write(test, &batch, {{number, version}});
	}
}

void write_twins(Test &test)
{
	Random random(3);

	for (uint64_t i = 0; !test.stop; i++) {
		std::vector<std::pair<uint64_t, uint64_t>> versions;
		const uint64_t first = TWINS.pick(random);
		WriteBatch batch;

		for (const uint64_t number : {first, first + TO_TWIN})
			versions.emplace_back(number, add_next(test, &batch, number));
		write(test, &batch, versions);
		if (i % BURST == 0)
			sleep_ms(PAUSE_MS);
	}
}

void write_merged(Test &test)
{
	Random random(8);

	for (uint64_t i = 0; !test.stop; i++) {
		const uint64_t number = MERGED.pick(random);
		const bool merges = test.merges() && is_complete(test, number) && random.below(6) != 0;
		const std::string key = key_of(number);
		WriteBatch batch;

		if (i % BURST == 0)
			sleep_ms(PAUSE_MS);
		if (!merges || is_deletion(test.versions().most(number) + 1)) {
			const uint64_t version = add_next(test, &batch, number);

			write(test, &batch, {{number, version}});
			continue;
		}
		const uint64_t version = test.versions().begin(number);

		batch.Merge(test.family, key, operand_of(key, version));
		write(test, &batch, {{number, version}});
	}
}

/* Deletes keys from one up to, but without, another; all of their versions are then deletions. */
void delete_range(Test &test, Random &random)
{
	const uint64_t from = RANGED.pick(random);
	const uint64_t to = std::min(RANGED.first + RANGED.keys, from + 1 + random.below(60));
	std::vector<std::pair<uint64_t, uint64_t>> versions;
	WriteBatch batch;

	for (uint64_t number = from; number < to; number++)
		versions.emplace_back(number, test.versions().begin_deletion(number));
	batch.DeleteRange(test.family, key_of(from), key_of(to));
	write(test, &batch, versions);
}

void write_ranged(Test &test)
{
	Random random(4);

	for (uint64_t i = 0; !test.stop; i++) {
		const uint64_t number = RANGED.pick(random);
		WriteBatch batch;
		const uint64_t version = add_next(test, &batch, number);

		write(test, &batch, {{number, version}});
		if (i % BURST == 0)
			sleep_ms(4 * PAUSE_MS);
		if (i % 500 == 50)
			delete_range(test, random);
	}
}

/* An entry of a table; a deletion if there is no value. */
struct Entry {
	std::string key;
	std::string value;
	bool is_merge = false;
	/* For a range deletion: the key up to which, and without which, it deletes. */
	std::string end = "";

	bool operator<(const Entry &other) const { return key < other.key; }
};

using Entries = std::vector<Entry>;

Status make_table(Test &test, const std::string &path, Entries entries)
{
	rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), test.db->GetOptions(test.family));
	Status status = writer.Open(path);

	std::sort(entries.begin(), entries.end());
	for (size_t i = 0; status.ok() && i < entries.size(); i++) {
		const auto &[key, value, is_merge, end] = entries[i];

		status = !end.empty()	 ? writer.DeleteRange(key, end)
			 : value.empty() ? writer.Delete(key)
			 : is_merge	 ? writer.Merge(key, value)
					 : writer.Put(key, value);
	}
	return status.ok() ? writer.Finish() : status;
}

bool ingest_table(Test &test, Random &random, const Entries &entries)
{
	const std::lock_guard<std::mutex> lock(test.ingesting);

	if (!test.ingests)
		return false;
	const std::string path = test.settings.place.directory + "/ingested.sst";
	rocksdb::IngestExternalFileOptions how;
	Attempt attempt(test);

	how.move_files = random.below(2) == 0;
	how.write_global_seqno = random.below(2) == 0;
	Status status = make_table(test, path, entries);

	if (status.ok())
		status = test.db->IngestExternalFile(test.family, {path}, how);
	std::error_code ignored;

	std::filesystem::remove(path, ignored);
	return attempt.succeeds(status, "ingesting");
}

void ingest_versions(Test &test, Random &random)
{
	std::vector<uint64_t> numbers;
	Entries entries;

	for (uint64_t count = 1 + random.below(60); count > 0; count--)
		numbers.push_back(INGESTED.pick(random));
	std::sort(numbers.begin(), numbers.end());
	numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
	for (const uint64_t number : numbers) {
		const bool merges = test.merges() && is_complete(test, number) && random.below(2) == 0;
		const uint64_t version = test.versions().begin(number);
		const std::string key = key_of(number);

		if (is_deletion(version))
			entries.push_back({key, ""});
		else if (merges)
			entries.push_back({key, operand_of(key, version), true});
		else
			entries.push_back({key, value_of(key, version)});
	}
	if (!ingest_table(test, random, entries))
		return;
	for (const uint64_t number : numbers)
		test.versions().complete(number, test.versions().most(number));
}

/* Ingests a table that deletes a range, and may itself have keys in the range. */
void ingest_deletion(Test &test, Random &random)
{
	const uint64_t first = INGESTED_RANGES.pick(random);
	const uint64_t end = std::min(KEYS, first + 1 + random.below(30));
	Entries entries = {{key_of(first), "", false, end == KEYS ? "range~" : key_of(end)}};

	for (uint64_t number = first; number < end; number++) {
		test.versions().begin_deletion(number);
		if (random.below(3) != 0)
			continue;
		const uint64_t version = test.versions().begin(number);

		if (!is_deletion(version))
			entries.push_back({key_of(number), value_of(key_of(number), version)});
	}
	if (!ingest_table(test, random, entries))
		return;
	for (uint64_t number = first; number < end; number++)
		test.versions().complete(number, test.versions().most(number));
}

/* Drops whole files; it is not known which keys remain. */
void drop_files(Test &test, Random &random)
{
	Entries entries;
	const std::string first = DROPPED, last = first + "~";
	const Slice begin = first, end = last;

	for (int i = 0; i < 100; i++)
		entries.push_back({first + std::to_string(1000 + i), "dropped"});
	ingest_table(test, random, entries);
	Attempt attempt(test);

	attempt.succeeds(
		rocksdb::DeleteFilesInRange(test.db, test.family, &begin, &end), "dropping files");
}

void ingest(Test &test)
{
	Random random(5);

	while (!test.stop) {
		const uint64_t what = random.below(8);

		if (what == 0)
			drop_files(test, random);
		else if (what < 3)
			ingest_deletion(test, random);
		else
			ingest_versions(test, random);
		pause(test, 20 + random.below(80));
	}
}

Status compact_some(Test &test, Random &random)
{
	const std::string from = key_of(random.below(KEYS)), to = key_of(random.below(KEYS));
	const Slice first = std::min(from, to), last = std::max(from, to);
	rocksdb::CompactRangeOptions how;

	how.exclusive_manual_compaction = random.below(2) == 0;
	if (random.below(4) == 0) {
		how.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
		how.change_level = true;
	}
	return test.db->CompactRange(how, test.family, &first, &last);
}

void compact(Test &test)
{
	Random random(6);

	while (!test.stop) {
		Attempt flushing(test);

		flushing.succeeds(test.db->Flush(rocksdb::FlushOptions(), test.family), "flushing");
		pause(test, random.below(100));
		Attempt compacting(test);
		const Status status = compact_some(test, random);

		/* A table cannot be moved to another level past levels with overlapping tables. */
		if (!status.IsNotSupported() && !status.IsIncomplete() && !status.IsInvalidArgument())
			compacting.succeeds(status, "compacting");
		pause(test, random.below(400));
	}
}

/* Changes options of tables that are made from now on, and of when they are made. */
void set_options(Test &test)
{
	static const std::vector<std::unordered_map<std::string, std::string>> SETTINGS = {
		{{"compression", "kNoCompression"}},
		{{"compression", "kLZ4Compression"}},
		{{"compression", "kZSTD"}},
		{{"compression", "kZSTD"}, {"compression_opts", "{max_dict_bytes=1024}"}},
		{{"compression", "kSnappyCompression"}},
		{{"compression_opts", "{max_dict_bytes=0}"}},
		{{"compression_opts", "{max_dict_bytes=0}"}},
		{{"compression_opts", "{max_dict_bytes=0}"}},
		{{"block_based_table_factory", "{block_size=512}"}},
		{{"block_based_table_factory", "{block_size=4096}"}},
		{{"write_buffer_size", "65536"}, {"target_file_size_base", "32768"}},
		{{"write_buffer_size", "262144"}, {"target_file_size_base", "131072"}},
		{{"disable_auto_compactions", "true"}},
		{{"disable_auto_compactions", "false"}},
		{{"enable_blob_files", "true"}, {"min_blob_size", "60"}, {"blob_file_size", "16384"}},
		{{"blob_compression_type", "kLZ4Compression"}},
		{{"blob_compression_type", "kNoCompression"}},
		{{"enable_blob_garbage_collection", "true"}, {"blob_garbage_collection_age_cutoff", "0.8"}},
		{{"enable_blob_garbage_collection", "false"}},
		{{"enable_blob_files", "false"}},
		{{"level0_file_num_compaction_trigger", "2"}},
		{{"level0_file_num_compaction_trigger", "8"}},
	};
	Random random(7);

	while (!test.stop) {
		Attempt attempt(test);

		attempt.succeeds(
			test.db->SetOptions(test.family, SETTINGS[random.below(SETTINGS.size())]),
			"setting options");
		pause(test, 300);
	}
	Attempt attempt(test);

	attempt.succeeds(test.db->SetOptions(test.family, {{"disable_auto_compactions", "false"}}),
		"setting options");
}

/* Most of the time reads are served in the ordinary way. */
void set_mode(Test &test)
{
	for (uint64_t i = 0; !test.stop; i++) {
		const bpf_of::Mode other = i % 2 ? bpf_of::Mode::kBlocks : bpf_of::Mode::kPlain;

		test.db->set_mode(bpf_of::Mode::kChains);
		pause(test, 600);
		test.db->set_mode(other);
		pause(test, 200);
	}
	test.db->set_mode(bpf_of::Mode::kChains);
}

/* Takes all free space. */
void take_room(const std::string &path)
{
	const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	struct statvfs room;

	CHECK(fd >= 0, "%s cannot be made", path.c_str());
	off_t size = ::lseek(fd, 0, SEEK_END);

	/* The first attempt fails if another thread was faster; later ones take space that is freed
	 * meanwhile. */
	for (off_t piece = off_t{1} << 30; piece >= 4096;) {
		CHECK(::fstatvfs(fd, &room) == 0, "cannot examine the disk");
		piece = std::min<off_t>(piece, room.f_bavail * room.f_frsize);
		if (piece >= 4096 && ::posix_fallocate(fd, size, piece) == 0)
			size += piece;
		else
			piece /= 2;
	}
	::close(fd);
}

/* RocksDB recovers, by itself or by Resume(): it looks for space every five seconds, and a recovery of
 * its own that has begun comes first. Older jobs may fail once more, so it has to stay well for a
 * while. */
void recover(Test &test)
{
	int good = 0;
	Status status;

	for (int i = 0; good < 20; i++) {
		status = test.db->Resume();
		if (status.ok())
			status = test.db->Put(WriteOptions(), test.family, DROPPED, "dropped");
		if (status.ok())
			status = test.db->Flush(rocksdb::FlushOptions(), test.family);
		good = status.ok() ? good + 1 : 0;
		CHECK(i < 1200, "resuming after the disk was full: %s", status.ToString().c_str());
		sleep_ms(50);
	}
}

/* Sometimes fills the disk, frees the space again and lets RocksDB recover. */
void fill_disk(Test &test)
{
	for (uint64_t wait_ms = 4000;; wait_ms = 30000) {
		pause(test, wait_ms);
		if (test.stop)
			return;
		{
			const std::lock_guard<std::mutex> lock(test.ingesting);

			test.ingests = false;
		}
		const uint64_t gets = test.gets, changes = test.changes;

		test.disk_full++;
		/* Space that RocksDB frees is taken, too. */
		for (int i = 0; i < 20; i++) {
			take_room(test.filler());
			sleep_ms(100);
		}
		const uint64_t read = test.gets - gets, changed = test.changes - changes;

		{
			test.recovers = true;
			const std::unique_lock<std::shared_timed_mutex> lock(
				test.writing, std::chrono::minutes(1));

			CHECK(lock, "a writer is held up for a minute by a full disk");
			std::filesystem::remove(test.filler());
			recover(test);
			test.recovers = false;
		}
		test.disk_full++;
		std::printf("the disk was full for %llu gets and %llu changes\n",
			static_cast<unsigned long long>(read),
			static_cast<unsigned long long>(changed));
		CHECK(read > 0, "nothing was read while the disk was full");
	}
}

} /* namespace */

std::vector<std::thread> start_changing(Test &test)
{
	std::vector<std::thread> threads;

	for (void (*change)(Test &) : {write_singles, write_once, write_twins, write_merged, write_ranged,
		     ingest, compact, set_options, set_mode})
		threads.emplace_back(change, std::ref(test));
	if (test.settings.fill_disk)
		threads.emplace_back(fill_disk, std::ref(test));
	return threads;
}
