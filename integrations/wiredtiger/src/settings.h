/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The configuration of the extension. */
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
	/* the target's namespace on this machine */
	std::string device;
	/* file to which the counters are written every second, as JSON */
	std::string counters;
	/* the percentage of searches that bring their pages into a full cache */
	uint32_t sample_percent = 1;
	/* threads whose searches are pushed down; others read page by page */
	uint32_t readers_max = 64;
	/* largest number of connections that threads share, one for each processor; 0: each thread has
	 * its own */
	uint32_t lanes_max = 128;
	/* longest wait for the target, in ms */
	uint32_t deadline_ms = 2000;
	/* single pages are read at the target, too, instead of from the file */
	bool target_reads = false;
	/* each write to a log file waits for the disk */
	bool log_dsync = true;
};

/* Reads the configuration. Returns 0, or an error that was reported through `api`. */
int read_settings(WT_EXTENSION_API *api, WT_CONFIG_ARG *config, Settings *settings);

} /* namespace bpf_of */

#endif
