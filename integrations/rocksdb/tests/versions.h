/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Keys with one writer each, which counts their versions. A read that began when version b was
 * complete, and ended before version a was begun, must see one of b to a - 1, and no reader may see a
 * key go back.
 */
#ifndef BPFOF_ROCKSDB_TESTS_VERSIONS_H
#define BPFOF_ROCKSDB_TESTS_VERSIONS_H

#include "check.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

/* Every DELETED_EVERY-th version of a key is a deletion. */
constexpr uint64_t DELETED_EVERY = 7;

inline bool is_deletion(uint64_t version)
{
	return version % DELETED_EVERY == 0;
}

/* The value of a version that is not a deletion. Some values are longer than an answer of a chain. */
inline std::string value_of(const std::string &key, uint64_t version)
{
	const size_t padding = version % 101 == 0 ? 5000 : version % 80;

	return std::to_string(version) + " of " + key + std::string(padding, '.');
}

class Versions {
    public:
	explicit Versions(uint64_t keys) : begun_(keys), complete_(keys) {}

	/* Begins the next version of a key, and returns it. For the key's writer. */
	uint64_t begin(uint64_t number) { return ++begun_[number]; }

	/* Begins the next version that is a deletion; versions before it are never written. */
	uint64_t begin_deletion(uint64_t number)
	{
		const uint64_t version = (begun_[number] / DELETED_EVERY + 1) * DELETED_EVERY;

		begun_[number] = version;
		return version;
	}

	void complete(uint64_t number, uint64_t version) { complete_[number] = version; }

	/* The oldest version that a read which begins now may see. */
	uint64_t least(uint64_t number) const { return complete_[number]; }
	/* The newest version that a read which ends now may have seen. */
	uint64_t most(uint64_t number) const { return begun_[number]; }

    private:
	std::vector<std::atomic<uint64_t>> begun_;
	std::vector<std::atomic<uint64_t>> complete_;
};

/* Checks that the result of reading a key is one of its versions from `least` to `most`. `seen` is the
 * newest version that this reader has seen of the key; it is updated. */
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
