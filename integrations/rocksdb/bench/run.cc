/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "run.h"

#include "histogram.h"
#include "meters.h"
#include "open.h"
#include "settle.h"

#include <bpfof/rocksdb.h>
#include <rocksdb/cache.h>
#include <rocksdb/perf_context.h>
#include <rocksdb/version.h>
#if ROCKSDB_MAJOR >= 8
#include <rocksdb/advanced_cache.h>
#endif

#include <chrono>
#include <thread>

namespace bench {

using bpf_of::PushdownDB;
using rocksdb::Status;
using Clock = std::chrono::steady_clock;

namespace {

/* Tables are known after a few milliseconds if the target works. */
constexpr unsigned READY_MS = 30000;
/* A cache counts as full at this share of its size: its shards do not fill evenly. */
constexpr double FULL = 0.95;
/* The cache is filled in rounds of this length, until a round adds next to nothing, but not forever. */
constexpr unsigned FILL_MS = 200, FILL_ROUNDS_MAX = 150;
constexpr double FILL_LEAST = 0.005;
/* A measurement that lost more than this share of the processors' time to the hypervisor is repeated,
 * at most so often; the attempt that lost least counts. */
constexpr double STOLEN_MOST = 0.02;
constexpr unsigned ATTEMPTS = 3;

struct Opened {
	std::unique_ptr<rocksdb::DB> db;
	/* The same database, or null if it was opened without a target. */
	PushdownDB *pushdown = nullptr;
	std::shared_ptr<rocksdb::Cache> cache;
};

/* All counters at one moment, or the difference of two moments. */
struct Usage {
	double host_cpu_s, stolen_cpu_s;
	std::optional<double> target_cpu_s, energy_j;
	bpf_of::PushdownStats stats;

	static Usage now(const Opened &opened, const RunOptions &options)
	{
		Usage usage = {own_cpu_s(), bench::stolen_cpu_s(),
			options.target_pid ? cpu_s_of(*options.target_pid) : std::nullopt,
			bench::energy_j(), {}};

		if (opened.pushdown)
			usage.stats = opened.pushdown->stats();
		return usage;
	}

	Usage since(const Usage &before) const
	{
		const auto less = [](const auto &later, const auto &earlier) {
			/* Energy counters wrap around now and then. */
			return later && earlier && *later >= *earlier
				       ? std::optional<double>(*later - *earlier)
				       : std::nullopt;
		};
		Usage used = *this;

		used.host_cpu_s -= before.host_cpu_s;
		used.stolen_cpu_s -= before.stolen_cpu_s;
		used.target_cpu_s = less(target_cpu_s, before.target_cpu_s);
		used.energy_j = less(energy_j, before.energy_j);
		for (size_t way = 0; way < bpf_of::WAYS; way++)
			used.stats.gets[way] -= before.stats.gets[way];
		used.stats.blocks -= before.stats.blocks;
		used.stats.at_once -= before.stats.at_once;
		used.stats.sent_bytes -= before.stats.sent_bytes;
		used.stats.received_bytes -= before.stats.received_bytes;
		return used;
	}
};

/* The work of all clients together. */
struct Work {
	Histogram latencies_ns;
	double seconds = 0;
	/* Blocks of tables that RocksDB itself has read, from any source. */
	uint64_t rocksdb_blocks = 0;
};

struct Measured {
	Work done;
	Usage used = {};

	/* The share of the processors' time that the hypervisor took. */
	double stolen() const { return used.stolen_cpu_s / (done.seconds * processors()); }
};

/* Identifies the measurement in its line of output. */
struct Case {
	const Workload &workload;
	Mode mode;
	unsigned threads;
	unsigned repetition;
};

Status open(const RunOptions &options, const Shape &shape, bool is_local, Opened *opened)
{
	Opening opening = options.opening;

	opening.direct_reads = is_local;
	if (opening.cache_bytes)
		opened->cache = rocksdb::NewLRUCache(opening.cache_bytes);
	const rocksdb::Options settings = options_of(shape, opening, opened->cache);

	if (is_local) {
		rocksdb::DB *db = nullptr;
		const Status status = bpf_of::open_database(&db, settings, options.path);

		opened->db.reset(db);
		return status;
	}
	bpf_of::PushdownOptions pushdown;

	pushdown.url = options.url;
	pushdown.device = options.device;
	pushdown.target_reads = true;
	if (options.sample_rate) {
		pushdown.sample_rate = *options.sample_rate;
		pushdown.adapt_sampling = false;
	}
	pushdown.speculate = options.speculate;
	if (options.lanes_max)
		pushdown.lanes_max = *options.lanes_max;
	/* One for each client, and some for compactions. */
	pushdown.readers_max = *std::max_element(options.threads.begin(), options.threads.end()) + 8;
	const Status status = PushdownDB::Open(settings, pushdown, options.path, &opened->pushdown);

	opened->db.reset(opened->pushdown);
	return status;
}

class Runner {
    public:
	Runner(const RunOptions &options, Opened &opened, World &world)
		: options_(options), opened_(opened), world_(world)
	{
	}

	/* Waits until chains of reads go to the target. */
	Status reach_target();
	/* Measures all repetitions of a workload in these modes, in turn. */
	Status measure(const Workload &workload, unsigned threads, const std::vector<Mode> &modes);

    private:
	Status measure_once(const Case &which, const Zipf &zipf, Measured *measured);
	Status measure_well(const Case &which, const Zipf &zipf);
	Status warm_up(const Case &which, const Zipf &zipf);
	Status fill_cache(const Case &which, const Zipf &zipf);
	/* Waits until all writes are in tables, and these are known. */
	Status quiet();
	Status work(const Case &which, const Zipf &zipf, unsigned milliseconds, Work *done);
	void set_mode(Mode mode);

	const RunOptions &options_;
	Opened &opened_;
	World &world_;
	uint64_t seed_ = 0;
};

void Runner::set_mode(Mode mode)
{
	if (mode == Mode::kPlain)
		opened_.pushdown->set_mode(bpf_of::Mode::kPlain);
	else if (mode == Mode::kChains)
		opened_.pushdown->set_mode(bpf_of::Mode::kChains);
	else if (mode == Mode::kBlocks)
		opened_.pushdown->set_mode(bpf_of::Mode::kBlocks);
	else if (mode == Mode::kSingle)
		opened_.pushdown->set_mode(bpf_of::Mode::kSingleChains);
}

Status Runner::work(const Case &which, const Zipf &zipf, unsigned milliseconds, Work *done)
{
	const auto begun = Clock::now();
	const auto end = begun + std::chrono::milliseconds(milliseconds);
	std::atomic<bool> stop{false};
	std::mutex mutex;
	Status first_error;
	const auto client = [&](uint64_t seed) {
		Client client(world_, which.workload, zipf, seed);
		Histogram latencies;
		Status status;
		const uint64_t blocks_before = rocksdb::get_perf_context()->block_read_count;
		auto before = Clock::now();

		while (before < end && status.ok() && !stop.load(std::memory_order_relaxed)) {
			status = client.operate();
			const auto now = Clock::now();

			latencies.record(std::chrono::nanoseconds(now - before).count());
			before = now;
		}
		std::lock_guard<std::mutex> lock(mutex);

		if (!status.ok() && first_error.ok())
			first_error = status;
		stop = stop || !status.ok();
		done->latencies_ns.add(latencies);
		done->rocksdb_blocks += rocksdb::get_perf_context()->block_read_count - blocks_before;
	};
	std::vector<std::thread> clients;

	for (unsigned i = 0; i < which.threads; i++)
		clients.emplace_back(client, seed_++);
	for (std::thread &thread : clients)
		thread.join();
	done->seconds = std::chrono::duration<double>(Clock::now() - begun).count();
	return first_error;
}

Status Runner::reach_target()
{
	constexpr int GETS = 100;
	const auto end = Clock::now() + std::chrono::milliseconds(READY_MS);
	const Workload uniform;
	const Zipf zipf(world_.keys(), 1);
	Client client(world_, uniform, zipf, 0);
	Status status = quiet();

	/* With only samples there are no chains. */
	if (options_.sample_rate.value_or(0) >= 1)
		return status;
	set_mode(Mode::kChains);
	while (status.ok() && Clock::now() < end) {
		const bpf_of::PushdownStats before = opened_.pushdown->stats();

		for (int i = 0; i < GETS && status.ok(); i++)
			status = client.operate();
		const bpf_of::PushdownStats after = opened_.pushdown->stats();

		if (after[bpf_of::ReadPath::kHere] == before[bpf_of::ReadPath::kHere] &&
			after[bpf_of::ReadPath::kTarget] > before[bpf_of::ReadPath::kTarget])
			return status;
		std::this_thread::sleep_for(std::chrono::milliseconds(10));
	}
	return !status.ok() ? status
			    : Status::TimedOut("chains of reads do not run at the target",
				      opened_.pushdown->last_error());
}

Status Runner::quiet()
{
	const Status status = settle(world_.db());

	if (status.ok() && opened_.pushdown && !opened_.pushdown->wait_ready(READY_MS))
		return Status::TimedOut("the target did not learn the tables in time",
			opened_.pushdown->last_error());
	return status;
}

Status Runner::fill_cache(const Case &which, const Zipf &zipf)
{
	const double capacity = static_cast<double>(opened_.cache->GetCapacity());
	double before = 0, usage = 0;

	opened_.cache->EraseUnRefEntries();
	if (opened_.pushdown)
		set_mode(Mode::kPlain);
	for (unsigned round = 0; round < FILL_ROUNDS_MAX && usage < FULL * capacity; round++) {
		Work ignored;
		const Status status = work(which, zipf, FILL_MS, &ignored);

		if (!status.ok())
			return status;
		before = usage;
		usage = static_cast<double>(opened_.cache->GetUsage());
		if (usage - before < FILL_LEAST * capacity)
			break;
	}
	return Status::OK();
}

/* Runs a fifth of the measured time. RocksDB's own reads have filled the cache before: chains alone
 * would take a hundred times as long to fill it by sampling, with the same blocks. */
Status Runner::warm_up(const Case &which, const Zipf &zipf)
{
	Status status = opened_.cache ? fill_cache(which, zipf) : Status::OK();
	Work ignored;

	set_mode(which.mode);
	if (status.ok())
		status = work(which, zipf, std::max(options_.milliseconds / 5, 1U), &ignored);
	return status;
}

void print_optional(const char *field, const std::optional<double> &value)
{
	if (value)
		std::printf(", \"%s\": %.6f", field, *value);
	else
		std::printf(", \"%s\": null", field);
}

void print(const Case &which, const RunOptions &options, const Measured &measured)
{
	const auto &[done, used] = measured;
	const auto microseconds = [&](double share) {
		return done.latencies_ns.quantile(share) / 1000;
	};

	std::printf("{\"workload\": \"%s\", \"mode\": \"%s\", \"cache_bytes\": %zu, \"threads\": %u, "
		    "\"repetition\": %u, \"operations\": %llu, \"seconds\": %.6f, \"p50_us\": %.2f, "
		    "\"p99_us\": %.2f, \"p999_us\": %.2f, \"stolen\": %.4f, \"host_cpu_s\": %.6f",
		which.workload.name.c_str(), name(which.mode), options.opening.cache_bytes,
		which.threads, which.repetition,
		static_cast<unsigned long long>(done.latencies_ns.count()), done.seconds,
		microseconds(0.5), microseconds(0.99), microseconds(0.999), measured.stolen(),
		used.host_cpu_s);
	print_optional("target_cpu_s", used.target_cpu_s);
	print_optional("energy_j", used.energy_j);
	std::printf(", \"rocksdb_blocks\": %llu", static_cast<unsigned long long>(done.rocksdb_blocks));
	if (which.mode != Mode::kLocal) {
		std::printf(", \"chain_blocks\": %llu, \"at_once\": %llu, \"sent_bytes\": %llu, \"received_bytes\": %llu, "
			    "\"gets\": {",
			static_cast<unsigned long long>(used.stats.blocks),
			static_cast<unsigned long long>(used.stats.at_once),
			static_cast<unsigned long long>(used.stats.sent_bytes),
			static_cast<unsigned long long>(used.stats.received_bytes));
		for (size_t way = 0; way < bpf_of::WAYS; way++)
			std::printf("%s\"%s\": %llu", way ? ", " : "",
				bpf_of::name(static_cast<bpf_of::ReadPath>(way)),
				static_cast<unsigned long long>(used.stats.gets[way]));
		std::printf("}");
	}
	std::printf("}\n");
	std::fflush(stdout);
}

Status Runner::measure_once(const Case &which, const Zipf &zipf, Measured *measured)
{
	Status status = quiet();

	/* Without a cache the warm-up of the first repetition suffices for all. */
	if (status.ok() && (opened_.cache || which.repetition == 0))
		status = warm_up(which, zipf);
	if (status.ok() && which.workload.writes())
		status = quiet();
	if (!status.ok())
		return status;
	set_mode(which.mode);
	const Usage before = Usage::now(opened_, options_);

	status = work(which, zipf, options_.milliseconds, &measured->done);
	measured->used = Usage::now(opened_, options_).since(before);
	return status;
}

Status Runner::measure_well(const Case &which, const Zipf &zipf)
{
	Measured best;

	for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
		Measured measured;
		const Status status = measure_once(which, zipf, &measured);

		if (!status.ok())
			return status;
		if (attempt == 0 || measured.stolen() < best.stolen())
			best = std::move(measured);
		if (best.stolen() <= STOLEN_MOST)
			break;
	}
	print(which, options_, best);
	return Status::OK();
}

Status Runner::measure(const Workload &workload, unsigned threads, const std::vector<Mode> &modes)
{
	const Zipf zipf(world_.keys(), workload.theta);

	for (unsigned repetition = 0; repetition < options_.repetitions; repetition++) {
		/* Each mode comes first equally often: its writes affect all modes after it. */
		for (size_t turn = 0; turn < modes.size(); turn++) {
			const Mode mode = modes[(turn + repetition) % modes.size()];
			const Status status = measure_well({workload, mode, threads, repetition}, zipf);

			if (!status.ok())
				return status;
		}
	}
	return Status::OK();
}

/* Measures in a copy, whose tables are hard links, so that each run begins with the same tables in the
 * same levels, whatever earlier runs have written. */
Status run_modes(const RunOptions &options, const std::vector<Mode> &modes)
{
	Shape shape;
	Opened opened;
	RunOptions in_copy = options;
	Status status = load_shape(options.path, &shape);

	if (!status.ok())
		return status;
	const Copy copy(options.path, &status);

	in_copy.path = copy.path();
	if (status.ok())
		status = open(in_copy, shape, modes.front() == Mode::kLocal, &opened);
	if (!status.ok())
		return status;
	World world(opened.db.get(), shape);
	Runner runner(options, opened, world);

	if (opened.pushdown)
		status = runner.reach_target();
	for (const unsigned threads : options.threads) {
		for (const Workload &workload : options.workloads) {
			if (status.ok())
				status = runner.measure(workload, threads, modes);
		}
	}
	const Status closed = opened.db->Close();

	/* Closed before the copy is removed. */
	opened.db.reset();
	return status.ok() ? closed : status;
}

} /* namespace */

const char *name(Mode mode)
{
	static const char *const NAMES[MODES] = {"plain", "chains", "blocks", "single", "local"};

	return NAMES[static_cast<size_t>(mode)];
}

Status run(const RunOptions &options)
{
	std::vector<Mode> at_target, local;
	Status status;

	for (const Mode mode : options.modes)
		(mode == Mode::kLocal ? local : at_target).push_back(mode);
	if (!at_target.empty())
		status = run_modes(options, at_target);
	if (status.ok() && !local.empty())
		status = run_modes(options, local);
	return status;
}

} /* namespace bench */
