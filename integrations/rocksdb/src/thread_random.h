/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Random numbers for occasional decisions, separate for each thread. */
#ifndef BPFOF_ROCKSDB_THREAD_RANDOM_H
#define BPFOF_ROCKSDB_THREAD_RANDOM_H

#include <atomic>
#include <cstdint>

namespace bpf_of {

/* The next number, of 64 bits; the upper bits are better than the lower ones. Never 0. */
inline uint64_t thread_random()
{
	/* Marsaglia's xorshift; any seed but 0 works. */
	static std::atomic<uint64_t> threads{0};
	thread_local uint64_t random = (threads.fetch_add(1) + 1) * 0x9e3779b97f4a7c15;

	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	return random;
}

} /* namespace bpf_of */

#endif
