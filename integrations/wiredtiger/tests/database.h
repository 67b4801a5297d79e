// SPDX-License-Identifier: Apache-2.0 OR MIT
// A database with the extension, and tables of known rows, for tests.
#ifndef BPFOF_WIREDTIGER_DATABASE_H
#define BPFOF_WIREDTIGER_DATABASE_H

#include <dlfcn.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bpfof/wiredtiger.h"
#include "check.h"

constexpr int kRows = 30000;
// Searches after which the extension knows that the cache is full, and the most searches until a chain
// answers one.
constexpr int kSearchesBefore = 20000, kSearchesMax = 20000;
const char kPages[] =
	"key_format=u,value_format=u,allocation_size=512B,internal_page_max=4KB,leaf_page_max=512B";

struct Place {
	const char *extension, *url, *device;
	std::string folder;
};

inline int Quiet(WT_EVENT_HANDLER *, WT_SESSION *, int, const char *)
{
	return 0;
}

inline std::string Settings(const Place &place, const std::string &own = "")
{
	// Unused handles are closed at once.
	return std::string("create,cache_size=1MB,statistics=(fast),file_manager=(close_handle_minimum=0,close_idle_time=1,"
			   "close_scan_interval=1),extensions=[") +
	       place.extension + "={early_load=true,config={url=\"" + place.url + "\",device=\"" + place.device +
	       "\",sample=0" + own + "}}]";
}

// An open database, and a session.
class Database {
    public:
	// `more` is configuration for WiredTiger, `own` for the extension; `handler` gets WiredTiger's events.
	Database(const Place &place, const std::string &name, const std::string &more = "", const std::string &own = "",
		WT_EVENT_HANDLER *handler = nullptr)
	{
		const std::string settings = Settings(place, own) + more;

		CHECK_WT(wiredtiger_open((place.folder + "/" + name).c_str(), handler, settings.c_str(), &connection_));
		library_ = dlopen(place.extension, RTLD_NOW | RTLD_NOLOAD);
		CHECK(library_, "%s", dlerror());
		session_ = Session();
	}
	~Database()
	{
		if (connection_)
			CHECK_WT(connection_->close(connection_, nullptr));
	}
	Database(const Database &) = delete;
	Database &operator=(const Database &) = delete;

	// For databases whose closing may fail.
	int Close()
	{
		WT_CONNECTION *const connection = connection_;

		connection_ = nullptr;
		return connection->close(connection, nullptr);
	}

	WT_CONNECTION *connection() const { return connection_; }
	WT_SESSION *session() const { return session_; }

	// A session whose error messages by WiredTiger are not printed.
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

	bpfof_wiredtiger_counters counters() const
	{
		bpfof_wiredtiger_counters counters = {};

		Call<decltype(bpfof_wiredtiger_read_counters)>("bpfof_wiredtiger_read_counters")(&counters, sizeof(counters));
		return counters;
	}
	// Searches that chains have answered with a value.
	uint64_t values() const { return counters().values; }

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

	WT_CONNECTION *connection_ = nullptr;
	WT_SESSION *session_;
	WT_EVENT_HANDLER quiet_ = {};
	void *library_;
};

inline std::string Key(int number)
{
	char text[16];

	std::snprintf(text, sizeof(text), "key %08d", number);
	return text;
}

inline std::string Value(int number)
{
	std::string value = "the value of row ";

	for (int rest = number; rest; rest /= 20)
		value += char('a' + rest % 20);
	return value;
}

inline void SetKey(WT_CURSOR *cursor, const std::string &key)
{
	const WT_ITEM item = {key.data(), key.size(), nullptr, 0, 0};

	cursor->set_key(cursor, &item);
}

// The value of the row that the cursor is on.
inline std::string ValueAt(WT_CURSOR *cursor)
{
	WT_ITEM value;

	CHECK_WT(cursor->get_value(cursor, &value));
	return std::string(static_cast<const char *>(value.data), value.size);
}

inline int Search(WT_CURSOR *cursor, int number)
{
	// A cursor only points to its key.
	const std::string key = Key(number);

	SetKey(cursor, key);
	return cursor->search(cursor);
}

// Whether the row exists; if it does, checks its value.
inline bool IsThere(WT_CURSOR *cursor, int number)
{
	const int error = Search(cursor, number);

	CHECK(!error || error == WT_NOTFOUND, "%s", wiredtiger_strerror(error));
	if (error)
		return false;
	const std::string found = ValueAt(cursor);

	CHECK(found == Value(number), "row %d is %s", number, found.c_str());
	return true;
}

inline int RowAt(WT_CURSOR *cursor)
{
	WT_ITEM key;

	CHECK_WT(cursor->get_key(cursor, &key));
	return std::atoi(std::string(static_cast<const char *>(key.data), key.size).c_str() + 4);
}

inline int RandomRow(int to)
{
	static std::mt19937 random(4711);

	// A row with rows on both sides.
	return 1 + int(random() % (to - 2));
}

// Searches rows before `to` until a chain has answered, and returns that row's number.
inline int SearchByChain(const Database &database, WT_CURSOR *cursor, int to = kRows)
{
	for (int i = 0; i < kSearchesMax; i++) {
		const int number = RandomRow(to);
		const uint64_t before = database.values();

		CHECK(IsThere(cursor, number), "row %d", number);
		if (database.values() > before)
			return number;
	}
	CHECK(false, "no chain found a value: is the target reachable?");
	return 0;
}

// From now on chains answer searches.
inline void FillCache(const Database &database, WT_CURSOR *cursor, int to)
{
	database.SetMode(BPFOF_WIREDTIGER_PLAIN);
	for (int i = 0; i < kSearchesBefore; i++)
		IsThere(cursor, RandomRow(to));
	database.SetMode(BPFOF_WIREDTIGER_VALUES);
}

inline void Fill(Database *database, const char *uri, const std::string &options = "")
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

struct Test {
	const char *name;
	void (*run)(const Place &);
};

// Runs the test named in the arguments EXTENSION FOLDER URL DEVICE [TEST], or all of `tests`.
inline int RunTests(int argc, char **argv, const std::vector<Test> &tests, const std::vector<Test> &only_by_name = {})
{
	CHECK(argc == 5 || argc == 6, "usage: %s EXTENSION FOLDER URL DEVICE [TEST]", argv[0]);
	const Place place = {argv[1], argv[3], argv[4], argv[2]};
	const auto is_named = [&](const Test &test) { return argc == 6 && std::string(argv[5]) == test.name; };
	int runs = 0;

	for (const Test &test : tests)
		if (argc == 5 || is_named(test)) {
			test.run(place);
			runs++;
		}
	for (const Test &test : only_by_name)
		if (is_named(test)) {
			test.run(place);
			runs++;
		}
	CHECK(runs > 0, "there is no such test");
	return 0;
}

// Makes an empty folder.
inline void MakeFolder(const std::string &folder)
{
	CHECK(system(("rm -rf '" + folder + "' && mkdir -p '" + folder + "'").c_str()) == 0, "%s", folder.c_str());
}

// Makes a database and closes it, so that its pages are not in the cache when it is opened next.
inline void Make(const Place &place, const std::string &name, const char *uri, const std::string &options = "")
{
	MakeFolder(place.folder + "/" + name);
	Database database(place, name);

	Fill(&database, uri, options);
}

#endif
