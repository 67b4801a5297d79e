/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Which version of a column family the next Get() of a thread uses, without RocksDB's mutex.
 *
 * RocksDB keeps for each thread the version that its last Get() used, and gives the thread another one only if a newer
 * one was installed, before which it takes the old one away. Then it counts NUMBER_SUPERVERSION_ACQUIRES, in the
 * thread that gets it. So what a thread has found out about its version stays true until that is counted. Whether a
 * RocksDB counts is not taken on trust: as long as a thread has not seen it, which every first Get() of a thread
 * causes, it knows no version.
 */
#ifndef BPFOF_ROCKSDB_KNOWN_VERSION_H
#define BPFOF_ROCKSDB_KNOWN_VERSION_H

#include <rocksdb/statistics.h>

#include <cstdint>
#include <memory>

namespace bpf_of {

/* The statistics of a database, or null, which also notice when a thread is given another version. In all else they
 * are those of the program. */
std::shared_ptr<rocksdb::Statistics> watch_versions(std::shared_ptr<rocksdb::Statistics> statistics);

/* Whether this thread uses version `version` of the family with that number, as far as it knows. */
bool is_known_version(uint64_t family, uint64_t version);

/* This thread uses that version: of all that it used before this call it was the last. */
void know_version(uint64_t family, uint64_t version);

} /* namespace bpf_of */

#endif
