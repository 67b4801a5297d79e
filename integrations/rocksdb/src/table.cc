/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "table.h"

#include <rocksdb/table.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace bpf_of {

/* Range deletions may take so many times the memory of a plain list of them. */
constexpr size_t OVERLAP_MAX = 16;

namespace {

/* The type of the index, a property of 4 bytes, little-endian; -1 if there is none. */
int64_t index_type(const rocksdb::TableProperties &properties)
{
	const auto &all = properties.user_collected_properties;
	const auto found = all.find(rocksdb::BlockBasedTablePropertyNames::kIndexType);

	if (found == all.end() || found->second.size() != 4)
		return -1;
	int64_t type = 0;

	for (int byte = 3; byte >= 0; byte--)
		type = type << 8 | static_cast<uint8_t>(found->second[byte]);
	return type;
}

/* Whether the filter has whole keys, not only prefixes. */
bool has_whole_keys(const rocksdb::TableProperties &properties)
{
	const auto &all = properties.user_collected_properties;
	const auto found = all.find(rocksdb::BlockBasedTablePropertyNames::kWholeKeyFiltering);

	return found != all.end() && found->second == "1";
}

/* Whether blocks may need a dictionary, according to the compression options, which are a text
 * property. Before format_version 7 tables may have a dictionary although nothing is compressed with
 * it. */
bool may_need_dictionary(const rocksdb::TableProperties &properties)
{
	constexpr char NAME[] = "max_dict_bytes=";
	const std::string &options = properties.compression_options;
	const size_t found = options.find(NAME);

	return found != std::string::npos && options[found + sizeof(NAME) - 1] != '0' &&
	       properties.compression_name != "NoCompression" && properties.compression_name != "Snappy";
}

/*
 * Whether blocks may be compressed by the program's own compressor. Since format_version 7 the name
 * lists the kinds that occur, two hexadecimal digits each, between two semicolons.
 */
bool has_own_compression(const std::string &name)
{
	const size_t first = name.find(';');
	const size_t second = first == std::string::npos ? first : name.find(';', first + 1);

	if (second == std::string::npos)
		return false;
	for (size_t at = first + 1; at + 1 < second; at += 2) {
		if (name[at] >= '8')
			return true;
	}
	return false;
}

/* Whether blocks are compressed by an algorithm that the storage function does not know. The name does
 * not say whether the index is compressed, too. */
bool is_unknown_compression(const std::string &name)
{
	const size_t first = name.find(';');
	const size_t second = first == std::string::npos ? first : name.find(';', first + 1);

	if (second == std::string::npos)
		return name == "Zlib" || name == "BZip2" || name == "Xpress";
	for (size_t at = first + 1; at + 1 < second; at += 2) {
		const std::string kind = name.substr(at, 2);

		if (kind == "02" || kind == "03" || kind == "06")
			return true;
	}
	return false;
}

/* Whether decompressed blocks, on average, exceed the room that the storage function has for them, by
 * their values alone: block sizes cannot be told from the sizes of keys, which share prefixes. */
bool has_large_compressed_blocks(const rocksdb::TableProperties &properties)
{
	const uint64_t bytes = properties.raw_value_size;

	return properties.data_size < bytes && properties.num_data_blocks > 0 &&
	       bytes / properties.num_data_blocks > SST_DECOMPRESSED_BYTES_MAX;
}

/* Whether data blocks store values apart from keys, which RocksDB before 11 does not do. */
template <typename Properties>
auto has_values_apart(const Properties &properties, int)
	-> decltype(properties.separate_key_value_in_data_block != 0)
{
	return properties.separate_key_value_in_data_block != 0;
}

template <typename Properties>
bool has_values_apart(const Properties &, long)
{
	return false;
}

/* A file that is open for reading, or -1. */
struct Descriptor {
	const int fd;

	explicit Descriptor(const std::string &path) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
	~Descriptor()
	{
		if (fd >= 0)
			::close(fd);
	}
	Descriptor(const Descriptor &) = delete;
	Descriptor &operator=(const Descriptor &) = delete;
};

/* A reason to refuse the table by its properties alone; "" if there is none. */
std::string refuse(const rocksdb::TableProperties &properties)
{
	using Options = rocksdb::BlockBasedTableOptions;
	const int64_t type = index_type(properties);

	if (has_own_compression(properties.compression_name))
		return "it is compressed by the program's own " + properties.compression_name;
	if (is_unknown_compression(properties.compression_name))
		return "it is compressed by " + properties.compression_name + ", which storage functions do not support";
	if (has_large_compressed_blocks(properties))
		return "its blocks have more than " + std::to_string(SST_DECOMPRESSED_BYTES_MAX >> 10) +
		       " KiB each when they are decompressed";
	if (has_values_apart(properties, 0))
		return "its data blocks store values separately from keys";
	if (type != Options::kBinarySearch && type != Options::kHashSearch &&
		type != Options::kTwoLevelIndexSearch && type != Options::kBinarySearchWithFirstKey)
		return "unsupported index type " + std::to_string(type);
	return "";
}

} /* namespace */

rocksdb::Status Table::open(TableFiles &files, std::shared_ptr<IndexMemory> memory,
	const std::string &path, const rocksdb::TableProperties *properties, Access access,
	std::shared_ptr<const Table> *table)
{
	std::shared_ptr<Table> opened(new Table(std::move(memory)));
	rocksdb::Status status = files.open(path, &opened->file_);

	if (!status.ok())
		return status;
	if (properties) {
		opened->refusal_ = refuse(*properties);
		/* Read also for a refused table: its index says which blocks RocksDB will need. */
		status = opened->read(*properties);
	} else {
		status = rocksdb::Status::NotSupported("it has no properties");
	}
	if (status.IsPathNotFound() && access != Access::kSecondary)
		return status;
	if (status.IsPathNotFound())
		status = rocksdb::Status::Incomplete("the primary deleted the table before it was opened");
	opened->is_unread_ = status.IsIOError();
	if (!status.ok() && opened->refusal_.empty())
		opened->refusal_ = status.ToString();
	if (!opened->refusal_.empty())
		opened->refusal_ = path + ": " + opened->refusal_;
	*table = std::move(opened);
	return rocksdb::Status::OK();
}

rocksdb::Status Table::read(const rocksdb::TableProperties &properties)
{
	const Descriptor open(file_->path());
	sst::Footer footer;

	if (open.fd < 0 && errno == ENOENT)
		return rocksdb::Status::PathNotFound("opening " + file_->path(), std::strerror(errno));
	if (open.fd < 0)
		return rocksdb::Status::IOError("opening it", std::strerror(errno));
	rocksdb::Status status = sst::read_footer(open.fd, file_->size_bytes(), &footer);

	if (!status.ok())
		return status;
	bool has_dictionary = false;

	if (may_need_dictionary(properties))
		status = sst::find_dictionary(open.fd, footer, &has_dictionary);
	if (!status.ok())
		return status;
	if (has_dictionary && refusal_.empty())
		refusal_ = "it is compressed with a dictionary";
	filters_keys_ = properties.filter_size > 0 && has_whole_keys(properties);
	sst::IndexShape shape;

	shape.user_keys = properties.index_key_is_user_key != 0;
	shape.delta = properties.index_value_is_delta_encoded != 0;
	const int64_t type = index_type(properties);

	shape.partitioned = type == rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
	shape.first_keys = type == rocksdb::BlockBasedTableOptions::kBinarySearchWithFirstKey;
	top_.offset = footer.index.offset;
	top_.size = footer.index.size;
	top_.levels = shape.partitioned ? 2 : 1;
	top_.flags = (shape.user_keys ? SST_INDEX_USER_KEYS : 0) | (shape.delta ? SST_INDEX_DELTA : 0);
	top_.checksum = footer.checksum;
	top_.checksum_base = footer.checksum_base;

	std::unique_ptr<sst::Index> index;

	status = sst::Index::read(open.fd, footer, shape, memory_->left(), &index);
	/* Other families may have taken the memory since left() was called. */
	if (status.ok() && !memory_->take(index->memory_bytes()))
		status = rocksdb::Status::MemoryLimit("the indices of other tables use all memory for indices");
	if (status.ok())
		index_ = std::move(index);
	/* The storage function cannot read indices with first keys. */
	else if (status.IsMemoryLimit() && footer.index.size <= BLOCK_BYTES_MAX && !shape.first_keys)
		status = rocksdb::Status::OK();
	/* Read in any case: before 5.15 RocksDB did not count range deletions. */
	if (status.ok())
		status = read_deletions(open.fd, footer);
	return status;
}

rocksdb::Status Table::read_deletions(int fd, const sst::Footer &footer)
{
	std::vector<RangeDeletion> deletions;
	const rocksdb::Status status = sst::read_range_deletions(fd, footer, memory_->left(), &deletions);

	if (!status.ok() || deletions.empty())
		return status;
	size_t bytes = sizeof(RangeDeletions);

	for (const RangeDeletion &deletion : deletions)
		bytes += sizeof(deletion) + deletion.first.size() + deletion.end.size();
	std::unique_ptr<RangeDeletions> made =
		RangeDeletions::make(std::move(deletions), std::min(memory_->left(), OVERLAP_MAX * bytes));

	if (!made || !memory_->take(made->memory_bytes()))
		return rocksdb::Status::MemoryLimit("its range deletions need more memory than is available for them");
	deletions_ = std::move(made);
	return status;
}

Table::~Table()
{
	if (index_)
		memory_->give_back(index_->memory_bytes());
	if (deletions_)
		memory_->give_back(deletions_->memory_bytes());
}

bool Table::seek(const rocksdb::Slice &key, uint64_t newest_tag, struct sst_table *start) const
{
	*start = top_;
	if (!index_)
		return true;
	sst::Handle block;

	if (!find(key, newest_tag, &block))
		return false;
	start->offset = block.offset;
	start->size = block.size;
	start->levels = 0;
	return true;
}

bool Table::seek_older(const rocksdb::Slice &key, struct sst_table *start) const
{
	sst::Handle block = {start->offset, start->size};

	if (!find_older(key, &block))
		return false;
	start->offset = block.offset;
	start->size = block.size;
	return true;
}

bool Table::is_untouched(
	const rocksdb::Slice &key, uint64_t newest_tag, uint64_t offset, size_t size) const
{
	const auto covers = [&](const sst::Handle &block) {
		return offset <= block.offset && block.offset + block.size + SST_TRAILER_BYTES <= offset + size;
	};
	sst::Handle first, behind;

	if (!index_)
		return false;
	if (!index_->seek(key, newest_tag, &first))
		return true;
	behind = first;
	/* An aligned read of the next block may cover both. */
	if (covers(first))
		return !index_->next(&behind) || !covers(behind);
	/* Filter and index are read before all data, unless the index is partitioned. */
	return top_.levels == 1 && offset >= index_->data_end();
}

} /* namespace bpf_of */
