/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The command line of bpfof-rocksdb-bench. */
#include "run.h"

#include <getopt.h>
#include <sched.h>

#include <cstring>
#include <functional>
#include <map>
#include <sstream>

namespace {

using bench::RunOptions;
using bench::Shape;

const char *const USAGE =
	"Measures RocksDB over NVMe/TCP: plain reads against pushdown.\n"
	"\n"
	"usage: bpfof-rocksdb-bench create FOLDER [--keys N] [--value-bytes N] [--values KIND]\n"
	"       bpfof-rocksdb-bench run FOLDER --url URL --device DEVICE [OPTIONS]\n"
	"\n"
	"create makes a database of five levels without compression, and prints what it consists of;\n"
	"an existing one of the same size is left alone.\n"
	"  --keys N              keys of 16 bytes, at least 100000 [default: 9000000]\n"
	"  --value-bytes N       bytes of a value, 16 to 4096 [default: 100]\n"
	"  --values KIND         plain: in tables; merge: with an operand for each in a level above\n"
	"                        the last, needs 300 bytes or more; blob: in blob files [default: plain]\n"
	"\n"
	"run measures each workload in all modes in turn, and prints a JSON object for each\n"
	"measurement. Every answer is checked; a wrong one ends the run.\n"
	"  --url URL             the target: nvme-tcp://HOST:PORT/NQN?ns=N; not for mode local alone\n"
	"  --device DEVICE       its namespace on this machine: block device or image\n"
	"  --target-pid PID      the target's process, to report its processor time\n"
	"  --workloads LIST      see below [default: uniform]\n"
	"  --modes LIST          plain, chains, blocks, single, local [default: plain,chains,blocks]\n"
	"  --threads LIST        clients [default: 24]\n"
	"  --repetitions N       of each mode [default: 3]\n"
	"  --milliseconds N      length of each [default: 1000]\n"
	"  --cache-bytes N       block cache [default: 0, none]\n"
	"  --evictable-index     index blocks are in the block cache, which is then needed\n"
	"  --bloom               Bloom filters are used\n"
	"  --sample-rate X       fixed share of Gets that RocksDB does itself, for its cache\n"
	"                        [default: the library adapts it]\n"
	"  --lanes-max N         connections that clients share, one for each processor; 0: each client has\n"
	"                        its own [default: the library's]\n"
	"  --speculate WAY       never, when-faster or always: search the tables of a key at once\n"
	"                        [default: when-faster]\n"
	"  --check               do nothing; fail if the options are not good\n"
	"\n"
	"workloads:\n";

[[noreturn]] void refuse(const std::string &why)
{
	std::fprintf(stderr, "bpfof-rocksdb-bench: %s; see --help\n", why.c_str());
	std::exit(2);
}

std::vector<std::string> split(const std::string &list)
{
	std::vector<std::string> parts;
	std::istringstream stream(list);

	for (std::string part; std::getline(stream, part, ',');)
		parts.push_back(part);
	return parts;
}

double number(const std::string &option, const std::string &text, double least, double most)
{
	char *end = nullptr;
	const double value = std::strtod(text.c_str(), &end);

	if (text.empty() || *end != '\0' || !(value >= least && value <= most)) {
		std::ostringstream why;

		why << "--" << option << ' ' << text << ": a number from " << least << " to " << most;
		refuse(why.str());
	}
	return value;
}

uint64_t whole(const std::string &option, const std::string &text, double least, double most)
{
	const double value = number(option, text, least, most);

	if (value != std::floor(value))
		refuse("--" + option + " " + text + ": a whole number");
	return static_cast<uint64_t>(value);
}

std::vector<bench::Workload> workloads(const std::string &list)
{
	std::vector<bench::Workload> found;

	for (const std::string &name : split(list)) {
		bench::Workload workload;

		if (!bench::parse_workload(name, &workload))
			refuse("there is no workload " + name);
		found.push_back(workload);
	}
	return found;
}

bench::Values values(const std::string &word)
{
	size_t kind = 0;

	while (kind < bench::VALUES && word != bench::name(static_cast<bench::Values>(kind)))
		kind++;
	if (kind == bench::VALUES)
		refuse("--values " + word + ": plain, merge or blob");
	return static_cast<bench::Values>(kind);
}

std::vector<bench::Mode> modes(const std::string &list)
{
	std::vector<bench::Mode> found;

	for (const std::string &word : split(list)) {
		size_t mode = 0;

		while (mode < bench::MODES && word != bench::name(static_cast<bench::Mode>(mode)))
			mode++;
		if (mode == bench::MODES)
			refuse("there is no mode " + word);
		found.push_back(static_cast<bench::Mode>(mode));
	}
	return found;
}

using Handler = std::function<void(const std::string &)>;

/* Passes each option, without its dashes, and its value to its handler. Options in `flags` have no
 * value. */
void parse(int argc, char **argv, const std::map<std::string, Handler> &handlers,
	const std::vector<std::string> &flags)
{
	std::vector<struct option> options;

	for (const auto &entry : handlers) {
		const bool is_flag = std::count(flags.begin(), flags.end(), entry.first) > 0;

		options.push_back(
			{entry.first.c_str(), is_flag ? no_argument : required_argument, nullptr, 0});
	}
	options.push_back({});
	int which = 0;

	for (int got; (got = getopt_long(argc, argv, "", options.data(), &which)) != -1;) {
		if (got != 0)
			std::exit(2);
		handlers.at(options[which].name)(optarg ? optarg : "");
	}
	if (optind < argc)
		refuse(std::string("unknown argument ") + argv[optind]);
}

rocksdb::Status create(const std::string &path, int argc, char **argv)
{
	Shape shape;

	parse(argc, argv,
		{{"keys", [&](auto text) { shape.keys = whole("keys", text, bench::KEYS_MIN, 1e9); }},
			{"values", [&](auto text) { shape.values = values(text); }},
			{"value-bytes",
				[&](auto text) {
					shape.value_bytes = whole("value-bytes", text,
						bench::VALUE_BYTES_MIN, bench::VALUE_BYTES_MAX);
				}}},
		{});
	return bench::create(path, shape);
}

rocksdb::Status run(const std::string &path, int argc, char **argv)
{
	RunOptions options;
	bench::Opening &opening = options.opening;
	bool checks_only = false;

	options.path = path;
	options.workloads = workloads("uniform");
	const auto threads = [&](const std::string &list) {
		options.threads.clear();
		for (const std::string &text : split(list))
			options.threads.push_back(whole("threads", text, 1, 1000));
	};

	parse(argc, argv,
		{{"url", [&](auto text) { options.url = text; }},
			{"device", [&](auto text) { options.device = text; }},
			{"target-pid",
				[&](auto text) {
					options.target_pid = whole("target-pid", text, 1, 1e9);
				}},
			{"workloads", [&](auto text) { options.workloads = workloads(text); }},
			{"modes", [&](auto text) { options.modes = modes(text); }},
			{"threads", threads},
			{"repetitions",
				[&](auto text) {
					options.repetitions = whole("repetitions", text, 1, 1000);
				}},
			{"milliseconds",
				[&](auto text) {
					options.milliseconds = whole("milliseconds", text, 1, 3.6e6);
				}},
			{"cache-bytes",
				[&](auto text) {
					opening.cache_bytes = whole("cache-bytes", text, 0, 1e12);
				}},
			{"evictable-index", [&](auto) { opening.evictable_index = true; }},
			{"bloom", [&](auto) { opening.bloom = true; }},
			{"lanes-max",
				[&](auto text) {
					options.lanes_max = whole("lanes-max", text, 0, UINT32_MAX);
				}},
			{"speculate",
				[&](auto text) {
					bpf_of::PushdownOptions parsed;

					if (!parsed.set("speculate", text).ok())
						refuse("--speculate " + text + ": never, when-faster or always");
					options.speculate = parsed.speculate;
				}},
			{"check", [&](auto) { checks_only = true; }},
			{"sample-rate",
				[&](auto text) {
					options.sample_rate = number("sample-rate", text, 0, 1);
				}}},
		{"evictable-index", "bloom", "check"});
	if (options.workloads.empty() || options.modes.empty() || options.threads.empty())
		refuse("--workloads, --modes and --threads need at least one entry each");
	const bool is_remote = std::any_of(options.modes.begin(), options.modes.end(),
		[](bench::Mode mode) { return mode != bench::Mode::kLocal; });

	if (is_remote && (options.url.empty() || options.device.empty()))
		refuse("--url and --device are needed");
	if (opening.evictable_index && opening.cache_bytes == 0)
		refuse("--evictable-index needs --cache-bytes");
	return checks_only ? rocksdb::Status::OK() : bench::run(options);
}

} /* namespace */

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!std::strcmp(argv[i], "--help")) {
			std::printf("%s%s", USAGE, bench::WORKLOADS);
			return 0;
		}
	}
	const std::string command = argc > 1 ? argv[1] : "";

	if ((command != "create" && command != "run") || argc < 3 || argv[2][0] == '-')
		refuse("usage: create or run, then the database's folder");
	const std::string path = argv[2];

	/*
	 * Clients share a processor. If a thread that wakes preempts a running one, as is usual, that
	 * one waits for milliseconds, and high percentiles show nothing else. If this call fails,
	 * preemption stays as usual.
	 */
	const struct sched_param none = {};

	sched_setscheduler(0, SCHED_BATCH, &none);
	/* The remaining arguments follow a program name, as getopt_long() expects. */
	argv[2] = argv[0];
	const rocksdb::Status status =
		command == "create" ? create(path, argc - 2, argv + 2) : run(path, argc - 2, argv + 2);

	if (!status.ok()) {
		std::fprintf(stderr, "bpfof-rocksdb-bench: %s %s: %s\n", command.c_str(), path.c_str(),
			status.ToString().c_str());
		return 1;
	}
	return 0;
}
