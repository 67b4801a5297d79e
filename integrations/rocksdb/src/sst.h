/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Where the data blocks of a RocksDB table are: its footer and its index, read from the file itself.
 * RocksDB keeps an index of its own, but has no public call that names the block of a key.
 *
 * Tables are BlockBasedTable files of format_version 2 to 7 with the bytewise comparator and without
 * user-defined timestamps; functions/sst_get.h describes their blocks. A file is not trusted: whatever
 * it holds, nothing outside of a buffer is read, and the limit of Index::read holds. Statuses say what
 * was read, where in the file and what is wrong; callers know the file's name. A table that is refused
 * can still be read by RocksDB itself, which has the last word on whether it is damaged.
 */
#ifndef BPFOF_ROCKSDB_SST_H
#define BPFOF_ROCKSDB_SST_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "key_prefixes.h"
#include "range_deletions.h"
#include "rocksdb/slice.h"
#include "rocksdb/status.h"

namespace bpf_of::sst {

/*
 * A block of a table, in bytes from the beginning of the file. The five bytes of trailer (kind of
 * compression, checksum) that follow it do not count as its size.
 */
struct Handle {
	uint64_t offset;
	uint64_t size;
};

/*
 * Consecutive data blocks, in bytes of the file: up to the end of the last one's trailer.
 */
struct Run {
	uint64_t offset;
	uint64_t size;
};

/* The relevant fields of the last 53 bytes of a table, and of the block they point to. */
struct Footer {
	/* 2 to 7. */
	uint32_t format_version;
	/* Of all blocks: 0 none, 1 CRC-32C, 4 XXH3. */
	uint8_t checksum;
	/*
	 * Since format_version 6: mixed into all checksums of this table, with the offset of the block,
	 * so that a block at another place or of another table fails the check. 0 before.
	 */
	uint32_t checksum_base;
	Handle metaindex;
	/* The index, or its upper level if it is partitioned. */
	Handle index;
	/* Where the footer begins: no block reaches beyond. */
	uint64_t blocks_end;
};

/*
 * Reads the footer of a table of file_size bytes, and since format_version 6, where the footer does not
 * locate the index, the metaindex. NotSupported if the magic number, the version or the kind of
 * checksum is none of those above, or the footer announces features that are not known here; Corruption
 * if the file ends early, a checksum is wrong or a block would not be inside the file; IOError if the
 * file cannot be read.
 */
rocksdb::Status read_footer(int fd, uint64_t file_size, Footer *footer);

/*
 * Reads the range deletions of a table, in the order of the file; none if it has no block of them.
 * MemoryLimit if that block has more than max_bytes; Corruption; IOError if it cannot be read.
 */
rocksdb::Status read_range_deletions(
	int fd, const Footer &footer, size_t max_bytes, std::vector<RangeDeletion> *deletions);

/* Whether data blocks are compressed with a dictionary, which is a block of the table. Fails as
 * read_footer(). */
rocksdb::Status find_dictionary(int fd, const Footer &footer, bool *has_dictionary);

/* The contents of a block, or other data compressed in the same way, in memory of their own. */
struct Block {
	std::unique_ptr<char[]> memory;
	rocksdb::Slice contents;
};

/*
 * Decompresses contents by the kind of compression that trailers name, 0 for none. NotSupported for
 * kinds other than Snappy, LZ4 and Zstandard; MemoryLimit if the result would have more than max_bytes;
 * Corruption. Messages name `handle`.
 */
rocksdb::Status decompress(const Handle &handle, uint8_t compression, size_t max_bytes, Block *block);

/* Whether decompress() knows that kind. */
bool can_decompress(uint8_t compression);

/* CRC-32C as tables and blob files store it, masked because data may itself contain such sums. */
uint32_t masked_crc32c(const char *bytes, size_t count);

/* Takes a varint64 from the front of input. False if there is none. */
bool take_varint64(rocksdb::Slice *input, uint64_t *value);

/*
 * How an index is encoded; only the table's properties say so.
 */
struct IndexShape {
	/* index_key_is_user_key: keys without sequence number and type. */
	bool user_keys;
	/* index_value_is_delta_encoded: values are differences. */
	bool delta;
	/* rocksdb.block.based.table.index.type is 2: two levels. */
	bool partitioned;
	/* The type is 3: the block's first key follows the place of the block. */
	bool first_keys = false;
};

/*
 * Where all data blocks of a table are, in memory: the keys of the index, 24 bytes for each of them,
 * and nothing else. It does not change after read(), so any number of threads may use it at once.
 */
class Index {
    public:
	/*
	 * Reads the whole index, both levels if it is partitioned; all checksums are verified.
	 * MemoryLimit if it, or a single block of it, would take more than max_bytes (or 4 GiB); up to
	 * five times as much is in use meanwhile. NotSupported if a block is compressed with anything
	 * but Snappy, LZ4 or Zstandard; Corruption if the file does not hold such an index: keys and
	 * blocks must be in ascending order, and inside the file; IOError if it cannot be read.
	 */
	static rocksdb::Status read(int fd, const Footer &footer, IndexShape shape, size_t max_bytes,
		std::unique_ptr<Index> *index);

	/*
	 * The only data block that can hold the newest version of user_key whose tag (sequence number
	 * << 8 | type) is not larger than newest_tag: the first block whose index entry does not
	 * precede user_key and newest_tag. User keys ascend and tags descend in a table; entries
	 * without tags match every tag. False if the key is after all blocks. Does not allocate.
	 */
	bool seek(const rocksdb::Slice &user_key, uint64_t newest_tag, Handle *block) const;

	/* Where the last data block ends, with its trailer; filters and index follow. */
	uint64_t data_end() const;

	/* Advances from one data block of this index to the next. False if it is the last. */
	bool next(Handle *block) const;

	/* Whether the versions of user_key in a data block may continue in the next one. */
	bool goes_on(const rocksdb::Slice &user_key, const Handle &block) const;

	/*
	 * The data blocks that a scan passes, starting at `first`: up to the one that would hold
	 * `last`, if that is not null, and no more once they have `ahead_bytes` after the first block.
	 * No key in them is after `end`, which points into the index. False if all keys are before
	 * `first`. Does not allocate.
	 */
	bool scan(const rocksdb::Slice &first, const rocksdb::Slice *last, uint64_t ahead_bytes,
		Run *run, rocksdb::Slice *end) const;

	/* Memory used, in bytes. */
	size_t memory_bytes() const;

    private:
	struct Entry {
		uint64_t offset;
		uint32_t size;
		/* Where the key ends in keys_; it begins where the previous entry's key ends. */
		uint32_t key_end;
	};

	static constexpr size_t kEntryBytes = sizeof(Entry) + KeyPrefixes::BYTES;

	class Reader;

	explicit Index(bool user_keys) : user_keys_(user_keys) {}

	size_t key_begin(size_t entry) const;
	rocksdb::Slice key_of(size_t entry) const;
	/* The entry of a data block. */
	size_t entry_of(const Handle &block) const;
	/* The first entry that does not precede `user_key` and `tag`. */
	size_t find(const rocksdb::Slice &user_key, uint64_t tag) const;
	bool is_before_entry(size_t entry, const rocksdb::Slice &user_key, uint64_t tag) const;

	bool user_keys_;
	/* As in the index, concatenated: with tags or without. */
	std::string keys_;
	std::vector<Entry> entries_;
	/* Prefixes of the user keys. */
	KeyPrefixes prefixes_;
};

} // namespace bpf_of::sst

#endif
