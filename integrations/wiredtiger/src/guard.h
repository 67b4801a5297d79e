/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Wraps calls from WiredTiger, which is C: exceptions must not reach it. */
#ifndef BPFOF_WIREDTIGER_GUARD_H
#define BPFOF_WIREDTIGER_GUARD_H

#include <cerrno>
#include <new>

namespace bpf_of {

/* What the call returns, or ENOMEM. */
template <typename Call> int guarded(const Call &call) noexcept
{
	try {
		return call();
	} catch (const std::bad_alloc &) {
		return ENOMEM;
	}
}

} /* namespace bpf_of */

#endif
