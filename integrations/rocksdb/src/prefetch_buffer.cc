/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "prefetch_buffer.h"

#include <cstring>

namespace bpf_of {

Fetched PrefetchBuffer::fetch(
	const TableFiles &files, const std::vector<FileRange> &ranges, int64_t timeout_us)
{
	size_t size = 0;

	for (const FileRange &range : ranges)
		size += range.size;
	/* Not cleared: all of it is written. */
	std::unique_ptr<char[]> buffer(new char[size]);

	const Fetched fetched = files.read(ranges, timeout_us, buffer.get());

	if (fetched != Fetched::kAll)
		return fetched;
	const char *bytes = buffer.get();

	for (const FileRange &range : ranges) {
		staged_.push_back({range, bytes});
		bytes += range.size;
	}
	buffers_.push_back(std::move(buffer));
	size_bytes_ += size;
	return fetched;
}

bool PrefetchBuffer::serve(const TableFile &file, uint64_t offset, size_t size, char *scratch,
	rocksdb::Slice *result) const
{
	for (const Staged &staged : staged_) {
		const FileRange &range = staged.range;

		if (range.file.get() != &file || offset < range.offset ||
			offset - range.offset > range.size ||
			size > range.size - (offset - range.offset) || !scratch)
			continue;
		std::memcpy(scratch, staged.bytes + (offset - range.offset), size);
		*result = rocksdb::Slice(scratch, size);
		return true;
	}
	return false;
}

void PrefetchBuffer::clear()
{
	staged_.clear();
	buffers_.clear();
	size_bytes_ = 0;
}

} /* namespace bpf_of */
