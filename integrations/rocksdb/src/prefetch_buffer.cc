/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "prefetch_buffer.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace bpf_of {

/* Extends a range to the alignment, up to the end of the file. */
static void align(FileRange *range)
{
	const uint64_t alignment = range->file->alignment(), length = range->file->size_bytes();
	const uint64_t end = range->offset + range->size;

	if (alignment == 1 || range->offset >= length)
		return;
	range->offset -= range->offset % alignment;
	range->size = std::min((end + alignment - 1) / alignment * alignment, length) - range->offset;
}

/* Several keys in one block each name it. */
static void remove_copies(std::vector<FileRange> *ranges)
{
	const auto place = [](const FileRange &range) {
		return std::make_tuple(range.file->number(), range.offset, range.size);
	};

	std::sort(ranges->begin(), ranges->end(),
		[&](const FileRange &a, const FileRange &b) { return place(a) < place(b); });
	ranges->erase(std::unique(ranges->begin(), ranges->end(),
			      [&](const FileRange &a, const FileRange &b) { return place(a) == place(b); }),
		ranges->end());
}

Fetched PrefetchBuffer::fetch(const TableFiles &files, std::vector<FileRange> ranges, int64_t timeout_us)
{
	size_t size = 0;

	std::for_each(ranges.begin(), ranges.end(), [](FileRange &range) { align(&range); });
	remove_copies(&ranges);
	if (ranges.empty())
		return Fetched::kNot;
	for (const FileRange &range : ranges)
		size += range.size;
	/* Not zeroed: all of it is written. */
	std::unique_ptr<char[]> buffer(new char[size]);

	const Fetched fetched = files.read(ranges, timeout_us, buffer.get());

	if (fetched != Fetched::kAll)
		return fetched;
	const char *bytes = buffer.get();

	for (FileRange &range : ranges) {
		const char *const its = bytes;

		bytes += range.size;
		staged_.push_back({std::move(range), its});
	}
	buffers_.push_back(std::move(buffer));
	size_bytes_ += size;
	return fetched;
}

bool PrefetchBuffer::serve(const TableFile &file, uint64_t offset, size_t size, char *scratch,
	rocksdb::Slice *result) const
{
	/* At the end of the file direct I/O asks for more bytes than there are. */
	if (file.alignment() > 1 && offset <= file.size_bytes())
		size = std::min<uint64_t>(size, file.size_bytes() - offset);
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

bool PrefetchBuffer::has(const TableFile &file) const
{
	return std::any_of(staged_.begin(), staged_.end(),
		[&](const Staged &staged) { return staged.range.file.get() == &file; });
}

void PrefetchBuffer::clear()
{
	staged_.clear();
	buffers_.clear();
	size_bytes_ = 0;
}

} /* namespace bpf_of */
