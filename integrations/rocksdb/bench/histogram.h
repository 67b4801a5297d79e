/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Latencies of many operations: counts in steps of at most 1/128 of the value. */
#ifndef BPFOF_ROCKSDB_BENCH_HISTOGRAM_H
#define BPFOF_ROCKSDB_BENCH_HISTOGRAM_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bench {

class Histogram {
    public:
	void record(uint64_t value)
	{
		counts_[index(value)]++;
		count_++;
	}

	void add(const Histogram &other)
	{
		for (size_t i = 0; i < counts_.size(); i++)
			counts_[i] += other.counts_[i];
		count_ += other.count_;
	}

	uint64_t count() const { return count_; }

	/* The value that this share of all values, from 0 to 1, does not exceed, within 0.4 %; 0 if
	 * there are none. */
	double quantile(double share) const
	{
		const double wanted = std::ceil(share * static_cast<double>(count_));
		uint64_t seen = 0;

		for (size_t i = 0; i < counts_.size(); i++) {
			seen += counts_[i];
			if (counts_[i] && static_cast<double>(seen) >= wanted)
				return middle(i);
		}
		return 0;
	}

    private:
	/* Values below 2 * STEPS have a counter each; above, each power of two has STEPS counters. */
	static constexpr unsigned STEP_BITS = 7;
	static constexpr size_t STEPS = size_t{1} << STEP_BITS;
	/* 18 minutes in ns; longer values count as that. */
	static constexpr unsigned VALUE_BITS = 40;

	static size_t index(uint64_t value)
	{
		if (value >> VALUE_BITS)
			value = (uint64_t{1} << VALUE_BITS) - 1;
		if (value < 2 * STEPS)
			return value;
		const unsigned shift = 63 - STEP_BITS - __builtin_clzll(value);

		return shift * STEPS + (value >> shift);
	}

	static double middle(size_t index)
	{
		if (index < 2 * STEPS)
			return static_cast<double>(index);
		const size_t shift = index / STEPS - 1;
		const double first = static_cast<double>((index - shift * STEPS) << shift);

		return first + static_cast<double>((uint64_t{1} << shift) - 1) / 2;
	}

	std::vector<uint64_t> counts_ = std::vector<uint64_t>((VALUE_BITS - STEP_BITS + 1) * STEPS);
	uint64_t count_ = 0;
};

} /* namespace bench */

#endif
