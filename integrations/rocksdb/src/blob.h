/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Values in RocksDB's blob files (enable_blob_files). A record there is
 *
 *     uint64     size of the key
 *     uint64     size of the value, as it is in the file
 *     uint64     0: expiration, which only another kind of database has
 *     uint32     masked CRC-32C of these
 *     uint32     masked CRC-32C of key and value
 *                key, value
 *
 * all little-endian, and a table has in place of the value where that is.
 */
#ifndef BPFOF_ROCKSDB_BLOB_H
#define BPFOF_ROCKSDB_BLOB_H

#include "sst.h"
#include "table_file.h"

namespace bpf_of {

/* Longer values are read by RocksDB: what takes time with them is no round trip. */
constexpr uint64_t BLOB_BYTES_MAX = 1 << 20;
/* Those of one call together. */
constexpr uint64_t CALL_BLOB_BYTES_MAX = 16 << 20;
/* What one may have when it is decompressed. */
constexpr size_t BLOB_CONTENTS_MAX = 64 << 20;

/* Blob files by number. */
using BlobFiles = std::unordered_map<uint64_t, std::shared_ptr<const TableFile>>;

/* Where a value is. */
struct BlobPlace {
	uint64_t file_number;
	/* Of the value, behind header and key. */
	uint64_t offset;
	/* As it is in the file. */
	uint64_t size;
	/* As in the trailers of blocks. */
	uint8_t compression;

	/* Takes it from what a table has in place of the value. False if it is none without expiration. */
	bool parse(rocksdb::Slice index);
	/* The record of the value of a key. False if it cannot be in such a file, or is too long. */
	bool record(const rocksdb::Slice &key, const std::shared_ptr<const TableFile> &file, FileRange *range) const;
};

/*
 * Takes the value from a record that was read, after the checks that RocksDB makes: both checksums, the key and
 * the size. Corruption says what is wrong, NotSupported if it is compressed by anything but Snappy, LZ4 or
 * Zstandard.
 */
rocksdb::Status take_blob(const BlobPlace &place, const rocksdb::Slice &key, std::unique_ptr<char[]> record,
	sst::Block *blob);

/* Reads of blobs that leave together. */
class BlobReads {
    public:
	/* Adds the read of the value of a key, whose place is `index`; `of` is a number of the caller's. False
	 * if that leads to no blob of these files, or to one that is too long, or compressed by what take_blob() does
	 * not know. */
	bool add(const rocksdb::Slice &index, const rocksdb::Slice &key, const BlobFiles &files, size_t of);
	/* Reads all, in one round trip, as TableFiles::read(). */
	Fetched fetch(const TableFiles &files, int64_t timeout_us);

	size_t count() const { return reads_.size(); }
	size_t of(size_t read) const { return reads_[read].of; }
	/* What was read, once, as take_blob(). */
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
