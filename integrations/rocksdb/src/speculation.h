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
 * While a way is tried, all reads of all threads take it for a while. A single read at once among
 * others one by one would say nothing: where processors are busy it gets its answer sooner at the
 * expense of the others, and if all do so, each waits longer.
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
		/* Whether to time it. */
		bool is_timed;
		/* The comparison that its time counts for; 0 if for none. */
		uint64_t comparison;
	};
	Choice choose();

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
			if (choice_.is_timed)
				begun_ = Clock::now();
		}
		Read(const Read &) = delete;
		Read &operator=(const Read &) = delete;

		bool is_at_once() const { return choice_.at_once; }
		/* The answers have arrived. */
		void end(const Needs &needs)
		{
			if (choice_.is_timed && needs.keys > 0)
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

	/* Adds the keys of a read; returns whether enough of their tables are needed to try both ways. */
	bool needs_most(const Needs &needs);
	/* Forgets all comparisons. */
	void forget();
	/* Adds the result of a comparison: the difference of the logarithms of the times, at once less one
	 * by one. */
	void compared(double log_ratio);
	/* Whether to search at once with this result. */
	bool is_faster(double log_ratio) const;

	const Speculate speculate_;
	/* Not in the cache line that timed reads write. */
	alignas(CACHE_LINE_BYTES) std::atomic<bool> at_once_;
	/* Whether both ways are compared, because most of the tables are needed. */
	std::atomic<bool> is_tried_{false};
	/* Whether there were enough comparisons. */
	std::atomic<bool> is_known_{false};
	/* Grows by one with about every READS_OF_A_TICK reads. */
	std::atomic<uint64_t> ticks_{0};

	alignas(CACHE_LINE_BYTES) std::mutex mutex_;
	/* Averages for a key, of so many of the last reads. */
	double needed_ = 0;
	double tables_ = 0;
	uint32_t averaged_ = 0;
	/* The comparison under way, and the logarithms of the times of a key in ns, one by one ([0]) and at
	 * once ([1]). */
	uint64_t comparison_ = 0;
	Sum log_times_[2];
	/* The results of comparisons since the last decision. */
	Sum log_ratios_;
};

} /* namespace bpf_of */

#endif
