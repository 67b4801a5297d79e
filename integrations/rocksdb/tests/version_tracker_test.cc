/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* When a tracker lists tables, how it handles unreadable tables, and which thread frees replaced
 * views. */
#include "version_tracker.h"

#include "check.h"
#include "open.h"

#include <rocksdb/utilities/stackable_db.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <sys/resource.h>

using bpf_of::IndexMemory;
using bpf_of::View;
using bpf_of::VersionTracker;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

namespace {

/* Counts how often its tables are listed; listing may be made slow, or held. */
class ListedDB final : public rocksdb::StackableDB {
    public:
	explicit ListedDB(rocksdb::DB *db) : StackableDB(std::shared_ptr<rocksdb::DB>(db)) {}

	using StackableDB::GetColumnFamilyMetaData;
	void GetColumnFamilyMetaData(
		rocksdb::ColumnFamilyHandle *family, rocksdb::ColumnFamilyMetaData *metadata) override
	{
		listings++;
		do
			std::this_thread::sleep_for(milliseconds(listing_ms));
		while (is_held);
		db_->GetColumnFamilyMetaData(family, metadata);
	}

	std::atomic<int> listings{0};
	std::atomic<int> listing_ms{0};
	std::atomic<bool> is_held{false};
};

/* A database with one table, and a tracker that does not follow it yet. */
struct Test {
	rocksdb::Options options;
	std::unique_ptr<ListedDB> db;
	std::shared_ptr<VersionTracker> tracker;

	explicit Test(const std::string &directory)
	{
		std::shared_ptr<bpf_of::Target> target;
		rocksdb::DB *opened = nullptr;

		std::filesystem::remove_all(directory);
		options.create_if_missing = true;
		options.disable_auto_compactions = true;
		check_ok(bpf_of::open_database(&opened, options, directory), "opening");
		db = std::make_unique<ListedDB>(opened);
		flush();
		check_ok(bpf_of::Target::open(bpf_of::PushdownOptions(), &target), "a session without a target");
		tracker = std::make_shared<VersionTracker>(std::make_shared<bpf_of::TableFiles>(std::move(target)),
			std::make_shared<IndexMemory>(1 << 20),
			rocksdb::ColumnFamilyDescriptor(rocksdb::kDefaultColumnFamilyName, options), nullptr);
	}
	~Test() { tracker->stop(); }

	void start() { tracker->start(db.get(), nullptr, false); }
	void flush()
	{
		check_ok(db->Put(rocksdb::WriteOptions(), "key", "value"), "writing");
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	}
	std::string table() const
	{
		std::vector<rocksdb::LiveFileMetaData> files;

		db->GetLiveFilesMetaData(&files);
		return files[0].db_path + files[0].name;
	}
	uint64_t version() const
	{
		uint64_t version = 0;

		CHECK(VersionTracker::current_version(db.get(), db->DefaultColumnFamily(), &version), "there is no version number");
		return version;
	}
	bpf_of::PushdownStats stats() const
	{
		bpf_of::PushdownStats stats;

		tracker->count(&stats);
		return stats;
	}
	void wait_ready() const
	{
		CHECK(tracker->wait_ready(Clock::now() + seconds(20)), "%s", tracker->last_error().c_str());
	}
};

void wait_until(const char *what, const std::function<bool()> &is_so)
{
	const Clock::time_point end = Clock::now() + seconds(20);

	while (!is_so()) {
		CHECK(Clock::now() < end, "%s", what);
		std::this_thread::sleep_for(milliseconds(5));
	}
}

/* A view that cannot be made is tried again, with pauses. */
void test_gone(const std::string &directory)
{
	Test test(directory);
	const std::string path = test.table();

	std::filesystem::rename(path, path + ".away");
	test.start();
	std::this_thread::sleep_for(milliseconds(300));
	wait_until("the view is not tried again", [&] { return test.db->listings > 1; });
	CHECK(!test.tracker->view() && test.db->listings < 12, "%d listings",
		test.db->listings.load());
	CHECK(test.tracker->last_error().find(path) != std::string::npos, "%s", test.tracker->last_error().c_str());
	std::filesystem::rename(path + ".away", path);
	wait_until("there is no view", [&] { return test.tracker->view() != nullptr; });
	CHECK(test.tracker->last_error().empty() && test.stats().tables == 1, "%s",
		test.tracker->last_error().c_str());
}

/* A table that cannot be read is refused until it can be read. */
void test_unread(const std::string &directory)
{
	Test test(directory);
	struct rlimit usual, none;

	CHECK(::getrlimit(RLIMIT_NOFILE, &usual) == 0, "reading the limit of descriptors");
	none = usual;
	none.rlim_cur = 3;
	CHECK(::setrlimit(RLIMIT_NOFILE, &none) == 0, "setting it");
	test.start();
	test.wait_ready();
	CHECK(::setrlimit(RLIMIT_NOFILE, &usual) == 0, "setting it back");
	CHECK(test.stats().tables == 1 && test.stats().tables_refused == 1, "the table was not refused");
	CHECK(test.tracker->last_error().find(test.table()) != std::string::npos, "%s",
		test.tracker->last_error().c_str());
	wait_until("the refused table is not tried again", [&] { return test.stats().tables_refused == 0; });
	CHECK(test.stats().tables == 1 && test.tracker->last_error().empty(), "%s",
		test.tracker->last_error().c_str());
}

/* A newer version that one thread has seen makes the view outdated for all. */
void test_outdated(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	const std::shared_ptr<const View> view = test.tracker->view();

	CHECK(!test.tracker->is_outdated(*view), "the view is outdated without a change");
	test.flush();
	test.tracker->see(test.version());
	CHECK(test.tracker->is_outdated(*view), "the view is not outdated after a change");
	wait_until("there is no newer view", [&] { return test.tracker->view()->version == test.version(); });
	CHECK(!test.tracker->is_outdated(*test.tracker->view()), "the new view is outdated");
}

/* The longer listing takes, the longer the pause before the next. */
void test_pauses(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	test.db->listing_ms = 20;
	test.db->listings = 0;
	const Clock::time_point begun = Clock::now();

	while (Clock::now() < begun + seconds(1) || test.db->listings < 2) {
		CHECK(Clock::now() < begun + seconds(20), "%d listings", test.db->listings.load());
		test.flush();
		test.tracker->see(test.version());
	}
	const int listings = test.db->listings;
	const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - begun).count();

	/* One listing in 80 ms. */
	CHECK(listings <= took / 80 + 2, "%d listings in %lld ms", listings,
		static_cast<long long>(took));
	test.wait_ready();
}

/* A reader never frees a view, however late it releases it. */
void test_replaced(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	std::shared_ptr<const View> view = test.tracker->view();
	const std::weak_ptr<const bpf_of::Table> table = view->newest.at(0).table;

	rocksdb::CompactRangeOptions how;

	/* Otherwise compaction might only move tables. */
	how.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
	test.flush();
	check_ok(test.db->CompactRange(how, nullptr, nullptr), "compacting");
	test.wait_ready();
	CHECK(test.tracker->view()->version != view->version, "the view is not replaced");
	view.reset();
	wait_until("a table of the replaced view is kept", [&] { return table.expired(); });
}

/* A version that a failed catch-up has left half-way gets no view, but keeps an earlier one. */
void test_distrusted(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	const std::shared_ptr<const View> before = test.tracker->view();

	test.tracker->distrust(before);
	CHECK(test.tracker->view() == before, "the previous view is gone");
	/* The version is being listed meanwhile. */
	test.db->listing_ms = 50;
	test.db->is_held = true;
	test.flush();
	test.tracker->see(test.version());
	test.tracker->distrust(before);
	test.db->is_held = false;
	std::this_thread::sleep_for(milliseconds(300));
	CHECK(test.tracker->view() == before, "there is a view of a version that may be incomplete");
	/* The version was listed before the failure. */
	test.flush();
	test.tracker->see(test.version());
	wait_until("the next version has no view", [&] { return test.tracker->view()->version == test.version(); });
	test.tracker->distrust(before);
	CHECK(!test.tracker->view(), "the view of a version that may be incomplete is kept");
	test.flush();
	test.tracker->see(test.version());
	wait_until("the last version has no view", [&] {
		const std::shared_ptr<const View> view = test.tracker->view();

		return view && view->version == test.version();
	});
}

/* Memory that is taken is not given out again. */
void test_memory()
{
	IndexMemory memory(100);

	CHECK(memory.take(60) && !memory.take(41) && memory.left() == 40, "40 bytes are left");
	CHECK(memory.take(40) && !memory.take(1) && memory.used() == 100, "all bytes are taken");
	memory.give_back(60);
	CHECK(!memory.take(SIZE_MAX) && memory.take(60), "60 bytes are left");
}

} /* namespace */

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: %s DIRECTORY", argv[0]);
	const std::string directory = argv[1];

	test_gone(directory);
	test_unread(directory);
	test_outdated(directory);
	test_pauses(directory);
	test_replaced(directory);
	test_distrusted(directory);
	test_memory();
	std::filesystem::remove_all(directory);
	return 0;
}
