/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Merge operands: those that RocksDB meets in memory are kept, and merged with those of a chain. */
#ifndef BPFOF_ROCKSDB_MERGE_H
#define BPFOF_ROCKSDB_MERGE_H

#include "read_scope.h"

#include <rocksdb/merge_operator.h>
#include <rocksdb/version.h>

#include <memory>
#include <string>
#include <vector>

namespace bpf_of {

/*
 * A family's merge operator, which also reports the operands of a Get() to the ReadScope of its thread:
 * RocksDB calls ShouldMerge() after each operand, in memtables and in tables. Everything else is
 * forwarded to the operator.
 */
class FollowedMerge final : public rocksdb::MergeOperator {
    public:
	explicit FollowedMerge(std::shared_ptr<rocksdb::MergeOperator> merge) : merge_(std::move(merge)) {}

	/*
	 * Merges as Get() does: all operands onto `base`, if that is not null. `newer` are newest
	 * first; `older`, which are all older than those, are oldest first. False if the operator
	 * fails, or the result has several columns.
	 */
	bool merge(const rocksdb::Slice &key, const rocksdb::Slice *base, const std::vector<std::string> &newer,
		const std::vector<rocksdb::Slice> &older, rocksdb::Logger *logger, std::string *value) const;

	bool ShouldMerge(const std::vector<rocksdb::Slice> &operands) const override;
	bool FullMerge(const rocksdb::Slice &key, const rocksdb::Slice *existing,
		const std::deque<std::string> &operands, std::string *value,
		rocksdb::Logger *logger) const override
	{
		const Outside outside;

		return merge_->FullMerge(key, existing, operands, value, logger);
	}
	bool FullMergeV2(const MergeOperationInput &in, MergeOperationOutput *out) const override
	{
		const Outside outside;

		return merge_->FullMergeV2(in, out);
	}
#if ROCKSDB_MAJOR >= 9
	bool FullMergeV3(const MergeOperationInputV3 &in, MergeOperationOutputV3 *out) const override
	{
		const Outside outside;

		return merge_->FullMergeV3(in, out);
	}
#endif
	bool PartialMerge(const rocksdb::Slice &key, const rocksdb::Slice &left, const rocksdb::Slice &right,
		std::string *value, rocksdb::Logger *logger) const override
	{
		const Outside outside;

		return merge_->PartialMerge(key, left, right, value, logger);
	}
	bool PartialMergeMulti(const rocksdb::Slice &key, const std::deque<rocksdb::Slice> &operands,
		std::string *value, rocksdb::Logger *logger) const override
	{
		const Outside outside;

		return merge_->PartialMergeMulti(key, operands, value, logger);
	}
	bool AllowSingleOperand() const override { return merge_->AllowSingleOperand(); }

	/* Options files, and callers that look for the operator's own class, get the program's
	 * operator. */
	const char *Name() const override { return merge_->Name(); }
	std::string GetId() const override { return merge_->GetId(); }
	bool IsInstanceOf(const std::string &) const override { return false; }
	const rocksdb::Customizable *Inner() const override { return merge_.get(); }

    protected:
	std::string SerializeOptions(
		const rocksdb::ConfigOptions &options, const std::string &prefix) const override;

    private:
	bool full_merge(const rocksdb::Slice &key, const rocksdb::Slice *base,
		const std::vector<rocksdb::Slice> &operands, rocksdb::Logger *logger,
		std::string *value) const;

	const std::shared_ptr<rocksdb::MergeOperator> merge_;
};

} /* namespace bpf_of */

#endif
