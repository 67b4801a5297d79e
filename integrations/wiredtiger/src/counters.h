/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counters that each thread has for itself, so that counting costs a store. */
#ifndef BPFOF_WIREDTIGER_COUNTERS_H
#define BPFOF_WIREDTIGER_COUNTERS_H

#include "bpfof/wiredtiger.h"

#include <atomic>
#include <string>

namespace bpf_of {

constexpr size_t COUNTERS = sizeof(bpfof_wiredtiger_counters) / sizeof(uint64_t);

/* The place of a counter in the structure. */
#define BPFOF_COUNTER(name) (offsetof(bpfof_wiredtiger_counters, name) / sizeof(uint64_t))

/* Those of one thread, part of the whole while it lives and after. */
class Counters {
    public:
	Counters();
	~Counters();
	Counters(const Counters &) = delete;
	Counters &operator=(const Counters &) = delete;

	void add(size_t counter, uint64_t count = 1)
	{
		std::atomic<uint64_t> &own = values_[counter];

		own.store(own.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
	}

	static bpfof_wiredtiger_counters total();

    private:
	std::atomic<uint64_t> values_[COUNTERS] = {};
};

/* Of the calling thread. */
Counters &counters();

/* Keeps what bpfof_wiredtiger_last_error() tells. */
void note_error(const char *text);

/* All of them, as a JSON object. */
std::string counters_as_json();

} /* namespace bpf_of */

#endif
