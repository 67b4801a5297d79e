/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The function that WiredTiger calls when it loads the library. */
#include "engine.h"

#include <cerrno>
#include <exception>

extern "C" __attribute__((visibility("default"))) int wiredtiger_extension_init(WT_CONNECTION *connection,
	WT_CONFIG_ARG *config)
{
	WT_EXTENSION_API *const api = connection->get_extension_api(connection);
	bpf_of::Settings settings;
	int major = 0, minor = 0;

	api->version(&major, &minor, nullptr);
	/* The methods of sessions and cursors differ between minor versions. */
	if (major != WIREDTIGER_VERSION_MAJOR || minor != WIREDTIGER_VERSION_MINOR) {
		api->err_printf(api, nullptr,
			"bpfof: this extension was built for WiredTiger %d.%d, but %d.%d is running: build it with the headers "
			"of the running version (docs/wiredtiger.md)",
			WIREDTIGER_VERSION_MAJOR, WIREDTIGER_VERSION_MINOR, major, minor);
		return EINVAL;
	}
	if (bpf_of::engine_of(connection)) {
		api->err_printf(api, nullptr, "bpfof: the extension is listed twice in extensions=[]");
		return EINVAL;
	}
	int error = bpf_of::read_settings(api, config, &settings);

	if (error)
		return error;
	bpf_of::Engine *engine = nullptr;

	try {
		engine = new bpf_of::Engine(connection, settings);
		if (!bpf_of::wrap_connection(connection, engine)) {
			api->err_printf(api, nullptr, "bpfof: too many databases are open in this process");
			delete engine;
			return EINVAL;
		}
		error = bpf_of::set_file_system(connection, engine);
	} catch (const bpf_of::Mistake &mistake) {
		api->err_printf(api, nullptr, "bpfof: %s", mistake.what());
		return EINVAL;
	} catch (const std::exception &failure) {
		/* There is no memory, or no thread. */
		api->err_printf(api, nullptr, "bpfof: the extension cannot be loaded: %s", failure.what());
		bpf_of::unwrap_connection(engine);
		delete engine;
		return ENOMEM;
	}
	if (error) {
		api->err_printf(api, nullptr, "bpfof: the extension must be loaded before the database is open, and without "
			"another file system: extensions=[LIBRARY={early_load=true}]");
		bpf_of::unwrap_connection(engine);
		delete engine;
		return error;
	}
	return 0;
}
