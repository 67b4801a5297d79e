/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "stage.h"

#include <cstring>

namespace bpf_of {

bool Stage::fetch(const TableFiles &files, const std::vector<Stretch> &stretches)
{
	const size_t before = bytes_.size();
	size_t end = before;

	for (const Stretch &stretch : stretches)
		end += stretch.size;
	bytes_.resize(end);
	if (!files.read(stretches, bytes_.data() + before)) {
		bytes_.resize(before);
		return false;
	}
	size_t at = before;

	for (const Stretch &stretch : stretches) {
		staged_.push_back({stretch, at});
		at += stretch.size;
	}
	return true;
}

bool Stage::serve(const TableFile &file, uint64_t offset, size_t size, char *scratch,
	rocksdb::Slice *result) const
{
	for (const Staged &staged : staged_) {
		const Stretch &stretch = staged.stretch;

		if (stretch.file.get() != &file || offset < stretch.offset ||
			offset - stretch.offset > stretch.size ||
			size > stretch.size - (offset - stretch.offset) || !scratch)
			continue;
		std::memcpy(scratch, bytes_.data() + staged.at + (offset - stretch.offset), size);
		*result = rocksdb::Slice(scratch, size);
		return true;
	}
	return false;
}

void Stage::clear()
{
	staged_.clear();
	bytes_.clear();
}

} /* namespace bpf_of */
