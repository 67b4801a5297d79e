// SPDX-License-Identifier: Apache-2.0 OR MIT
// cursors_test EXTENSION FOLDER URL DEVICE [TEST]: a cursor whose search a chain has answered behaves
// like any other. Databases are in FOLDER, on a file system that the target serves.
#include <malloc.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "database.h"

namespace {

// Checks that the cursor is reset: it has no key, and its next row is the first one.
void CheckReset(WT_CURSOR *cursor, const char *what)
{
	WT_ITEM key;

	CHECK(cursor->get_key(cursor, &key) == EINVAL, "after %s a cursor still has its key", what);
	CHECK_WT(cursor->next(cursor));
	CHECK(RowAt(cursor) == 0, "after %s the next row is %d", what, RowAt(cursor));
	CHECK_WT(cursor->reset(cursor));
}

// Calls that reset all cursors of a session also reset those whose search was cancelled.
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
	// A cursor that is closed meanwhile.
	CHECK_WT(session->begin_transaction(session, nullptr));
	WT_CURSOR *const closed = database.Open("table:t");

	search(closed);
	CHECK_WT(closed->close(closed));
	CHECK_WT(session->rollback_transaction(session, nullptr));
	// Cursors keep their rows at the commit of a transaction, and through changes by other
	// sessions.
	CHECK_WT(session->begin_transaction(session, nullptr));
	const int committed = search(cursor);

	CHECK_WT(session->commit_transaction(session, nullptr));
	CHECK_WT(cursor->next(cursor));
	CHECK(RowAt(cursor) == committed + 1, "after row %d comes %d", committed, RowAt(cursor));
	CHECK_WT(kept->next(kept));
	CHECK(RowAt(kept) == number + 1, "after row %d comes %d", number, RowAt(kept));
	// A cursor that WiredTiger had cached, opened with a different configuration; the first in its
	// session whose search is cancelled.
	WT_SESSION *const fresh = database.Session();
	WT_CURSOR *const first = database.Open("table:t", fresh);

	CHECK_WT(first->close(first));
	CHECK_WT(fresh->begin_transaction(fresh, nullptr));
	WT_CURSOR *const again = database.Open("table:t", fresh, "bulk=false,next_random=false,checkpoint=");

	search(again);
	CHECK_WT(fresh->rollback_transaction(fresh, nullptr));
	CheckReset(again, "rollback_transaction of a cursor that was kept");
	// A failed insertion rolls its own transaction back.
	WT_CURSOR *const inserting = database.Open("table:t", session, "overwrite=false");
	const std::string key = Key(1);
	const WT_ITEM value = {"", 0, nullptr, 0, 0};

	search(cursor);
	SetKey(inserting, key);
	inserting->set_value(inserting, &value);
	CHECK(inserting->insert(inserting) == WT_DUPLICATE_KEY, "an existing row was inserted");
	CheckReset(cursor, "an insert that fails");
	std::printf("cursors are reset with their sessions\n");
}

// Writes these rows in one transaction: changed, or as they were.
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

// What the second cursor of a session sees while the first one has a row. `search` finds any row by the
// first one.
template <typename Search>
void CheckSnapshot(WT_CURSOR *first, WT_CURSOR *second, WT_CURSOR *writing, const char *how, const Search &search)
{
	const auto far_from = [](int number) { return 1 + (number + kRows / 2) % (kRows - 2); };
	const int number = search(), far = far_from(number);

	Change(writing, {number, number + 1, far}, true);
	CHECK(!IsChanged(second, far), "%s: two cursors have different snapshots", how);
	CHECK_WT(second->reset(second));
	CHECK_WT(first->next(first));
	CHECK(RowAt(first) == number + 1 && ValueAt(first) == Value(number + 1), "%s: the next row is of another snapshot", how);
	CHECK(!IsChanged(second, far), "%s: reading the next row has changed the snapshot", how);
	CHECK_WT(first->reset(first));
	CHECK_WT(second->reset(second));
	CHECK(IsChanged(second, far), "%s: the snapshot is kept although no cursor has a row", how);
	CHECK_WT(second->reset(second));
	Change(writing, {number, number + 1, far}, false);
	// With one cursor, another search takes another snapshot.
	const int other = far_from(search());

	Change(writing, {other}, true);
	CHECK(IsChanged(first, other), "%s: the snapshot is kept in a new search", how);
	CHECK_WT(first->reset(first));
	Change(writing, {other}, false);
	// Closing the cursor gives its snapshot up.
	search();
	Change(writing, {other}, true);
	CHECK_WT(first->close(first));
	CHECK(IsChanged(second, other), "%s: the snapshot is kept after its cursor was closed", how);
	CHECK_WT(second->reset(second));
	Change(writing, {other}, false);
}

// While a cursor has a row, its session keeps the snapshot: as without chains.
void SnapshotsAreKept(const Place &place)
{
	Make(place, "snapshot", "table:t");
	Database database(place, "snapshot");
	WT_CURSOR *const writing = database.Open("table:t");

	FillCache(database, writing, kRows);
	for (const char *isolation : {"isolation=read-committed", "isolation=snapshot"})
		for (const bool is_transaction : {false, true}) {
			// A snapshot transaction would keep its snapshot to its end.
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

// Closed cursors that WiredTiger does not cache have no memory of pages and values.
void ClosedCursorsHaveNothing(const Place &place)
{
	// Each cursor scans rows that are not in the cache.
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

	constexpr size_t kMany = 4000, kKept = kMany * 100;

	cursors.clear();
	for (size_t i = 0; i < kMany; i++)
		cursors.push_back(database.Open("table:t", session));
	for (WT_CURSOR *cursor : cursors)
		CHECK_WT(cursor->close(cursor));
	const size_t end = mallinfo2().uordblks;

	CHECK(end < after + kKept, "%zu bytes before %zu cursors, %zu when all are closed", after, kMany, end);
}

// A row that a chain has found is gone when it is removed: as for a key that was set.
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

	// WiredTiger 3.2 reports success, unless it has looked at other rows.
	CHECK(error == WT_NOTFOUND || (WIREDTIGER_VERSION_MAJOR == 3 && !error), "%s", wiredtiger_strerror(error));
	CHECK_WT(cursor->next(cursor));
	CHECK(RowAt(cursor) == (WIREDTIGER_VERSION_MAJOR > 3 ? kFrom : 0), "the next row is %d", RowAt(cursor));
	CHECK(!IsThere(other, number), "row %d", number);
	for (const int beside : {number - 1, number + 1})
		CHECK(IsThere(other, beside), "row %d", beside);
	std::printf("a row that no longer exists is not removed\n");
}

// Writes a row with its original value.
void PutBack(WT_CURSOR *cursor, int number)
{
	const std::string key = Key(number), value = Value(number);
	const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};

	SetKey(cursor, key);
	cursor->set_value(cursor, &item);
	CHECK_WT(cursor->insert(cursor));
}

// A cursor has found its row, and the program sets another key: `remove` removes the row of that key,
// but `next` continues from the row that was found.
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
			CHECK(IsThere(other, number), "row %d was removed instead of another row", number);
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
			CHECK(RowAt(cursor) == beside && ValueAt(cursor) == Value(beside), "next to row %d is %d", number, RowAt(cursor));
		}
#if WIREDTIGER_VERSION_MAJOR > 3
		{
			const int number = search();
			const std::string key = Key(number);

			SetKey(cursor, key);
			CHECK(cursor->bound(cursor, "bound=lower") == EINVAL, "a cursor at row %d gets bounds", number);
			CHECK_WT(cursor->bound(cursor, "action=clear"));
		}
#endif
		CHECK_WT(cursor->reset(cursor));
	}
	std::printf("a cursor whose key is set again keeps its row\n");
}

// A step that has to be repeated starts from the same row.
void RowsAreKeptByErrors(const Place &place)
{
	Make(place, "prepared", "table:t");
	Database database(place, "prepared");
	// A snapshot does not include other transactions that are only prepared.
	WT_SESSION *const session = database.Session(), *const all = database.Session("isolation=read-uncommitted");
	WT_CURSOR *const cursor = database.Open("table:t", all), *const other = database.Open("table:t", session);

	FillCache(database, cursor, kRows);
	for (const bool is_next : {true, false}) {
		const int number = SearchByChain(database, cursor);

		CHECK_WT(session->begin_transaction(session, "isolation=snapshot"));
		PutBack(other, number);
		CHECK_WT(session->prepare_transaction(session, "prepare_timestamp=10"));
		const int error = is_next ? cursor->next(cursor) : cursor->prev(cursor);

		CHECK(error == WT_PREPARE_CONFLICT, "next to a prepared row: %s", wiredtiger_strerror(error));
		CHECK_WT(session->rollback_transaction(session, nullptr));
		CHECK_WT(is_next ? cursor->next(cursor) : cursor->prev(cursor));
		CHECK(RowAt(cursor) == (is_next ? number + 1 : number - 1), "next to row %d is %d", number, RowAt(cursor));
	}
	std::printf("a failed step does not move the cursor\n");
}

int closed_handles = 0;

int CountClosed(WT_EVENT_HANDLER *, WT_SESSION *, WT_CURSOR *)
{
	closed_handles++;
	return 0;
}

// Closes a session, or the database while the session is open.
void TellOfCursors(const Place &place, WT_EVENT_HANDLER *handler, bool by_database)
{
	int told[2];

	// WiredTiger reports some of its own cursors.
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
	CHECK(told[false] == told[true], "the program is told of %d cursors, WiredTiger tells of %d", told[false], told[true]);
}

// A program is told only of its own cursors.
void OnlyOwnCursorsAreTold(const Place &place)
{
	WT_EVENT_HANDLER handler = {};

	Make(place, "told", "table:t");
	handler.handle_close = CountClosed;
	for (const bool by_database : {false, true})
		TellOfCursors(place, &handler, by_database);
	std::printf("the program is told only of its own cursors\n");
}

} // namespace

int main(int argc, char **argv)
{
	return RunTests(argc, argv,
		{{"reset", CursorsAreReset}, {"snapshot", SnapshotsAreKept}, {"memory", ClosedCursorsHaveNothing},
			{"gone", GoneIsRemoved}, {"others", OtherKeysAreSet}, {"prepared", RowsAreKeptByErrors},
			{"told", OnlyOwnCursorsAreTold}});
}
