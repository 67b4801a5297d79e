/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Which Gets are left to RocksDB although a chain could do them: a small part, so that the blocks they
 * need come into the block cache (BPF-oF §5.2.2).
 *
 * A cache is not always worth that (§6.2). So the part adapts itself: what reads that memory settled
 * have saved, compared to chains, is weighed against what the sampled reads have cost, after each so
 * many reads; the part is halved while the cost is larger, and doubled while it is not, between a
 * SPAN-th of what was asked for and that.
 */
#ifndef BPFOF_ROCKSDB_SAMPLING_H
#define BPFOF_ROCKSDB_SAMPLING_H

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace bpf_of {

class Sampling {
    public:
	using Clock = std::chrono::steady_clock;

	/* The part is from 0 to 1. */
	Sampling(double part, bool adapts) : most_(part), adapts_(adapts && part > 0), part_(part) {}

	/* Reads that chains do between two changes. */
	static constexpr uint64_t WINDOW = 8192;

	/* How a read was served. */
	enum class Kind { kMemory, kChain, kSample };

	/* A read, which is timed now and then. */
	class Read {
	    public:
		explicit Read(Sampling &sampling) : sampling_(sampling)
		{
			thread_local uint32_t reads = 0;

			if (sampling.adapts_ && ++reads % TIMED_EVERY == 0)
				begin();
		}
		/* Times it from here on in any case. */
		void begin()
		{
			if (sampling_.adapts_)
				begun_ = Clock::now();
		}
		/* It is over. */
		void end(Kind kind)
		{
			if (begun_ != Clock::time_point{})
				sampling_.add(kind, Clock::now() - begun_);
		}

	    private:
		Sampling &sampling_;
		Clock::time_point begun_{};
	};

	/* Whether to leave a read to RocksDB that memory has not settled. */
	bool is_sample() const;

	/* The part of the moment. */
	double part() const { return part_.load(std::memory_order_relaxed); }

	/* Weighs and changes the part. So many reads were settled by memory, and sampled, until now. */
	void adapt(uint64_t memory, uint64_t samples);

    private:
	static constexpr uint32_t TIMED_EVERY = 16;
	static constexpr double SPAN = 16;

	void add(Kind kind, std::chrono::duration<double, std::nano> took);

	const double most_;
	const bool adapts_;
	std::atomic<double> part_;
	/* What a read takes by Kind, in ns; averages of the last ones. */
	std::atomic<double> ns_[3] = {};

	std::mutex adapting_;
	/* At the last change. */
	uint64_t memory_ = 0;
	uint64_t samples_ = 0;
};

} /* namespace bpf_of */

#endif
