// SPDX-License-Identifier: Apache-2.0 OR MIT
// Pages in files, as tests read and check them.
#ifndef BPFOF_WIREDTIGER_PAGE_H
#define BPFOF_WIREDTIGER_PAGE_H

#include <linux/types.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "wt_get.h"

inline uint32_t NumberAt(const std::string &page, size_t at)
{
	uint32_t number;

	memcpy(&number, &page[at], sizeof(number));
	return number;
}

// The checksum that belongs into the page's header.
inline uint32_t Crc32c(std::string page)
{
	memset(&page[WT_PAGE_CHECKSUM], 0, 4);
	uint32_t crc = ~0u;
	const size_t covered = page[WT_PAGE_BLOCK_FLAGS] & WT_BLOCK_CHECKSUM_ALL ? page.size() : WT_CLEAR_BYTES;

	for (size_t i = 0; i < covered; i++) {
		crc ^= uint8_t(page[i]);
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

#endif
