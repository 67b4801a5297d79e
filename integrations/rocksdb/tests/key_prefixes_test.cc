/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Compares the range that prefixes give with a search of whole keys: keys of few different bytes, and
 * equal beginnings. */
#include "key_prefixes.h"

#include "check.h"

#include <string>

using bpf_of::KeyPrefixes;

namespace {

std::string some_key(Random &random, const std::string &common)
{
	std::string key = common.substr(0, random.below(20) ? common.size() : random.below(common.size() + 1));

	for (uint64_t left = random.below(14); left > 0; left--)
		key += static_cast<char>(random.below(3) * 0x7f);
	return key;
}

std::string padded(const std::string &key, size_t shared)
{
	std::string padded = key;

	padded.resize(shared + 8);
	return padded;
}

void check_round(Random &random)
{
	const std::string common(random.below(12), 'k');
	std::vector<std::string> keys;
	KeyPrefixes prefixes;

	for (uint64_t left = random.below(60); left > 0; left--)
		keys.push_back(some_key(random, common));
	std::sort(keys.begin(), keys.end());
	prefixes.build(keys.size(), [&](size_t number) { return rocksdb::Slice(keys[number]); });
	const size_t shared =
		keys.empty() ? 0 : rocksdb::Slice(keys.front()).difference_offset(keys.back());

	for (int i = 0; i < 200; i++) {
		const std::string wanted =
			keys.empty() || random.below(2) ? some_key(random, common) : keys[random.below(keys.size())];
		const size_t expected = std::lower_bound(keys.begin(), keys.end(), wanted) - keys.begin();
		const auto [low, high] = prefixes.narrow(wanted);

		CHECK(low <= expected && expected <= high && high <= keys.size(),
			"%zu is not from %zu to %zu", expected, low, high);
		/* Keys in the range have the same eight bytes after the common prefix; others need no
		 * search. */
		for (size_t number = low; number < high; number++)
			CHECK(padded(keys[number], shared) == padded(wanted, shared), "%zu is searched", number);
	}
}

} /* namespace */

int main()
{
	Random random(5);

	for (int round = 0; round < 2000; round++)
		check_round(random);
	return 0;
}
