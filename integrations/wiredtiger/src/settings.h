/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the configuration of the extension says. */
#ifndef BPFOF_WIREDTIGER_SETTINGS_H
#define BPFOF_WIREDTIGER_SETTINGS_H

#include <wiredtiger.h>
#include <wiredtiger_ext.h>

#include <cstdint>
#include <string>

namespace bpf_of {

struct Settings {
	/* the target; without one nothing is pushed down */
	std::string url;
	/* what its namespace is on this machine */
	std::string device;
	/* where the counters are written every second, as JSON */
	std::string counters;
	/* of a hundred searches so many bring their pages into the cache though it is full */
	uint32_t sample_percent = 1;
	/* threads whose searches are pushed down; others read plainly */
	uint32_t readers_max = 64;
	/* connections that they share, one for each processor, at most; 0: each has its own */
	uint32_t lanes_max = 128;
	/* longest wait for the target, in ms */
	uint32_t deadline_ms = 2000;
	/* single pages are read at the target, too, instead of from the file */
	bool target_reads = false;
	/* each write to a log file waits for the disk */
	bool log_dsync = true;
};

/* Reads the configuration. Returns 0 or an error that was told by `api`. */
int read_settings(WT_EXTENSION_API *api, WT_CONFIG_ARG *config, Settings *settings);

} /* namespace bpf_of */

#endif
