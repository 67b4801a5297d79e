/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "stress.h"

#include <rocksdb/merge_operator.h>

using rocksdb::Slice;

namespace {

/* Parses "FIRST:VALUE": versions from FIRST to that of the value. */
bool take_operand(const Slice &operand, uint64_t *first, Slice *value, uint64_t *last)
{
	const std::string text = operand.ToString();
	const size_t colon = text.find(':');

	if (colon == std::string::npos)
		return false;
	*first = std::strtoull(text.c_str(), nullptr, 10);
	*last = std::strtoull(text.c_str() + colon + 1, nullptr, 10);
	*value = Slice(operand.data() + colon + 1, operand.size() - colon - 1);
	return true;
}

/* Each version has to follow its predecessor or a deletion: a merge that misses an operand, applies one
 * twice or in another order produces a value of no version. */
class Follows : public rocksdb::MergeOperator {
    public:
	bool FullMergeV2(const MergeOperationInput &in, MergeOperationOutput *out) const override
	{
		uint64_t before = 0, first = 0, last = 0;
		Slice value;

		if (in.existing_value)
			before = std::strtoull(in.existing_value->ToString().c_str(), nullptr, 10);
		for (const Slice &operand : in.operand_list) {
			if (!take_operand(operand, &first, &value, &last))
				return false;
			const bool follows = before ? first == before + 1 : first % DELETED_EVERY == 1;

			if (!follows) {
				out->new_value = "0: " + std::to_string(first) + " merged onto " +
						 std::to_string(before);
				return true;
			}
			before = last;
		}
		out->existing_operand = value;
		return true;
	}

	/* Merges operands early if the left one begins with an even version. */
	bool PartialMerge(const Slice &, const Slice &left, const Slice &right, std::string *merged,
		rocksdb::Logger *) const override
	{
		uint64_t first, last, right_first, right_last;
		Slice value, right_value;

		if (!take_operand(left, &first, &value, &last) ||
			!take_operand(right, &right_first, &right_value, &right_last) ||
			right_first != last + 1 || first % 2)
			return false;
		*merged = std::to_string(first) + ":" + right_value.ToString();
		return true;
	}

	const char *Name() const override { return "Follows"; }
};

} /* namespace */

std::shared_ptr<rocksdb::MergeOperator> merge_operator()
{
	return std::make_shared<Follows>();
}

std::string operand_of(const std::string &key, uint64_t version)
{
	return std::to_string(version) + ":" + value_of(key, version);
}
