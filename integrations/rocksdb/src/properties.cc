/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* stats() as properties of the database, for programs that only have a rocksdb::DB or rocksdb_t. */
#include "state.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace bpf_of {

using rocksdb::ColumnFamilyHandle;
using rocksdb::Slice;

namespace {

constexpr char PREFIX[] = "bpfof.";

/* Calls `each` with the name, without prefix, and the value of each numeric property. */
template <typename Each> void for_each_number(const PushdownStats &stats, Each each)
{
	for (size_t way = 0; way < WAYS; way++) {
		std::string word = name(static_cast<ReadPath>(way));

		std::replace(word.begin(), word.end(), ' ', '-');
		each("gets." + word, stats.gets[way]);
	}
	each("blocks", stats.blocks);
	each("at-once", stats.at_once);
	each("blobs", stats.blobs);
	each("seeks", stats.seeks);
	each("sent-bytes", stats.sent_bytes);
	each("received-bytes", stats.received_bytes);
	each("tables", stats.tables);
	each("tables-refused", stats.tables_refused);
	each("index-bytes", stats.index_bytes);
}

/* In JSON's format in every locale. */
std::string as_text(double number)
{
	char text[32];

	return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

std::string as_json(const PushdownStats &stats)
{
	std::string text = "{";

	for_each_number(stats, [&](const std::string &name, uint64_t value) {
		text += "\"" + name + "\": " + std::to_string(value) + ", ";
	});
	return text + "\"sample-rate\": " + as_text(stats.sample_rate) + "}";
}

} /* namespace */

bool PushdownDB::GetIntProperty(ColumnFamilyHandle *family, const Slice &property, uint64_t *value)
{
	if (!property.starts_with(PREFIX))
		return db_->GetIntProperty(family, property, value);
	const std::string wanted = property.ToString().substr(sizeof(PREFIX) - 1);
	bool found = wanted == "ready";

	if (found)
		*value = wait_ready(0);
	else
		for_each_number(stats(), [&](const std::string &name, uint64_t number) {
			if (name == wanted) {
				*value = number;
				found = true;
			}
		});
	return found;
}

bool PushdownDB::GetProperty(ColumnFamilyHandle *family, const Slice &property, std::string *value)
{
	uint64_t number;

	if (!property.starts_with(PREFIX))
		return db_->GetProperty(family, property, value);
	if (property == Slice("bpfof.stats"))
		*value = as_json(stats());
	else if (property == Slice("bpfof.sample-rate"))
		*value = as_text(stats().sample_rate);
	else if (property == Slice("bpfof.last-error"))
		*value = last_error();
	else if (GetIntProperty(family, property, &number))
		*value = std::to_string(number);
	else
		return false;
	return true;
}

void PushdownDB::report() const
{
	if (state_->report.empty())
		return;
	std::FILE *file = std::fopen(state_->report.c_str(), "a");

	/* There is no caller to report the error to. */
	if (!file)
		return;
	std::fprintf(file, "%s\n", as_json(stats()).c_str());
	std::fclose(file);
}

} /* namespace bpf_of */
