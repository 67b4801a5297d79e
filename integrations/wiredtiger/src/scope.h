/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The search that a thread is in: what its reads of pages are for, and what a chain has found. */
#ifndef BPFOF_WIREDTIGER_SCOPE_H
#define BPFOF_WIREDTIGER_SCOPE_H

#include "ahead.h"
#include "engine.h"

#include <linux/types.h>

#include "wt_get.h"

namespace bpf_of {

/* What the reads of a call are for. */
enum class Wanted {
	/* the pages on the way to the cursor's key, or what is there */
	PAGES,
	VALUE,
	/* the page behind or before the one that the cursor is on */
	NEXT,
	PREVIOUS,
};

struct Scope {
	Engine *engine;
	Table *table;
	/* Its key is the one that is sought. */
	const WT_CURSOR *cursor;
	Wanted wanted;
	/* What the cursor has of pages that it will go on to; null for calls after which it does not go on. */
	Ahead *ahead;

	/* A chain has given the value, or that there is none: the search is called off. */
	bool is_answered = false;
	bool is_found = false;
	const char *value = nullptr;
	size_t value_bytes = 0;

	/* Chains that this search has begun. */
	uint32_t chains = 0;

	/* The pages that its chain gave, in the thread's memory, and where in the write log that began. */
	const char *pages = nullptr;
	const char *pages_end = nullptr;
	uint64_t since = 0;
	/* Of one that is planted: where the chain is to begin when the search is over. */
	File *late_file = nullptr;
	uint64_t late_offset = 0;
	size_t late_bytes = 0;

	/* The read ends with what calls the search off. */
	bool is_called_off() const { return is_answered || late_file; }
};

/*
 * The stress must notice when a rule is broken: libraries of the tests have one of these omissions, others none.
 */
#define PLANTED_CHAIN_AFTER_SEARCH 1
#define PLANTED_TRUNCATES_UNSEEN 2
#define PLANTED_WINDOWS_UNSEEN 3
#ifndef BPFOF_PLANTED
#define BPFOF_PLANTED 0
#endif

/* Whether values in the table's file are answers. */
inline bool has_answers(const Table *table)
{
	if (BPFOF_PLANTED == PLANTED_TRUNCATES_UNSEEN)
		return true;
	return !table->is_truncated.load(std::memory_order_relaxed) &&
	       !table->has_deleted.load(std::memory_order_relaxed);
}

#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
bool run_late(const Scope &found);
#endif

/* Null outside of searches. */
extern thread_local Scope *scope;

/* Reads a page for the search of this thread, or for nobody's. 0, errno, or what calls the search off. */
int read_page(File *file, Engine *engine, uint64_t offset, size_t bytes, void *to);

} /* namespace bpf_of */

#endif
