/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The first bytes of sorted keys in one array, so that a search touches few cache lines. */
#ifndef BPFOF_ROCKSDB_KEY_PREFIXES_H
#define BPFOF_ROCKSDB_KEY_PREFIXES_H

#include <rocksdb/slice.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace bpf_of {

class KeyPrefixes {
    public:
	/* Builds the prefixes of `count` keys in ascending bytewise order; `key_of` returns a key by
	 * its number. */
	template <typename KeyOf> void build(size_t count, KeyOf key_of)
	{
		static_assert(std::is_same_v<decltype(key_of(count)), rocksdb::Slice>, "not of a copy");
		prefixes_.clear();
		common_.clear();
		if (count == 0)
			return;
		const rocksdb::Slice first = key_of(0), last = key_of(count - 1);

		common_.assign(first.data(), first.difference_offset(last));
		prefixes_.reserve(count);
		for (size_t i = 0; i < count; i++)
			prefixes_.push_back(prefix_of(key_of(i)));
	}

	/* The first key that is not before `key` is in this range, or directly after it. */
	std::pair<size_t, size_t> narrow(const rocksdb::Slice &key) const
	{
		const size_t shared = std::min(key.size(), common_.size());
		const int order = std::memcmp(key.data(), common_.data(), shared);

		if (order > 0)
			return {prefixes_.size(), prefixes_.size()};
		if (order < 0 || key.size() < common_.size())
			return {0, 0};
		const uint64_t wanted = prefix_of(key);
		const auto low = prefixes_.begin() + not_below(wanted);
		const auto high = low == prefixes_.end() || *low != wanted
					  ? low
					  : std::upper_bound(low, prefixes_.end(), wanted);

		return {low - prefixes_.begin(), high - prefixes_.begin()};
	}

	/* Bytes for each key. */
	static constexpr size_t BYTES = sizeof(uint64_t);

    private:
	/* The number of the first prefix that is not below `wanted`. Without branches, of which a half would be
	 * predicted wrongly. */
	size_t not_below(uint64_t wanted) const
	{
		const uint64_t *from = prefixes_.data();
		size_t left = prefixes_.size();

		for (size_t half; left > 1; left -= half) {
			half = left / 2;
			/* Both places that may be compared next. */
			__builtin_prefetch(from + half / 2);
			__builtin_prefetch(from + half + half / 2);
			from += from[half - 1] < wanted ? half : 0;
		}
		return from - prefixes_.data() + (left == 1 && *from < wanted);
	}

	/* The eight bytes after the common prefix, as a number that compares as they do. */
	uint64_t prefix_of(const rocksdb::Slice &key) const
	{
		const size_t size = std::min(key.size() - common_.size(), BYTES);
		uint64_t bytes = 0;

		std::memcpy(&bytes, key.data() + common_.size(), size);
		return __builtin_bswap64(bytes);
	}

	/* The common prefix of all keys. */
	std::string common_;
	std::vector<uint64_t> prefixes_;
};

} /* namespace bpf_of */

#endif
