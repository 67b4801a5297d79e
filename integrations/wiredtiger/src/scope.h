/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The current search of a thread: the purpose of its reads of pages, and the result of its chain. */
#ifndef BPFOF_WIREDTIGER_SCOPE_H
#define BPFOF_WIREDTIGER_SCOPE_H

#include "ahead.h"
#include "engine.h"

#include <linux/types.h>

#include "wt_get.h"

namespace bpf_of {

/*
 * The stress test must notice when a rule is broken: its libraries have one of these omissions, or (3) a
 * function that does not look at time windows; others have none.
 */
#define PLANTED_CHAIN_AFTER_SEARCH 1
#define PLANTED_TRUNCATES_UNSEEN 2
#ifndef BPFOF_PLANTED
#define BPFOF_PLANTED 0
#endif

/* The purpose of the reads of a call. */
enum class Wanted {
	/* the pages on the way to the cursor's key, or the value there */
	PAGES,
	VALUE,
	/* the page after or before the cursor's page */
	NEXT,
	PREVIOUS,
};

struct Scope {
	Engine *engine;
	Table *table;
	/* The cursor whose key is sought. */
	const WT_CURSOR *cursor;
	Wanted wanted;
	/* Pages that the cursor will move to; null for calls after which it does not move on. */
	Ahead *ahead;

	/* A chain has found the value, or that there is none: the search is cancelled. */
	bool is_answered = false;
	bool is_found = false;
	const char *value = nullptr;
	size_t value_bytes = 0;

	/* Chains that this search has started. */
	uint32_t chains = 0;

	/* The pages that its chain returned, in the thread's memory, and the moment in the write log
	 * when the chain began. */
	const char *pages = nullptr;
	const char *pages_end = nullptr;
	uint64_t since = 0;
#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
	/* Where the chain begins after the search is over. */
	File *late_file = nullptr;
	uint64_t late_offset = 0;
	size_t late_bytes = 0;
#endif

	/* Whether the read ends with the error that cancels the search. */
	bool is_called_off() const
	{
#if BPFOF_PLANTED == PLANTED_CHAIN_AFTER_SEARCH
		if (late_file)
			return true;
#endif
		return is_answered;
	}
};

/* Whether values in the table's file are valid answers. */
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

/* Reads a page, for the search of this thread if there is one. Returns 0, errno, or the error that
 * cancels the search. */
int read_page(File *file, Engine *engine, uint64_t offset, size_t bytes, void *to);

} /* namespace bpf_of */

#endif
