/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Values in RocksDB's blob files (enable_blob_files). A record there is
 *
 *     uint64     size of the key
 *     uint64     size of the value, as it is in the file
 * 0: expiration, which only RocksDB's separate BlobDB uses
 *     uint32     masked CRC-32C of these
 *     uint32     masked CRC-32C of key and value
 *                key, value
 *
 * all little-endian. In place of the value, the table has the value's place in the blob file.
 */
#ifndef BPFOF_ROCKSDB_BLOB_H
#define BPFOF_ROCKSDB_BLOB_H

#include "sst.h"
#include "table_file.h"

namespace bpf_of {

/* RocksDB reads longer values itself: round trips are not what takes the time there. */
constexpr uint64_t BLOB_BYTES_MAX = 1 << 20;
/* All values of one call together. */
constexpr uint64_t CALL_BLOB_BYTES_MAX = 16 << 20;
/* The limit for one value after decompression. */
constexpr size_t BLOB_CONTENTS_MAX = 64 << 20;

/* Blob files by number. */
using BlobFiles = std::unordered_map<uint64_t, std::shared_ptr<const TableFile>>;

/* Where a value is. */
struct BlobPlace {
	uint64_t file_number;
	/* Offset of the value itself, after header and key. */
	uint64_t offset;
	/* Size in the file. */
	uint64_t size;
	/* Kind of compression, as in the trailers of blocks. */
	uint8_t compression;

	/* Parses the bytes that a table has in place of the value. False unless they are a place
	 * without expiration. */
	bool parse(rocksdb::Slice index);
	/* The range of the record of a key's value. False if the file cannot hold it, or the value is
	 * too long. */
	bool record(const rocksdb::Slice &key, const std::shared_ptr<const TableFile> &file, FileRange *range) const;
};

/*
 * Takes the value from a record that was read, after the checks that RocksDB makes: both checksums, the
 * key and the size. Corruption names the failed check; NotSupported if the value is compressed by
 * anything but Snappy, LZ4 or Zstandard.
 */
rocksdb::Status take_blob(const BlobPlace &place, const rocksdb::Slice &key, std::unique_ptr<char[]> record,
	sst::Block *blob);

/* Reads of blobs that are sent together. */
class BlobReads {
    public:
	/* Adds the read of a key's value, whose place is `index`; `of` is a number of the caller's
	 * choice. False if the place is not in one of these files, or the value is too long or has a
	 * compression unknown to take_blob(). */
	bool add(const rocksdb::Slice &index, const rocksdb::Slice &key, const BlobFiles &files, size_t of);
	/* Reads all blobs in one round trip, as TableFiles::read(). */
	Fetched fetch(const TableFiles &files, int64_t timeout_us);

	size_t count() const { return reads_.size(); }
	size_t of(size_t read) const { return reads_[read].of; }
	/* Takes the value of one read, as take_blob(); only once for each. */
	rocksdb::Status take(size_t read, const rocksdb::Slice &key, sst::Block *blob)
	{
		return take_blob(reads_[read].place, key, std::move(reads_[read].record), blob);
	}

    private:
	struct Read {
		BlobPlace place;
		size_t of;
		std::unique_ptr<char[]> record;
	};

	std::vector<Read> reads_;
	std::vector<FileRange> ranges_;
	uint64_t bytes_ = 0;
};

} /* namespace bpf_of */

#endif
