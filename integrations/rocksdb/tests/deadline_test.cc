/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * ReadOptions::deadline and io_timeout, and MultiGet() with async_io: answers are RocksDB's before the
 * deadline, and TimedOut after it. With TARGET_PID the test stops a target, by its process, for a
 * while.
 */
#include "database.h"

#include <rocksdb/utilities/stackable_db.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::ReadOptions;
using rocksdb::Status;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr uint64_t KEYS = 3000;
/* Higher keys are in memtables. */
constexpr uint64_t NEW_KEYS = 100;
constexpr milliseconds PATIENCE(50);
/* A limit for a busy machine. */
constexpr seconds LATE(10);

std::string key_of(uint64_t number)
{
	char text[32];

	std::snprintf(text, sizeof(text), "key%08llu", static_cast<unsigned long long>(number));
	return text;
}

ReadOptions until(microseconds from_now)
{
	ReadOptions options;

	options.deadline =
		std::chrono::duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()) + from_now;
	return options;
}

ReadOptions within(microseconds timeout)
{
	ReadOptions options;

	options.io_timeout = timeout;
	return options;
}

PushdownDB *make_database(const Place &where, const Kind &kind)
{
	rocksdb::Options options = small_tables(kind);

	options.disable_auto_compactions = true;
	options.write_buffer_size = 64 << 20;
	options.target_file_size_base = 64 << 20;
	PushdownDB *db = open_database(where, kind, options, "deadlines");

	for (uint64_t round = 0; round < 3; round++) {
		for (uint64_t number = round; number < KEYS; number += 2 * round + 1)
			check_ok(db->Put({}, key_of(number), key_of(number) + " value"), "writing");
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	}
	for (uint64_t number = KEYS; number < KEYS + NEW_KEYS; number++)
		check_ok(db->Put({}, key_of(number), key_of(number) + " value"), "writing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	return db;
}

uint64_t chains(const bpf_of::PushdownStats &stats)
{
	return stats[ReadPath::kTarget] + stats[ReadPath::kHere];
}

/* Keys of tables, one in memory, and one that does not exist. */
std::vector<std::string> some_keys()
{
	std::vector<std::string> keys;

	for (uint64_t number = 5; number < KEYS; number += 41)
		keys.push_back(key_of(number));
	keys.push_back(key_of(KEYS + 1));
	keys.push_back(key_of(KEYS - 1) + "x");
	return keys;
}

std::vector<Status> get_many(rocksdb::DB *db, const ReadOptions &options, const std::vector<std::string> &names,
	std::vector<rocksdb::PinnableSlice> *values)
{
	const std::vector<rocksdb::Slice> keys(names.begin(), names.end());
	std::vector<Status> statuses(keys.size());

	*values = std::vector<rocksdb::PinnableSlice>(keys.size());
	db->MultiGet(options, db->DefaultColumnFamily(), keys.size(), keys.data(), values->data(), statuses.data());
	return statuses;
}

/* Every read must equal RocksDB's. */
void check_as_plain(PushdownDB *db, const ReadOptions &options)
{
	rocksdb::DB *plain = db->GetBaseDB();
	const std::vector<std::string> keys = some_keys();

	for (const std::string &key : keys) {
		std::string value, expected;
		const Status status = db->Get(options, key, &value);
		const Status other = plain->Get(options, key, &expected);

		CHECK(status.code() == other.code() && value == expected, "%s: %s instead of %s", key.c_str(),
			status.ToString().c_str(), other.ToString().c_str());
	}
	std::vector<rocksdb::PinnableSlice> values, expected;
	const std::vector<Status> statuses = get_many(db, options, keys, &values);
	const std::vector<Status> others = get_many(plain, options, keys, &expected);

	for (size_t i = 0; i < keys.size(); i++)
		CHECK(statuses[i].code() == others[i].code() && values[i] == expected[i],
			"MultiGet of %s: %s instead of %s", keys[i].c_str(), statuses[i].ToString().c_str(),
			others[i].ToString().c_str());
	std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(options)), same(plain->NewIterator(options));

	for (const std::string &key : keys) {
		scan->Seek(key);
		same->Seek(key);
		for (int steps = 0; steps < 20 && same->Valid(); steps++) {
			CHECK(scan->Valid() && scan->key() == same->key() && scan->value() == same->value(),
				"a scan from %s", key.c_str());
			scan->Next();
			same->Next();
		}
		CHECK(scan->Valid() == same->Valid() && scan->status().code() == same->status().code(),
			"a scan from %s: %s instead of %s", key.c_str(), scan->status().ToString().c_str(),
			same->status().ToString().c_str());
	}
}

/* Before the deadline it changes neither the answers nor their way. */
void test_in_time(PushdownDB *db)
{
	ReadOptions async = until(seconds(60)), both = until(seconds(60));

	async.async_io = true;
	async.optimize_multiget_for_io = true;
	both.io_timeout = seconds(30);
	both.optimize_multiget_for_io = false;
	for (const ReadOptions &options : {until(seconds(60)), within(seconds(30)), both, async}) {
		const bpf_of::PushdownStats before = db->stats();

		check_as_plain(db, options);
		const bpf_of::PushdownStats after = db->stats();

		CHECK(chains(after) - chains(before) >= 2 * (some_keys().size() - 2), "%llu chains",
			static_cast<unsigned long long>(chains(after) - chains(before)));
		CHECK(after[ReadPath::kOptions] == 0 && after[ReadPath::kTimedOut] == 0, "left to RocksDB");
	}
}

/* Answers in memory are found even after the deadline. */
void test_too_late(PushdownDB *db)
{
	const ReadOptions past = until(-seconds(1));
	std::string value;

	CHECK(db->Get(past, key_of(5), &value).IsTimedOut(), "a deadline that has passed");
	check_ok(db->Get(past, key_of(KEYS + 1), &value), "a key of a memtable");
	check_as_plain(db, past);
}

/* Runs `call`, which must time out early enough. */
template <typename Call> void gives_up(const char *what, Call call)
{
	const auto begun = std::chrono::steady_clock::now();
	const Status status = call();
	const auto took = std::chrono::steady_clock::now() - begun;

	CHECK(status.IsTimedOut(), "%s: %s", what, status.ToString().c_str());
	CHECK(took < PATIENCE + LATE, "%s took %lld ms", what,
		static_cast<long long>(std::chrono::duration_cast<milliseconds>(took).count()));
}

/* The state of a thread, from /proc. */
char state_of(const std::filesystem::path &task)
{
	std::ifstream file(task / "stat");
	std::string line;

	std::getline(file, line);
	/* After the name, which may contain any characters. */
	const size_t end = line.rfind(") ");

	return end == std::string::npos ? '?' : line[end + 2];
}

/* Stops the target, and waits until all of its threads have stopped. */
void stop(int pid)
{
	const auto end = std::chrono::steady_clock::now() + LATE;

	CHECK(kill(pid, SIGSTOP) == 0, "stopping %d", pid);
	for (const auto &task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
		while (state_of(task.path()) != 'T') {
			CHECK(std::chrono::steady_clock::now() < end, "%s goes on", task.path().c_str());
			std::this_thread::sleep_for(milliseconds(1));
		}
	}
}

/* Seeks to a key of the tables; the result is the iterator's error. */
Status seek(PushdownDB *db, const ReadOptions &options)
{
	std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(options));

	scan->Seek(key_of(7));
	CHECK(!scan->Valid(), "a scan");
	return scan->status();
}

/* The target is not considered lost: no read is left to RocksDB. */
void check_target_answers(PushdownDB *db)
{
	const bpf_of::PushdownStats before = db->stats();

	check_as_plain(db, within(seconds(30)));
	const bpf_of::PushdownStats after = db->stats();

	CHECK(after[ReadPath::kTarget] > before[ReadPath::kTarget] && after[ReadPath::kFailed] == 0 &&
			after[ReadPath::kBusy] == before[ReadPath::kBusy],
		"%s", db->last_error().c_str());
}

void test_stopped_target(PushdownDB *db, int pid)
{
	std::string value;
	uint64_t timed_out = db->stats()[ReadPath::kTimedOut];

	stop(pid);
	for (int round = 0; round < 10; round++) {
		gives_up("a Get with a deadline", [&] { return db->Get(until(PATIENCE), key_of(5), &value); });
		gives_up("a Get with a timeout", [&] { return db->Get(within(PATIENCE), key_of(46), &value); });
		timed_out += 2;
	}
	check_ok(db->Get(until(PATIENCE), key_of(KEYS + 1), &value), "a key of a memtable");
	const std::vector<std::string> keys = some_keys();
	std::vector<rocksdb::PinnableSlice> values;

	const auto get_keys = [&](const ReadOptions &options) {
		const std::vector<Status> statuses = get_many(db, options, keys, &values);

		for (size_t i = 0; i < keys.size(); i++) {
			/* The last two keys are in memory, and after all tables. */
			const bool is_late = i + 2 < keys.size();

			CHECK(statuses[i].IsTimedOut() == is_late, "%s: %s", keys[i].c_str(),
				statuses[i].ToString().c_str());
		}
		return statuses[0];
	};

	gives_up("a MultiGet with a deadline", [&] { return get_keys(until(PATIENCE)); });
	gives_up("a MultiGet with a timeout", [&] { return get_keys(within(PATIENCE)); });
	timed_out += 2 * (keys.size() - 2);
	gives_up("a seek", [&] { return seek(db, until(PATIENCE)); });
	CHECK(db->stats()[ReadPath::kTimedOut] == timed_out, "%llu counted instead of %llu",
		static_cast<unsigned long long>(db->stats()[ReadPath::kTimedOut]),
		static_cast<unsigned long long>(timed_out));
	CHECK(kill(pid, SIGCONT) == 0, "waking %d", pid);
	/* Late answers of the target must not reach later reads. */
	check_target_answers(db);
}

/* A read that times out loses its own connection, but the target is not considered lost. */
void test_own_connections(PushdownDB *db, int pid)
{
	check_target_answers(db);
	stop(pid);
	/* With a deadline RocksDB asks for the block of one table, so that no other connection is
	 * needed. */
	gives_up("a seek by a connection of its own", [&] { return seek(db, until(PATIENCE)); });
	CHECK(kill(pid, SIGCONT) == 0, "waking %d", pid);
	check_target_answers(db);
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);
	const char *const pid = std::getenv("TARGET_PID");
	Kind kind = {"deadlines", rocksdb::kSnappyCompression, BINARY, 5, size_t{1} << 30};

	/* A thread that moves to another processor would have to connect to the stopped target. */
	kind.lanes_max = 1;
	for (const auto speculate : {bpf_of::Speculate::kNever, bpf_of::Speculate::kAlways}) {
		kind.speculate = speculate;
		PushdownDB *db = make_database(where, kind);

		test_in_time(db);
		test_too_late(db);
		if (pid)
			test_stopped_target(db, std::atoi(pid));
		std::printf("deadlines:");
		print_ways(*db);
		delete db;
	}
	if (!pid)
		return 0;
	kind.lanes_max = 0;
	PushdownDB *db = make_database(where, kind);
	test_own_connections(db, std::atoi(pid));
	std::printf("deadlines, own connections:");
	print_ways(*db);
	delete db;
	return 0;
}
