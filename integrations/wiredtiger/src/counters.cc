/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "counters.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

namespace bpf_of {

namespace {

/* Never destroyed: threads may end at any time. */
struct All {
	std::mutex mutex;
	std::vector<Counters *> threads;
	uint64_t ended[COUNTERS] = {};
	std::string error;
};

All &all()
{
	static All *const all = new All;

	return *all;
}

} /* namespace */

Counters::Counters()
{
	std::lock_guard<std::mutex> lock(all().mutex);

	all().threads.push_back(this);
}

Counters::~Counters()
{
	All &all = bpf_of::all();
	std::lock_guard<std::mutex> lock(all.mutex);

	all.threads.erase(std::find(all.threads.begin(), all.threads.end(), this));
	for (size_t i = 0; i < COUNTERS; i++)
		all.ended[i] += values_[i].load(std::memory_order_relaxed);
}

bpfof_wiredtiger_counters Counters::total()
{
	All &all = bpf_of::all();
	std::lock_guard<std::mutex> lock(all.mutex);
	uint64_t sums[COUNTERS];
	bpfof_wiredtiger_counters total;

	std::copy(all.ended, all.ended + COUNTERS, sums);
	for (const Counters *thread : all.threads)
		for (size_t i = 0; i < COUNTERS; i++)
			sums[i] += thread->values_[i].load(std::memory_order_relaxed);
	static_assert(sizeof(sums) == sizeof(total), "it consists of counters");
	memcpy(&total, sums, sizeof(total));
	return total;
}

Counters &counters()
{
	static thread_local Counters own;

	return own;
}

void note_error(const char *text)
{
	std::lock_guard<std::mutex> lock(all().mutex);

	all().error = text;
}

std::string counters_as_json()
{
	static const char *const reasons[] = {"none", "asked", "overflow_key", "overflow_value", "time_window",
		"lookaside", "deleted", "address", "compressed", "encrypted", "too_large", "type", "edge"};
	const bpfof_wiredtiger_counters total = Counters::total();
	std::string text = "{";
	const auto add = [&text](const std::string &name, uint64_t value) {
		text += (text.back() == '{' ? "\"" : ", \"") + name + "\": " + std::to_string(value);
	};

	add("values", total.values);
	add("absent", total.absent);
	add("staged", total.staged);
	add("staged_pages", total.staged_pages);
	add("rewritten", total.rewritten);
	add("target_reads", total.target_reads);
	add("file_reads", total.file_reads);
	add("stale", total.stale);
	add("failed", total.failed);
	add("round_trips", total.round_trips);
	add("chain_pages", total.chain_pages);
	add("lost", total.lost);
	add("reconnected", total.reconnected);
	add("ahead_pages", total.ahead_pages);
	text += ", \"declined\": {";
	for (size_t i = 1; i < sizeof(reasons) / sizeof(reasons[0]); i++)
		add(reasons[i], total.declined[i]);
	return text + "}}";
}

} /* namespace bpf_of */

extern "C" __attribute__((visibility("default"))) size_t bpfof_wiredtiger_last_error(char *text, size_t size)
{
	std::lock_guard<std::mutex> lock(bpf_of::all().mutex);
	const std::string &error = bpf_of::all().error;

	if (size)
		text[error.copy(text, size - 1)] = 0;
	return error.size();
}

extern "C" __attribute__((visibility("default"))) void
bpfof_wiredtiger_read_counters(struct bpfof_wiredtiger_counters *counters, size_t size)
{
	const struct bpfof_wiredtiger_counters total = bpf_of::Counters::total();

	memset(counters, 0, size);
	memcpy(counters, &total, size < sizeof(total) ? size : sizeof(total));
}
