/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads are left to RocksDB without a chain while most chains are in vain, and no longer. */
#include "declines.h"

#include "check.h"

namespace {

/* Of 1600 reads, those that are left. */
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
	CHECK(left_of(declines) == 0, "a third is in vain");
	add(declines, 10000, true);
	const int left = left_of(declines);

	CHECK(left > 1400 && left < 1580, "%d are left, and one of 16 is tried", left);
	add(declines, 16, false);
	CHECK(left_of(declines) == 0, "none is in vain any more");
	add(declines, 16, true);
	CHECK(left_of(declines) > 1400, "all are in vain again");
	return 0;
}
