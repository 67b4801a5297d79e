/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One thread: every answer must be that of a model, with all kinds of tables and ways to change
 * them. */
#include "answers.h"

#include <rocksdb/comparator.h>
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

using bpf_of::Mode;
using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using bpf_of::Speculate;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::WriteOptions;

namespace {

std::string value_of(Random &random)
{
	return std::string(random.below(90), static_cast<char>('a' + random.below(26))) +
	       std::to_string(random.next());
}

} /* namespace */

void check_all(PushdownDB *db, const Model &model, const rocksdb::Snapshot *at)
{
	for (uint64_t number = 0; number < KEYS + 100; number += 3)
		check_get(db, model, key_of(number), at);
}

/* Checks the same keys, many at a time, through both interfaces. */
void check_many(PushdownDB *db, const Model &model, const rocksdb::Snapshot *at)
{
	constexpr size_t COUNT = 100;
	std::vector<std::string> names;
	ReadOptions options;

	options.snapshot = at;
	for (uint64_t number = 1; number < KEYS + 100; number += 7)
		names.push_back(key_of(number));
	for (size_t first = 0; first < names.size(); first += COUNT) {
		const size_t count = std::min(COUNT, names.size() - first);
		const std::vector<rocksdb::Slice> keys(
			names.begin() + first, names.begin() + first + count);
		std::vector<rocksdb::PinnableSlice> pinned(count);
		std::vector<Status> statuses(count);

		db->MultiGet(options, db->DefaultColumnFamily(), count, keys.data(), pinned.data(),
			statuses.data());
		for (size_t i = 0; i < count; i++) {
			const auto found = model.find(names[first + i]);
			const bool is_there = found != model.end();

			CHECK(is_there ? statuses[i].ok() && pinned[i] == found->second
				       : statuses[i].IsNotFound(),
				"%s: %s", names[first + i].c_str(), statuses[i].ToString().c_str());
		}
		std::vector<std::string> values;
		const std::vector<Status> again = db->MultiGet(options, keys, &values);

		for (size_t i = 0; i < count; i++)
			CHECK(again[i].code() == statuses[i].code() &&
					(!again[i].ok() || pinned[i] == values[i]),
				"%s: %s", names[first + i].c_str(), again[i].ToString().c_str());
	}
}

void check_at(const rocksdb::Iterator &scan, const Model &model, Model::const_iterator expected)
{
	check_ok(scan.status(), "scanning");
	if (expected == model.end()) {
		CHECK(!scan.Valid(), "%s, past the end", scan.key().ToString().c_str());
		return;
	}
	CHECK(scan.Valid(), "an end instead of %s", expected->first.c_str());
	CHECK(scan.key() == expected->first && scan.value() == expected->second, "%s instead of %s",
		scan.key().ToString().c_str(), expected->first.c_str());
}

void check_scans(PushdownDB *db, const Model &model, const rocksdb::Snapshot *at, Random &random)
{
	ReadOptions options;

	options.snapshot = at;
	std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(options));
	auto expected = model.begin();

	for (scan->SeekToFirst(); expected != model.end(); scan->Next(), ++expected)
		check_at(*scan, model, expected);
	check_at(*scan, model, expected);
	for (int i = 0; i < 30; i++) {
		const std::string key = key_of(random.below(KEYS + 50));

		expected = model.lower_bound(key);
		scan->Seek(key);
		for (uint64_t steps = random.below(60); steps && expected != model.end(); steps--) {
			check_at(*scan, model, expected++);
			scan->Next();
		}
		check_at(*scan, model, expected);
		expected = model.upper_bound(key);
		scan->SeekForPrev(key);
		for (uint64_t steps = random.below(20); steps && expected != model.begin(); steps--) {
			check_at(*scan, model, --expected);
			scan->Prev();
		}
	}
	scan->SeekToLast();
	check_at(*scan, model, model.empty() ? model.end() : std::prev(model.end()));

	/* Scans to an upper bound, and from a lower one. */
	const std::string from = key_of(random.below(KEYS)), to = key_of(random.below(KEYS));
	const rocksdb::Slice bound = std::max(from, to), lower = std::min(from, to);

	options.iterate_upper_bound = &bound;
	scan.reset(db->NewIterator(options));
	const auto check_bounded = [&] {
		for (expected = model.lower_bound(lower.ToString()); scan->Valid(); scan->Next())
			check_at(*scan, model, expected++);
		check_ok(scan->status(), "scanning");
		CHECK(expected == model.lower_bound(bound.ToString()), "an end before %s",
			expected->first.c_str());
	};

	scan->Seek(lower);
	check_bounded();
	options.iterate_lower_bound = &lower;
	scan.reset(db->NewIterator(options));
	scan->SeekToFirst();
	check_bounded();
	scan->Seek("a");
	check_bounded();
}

void check_reads(PushdownDB *db, const Model &model, const rocksdb::Snapshot *at, Random &random)
{
	check_all(db, model, at);
	check_many(db, model, at);
	check_scans(db, model, at, random);
}

void ingest_table(PushdownDB *db, Model &model, const std::string &directory, const Model &added,
	const std::pair<std::string, std::string> *deleted)
{
	rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), db->GetOptions());
	const std::string path = directory + "/ingested.sst";

	check_ok(writer.Open(path), "making a table");
	if (deleted) {
		check_ok(writer.DeleteRange(deleted->first, deleted->second), "deleting a range of a table");
		model.erase(model.lower_bound(deleted->first), model.lower_bound(deleted->second));
	}
	for (const auto &[key, value] : added) {
		check_ok(writer.Put(key, value), "adding to a table");
		model[key] = value;
	}
	check_ok(writer.Finish(), "finishing a table");
	rocksdb::IngestExternalFileOptions how;

	how.move_files = true;
	check_ok(db->IngestExternalFile({path}, how), "ingesting");
}

void delete_range(PushdownDB *db, Model &model, const std::string &from, const std::string &to)
{
	check_ok(db->DeleteRange(WriteOptions(), db->DefaultColumnFamily(), from, to), "deleting a range");
	model.erase(model.lower_bound(from), model.lower_bound(to));
}

void change(PushdownDB *db, Model &model, Random &random, uint64_t changes)
{
	for (uint64_t i = 0; i < changes; i++) {
		const std::string key = key_of(random.below(KEYS));

		if (random.below(5) == 0) {
			check_ok(db->Delete(WriteOptions(), key), "deleting");
			model.erase(key);
		} else {
			const std::string value = value_of(random);

			check_ok(db->Put(WriteOptions(), key, value), "writing");
			model[key] = value;
		}
	}
}

namespace {

void ingest(PushdownDB *db, Model &model, const std::string &directory, Random &random)
{
	const uint64_t first = random.below(KEYS - 200);
	Model added;

	/* In the order of the keys, which differs from that of the numbers. */
	for (uint64_t number = first; number < first + 200; number++)
		added[key_of(number)] = value_of(random);
	ingest_table(db, model, directory, added, nullptr);
}

/* Returns how many keys had their tables searched at once. Compactions decide how many keys have
 * several tables. */
uint64_t test_answers(const Place &place, const Kind &kind)
{
	PushdownDB *db = open_database(place, kind, small_tables(kind), "answers");
	Model model, old_model;
	const rocksdb::Snapshot *snapshot = nullptr;
	Random random(7);

	for (int round = 0; round < 5; round++) {
		change(db, model, random, 1500);
		if (round == 1)
			check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		if (round == 2)
			ingest(db, model, place.directory, random);
		if (round == 3) {
			snapshot = db->GetSnapshot();
			old_model = model;
		}
		if (round == 4)
			check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr),
				"compacting");
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		/* Mostly with chains. */
		db->set_mode(round == 3 ? Mode::kBlocks : Mode::kChains);
		check_reads(db, model, nullptr, random);
		if (snapshot)
			check_reads(db, old_model, snapshot, random);
	}
	db->ReleaseSnapshot(snapshot);
	std::printf("answers, %s:", kind.name);
	print_ways(*db);
	const bpf_of::PushdownStats stats = db->stats();
	uint64_t gets = 0;

	for (const uint64_t count : stats.gets)
		gets += count;
	/* Some keys are in memtables, more with slower flushes; and tables may change between two
	 * reads. */
	gets -= stats[ReadPath::kMemory];
	CHECK(chains(stats) + stats[ReadPath::kNoTable] > gets / 2, "chains answered too few reads");
	CHECK(place.url.empty() || stats[ReadPath::kTarget] > gets / 4, "the target answered too few reads");
	CHECK(stats[ReadPath::kFailed] == 0, "%s", db->last_error().c_str());
	CHECK(stats.tables_refused == 0, "%s", db->last_error().c_str());
	CHECK(kind.index_bytes_max == 0 || (stats.seeks > 100 && stats[ReadPath::kBlocks] > 100),
		"few blocks were fetched at once");
	CHECK((stats[ReadPath::kSampled] > 0) == (kind.sample_rate > 0), "samples");
	CHECK(place.url.empty() == (stats.received_bytes == 0), "traffic");
	delete db;
	return stats.at_once;
}

/* Chains look for long keys, and for `behind`, the next key after one. */
void check_long_keys(PushdownDB *db, const Model &model, const std::string &longest,
	const std::string &behind_long, const std::string &behind)
{
	const uint64_t before = chains(db->stats());

	check_get(db, model, longest, nullptr);
	CHECK(chains(db->stats()) == before + 1, "a key of 4 KiB");
	check_get(db, model, behind_long, nullptr);
	CHECK(chains(db->stats()) == before + 2, "a long key");
	/* The first chain learns that it needs more scratch. */
	check_get(db, model, behind, nullptr);
	check_get(db, model, behind, nullptr);
	CHECK(chains(db->stats()) >= before + 3 && db->stats()[ReadPath::kFailed] == 0, "%s",
		db->last_error().c_str());
	check_many_of(db, model, {longest, behind_long, behind, key_of(0), key_of(3)});
	CHECK(chains(db->stats()) >= before + 8, "keys of several lengths at once");
}

/* RocksDB does correctly what chains cannot do, and it is counted. */
void test_the_rest(const Place &place, const Kind &kind)
{
	rocksdb::Options options = small_tables(kind);

	options.disable_auto_compactions = true;
	PushdownDB *db = open_database(place, kind, options, "rest");
	const std::string long_value(5000, 'v'), longest_key(4096, 'k'), long_key(4097, 'k');
	/* A key after another that takes more scratch than usual. */
	const std::string behind_long(3500, 'm'), behind = "mn";
	Model model;

	for (uint64_t number = 0; number < KEYS; number++)
		model[key_of(number)] = std::to_string(number);
	model["long"] = long_value;
	model[long_key] = "short";
	model[longest_key] = "chain";
	model[behind_long] = "another";
	model[behind] = "behind it";
	for (const auto &entry : model)
		check_ok(db->Put(WriteOptions(), entry.first, entry.second), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_get(db, model, "long", nullptr);
	CHECK(db->stats()[ReadPath::kDeclined] == 1, "a long value");
	check_long_keys(db, model, longest_key, behind_long, behind);
	check_get(db, model, long_key, nullptr);
	CHECK(db->stats()[ReadPath::kOptions] == 1, "a long key");

	rocksdb::ColumnFamilyOptions reversed;
	rocksdb::ColumnFamilyHandle *family;

	reversed.comparator = rocksdb::ReverseBytewiseComparator();
	check_ok(db->CreateColumnFamily(reversed, "reversed", &family), "a family");
	check_ok(db->Put(WriteOptions(), family, "key", "value"), "writing");
	std::string value;

	check_ok(db->Get(ReadOptions(), family, "key", &value), "reading");
	CHECK(value == "value" && db->stats()[ReadPath::kFamily] == 1, "a family with another order");
	delete family;
	CHECK(db->SetDBOptions({{"max_open_files", "10"}}).IsInvalidArgument(), "tables may be closed");
	check_ok(db->SetDBOptions({{"max_background_jobs", "3"}}), "another option");
	const uint64_t plain = db->stats()[ReadPath::kPlain];

	db->set_mode(Mode::kPlain);
	check_get(db, model, key_of(3), nullptr);
	CHECK(db->stats()[ReadPath::kPlain] == plain + 1, "the mode");
	std::printf("the rest:");
	print_ways(*db);
	check_ok(db->Close(), "closing");
	delete db;
}

void test_refusals(const Place &place, const Kind &kind)
{
	rocksdb::Options options = small_tables(kind);
	bpf_of::PushdownOptions pushdown;
	PushdownDB *db = nullptr;
	const std::string path = place.directory + "/refused";

	options.max_open_files = 100;
	Status status = PushdownDB::Open(options, pushdown, path, &db);
	CHECK(status.IsInvalidArgument() && !db, "%s", status.ToString().c_str());
	CHECK(status.ToString().find("max_open_files") != std::string::npos, "%s",
		status.ToString().c_str());
	options.max_open_files = -1;
	const auto refused_for = [&](const char *option) {
		status = PushdownDB::Open(options, pushdown, path, &db);
		CHECK(status.IsInvalidArgument() && !db && status.ToString().find(option) != std::string::npos,
			"%s: %s", option, status.ToString().c_str());
	};
	rocksdb::EnvWrapper own(rocksdb::Env::Default());

	options.unordered_write = true;
	refused_for("unordered_write");
	options.unordered_write = false;
	options.two_write_queues = true;
	refused_for("two_write_queues");
	options.two_write_queues = false;
	options.env = &own;
	refused_for("Env::Default()");
	options.env = rocksdb::Env::Default();
	options.sst_file_manager.reset(rocksdb::NewSstFileManager(options.env, nullptr, "", 1 << 20));
	refused_for("sst_file_manager");
	options.sst_file_manager.reset();
#if ROCKSDB_MAJOR >= 11
	options.open_files_async = true;
	status = PushdownDB::Open(options, pushdown, path, &db);
	CHECK(status.IsInvalidArgument() && status.ToString().find("open_files_async") != std::string::npos, "%s",
		status.ToString().c_str());
	options.open_files_async = false;
#endif
	pushdown.value_bytes_max = 20000;
	status = PushdownDB::Open(options, pushdown, path, &db);
	CHECK(status.IsInvalidArgument() && !db, "%s", status.ToString().c_str());
	pushdown.value_bytes_max = 100;
	pushdown.url = "nvme-tcp://127.0.0.1:1/nqn.2026-01.io.bpf-of:nobody";
	status = PushdownDB::Open(options, pushdown, path, &db);
	CHECK(status.IsInvalidArgument(), "no device: %s", status.ToString().c_str());
	pushdown.device = "/dev/null";
	status = PushdownDB::Open(options, pushdown, path, &db);
	CHECK(!status.ok() && !db, "a target that is not there");
	CHECK(!std::filesystem::exists(path), "the database was created nevertheless");
	std::printf("refusals: %s\n", status.ToString().c_str());
}

/* Checks a MultiGet() of keys of all families; returns the bytes that it sends, and its chains. */
std::pair<uint64_t, uint64_t> get_of_families(
	PushdownDB *db, const std::vector<rocksdb::ColumnFamilyHandle *> &handles)
{
	constexpr size_t COUNT = 300;
	std::vector<rocksdb::ColumnFamilyHandle *> families;
	std::vector<std::string> names;

	for (uint64_t number = 0; number < COUNT; number++) {
		names.push_back(key_of(number / 2));
		families.push_back(handles[number % handles.size()]);
	}
	const std::vector<rocksdb::Slice> keys(names.begin(), names.end());
	std::vector<rocksdb::PinnableSlice> pinned(COUNT);
	std::vector<Status> statuses(COUNT);
	std::vector<std::string> values;
	/* While the current tables are not known, keys would be left to RocksDB. */
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const bpf_of::PushdownStats before = db->stats();

	db->MultiGet(ReadOptions(), COUNT, families.data(), keys.data(), pinned.data(), statuses.data());
	const bpf_of::PushdownStats after = db->stats();
	const std::vector<Status> again = db->MultiGet(ReadOptions(), families, keys, &values);

	for (uint64_t number = 0; number < COUNT; number++) {
		const uint64_t family = number % handles.size();
		const bool is_there = number / 2 % 3 == family;

		CHECK(is_there ? statuses[number].ok() && pinned[number] == std::to_string(family)
			       : statuses[number].IsNotFound(),
			"%s in family %llu: %s", names[number].c_str(),
			static_cast<unsigned long long>(family), statuses[number].ToString().c_str());
		CHECK(again[number].code() == statuses[number].code() &&
				(!is_there || values[number] == pinned[number].ToString()),
			"%s again: %s", names[number].c_str(), again[number].ToString().c_str());
	}
	CHECK(after[ReadPath::kFamily] - before[ReadPath::kFamily] == COUNT / 3, "the family with another order");
	return {after.sent_bytes - before.sent_bytes, chains(after) - chains(before)};
}

/* Keys of several families in one call: fewer commands than keys. */
void check_families_at_once(
	const Place &place, PushdownDB *db, const std::vector<rocksdb::ColumnFamilyHandle *> &handles)
{
	const auto together = get_of_families(db, handles);

	db->set_mode(Mode::kSingleChains);
	const auto single = get_of_families(db, handles);

	db->set_mode(Mode::kChains);
	CHECK(together.second > 100 && together.second == single.second, "%llu chains, and %llu",
		static_cast<unsigned long long>(together.second),
		static_cast<unsigned long long>(single.second));
	if (!place.url.empty())
		CHECK(together.first * 4 < single.first * 3, "%llu bytes sent together, %llu alone",
			static_cast<unsigned long long>(together.first),
			static_cast<unsigned long long>(single.first));
	ReadOptions limited;

	/* RocksDB answers only as many keys as fit the limit. */
	limited.value_size_soft_limit = 1;
	std::vector<std::string> values;
	const std::vector<rocksdb::ColumnFamilyHandle *> first(4, handles[0]);
	const std::vector<std::string> names = {key_of(0), key_of(3), key_of(6), key_of(9)};
	const std::vector<Status> statuses =
		db->MultiGet(limited, first, {names.begin(), names.end()}, &values);

	CHECK(statuses[0].ok() && statuses[3].IsAborted(), "%s", statuses[3].ToString().c_str());
}

/* Several column families, each with tables of its own. */
void test_families(const Place &place, const Kind &kind)
{
	const std::string path = place.directory + "/families";
	rocksdb::Options options = small_tables(kind);
	bpf_of::PushdownOptions pushdown;

	/* Releasing a snapshot may make RocksDB compact the bottom level: tables would change while
	 * chains are counted. */
	options.disable_auto_compactions = true;
	rocksdb::ColumnFamilyOptions reversed = options;

	reversed.comparator = rocksdb::ReverseBytewiseComparator();
	options.create_missing_column_families = true;
	pushdown.url = place.url;
	pushdown.device = place.device;
	pushdown.sample_rate = 0;
	std::filesystem::remove_all(path);
	std::vector<rocksdb::ColumnFamilyHandle *> handles;
	PushdownDB *db;

	check_ok(PushdownDB::Open(options, pushdown, path,
			 {{"default", options}, {"other", options}, {"reversed", reversed}}, &handles,
			 &db),
		"opening three families");
	CHECK(handles.size() == 3, "%zu handles", handles.size());
	for (size_t family = 0; family < 3; family++) {
		for (uint64_t number = family; number < KEYS; number += 3)
			check_ok(db->Put(WriteOptions(), handles[family], key_of(number),
					 std::to_string(family)),
				"writing");
		check_ok(db->Flush(rocksdb::FlushOptions(), handles[family]), "flushing");
	}
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	for (size_t family = 0; family < 3; family++) {
		const uint64_t before = chains(db->stats()), others = db->stats()[ReadPath::kFamily];

		for (uint64_t number = 0; number < 300; number++) {
			std::string value;
			const Status status =
				db->Get(ReadOptions(), handles[family], key_of(number), &value);

			CHECK(number % 3 == family ? status.ok() && value == std::to_string(family)
						   : status.IsNotFound(),
				"%s in family %zu: %s", key_of(number).c_str(), family,
				status.ToString().c_str());
		}
		if (family == 2)
			CHECK(db->stats()[ReadPath::kFamily] - others == 300, "the family with another order");
		else
			CHECK(chains(db->stats()) - before > 99, "family %zu", family);
	}
	check_families_at_once(place, db, handles);
	std::printf("families:");
	print_ways(*db);
	check_ok(db->DropColumnFamily(handles[1]), "dropping a family");
	std::string value;

	check_ok(db->Get(ReadOptions(), handles[1], key_of(1), &value), "reading a dropped family");
	for (rocksdb::ColumnFamilyHandle *handle : handles)
		check_ok(db->DestroyColumnFamilyHandle(handle), "giving back a handle");
	check_ok(db->Get(ReadOptions(), key_of(0), &value), "reading after that");
	delete db;
	/* With two handles of a family, one is still good after the other is gone. */
	check_ok(PushdownDB::Open(options, pushdown, path,
			 {{"default", options}, {"twice", options}, {"twice", options}, {"reversed", reversed}},
			 &handles, &db),
		"opening a family twice");
	check_ok(db->Put(WriteOptions(), handles[1], "key", "value"), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions(), handles[1]), "flushing");
	check_ok(db->DropColumnFamily(handles[1]), "dropping a family");
	check_ok(db->DestroyColumnFamilyHandle(handles[1]), "giving back a handle");
	check_ok(db->Get(ReadOptions(), handles[2], "key", &value), "reading by the other");
	CHECK(value == "value" && db->stats()[ReadPath::kFamily] == 1, "'%s' of a family with two handles",
		value.c_str());
	for (size_t i : {0, 2, 3})
		check_ok(db->DestroyColumnFamilyHandle(handles[i]), "giving back a handle");
	delete db;
}

/* Writes a value, flushes it, and reads it by a chain, with a merge in memory on top. */
void check_created(PushdownDB *db, rocksdb::ColumnFamilyHandle *family)
{
	const uint64_t before = chains(db->stats());
	std::string value;

	check_ok(db->Put(WriteOptions(), family, "key", "value"), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions(), family), "flushing");
	check_ok(db->Merge(WriteOptions(), family, "key", "merged"), "merging");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_ok(db->Get(ReadOptions(), family, "key", &value), "reading");
	CHECK(value == "value,merged" && chains(db->stats()) == before + 1, "'%s' of a family that was created",
		value.c_str());
}

/* Families are created and dropped, with their resources; handles are deleted in both possible ways. */
void test_created_families(const Place &place, const Kind &kind)
{
	rocksdb::Options options = small_tables(kind);
	PushdownDB *db = open_database(place, kind, options, "created");

	check_ok(rocksdb::MergeOperator::CreateFromString(
			 rocksdb::ConfigOptions(), "id=StringAppendOperator;delimiter=,", &options.merge_operator),
		"making an operator");
	for (int round = 0; round < 25; round++) {
		std::vector<rocksdb::ColumnFamilyHandle *> handles(3);

		check_ok(db->CreateColumnFamily(options, "one", &handles[0]), "a family");
		handles.resize(1);
		std::vector<rocksdb::ColumnFamilyHandle *> more;

		check_ok(db->CreateColumnFamilies(options, {"two", "three"}, &more), "two families");
		handles.insert(handles.end(), more.begin(), more.end());
		for (rocksdb::ColumnFamilyHandle *handle : handles)
			check_created(db, handle);
		check_ok(db->DropColumnFamilies(handles), "dropping families");
		const uint64_t before = chains(db->stats());
		std::string value;

		check_ok(db->Get(ReadOptions(), handles[round % 3], "key", &value), "reading a dropped family");
		CHECK(value == "value,merged" && chains(db->stats()) == before + 1, "'%s' of a dropped family",
			value.c_str());
		check_ok(db->DestroyColumnFamilyHandle(handles[0]), "giving back a handle");
		delete handles[1];
		delete handles[2];
	}
	CHECK(db->stats().tables == 0, "%llu tables are kept", static_cast<unsigned long long>(db->stats().tables));
	std::printf("created families:");
	print_ways(*db);
	delete db;
}

/* The space of tables that RocksDB has deleted is freed. */
void test_space(const Place &place, const Kind &kind)
{
	PushdownDB *db = open_database(place, kind, small_tables(kind), "space");
	Model model;
	Random random(3);

	for (int round = 0; round < 10; round++) {
		change(db, model, random, 1000);
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		check_get(db, model, key_of(random.below(KEYS)), nullptr);
	}
	check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compacting");
	size_t deleted = 1;

	/* The last event may be pending: RocksDB deletes on a thread of its own. */
	const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);

	while (deleted && std::chrono::steady_clock::now() < deadline) {
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		deleted = 0;
		for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
			std::error_code error;
			const std::string target = std::filesystem::read_symlink(entry, error).string();

			deleted += target.find("/space/") != std::string::npos &&
				   target.find("(deleted)") != std::string::npos;
		}
		if (deleted)
			check_get(db, model, key_of(random.below(KEYS)), nullptr);
	}
	CHECK(deleted == 0, "%zu deleted files are still open", deleted);
	std::printf("space:");
	print_ways(*db);
	delete db;
}

} /* namespace */

int main(int argc, char **argv)
{
	const Place where = place(argc, argv);
	const Kind kinds[] = {
		{"Snappy, first keys", rocksdb::kSnappyCompression, FIRST_KEYS, 5, size_t{1} << 30, 0.01},
		{"LZ4, partitioned", rocksdb::kLZ4Compression, PARTITIONED, 5, size_t{1} << 30},
		{"Zstandard, partitioned, index at the target", rocksdb::kZSTD, PARTITIONED, 4, 0},
		{"plain, index at the target", rocksdb::kNoCompression, BINARY, 2, 0},
	};

	uint64_t at_once = 0;

	for (Kind kind : kinds) {
		kind.speculate = Speculate::kNever;
		CHECK(test_answers(where, kind) == 0, "tables were searched at once");
		kind.speculate = Speculate::kAlways;
		at_once += test_answers(where, kind);
		std::filesystem::remove_all(where.directory + "/answers");
	}
	CHECK(at_once > 100, "few keys had their tables searched at once");
	test_the_rest(where, kinds[1]);
	test_long_values(where, kinds[1]);
	test_lower_bound(where, kinds[1]);
	test_tailing(where, kinds[1]);
	test_range_deletions(where, kinds[0]);
	test_range_deletions(where, kinds[1]);
	test_borders(where, kinds[1]);
	test_refused_tables(where, kinds[1]);
	test_refusals(where, kinds[1]);
	test_families(where, kinds[1]);
	test_created_families(where, {"created", rocksdb::kNoCompression, BINARY, 5, size_t{1} << 30});
	test_space(where, kinds[1]);
	test_mutex(where, kinds[1]);
	return 0;
}
