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

/* What reads cost (answers_costs.cc). */
void test_long_values(const Place &place, const Kind &kind);
void test_lower_bound(const Place &place, const Kind &kind);
void test_mutex(const Place &place, const Kind &kind);

#endif
