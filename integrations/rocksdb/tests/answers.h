/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Shared by the parts of answers_test: keys, and a model with their values. */
#ifndef BPFOF_ROCKSDB_TESTS_ANSWERS_H
#define BPFOF_ROCKSDB_TESTS_ANSWERS_H

#include "database.h"

#include <map>

constexpr uint64_t KEYS = 4000;

using Model = std::map<std::string, std::string>;

inline std::string key_of(uint64_t number)
{
	char text[32];

	/* Two lengths, so that some keys are prefixes of others. */
	std::snprintf(text, sizeof(text), number % 3 ? "user%06llu" : "user%06lluxyz",
		static_cast<unsigned long long>(number));
	return text;
}

inline void check_get(bpf_of::PushdownDB *db, const Model &model, const std::string &key, const rocksdb::Snapshot *at)
{
	rocksdb::ReadOptions options;
	std::string value;

	options.snapshot = at;
	const rocksdb::Status status = db->Get(options, db->DefaultColumnFamily(), key, &value);
	const auto found = model.find(key);

	if (found == model.end())
		CHECK(status.IsNotFound(), "%s: %s", key.c_str(), status.ToString().c_str());
	else
		CHECK(status.ok() && value == found->second, "%s: %s, '%s' instead of '%s'",
			key.c_str(), status.ToString().c_str(), value.c_str(), found->second.c_str());
}

/* Reads some keys at once. */
inline void check_many_of(bpf_of::PushdownDB *db, const Model &model, const std::vector<std::string> &names)
{
	const std::vector<rocksdb::Slice> keys(names.begin(), names.end());
	std::vector<std::string> values;
	const std::vector<rocksdb::Status> statuses = db->MultiGet(rocksdb::ReadOptions(), keys, &values);

	for (size_t i = 0; i < names.size(); i++)
		CHECK(statuses[i].ok() && values[i] == model.at(names[i]), "%zu: %s", i,
			statuses[i].ToString().c_str());
}

/* Check that the answers of Get(), MultiGet() and iterators are the model's, now or at a snapshot. */
void check_all(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at);
void check_many(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at);
void check_scans(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at, Random &random);
/* All of these checks. */
void check_reads(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at, Random &random);
/* Checks that an iterator has the model's position. */
void check_at(const rocksdb::Iterator &scan, const Model &model, Model::const_iterator expected);

/* Change the database and the model. */
void change(bpf_of::PushdownDB *db, Model &model, Random &random, uint64_t changes);
void delete_range(bpf_of::PushdownDB *db, Model &model, const std::string &from, const std::string &to);

/* Ingests a table with these keys, which also deletes older ones from one key up to, but without,
 * another, if `deleted` is not null. */
void ingest_table(bpf_of::PushdownDB *db, Model &model, const std::string &directory, const Model &added,
	const std::pair<std::string, std::string> *deleted);

/* Tables that chains can or cannot read (answers_tables.cc). */
void test_range_deletions(const Place &place, Kind kind);
void test_borders(const Place &place, const Kind &kind);
void test_refused_tables(const Place &place, const Kind &kind);
/* Costs of reads (answers_costs.cc). */
void test_long_values(const Place &place, const Kind &kind);
void test_lower_bound(const Place &place, const Kind &kind);
void test_tailing(const Place &place, const Kind &kind);
void test_mutex(const Place &place, const Kind &kind);

#endif
