/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Small, harmless, and too much for the verifier: it analyses each loop in every round of the loops around it. */
#include "bpfof.h"

#define LOOP(i, n) for (__u32 i = 0; i < ctx->scratch[n]; i++)

SEC("bpfof/hard")
int hard(struct bpfof_ctx *ctx)
{
	LOOP(a, 0) LOOP(b, 1) LOOP(c, 2) LOOP(d, 3) LOOP(e, 4) LOOP(f, 5) LOOP(g, 6) LOOP(h, 7)
		ctx->scratch[8 + (a ^ b * 3 ^ c * 5 ^ d * 7 ^ e * 9 ^ f * 11 ^ g * 13 ^ h) % 4000] += a + h;
	ctx->done = 1;
	return 0;
}
