/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Measures workloads in several modes in turn, and prints a JSON object for each measurement. */
#ifndef BPFOF_ROCKSDB_BENCH_RUN_H
#define BPFOF_ROCKSDB_BENCH_RUN_H

#include "workload.h"

#include <bpfof/rocksdb.h>

#include <optional>

namespace bench {

/* How the tables are read. */
enum class Mode : uint8_t {
	kPlain,	 /* RocksDB, at the target, one block after the other */
	kChains, /* chains at the target */
	kBlocks, /* blocks of all tables at once, at the target; RocksDB searches them */
	kSingle, /* chains, with a separate command for each key of a MultiGet() */
	kLocal,	 /* RocksDB, on this machine's device, bypassing the page cache */
};
constexpr size_t MODES = 5;

const char *name(Mode mode);

struct RunOptions {
	std::string path;
	std::string url;
	std::string device;
	std::vector<Workload> workloads;
	/* kLocal is measured after the others, because the database must be reopened for it. */
	std::vector<Mode> modes = {Mode::kPlain, Mode::kChains, Mode::kBlocks};
	std::vector<unsigned> threads = {24};
	unsigned repetitions = 3;
	unsigned milliseconds = 1000;
	Opening opening;
	/* A fixed rate; if unset, the library chooses. */
	std::optional<double> sample_rate;
	/* Connections that clients share; if unset, the library chooses. */
	std::optional<uint32_t> lanes_max;
	bpf_of::Speculate speculate = bpf_of::Speculate::kWhenFaster;
	/* Process whose processor time is reported, too. */
	std::optional<int> target_pid;
};

/* Corruption if an answer was wrong; otherwise the error of opening or of an operation. */
rocksdb::Status run(const RunOptions &options);

} /* namespace bench */

#endif
