/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Looks for wrong answers and for leaks: threads change a database in all possible ways, others read
 * and check. There are a few rounds, each of which opens the database, and ends quietly.
 */
#include "stress.h"
#include "usage.h"

#include <chrono>
#include <cstring>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::Status;

namespace {

constexpr uint64_t ROUNDS = 4;
/* How long the target may be away at the start of a round, and deleted files may stay open at its
 * end. */
constexpr int PATIENCE_S = 20;

[[noreturn]] void usage_of(const char *program)
{
	std::fprintf(stderr,
		"usage: %s DIRECTORY [URL DEVICE] (--seconds N | --reads N) [--leaks] [--fill-disk] "
		"[--target-may-die] [--slow MS]\n"
		"  --seconds, --reads  how long, or the number of Get() calls to check\n"
		"  --leaks             fail if memory, descriptors or space have grown; DIRECTORY is "
		"on\n"
		"                      a file system that nothing else uses\n"
		"  --fill-disk         fill that file system now and then\n"
		"  --target-may-die    chains may fail; the target is back within some seconds\n"
		"  --slow              report each Get() that takes longer than MS\n",
		program);
	std::exit(2);
}

Settings settings_of(int argc, char **argv)
{
	std::vector<char *> words = {argv[0]};
	Settings settings;

	for (int i = 1; i < argc; i++) {
		const std::string word = argv[i];
		const bool has_number = i + 1 < argc && std::atoll(argv[i + 1]) > 0;

		if (word == "--seconds" && has_number)
			settings.seconds = std::atoll(argv[++i]);
		else if (word == "--reads" && has_number)
			settings.reads = std::atoll(argv[++i]);
		else if (word == "--slow" && has_number)
			settings.slow_ms = std::atoll(argv[++i]);
		else if (word == "--leaks")
			settings.check_leaks = true;
		else if (word == "--fill-disk")
			settings.fill_disk = true;
		else if (word == "--target-may-die")
			settings.target_may_die = true;
		else if (word.compare(0, 2, "--") == 0)
			usage_of(argv[0]);
		else
			words.push_back(argv[i]);
	}
	if ((settings.seconds == 0) == (settings.reads == 0) ||
		(words.size() != 2 && words.size() != 4))
		usage_of(argv[0]);
	settings.place = place(static_cast<int>(words.size()), words.data());
	return settings;
}

/* Each round has another kind of tables. */
constexpr Kind KINDS[ROUNDS] = {
	{"", rocksdb::kSnappyCompression, BINARY, 5, size_t{1} << 30},
	{"", rocksdb::kZSTD, PARTITIONED, 4, size_t{1} << 30},
	{"", rocksdb::kNoCompression, BINARY, 3, 40 << 10},
	{"", rocksdb::kLZ4Compression, FIRST_KEYS, 5, size_t{1} << 30},
};

/* Debian's build of RocksDB asserts that its log can be written, but the disk is full at times. */
class NoLog : public rocksdb::Logger {
    public:
	using Logger::Logv;
	void Logv(const char *, va_list) override {}
};

/* Makes tables differently in each round, and varies what is cached. */
void vary(rocksdb::BlockBasedTableOptions *table, uint64_t round)
{
	using Options = rocksdb::BlockBasedTableOptions;

	if (round == 0) {
		table->data_block_index_type = Options::kDataBlockBinaryAndHash;
		return;
	}
	/* A block cache that is too small. */
	table->no_block_cache = false;
	table->block_cache = rocksdb::NewLRUCache(96 << 10);
	if (round == 1) {
		table->checksum = rocksdb::kCRC32c;
		table->filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
		table->partition_filters = true;
	} else if (round == 2) {
		table->checksum = rocksdb::kNoChecksum;
		table->filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
		table->cache_index_and_filter_blocks = true;
	} else {
		table->block_restart_interval = 1;
		table->index_shortening = Options::IndexShorteningMode::kNoShortening;
	}
}

void open(Test &test, uint64_t round)
{
	const Place &place = test.settings.place;
	rocksdb::Options options = small_tables(KINDS[round]);
	bpf_of::PushdownOptions pushdown;
	Status status;

	pushdown.url = place.url;
	pushdown.device = place.device;
	pushdown.index_bytes_max = KINDS[round].index_bytes_max;
	pushdown.target_reads = round == 1;
	pushdown.sample_rate = 0.05;
	pushdown.speculate = round == 1 || round == 2 ? bpf_of::Speculate::kAlways : bpf_of::Speculate::kWhenFaster;
	options.create_missing_column_families = true;
	options.info_log = std::make_shared<NoLog>();
	if (test.settings.fill_disk) {
		options.wal_dir = test.logs();
		/* RocksDB 7.8 waits forever if it is resumed while writes are stopped. */
		options.max_write_buffer_number = 1000;
		options.level0_stop_writes_trigger = options.level0_slowdown_writes_trigger = 1000;
		options.hard_pending_compaction_bytes_limit = 0;
		options.soft_pending_compaction_bytes_limit = 0;
	}
	/* Direct reads, if the file system supports them. */
	options.use_direct_reads = round % 2 == 1 && !place.url.empty();
	options.allow_mmap_reads = round == 2;
	vary(options.table_factory->GetOptions<rocksdb::BlockBasedTableOptions>(), round);
	rocksdb::ColumnFamilyOptions merges = options;

	merges.merge_operator = merge_operator();
	for (int i = 0; i < 10 * PATIENCE_S; i++) {
		status = PushdownDB::Open(options, pushdown, test.database(),
			{{rocksdb::kDefaultColumnFamilyName, options}, {"other", merges}},
			&test.families, &test.db);
		if (status.ok() || !test.settings.target_may_die)
			break;
		std::this_thread::sleep_for(std::chrono::milliseconds(100));
	}
	check_ok(status, "opening the database");
	test.family = test.families[round % 2];
}

void close(Test &test)
{
	for (rocksdb::ColumnFamilyHandle *family : test.families)
		check_ok(test.db->DestroyColumnFamilyHandle(family), "giving a handle back");
	delete test.db;
	test.db = nullptr;
}

class Clock {
    public:
	double seconds() const
	{
		return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
	}

    private:
	const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

void print(const Test &test, const char *when, double seconds)
{
	const auto number = [](uint64_t number) { return static_cast<unsigned long long>(number); };
	const Usage now = usage(test.settings.place.directory);

	std::printf(
		"%s, %.0f s: %llu gets, %llu keys at once, %llu steps, %llu changes; memory %llu "
		"KiB (%llu KiB in use), %llu descriptors (%llu of deleted files), files %llu KiB, lost "
		"%llu KiB;",
		when, seconds, number(test.gets), number(test.keys_at_once), number(test.steps),
		number(test.changes), number(now.memory_bytes >> 10), number(now.heap_bytes >> 10),
		number(now.descriptors), number(now.deleted_files), number(now.file_bytes >> 10),
		number(now.lost_bytes >> 10));
	if (test.db)
		print_ways(*test.db);
	else
		std::printf(" closed\n");
	std::fflush(stdout);
}

/* Checks that chains reach the target again soon after it was away. */
class Watch {
    public:
	void check(const Test &test, double now)
	{
		const uint64_t chains = test.db->stats()[ReadPath::kTarget];

		if (chains != chains_ || test.settings.place.url.empty()) {
			chains_ = chains;
			since_ = now;
		}
		CHECK(now - since_ < PATIENCE_S, "no chain has reached the target for %.0f s: %s",
			now - since_, test.db->last_error().c_str());
	}
	explicit Watch(double now) : since_(now) {}

    private:
	uint64_t chains_ = 0;
	double since_;
};

/* Waits until a round's share of the time, or of the reads, is over. */
void wait_and_print(const Test &test, const Clock &clock)
{
	double printed = clock.seconds();
	const double end = printed + static_cast<double>(test.settings.seconds) / ROUNDS;
	const uint64_t reads = test.gets + test.settings.reads / ROUNDS;
	Watch watch(printed);

	while (test.settings.seconds ? clock.seconds() < end : test.gets < reads) {
		std::this_thread::sleep_for(std::chrono::milliseconds(20));
		watch.check(test, clock.seconds());
		if (clock.seconds() < printed + 10)
			continue;
		printed = clock.seconds();
		print(test, "going on", printed);
	}
}

/* All is compacted and no snapshot is held: no deleted file may stay open. */
void check_quiet(Test &test)
{
	check_ok(test.db->CompactRange(rocksdb::CompactRangeOptions(), test.family, nullptr, nullptr),
		"compacting all");
	get_everything(test);
	scan_everything(test);
	Usage now;

	for (int i = 0; i < 10 * PATIENCE_S; i++) {
		test.db->wait_ready(1000);
		now = usage(test.settings.place.directory);
		if (now.deleted_files == 0)
			return;
		std::this_thread::sleep_for(std::chrono::milliseconds(100));
	}
	CHECK(now.deleted_files == 0, "%llu deleted files are open: %s",
		static_cast<unsigned long long>(now.deleted_files), now.a_deleted_file.c_str());
}

void check_chains(const Test &test)
{
	const bpf_of::PushdownStats stats = test.db->stats();
	const bool has_target = !test.settings.place.url.empty();

	CHECK(stats[has_target ? ReadPath::kTarget : ReadPath::kHere] > 0, "no chain answered");
	CHECK(test.settings.target_may_die || stats[ReadPath::kFailed] == 0, "%s",
		test.db->last_error().c_str());
}

void play(Test &test, const Clock &clock, uint64_t round)
{
	open(test, round);
	scan_everything(test);
	test.stop = false;
	test.ingests = true;
	std::vector<std::thread> changing = start_changing(test);
	std::vector<std::thread> reading = start_reading(test, round);

	wait_and_print(test, clock);
	test.stop = true;
	for (std::thread &thread : reading)
		thread.join();
	for (std::thread &thread : changing)
		thread.join();
	check_quiet(test);
	print(test, "quiet", clock.seconds());
	check_chains(test);
	close(test);
	print(test, "after a round", clock.seconds());
}

/* Checks that no more is held than before, beyond what allocators and file systems keep for
 * themselves. */
void check_leaks(const Usage &fresh, const Usage &before, const Usage &after)
{
	const auto number = [](uint64_t number) { return static_cast<unsigned long long>(number); };

	CHECK(after.deleted_files == 0, "%llu deleted files are open: %s", number(after.deleted_files),
		after.a_deleted_file.c_str());
	CHECK(after.descriptors <= fresh.descriptors, "%llu descriptors are open, %llu at the start",
		number(after.descriptors), number(fresh.descriptors));
	CHECK(after.heap_bytes <= before.heap_bytes + (1 << 20),
		"%llu bytes of memory are in use, %llu after the first round", number(after.heap_bytes),
		number(before.heap_bytes));
	CHECK(after.lost_bytes <= before.lost_bytes + (1 << 20),
		"%llu bytes of the file system are in no file, %llu after the first round",
		number(after.lost_bytes), number(before.lost_bytes));
}

} /* namespace */

int main(int argc, char **argv)
{
	const Settings settings = settings_of(argc, argv);
	const std::string &directory = settings.place.directory;
	/* Line buffering, also when the output is not a terminal. */
	std::setvbuf(stdout, nullptr, _IOLBF, 0);
	const Usage fresh = usage(directory);
	Test test(settings);
	const Clock clock;
	Usage before;

	/* Removes files of an earlier run. */
	std::filesystem::remove_all(test.database());
	std::filesystem::remove(test.filler());
	for (uint64_t round = 0; round < ROUNDS; round++) {
		play(test, clock, round);
		if (round == 0)
			before = usage(directory);
		else if (settings.check_leaks)
			check_leaks(fresh, before, usage(directory));
	}
	std::filesystem::remove_all(test.database());
	std::filesystem::remove_all(test.logs());
	return 0;
}
