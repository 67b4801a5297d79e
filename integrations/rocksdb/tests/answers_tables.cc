/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Part of answers_test: tables with range deletions, and tables that chains cannot read. */
#include "answers.h"

using bpf_of::PushdownDB;
using bpf_of::ReadPath;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::WriteOptions;

namespace {

/* The tables of a level. */
std::vector<rocksdb::SstFileMetaData> tables_of(PushdownDB *db, int level)
{
	rocksdb::ColumnFamilyMetaData all;

	db->GetColumnFamilyMetaData(db->DefaultColumnFamily(), &all);
	return all.levels[level].files;
}

void compact_files(PushdownDB *db, const std::vector<std::string> &names, int level)
{
	rocksdb::CompactionOptions options;

	options.output_file_size_limit = 2 << 10;
	check_ok(db->CompactFiles(options, db->DefaultColumnFamily(), names, level), "compacting");
}

/* All keys are in two tables, which chains cannot read. Their blocks are fetched together. */
void check_refused(const Place &place, const Kind &kind, const rocksdb::Options &options, const std::string &value,
	const char *why)
{
	PushdownDB *db = open_database(place, kind, options, "refused_tables");
	std::vector<std::string> names;
	Model model;

	for (const std::string &part : {value, value + value}) {
		for (uint64_t number = 0; number < KEYS; number += value.size() > 1000 ? 40 : 1) {
			/* The newest table has half of the keys. */
			if (part.size() > value.size() && number % 80 == 0)
				continue;
			model[key_of(number)] = part + std::to_string(number);
			check_ok(db->Put(WriteOptions(), key_of(number), model[key_of(number)]), "writing");
		}
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	}
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	const bpf_of::PushdownStats before = db->stats();

	for (uint64_t number = 0; number < KEYS; number += 40) {
		names.push_back(key_of(number));
		check_get(db, model, key_of(number), nullptr);
	}
	const bpf_of::PushdownStats single = db->stats();

	CHECK(single[ReadPath::kTable] - before[ReadPath::kTable] == names.size() && chains(single) == 0, "%s",
		db->last_error().c_str());
	CHECK(db->last_error().find(why) != std::string::npos, "%s", db->last_error().c_str());
	check_many_of(db, model, names);
	const bpf_of::PushdownStats many = db->stats();

	CHECK(many[ReadPath::kTable] - single[ReadPath::kTable] == names.size(), "MultiGet()");
	/* From the target, and not by the file system; each block is fetched once for all its keys. */
	const uint64_t one_by_one = single.received_bytes - before.received_bytes;
	const uint64_t at_once = many.received_bytes - single.received_bytes;

	CHECK(place.url.empty() || (one_by_one > 256 * names.size() && at_once > one_by_one / 10 && at_once <= one_by_one),
		"%llu bytes for single ones, %llu for all", static_cast<unsigned long long>(one_by_one),
		static_cast<unsigned long long>(at_once));
	std::unique_ptr<rocksdb::Iterator> scan(db->NewIterator(ReadOptions()));

	scan->Seek(names[3]);
	check_at(*scan, model, model.lower_bound(names[3]));
	CHECK(place.url.empty() || db->stats().seeks > many.seeks, "a scan");
	scan.reset();
	delete db;
}

/* Options that ask for a dictionary do not make one if blocks are not compressed, or none would
 * help. */
void check_searched(const Place &place, const Kind &kind, rocksdb::Options options)
{
	options.compression = rocksdb::kNoCompression;
	PushdownDB *db = open_database(place, kind, options, "no_dictionary");
	Model model;

	model["key"] = "value";
	check_ok(db->Put(WriteOptions(), "key", "value"), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_get(db, model, "key", nullptr);
	CHECK(chains(db->stats()) == 1, "%s", db->last_error().c_str());
	delete db;
}

/* Ingests a table that deletes a range, and has some keys in it. */
void ingest_deletion(PushdownDB *db, Model &model, const std::string &directory, uint64_t first, uint64_t end)
{
	const std::pair<std::string, std::string> deleted = {key_of(first), key_of(end)};
	Model added;

	for (uint64_t number = first; number < end; number += 7)
		added[key_of(number)] = "ingested " + std::to_string(number);
	ingest_table(db, model, directory, added, &deleted);
}

/* Range deletions of tables hide older versions, in their own and in later tables. Returns the
 * counts. */
bpf_of::PushdownStats check_ranges(const Place &place, const Kind &kind, const rocksdb::Options &options)
{
	PushdownDB *db = open_database(place, kind, options, "ranges");
	const rocksdb::Snapshot *snapshot = nullptr;
	Random random(11);
	Model model, old_model;

	/* The database is empty: all sequence numbers are 0. */
	ingest_deletion(db, model, place.directory, 0, 100);
	for (uint64_t round = 0; round < 9; round++) {
		change(db, model, random, 800);
		for (int i = 0; i < 6; i++) {
			const uint64_t from = random.below(KEYS);

			/* Some reach over all tables, some are newer than the next writes. */
			delete_range(db, model, key_of(from), key_of(from + random.below(i == 0 ? KEYS / 3 : 60)) + "~");
			change(db, model, random, 20);
		}
		if (round == 5) {
			snapshot = db->GetSnapshot();
			old_model = model;
			change(db, model, random, 100);
			delete_range(db, model, key_of(1000), key_of(1500));
		}
		check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
		if (round == 3)
			check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compacting");
		if (round > 3)
			ingest_deletion(db, model, place.directory, round * 300, round * 300 + 400);
		CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
		db->set_mode(round == 7 ? bpf_of::Mode::kBlocks : bpf_of::Mode::kChains);
		check_reads(db, model, nullptr, random);
		if (snapshot)
			check_reads(db, old_model, snapshot, random);
	}
	std::printf("range deletions, %s:", kind.name);
	print_ways(*db);
	const bpf_of::PushdownStats stats = db->stats();

	CHECK(stats[ReadPath::kFailed] == 0, "%s", db->last_error().c_str());
	db->ReleaseSnapshot(snapshot);
	delete db;
	return stats;
}

/* Reads with ignore_range_deletions see the deleted versions. */
void check_ignored(const Place &place, const Kind &kind, const rocksdb::Options &options)
{
	PushdownDB *db = open_database(place, kind, options, "ignored");
	Model model, all = {{"aged", "value"}};
	ReadOptions ignores;
	std::string value;
	std::vector<std::string> values;

	check_ok(db->Put(WriteOptions(), "aged", "value"), "writing");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	delete_range(db, model, "aged", "agee");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	check_get(db, model, "aged", nullptr);
	ignores.ignore_range_deletions = true;
	const uint64_t before = chains(db->stats());

	check_ok(db->Get(ignores, "aged", &value), "reading under a range deletion");
	check_ok(db->MultiGet(ignores, {"aged"}, &values)[0], "reading under a range deletion");
	CHECK(value == "value" && values[0] == "value" && chains(db->stats()) == before + 2, "'%s', '%s'",
		value.c_str(), values[0].c_str());
	delete db;
}

} /* namespace */

void test_range_deletions(const Place &place, Kind kind)
{
	rocksdb::Options options = small_tables(kind);

	/* Compactions would merge all tables into one, without range deletions. */
	options.disable_auto_compactions = true;
	options.write_buffer_size = 1 << 20;
	for (const bpf_of::Speculate speculate : {bpf_of::Speculate::kNever, bpf_of::Speculate::kAlways}) {
		kind.speculate = speculate;
		/* The second time with values in blob files. */
		options.enable_blob_files = speculate == bpf_of::Speculate::kAlways;
		options.min_blob_size = 60;
		const bpf_of::PushdownStats stats = check_ranges(place, kind, options);

		/* Only the last key of a table is left to RocksDB. */
		CHECK(chains(stats) > 10000 && stats[ReadPath::kTable] < chains(stats) / 100 && stats.tables_refused == 0,
			"chains answered too few reads");
		CHECK((stats.at_once > 1000) == (speculate == bpf_of::Speculate::kAlways), "searches at once");
		CHECK((stats.blobs > 1000) == options.enable_blob_files, "blobs");
	}
	check_ignored(place, kind, options);
	/* Without memory for range deletions. */
	kind.index_bytes_max = 0;
	kind.sample_rate = 0;
	CHECK(check_ranges(place, kind, small_tables(kind)).tables_refused > 0, "range deletions took no memory");
}

/*
 * A table may end with a range deletion that its neighbour continues; the key at the border is in the
 * neighbour. Once the neighbour was compacted, versions of the key in lower levels may be newer than
 * the deletion.
 */
void test_borders(const Place &place, const Kind &kind)
{
	rocksdb::Options options = small_tables(kind);
	Model model;

	options.disable_auto_compactions = true;
	options.write_buffer_size = 4 << 20;
	options.level_compaction_dynamic_level_bytes = false;
	PushdownDB *db = open_database(place, kind, options, "borders");
	const auto write_all = [&](const std::string &value) {
		for (uint64_t number = 0; number < KEYS; number++) {
			model[key_of(number)] = value + std::to_string(number);
			check_ok(db->Put(WriteOptions(), key_of(number), model[key_of(number)]), "writing");
		}
	};
	const auto names_of = [&](int level) {
		std::vector<std::string> names;

		for (const rocksdb::SstFileMetaData &table : tables_of(db, level))
			names.push_back(table.name);
		return names;
	};

	write_all("old ");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	compact_files(db, names_of(0), 3);
	delete_range(db, model, "a", "z");
	write_all("new ");
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	compact_files(db, names_of(0), 1);
	const std::vector<rocksdb::SstFileMetaData> upper = tables_of(db, 1);
	std::vector<std::string> borders;

	CHECK(upper.size() > 10, "%zu tables", upper.size());
	for (size_t i = 1; i < upper.size(); i += 2) {
		const Slice inside = model.upper_bound(upper[i].smallestkey)->first;

		if (upper[i - 1].largestkey == upper[i].smallestkey)
			borders.push_back(upper[i].smallestkey);
		check_ok(db->CompactRange(rocksdb::CompactRangeOptions(), &inside, &inside), "compacting");
	}
	CHECK(tables_of(db, 1).size() == (upper.size() + 1) / 2, "%zu tables are left", tables_of(db, 1).size());
	CHECK(borders.size() > 4, "%zu borders in one key", borders.size());
	/* RocksDB first searches another table for all keys, and stops there. */
	for (const char *key : {"a", "z"}) {
		model[key] = "end";
		check_ok(db->Put(WriteOptions(), key, "end"), "writing");
	}
	check_ok(db->Flush(rocksdb::FlushOptions()), "flushing");
	CHECK(db->wait_ready(20000), "%s", db->last_error().c_str());
	for (const std::string &border : borders)
		check_get(db, model, border, nullptr);
	check_all(db, model, nullptr);
	check_many(db, model, nullptr);
	CHECK(db->stats()[ReadPath::kTable] >= borders.size() && db->stats().tables_refused == 0, "%s",
		db->last_error().c_str());
	std::printf("borders, %s:", kind.name);
	print_ways(*db);
	delete db;
}

/* Tables that chains cannot read are recognized without trying. */
void test_refused_tables(const Place &place, const Kind &kind)
{
	rocksdb::Options options = small_tables(kind);

	options.disable_auto_compactions = true;
	options.write_buffer_size = 32 << 20;
	options.compression = rocksdb::kZSTD;
	options.compression_opts.max_dict_bytes = 2048;
	check_refused(place, kind, options, "a value of which most is in the dictionary, of the key with number ", "dictionary");
	check_searched(place, kind, options);
	options.compression_opts.max_dict_bytes = 0;
	/* One value exceeds the room for a decompressed block. */
	check_refused(place, kind, options, std::string(70 << 10, 'l'), "KiB each");
	/* By default the index is compressed as well, and cannot be read here. */
	rocksdb::BlockBasedTableOptions &table = *options.table_factory->GetOptions<rocksdb::BlockBasedTableOptions>();

	table.enable_index_compression = false;
	table.index_type = BINARY;
	options.compression = rocksdb::kZlibCompression;
	check_refused(place, kind, options, "a value that is compressed well well well well, of the key with number ", "Zlib");
}
