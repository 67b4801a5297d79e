/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Whether the target searches the tables of a key one after the other, until one has it, or several at
 * once. One after the other reads no more than needed; at once takes the time of one read, but some
 * blocks may be read for nothing.
 *
 * At once is better on slow drives, where most keys are in the last of their tables, and worse where
 * processors have no time to spare. So both are tried and timed, and tables are searched at once as
 * long as that takes clearly less time, and most of the blocks would have been read anyway.
 *
 * While a way is tried, the reads of all threads take it. A single read at once among others one by one
 * would say nothing: where processors are busy it gets its answer sooner at the expense of the others,
 * and if all do so, each waits longer.
 */
#ifndef BPFOF_ROCKSDB_SPECULATION_H
#define BPFOF_ROCKSDB_SPECULATION_H

#include "bpfof/rocksdb.h"
#include "per_processor.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace bpf_of {

class Speculation {
    public:
	using Clock = std::chrono::steady_clock;
	using Nanoseconds = std::chrono::duration<double, std::nano>;

	explicit Speculation(Speculate speculate) : speculate_(speculate), at_once_(speculate == Speculate::kAlways) {}

	/* Whether reads search at once, except while the other way is tried. */
	bool is_at_once() const { return at_once_.load(std::memory_order_relaxed); }

	/* How to serve a read. */
	struct Choice {
		bool at_once;
		/* Whether it counts for what keys need. */
		bool counts;
		/* The phase of a comparison in which it began; 0 outside comparisons. */
		uint64_t phase;

		bool is_timed() const { return counts || phase > 0; }
	};
	Choice choose() const;

	/* The totals of keys that were searched in one way: how many of all their tables, in order,
	 * they needed. */
	struct Needs {
		uint64_t keys;
		uint64_t needed;
		uint64_t tables;
	};
	/* Adds a timed read of keys of several tables. */
	void add(const Choice &choice, Nanoseconds took, const Needs &needs);

	/* One read, timed if its Choice says so. */
	class Read {
	    public:
		explicit Read(Speculation &speculation) : speculation_(speculation), choice_(speculation.choose())
		{
			if (choice_.is_timed())
				begun_ = Clock::now();
		}
		Read(const Read &) = delete;
		Read &operator=(const Read &) = delete;

		bool is_at_once() const { return choice_.at_once; }
		/* Of so many keys some answers have not arrived in time. While a way is tried this counts as a read
		 * that took as long: otherwise a way whose reads all take too long would be tried for ever. */
		void time_out(uint64_t keys)
		{
			if (choice_.phase > 0)
				speculation_.add({choice_.at_once, false, choice_.phase}, Clock::now() - begun_, {keys, 0, 0});
		}
		/* The answers have arrived. */
		void end(const Needs &needs)
		{
			if (choice_.is_timed() && needs.keys > 0)
				speculation_.add(choice_, Clock::now() - begun_, needs);
		}

	    private:
		Speculation &speculation_;
		const Choice choice_;
		Clock::time_point begun_{};
	};

    private:
	/* A sum of values. With logarithms of times a few reads that wait for something else do not count
	 * for much. */
	struct Sum {
		double sum = 0;
		uint32_t count = 0;

		void add(double one)
		{
			sum += one;
			count++;
		}
		double mean() const { return sum / count; }
	};

	/* The following are called with the lock. */

	/* Adds the keys of a read; returns whether enough of their tables are needed to compare both ways. */
	bool needs_most(const Needs &needs);
	/* Begins a comparison, and a phase of it. */
	void begin();
	void begin_phase(uint64_t phase);
	/* Whether the phase has had enough reads. */
	bool has_phase_ended() const;
	/* Ends comparisons until so many reads have counted. */
	void rest(uint32_t reads);
	/* A comparison has ended. `log_ratio`: the difference of the logarithms of the times, at once less
	 * one by one. */
	void compared(double log_ratio);
	/* Whether to search at once with this result. */
	bool is_faster(double log_ratio) const;

	const Speculate speculate_;
	/* Not in the cache line that timed reads write. */
	alignas(CACHE_LINE_BYTES) std::atomic<bool> at_once_;
	/* Four for each comparison: reads in the other way until the queues are those of that way; the
	 * same, timed; reads as they are; the same, timed. 0 between comparisons. */
	std::atomic<uint64_t> phase_{0};

	alignas(CACHE_LINE_BYTES) std::mutex mutex_;
	/* Averages for a key, of so many of the last reads. */
	double needed_ = 0;
	double tables_ = 0;
	uint32_t averaged_ = 0;
	/* Whether both ways are compared, because most of the tables are needed. */
	bool is_tried_ = false;
	/* Reads to count until the next comparison, if the result is known. */
	uint32_t rest_ = 0;
	uint64_t comparisons_ = 0;
	/* Reads of the phase that have ended, and their keys. */
	uint32_t ended_ = 0;
	uint64_t ended_keys_ = 0;
	/* Timed reads that have ended during the phase, and began before it. */
	uint32_t ended_before_ = 0;
	/* Of the comparison the logarithms of the times of a key in ns, one by one ([0]) and at once ([1]). */
	Sum log_times_[2];
	/* Whether there was a decision, and how many comparisons in a row have contradicted it. */
	bool is_known_ = false;
	uint32_t contradictions_ = 0;
	/* The results of comparisons for the next decision. */
	Sum log_ratios_;
};

} /* namespace bpf_of */

#endif
