/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "stage.h"

#include <cstring>

namespace bpf_of {

bool Stage::fetch(const TableFiles &files, const std::vector<Stretch> &stretches)
{
	size_t size = 0;

	for (const Stretch &stretch : stretches)
		size += stretch.size;
	/* Not cleared: all of it is written. */
	std::unique_ptr<char[]> buffer(new char[size]);

	if (!files.read(stretches, buffer.get()))
		return false;
	const char *bytes = buffer.get();

	for (const Stretch &stretch : stretches) {
		staged_.push_back({stretch, bytes});
		bytes += stretch.size;
	}
	buffers_.push_back(std::move(buffer));
	size_bytes_ += size;
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
		std::memcpy(scratch, staged.bytes + (offset - stretch.offset), size);
		*result = rocksdb::Slice(scratch, size);
		return true;
	}
	return false;
}

void Stage::clear()
{
	staged_.clear();
	buffers_.clear();
	size_bytes_ = 0;
}

} /* namespace bpf_of */
