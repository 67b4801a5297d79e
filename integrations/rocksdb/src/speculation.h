/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Whether the target searches the tables of a key one after the other, until one has the key, or several at
 * once. One after the other reads no more than is needed; at once takes the time of one read, of which some
 * may be for nothing.
 *
 * At once is better on slow drives, where nearly all Gets end in the last of their tables, and worse where
 * processors or the drive have no time to spare. So both are tried and timed, and reads are at once as long
 * as that takes clearly less time, and as nearly all that it reads would have been read anyway. A drive that
 * has too much to do answers both late; reads are one after the other again, then.
 */
#ifndef BPFOF_ROCKSDB_SPECULATION_H
#define BPFOF_ROCKSDB_SPECULATION_H

#include "bpfof/rocksdb.h"
#include "per_processor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace bpf_of {

class Speculation {
    public:
	using Clock = std::chrono::steady_clock;

	explicit Speculation(Speculate speculate) : speculate_(speculate), at_once_(speculate == Speculate::kAlways) {}

	/* Whether reads search their tables at once, but for those that try the other way. */
	bool is_at_once() const { return at_once_.load(std::memory_order_relaxed); }

	/* A read of several tables, or of several keys. It is timed now and then. */
	class Read {
	    public:
		explicit Read(Speculation &speculation);
		Read(const Read &) = delete;
		Read &operator=(const Read &) = delete;

		bool is_at_once() const { return is_at_once_; }
		/* It has its answers, of the first `needed` tables of each key, of all of its tables. */
		void end(uint64_t needed, uint64_t tables)
		{
			if (is_timed_)
				speculation_.add(is_at_once_, Clock::now() - begun_,
					static_cast<double>(std::min(needed, tables)) / tables);
		}

	    private:
		Speculation &speculation_;
		bool is_at_once_;
		bool is_timed_ = false;
		Clock::time_point begun_{};
	};

    private:
	/* A thread times one of so many of its reads, and tries the other way with one. */
	static constexpr uint32_t TIMED_EVERY = 16;
	static constexpr uint32_t TRIED_EVERY = 128;

	/* Of the last reads. */
	struct Average {
		std::atomic<double> value{0};
		std::atomic<uint32_t> count{0};

		void add(double one);
	};

	void add(bool is_at_once, std::chrono::duration<double, std::nano> took, double needed);

	const Speculate speculate_;
	/* Not in the cache line of what timed reads write. */
	alignas(CACHE_LINE_BYTES) std::atomic<bool> at_once_;
	/* What the part of the tables that reads need allows. */
	std::atomic<bool> is_tried_{false};
	/* Of the logarithms of times in ns: a few reads that wait for something else do not count for much. */
	alignas(CACHE_LINE_BYTES) Average log_one_by_one_;
	Average log_at_once_;
	Average needed_;
};

} /* namespace bpf_of */

#endif
