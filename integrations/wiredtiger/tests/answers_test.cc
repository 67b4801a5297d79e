// SPDX-License-Identifier: Apache-2.0 OR MIT
// answers_test EXTENSION FOLDER URL DEVICE [TEST]: answers by chains must not differ from WiredTiger's.
// Databases are in FOLDER, on a file system that the target serves. The tests "idle", "silent" and
// "silent-scan" run only by their names.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "database.h"
#include "page.h"

namespace {

// The range of the table that is truncated.
constexpr int kGoneFrom = 24000, kGoneTo = 27000;

void CheckGone(WT_CURSOR *cursor, int from, int to, int step, const char *when)
{
	int found = 0;

	for (int number = from; number < to; number += step)
		found += IsThere(cursor, number);
	CHECK(!found, "%d rows that were truncated are there %s", found, when);
}

void Copy(const Place &place, const char *from, const char *to)
{
	const std::string copy = "cd '" + place.folder + "' && rm -rf " + to + " && cp -r " + from + " " + to;

	CHECK(system(copy.c_str()) == 0, "%s", copy.c_str());
}

// Truncates a range of table:t at timestamp 20, so that the leaves must be kept for older snapshots, and makes a
// checkpoint.
void TruncateAtTwenty(Database *database)
{
	WT_SESSION *const session = database->session();
	WT_CURSOR *const first = database->Open("table:t"), *const last = database->Open("table:t");
	const std::string from = Key(kGoneFrom), to = Key(kGoneTo - 1);

	CHECK_WT(database->connection()->set_timestamp(database->connection(), "oldest_timestamp=10"));
	SetKey(first, from);
	SetKey(last, to);
	CHECK_WT(session->begin_transaction(session, "isolation=snapshot"));
	CHECK_WT(session->truncate(session, nullptr, first, last, nullptr));
	CHECK_WT(session->commit_transaction(session, "commit_timestamp=20"));
	CHECK_WT(first->close(first));
	CHECK_WT(last->close(last));
	CHECK_WT(database->connection()->set_timestamp(database->connection(), "stable_timestamp=30"));
	CHECK_WT(session->checkpoint(session, nullptr));
	CHECK(database->deleted() > 0, "no page was deleted without being read");
}

// A truncation that some snapshots do not see yet is in the checkpoint, as deleted leaves: a database
// that starts from this checkpoint, as after a crash, has seen no truncation itself.
void TruncatedBeforeACrash(const Place &place)
{
	Make(place, "crash", "table:t");
	{
		Database database(place, "crash");

		TruncateAtTwenty(&database);
		Copy(place, "crash", "crashed");
	}
	Database database(place, "crashed");
	WT_CURSOR *const cursor = database.Open("table:t");

	FillCache(database, cursor, kGoneFrom - 2000);
	CheckGone(cursor, kGoneFrom, kGoneTo, 3, "after a crash");
	for (int number = 0; number < kRows; number += number == kGoneFrom - 1 ? kGoneTo - kGoneFrom + 1 : 1)
		CHECK(IsThere(cursor, number), "row %d", number);
	std::printf("a truncation before a crash is seen\n");
}

// Searches rows before `to`, none of which a chain may answer with a value.
void CheckNoValues(const Database &database, WT_CURSOR *cursor, int to, const char *what)
{
	const uint64_t before = database.values();

	for (int i = 0; i < 2000; i++)
		CHECK(IsThere(cursor, RandomRow(to)), "a row");
	CHECK(database.values() == before, "%llu values %s",
		static_cast<unsigned long long>(database.values() - before), what);
}

// Renames a table. WiredTiger refuses that until a checkpoint has all changes of the table.
void Rename(WT_SESSION *session, const char *from, const char *to)
{
	int error;

	for (int i = 0; (error = session->rename(session, from, to, nullptr)) == EBUSY; i++) {
		CHECK(i < 100, "%s stays busy", from);
		CHECK_WT(session->checkpoint(session, "force=true"));
	}
	CHECK_WT(error);
}

// Once internal pages had deleted leaves, a table's searches get pages, also after the table was renamed: WiredTiger
// 11 may have such pages in its block cache, where they are not seen again. Other renamed tables are not affected.
void RenamedIsStillTruncated(const Place &place)
{
	// Far enough from the range that parents of these rows never had deleted leaves.
	constexpr int kFar = kGoneFrom - 4000;

	Make(place, "renamed", "table:t");
	Database database(place, "renamed");
	WT_SESSION *const session = database.session();

	Fill(&database, "table:other");
	TruncateAtTwenty(&database);
	// No snapshot needs the deleted leaves any more: the next checkpoint frees them.
	CHECK_WT(database.connection()->set_timestamp(database.connection(), "oldest_timestamp=30"));
	Rename(session, "table:other", "table:other_renamed");
	Rename(session, "table:t", "table:t_renamed");
	WT_CURSOR *const other = database.Open("table:other_renamed"), *const cursor = database.Open("table:t_renamed");

	FillCache(database, other, kFar);
	SearchByChain(database, other, kFar);
	FillCache(database, cursor, kFar);
	CheckNoValues(database, cursor, kFar, "of a renamed table whose leaves may be deleted");
	CheckGone(cursor, kGoneFrom, kGoneTo, 3, "in a renamed table");
	std::printf("a table that is renamed may still have deleted leaves\n");
}

#if WIREDTIGER_VERSION_MAJOR > 3
int early_sessions = 0;

// WiredTiger 11 calls this before it recovers the database.
int OpenEarly(WT_EVENT_HANDLER *, WT_CONNECTION *connection, WT_SESSION *, WT_EVENT_TYPE type, void *)
{
	WT_SESSION *session;

	if (type != WT_EVENT_CONN_READY)
		return 0;
	CHECK_WT(connection->open_session(connection, nullptr, nullptr, &session));
	early_sessions++;
	return 0;
}

// Recovery may truncate the tables that it opens, also if the program has opened a session before: as programs do
// that read statistics meanwhile.
void RecoveredMayBeTruncated(const Place &place)
{
	// The table stays open after recovery, and its log has a record after the checkpoint.
	const std::string log = ",log=(enabled,prealloc=false),file_manager=(close_handle_minimum=250)";
	WT_EVENT_HANDLER handler = {};

	MakeFolder(place.folder + "/logged");
	{
		Database database(place, "logged", log, ",log_dsync=false");
		WT_SESSION *const session = database.session();

		Fill(&database, "table:t");
		WT_CURSOR *const cursor = database.Open("table:t");
		const std::string key = Key(kRows), value = Value(kRows);
		const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};

		SetKey(cursor, key);
		cursor->set_value(cursor, &item);
		CHECK_WT(cursor->insert(cursor));
		CHECK_WT(session->log_flush(session, "sync=on"));
		Copy(place, "logged", "recovered");
	}
	handler.handle_general = OpenEarly;
	Database database(place, "recovered", log, "", &handler);
	WT_CURSOR *const cursor = database.Open("table:t");

	CHECK(early_sessions == 1, "%d sessions before recovery", early_sessions);
	CHECK(IsThere(cursor, kRows), "row %d is not recovered", kRows);
	FillCache(database, cursor, kRows);
	CheckNoValues(database, cursor, kRows, "of a table that recovery has opened");
	std::printf("tables that recovery opens may be truncated\n");
}
#endif

bool IsOpen(const char *file)
{
	return system(("ls -l /proc/" + std::to_string(getpid()) + "/fd | grep -q '/" + file + "$'").c_str()) == 0;
}

// The file is closed when the truncation begins, and WiredTiger opens it for the truncation.
void TruncatedWhileClosed(const Place &place)
{
	Make(place, "closed", "table:t");
	Database database(place, "closed");
	WT_SESSION *const session = database.session(), *const reader = database.Session();

	Fill(&database, "table:other");
	FillCache(database, database.Open("table:t", reader), kRows);
	CHECK_WT(reader->close(reader, nullptr));
	for (int tenths = 0; IsOpen("t.wt"); tenths++) {
		CHECK(tenths < 600, "the table is not closed");
		usleep(100000);
	}
	// An older snapshot does not see the truncation, so its pages are kept.
	WT_SESSION *const older = database.Session();

	CHECK_WT(older->begin_transaction(older, "isolation=snapshot"));
	CHECK(IsThere(database.Open("table:other", older), 1), "row 1");
	const int64_t before = database.deleted();

	CHECK_WT(session->truncate(session, "table:t", nullptr, nullptr, nullptr));
	CHECK(database.deleted() > before, "no page was deleted without being read");
	// A few: pages whose rows an older snapshot sees stay in the cache.
	CheckGone(database.Open("table:t"), 0, kRows, kRows / 150, "in a table that was closed");
	CHECK_WT(older->close(older, nullptr));
	std::printf("a truncation of a table that is closed is seen\n");
}

#if WIREDTIGER_VERSION_MAJOR == 3
// WiredTiger 3.2 can Huffman-encode keys and values.
void EncodedIsLeftAlone(const Place &place)
{
	for (const char *options : {",huffman_value=english", ",huffman_key=english"}) {
		Make(place, "encoded", "table:t", options);
		Database database(place, "encoded");
		WT_CURSOR *const cursor = database.Open("table:t");

		FillCache(database, cursor, kRows);
		for (int number = 0; number < kRows; number += 7)
			CHECK(IsThere(cursor, number), "row %d", number);
	}
	std::printf("tables with Huffman encoding are not pushed down\n");
}
#endif

// Changes a row in all copies of its leaf in a file. The pages are valid, but not those of their
// addresses.
void Alter(const std::string &path, int number)
{
	std::ifstream file(path, std::ios::binary);
	std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
	int altered = 0;

	for (size_t at = 0; at + WT_PAGE_CELLS < all.size(); at += 512) {
		const uint32_t bytes = NumberAt(all, at + WT_PAGE_DISK_BYTES);

		if (all[at + WT_PAGE_TYPE] != WT_TYPE_ROW_LEAF || bytes > all.size() - at || bytes < 512)
			continue;
		std::string page = all.substr(at, bytes);
		const size_t key = page.find(Key(number)), value = key == std::string::npos ? key : page.find("the value", key);

		if (value == std::string::npos)
			continue;
		page[value] = 'T';
		const uint32_t sum = Crc32c(page);

		memcpy(&page[WT_PAGE_CHECKSUM], &sum, sizeof(sum));
		all.replace(at, bytes, page);
		altered++;
	}
	const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);

	CHECK(altered > 0, "no page has row %d", number);
	CHECK(fd >= 0 && pwrite(fd, all.data(), all.size(), 0) == ssize_t(all.size()) && fsync(fd) == 0, "%s", strerror(errno));
	close(fd);
}

void EndsWithError()
{
	std::printf("a page whose contents do not match its address is an error\n");
	std::fflush(stdout);
	_exit(0);
}

// A leaf that differs from its address is an error, also if a chain begins with it. WiredTiger ends
// with the error, and so does the test.
void LostWritesAreSeen(const Place &place)
{
	constexpr int kNumber = kGoneTo, kSameParent = kGoneTo - 50;

	Make(place, "lost", "table:t");
	Alter(place.folder + "/lost/t.wt", kNumber);
	Database database(place, "lost");
	WT_CURSOR *const cursor = database.Open("table:t");

	FillCache(database, cursor, kGoneFrom);
	database.SetMode(BPFOF_WIREDTIGER_PLAIN);
	CHECK(IsThere(cursor, kSameParent), "row %d", kSameParent);
	database.SetMode(BPFOF_WIREDTIGER_VALUES);
	SearchByChain(database, cursor, kGoneFrom);
	// Some builds of WiredTiger abort.
	std::signal(SIGABRT, [](int) { EndsWithError(); });
	const int error = Search(cursor, kNumber);

	CHECK(error && error != WT_NOTFOUND, "%d: a page that was not written here was accepted", error);
	EndsWithError();
}

// Settings-like words of the program in a table's metadata are not the table's settings.
void ProgramsHaveTheirOwnMetadata(const Place &place)
{
	Make(place, "metadata", "table:t", ",app_metadata=(a=1,block_compressor=lz4,collator=none,key_format=r,z=1)");
	Database database(place, "metadata");
	WT_CURSOR *const cursor = database.Open("table:t");

	FillCache(database, cursor, kRows);
	SearchByChain(database, cursor);
	std::printf("metadata of the program is not changed\n");
}

int CompareBackwards(WT_COLLATOR *, WT_SESSION *, const WT_ITEM *first, const WT_ITEM *second, int *order)
{
	const int direct = std::memcmp(first->data, second->data, std::min(first->size, second->size));

	*order = direct ? -direct : int(second->size) - int(first->size);
	return 0;
}

// Chains do not know the order of a program's own collator.
void CollatedIsLeftAlone(const Place &place)
{
	static WT_COLLATOR backwards = {CompareBackwards, nullptr, nullptr};

	MakeFolder(place.folder + "/collated");
	Database database(place, "collated");

	CHECK_WT(database.connection()->add_collator(database.connection(), "backwards", &backwards, nullptr));
	Fill(&database, "table:t", ",collator=backwards,app_metadata=(a=1,collator=none,z=1)");
	WT_CURSOR *const cursor = database.Open("table:t");

	FillCache(database, cursor, kRows);
	for (int number = 1; number < kRows; number += 7) {
		CHECK(IsThere(cursor, number), "row %d", number);
		CHECK_WT(cursor->next(cursor));
		CHECK(RowAt(cursor) == number - 1, "after row %d comes %d", number, RowAt(cursor));
	}
	std::printf("tables with a collator are not pushed down\n");
}

size_t Sockets()
{
	size_t count = 0;

	for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
		std::error_code error;

		count += std::filesystem::read_symlink(entry.path(), error).string().compare(0, 7, "socket:") == 0;
	}
	return count;
}

// A closed database has no connection to the target, whichever threads have searched in it.
void ClosedDatabasesHaveNoConnections(const Place &place)
{
	const size_t before = Sockets();
	std::promise<void> has_searched, may_end;
	std::thread idle;

	Make(place, "ended", "table:t");
	{
		// A connection for each thread.
		Database database(place, "ended", "", ",lanes=0");
		WT_CURSOR *const cursor = database.Open("table:t");

		FillCache(database, cursor, kRows);
		SearchByChain(database, cursor);
		idle = std::thread([&] {
			SearchByChain(database, database.Open("table:t", database.Session()));
			has_searched.set_value();
			may_end.get_future().wait();
		});
		has_searched.get_future().wait();
		CHECK(Sockets() > before + 1, "%zu sockets are open, before %zu", Sockets(), before);
	}
	for (int i = 0; Sockets() > before; i++, usleep(1000))
		CHECK(i < 20000, "%zu sockets are open, before %zu", Sockets(), before);
	may_end.set_value();
	idle.join();
	std::printf("a database that is closed has no connections\n");
}

std::string told_error;

int KeepError(WT_EVENT_HANDLER *, WT_SESSION *, int, const char *message)
{
	told_error += message;
	return 0;
}

// Settings that can never work are reported when the database is opened; an unreachable target is no
// error.
void MistakesAreTold(const Place &place)
{
	const Place wrong_url = {place.extension, "nvme-tcp//127.0.0.1", place.device, place.folder};
	const Place wrong_device = {place.extension, place.url, "/nowhere", place.folder};
	const Place nobody = {place.extension, "nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:target", place.device, place.folder};
	const Place no_daemon = {place.extension, "grantd:/nowhere/socket", "", place.folder};
	WT_EVENT_HANDLER handler = {};

	handler.handle_error = KeepError;
	MakeFolder(place.folder + "/mistakes");
	for (const Place *bad : {&wrong_url, &wrong_device, &nobody, &no_daemon}) {
		WT_CONNECTION *connection = nullptr;
		const bool is_mistake = bad == &wrong_url || bad == &wrong_device;

		told_error.clear();
		const int error = wiredtiger_open((place.folder + "/mistakes").c_str(), &handler, Settings(*bad).c_str(), &connection);

		CHECK(error == (is_mistake ? EINVAL : 0), "%s, %s: %s", bad->url, bad->device, wiredtiger_strerror(error));
		CHECK(told_error.find("bpfof: ") != std::string::npos, "%s, %s: %s", bad->url, bad->device, told_error.c_str());
		if (connection)
			CHECK_WT(connection->close(connection, nullptr));
	}
	std::printf("errors in the configuration are reported\n");
}

size_t TimesOpen(const std::string &path)
{
	size_t count = 0;

	for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
		std::error_code error;

		count += std::filesystem::read_symlink(entry.path(), error) == path;
	}
	return count;
}

// Runs with a script that stops and starts the target on request: a thread that has searched with a
// lost session, and is idle now, keeps no file open.
void IdleThreadsHaveNoFiles(const Place &place)
{
	Make(place, "idle", "table:t");
	const std::string file = place.folder + "/idle/t.wt";
	Database database(place, "idle");
	WT_CURSOR *const cursor = database.Open("table:t");
	std::promise<void> has_searched, may_end;

	FillCache(database, cursor, kRows);
	std::thread idle([&] {
		SearchByChain(database, database.Open("table:t", database.Session()));
		has_searched.set_value();
		may_end.get_future().wait();
	});

	has_searched.get_future().wait();
	SearchByChain(database, cursor);
	const size_t before = TimesOpen(file);

	std::printf("stop\n");
	std::fflush(stdout);
	for (int i = 0; !database.counters().lost; i++) {
		CHECK(i < 60000, "the target is not lost");
		IsThere(cursor, RandomRow(kRows));
		usleep(1000);
	}
	std::printf("start\n");
	std::fflush(stdout);
	for (int i = 0; !database.counters().reconnected; i++, usleep(1000))
		CHECK(i < 60000, "no reconnection");
	SearchByChain(database, cursor);
	for (int i = 0; TimesOpen(file) > before; i++, usleep(1000))
		CHECK(i < 60000, "the file is open %zu times, before %zu times", TimesOpen(file), before);
	may_end.set_value();
	idle.join();
	std::printf("idle threads have no files\n");
}

// Reads some rows of a scan.
void GoOn(WT_CURSOR *cursor)
{
	const int number = RandomRow(kRows - 3);
	const std::string key = Key(number);
	int exact;

	SetKey(cursor, key);
	CHECK_WT(cursor->search_near(cursor, &exact));
	for (int row = number; row <= number + 3; row++) {
		CHECK(RowAt(cursor) == row && ValueAt(cursor) == Value(row), "after row %d comes %d", row - 1, RowAt(cursor));
		CHECK_WT(cursor->next(cursor));
	}
}

// Runs with a script that suspends and resumes the target on request: a search, or a scan, waits for
// `deadline_ms`, and not for ever.
void SilentTargetIsGivenUp(const Place &place, bool is_scan)
{
	// A thread that waits twice is too late.
	constexpr double kDeadline = 5, kLate = 2 * kDeadline;

	Make(place, "silent", "table:t");
	Database database(place, "silent", "", ",deadline_ms=5000");
	WT_CURSOR *const cursor = database.Open("table:t");
	double longest = 0;

	FillCache(database, cursor, kRows);
	SearchByChain(database, cursor);
	std::printf("stop\n");
	std::fflush(stdout);
	for (int i = 0; !database.counters().lost; i++, usleep(1000)) {
		const auto begun = std::chrono::steady_clock::now();

		CHECK(i < 60000, "the target is not lost");
		if (is_scan)
			GoOn(cursor);
		else
			CHECK(IsThere(cursor, RandomRow(kRows)), "a row");
		longest = std::max(longest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
	}
	CHECK(longest < kLate, "a search or a scan took %f s", longest);
	std::printf("start\n");
	std::fflush(stdout);
	for (int i = 0; !database.counters().reconnected; i++, usleep(1000))
		CHECK(i < 60000, "no reconnection");
	SearchByChain(database, cursor);
	std::printf("an unresponsive target is given up: the longest %s took %.3f s\n", is_scan ? "scan" : "search", longest);
}

std::atomic<bool> has_no_threads{false};

void NoThread(const Place &place)
{
	const std::string home = place.folder + "/thread";
	WT_CONNECTION *connection = nullptr;

	MakeFolder(home);
	has_no_threads = true;
	const int error = wiredtiger_open(home.c_str(), nullptr, Settings(place).c_str(), &connection);

	has_no_threads = false;
	CHECK(error == ENOMEM, "without a thread: %s", wiredtiger_strerror(error));
	std::printf("without threads the extension is not loaded\n");
}

} // namespace

// With has_no_threads the extension cannot start its threads, which it starts through libstdc++.
extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
	Dl_info found;

	if (has_no_threads && dladdr(reinterpret_cast<void *>(run), &found) && std::strstr(found.dli_fname, "libstdc++"))
		return EAGAIN;
	return real(thread, attributes, run, argument);
}

int main(int argc, char **argv)
{
	const std::vector<Test> tests = {
		{"crash", TruncatedBeforeACrash},
		{"renamed", RenamedIsStillTruncated},
#if WIREDTIGER_VERSION_MAJOR > 3
		{"recovered", RecoveredMayBeTruncated},
#endif
		{"closed", TruncatedWhileClosed},
#if WIREDTIGER_VERSION_MAJOR == 3
		{"encoded", EncodedIsLeftAlone},
#endif
		{"metadata", ProgramsHaveTheirOwnMetadata},
		{"collator", CollatedIsLeftAlone},
		{"ended", ClosedDatabasesHaveNoConnections},
		{"mistakes", MistakesAreTold},
		{"thread", NoThread},
		{"lost", LostWritesAreSeen},
	};

	return RunTests(argc, argv, tests,
		{{"idle", IdleThreadsHaveNoFiles},
			{"silent", [](const Place &place) { SilentTargetIsGivenUp(place, false); }},
			{"silent-scan", [](const Place &place) { SilentTargetIsGivenUp(place, true); }}});
}
