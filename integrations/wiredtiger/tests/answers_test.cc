// SPDX-License-Identifier: Apache-2.0 OR MIT
// answers_test EXTENSION FOLDER URL DEVICE [TEST]: what a chain that answers a search must not change. Databases are in
// FOLDER, on a file system that the target serves.
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "bpfof/wiredtiger.h"
#include "check.h"
#include "page.h"

namespace {

constexpr int kRows = 30000;
// The part of a table that is truncated.
constexpr int kGoneFrom = 24000, kGoneTo = 27000;
// Searches after which the extension knows that the cache is full, and within which one is then answered by a chain.
constexpr int kSearchesBefore = 20000, kSearchesMax = 20000;
const char kPages[] =
	"key_format=u,value_format=u,allocation_size=512B,internal_page_max=4KB,leaf_page_max=512B";

struct Place {
	const char *extension, *url, *device;
	std::string folder;
};

int Quiet(WT_EVENT_HANDLER *, WT_SESSION *, int, const char *)
{
	return 0;
}

std::string Settings(const Place &place)
{
	// Handles that nobody uses are closed at once.
	return std::string("create,cache_size=1MB,statistics=(fast),file_manager=(close_handle_minimum=0,close_idle_time=1,"
			   "close_scan_interval=1),extensions=[") +
	       place.extension + "={early_load=true,config={url=\"" + place.url + "\",device=\"" + place.device +
	       "\",sample=0}}]";
}

// An open database, and a session.
class Database {
    public:
	Database(const Place &place, const std::string &name)
	{
		CHECK_WT(wiredtiger_open((place.folder + "/" + name).c_str(), nullptr, Settings(place).c_str(), &connection_));
		library_ = dlopen(place.extension, RTLD_NOW | RTLD_NOLOAD);
		CHECK(library_, "%s", dlerror());
		session_ = Session();
	}
	~Database() { CHECK_WT(connection_->close(connection_, nullptr)); }
	Database(const Database &) = delete;
	Database &operator=(const Database &) = delete;

	WT_CONNECTION *connection() const { return connection_; }
	WT_SESSION *session() const { return session_; }

	// What WiredTiger refuses in it is not told.
	WT_SESSION *Session(const char *config = nullptr)
	{
		WT_SESSION *session;

		quiet_.handle_error = Quiet;
		CHECK_WT(connection_->open_session(connection_, &quiet_, config, &session));
		return session;
	}

	WT_CURSOR *Open(const char *uri, WT_SESSION *session = nullptr, const char *config = nullptr)
	{
		WT_SESSION *const in = session ? session : session_;
		WT_CURSOR *cursor;

		CHECK_WT(in->open_cursor(in, uri, nullptr, config, &cursor));
		return cursor;
	}

	// Searches that chains have answered with a value.
	uint64_t values() const
	{
		bpfof_wiredtiger_counters counters = {};

		Call<decltype(bpfof_wiredtiger_read_counters)>("bpfof_wiredtiger_read_counters")(&counters, sizeof(counters));
		return counters.values;
	}

	void SetMode(bpfof_wiredtiger_mode mode) const
	{
		Call<decltype(bpfof_wiredtiger_set_mode)>("bpfof_wiredtiger_set_mode")(mode);
	}

	// Pages that were deleted without being read.
	int64_t deleted()
	{
		WT_CURSOR *const cursor = Open("statistics:");
		const char *what, *printed;
		int64_t count;

		cursor->set_key(cursor, WT_STAT_CONN_REC_PAGE_DELETE_FAST);
		CHECK_WT(cursor->search(cursor));
		CHECK_WT(cursor->get_value(cursor, &what, &printed, &count));
		CHECK_WT(cursor->close(cursor));
		return count;
	}

    private:
	template <typename Function> Function *Call(const char *name) const
	{
		const auto function = reinterpret_cast<Function *>(dlsym(library_, name));

		CHECK(function, "%s", dlerror());
		return function;
	}

	WT_CONNECTION *connection_;
	WT_SESSION *session_;
	WT_EVENT_HANDLER quiet_ = {};
	void *library_;
};

std::string Key(int number)
{
	char text[16];

	std::snprintf(text, sizeof(text), "key %08d", number);
	return text;
}

std::string Value(int number)
{
	std::string value = "the value of row ";

	for (int rest = number; rest; rest /= 20)
		value += char('a' + rest % 20);
	return value;
}

void SetKey(WT_CURSOR *cursor, const std::string &key)
{
	const WT_ITEM item = {key.data(), key.size(), nullptr, 0, 0};

	cursor->set_key(cursor, &item);
}

// Of the row that the cursor is on.
std::string ValueAt(WT_CURSOR *cursor)
{
	WT_ITEM value;

	CHECK_WT(cursor->get_value(cursor, &value));
	return std::string(static_cast<const char *>(value.data), value.size);
}

int Search(WT_CURSOR *cursor, int number)
{
	// A cursor has only the address of its key.
	const std::string key = Key(number);

	SetKey(cursor, key);
	return cursor->search(cursor);
}

// Whether the row is there; if it is, with its value.
bool IsThere(WT_CURSOR *cursor, int number)
{
	const int error = Search(cursor, number);

	CHECK(!error || error == WT_NOTFOUND, "%s", wiredtiger_strerror(error));
	if (error)
		return false;
	const std::string found = ValueAt(cursor);

	CHECK(found == Value(number), "row %d is %s", number, found.c_str());
	return true;
}

int RowAt(WT_CURSOR *cursor)
{
	WT_ITEM key;

	CHECK_WT(cursor->get_key(cursor, &key));
	return std::atoi(std::string(static_cast<const char *>(key.data), key.size).c_str() + 4);
}

int RandomRow(int to)
{
	static std::mt19937 random(4711);

	// One with rows on both sides.
	return 1 + int(random() % (to - 2));
}

// Searches rows before `to` until a chain has answered with one, and gives its number.
int SearchByChain(const Database &database, WT_CURSOR *cursor, int to = kRows)
{
	for (int i = 0; i < kSearchesMax; i++) {
		const int number = RandomRow(to);
		const uint64_t before = database.values();

		CHECK(IsThere(cursor, number), "row %d", number);
		if (database.values() > before)
			return number;
	}
	CHECK(false, "no chain gave a value: is the target there?");
	return 0;
}

// From now on chains answer searches.
void FillCache(const Database &database, WT_CURSOR *cursor, int to)
{
	database.SetMode(BPFOF_WIREDTIGER_PLAIN);
	for (int i = 0; i < kSearchesBefore; i++)
		IsThere(cursor, RandomRow(to));
	database.SetMode(BPFOF_WIREDTIGER_VALUES);
}

void Fill(Database *database, const char *uri, const std::string &options = "")
{
	WT_SESSION *const session = database->session();

	CHECK_WT(session->create(session, uri, (kPages + options).c_str()));
	WT_CURSOR *const cursor = database->Open(uri);

	for (int number = 0; number < kRows; number++) {
		const std::string key = Key(number), value = Value(number);
		const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};

		SetKey(cursor, key);
		cursor->set_value(cursor, &item);
		CHECK_WT(cursor->insert(cursor));
	}
	CHECK_WT(cursor->close(cursor));
	CHECK_WT(session->checkpoint(session, nullptr));
}

// Nothing of it is in the cache when it is opened next.
void Make(const Place &place, const std::string &name, const char *uri, const std::string &options = "")
{
	const std::string folder = place.folder + "/" + name;

	CHECK(system(("rm -rf '" + folder + "' && mkdir -p '" + folder + "'").c_str()) == 0, "%s", folder.c_str());
	Database database(place, name);

	Fill(&database, uri, options);
}

void CheckGone(WT_CURSOR *cursor, int from, int to, int step, const char *when)
{
	int found = 0;

	for (int number = from; number < to; number += step)
		found += IsThere(cursor, number);
	CHECK(!found, "%d rows that were truncated are there %s", found, when);
}

// A truncation that not all snapshots have yet is in the checkpoint, with the deleted leaves: a database that begins
// with this checkpoint, as after a crash, has seen no truncation.
void TruncatedBeforeACrash(const Place &place)
{
	Make(place, "crash", "table:t");
	{
		Database database(place, "crash");
		WT_SESSION *const session = database.session();
		WT_CURSOR *const first = database.Open("table:t"), *const last = database.Open("table:t");
		const std::string from = Key(kGoneFrom), to = Key(kGoneTo - 1);

		CHECK_WT(database.connection()->set_timestamp(database.connection(), "oldest_timestamp=10"));
		SetKey(first, from);
		SetKey(last, to);
		CHECK_WT(session->begin_transaction(session, "isolation=snapshot"));
		CHECK_WT(session->truncate(session, nullptr, first, last, nullptr));
		CHECK_WT(session->commit_transaction(session, "commit_timestamp=20"));
		CHECK_WT(database.connection()->set_timestamp(database.connection(), "stable_timestamp=30"));
		CHECK_WT(session->checkpoint(session, nullptr));
		CHECK(database.deleted() > 0, "no page was deleted without being read");
		const std::string copy = "cd '" + place.folder + "' && rm -rf crashed && cp -r crash crashed";

		CHECK(system(copy.c_str()) == 0, "%s", copy.c_str());
	}
	Database database(place, "crashed");
	WT_CURSOR *const cursor = database.Open("table:t");

	FillCache(database, cursor, kGoneFrom - 2000);
	CheckGone(cursor, kGoneFrom, kGoneTo, 3, "after a crash");
	for (int number = 0; number < kRows; number += number == kGoneFrom - 1 ? kGoneTo - kGoneFrom + 1 : 1)
		CHECK(IsThere(cursor, number), "row %d", number);
	std::printf("a truncation before a crash is seen\n");
}

bool IsOpen(const char *file)
{
	return system(("ls -l /proc/" + std::to_string(getpid()) + "/fd | grep -q '/" + file + "$'").c_str()) == 0;
}

// The file is closed when the truncation begins, and WiredTiger opens it for that.
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
	// The truncation is not for all, and so its pages are kept.
	WT_SESSION *const older = database.Session();

	CHECK_WT(older->begin_transaction(older, "isolation=snapshot"));
	CHECK(IsThere(database.Open("table:other", older), 1), "row 1");
	const int64_t before = database.deleted();

	CHECK_WT(session->truncate(session, "table:t", nullptr, nullptr, nullptr));
	CHECK(database.deleted() > before, "no page was deleted without being read");
	// A few: pages of which an older snapshot has the rows stay in the cache.
	CheckGone(database.Open("table:t"), 0, kRows, kRows / 150, "in a table that was closed");
	CHECK_WT(older->close(older, nullptr));
	std::printf("a truncation of a table that is closed is seen\n");
}

// WiredTiger 3.2 can encode keys and values.
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
	std::printf("tables with Huffman encoding are left alone\n");
}

// As a cursor that was reset: no key, and the next row is the first one.
void CheckReset(WT_CURSOR *cursor, const char *what)
{
	WT_ITEM key;

	CHECK(cursor->get_key(cursor, &key) == EINVAL, "after %s a cursor has its key", what);
	CHECK_WT(cursor->next(cursor));
	CHECK(RowAt(cursor) == 0, "after %s the next row is %d", what, RowAt(cursor));
	CHECK_WT(cursor->reset(cursor));
}

// What resets all cursors of a session resets those of which a search was called off.
void CursorsAreReset(const Place &place)
{
	Make(place, "reset", "table:t");
	Database database(place, "reset");
	WT_SESSION *const session = database.session(), *const other = database.Session();
	WT_CURSOR *const cursor = database.Open("table:t"), *const kept = database.Open("table:t", other);
	const auto search = [&](WT_CURSOR *in) { return SearchByChain(database, in); };

	FillCache(database, cursor, kRows);
	const int number = search(kept);

	CHECK_WT(session->begin_transaction(session, nullptr));
	search(cursor);
	CHECK_WT(session->rollback_transaction(session, nullptr));
	CheckReset(cursor, "rollback_transaction");
	search(cursor);
	CHECK_WT(session->reset(session));
	CheckReset(cursor, "reset");
	search(cursor);
	CHECK_WT(session->checkpoint(session, nullptr));
	CheckReset(cursor, "checkpoint");
	search(cursor);
	CHECK_WT(session->reconfigure(session, "isolation=snapshot"));
	CheckReset(cursor, "reconfigure");
	// One that is closed meanwhile.
	CHECK_WT(session->begin_transaction(session, nullptr));
	WT_CURSOR *const closed = database.Open("table:t");

	search(closed);
	CHECK_WT(closed->close(closed));
	CHECK_WT(session->rollback_transaction(session, nullptr));
	// Cursors keep their rows when a transaction is committed, and what other sessions do.
	CHECK_WT(session->begin_transaction(session, nullptr));
	const int committed = search(cursor);

	CHECK_WT(session->commit_transaction(session, nullptr));
	CHECK_WT(cursor->next(cursor));
	CHECK(RowAt(cursor) == committed + 1, "behind row %d is %d", committed, RowAt(cursor));
	CHECK_WT(kept->next(kept));
	CHECK(RowAt(kept) == number + 1, "behind row %d is %d", number, RowAt(kept));
	// What fails by itself is a transaction that is rolled back.
	WT_CURSOR *const inserting = database.Open("table:t", session, "overwrite=false");
	const std::string key = Key(1);
	const WT_ITEM value = {"", 0, nullptr, 0, 0};

	search(cursor);
	SetKey(inserting, key);
	inserting->set_value(inserting, &value);
	CHECK(inserting->insert(inserting) == WT_DUPLICATE_KEY, "a row is inserted that is there");
	CheckReset(cursor, "an insert that fails");
	std::printf("cursors are reset with their sessions\n");
}

// Writes these rows in one transaction: as others, or as they were.
void Change(WT_CURSOR *cursor, std::initializer_list<int> numbers, bool is_changed)
{
	WT_SESSION *const session = cursor->session;

	CHECK_WT(session->begin_transaction(session, "isolation=snapshot"));
	for (const int number : numbers) {
		const std::string key = Key(number), value = is_changed ? "changed" : Value(number);
		const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};

		SetKey(cursor, key);
		cursor->set_value(cursor, &item);
		CHECK_WT(cursor->insert(cursor));
	}
	CHECK_WT(session->commit_transaction(session, nullptr));
}

bool IsChanged(WT_CURSOR *cursor, int number)
{
	CHECK_WT(Search(cursor, number));
	const std::string found = ValueAt(cursor);

	CHECK(found == Value(number) || found == "changed", "row %d is %s", number, found.c_str());
	return found == "changed";
}

// What the second cursor of a session sees once the first one has a row. `search` finds any row by the first one.
template <typename Search>
void CheckSnapshot(WT_CURSOR *first, WT_CURSOR *second, WT_CURSOR *writing, const char *how, const Search &search)
{
	const auto far_from = [](int number) { return 1 + (number + kRows / 2) % (kRows - 2); };
	const int number = search(), far = far_from(number);

	Change(writing, {number, number + 1, far}, true);
	CHECK(!IsChanged(second, far), "%s: another cursor has another snapshot", how);
	CHECK_WT(second->reset(second));
	CHECK_WT(first->next(first));
	CHECK(RowAt(first) == number + 1 && ValueAt(first) == Value(number + 1), "%s: the next row is of another snapshot", how);
	CHECK(!IsChanged(second, far), "%s: the next row has brought another snapshot", how);
	CHECK_WT(first->reset(first));
	CHECK_WT(second->reset(second));
	CHECK(IsChanged(second, far), "%s: the snapshot stays when no cursor has a row", how);
	CHECK_WT(second->reset(second));
	Change(writing, {number, number + 1, far}, false);
	// One cursor by itself has another snapshot with another search.
	const int other = far_from(search());

	Change(writing, {other}, true);
	CHECK(IsChanged(first, other), "%s: the snapshot stays in another search", how);
	CHECK_WT(first->reset(first));
	Change(writing, {other}, false);
	// One that is closed takes it with it.
	search();
	Change(writing, {other}, true);
	CHECK_WT(first->close(first));
	CHECK(IsChanged(second, other), "%s: the snapshot stays with a cursor that is closed", how);
	CHECK_WT(second->reset(second));
	Change(writing, {other}, false);
}

// While a cursor has a row its session keeps the snapshot: as without chains.
void SnapshotsAreKept(const Place &place)
{
	Make(place, "snapshot", "table:t");
	Database database(place, "snapshot");
	WT_CURSOR *const writing = database.Open("table:t");

	FillCache(database, writing, kRows);
	for (const char *isolation : {"isolation=read-committed", "isolation=snapshot"})
		for (const bool is_transaction : {false, true}) {
			// It would keep its snapshot to its end.
			if (is_transaction && std::strcmp(isolation, "isolation=snapshot") == 0)
				continue;
			for (const bool is_plain : {true, false}) {
				WT_SESSION *const session = database.Session(isolation);
				WT_CURSOR *const first = database.Open("table:t", session), *const second = database.Open("table:t", session);
				const std::string how = std::string(isolation) + (is_transaction ? " transaction" : "") +
							(is_plain ? " by WiredTiger" : " by a chain");

				if (is_transaction)
					CHECK_WT(session->begin_transaction(session, nullptr));
				CheckSnapshot(first, second, writing, how.c_str(), [&] {
					if (!is_plain)
						return SearchByChain(database, first);
					const int number = RandomRow(kRows);

					database.SetMode(BPFOF_WIREDTIGER_PLAIN);
					CHECK(IsThere(first, number), "row %d", number);
					database.SetMode(BPFOF_WIREDTIGER_VALUES);
					return number;
				});
				CHECK_WT(session->close(session, nullptr));
			}
		}
	std::printf("sessions keep their snapshots\n");
}

// Changes a row in all copies of its leaf in a file. As pages they are right, but not those of their addresses.
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

	CHECK(altered > 0, "row %d is nowhere", number);
	CHECK(fd >= 0 && pwrite(fd, all.data(), all.size(), 0) == ssize_t(all.size()) && fsync(fd) == 0, "%s", strerror(errno));
	close(fd);
}

void EndsWithError()
{
	std::printf("a page that is not the one of its address is an error\n");
	std::fflush(stdout);
	_exit(0);
}

// A leaf that is another one than its address says is an error, also if a chain begins with it. WiredTiger ends with
// it, and so does the test.
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

	CHECK(error && error != WT_NOTFOUND, "%d: a page that was not written here is an answer", error);
	EndsWithError();
}

// Cursors that are closed, and that WiredTiger does not keep for later, have no memory of pages and values.
void ClosedCursorsHaveNothing(const Place &place)
{
	// Each one scans rows that are not in the cache.
	constexpr int kCursors = 10, kScanned = kRows / kCursors - 1;

	Make(place, "memory", "table:t");
	Database database(place, "memory");
	WT_SESSION *const session = database.Session("cache_cursors=false");
	std::vector<WT_CURSOR *> cursors;
	const size_t before = mallinfo2().uordblks;

	for (int i = 0; i < kCursors; i++) {
		WT_CURSOR *const cursor = database.Open("table:t", session);

		CHECK(IsThere(cursor, i * kRows / kCursors), "row %d", i);
		for (int row = 0; row < kScanned; row++)
			CHECK_WT(cursor->next(cursor));
		cursors.push_back(cursor);
	}
	const size_t open = mallinfo2().uordblks;

	for (WT_CURSOR *cursor : cursors)
		CHECK_WT(cursor->close(cursor));
	const size_t after = mallinfo2().uordblks;

	CHECK(open > after + kCursors * 8192, "%zu bytes before, %zu with open cursors, %zu after that", before, open, after);
	std::printf("cursors that are closed have given back %zu KiB\n", (open - after) >> 10);
}

std::atomic<bool> has_no_threads{false};

void NoThread(const Place &place)
{
	const std::string home = place.folder + "/thread";
	WT_CONNECTION *connection = nullptr;

	CHECK(system(("rm -rf '" + home + "' && mkdir -p '" + home + "'").c_str()) == 0, "%s", home.c_str());
	has_no_threads = true;
	const int error = wiredtiger_open(home.c_str(), nullptr, Settings(place).c_str(), &connection);

	has_no_threads = false;
	CHECK(error == ENOMEM, "without a thread: %s", wiredtiger_strerror(error));
	std::printf("without threads the extension is not loaded\n");
}

} // namespace

// Those of the extension: C++ begins them.
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
	const struct {
		const char *name;
		void (*run)(const Place &);
	} tests[] = {
		{"crash", TruncatedBeforeACrash},
		{"closed", TruncatedWhileClosed},
		{"encoded", EncodedIsLeftAlone},
		{"reset", CursorsAreReset},
		{"snapshot", SnapshotsAreKept},
		{"memory", ClosedCursorsHaveNothing},
		{"thread", NoThread},
		{"lost", LostWritesAreSeen},
	};

	CHECK(argc == 5 || argc == 6, "usage: answers_test EXTENSION FOLDER URL DEVICE [TEST]");
	const Place place = {argv[1], argv[3], argv[4], argv[2]};

	for (const auto &test : tests)
		if (argc == 5 || !std::strcmp(argv[5], test.name))
			test.run(place);
	return 0;
}
