/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Shared by the tests: a check that ends the program, and reproducible random numbers. */
#ifndef BPFOF_ROCKSDB_TESTS_CHECK_H
#define BPFOF_ROCKSDB_TESTS_CHECK_H

#include <rocksdb/status.h>

#include <cstdint>

#include "../../check.h"

inline void check_ok(const rocksdb::Status &status, const char *what)
{
	CHECK(status.ok(), "%s: %s", what, status.ToString().c_str());
}

/* SplitMix64. */
class Random {
    public:
	explicit Random(uint64_t seed) : state_(seed) {}

	uint64_t next()
	{
		uint64_t mixed = state_ += 0x9e3779b97f4a7c15;

		mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
		mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
		return mixed ^ mixed >> 31;
	}
	uint64_t below(uint64_t limit) { return next() % limit; }

    private:
	uint64_t state_;
};

#endif
