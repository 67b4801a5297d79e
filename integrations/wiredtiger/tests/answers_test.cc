// SPDX-License-Identifier: Apache-2.0 OR MIT
// answers_test EXTENSION FOLDER URL DEVICE [TEST]: what a chain that answers a search must not change. Databases are in
// FOLDER, on a file system that the target serves. The tests "idle", "silent" and "silent-scan" run only
// by their names.
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
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
#include <initializer_list>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "database.h"
#include "page.h"

namespace {

// The part of a table that is truncated.
constexpr int kGoneFrom = 24000, kGoneTo = 27000;

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

#if WIREDTIGER_VERSION_MAJOR == 3
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
#endif

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
	// One that WiredTiger had kept, and that is opened in other words; the first of its session of which a search is
	// called off.
	WT_SESSION *const fresh = database.Session();
	WT_CURSOR *const first = database.Open("table:t", fresh);

	CHECK_WT(first->close(first));
	CHECK_WT(fresh->begin_transaction(fresh, nullptr));
	WT_CURSOR *const again = database.Open("table:t", fresh, "bulk=false,next_random=false,checkpoint=");

	search(again);
	CHECK_WT(fresh->rollback_transaction(fresh, nullptr));
	CheckReset(again, "rollback_transaction of a cursor that was kept");
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

// Words of the program in a table's metadata are not the table's settings.
void ProgramsHaveTheirOwnMetadata(const Place &place)
{
	Make(place, "metadata", "table:t", ",app_metadata=(a=1,block_compressor=lz4,collator=none,key_format=r,z=1)");
	Database database(place, "metadata");
	WT_CURSOR *const cursor = database.Open("table:t");

	FillCache(database, cursor, kRows);
	SearchByChain(database, cursor);
	std::printf("metadata of the program is left alone\n");
}

int CompareBackwards(WT_COLLATOR *, WT_SESSION *, const WT_ITEM *first, const WT_ITEM *second, int *order)
{
	const int direct = std::memcmp(first->data, second->data, std::min(first->size, second->size));

	*order = direct ? -direct : int(second->size) - int(first->size);
	return 0;
}

// Chains do not know the order of a program's own.
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
		CHECK(RowAt(cursor) == number - 1, "behind row %d is %d", number, RowAt(cursor));
	}
	std::printf("tables with a collator are left alone\n");
}

// A chain has found the row, and it is gone when it is removed: as for a key that was set.
void GoneIsRemoved(const Place &place)
{
	constexpr int kFrom = kRows / 4, kTo = kRows / 2;

	Make(place, "gone", "table:t");
	Database database(place, "gone");
	WT_SESSION *const session = database.Session("isolation=read-uncommitted");
	WT_CURSOR *const cursor = database.Open("table:t", session), *const other = database.Open("table:t");
	int number = 0;

	FillCache(database, other, kRows);
#if WIREDTIGER_VERSION_MAJOR > 3
	for (const bool is_lower : {true, false}) {
		const std::string key = Key(is_lower ? kFrom : kTo);

		SetKey(cursor, key);
		CHECK_WT(cursor->bound(cursor, is_lower ? "bound=lower" : "bound=upper"));
	}
#endif
	for (uint64_t before = database.values(); database.values() == before;) {
		number = kFrom + RandomRow(kTo - kFrom);
		CHECK(IsThere(cursor, number), "row %d", number);
	}
	const std::string key = Key(number);

	SetKey(other, key);
	CHECK_WT(other->remove(other));
	const int error = cursor->remove(cursor);

	// WiredTiger 3.2 takes that for a success, unless it has looked at other rows for it.
	CHECK(error == WT_NOTFOUND || (WIREDTIGER_VERSION_MAJOR == 3 && !error), "%s", wiredtiger_strerror(error));
	CHECK_WT(cursor->next(cursor));
	CHECK(RowAt(cursor) == (WIREDTIGER_VERSION_MAJOR > 3 ? kFrom : 0), "the next row is %d", RowAt(cursor));
	CHECK(!IsThere(other, number), "row %d", number);
	for (const int beside : {number - 1, number + 1})
		CHECK(IsThere(other, beside), "row %d", beside);
	std::printf("a row that is gone is not removed\n");
}

// Writes a row as it was.
void PutBack(WT_CURSOR *cursor, int number)
{
	const std::string key = Key(number), value = Value(number);
	const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};

	SetKey(cursor, key);
	cursor->set_value(cursor, &item);
	CHECK_WT(cursor->insert(cursor));
}

// A cursor has found its row, and the program sets another key: what is removed is the row of that, and what comes next
// is next to the row that was found.
void OtherKeysAreSet(const Place &place)
{
	Make(place, "others", "table:t");
	Database database(place, "others");
	WT_CURSOR *const cursor = database.Open("table:t"), *const other = database.Open("table:t", database.Session());

	FillCache(database, cursor, kRows);
	for (const bool is_plain : {true, false}) {
		const auto search = [&] {
			if (!is_plain)
				return SearchByChain(database, cursor);
			const int number = RandomRow(kRows);

			CHECK(IsThere(cursor, number), "row %d", number);
			return number;
		};

		database.SetMode(is_plain ? BPFOF_WIREDTIGER_PLAIN : BPFOF_WIREDTIGER_VALUES);
		for (const bool is_there : {true, false}) {
			const int number = search(), removed = 1 + (number + kRows / 2) % (kRows - 2);
			const std::string key = Key(removed) + (is_there ? "" : "x");

			SetKey(cursor, key);
			const int error = cursor->remove(cursor);

			CHECK(!error || (!is_there && error == WT_NOTFOUND), "%s", wiredtiger_strerror(error));
			CHECK(IsThere(other, number), "row %d is removed for another one", number);
			CHECK(IsThere(other, removed) != is_there, "row %d is %s", removed, is_there ? "not removed" : "removed");
			if (is_there)
				PutBack(other, removed);
			CHECK_WT(other->reset(other));
		}
		for (const bool is_next : {true, false}) {
			const int number = search(), beside = is_next ? number + 1 : number - 1;
			const std::string key = Key(1 + (number + kRows / 2) % (kRows - 2));

			SetKey(cursor, key);
			CHECK_WT(is_next ? cursor->next(cursor) : cursor->prev(cursor));
			CHECK(RowAt(cursor) == beside && ValueAt(cursor) == Value(beside), "beside row %d is %d", number, RowAt(cursor));
		}
		CHECK_WT(cursor->reset(cursor));
	}
	std::printf("a cursor whose key is set anew has its row still\n");
}

// A step that has to be tried again goes on from the same row.
void RowsAreKeptByErrors(const Place &place)
{
	Make(place, "prepared", "table:t");
	Database database(place, "prepared");
	// Of others the snapshot has nothing that is only prepared.
	WT_SESSION *const session = database.Session(), *const all = database.Session("isolation=read-uncommitted");
	WT_CURSOR *const cursor = database.Open("table:t", all), *const other = database.Open("table:t", session);

	FillCache(database, cursor, kRows);
	for (const bool is_next : {true, false}) {
		const int number = SearchByChain(database, cursor);

		CHECK_WT(session->begin_transaction(session, "isolation=snapshot"));
		PutBack(other, number);
		CHECK_WT(session->prepare_transaction(session, "prepare_timestamp=10"));
		const int error = is_next ? cursor->next(cursor) : cursor->prev(cursor);

		CHECK(error == WT_PREPARE_CONFLICT, "beside a row that is prepared: %s", wiredtiger_strerror(error));
		CHECK_WT(session->rollback_transaction(session, nullptr));
		CHECK_WT(is_next ? cursor->next(cursor) : cursor->prev(cursor));
		CHECK(RowAt(cursor) == (is_next ? number + 1 : number - 1), "beside row %d is %d", number, RowAt(cursor));
	}
	std::printf("a step that fails leaves the cursor where it is\n");
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

// A database that is closed has no connection to the target, whichever threads have searched in it.
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
		CHECK(Sockets() > before + 1, "%zu sockets are open, and %zu before", Sockets(), before);
	}
	for (int i = 0; Sockets() > before; i++, usleep(1000))
		CHECK(i < 20000, "%zu sockets are open, and %zu before", Sockets(), before);
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

// What no target would make good is told when the database is opened; a target that is not there is no error.
void MistakesAreTold(const Place &place)
{
	const Place wrong_url = {place.extension, "nvme-tcp//127.0.0.1", place.device, place.folder};
	const Place wrong_device = {place.extension, place.url, "/nowhere", place.folder};
	const Place nobody = {place.extension, "nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:target", place.device, place.folder};
	WT_EVENT_HANDLER handler = {};

	handler.handle_error = KeepError;
	MakeFolder(place.folder + "/mistakes");
	for (const Place *bad : {&wrong_url, &wrong_device, &nobody}) {
		WT_CONNECTION *connection = nullptr;
		const bool is_mistake = bad != &nobody;

		told_error.clear();
		const int error = wiredtiger_open((place.folder + "/mistakes").c_str(), &handler, Settings(*bad).c_str(), &connection);

		CHECK(error == (is_mistake ? EINVAL : 0), "%s, %s: %s", bad->url, bad->device, wiredtiger_strerror(error));
		CHECK(told_error.find("bpfof: ") != std::string::npos, "%s, %s: %s", bad->url, bad->device, told_error.c_str());
		if (connection)
			CHECK_WT(connection->close(connection, nullptr));
	}
	std::printf("mistakes in the configuration are told\n");
}

int closed_handles = 0;

int CountClosed(WT_EVENT_HANDLER *, WT_SESSION *, WT_CURSOR *)
{
	closed_handles++;
	return 0;
}

// Closes a session, or the database of which it is open.
void TellOfCursors(const Place &place, WT_EVENT_HANDLER *handler, bool by_database)
{
	int told[2];

	// WiredTiger tells of some of its own.
	for (const bool is_plain : {true, false}) {
		Database database(place, "told");
		WT_SESSION *session;

		FillCache(database, database.Open("table:t"), kRows);
		CHECK_WT(database.connection()->open_session(database.connection(), handler, nullptr, &session));
		WT_CURSOR *const cursor = database.Open("table:t", session);

		database.SetMode(is_plain ? BPFOF_WIREDTIGER_PLAIN : BPFOF_WIREDTIGER_VALUES);
		if (is_plain)
			CHECK(IsThere(cursor, 1), "row 1");
		else
			SearchByChain(database, cursor);
		CHECK_WT(cursor->close(cursor));
		closed_handles = 0;
		CHECK_WT(by_database ? database.Close() : session->close(session, nullptr));
		told[is_plain] = closed_handles;
	}
	CHECK(told[false] == told[true], "the program is told of %d cursors, and of %d by WiredTiger", told[false], told[true]);
}

// A program hears of no cursors but its own.
void OnlyOwnCursorsAreTold(const Place &place)
{
	WT_EVENT_HANDLER handler = {};

	Make(place, "told", "table:t");
	handler.handle_close = CountClosed;
	for (const bool by_database : {false, true})
		TellOfCursors(place, &handler, by_database);
	std::printf("the program hears of its own cursors\n");
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

// For the target, which somebody stops and starts as this says: a thread that has searched by a session that is lost,
// and does nothing now, has no file open.
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
		CHECK(i < 60000, "there is no other session");
	SearchByChain(database, cursor);
	for (int i = 0; TimesOpen(file) > before; i++, usleep(1000))
		CHECK(i < 60000, "it is open %zu times, and %zu before", TimesOpen(file), before);
	may_end.set_value();
	idle.join();
	std::printf("idle threads have no files\n");
}

// Rows in a scan.
void GoOn(WT_CURSOR *cursor)
{
	const int number = RandomRow(kRows - 3);
	const std::string key = Key(number);
	int exact;

	SetKey(cursor, key);
	CHECK_WT(cursor->search_near(cursor, &exact));
	for (int row = number; row <= number + 3; row++) {
		CHECK(RowAt(cursor) == row && ValueAt(cursor) == Value(row), "behind row %d is %d", row - 1, RowAt(cursor));
		CHECK_WT(cursor->next(cursor));
	}
}

// For the target, which somebody stops and lets go on as this says: a search, or a scan, waits for `deadline_ms`, and
// not for ever.
void SilentTargetIsGivenUp(const Place &place, bool is_scan)
{
	// Who waits twice is too late.
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
		CHECK(i < 60000, "there is no other session");
	SearchByChain(database, cursor);
	std::printf("a target that is silent is given up: the longest %s took %.3f s\n", is_scan ? "scan" : "search", longest);
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
#if WIREDTIGER_VERSION_MAJOR == 3
		{"encoded", EncodedIsLeftAlone},
#endif
		{"reset", CursorsAreReset},
		{"snapshot", SnapshotsAreKept},
		{"memory", ClosedCursorsHaveNothing},
		{"metadata", ProgramsHaveTheirOwnMetadata},
		{"collator", CollatedIsLeftAlone},
		{"gone", GoneIsRemoved},
		{"others", OtherKeysAreSet},
		{"prepared", RowsAreKeptByErrors},
		{"ended", ClosedDatabasesHaveNoConnections},
		{"mistakes", MistakesAreTold},
		{"told", OnlyOwnCursorsAreTold},
		{"thread", NoThread},
		{"lost", LostWritesAreSeen},
	};

	CHECK(argc == 5 || argc == 6, "usage: answers_test EXTENSION FOLDER URL DEVICE [TEST]");
	const Place place = {argv[1], argv[3], argv[4], argv[2]};

	for (const auto &test : tests)
		if (argc == 5 || !std::strcmp(argv[5], test.name))
			test.run(place);
	if (argc == 6 && !std::strcmp(argv[5], "idle"))
		IdleThreadsHaveNoFiles(place);
	if (argc == 6 && !std::strcmp(argv[5], "silent"))
		SilentTargetIsGivenUp(place, false);
	if (argc == 6 && !std::strcmp(argv[5], "silent-scan"))
		SilentTargetIsGivenUp(place, true);
	return 0;
}
