/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the parts of answers_test share: keys, and a model that says what their values are. */
#ifndef BPFOF_ROCKSDB_TESTS_ANSWERS_H
#define BPFOF_ROCKSDB_TESTS_ANSWERS_H

#include "database.h"

#include <map>

constexpr uint64_t KEYS = 4000;

using Model = std::map<std::string, std::string>;

inline std::string key_of(uint64_t number)
{
	char text[32];

	/* Two lengths, of which one begins as the other. */
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

/* Some keys at once. */
inline void check_many_of(bpf_of::PushdownDB *db, const Model &model, const std::vector<std::string> &names)
{
	const std::vector<rocksdb::Slice> keys(names.begin(), names.end());
	std::vector<std::string> values;
	const std::vector<rocksdb::Status> statuses = db->MultiGet(rocksdb::ReadOptions(), keys, &values);

	for (size_t i = 0; i < names.size(); i++)
		CHECK(statuses[i].ok() && values[i] == model.at(names[i]), "%zu: %s", i,
			statuses[i].ToString().c_str());
}

/* Answers of Get(), MultiGet() and iterators are those of the model, now or at a snapshot. */
void check_all(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at);
void check_many(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at);
void check_scans(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at, Random &random);
/* All of them. */
void check_reads(bpf_of::PushdownDB *db, const Model &model, const rocksdb::Snapshot *at, Random &random);
/* That an iterator is where one of the model is. */
void check_at(const rocksdb::Iterator &scan, const Model &model, Model::const_iterator expected);

/* Changes both. */
void change(bpf_of::PushdownDB *db, Model &model, Random &random, uint64_t changes);
void delete_range(bpf_of::PushdownDB *db, Model &model, const std::string &from, const std::string &to);

/* By a table with these keys, which deletes what is older from one key up to, and without, another, if that is not null. */
void ingest_table(bpf_of::PushdownDB *db, Model &model, const std::string &directory, const Model &added,
	const std::pair<std::string, std::string> *deleted);

/* Which tables chains can read (answers_tables.cc). */
void test_range_deletions(const Place &place, Kind kind);
void test_borders(const Place &place, const Kind &kind);
void test_refused_tables(const Place &place, const Kind &kind);
/* What reads cost (answers_costs.cc). */
void test_long_values(const Place &place, const Kind &kind);
void test_lower_bound(const Place &place, const Kind &kind);
void test_mutex(const Place &place, const Kind &kind);

#endif
