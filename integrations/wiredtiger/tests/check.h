// SPDX-License-Identifier: Apache-2.0 OR MIT
// Checks of conditions in tests, and of the results of WiredTiger's calls.
#ifndef BPFOF_WIREDTIGER_CHECK_H
#define BPFOF_WIREDTIGER_CHECK_H

#include <wiredtiger.h>

#include "../../check.h"

// Ends the test if a call of WiredTiger fails.
#define CHECK_WT(call)                                                                                 \
	do {                                                                                           \
		const int check_wt = (call);                                                           \
		CHECK(check_wt == 0, "%s", wiredtiger_strerror(check_wt));                             \
	} while (0)

#endif
