/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An iterator of RocksDB whose blocks are fetched together: the blocks of a seek, which are in one
 * table of each level, in one round trip instead of one after the other; and those of a scan some in
 * advance. RocksDB itself iterates and is only offered the fetched bytes, so the answers are its own,
 * whatever was fetched.
 */
#ifndef BPFOF_ROCKSDB_ITERATOR_H
#define BPFOF_ROCKSDB_ITERATOR_H

#include "version_tracker.h"

namespace bpf_of {

/* Shared by the scans of a database. */
struct Scans {
	/* Bytes that a scan reads after its seek, and how much a scan deviates from that; averages of
	 * the last scans. */
	std::atomic<size_t> usual_bytes{0};
	std::atomic<size_t> deviation_bytes{0};
	/* Seeks whose blocks were fetched together. */
	std::atomic<uint64_t> staged{0};
};

/* `plain` was made with these options, after the view was taken. */
rocksdb::Iterator *make_iterator(std::unique_ptr<rocksdb::Iterator> plain,
	const rocksdb::ReadOptions &options, std::shared_ptr<const View> view,
	std::shared_ptr<VersionTracker> live, std::shared_ptr<TableFiles> files,
	std::shared_ptr<Scans> scans);

} /* namespace bpf_of */

#endif
