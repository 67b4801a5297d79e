/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads are left to RocksDB without a chain while most chains are declined, and only then. */
#include "declines.h"

#include "check.h"

namespace {

/* The number of 1600 reads that are left to RocksDB. */
int left_of(const bpf_of::Declines &declines)
{
	int left = 0;

	for (int i = 0; i < 1600; i++)
		left += declines.are_likely();
	return left;
}

void add(bpf_of::Declines &declines, int count, bool is_declined)
{
	for (int i = 0; i < count; i++)
		declines.add(is_declined);
}

} /* namespace */

int main()
{
	bpf_of::Declines declines;

	CHECK(left_of(declines) == 0, "at first");
	for (int i = 0; i < 1000; i++)
		declines.add(i % 3 == 0);
	CHECK(left_of(declines) == 0, "a third of the reads is wasted");
	add(declines, 10000, true);
	const int left = left_of(declines);

	CHECK(left > 1400 && left < 1580, "%d reads are left to RocksDB, and one of 16 is tried", left);
	add(declines, 16, false);
	CHECK(left_of(declines) == 0, "no read is wasted any more");
	add(declines, 16, true);
	CHECK(left_of(declines) > 1400, "all reads are wasted again");
	return 0;
}
