// SPDX-License-Identifier: Apache-2.0 OR MIT
// Conditions of tests, and what WiredTiger's calls return.
#ifndef BPFOF_WIREDTIGER_CHECK_H
#define BPFOF_WIREDTIGER_CHECK_H

#include <wiredtiger.h>

#include <cstdio>
#include <cstdlib>

// Ends the test if the condition does not hold, with a text as for printf that says what was tried.
#define CHECK(condition, ...)                                                                          \
	do {                                                                                           \
		if (!(condition)) {                                                                    \
			std::fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #condition);   \
			std::fprintf(stderr, __VA_ARGS__);                                             \
			std::fputc('\n', stderr);                                                      \
			std::exit(1);                                                                  \
		}                                                                                      \
	} while (0)

// Ends the test if a call of WiredTiger fails.
#define CHECK_WT(call)                                                                                 \
	do {                                                                                           \
		const int check_wt = (call);                                                           \
		CHECK(check_wt == 0, "%s", wiredtiger_strerror(check_wt));                             \
	} while (0)

#endif
