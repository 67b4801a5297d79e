/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Shared by the tests and benchmarks of all integrations. */
#ifndef BPFOF_INTEGRATIONS_CHECK_H
#define BPFOF_INTEGRATIONS_CHECK_H

#include <cstdio>
#include <cstdlib>

/* Ends the program unless the condition holds, with a printf-style message that says what was tried. */
#define CHECK(condition, ...)                                                                          \
	do {                                                                                           \
		if (!(condition)) {                                                                    \
			std::fflush(stdout);                                                           \
			std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);           \
			std::fprintf(stderr, "" __VA_ARGS__);                                          \
			std::fprintf(stderr, "\n");                                                    \
			std::_Exit(1);                                                                 \
		}                                                                                      \
	} while (0)

#endif
