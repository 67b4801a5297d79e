/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Large arrays that may be sparsely used. */
#ifndef BPFOF_WIREDTIGER_ZEROED_H
#define BPFOF_WIREDTIGER_ZEROED_H

#include <cstddef>
#include <memory>
#include <sys/mman.h>

namespace bpf_of {

template <typename T, size_t COUNT> struct Unmap {
	void operator()(T *array) const { munmap(array, COUNT * sizeof(T)); }
};

/* COUNT of T, all zero, in pages that the kernel allocates on the first write; malloc() might return
 * used pages. */
template <typename T, size_t COUNT> using Zeroed = std::unique_ptr<T[], Unmap<T, COUNT>>;

/* Null without memory. */
template <typename T, size_t COUNT> Zeroed<T, COUNT> make_zeroed()
{
	constexpr size_t BYTES = COUNT * sizeof(T);
	void *const memory =
		mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		return nullptr;
	/* With huge pages one written byte would take 2 MiB. */
	madvise(memory, BYTES, MADV_NOHUGEPAGE);
	return Zeroed<T, COUNT>(static_cast<T *>(memory));
}

} /* namespace bpf_of */

#endif
