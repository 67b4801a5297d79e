/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Meters of resources: processor time and energy. */
#ifndef BPFOF_ROCKSDB_BENCH_METERS_H
#define BPFOF_ROCKSDB_BENCH_METERS_H

#include <optional>

namespace bench {

/* Processor time of this process so far, in s. */
double own_cpu_s();
/* Processor time of another process, of its live threads; nullopt if it cannot be read. */
std::optional<double> cpu_s_of(int pid);
/* Energy that the machine's processors have used, in J, since an arbitrary start; nullopt if the
 * machine does not report it. */
std::optional<double> energy_j();
/* Processor time, of all processors, that the hypervisor gave to other guests while this one had work,
 * in s; 0 without a hypervisor. */
double stolen_cpu_s();
/* How many processors the machine has. */
unsigned processors();

} /* namespace bench */

#endif
