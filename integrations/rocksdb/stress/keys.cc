/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "stress.h"

std::string key_of(uint64_t number)
{
	const bool is_mixed = number < MIXED_KEYS;
	const uint64_t place = is_mixed ? number * MIXER % MIXED_KEYS : number;
	char text[32];

	std::snprintf(text, sizeof(text), "%s%08llu", is_mixed ? "key" : "range",
		static_cast<unsigned long long>(place));
	return text;
}

std::string missing_key(Random &random)
{
	switch (random.below(4)) {
	case 0:
		return "";
	case 1:
		return "key" + std::string(300, '9');
	case 2:
		return "zz";
	default:
		return key_of(random.below(KEYS)) + "x";
	}
}
