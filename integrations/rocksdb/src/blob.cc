/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "blob.h"

#include <cstring>

namespace bpf_of {

using rocksdb::Slice;
using rocksdb::Status;

namespace {

/* The header of a record, and the part of it that the first checksum covers. */
constexpr size_t HEADER_BYTES = 32;
constexpr size_t CHECKED_HEADER_BYTES = 24;
/* Header and footer of a blob file. */
constexpr uint64_t FILE_HEADER_BYTES = 30;
constexpr uint64_t FILE_FOOTER_BYTES = 32;
/* First byte of a blob's place without expiration. */
constexpr char KIND_PLAIN = 1;

template <typename Number> Number load(const char *bytes)
{
	Number value;

	std::memcpy(&value, bytes, sizeof(value));
	return value;
}

} /* namespace */

bool BlobPlace::parse(Slice index)
{
	if (index.empty() || index[0] != KIND_PLAIN)
		return false;
	index.remove_prefix(1);
	if (!sst::take_varint64(&index, &file_number) || !sst::take_varint64(&index, &offset) ||
		!sst::take_varint64(&index, &size) || index.size() != 1)
		return false;
	compression = static_cast<uint8_t>(index[0]);
	return true;
}

bool BlobPlace::record(
	const Slice &key, const std::shared_ptr<const TableFile> &file, FileRange *range) const
{
	const uint64_t before = HEADER_BYTES + key.size(), end = file->size_bytes();

	if (size > BLOB_BYTES_MAX || offset < FILE_HEADER_BYTES + before || end < FILE_FOOTER_BYTES + size ||
		offset > end - FILE_FOOTER_BYTES - size)
		return false;
	*range = {file, offset - before, before + size};
	return true;
}

Status take_blob(const BlobPlace &place, const Slice &key, std::unique_ptr<char[]> record, sst::Block *blob)
{
	const char *const bytes = record.get();
	const size_t checked = key.size() + place.size;
	const auto damaged = [&](const char *why) {
		return Status::Corruption("blob of " + std::to_string(place.size) + " bytes at byte " +
						  std::to_string(place.offset) + " of blob file " +
						  std::to_string(place.file_number),
			why);
	};

	if (sst::masked_crc32c(bytes, CHECKED_HEADER_BYTES) != load<uint32_t>(bytes + CHECKED_HEADER_BYTES))
		return damaged("the checksum of its header is wrong");
	if (load<uint64_t>(bytes) != key.size() || load<uint64_t>(bytes + 8) != place.size ||
		std::memcmp(bytes + HEADER_BYTES, key.data(), key.size()) != 0)
		return damaged("it belongs to another key");
	if (sst::masked_crc32c(bytes + HEADER_BYTES, checked) != load<uint32_t>(bytes + CHECKED_HEADER_BYTES + 4))
		return damaged("its checksum is wrong");
	blob->contents = Slice(bytes + HEADER_BYTES + key.size(), place.size);
	blob->memory = std::move(record);
	const Status status =
		sst::decompress({place.offset, place.size}, place.compression, BLOB_CONTENTS_MAX, blob);

	return status.IsCorruption() ? damaged("it cannot be decompressed") : status;
}

bool BlobReads::add(const Slice &index, const Slice &key, const BlobFiles &files, size_t of)
{
	BlobPlace place;
	FileRange range;

	if (!place.parse(index) || !sst::can_decompress(place.compression))
		return false;
	const auto file = files.find(place.file_number);

	if (file == files.end() || !place.record(key, file->second, &range) ||
		bytes_ + range.size > CALL_BLOB_BYTES_MAX)
		return false;
	bytes_ += range.size;
	reads_.push_back({place, of, std::unique_ptr<char[]>(new char[range.size])});
	ranges_.push_back(std::move(range));
	return true;
}

Fetched BlobReads::fetch(const TableFiles &files, int64_t timeout_us)
{
	std::vector<char *> to;

	for (const Read &read : reads_)
		to.push_back(read.record.get());
	return to.empty() ? Fetched::kAll : files.read(ranges_, timeout_us, to.data());
}

} /* namespace bpf_of */
