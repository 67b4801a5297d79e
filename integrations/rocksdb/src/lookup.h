/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A lookup as a chain of the storage function sst_get. */
#ifndef BPFOF_ROCKSDB_LOOKUP_H
#define BPFOF_ROCKSDB_LOOKUP_H

#include "view.h"

namespace bpf_of {

/* Longer keys do not leave scratch enough room for those that the function takes out of blocks. */
constexpr size_t KEY_BYTES_MAX = 4096;
/* Chains for longer ones have all of the scratch that there is. */
constexpr size_t USUAL_KEY_BYTES_MAX = 1024;

/* Scratch that chains for usual keys need whose values are at most so long, in bytes; with `merges` value and
 * operands, of which each takes 4 bytes more. */
size_t scratch_bytes_for(uint32_t value_bytes_max, bool merges);

/* The files of chains that leave together: those of all their plans. */
class FileList {
    public:
	/* Adds the files of a plan, and tells its tables which they are. False if they have no room;
	 * then all is as it was. An empty list has room for each plan. */
	bool add(Plan *plan);

	const int *fds() const { return fds_; }
	size_t count() const { return count_; }

    private:
	int fds_[BPFOF_FILES_MAX];
	size_t count_ = 0;
};

/* Tables of a plan that one chain searches: those from `first` up to `end`. */
struct Part {
	uint32_t first;
	uint32_t end;

	/* That with this number of `parts`, at most one for each table, which are as long as one another. */
	static Part of(const Plan &plan, uint32_t parts, uint32_t number)
	{
		return {plan.tables * number / parts, plan.tables * (number + 1) / parts};
	}
};
/* Parts of a plan that are searched at once. */
constexpr uint32_t PARTS_MAX = 8;

inline uint32_t parts_of(const Plan &plan, bool at_once)
{
	return at_once ? std::min(plan.tables, PARTS_MAX) : 1;
}

/*
 * Makes the chain that looks for the newest version of a key whose tag is at most newest_tag, in tables of
 * a plan that are in `files`; these and scratch must stay where they are until the chain has ended.
 */
void make_chain(struct bpfof_chain *chain, const Plan &plan, const Part &part, const FileList &files,
	const rocksdb::Slice &key, uint64_t newest_tag, const struct bpfof_function *sst_get, unsigned char *scratch,
	size_t scratch_bytes);

/* Runs chains of the same files and as much scratch at once, at most PARTS_MAX, and waits for all ends, as long
 * as there is time. Those that are missing then are as not_ended() says, and the reader is of no use. */
void run_within(struct bpfof_reader *reader, struct bpfof_chain *chains, size_t count, const TimeLimit &limit);
/* What a chain has before it ends. */
void not_ended(struct bpfof_chain *chain);
/* The reader has failed, for which bpfof_error() has the reason: a chain that has not ended has failed with it. */
void cannot_end(struct bpfof_chain *chain);

/* What a chain has found, in its scratch. */
struct Found {
	/* Tables that were searched, and whether those behind them do not matter. */
	uint32_t tables = 0;
	bool is_whole = false;
	/* The sequence number of what ended the search, as it stands in its table. */
	uint64_t sequence = 0;
	/* Whether there is a value, onto which operands are merged. */
	bool has_value = false;
	/* Whether in place of it there is that of a blob. */
	bool is_blob = false;
	rocksdb::Slice value;
	/* Has the value once it was read. */
	sst::Block blob;
	/* Merge operands that are newer than that, oldest first. */
	std::vector<rocksdb::Slice> operands;
	/* That were read, also for nothing. */
	uint32_t blocks = 0;
	/* A chain that was needed has ended at a key, of any entry on its way, or at values of its own, for which its
	 * scratch has no room. */
	bool lacks_scratch = false;

	/* Versions in the last of a plan's tables that are older than this sequence number are deleted. */
	void hide(uint32_t plan_tables, uint64_t deleted_below)
	{
		if (is_whole && tables == plan_tables && sequence < deleted_below)
			has_value = is_blob = false;
	}
};

/*
 * Reads what chains that have ended, for the parts of one plan in their order, have found: kTarget, kHere.
 * kDeclined: RocksDB has to do it. kFailed: `error` says why. kTimedOut: one has not ended. What becomes of
 * parts behind the one that has the key does not matter.
 */
ReadPath read_answers(const struct bpfof_chain *chains, uint32_t parts, Found *found, std::string *error);

} /* namespace bpf_of */

#endif
