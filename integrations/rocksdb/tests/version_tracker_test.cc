/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* When a tracker lists tables, what it does with those that it cannot read, and who frees what is replaced. */
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

/* Counts how often its tables are listed, which may take long. */
class ListedDB final : public rocksdb::StackableDB {
    public:
	explicit ListedDB(rocksdb::DB *db) : StackableDB(std::shared_ptr<rocksdb::DB>(db)) {}

	using StackableDB::GetColumnFamilyMetaData;
	void GetColumnFamilyMetaData(
		rocksdb::ColumnFamilyHandle *family, rocksdb::ColumnFamilyMetaData *metadata) override
	{
		listings++;
		std::this_thread::sleep_for(milliseconds(listing_ms));
		db_->GetColumnFamilyMetaData(family, metadata);
	}

	std::atomic<int> listings{0};
	std::atomic<int> listing_ms{0};
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
		check_ok(bpf_of::Target::open(bpf_of::PushdownOptions(), &target), "a session without target");
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

		CHECK(VersionTracker::current_version(db.get(), db->DefaultColumnFamily(), &version), "no number");
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

/* A view that cannot be made is tried again, and not all the time. */
void test_gone(const std::string &directory)
{
	Test test(directory);
	const std::string path = test.table();

	std::filesystem::rename(path, path + ".away");
	test.start();
	std::this_thread::sleep_for(milliseconds(300));
	CHECK(!test.tracker->view() && test.db->listings > 1 && test.db->listings < 12, "%d listings",
		test.db->listings.load());
	CHECK(test.tracker->last_error().find(path) != std::string::npos, "%s", test.tracker->last_error().c_str());
	std::filesystem::rename(path + ".away", path);
	wait_until("there is no view", [&] { return test.tracker->view() != nullptr; });
	CHECK(test.tracker->last_error().empty() && test.stats().tables == 1, "%s",
		test.tracker->last_error().c_str());
}

/* A table that cannot be read is refused, until it can. */
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
	CHECK(test.stats().tables == 1 && test.stats().tables_refused == 1, "it was not refused");
	CHECK(test.tracker->last_error().find(test.table()) != std::string::npos, "%s",
		test.tracker->last_error().c_str());
	wait_until("it is not tried again", [&] { return test.stats().tables_refused == 0; });
	CHECK(test.stats().tables == 1 && test.tracker->last_error().empty(), "%s",
		test.tracker->last_error().c_str());
}

/* Who sees a newer version tells all. */
void test_outdated(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	const std::shared_ptr<const View> view = test.tracker->view();

	CHECK(!test.tracker->is_outdated(*view), "nothing has changed");
	test.flush();
	test.tracker->see(test.version());
	CHECK(test.tracker->is_outdated(*view), "there is a newer one");
	wait_until("there is no newer view", [&] { return test.tracker->view()->version == test.version(); });
	CHECK(!test.tracker->is_outdated(*test.tracker->view()), "the new one");
}

/* The larger the database, the longer it is not listed again. */
void test_pauses(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	test.db->listing_ms = 20;
	test.db->listings = 0;
	const Clock::time_point begun = Clock::now();

	while (Clock::now() < begun + seconds(1)) {
		test.flush();
		test.tracker->see(test.version());
	}
	const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - begun).count();

	/* One in 80 ms. */
	CHECK(test.db->listings > 1 && test.db->listings <= took / 80 + 2, "%d listings in %lld ms",
		test.db->listings.load(), static_cast<long long>(took));
	test.wait_ready();
}

/* Who reads does not free a view, however late. */
void test_replaced(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	std::shared_ptr<const View> view = test.tracker->view();
	const std::weak_ptr<const bpf_of::Table> table = view->newest.at(0).table;

	rocksdb::CompactRangeOptions how;

	/* Else tables might only move. */
	how.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
	test.flush();
	check_ok(test.db->CompactRange(how, nullptr, nullptr), "compacting");
	test.wait_ready();
	CHECK(test.tracker->view()->version != view->version, "it is not replaced");
	view.reset();
	wait_until("it is kept", [&] { return table.expired(); });
}

/* Of a version that a catch-up has left half-way there is no view, but one that was there before. */
void test_distrusted(const std::string &directory)
{
	Test test(directory);

	test.start();
	test.wait_ready();
	const std::shared_ptr<const View> before = test.tracker->view();

	test.tracker->distrust(before);
	CHECK(test.tracker->view() == before, "the view of before is gone");
	/* It is being listed meanwhile. */
	test.db->listing_ms = 50;
	test.flush();
	test.tracker->see(test.version());
	test.tracker->distrust(before);
	std::this_thread::sleep_for(milliseconds(300));
	CHECK(test.tracker->view() == before, "there is a view of what may be half a version");
	/* It was listed meanwhile. */
	test.flush();
	test.tracker->see(test.version());
	wait_until("the next version has no view", [&] { return test.tracker->view()->version == test.version(); });
	test.tracker->distrust(before);
	CHECK(!test.tracker->view(), "the view of what may be half a version stays");
	test.flush();
	test.tracker->see(test.version());
	wait_until("the last version has no view", [&] {
		const std::shared_ptr<const View> view = test.tracker->view();

		return view && view->version == test.version();
	});
}

/* Nobody gets what another has taken. */
void test_memory()
{
	IndexMemory memory(100);

	CHECK(memory.take(60) && !memory.take(41) && memory.left() == 40, "there are 40");
	CHECK(memory.take(40) && !memory.take(1) && memory.used() == 100, "all is taken");
	memory.give_back(60);
	CHECK(!memory.take(SIZE_MAX) && memory.take(60), "there are 60");
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
