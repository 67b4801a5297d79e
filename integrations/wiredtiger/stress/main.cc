// SPDX-License-Identifier: Apache-2.0 OR MIT
// bpfof-wiredtiger-stress: looks for wrong answers under all kinds of concurrent changes.
//
// Each key has one writer, which counts its versions, so that every read can be checked: its version
// must be between the last one committed before the read and the last one begun before its end. Two
// keys are always written together, so that a snapshot must have the same version of both, also a
// snapshot that lasts as long as a cursor has a row. In addition: a table with timestamps, whose
// readers know its contents at each of them; and ranges that are truncated while an older snapshot
// still has them.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bpfof/wiredtiger.h"
#include "check.h"

namespace {

constexpr int kPairs = 20000;
constexpr int kWriters = 3;
constexpr int kReaders = 4;
constexpr int kTimed = 3000;
constexpr int kRows = 12000;
constexpr int kTables = 2;
const char kPages[] = "key_format=u,value_format=u,allocation_size=512B,internal_page_max=512B,leaf_page_max=512B";

std::atomic<bool> stop{false};
std::atomic<uint64_t> wrong{0};
std::atomic<uint64_t> checked{0}, scanned{0}, snapshots{0}, positions{0}, timed{0}, truncated{0}, changes{0};
WT_CONNECTION *connection;

void Wrong(const char *what, const std::string &key, const std::string &found, uint64_t least, uint64_t most)
{
	if (wrong++ < 10)
		std::fprintf(stderr, "WRONG: %s: %s is %s instead of version %llu to %llu\n", what, key.c_str(),
			found.c_str(), static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
}

std::string Key(const char *prefix, int number)
{
	char text[32];

	std::snprintf(text, sizeof(text), "%s%012d", prefix, number);
	return text;
}

// In every fifth version the row is removed.
bool IsRemoved(uint64_t version)
{
	return version % 5 == 4;
}

std::string ValueOf(const std::string &key, uint64_t version)
{
	std::string value = key + " " + std::to_string(version) + " ";

	value.resize(24 + 20 + version % 40, '.');
	return value;
}

// A session with a cursor on each table that it needs.
class Client {
    public:
	explicit Client(const char *config = nullptr)
	{
		CHECK_WT(connection->open_session(connection, nullptr, config, &session_));
	}
	~Client() { session_->close(session_, nullptr); }
	Client(const Client &) = delete;
	Client &operator=(const Client &) = delete;

	WT_SESSION *session() const { return session_; }

	WT_CURSOR *Open(const std::string &table)
	{
		WT_CURSOR *cursor;

		CHECK_WT(session_->open_cursor(session_, ("table:" + table).c_str(), nullptr, nullptr, &cursor));
		return cursor;
	}

	// Begin and end a transaction; a conflict ends it with a rollback.
	void Begin(const char *config = "isolation=snapshot")
	{
		CHECK_WT(session_->begin_transaction(session_, config));
	}
	int Commit(const char *config = nullptr) { return session_->commit_transaction(session_, config); }
	void Rollback() { CHECK_WT(session_->rollback_transaction(session_, nullptr)); }

    private:
	WT_SESSION *session_;
};

void SetKey(WT_CURSOR *cursor, const std::string &key)
{
	const WT_ITEM item = {key.data(), key.size(), nullptr, 0, 0};

	cursor->set_key(cursor, &item);
}

// Returns 0, WT_NOTFOUND, or an error that ends the transaction.
int Get(WT_CURSOR *cursor, const std::string &key, std::string *value)
{
	SetKey(cursor, key);
	const int error = cursor->search(cursor);
	WT_ITEM item;

	value->clear();
	if (error)
		return error;
	CHECK_WT(cursor->get_value(cursor, &item));
	value->assign(static_cast<const char *>(item.data), item.size);
	CHECK_WT(cursor->get_key(cursor, &item));
	CHECK(std::string(static_cast<const char *>(item.data), item.size) == key, "another key");
	return 0;
}

int Put(WT_CURSOR *cursor, const std::string &key, uint64_t version)
{
	const std::string value = ValueOf(key, version);
	const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};

	SetKey(cursor, key);
	if (IsRemoved(version)) {
		const int error = cursor->remove(cursor);

		return error == WT_NOTFOUND ? 0 : error;
	}
	cursor->set_value(cursor, &item);
	return cursor->insert(cursor);
}

// The version that a read has found; false if the answer belongs to no version of this key.
bool VersionOf(const std::string &key, const std::string &value, uint64_t *version)
{
	if (value.compare(0, key.size() + 1, key + " ") != 0)
		return false;
	*version = std::strtoull(value.c_str() + key.size() + 1, nullptr, 10);
	return value == ValueOf(key, *version) && !IsRemoved(*version);
}

// Whether some version from least to most has no row.
bool MayBeGone(uint64_t least, uint64_t most)
{
	return least == 0 || most - least >= 4 || least / 5 * 5 + 4 <= most || IsRemoved(least);
}

// ---- Pairs of keys ----

struct Pair {
	std::atomic<uint64_t> begun{0}, committed{0};
};
std::vector<Pair> pairs(kPairs);
// A pair that a reader is about to read twice.
std::atomic<int> watched{0};

void WritePairs(int writer, uint64_t seed)
{
	std::mt19937_64 random(seed);
	Client client;
	std::vector<WT_CURSOR *> cursors;

	for (int table = 0; table < kTables; table++)
		cursors.push_back(client.Open("pairs" + std::to_string(table)));
	while (!stop) {
		const int next = watched, any = int(random() % (kPairs / kWriters)) * kWriters + writer;
		const int number = next % kWriters == writer && random() % 4 == 0 ? next : any;
		Pair &pair = pairs[number];
		const uint64_t version = pair.begun + 1;

		pair.begun = version;
		client.Begin();
		WT_CURSOR *const cursor = cursors[number % kTables];
		int error = Put(cursor, Key("a", number), version);
		if (!error)
			error = Put(cursor, Key("z", number), version);
		if (!error)
			error = client.Commit();
		else
			client.Rollback();
		if (error) {
			// This version was not committed: the next attempt writes it again.
			CHECK(error == WT_ROLLBACK, "writing: %s", wiredtiger_strerror(error));
			pair.begun = version - 1;
			continue;
		}
		pair.committed = version;
		changes++;
		if (random() % 64 == 0)
			std::this_thread::sleep_for(std::chrono::milliseconds(1));
	}
}

void CheckRead(WT_CURSOR *cursor, int number, bool is_second)
{
	const std::string key = Key(is_second ? "z" : "a", number);
	const uint64_t least = pairs[number].committed;
	std::string value;
	const int error = Get(cursor, key, &value);
	// A writer that is rolled back reuses its version: the last one begun may never become visible.
	const uint64_t most = pairs[number].begun;
	uint64_t version;

	CHECK(!error || error == WT_NOTFOUND || error == WT_ROLLBACK, "reading: %s", wiredtiger_strerror(error));
	if (error == WT_ROLLBACK)
		return;
	checked++;
	if (error == WT_NOTFOUND) {
		if (!MayBeGone(least, most))
			Wrong("a read", key, "not found", least, most);
	} else if (!VersionOf(key, value, &version) || version < least || version > most) {
		Wrong("a read", key, value, least, most);
	}
}

// Checks that in one snapshot both keys of a pair have one version.
void CheckSnapshot(Client *client, WT_CURSOR *cursor, std::mt19937_64 *random)
{
	client->Begin();
	for (int i = 0; i < 5; i++) {
		const int number = int((*random)() % (kPairs / kTables)) * kTables;
		const std::string keys[2] = {Key("a", number), Key("z", number)};
		std::string values[2];
		uint64_t versions[2] = {};
		int errors[2];

		for (int side = 0; side < 2; side++) {
			errors[side] = Get(cursor, keys[side], &values[side]);
			if (errors[side] == WT_ROLLBACK)
				return client->Rollback();
			CHECK(!errors[side] || errors[side] == WT_NOTFOUND, "%s", wiredtiger_strerror(errors[side]));
			if (!errors[side] && !VersionOf(keys[side], values[side], &versions[side]))
				Wrong("a snapshot", keys[side], values[side], 0, 0);
		}
		snapshots++;
		if (errors[0] != errors[1] || versions[0] != versions[1])
			Wrong("a snapshot", keys[0], errors[1] ? "there, and the other is not" : values[1], versions[0],
				versions[0]);
	}
	client->Rollback();
}

// Checks that the other key of a pair has the version of this one, where the cursor is.
void CheckOther(WT_CURSOR *cursor, WT_CURSOR *other)
{
	WT_ITEM item;

	CHECK_WT(cursor->get_key(cursor, &item));
	const std::string key(static_cast<const char *>(item.data), item.size);
	CHECK_WT(cursor->get_value(cursor, &item));
	const std::string value(static_cast<const char *>(item.data), item.size);
	const std::string other_key = (key[0] == 'a' ? "z" : "a") + key.substr(1);
	std::string other_value;
	uint64_t version = 0, other_version = 0;

	if (!VersionOf(key, value, &version))
		Wrong("at a position", key, value, 0, 0);
	const int error = Get(other, other_key, &other_value);

	CHECK(!error || error == WT_NOTFOUND || error == WT_ROLLBACK, "reading: %s", wiredtiger_strerror(error));
	if (error == WT_ROLLBACK)
		return;
	positions++;
	if (error || !VersionOf(other_key, other_value, &other_version) || other_version != version)
		Wrong("beside a position", other_key, error ? "not found" : other_value, version, version);
}

// Checks that while a cursor has a row, another cursor of its session reads the same snapshot, and so
// does its next row.
void CheckPosition(Client *client, WT_CURSOR *cursor, WT_CURSOR *other, std::mt19937_64 *random)
{
	const bool is_transaction = (*random)() % 2, is_next = (*random)() % 2;
	const int number = int((*random)() % (kPairs / kTables - 1)) * kTables;
	std::string value;

	watched = number + is_next * kTables;
	if (is_transaction)
		client->Begin("isolation=read-committed");
	const std::string key = Key("a", number);
	int error = Get(cursor, key, &value);
	if (!error && is_next)
		error = cursor->next(cursor);
	CHECK(!error || error == WT_NOTFOUND || error == WT_ROLLBACK, "reading: %s", wiredtiger_strerror(error));
	if (!error)
		CheckOther(cursor, other);
	if (is_transaction)
		return client->Rollback();
	CHECK_WT(cursor->reset(cursor));
	CHECK_WT(other->reset(other));
}

// Moves to a row, or to its place, and from there in one direction. False if there is no row to check.
bool Begin(WT_CURSOR *cursor, int number, bool is_forward, bool is_near)
{
	const std::string key = Key("a", number);
	std::string value;
	int exact, error;

	if (!is_near)
		return Get(cursor, key, &value) == 0;
	SetKey(cursor, key);
	error = cursor->search_near(cursor, &exact);
	if (!error && (is_forward ? exact < 0 : exact > 0))
		error = is_forward ? cursor->next(cursor) : cursor->prev(cursor);
	CHECK(!error || error == WT_NOTFOUND || error == WT_ROLLBACK, "searching: %s", wiredtiger_strerror(error));
	return !error;
}

// Scans row by row: in order, no row left out, and each with a version that it had meanwhile.
void CheckScan(WT_CURSOR *cursor, int number, std::mt19937_64 *random)
{
	const int rows = 1 + int((*random)() % ((*random)() % 4 ? 16 : 600));
	const bool is_forward = (*random)() % 4;
	const int step = is_forward ? kTables : -kTables;
	std::vector<uint64_t> least;

	for (int i = 0, at = number; i < rows && at >= 0 && at < kPairs; i++, at += step)
		least.push_back(pairs[at].committed);
	if (!Begin(cursor, number, is_forward, (*random)() % 2))
		return;
	for (size_t place = 0; place < least.size(); place++) {
		WT_ITEM item;
		uint64_t version;

		CHECK_WT(cursor->get_key(cursor, &item));
		const std::string key(static_cast<const char *>(item.data), item.size);
		CHECK_WT(cursor->get_value(cursor, &item));
		const std::string value(static_cast<const char *>(item.data), item.size);

		for (; place < least.size() && key != Key("a", number + int(place) * step); place++) {
			const std::string missing = Key("a", number + int(place) * step);
			const bool is_passed = key.compare(0, 1, "a") == 0 && (is_forward ? key > missing : key < missing);

			if (!is_passed && key.compare(0, 1, "a") == 0)
				return Wrong("a scan is in disorder", missing, key, least[place], least[place]);
			const uint64_t most = pairs[number + int(place) * step].begun;

			if (!MayBeGone(least[place], most))
				return Wrong("a scan", missing, "left out before " + key, least[place], most);
		}
		if (place == least.size())
			return;
		const uint64_t most = pairs[number + int(place) * step].begun;

		scanned++;
		if (!VersionOf(key, value, &version) || version < least[place] || version > most)
			return Wrong("a scan", key, value, least[place], most);
		const int error = is_forward ? cursor->next(cursor) : cursor->prev(cursor);

		if (error == WT_NOTFOUND || error == WT_ROLLBACK)
			return;
		CHECK_WT(error);
	}
}

void ReadPairs(uint64_t seed)
{
	std::mt19937_64 random(seed);
	Client client("isolation=read-committed");
	std::vector<WT_CURSOR *> cursors;

	for (int table = 0; table < kTables; table++)
		cursors.push_back(client.Open("pairs" + std::to_string(table)));
	WT_CURSOR *const other = client.Open("pairs0");

	while (!stop) {
		const int number = int(random() % kPairs);

		switch (random() % 16) {
		case 0:
			CheckSnapshot(&client, cursors[0], &random);
			break;
		case 1:
			CheckScan(cursors[number % kTables], number, &random);
			break;
		case 2:
		case 3:
			CheckPosition(&client, cursors[0], other, &random);
			break;
		default:
			CheckRead(cursors[number % kTables], number, random() % 2);
		}
		cursors[number % kTables]->reset(cursors[number % kTables]);
	}
}

// ---- Timestamps ----

struct History {
	std::mutex mutex;
	// Timestamps of the versions, starting with version 1.
	std::vector<uint64_t> at;
};
std::vector<History> histories(kTimed);
std::atomic<uint64_t> stable{1}, oldest{1};

std::string Hex(const char *name, uint64_t timestamp)
{
	char text[64];

	std::snprintf(text, sizeof(text), "%s=%llx", name, static_cast<unsigned long long>(timestamp));
	return text;
}

void WriteTimed(uint64_t seed)
{
	std::mt19937_64 random(seed);
	Client client;
	WT_CURSOR *const cursor = client.Open("timed");

	for (uint64_t now = 2; !stop; now++) {
		const int number = int(random() % kTimed);
		History &history = histories[number];
		std::lock_guard<std::mutex> lock(history.mutex);
		const uint64_t version = history.at.size() + 1;

		client.Begin();
		const int error = Put(cursor, Key("t", number), version);
		if (error || client.Commit(Hex("commit_timestamp", now).c_str())) {
			if (error)
				client.Rollback();
			continue;
		}
		history.at.push_back(now);
		stable = now;
		changes++;
		if (now % 512 == 0) {
			const uint64_t old = now > 4000 ? now - 4000 : 1;

			// Readers check `oldest` before they begin, and fail if it has passed their
			// timestamp.
			oldest = old;
			connection->set_timestamp(connection, Hex("oldest_timestamp", old).c_str());
			connection->set_timestamp(connection, Hex("stable_timestamp", now).c_str());
		}
		if (now % 16 == 0)
			std::this_thread::sleep_for(std::chrono::milliseconds(1));
	}
}

void ReadTimed(uint64_t seed)
{
	std::mt19937_64 random(seed);
	Client client;
	WT_CURSOR *const cursor = client.Open("timed");

	while (!stop) {
		const uint64_t from = oldest, to = stable;
		const uint64_t at = from + random() % (to - from + 1);

		if (client.session()->begin_transaction(client.session(),
			    ("isolation=snapshot," + Hex("read_timestamp", at)).c_str()))
			continue;
		for (int i = 0; i < 8; i++) {
			const int number = int(random() % kTimed);
			const std::string key = Key("t", number);
			std::string value;
			const int error = Get(cursor, key, &value);

			if (error == WT_ROLLBACK)
				break;
			CHECK(!error || error == WT_NOTFOUND, "reading: %s", wiredtiger_strerror(error));
			uint64_t wanted = 0, version = 0;
			{
				std::lock_guard<std::mutex> lock(histories[number].mutex);

				for (const uint64_t begun : histories[number].at)
					wanted += begun <= at;
			}
			timed++;
			if (error ? wanted && !IsRemoved(wanted) : !VersionOf(key, value, &version) || version != wanted)
				Wrong("at a timestamp", key, error ? "not found" : value, wanted, wanted);
		}
		client.Rollback();
	}
}

// ---- Truncation ----

void FillRows(Client *client, int from, int to, uint64_t version)
{
	WT_CURSOR *const cursor = client->Open("rows");

	for (int i = from; i < to; i++)
		CHECK_WT(Put(cursor, Key("r", i), version));
	CHECK_WT(cursor->close(cursor));
}

void CheckRows(WT_CURSOR *cursor, const char *what, int from, int to, int gone_from, int gone_to, uint64_t version)
{
	for (int i = from; i < to; i++) {
		const bool is_gone = gone_from <= i && i < gone_to;
		const std::string key = Key("r", i);
		std::string value;
		const int error = Get(cursor, key, &value);

		if (error == WT_ROLLBACK)
			return;
		CHECK(!error || error == WT_NOTFOUND, "reading: %s", wiredtiger_strerror(error));
		truncated++;
		if (is_gone ? !error : value != ValueOf(key, version))
			Wrong(what, key + (i < gone_from ? " before" : i >= gone_to ? " after" : " inside"), error ? "not found" : value, version, version);
	}
}

// Evicts pages from the cache, so that later reads have to come from the file.
void ReadOthers(WT_CURSOR *cursor, std::mt19937_64 *random, int count)
{
	std::string value;

	for (int i = 0; i < count; i++)
		Get(cursor, Key("a", int((*random)() % (kPairs / kTables)) * kTables), &value);
	// A cursor with a position keeps its session's snapshot.
	cursor->reset(cursor);
}

void Truncate(uint64_t seed)
{
	std::mt19937_64 random(seed);
	Client client, older, reader("isolation=read-committed");
	WT_CURSOR *const others = reader.Open("pairs0");
	uint64_t version = 1;

	while (!stop) {
		const int from = int(random() % (kRows - 3000)), to = from + 2500;
		WT_CURSOR *const old = older.Open("rows"), *const now = reader.Open("rows");
		WT_CURSOR *const first = client.Open("rows"), *const last = client.Open("rows");

		// Everything is on the disk, and has left the cache.
		CHECK_WT(client.session()->checkpoint(client.session(), nullptr));
		ReadOthers(others, &random, 4000);
		older.Begin();
		CheckRows(old, "before a truncation", from, from + 20, 0, 0, version);
		// Cursors only point to their keys.
		const std::string first_key = Key("r", from), last_key = Key("r", to - 1);

		SetKey(first, first_key);
		SetKey(last, last_key);
		client.Begin();
		int error = client.session()->truncate(client.session(), nullptr, first, last, nullptr);

		error = error ? (client.Rollback(), error) : client.Commit();
		CHECK(!error || error == WT_ROLLBACK, "truncating: %s", wiredtiger_strerror(error));
		if (!error) {
			CheckRows(now, "after a truncation", std::max(0, from - 50), to + 50, from, to, version);
			CheckRows(old, "in an older snapshot", from, from + 200, 0, 0, version);
		}
		older.Rollback();
		CheckRows(now, "after a truncation", from, to, error ? 0 : from, error ? 0 : to, version);
		for (WT_CURSOR *cursor : {old, now, first, last})
			CHECK_WT(cursor->close(cursor));
		do
			version++;
		while (IsRemoved(version));
		FillRows(&client, 0, kRows, version);
	}
}

// ---- Other background activity ----

void Checkpoint()
{
	Client client;

	while (!stop) {
		const int error = client.session()->checkpoint(client.session(), nullptr);

		CHECK(!error || error == EBUSY, "a checkpoint: %s", wiredtiger_strerror(error));
		std::this_thread::sleep_for(std::chrono::milliseconds(150));
	}
}

void Compact()
{
	Client client;

	for (int i = 0; !stop; i++) {
		const std::string table = "table:pairs" + std::to_string(i % kTables);
		const int error = client.session()->compact(client.session(), table.c_str(), "timeout=5");

		CHECK(!error || error == EBUSY || error == ETIMEDOUT || error == WT_ROLLBACK, "compacting: %s",
			wiredtiger_strerror(error));
		for (int pause = 0; pause < 10 && !stop; pause++)
			std::this_thread::sleep_for(std::chrono::milliseconds(100));
	}
}

void Load()
{
	Client client;

	for (int table = 0; table < kTables; table++)
		CHECK_WT(client.session()->create(client.session(), ("table:pairs" + std::to_string(table)).c_str(), kPages));
	CHECK_WT(client.session()->create(client.session(), "table:timed", kPages));
	CHECK_WT(client.session()->create(client.session(), "table:rows", kPages));
	for (const char *side : {"a", "z"}) {
		std::vector<WT_CURSOR *> cursors;

		for (int table = 0; table < kTables; table++)
			cursors.push_back(client.Open("pairs" + std::to_string(table)));
		for (int i = 0; i < kPairs; i++)
			CHECK_WT(Put(cursors[i % kTables], Key(side, i), 1));
		for (WT_CURSOR *cursor : cursors)
			CHECK_WT(cursor->close(cursor));
	}
	for (Pair &pair : pairs)
		pair.begun = pair.committed = 1;
	FillRows(&client, 0, kRows, 1);
	CHECK_WT(connection->set_timestamp(connection, "oldest_timestamp=1"));
	CHECK_WT(client.session()->checkpoint(client.session(), nullptr));
}

bpfof_wiredtiger_counters ReadCounters(void *library)
{
	bpfof_wiredtiger_counters counters = {};
	const auto read = reinterpret_cast<void (*)(bpfof_wiredtiger_counters *, size_t)>(
		dlsym(library, "bpfof_wiredtiger_read_counters"));

	CHECK(read, "%s", dlerror());
	read(&counters, sizeof(counters));
	return counters;
}

bpfof_wiredtiger_counters Tell(void *library)
{
	const bpfof_wiredtiger_counters counters = ReadCounters(library);
	uint64_t declined = 0;
	const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };

	for (const uint64_t count : counters.declined)
		declined += count;
	std::printf("%llu reads, %llu rows of scans, %llu in snapshots, %llu at positions, %llu at timestamps, %llu around truncations; "
		    "%llu changes\n",
		number(checked), number(scanned), number(snapshots), number(positions), number(timed), number(truncated), number(changes));
	std::printf("%llu values and %llu absent by chains, %llu declined, %llu staged (%llu pages used, %llu ahead, %llu rewritten), "
		    "%llu reads of single pages, %llu stale, %llu failed\n",
		number(counters.values), number(counters.absent), number(declined), number(counters.staged),
		number(counters.staged_pages), number(counters.ahead_pages), number(counters.rewritten), number(counters.file_reads),
		number(counters.stale), number(counters.failed));
	std::printf("%llu reconnections\n", number(counters.reconnected));
	const auto error = reinterpret_cast<size_t (*)(char *, size_t)>(dlsym(library, "bpfof_wiredtiger_last_error"));
	char text[256];

	CHECK(error, "%s", dlerror());
	if (error(text, sizeof(text)))
		std::printf("the last failure: %s\n", text);
	return counters;
}

// Prints events of the target as they happen, for the script that kills it.
class Events {
    public:
	explicit Events(void *library) : library_(library) {}

	void Look()
	{
		const bpfof_wiredtiger_counters now = ReadCounters(library_);

		if (now.values > values_ && waits_)
			std::printf("chains answer\n");
		waits_ = waits_ && now.values <= values_;
		if (now.lost > lost_)
			std::printf("the target is lost\n");
		if (now.reconnected > reconnected_) {
			std::printf("there is another session\n");
			waits_ = true;
		}
		values_ = now.values;
		lost_ = now.lost;
		reconnected_ = now.reconnected;
		std::fflush(stdout);
	}

    private:
	void *library_;
	bool waits_ = true;
	uint64_t values_ = 0, lost_ = 0, reconnected_ = 0;
};

} // namespace

int main(int argc, char **argv)
{
	if (argc < 5) {
		std::fprintf(stderr, "usage: bpfof-wiredtiger-stress EXTENSION FOLDER URL DEVICE [SECONDS [SEED]]\n"
				     "Looks for wrong answers of a database in FOLDER, which it creates. Exits with 1 if there are any,\n"
				     "and early after SIGTERM.\n");
		return 2;
	}
	const int seconds = argc > 5 ? std::atoi(argv[5]) : 10;
	const uint64_t seed = argc > 6 ? std::strtoull(argv[6], nullptr, 10) : std::random_device()();
	const std::string settings = std::string("create,cache_size=2MB,statistics=(fast),extensions=[") + argv[1] +
				     "={early_load=true,config={url=\"" + argv[3] + "\",device=\"" + argv[4] + "\"}}]";

	std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
	CHECK(std::system(("rm -rf '" + std::string(argv[2]) + "' && mkdir -p '" + argv[2] + "'").c_str()) == 0,
		"%s", argv[2]);
	CHECK_WT(wiredtiger_open(argv[2], nullptr, settings.c_str(), &connection));
	void *const library = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);

	CHECK(library, "%s", dlerror());
	Load();
	std::vector<std::thread> threads;

	for (int i = 0; i < kWriters; i++)
		threads.emplace_back(WritePairs, i, seed + i);
	for (int i = 0; i < kReaders; i++)
		threads.emplace_back(ReadPairs, seed + 100 + i);
	threads.emplace_back(WriteTimed, seed + 200);
	threads.emplace_back(ReadTimed, seed + 300);
	threads.emplace_back(Truncate, seed + 400);
	threads.emplace_back(Checkpoint);
	threads.emplace_back(Compact);
	std::signal(SIGTERM, [](int) { stop = true; });
	Events events(library);

	for (int tenths = 0; tenths < seconds * 10 && !wrong && !stop; tenths++) {
		std::this_thread::sleep_for(std::chrono::milliseconds(100));
		events.Look();
	}
	const bool is_whole = !stop;

	stop = true;
	// The thread with an older snapshot may wait for room in the cache, which its own snapshot
	// keeps in use: WiredTiger does not roll back transactions that have written nothing.
	CHECK_WT(connection->reconfigure(connection, "cache_size=256MB"));
	for (std::thread &thread : threads)
		thread.join();
	const bpfof_wiredtiger_counters counters = Tell(library);

	CHECK_WT(connection->close(connection, nullptr));
	// WiredTiger verifies no table that has changed since it was opened.
	CHECK_WT(wiredtiger_open(argv[2], nullptr, settings.c_str(), &connection));
	for (const char *table : {"table:pairs0", "table:pairs1", "table:timed", "table:rows"}) {
		Client client;
		const int error = client.session()->verify(client.session(), table, nullptr);

		CHECK(!error, "%s: %s", table, wiredtiger_strerror(error));
	}
	CHECK_WT(connection->close(connection, nullptr));
	if (wrong) {
		std::fprintf(stderr, "%llu answers were wrong\n", static_cast<unsigned long long>(wrong));
		return 1;
	}
	CHECK(counters.values > 0, "no chain found a value: is the target reachable?");
	CHECK(counters.ahead_pages > 0 || !is_whole, "no page was read ahead");
	std::printf("no answer was wrong\n");
	return 0;
}
