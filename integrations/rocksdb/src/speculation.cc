/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "speculation.h"

#include <algorithm>
#include <cmath>

namespace bpf_of {

namespace {

/* Averages are of so many, the last ones for the most part, and of fewer tell nothing. */
constexpr uint32_t AVERAGED = 32;
/* Of the tables that are read at once, this part must be needed. */
constexpr double NEEDED_LEAST = 0.75;
/* At once begins below the first part of the time that one by one takes, and ends above the second. */
constexpr double BEGINS_BELOW = 0.6;
constexpr double ENDS_ABOVE = 0.75;

} /* namespace */

Speculation::Read::Read(Speculation &speculation)
	: speculation_(speculation), is_at_once_(speculation.is_at_once())
{
	thread_local uint32_t reads = 0;

	if (speculation.speculate_ != Speculate::kWhenFaster)
		return;
	reads++;
	const bool tries = reads % TRIED_EVERY == 0 &&
			   speculation.is_tried_.load(std::memory_order_relaxed);

	is_at_once_ = is_at_once_ != tries;
	is_timed_ = reads % TIMED_EVERY == 0;
	if (is_timed_)
		begun_ = Clock::now();
}

void Speculation::Average::add(double one)
{
	/* What another thread adds at the same time may get lost. */
	const uint32_t before = count.load(std::memory_order_relaxed);
	const double old = value.load(std::memory_order_relaxed);

	const uint32_t now = std::min(before + 1, AVERAGED);

	value.store(old + (one - old) / now, std::memory_order_relaxed);
	if (now != before)
		count.store(now, std::memory_order_relaxed);
}

void Speculation::add(bool is_at_once, std::chrono::duration<double, std::nano> took, double needed)
{
	const auto is_known = [](const Average &average) {
		return average.count.load(std::memory_order_relaxed) == AVERAGED;
	};
	const auto set = [](std::atomic<bool> *to, bool value) {
		if (to->load(std::memory_order_relaxed) != value)
			to->store(value, std::memory_order_relaxed);
	};

	(is_at_once ? log_at_once_ : log_one_by_one_).add(std::log(std::max(1.0, took.count())));
	needed_.add(needed);
	const bool is_worth = is_known(needed_) && needed_.value.load(std::memory_order_relaxed) >= NEEDED_LEAST;

	set(&is_tried_, is_worth);
	if (!is_worth)
		return set(&at_once_, false);
	if (!is_known(log_one_by_one_) || !is_known(log_at_once_))
		return;
	const double part = std::exp(log_at_once_.value.load(std::memory_order_relaxed) -
				     log_one_by_one_.value.load(std::memory_order_relaxed));

	set(&at_once_, part < (this->is_at_once() ? ENDS_ABOVE : BEGINS_BELOW));
}

} /* namespace bpf_of */
