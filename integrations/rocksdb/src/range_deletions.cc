/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "range_deletions.h"

#include <algorithm>
#include <functional>
#include <map>

namespace bpf_of {

using rocksdb::Slice;

namespace {

struct Before {
	bool operator()(const Slice &a, const Slice &b) const { return a.compare(b) < 0; }
};

} /* namespace */

std::unique_ptr<RangeDeletions> RangeDeletions::make(std::vector<RangeDeletion> deletions, size_t max_bytes)
{
	std::unique_ptr<RangeDeletions> made(new RangeDeletions());
	std::vector<Slice> bounds;

	/* key_end and sequences_end have 32 bits. */
	max_bytes = std::min<size_t>(max_bytes, UINT32_MAX);
	deletions.erase(std::remove_if(deletions.begin(), deletions.end(),
				[](const RangeDeletion &deletion) { return deletion.first >= deletion.end; }),
		deletions.end());
	std::sort(deletions.begin(), deletions.end(),
		[](const RangeDeletion &a, const RangeDeletion &b) { return a.first < b.first; });
	/* The deletions do not move from here on. */
	for (const RangeDeletion &deletion : deletions) {
		bounds.push_back(deletion.first);
		bounds.push_back(deletion.end);
	}
	std::sort(bounds.begin(), bounds.end(), Before());
	bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
	std::multimap<Slice, uint64_t, Before> ends;
	/* How many deletions with each sequence number cover the bound. */
	std::map<uint64_t, size_t, std::greater<uint64_t>> active;
	auto next = deletions.begin();

	for (const Slice &bound : bounds) {
		for (; !ends.empty() && ends.begin()->first == bound; ends.erase(ends.begin())) {
			const auto ended = active.find(ends.begin()->second);

			if (--ended->second == 0)
				active.erase(ended);
		}
		for (; next != deletions.end() && bound == next->first; ++next) {
			ends.emplace(next->end, next->sequence);
			active[next->sequence]++;
		}
		if (made->memory_bytes() + bound.size() + sizeof(Fragment) + active.size() * sizeof(uint64_t) > max_bytes)
			return nullptr;
		made->add(bound, active);
	}
	made->keys_.shrink_to_fit();
	made->sequences_.shrink_to_fit();
	made->fragments_.shrink_to_fit();
	return made;
}

template <typename Active> void RangeDeletions::add(const Slice &key, const Active &active)
{
	const auto is_equal = [](uint64_t number, const auto &entry) { return number == entry.first; };

	/* The same numbers: the previous fragment continues. */
	if (!fragments_.empty() &&
		std::equal(numbers_begin(fragments_.size() - 1), sequences_.cend(), active.begin(), active.end(), is_equal))
		return;
	keys_.append(key.data(), key.size());
	for (const auto &[number, count] : active)
		sequences_.push_back(number);
	fragments_.push_back({static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(sequences_.size())});
}

std::vector<uint64_t>::const_iterator RangeDeletions::numbers_begin(size_t fragment) const
{
	return sequences_.begin() + (fragment == 0 ? 0 : fragments_[fragment - 1].sequences_end);
}

Slice RangeDeletions::key_of(size_t fragment) const
{
	const size_t begin = fragment == 0 ? 0 : fragments_[fragment - 1].key_end;

	return Slice(keys_.data() + begin, fragments_[fragment].key_end - begin);
}

std::optional<uint64_t> RangeDeletions::covering(const Slice &key, uint64_t newest) const
{
	size_t low = 0, high = fragments_.size();

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (key_of(middle).compare(key) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return std::nullopt;
	const size_t fragment = low - 1;
	const auto begin = numbers_begin(fragment);
	const auto end = sequences_.begin() + fragments_[fragment].sequences_end;
	const auto found = std::lower_bound(begin, end, newest, std::greater<uint64_t>());

	return found == end ? std::nullopt : std::optional<uint64_t>(*found);
}

size_t RangeDeletions::memory_bytes() const
{
	return sizeof(*this) + keys_.size() + sequences_.size() * sizeof(uint64_t) + fragments_.size() * sizeof(Fragment);
}

} /* namespace bpf_of */
