/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Keys with one writer each, which counts their versions. A read that began when version b was
 * complete, and ended before version a was begun, must see one of b to a - 1, and no reader sees a
 * key go back.
 */
#ifndef BPFOF_ROCKSDB_TESTS_VERSIONS_H
#define BPFOF_ROCKSDB_TESTS_VERSIONS_H

#include "check.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

/* Each so many-th version of a key is that there is none. */
constexpr uint64_t DELETED_EVERY = 7;

inline bool is_deletion(uint64_t version)
{
	return version % DELETED_EVERY == 0;
}

/* What is written for a version that is none. Some are longer than what a chain answers with. */
inline std::string value_of(const std::string &key, uint64_t version)
{
	const size_t padding = version % 101 == 0 ? 5000 : version % 80;

	return std::to_string(version) + " of " + key + std::string(padding, '.');
}

class Versions {
    public:
	explicit Versions(uint64_t keys) : begun_(keys), complete_(keys) {}

	/* The next version of a key, which is under way from now on. For the key's writer. */
	uint64_t begin(uint64_t number) { return ++begun_[number]; }

	/* The next one that is a deletion; those before it are never written. */
	uint64_t begin_deletion(uint64_t number)
	{
		const uint64_t version = (begun_[number] / DELETED_EVERY + 1) * DELETED_EVERY;

		begun_[number] = version;
		return version;
	}

	void complete(uint64_t number, uint64_t version) { complete_[number] = version; }

	/* What a read that begins now sees at least. */
	uint64_t least(uint64_t number) const { return complete_[number]; }
	/* What a read that ends now can have seen at most. */
	uint64_t most(uint64_t number) const { return begun_[number]; }

    private:
	std::vector<std::atomic<uint64_t>> begun_;
	std::vector<std::atomic<uint64_t>> complete_;
};

/* What was read of a key is one of its versions from `least` to `most`. `seen` is what this reader has
 * seen of the key at least, before and after. */
inline void check_version(const std::string &key, const rocksdb::Status &status,
	const std::string &value, uint64_t least, uint64_t most, uint64_t *seen)
{
	least = std::max(least, *seen);
	if (status.ok()) {
		const uint64_t version = std::strtoull(value.c_str(), nullptr, 10);

		CHECK(version >= least && version <= most && !is_deletion(version),
			"%s: version %llu, which is not from %llu to %llu", key.c_str(),
			static_cast<unsigned long long>(version),
			static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
		CHECK(value == value_of(key, version), "%s: the value is '%s'", key.c_str(),
			value.c_str());
		*seen = version;
		return;
	}
	CHECK(status.IsNotFound(), "%s: %s", key.c_str(), status.ToString().c_str());
	const uint64_t deletion = (least + DELETED_EVERY - 1) / DELETED_EVERY * DELETED_EVERY;

	CHECK(least == 0 || deletion <= most, "%s: not found, of versions from %llu to %llu",
		key.c_str(), static_cast<unsigned long long>(least),
		static_cast<unsigned long long>(most));
	*seen = least == 0 ? 0 : deletion;
}

#endif
