/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counters of each thread, so that counting costs only a store. */
#ifndef BPFOF_WIREDTIGER_COUNTERS_H
#define BPFOF_WIREDTIGER_COUNTERS_H

#include "bpfof/wiredtiger.h"

#include <atomic>
#include <string>

namespace bpf_of {

constexpr size_t COUNTERS = sizeof(bpfof_wiredtiger_counters) / sizeof(uint64_t);

/* The index of a counter in the structure. */
#define BPFOF_COUNTER(name) (offsetof(bpfof_wiredtiger_counters, name) / sizeof(uint64_t))

/* The counters of one thread. The totals include them while the thread lives and after. */
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

/* The counters of the calling thread. */
Counters &counters();

/* Stores the text that bpfof_wiredtiger_last_error() returns. */
void note_error(const char *text);

/* The totals, as a JSON object. */
std::string counters_as_json();

} /* namespace bpf_of */

#endif
