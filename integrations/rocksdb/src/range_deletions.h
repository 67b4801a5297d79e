/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The range deletions of one table, in memory. A range deletion with sequence number s hides all
 * versions with smaller numbers of the keys from its first key up to, but without, its end; RocksDB
 * searches the range deletions of a table before its keys.
 */
#ifndef BPFOF_ROCKSDB_RANGE_DELETIONS_H
#define BPFOF_ROCKSDB_RANGE_DELETIONS_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rocksdb/slice.h"

namespace bpf_of {

/* As in the table: user keys, and a sequence number. */
struct RangeDeletion {
	std::string first;
	std::string end;
	uint64_t sequence;
};

class RangeDeletions {
    public:
	/* Null if the deletions, in any order, would take more than max_bytes (or 4 GiB). Where many
	 * deletions with different numbers overlap they take far more than in the table. */
	static std::unique_ptr<RangeDeletions> make(std::vector<RangeDeletion> deletions, size_t max_bytes);

	/* The largest sequence number of the deletions that cover a key, among the numbers up to
	 * `newest`. Does not allocate. */
	std::optional<uint64_t> covering(const rocksdb::Slice &key, uint64_t newest) const;

	/* Memory used, in bytes. */
	size_t memory_bytes() const;

    private:
	/* Keys that the same deletions cover: from its own key up to that of the next fragment. */
	struct Fragment {
		/* Where its key ends in keys_; it begins where the previous fragment's key ends. */
		uint32_t key_end;
		/* Likewise for its sequence numbers in sequences_. */
		uint32_t sequences_end;
	};

	RangeDeletions() = default;

	/* Appends a fragment that begins at a key, covered by the sequence numbers that are the keys of
	 * `active`. */
	template <typename Active> void add(const rocksdb::Slice &key, const Active &active);
	std::vector<uint64_t>::const_iterator numbers_begin(size_t fragment) const;
	rocksdb::Slice key_of(size_t fragment) const;

	std::string keys_;
	std::vector<uint64_t> sequences_;
	std::vector<Fragment> fragments_;
};

} /* namespace bpf_of */

#endif
