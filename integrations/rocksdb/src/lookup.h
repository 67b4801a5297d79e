/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A lookup as a chain of the storage function sst_get. */
#ifndef BPFOF_ROCKSDB_LOOKUP_H
#define BPFOF_ROCKSDB_LOOKUP_H

#include "view.h"

namespace bpf_of {

/* Longer keys leave too little scratch for the keys that the function takes out of blocks. */
constexpr size_t KEY_BYTES_MAX = 4096;
/* Chains for longer keys get the largest scratch. */
constexpr size_t USUAL_KEY_BYTES_MAX = 1024;

/* Bytes of scratch that chains for usual keys need if values have at most `value_bytes_max` bytes; with
 * `merges`, value and operands together, with 4 bytes more for each operand. */
size_t scratch_bytes_for(uint32_t value_bytes_max, bool merges);

/* The files of chains that are sent together: the union of the files of their plans. */
class FileList {
    public:
	/* Adds the files of a plan, and sets the file numbers of its tables. False if the list has too
	 * little room, and then nothing changes. An empty list has room for any plan. */
	bool add(Plan *plan);

	const int *fds() const { return fds_; }
	size_t count() const { return count_; }

    private:
	int fds_[BPFOF_FILES_MAX];
	size_t count_ = 0;
};

/* The tables of a plan that one chain searches: from `first` up to, but without, `end`. */
struct Part {
	uint32_t first;
	uint32_t end;

	/* Part `number` of `parts` nearly equal parts; at most one part for each table. */
	static Part of(const Plan &plan, uint32_t parts, uint32_t number)
	{
		return {plan.tables * number / parts, plan.tables * (number + 1) / parts};
	}
};
/* The largest number of parts of a plan that are searched at once. */
constexpr uint32_t PARTS_MAX = 8;

inline uint32_t parts_of(const Plan &plan, bool at_once)
{
	return at_once ? std::min(plan.tables, PARTS_MAX) : 1;
}

/*
 * Makes the chain that looks for the newest version of a key whose tag is at most newest_tag, in tables
 * of a plan that are in `files`; `files` and `scratch` must stay in place until the chain has ended.
 */
void make_chain(struct bpfof_chain *chain, const Plan &plan, const Part &part, const FileList &files,
	const rocksdb::Slice &key, uint64_t newest_tag, const struct bpfof_function *sst_get, unsigned char *scratch,
	size_t scratch_bytes);

/* Runs chains of the same files and scratch size at once, at most PARTS_MAX, and waits for them within
 * the limit. Chains that have not ended by then are as not_ended() says, and the reader must not be
 * used again. */
void run_within(struct bpfof_reader *reader, struct bpfof_chain *chains, size_t count, const TimeLimit &limit);
/* Marks a chain as not ended. */
void not_ended(struct bpfof_chain *chain);
/* The reader has failed, and bpfof_error() has the reason: a chain that has not ended fails with that
 * reason. */
void cannot_end(struct bpfof_chain *chain);

/* The result of a chain, in its scratch. */
struct Found {
	/* The number of tables that were searched, and whether the search ended there. */
	uint32_t tables = 0;
	bool is_whole = false;
	/* The sequence number of the entry that ended the search, as it stands in its table. */
	uint64_t sequence = 0;
	/* Whether there is a value, to which operands are merged. */
	bool has_value = false;
	/* Whether the value is the place of a blob. */
	bool is_blob = false;
	rocksdb::Slice value;
	/* Holds the value once the blob was read. */
	sst::Block blob;
	/* Merge operands that are newer than the value, oldest first. */
	std::vector<rocksdb::Slice> operands;
	/* Blocks read, including blocks that were not needed. */
	uint32_t blocks = 0;
	/* The scratch of a chain that was needed was too small for a key of some entry on its way, or
	 * for its values. */
	bool lacks_scratch = false;

	/* Applies a range deletion: in the plan's last table, versions older than this sequence number
	 * are deleted. */
	void hide(uint32_t plan_tables, uint64_t deleted_below)
	{
		if (is_whole && tables == plan_tables && sequence < deleted_below)
			has_value = is_blob = false;
	}
};

/*
 * Reads the results of ended chains, for the parts of one plan in their order: kTarget, kHere.
 * kDeclined: RocksDB has to read the key. kFailed: `error` says why. kTimedOut: a chain has not ended.
 * Results of parts after the one that has the key are ignored.
 */
ReadPath read_answers(const struct bpfof_chain *chains, uint32_t parts, Found *found, std::string *error);

} /* namespace bpf_of */

#endif
