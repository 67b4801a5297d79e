/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "speculation.h"

#include "thread_random.h"

#include <algorithm>
#include <cmath>

namespace bpf_of {

namespace {

/* Averages weigh about the last AVERAGED values; with fewer values they are not used. */
constexpr uint32_t AVERAGED = 32;
/* One of TRIED_EVERY reads tries the other way, and one more is timed as it is; one of LEARNED_EVERY
 * until the ratio of their times is known. */
constexpr uint64_t TRIED_EVERY = 256;
constexpr uint64_t LEARNED_EVERY = 16;
/* The share of the tables read at once that must be needed, to begin and to continue. */
constexpr double NEEDED_TO_BEGIN = 0.75;
constexpr double NEEDED_TO_GO_ON = 0.65;
/* Searching at once begins below the first share of the time of searching one by one, and ends above
 * the second. */
constexpr double BEGINS_BELOW = 0.7;
constexpr double ENDS_ABOVE = 0.85;
/* Larger ratios have another cause. */
constexpr double RATIO_MAX = 8;

void set(std::atomic<bool> *to, bool value)
{
	if (to->load(std::memory_order_relaxed) != value)
		to->store(value, std::memory_order_relaxed);
}

} /* namespace */

Speculation::Choice Speculation::choose() const
{
	const bool at_once = is_at_once();

	if (speculate_ != Speculate::kWhenFaster)
		return {at_once, false};
	const uint64_t every = is_known_.load(std::memory_order_relaxed) ? TRIED_EVERY : LEARNED_EVERY;
	const uint64_t drawn = (thread_random() >> 32) % every;

	if (drawn == 0 && is_tried_.load(std::memory_order_relaxed))
		return {!at_once, true};
	return {at_once, drawn == 1};
}

/* An update by another thread at the same time may be lost. */
void Speculation::Average::add(double one)
{
	const double old = value();
	const uint32_t before = count_.load(std::memory_order_relaxed);
	const uint32_t now = std::min(before + 1, AVERAGED);

	value_.store(old + (one - old) / now, std::memory_order_relaxed);
	if (now != before)
		count_.store(now, std::memory_order_relaxed);
}

bool Speculation::Average::is_known() const
{
	return count_.load(std::memory_order_relaxed) == AVERAGED;
}

void Speculation::add(bool at_once, Nanoseconds took, const Needs &needs)
{
	const double keys = static_cast<double>(needs.keys);
	const bool was_tried = is_tried_.load(std::memory_order_relaxed);

	unpaired_[at_once].store(std::log(std::max(2.0, took.count() / keys)), std::memory_order_relaxed);
	needed_.add(std::min(needs.needed, needs.tables) / keys);
	tables_.add(needs.tables / keys);
	const double part = needed_.value() / tables_.value();
	const bool is_tried = needed_.is_known() && part >= (was_tried ? NEEDED_TO_GO_ON : NEEDED_TO_BEGIN);

	set(&is_tried_, is_tried);
	if (!is_tried) {
		/* The ratio will have changed by the next attempt. */
		log_ratio_.forget();
		unpaired_[true].store(0, std::memory_order_relaxed);
		set(&is_known_, false);
		return set(&at_once_, false);
	}
	const double one_by_one = unpaired_[false].load(std::memory_order_relaxed);
	const double at_once_too = unpaired_[true].load(std::memory_order_relaxed);

	if (one_by_one == 0 || at_once_too == 0)
		return;
	unpaired_[false].store(0, std::memory_order_relaxed);
	unpaired_[true].store(0, std::memory_order_relaxed);
	log_ratio_.add(std::clamp(at_once_too - one_by_one, -std::log(RATIO_MAX), std::log(RATIO_MAX)));
	set(&is_known_, log_ratio_.is_known());
	if (log_ratio_.is_known())
		set(&at_once_, std::exp(log_ratio_.value()) < (is_at_once() ? ENDS_ABOVE : BEGINS_BELOW));
}

} /* namespace bpf_of */
