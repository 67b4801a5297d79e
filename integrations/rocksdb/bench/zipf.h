/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Zipf's distribution: of n ranks, rank k comes with a frequency proportional to 1 / (k + 1)^theta. */
#ifndef BPFOF_ROCKSDB_BENCH_ZIPF_H
#define BPFOF_ROCKSDB_BENCH_ZIPF_H

#include "check.h"

#include <algorithm>
#include <cmath>

namespace bench {

/* A double in [0, 1). */
inline double fraction(Random &random)
{
	return static_cast<double>(random.next() >> 11) * 0x1p-53;
}

/*
 * Exact for any theta above 0, also 1 and more, by rejection-inversion (W. Hörmann, G. Derflinger:
 * Rejection-inversion to generate variates from monotone discrete distributions, 1996): the area below
 * x^-theta is inverted, and draws between the curve and the steps are repeated. No tables, and a draw
 * takes little more than one attempt.
 */
class Zipf {
    public:
	Zipf(uint64_t ranks, double theta)
		: ranks_(static_cast<double>(ranks)), theta_(theta), low_(area(1.5) - 1),
		  high_(area(ranks_ + 0.5)), near_(2 - place(area(2.5) - density(2)))
	{
	}

	/* A rank in [0, ranks); 0 is the most frequent. */
	uint64_t next(Random &random) const
	{
		for (;;) {
			const double drawn = high_ + fraction(random) * (low_ - high_);
			const double x = place(drawn);
			const double rank = std::min(std::max(std::floor(x + 0.5), 1.0), ranks_);

			if (rank - x <= near_ || drawn >= area(rank + 0.5) - density(rank))
				return static_cast<uint64_t>(rank) - 1;
		}
	}

    private:
	double density(double x) const { return std::exp(-theta_ * std::log(x)); }

	/* The area below the density from 1 to x: (x^(1 - theta) - 1) / (1 - theta), or log x. */
	double area(double x) const
	{
		const double log_x = std::log(x), scaled = (1 - theta_) * log_x;

		return std::fabs(scaled) < TINY ? log_x : std::expm1(scaled) / (1 - theta_);
	}

	/* The x at which the area has this size. */
	double place(double area) const
	{
		/* Below -1 only by rounding. */
		const double scaled = std::max((1 - theta_) * area, -1.0);

		return std::exp(std::fabs(scaled) < TINY ? area : std::log1p(scaled) / (1 - theta_));
	}

	/* Below this the limit is as exact as the quotient. */
	static constexpr double TINY = 1e-12;

	double ranks_, theta_, low_, high_;
	/* Values that are this close below a rank always belong to it. */
	double near_;
};

} /* namespace bench */

#endif
