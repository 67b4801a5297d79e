/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "merge.h"

#include <rocksdb/convenience.h>

#include <algorithm>

namespace bpf_of {

using rocksdb::Slice;

bool FollowedMerge::ShouldMerge(const std::vector<Slice> &operands) const
{
	if (ReadScope *scope = ReadScope::current())
		scope->meet(operands);
	const Outside outside;

	return merge_->ShouldMerge(operands);
}

std::string FollowedMerge::SerializeOptions(
	const rocksdb::ConfigOptions &options, const std::string &prefix) const
{
	const std::string text = merge_->ToString(options, prefix);

	/* The caller adds braces around this text if it is more than a name. */
	return !text.empty() && text.front() == '{' ? text.substr(1, text.size() - 2) : text;
}

bool FollowedMerge::merge(const Slice &key, const Slice *base, const std::vector<std::string> &newer,
	const std::vector<Slice> &older, rocksdb::Logger *logger, std::string *value) const
{
	std::vector<Slice> operands(newer.begin(), newer.end());

	/* RocksDB has called ShouldMerge() for the operands in memory, and it returned false. */
	for (auto operand = older.rbegin(); operand != older.rend(); ++operand) {
		operands.push_back(*operand);
		if (merge_->ShouldMerge(operands)) {
			base = nullptr;
			break;
		}
	}
	std::reverse(operands.begin(), operands.end());
	return full_merge(key, base, operands, logger, value);
}

#if ROCKSDB_MAJOR >= 9
bool FollowedMerge::full_merge(const Slice &key, const Slice *base, const std::vector<Slice> &operands,
	rocksdb::Logger *logger, std::string *value) const
{
	MergeOperationInputV3::ExistingValue existing;
	MergeOperationOutputV3 out;

	if (base)
		existing = *base;
	if (!merge_->FullMergeV3(MergeOperationInputV3(key, std::move(existing), operands, logger), &out))
		return false;
	if (const Slice *same = std::get_if<Slice>(&out.new_value))
		value->assign(same->data(), same->size());
	else if (std::string *made = std::get_if<std::string>(&out.new_value))
		value->swap(*made);
	else
		return false;
	return true;
}
#else
bool FollowedMerge::full_merge(const Slice &key, const Slice *base, const std::vector<Slice> &operands,
	rocksdb::Logger *logger, std::string *value) const
{
	Slice same(nullptr, 0);
	MergeOperationOutput out(*value, same);

	value->clear();
	if (!merge_->FullMergeV2(MergeOperationInput(key, base, operands, logger), &out))
		return false;
	if (same.data())
		value->assign(same.data(), same.size());
	return true;
}
#endif

} /* namespace bpf_of */
