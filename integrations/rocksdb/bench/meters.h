/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What is used up: processor time and energy. */
#ifndef BPFOF_ROCKSDB_BENCH_METERS_H
#define BPFOF_ROCKSDB_BENCH_METERS_H

#include <optional>

namespace bench {

/* Processor time of this process so far, in s. */
double own_cpu_s();
/* That of another process, of threads that still run; nothing if it cannot be told. */
std::optional<double> cpu_s_of(int pid);
/* Energy that the machine's processors have used, in J, from a start that is arbitrary; nothing if they
 * do not tell us. */
std::optional<double> energy_j();
/* Processor time that the hypervisor has given to others while there was work here, of all processors,
 * in s; 0 where there is none. */
double stolen_cpu_s();
/* How many processors the machine has. */
unsigned processors();

} /* namespace bench */

#endif
