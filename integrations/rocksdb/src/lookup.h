/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A lookup as a chain of the storage function sst_get. */
#ifndef BPFOF_ROCKSDB_LOOKUP_H
#define BPFOF_ROCKSDB_LOOKUP_H

#include "view.h"

namespace bpf_of {

/* Longer keys do not leave scratch enough room for those that the function takes out of blocks. */
constexpr size_t KEY_BYTES_MAX = 256;

/* Scratch that chains need whose values are at most so long, in bytes. */
size_t scratch_bytes_for(uint32_t value_bytes_max);

/*
 * Makes the chain that looks for the newest version of a key whose tag is at most newest_tag. The
 * plan has tables; plan and scratch must stay where they are until the chain has ended.
 */
void make_chain(struct bpfof_chain *chain, const Plan &plan, const rocksdb::Slice &key,
	uint64_t newest_tag, const struct bpfof_function *sst_get, unsigned char *scratch,
	size_t scratch_bytes);

/*
 * What a chain that has ended has found. kTarget, kHere: `status` and `value` are the answer.
 * kDeclined: RocksDB has to do it. kFailed: `error` says why.
 */
ReadPath read_answer(const struct bpfof_chain &chain, rocksdb::Status *status, rocksdb::PinnableSlice *value,
	uint32_t *blocks, std::string *error);

} /* namespace bpf_of */

#endif
