/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Measures workloads in several modes in turn, and prints a JSON object for each measurement. */
#ifndef BPFOF_ROCKSDB_BENCH_RUN_H
#define BPFOF_ROCKSDB_BENCH_RUN_H

#include "workload.h"

#include <bpfof/rocksdb.h>

#include <optional>

namespace bench {

/* Who reads the tables. */
enum class Mode : uint8_t {
	kPlain,	 /* RocksDB, at the target, each block when the one before is there */
	kChains, /* chains at the target */
	kBlocks, /* blocks of all tables at once, at the target; RocksDB searches them */
	kSingle, /* chains, each key of a MultiGet() in a command of its own */
	kLocal,	 /* RocksDB, on this machine's device, bypassing the page cache */
};
constexpr size_t MODES = 5;

const char *name(Mode mode);

struct RunOptions {
	std::string path;
	std::string url;
	std::string device;
	std::vector<Workload> workloads;
	/* kLocal is measured after the others, because it opens the database anew. */
	std::vector<Mode> modes = {Mode::kPlain, Mode::kChains, Mode::kBlocks};
	std::vector<unsigned> threads = {24};
	unsigned repetitions = 3;
	unsigned milliseconds = 1000;
	Opening opening;
	/* Fixed; without it the library chooses. */
	std::optional<double> sample_rate;
	/* Connections that clients share; without it the library chooses. */
	std::optional<uint32_t> lanes_max;
	bpf_of::Speculate speculate = bpf_of::Speculate::kWhenFaster;
	/* Process whose processor time is told, too. */
	std::optional<int> target_pid;
};

/* Corruption if an answer was wrong; what opening or an operation failed with. */
rocksdb::Status run(const RunOptions &options);

} /* namespace bench */

#endif
