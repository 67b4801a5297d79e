/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Which version of a column family the next Get() of a thread uses, without RocksDB's mutex.
 *
 * RocksDB keeps, for each thread, the version that its last Get() used. It takes that version away and
 * gives the thread another one only if a newer one was installed, and then counts
 * NUMBER_SUPERVERSION_ACQUIRES in that thread. So what a thread knows about its version stays true until
 * the next such count. The count itself is not taken for granted: until a thread has seen one, which its
 * first Get() causes, it knows no version.
 */
#ifndef BPFOF_ROCKSDB_KNOWN_VERSION_H
#define BPFOF_ROCKSDB_KNOWN_VERSION_H

#include <rocksdb/statistics.h>

#include <cstdint>
#include <memory>

namespace bpf_of {

/* Wraps the statistics of the program, or null, to notice when a thread is given another version. Everything
 * else is forwarded to them. */
std::shared_ptr<rocksdb::Statistics> watch_versions(std::shared_ptr<rocksdb::Statistics> statistics);

/* Whether this thread uses version `version` of the family with that number, as far as it knows. */
bool is_known_version(uint64_t family, uint64_t version);

/* Notes that this thread uses that version: the last one that it acquired before this call. */
void know_version(uint64_t family, uint64_t version);

} /* namespace bpf_of */

#endif
