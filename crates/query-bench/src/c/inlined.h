/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The unchanged C of stages, as parts of one function: each is inlined, and returns 0 instead of
 * continuing in the next stage. */
#include "bpfof/batch.h"

#undef SEC
#define SEC(name) static inline __attribute__((always_inline))
#define bpfof_next_stage(function) ((void)(function), 0)
#define bpfof_end_source(query) ((void)(query), 0)
#define bpfof_end_filter(query) ((void)(query), 0)
