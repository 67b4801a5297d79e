/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "sst.h"

#include <lz4.h>
#include <snappy.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace bpf_of::sst {

using rocksdb::Slice;
using rocksdb::Status;

namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tables are little-endian");

constexpr size_t kFooterBytes = 53;
/* The footer's two handles, with padding. */
constexpr size_t kHandlesBytes = 40;
constexpr uint64_t kMagic = 0x88e241b785f4cff7;
/* Since format_version 6, in place of the handles, with the fields after it up to the padding. */
constexpr uint32_t kExtendedMagic = 0x007a003e;
constexpr size_t kTrailerBytes = 5;
/* Real metaindices are far smaller: one entry for each filter, index and block of properties. */
constexpr uint64_t kMetaindexBytesMax = 64 * 1024;
constexpr char kIndexName[] = "rocksdb.index";
constexpr char kRangeDeletionsName[] = "rocksdb.range_del";
constexpr char kDictionaryName[] = "rocksdb.compression_dict";
/* The kind of a range deletion in the tag of its first key. */
constexpr uint8_t kRangeDeletion = 15;
constexpr size_t kTagBytes = 8;

/* A flag in the field with the number of restarts: a hint for another search algorithm. */
constexpr uint32_t kUniform = 1u << 29;

enum Checksum : uint8_t { kNoChecksum = 0, kCrc32c = 1, kXxh3 = 4 };
enum Compression : uint8_t { kNone = 0, kSnappy = 1, kLz4 = 4, kLz4Hc = 5, kZstd = 7 };

uint32_t load32(const char *bytes)
{
	uint32_t value;
	memcpy(&value, bytes, sizeof(value));
	return value;
}

uint64_t load64(const char *bytes)
{
	uint64_t value;
	memcpy(&value, bytes, sizeof(value));
	return value;
}

std::string name_of(const Handle &block)
{
	return "block of " + std::to_string(block.size) + " bytes at byte " +
	       std::to_string(block.offset) + " of a RocksDB table";
}

Status damaged(const Handle &block, const char *why)
{
	return Status::Corruption(name_of(block), why);
}

Status too_large(const Handle &block, size_t max_bytes)
{
	return Status::MemoryLimit(name_of(block), "it needs more than the " +
							  std::to_string(max_bytes) +
							  " bytes that are allowed");
}

} // namespace

bool take_varint64(Slice *input, uint64_t *value)
{
	uint64_t result = 0;
	for (unsigned shift = 0; shift < 64 && !input->empty(); shift += 7) {
		const uint8_t byte = static_cast<uint8_t>((*input)[0]);
		input->remove_prefix(1);
		result |= static_cast<uint64_t>(byte & 0x7f) << shift;
		if (byte < 0x80) {
			*value = result;
			return true;
		}
	}
	return false;
}

namespace {

bool take_varint32(Slice *input, uint32_t *value)
{
	uint64_t wide;
	if (!take_varint64(input, &wide) || wide > UINT32_MAX)
		return false;
	*value = static_cast<uint32_t>(wide);
	return true;
}

bool take_handle(Slice *input, Handle *handle)
{
	return take_varint64(input, &handle->offset) && take_varint64(input, &handle->size);
}

bool is_before(const Handle &block, uint64_t end)
{
	return end >= kTrailerBytes && block.size <= end - kTrailerBytes &&
	       block.offset <= end - kTrailerBytes - block.size;
}

/* Reads all of the bytes, or fails. */
Status read_bytes(int fd, uint64_t offset, size_t count, char *bytes)
{
	const std::string what = "reading " + std::to_string(count) + " bytes at byte " +
				 std::to_string(offset) + " of a RocksDB table";
	if (offset > INT64_MAX - static_cast<uint64_t>(count)) {
		return Status::Corruption(what, "the offset exceeds the maximum file size");
	}
	for (size_t done = 0; done < count;) {
		const ssize_t got =
			pread(fd, bytes + done, count - done, static_cast<off_t>(offset + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return Status::IOError(what, strerror(errno));
		if (got == 0)
			return Status::Corruption(what, "the file ends before these bytes");
		done += static_cast<size_t>(got);
	}
	return Status::OK();
}

#if defined(__ARM_FEATURE_CRC32)
uint32_t crc32c(const char *bytes, size_t count)
{
	uint32_t crc = UINT32_MAX;
	for (; count >= 8; bytes += 8, count -= 8)
		crc = __crc32cd(crc, load64(bytes));
	for (; count > 0; bytes++, count--)
		crc = __crc32cb(crc, static_cast<uint8_t>(*bytes));
	return ~crc;
}
#else
constexpr std::array<uint32_t, 256> make_crc_table()
{
	std::array<uint32_t, 256> table{};
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;
		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
		table[byte] = crc;
	}
	return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t crc32c_by_table(const char *bytes, size_t count)
{
	uint32_t crc = UINT32_MAX;
	for (; count > 0; bytes++, count--)
		crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(*bytes)) & 0xff];
	return ~crc;
}

#if defined(__x86_64__)
/* Selected at run time, because the library is compiled for all processors. */
__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(const char *bytes, size_t count)
{
	uint32_t crc = UINT32_MAX;
	for (; count >= 8; bytes += 8, count -= 8)
		crc = static_cast<uint32_t>(_mm_crc32_u64(crc, load64(bytes)));
	for (; count > 0; bytes++, count--)
		crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*bytes));
	return ~crc;
}
#endif

uint32_t crc32c(const char *bytes, size_t count)
{
#if defined(__x86_64__)
	static const bool has_instruction = __builtin_cpu_supports("sse4.2");
	if (has_instruction)
		return crc32c_by_instruction(bytes, count);
#endif
	return crc32c_by_table(bytes, count);
}
#endif

} // namespace

uint32_t masked_crc32c(const char *bytes, size_t count)
{
	const uint32_t crc = crc32c(bytes, count);
	/* Rotated and offset, because the CRC of data that contains CRCs is weak. */
	return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

namespace {

/* The checksum of `count` bytes at an offset; `count` is at least 1. 0 if the table has none. */
uint32_t checksum_of(const Footer &footer, uint64_t offset, const char *bytes, size_t count)
{
	uint32_t sum = 0;
	if (footer.checksum == kCrc32c) {
		sum = masked_crc32c(bytes, count);
	} else if (footer.checksum == kXxh3) {
		/* RocksDB hashes all but the last byte, a block's kind of compression, and mixes that
		 * byte in. */
		const uint32_t last = static_cast<uint8_t>(bytes[count - 1]);
		sum = static_cast<uint32_t>(XXH3_64bits(bytes, count - 1)) ^ last * 0x6b9083d9;
	}
	if (footer.checksum_base == 0)
		return sum;
	return sum + (footer.checksum_base ^
			     (static_cast<uint32_t>(offset) + static_cast<uint32_t>(offset >> 32)));
}

/*
 * Takes the size after decompression from the front of `compressed`. False if there is none, or if data
 * of this length cannot have that size.
 */
bool take_size(uint8_t compression, Slice *compressed, size_t *size)
{
	uint64_t most_per_byte;
	if (compression == kSnappy) {
		/* A copy of 64 bytes takes three bytes. */
		most_per_byte = 22;
		if (!snappy::GetUncompressedLength(compressed->data(), compressed->size(), size))
			return false;
	} else {
		/*
		 * A byte extends an LZ4 match by at most 255 bytes; a Zstandard block of 128 KiB takes
		 * four.
		 */
		most_per_byte = compression == kZstd ? 128 * 1024 / 4 : 255;
		uint32_t named;
		if (!take_varint32(compressed, &named))
			return false;
		*size = named;
	}
	return *size <= INT_MAX && compressed->size() <= INT_MAX &&
	       *size <= most_per_byte * compressed->size();
}

bool decompress_into(uint8_t compression, const Slice &compressed, char *to, size_t size)
{
	if (compression == kSnappy) {
		return snappy::RawUncompress(compressed.data(), compressed.size(), to);
	}
	if (compression == kZstd) {
		return ZSTD_decompress(to, size, compressed.data(), compressed.size()) == size;
	}
	const int got = LZ4_decompress_safe(
		compressed.data(), to, static_cast<int>(compressed.size()), static_cast<int>(size));
	return got >= 0 && static_cast<size_t>(got) == size;
}

} // namespace

bool can_decompress(uint8_t compression)
{
	return compression == kNone || compression == kSnappy || compression == kLz4 || compression == kLz4Hc ||
	       compression == kZstd;
}

Status decompress(const Handle &handle, uint8_t compression, size_t max_bytes, Block *block)
{
	if (compression == kNone)
		return Status::OK();
	if (!can_decompress(compression)) {
		return Status::NotSupported(name_of(handle), "compression of kind " +
								    std::to_string(compression) +
								    " is not Snappy, LZ4 or Zstandard");
	}
	Slice compressed = block->contents;
	size_t size;
	if (!take_size(compression, &compressed, &size)) {
		return damaged(handle, "the decompressed size that its compressed data states is missing or impossible");
	}
	if (size > max_bytes)
		return too_large(handle, max_bytes);
	std::unique_ptr<char[]> memory(new char[size]);
	if (!decompress_into(compression, compressed, memory.get(), size)) {
		return damaged(handle, "its compressed data cannot be decompressed");
	}
	block->memory = std::move(memory);
	block->contents = Slice(block->memory.get(), size);
	return Status::OK();
}

namespace {

/* Reads, verifies and decompresses a block. */
Status read_block(int fd, const Footer &footer, const Handle &handle, size_t max_bytes, Block *block)
{
	if (!is_before(handle, footer.blocks_end))
		return damaged(handle, "it is not inside the file");
	if (handle.size > max_bytes)
		return too_large(handle, max_bytes);
	const size_t size = static_cast<size_t>(handle.size);
	block->memory.reset(new char[size + kTrailerBytes]);
	Status status = read_bytes(fd, handle.offset, size + kTrailerBytes, block->memory.get());
	if (!status.ok())
		return status;
	if (footer.checksum != kNoChecksum &&
		checksum_of(footer, handle.offset, block->memory.get(), size + 1) !=
			load32(block->memory.get() + size + 1)) {
		return damaged(handle, "its checksum is wrong");
	}
	block->contents = Slice(block->memory.get(), size);
	return decompress(handle, static_cast<uint8_t>(block->memory[size]), max_bytes, block);
}

/* Cuts off everything after the entries of a block. False if the end of the entries cannot be
 * determined. */
bool cut_restarts(Slice *contents)
{
	if (contents->size() < sizeof(uint32_t))
		return false;
	const size_t rest = contents->size() - sizeof(uint32_t);
	/* The flag for evenly spread keys does not matter here. */
	const uint32_t restarts = load32(contents->data() + rest) & ~kUniform;
	if (restarts == 0 || restarts > rest / sizeof(uint32_t))
		return false;
	contents->remove_suffix(sizeof(uint32_t) * (size_t{restarts} + 1));
	return true;
}

} // namespace

namespace {

/* Takes the handles of a footer before format_version 6. */
Status take_handles(const std::string &what, Slice handles, Footer *footer)
{
	footer->checksum_base = 0;
	if (!take_handle(&handles, &footer->metaindex) || !take_handle(&handles, &footer->index))
		return Status::Corruption(what, "the places of its blocks are invalid");
	return Status::OK();
}

/* Takes the next entry of a block whose entries store the length of their values; `key` has the
 * previous entry's key, and receives this entry's. */
bool take_entry(Slice *input, std::string *key, Slice *value)
{
	uint32_t shared, unshared, value_bytes;
	if (!take_varint32(input, &shared) || !take_varint32(input, &unshared) ||
		!take_varint32(input, &value_bytes) || shared > key->size() ||
		uint64_t{unshared} + value_bytes > input->size())
		return false;
	key->resize(shared);
	key->append(input->data(), unshared);
	*value = Slice(input->data() + unshared, value_bytes);
	input->remove_prefix(size_t{unshared} + value_bytes);
	return true;
}

/* Finds the block with this name in the metaindex, if there is one. */
Status find_block(int fd, const Footer &footer, const char *name, bool *is_there, Handle *found)
{
	Block block;
	Status status = read_block(fd, footer, footer.metaindex, kMetaindexBytesMax, &block);
	if (!status.ok())
		return status;
	if (!cut_restarts(&block.contents))
		return damaged(footer.metaindex, "it does not end with restart points");
	std::string key;
	for (*is_there = false; !*is_there && !block.contents.empty();) {
		Slice value;
		if (!take_entry(&block.contents, &key, &value))
			return damaged(footer.metaindex, "one of its entries is invalid");
		*is_there = key == name;
		if (*is_there && !take_handle(&value, found))
			return damaged(footer.metaindex, "an entry does not contain the place of a block");
	}
	return Status::OK();
}

/* Takes the fields that footers have since format_version 6: magic, checksum, base, size of the
 * metaindex. */
Status take_extended(const std::string &what, char *bytes, Footer *footer)
{
	char *at = bytes + 1;
	if (load32(at) != kExtendedMagic)
		return Status::Corruption(what, "its second magic number is wrong");
	const uint32_t stored = load32(at + 4);
	footer->checksum_base = load32(at + 8);
	const uint32_t metaindex_bytes = load32(at + 12);
	/* Of the reserved bytes sixteen may be ignored; eight others mark features that a reader must
	 * know. */
	if (load64(at + 32) != 0)
		return Status::NotSupported(what, "it uses features newer than format_version 7");
	if (footer->checksum_base == 0)
		return Status::Corruption(what, "its base checksum is missing");
	memset(at + 4, 0, sizeof(stored));
	if (footer->checksum != kNoChecksum &&
		checksum_of(*footer, footer->blocks_end, bytes, kFooterBytes) != stored)
		return Status::Corruption(what, "its checksum is wrong");
	if (metaindex_bytes + kTrailerBytes > footer->blocks_end)
		return Status::Corruption(what, "the metaindex that it names is not inside the file");
	footer->metaindex = {footer->blocks_end - kTrailerBytes - metaindex_bytes, metaindex_bytes};
	return Status::OK();
}

} // namespace

Status read_footer(int fd, uint64_t file_size, Footer *footer)
{
	const std::string what = "footer of a RocksDB table of " + std::to_string(file_size) + " bytes";
	if (file_size < kFooterBytes)
		return Status::Corruption(what, "a footer has 53 bytes");
	char bytes[kFooterBytes];
	footer->blocks_end = file_size - kFooterBytes;
	Status status = read_bytes(fd, footer->blocks_end, sizeof(bytes), bytes);
	if (!status.ok())
		return status;

	if (load64(bytes + kFooterBytes - 8) != kMagic) {
		return Status::NotSupported(what, "it does not have the magic number of a BlockBasedTable");
	}
	footer->format_version = load32(bytes + 1 + kHandlesBytes);
	if (footer->format_version < 2 || footer->format_version > 7) {
		return Status::NotSupported(what, "its format_version " +
							  std::to_string(footer->format_version) +
							  " is not between 2 and 7");
	}
	footer->checksum = static_cast<uint8_t>(bytes[0]);
	if (footer->checksum != kNoChecksum && footer->checksum != kCrc32c &&
		footer->checksum != kXxh3) {
		return Status::NotSupported(what, "its checksums, of kind " +
							  std::to_string(footer->checksum) +
							  ", are not CRC-32C or XXH3");
	}
	if (footer->format_version < 6) {
		status = take_handles(what, Slice(bytes + 1, kHandlesBytes), footer);
	} else {
		status = take_extended(what, bytes, footer);
		bool is_there = false;
		if (status.ok())
			status = find_block(fd, *footer, kIndexName, &is_there, &footer->index);
		if (status.ok() && !is_there)
			status = Status::Corruption(what, "its metaindex names no index");
	}
	if (!status.ok())
		return status;
	if (!is_before(footer->metaindex, footer->blocks_end) ||
		!is_before(footer->index, footer->blocks_end)) {
		return Status::Corruption(what, "the blocks that it names are not inside the file");
	}
	return Status::OK();
}

Status find_dictionary(int fd, const Footer &footer, bool *has_dictionary)
{
	Handle handle;
	return find_block(fd, footer, kDictionaryName, has_dictionary, &handle);
}

Status read_range_deletions(
	int fd, const Footer &footer, size_t max_bytes, std::vector<RangeDeletion> *deletions)
{
	Handle handle;
	Block block;
	bool is_there;
	Status status = find_block(fd, footer, kRangeDeletionsName, &is_there, &handle);
	if (!status.ok() || !is_there)
		return status;
	status = read_block(fd, footer, handle, max_bytes, &block);
	if (!status.ok())
		return status;
	if (!cut_restarts(&block.contents))
		return damaged(handle, "it does not end with restart points");
	std::string key;
	while (!block.contents.empty()) {
		Slice end;
		if (!take_entry(&block.contents, &key, &end) || key.size() < kTagBytes)
			return damaged(handle, "one of its entries is not a range deletion");
		const size_t size = key.size() - kTagBytes;
		const uint64_t tag = load64(key.data() + size);
		if (static_cast<uint8_t>(tag) != kRangeDeletion)
			return damaged(handle, "one of its entries is not a range deletion");
		deletions->push_back({key.substr(0, size), end.ToString(), tag >> 8});
	}
	return Status::OK();
}

/* Fills an index, block by block. */
class Index::Reader {
    public:
	Reader(int fd, const Footer &footer, IndexShape shape, size_t max_bytes, Index *index)
		: fd_(fd), footer_(footer), shape_(shape), max_bytes_(max_bytes), index_(index)
	{
	}

	/* Appends the entries of a block of the index. */
	Status add(const Handle &handle)
	{
		Block block;
		Status status = read_block(fd_, footer_, handle, max_bytes_, &block);
		if (!status.ok())
			return status;
		if (!cut_restarts(&block.contents))
			return damaged(handle, "it does not end with restart points");
		for (bool first = true; !block.contents.empty(); first = false) {
			uint32_t shared = 0;
			status = add_key(handle, first, &block.contents, &shared);
			if (!status.ok())
				return status;
			status = add_value(handle, shared, &block.contents);
			if (!status.ok())
				return status;
		}
		return Status::OK();
	}

    private:
	/* Takes an entry up to its value, and adds its key to keys_. */
	Status add_key(const Handle &handle, bool first, Slice *input, uint32_t *shared)
	{
		uint32_t unshared;
		value_bytes_ = 0;
		if (!take_varint32(input, shared) || !take_varint32(input, &unshared) ||
			(!shape_.delta && !take_varint32(input, &value_bytes_)) ||
			unshared > input->size()) {
			return damaged(handle, "an entry is cut off");
		}
		std::string &keys = index_->keys_;
		const size_t entries = index_->entries_.size();
		const size_t last = first ? keys.size() : index_->key_begin(entries - 1);
		if (*shared > keys.size() - last) {
			return damaged(handle, "a key shares more bytes than the previous key has");
		}
		const size_t size = size_t{*shared} + unshared;
		if (!shape_.user_keys && size < kTagBytes)
			return damaged(handle, "a key has no tag");
		if (sizeof(Index) + keys.size() + size + (entries + 1) * kEntryBytes > max_bytes_) {
			return too_large(handle, max_bytes_);
		}
		keys.append(keys, last, *shared);
		keys.append(input->data(), unshared);
		input->remove_prefix(unshared);
		return Status::OK();
	}

	/* Takes the value of an entry whose key is the last of keys_, and completes the entry. */
	Status add_value(const Handle &handle, uint32_t shared, Slice *input)
	{
		std::vector<Entry> &entries = index_->entries_;
		const uint64_t last_end =
			entries.empty() ? 0
					: entries.back().offset + entries.back().size + kTrailerBytes;
		const size_t before = input->size();
		Handle block;
		if (shape_.delta && shared > 0) {
			uint64_t zigzag;
			if (!take_varint64(input, &zigzag))
				return damaged(handle, "a value is cut off");
			block.offset = last_end;
			/* Negative differences wrap around as intended; other values that wrap are too large. */
			block.size = entries.back().size + ((zigzag >> 1) ^ (0 - (zigzag & 1)));
		} else if (!take_handle(input, &block)) {
			return damaged(handle, "a value is cut off");
		}
		if (shape_.first_keys && !skip_key(input))
			return damaged(handle, "the first key of a block is cut off");
		if (!shape_.delta && before - input->size() != value_bytes_) {
			return damaged(handle, "the size of a value is wrong");
		}
		if (block.offset < last_end || block.size > UINT32_MAX ||
			!is_before(block, footer_.blocks_end)) {
			return damaged(handle,
				"a block it names overlaps the previous block, or is outside the file");
		}
		entries.push_back({block.offset, static_cast<uint32_t>(block.size),
			static_cast<uint32_t>(index_->keys_.size())});
		if (entries.size() > 1 && !last_key_is_larger())
			return damaged(handle, "keys do not ascend");
		return Status::OK();
	}

	static bool skip_key(Slice *input)
	{
		uint32_t size;
		if (!take_varint32(input, &size) || size > input->size())
			return false;
		input->remove_prefix(size);
		return true;
	}

	bool last_key_is_larger() const
	{
		const size_t last = index_->entries_.size() - 1;
		const size_t tag_bytes = shape_.user_keys ? 0 : kTagBytes;
		const size_t begin = index_->key_begin(last);
		const char *key = index_->keys_.data() + begin;
		const size_t size = index_->keys_.size() - begin - tag_bytes;
		const uint64_t tag = shape_.user_keys ? 0 : load64(key + size);
		return index_->is_before_entry(last - 1, Slice(key, size), tag);
	}

	int fd_;
	const Footer &footer_;
	IndexShape shape_;
	size_t max_bytes_;
	Index *index_;
	/* The length of the entry's value; 0 with delta, where entries do not store it. */
	uint32_t value_bytes_ = 0;
};

Status Index::read(
	int fd, const Footer &footer, IndexShape shape, size_t max_bytes, std::unique_ptr<Index> *index)
{
	/* key_end has 32 bits. */
	max_bytes = std::min<size_t>(max_bytes, UINT32_MAX);
	std::unique_ptr<Index> top(new Index(shape.user_keys));
	Status status = Reader(fd, footer, shape, max_bytes, top.get()).add(footer.index);
	if (!status.ok())
		return status;
	if (shape.partitioned) {
		std::unique_ptr<Index> bottom(new Index(shape.user_keys));
		Reader reader(fd, footer, shape, max_bytes, bottom.get());
		for (const Entry &partition : top->entries_) {
			status = reader.add({partition.offset, partition.size});
			if (!status.ok())
				return status;
		}
		top = std::move(bottom);
	}
	top->keys_.shrink_to_fit();
	top->entries_.shrink_to_fit();
	top->prefixes_.build(top->entries_.size(), [&](size_t entry) { return top->key_of(entry); });
	*index = std::move(top);
	return Status::OK();
}

size_t Index::key_begin(size_t entry) const
{
	return entry == 0 ? 0 : entries_[entry - 1].key_end;
}

Slice Index::key_of(size_t entry) const
{
	const size_t begin = key_begin(entry);
	const size_t size = entries_[entry].key_end - begin;
	return Slice(keys_.data() + begin, user_keys_ ? size : size - kTagBytes);
}

/* Whether the key of an entry precedes the user key and tag; user keys ascend, tags descend. */
bool Index::is_before_entry(size_t entry, const Slice &user_key, uint64_t tag) const
{
	const Slice key = key_of(entry);
	const int order = key.compare(user_key);
	if (order != 0 || user_keys_)
		return order < 0;
	return load64(key.data() + key.size()) > tag;
}

size_t Index::find(const Slice &user_key, uint64_t tag) const
{
	auto [low, high] = prefixes_.narrow(user_key);
	while (low < high) {
		const size_t middle = low + (high - low) / 2;
		if (is_before_entry(middle, user_key, tag)) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

bool Index::seek(const Slice &user_key, uint64_t newest_tag, Handle *block) const
{
	const size_t found = find(user_key, newest_tag);
	if (found == entries_.size())
		return false;
	*block = {entries_[found].offset, entries_[found].size};
	return true;
}

size_t Index::entry_of(const Handle &block) const
{
	const auto found = std::lower_bound(entries_.begin(), entries_.end(), block.offset,
		[](const Entry &entry, uint64_t offset) { return entry.offset < offset; });
	return static_cast<size_t>(found - entries_.begin());
}

uint64_t Index::data_end() const
{
	return entries_.empty() ? 0 : entries_.back().offset + entries_.back().size + kTrailerBytes;
}

bool Index::next(Handle *block) const
{
	const size_t entry = entry_of(*block) + 1;
	if (entry >= entries_.size())
		return false;
	*block = {entries_[entry].offset, entries_[entry].size};
	return true;
}

bool Index::goes_on(const Slice &user_key, const Handle &block) const
{
	/* Keys without tags occur only where no two blocks have versions of one key. */
	return !user_keys_ && key_of(entry_of(block)) == user_key;
}

bool Index::scan(
	const Slice &first, const Slice *last, uint64_t ahead_bytes, Run *run, Slice *end) const
{
	size_t entry = find(first, UINT64_MAX);
	if (entry == entries_.size())
		return false;
	const auto end_of = [&](size_t of) {
		return entries_[of].offset + entries_[of].size + kTrailerBytes;
	};
	const uint64_t enough = end_of(entry) + ahead_bytes;
	run->offset = entries_[entry].offset;
	while (entry + 1 < entries_.size() && end_of(entry) < enough &&
		(!last || is_before_entry(entry, *last, UINT64_MAX))) {
		entry++;
	}
	run->size = end_of(entry) - run->offset;
	*end = key_of(entry);
	return true;
}

size_t Index::memory_bytes() const
{
	return sizeof(*this) + keys_.capacity() + entries_.capacity() * kEntryBytes;
}

} // namespace bpf_of::sst
