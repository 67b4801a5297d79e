// SPDX-License-Identifier: Apache-2.0 OR MIT
// bpfof-wiredtiger-bench: makes a table, and uses it with plain reads and with pushdown in turn.
// `bpfof bench wiredtiger` runs it. Each measurement is a line of JSON.
#include <dlfcn.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bpfof/wiredtiger.h"
#include "check.h"
#include "histogram.h"
#include "meters.h"

namespace bench {
// The source of random numbers for zipf.h.
class Random {
    public:
	explicit Random(uint64_t seed) : random_(seed) {}
	uint64_t next() { return random_(); }

    private:
	std::mt19937_64 random_;
};
} // namespace bench

#include "zipf.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kValueBytes = 16;
constexpr int kScanRows = 100;

struct Options {
	std::string folder, extension, url, device, pages = "512", workloads = "uniform", modes = "plain,values";
	uint64_t keys = 1000000, cache_bytes = 100 << 20, milliseconds = 1000, warm_milliseconds = 500;
	int threads = 8, repetitions = 3, target_pid = 0, lanes = 128;
	bool scan_first = false;
};

const char *const kUsage =
	"usage: bpfof-wiredtiger-bench create FOLDER [--keys N] [--pages 512|4096|default]\n"
	"       bpfof-wiredtiger-bench run FOLDER --extension LIBRARY --url URL --device PATH --keys N\n"
	"           [--cache-bytes N] [--workloads LIST] [--modes plain,pages,values] [--threads N]\n"
	"           [--milliseconds N] [--warm-milliseconds N] [--repetitions N] [--target-pid PID] [--scan-first]\n"
	"           [--lanes N]\n"
	"run measures in a copy of FOLDER. --scan-first reads the whole table into the cache, which must hold it.\n"
	"Workloads: uniform, zipf, and YCSB's a to f. The table's rows are 16 + 16 bytes.\n";

std::string PageOptions(const std::string &pages)
{
	if (pages == "default")
		return "";
	return ",allocation_size=" + pages + "B,internal_page_max=" + pages + "B,leaf_page_max=" + pages + "B";
}

constexpr size_t kKeyBytes = 16;

std::string KeyOf(uint64_t number)
{
	char text[24];

	std::snprintf(text, sizeof(text), "%016llu", static_cast<unsigned long long>(number));
	return text;
}

uint64_t NumberOf(const WT_ITEM &key)
{
	const char *const digits = static_cast<const char *>(key.data);
	uint64_t number = 0;

	CHECK(key.size == kKeyBytes, "a key has %zu bytes", key.size);
	for (size_t i = 0; i < kKeyBytes; i++) {
		CHECK(digits[i] >= '0' && digits[i] <= '9', "a key is %.16s", digits);
		number = 10 * number + uint64_t(digits[i] - '0');
	}
	return number;
}

// Each row's value begins with half the key, whichever thread wrote it.
std::string ValueOf(const std::string &key, uint64_t salt)
{
	std::string value = key.substr(key.size() - kValueBytes / 2);

	value.resize(kValueBytes, char('a' + salt % 26));
	return value;
}

void Create(const Options &options)
{
	WT_CONNECTION *connection;
	WT_SESSION *session;
	WT_CURSOR *cursor;
	// Through the extension, so that files are extended in advance; without a target.
	const std::string settings = "create,cache_size=500MB,extensions=[" + options.extension + "={early_load=true}]";

	CHECK(std::system(("mkdir -p '" + options.folder + "'").c_str()) == 0, "%s", options.folder.c_str());
	CHECK_WT(wiredtiger_open(options.folder.c_str(), nullptr, settings.c_str(), &connection));
	CHECK_WT(connection->open_session(connection, nullptr, nullptr, &session));
	CHECK_WT(session->create(session, "table:rows", ("key_format=u,value_format=u" + PageOptions(options.pages)).c_str()));
	CHECK_WT(session->open_cursor(session, "table:rows", nullptr, "bulk", &cursor));
	for (uint64_t i = 0; i < options.keys; i++) {
		const std::string key = KeyOf(i), value = ValueOf(key, i);
		const WT_ITEM key_item = {key.data(), key.size(), nullptr, 0, 0};
		const WT_ITEM value_item = {value.data(), value.size(), nullptr, 0, 0};

		cursor->set_key(cursor, &key_item);
		cursor->set_value(cursor, &value_item);
		CHECK_WT(cursor->insert(cursor));
	}
	CHECK_WT(cursor->close(cursor));
	CHECK_WT(session->checkpoint(session, nullptr));
	CHECK_WT(connection->close(connection, nullptr));
	std::printf("{\"keys\": %llu, \"pages\": \"%s\"}\n", static_cast<unsigned long long>(options.keys),
		options.pages.c_str());
}

// The percentages of operations in a workload.
struct Mix {
	int reads, updates, inserts, scans, changes;
	enum { UNIFORM, ZIPF, NEWEST } keys;
};

Mix MixOf(const std::string &name)
{
	const struct {
		const char *name;
		Mix mix;
	} all[] = {
		{"uniform", {100, 0, 0, 0, 0, Mix::UNIFORM}}, {"zipf", {100, 0, 0, 0, 0, Mix::ZIPF}},
		{"a", {50, 50, 0, 0, 0, Mix::ZIPF}}, {"b", {95, 5, 0, 0, 0, Mix::ZIPF}},
		{"c", {100, 0, 0, 0, 0, Mix::ZIPF}}, {"d", {95, 0, 5, 0, 0, Mix::NEWEST}},
		{"e", {0, 0, 5, 95, 0, Mix::ZIPF}}, {"f", {50, 0, 0, 0, 50, Mix::ZIPF}},
	};

	for (const auto &one : all)
		if (name == one.name)
			return one.mix;
	std::fprintf(stderr, "%s is not a workload\n%s", name.c_str(), kUsage);
	std::exit(2);
}

// The rows of the table: existing ones, and those being inserted.
class Rows {
    public:
	Rows(uint64_t count, int threads) : count_(count), inserting_(threads)
	{
		for (auto &number : inserting_)
			number = kNone;
	}

	// Reserves the number of a new row for a thread, until the row is inserted.
	uint64_t Begin(int thread)
	{
		inserting_[thread] = count_.load();
		return inserting_[thread] = count_.fetch_add(1);
	}
	void End(int thread) { inserting_[thread] = kNone; }

	// All rows with smaller numbers exist.
	uint64_t Present() const
	{
		// A thread has published the smaller number that it has taken before.
		uint64_t present = count_.load();

		for (const auto &number : inserting_)
			present = std::min(present, number.load());
		return present;
	}

    private:
	static constexpr uint64_t kNone = UINT64_MAX;

	std::atomic<uint64_t> count_;
	std::vector<std::atomic<uint64_t>> inserting_;
};

// Scatters popular keys over the table.
uint64_t Scatter(uint64_t rank, uint64_t count)
{
	return (rank * 0x9e3779b97f4a7c15ull >> 20) % count;
}

class Worker {
    public:
	Worker(WT_CONNECTION *connection, const Mix &mix, const bench::Zipf &zipf, uint64_t keys, Rows *rows, int thread,
		uint64_t seed)
		: mix_(mix), zipf_(zipf), keys_(keys), rows_(*rows), thread_(thread), random_(seed)
	{
		CHECK_WT(connection->open_session(connection, nullptr, nullptr, &session_));
		CHECK_WT(session_->open_cursor(session_, "table:rows", nullptr, nullptr, &cursor_));
	}
	~Worker() { session_->close(session_, nullptr); }
	Worker(const Worker &) = delete;
	Worker &operator=(const Worker &) = delete;

	void Run(const std::atomic<bool> &stop)
	{
		while (!stop.load(std::memory_order_relaxed)) {
			const auto begun = Clock::now();

			Operate();
			latencies_.record(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count());
		}
		CHECK_WT(cursor_->reset(cursor_));
	}

	const bench::Histogram &latencies() const { return latencies_; }

    private:
	uint64_t Choose()
	{
		switch (mix_.keys) {
		case Mix::UNIFORM:
			return random_.next() % keys_;
		case Mix::ZIPF:
			return Scatter(zipf_.next(random_), keys_);
		default:
			return rows_.Present() - 1 - zipf_.next(random_);
		}
	}

	void Operate()
	{
		int kind = int(random_.next() % 100);

		if ((kind -= mix_.reads) < 0)
			return Read(KeyOf(Choose()));
		if ((kind -= mix_.updates) < 0)
			return Write(KeyOf(Choose()));
		if ((kind -= mix_.inserts) < 0) {
			Write(KeyOf(rows_.Begin(thread_)));
			return rows_.End(thread_);
		}
		if ((kind -= mix_.scans) < 0)
			return Scan(Choose());
		const std::string key = KeyOf(Choose());

		Read(key);
		Write(key);
	}

	void SetKey(const std::string &key)
	{
		const WT_ITEM item = {key.data(), key.size(), nullptr, 0, 0};

		cursor_->set_key(cursor_, &item);
	}

	void Read(const std::string &key)
	{
		WT_ITEM value;

		SetKey(key);
		CHECK_WT(cursor_->search(cursor_));
		CHECK_WT(cursor_->get_value(cursor_, &value));
		CheckValue(key.data(), value);
	}

	static void CheckValue(const char *key, const WT_ITEM &value)
	{
		CHECK(value.size == kValueBytes && !memcmp(value.data, key + kKeyBytes - kValueBytes / 2, kValueBytes / 2),
			"the value of %.16s is wrong", key);
	}

	void Write(const std::string &key)
	{
		const std::string value = ValueOf(key, random_.next());
		const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};
		int error;

		do {
			SetKey(key);
			cursor_->set_value(cursor_, &item);
			error = cursor_->insert(cursor_);
		} while (error == WT_ROLLBACK);
		CHECK_WT(error);
	}

	// Every row that existed before must come, in order.
	void Scan(uint64_t first)
	{
		const uint64_t present = rows_.Present();
		const std::string key = KeyOf(first);
		uint64_t next = first;
		int exact, error;

		SetKey(key);
		error = cursor_->search_near(cursor_, &exact);
		CHECK(error || !exact, "row %s is not found", key.c_str());
		for (int left = int(random_.next() % kScanRows); !error; left--) {
			next = CheckRow(next, present) + 1;
			if (!left)
				return;
			error = cursor_->next(cursor_);
		}
		CHECK(error == WT_NOTFOUND, "%s", wiredtiger_strerror(error));
		CHECK(next >= present, "a scan ends before row %llu", static_cast<unsigned long long>(next));
	}

	// The number of the cursor's row: the expected one, or a later one where rows are being
	// inserted.
	uint64_t CheckRow(uint64_t next, uint64_t present)
	{
		WT_ITEM key, value;

		CHECK_WT(cursor_->get_key(cursor_, &key));
		CHECK_WT(cursor_->get_value(cursor_, &value));
		const uint64_t number = NumberOf(key);

		CHECK(number == next || (next >= present && number > next), "row %llu instead of row %llu",
			static_cast<unsigned long long>(number), static_cast<unsigned long long>(next));
		CheckValue(static_cast<const char *>(key.data), value);
		return number;
	}

	const Mix mix_;
	const bench::Zipf &zipf_;
	const uint64_t keys_;
	Rows &rows_;
	const int thread_;
	bench::Random random_;
	WT_SESSION *session_;
	WT_CURSOR *cursor_;
	bench::Histogram latencies_;
};

// The functions of the loaded extension.
struct Extension {
	explicit Extension(const std::string &path)
	{
		void *const library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);

		CHECK(library, "%s", dlerror());
		read = reinterpret_cast<decltype(read)>(dlsym(library, "bpfof_wiredtiger_read_counters"));
		set_mode = reinterpret_cast<decltype(set_mode)>(dlsym(library, "bpfof_wiredtiger_set_mode"));
		CHECK(read && set_mode, "%s", dlerror());
	}

	bpfof_wiredtiger_counters Counters() const
	{
		bpfof_wiredtiger_counters counters;

		read(&counters, sizeof(counters));
		return counters;
	}

	void (*read)(bpfof_wiredtiger_counters *, size_t);
	void (*set_mode)(bpfof_wiredtiger_mode);
};

bpfof_wiredtiger_mode ModeOf(const std::string &name)
{
	if (name == "plain")
		return BPFOF_WIREDTIGER_PLAIN;
	if (name == "pages")
		return BPFOF_WIREDTIGER_PAGES;
	CHECK(name == "values", "%s is not a mode; use plain, pages or values", name.c_str());
	return BPFOF_WIREDTIGER_VALUES;
}

void For(const Options &options, WT_CONNECTION *connection, const Mix &mix, const bench::Zipf &zipf, Rows *rows,
	uint64_t milliseconds, bench::Histogram *latencies)
{
	static uint64_t seed = 1;
	std::atomic<bool> stop{false};
	std::vector<std::unique_ptr<Worker>> workers;
	std::vector<std::thread> threads;

	for (int i = 0; i < options.threads; i++)
		workers.push_back(std::make_unique<Worker>(connection, mix, zipf, options.keys, rows, i, seed++));
	for (auto &worker : workers)
		threads.emplace_back([&] { worker->Run(stop); });
	std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
	stop = true;
	for (std::thread &thread : threads)
		thread.join();
	for (auto &worker : workers)
		latencies->add(worker->latencies());
}

void Measure(const Options &options, WT_CONNECTION *connection, const Extension &extension, Rows *rows,
	const std::string &workload, const std::string &mode)
{
	const Mix mix = MixOf(workload);
	const bench::Zipf zipf(options.keys, 0.99);
	bench::Histogram warm, latencies;

	extension.set_mode(ModeOf(mode));
	For(options, connection, mix, zipf, rows, options.warm_milliseconds, &warm);
	const auto before = extension.Counters();
	const double cpu = bench::own_cpu_s(), stolen = bench::stolen_cpu_s();
	const double target = options.target_pid ? bench::cpu_s_of(options.target_pid).value_or(0) : 0;
	const auto begun = Clock::now();

	For(options, connection, mix, zipf, rows, options.milliseconds, &latencies);
	const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
	const auto after = extension.Counters();
	const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };

	int version[3];

	wiredtiger_version(&version[0], &version[1], &version[2]);
	std::printf("{\"wiredtiger\": \"%d.%d.%d\", \"workload\": \"%s\", \"mode\": \"%s\", \"threads\": %d, \"operations\": %llu, \"seconds\": %.4f, "
		    "\"p50_us\": %.2f, \"p99_us\": %.2f, \"host_cpu_s\": %.4f, \"target_cpu_s\": %.4f, \"stolen\": %.4f, "
		    "\"round_trips\": %llu, \"values\": %llu, \"staged\": %llu, \"file_reads\": %llu, \"failed\": %llu, "
		    "\"stale\": %llu}\n",
		version[0], version[1], version[2], workload.c_str(), mode.c_str(), options.threads, number(latencies.count()),
		seconds,
		latencies.quantile(0.5) / 1e3, latencies.quantile(0.99) / 1e3, bench::own_cpu_s() - cpu,
		(options.target_pid ? bench::cpu_s_of(options.target_pid).value_or(0) : 0) - target,
		(bench::stolen_cpu_s() - stolen) / seconds / bench::processors(), number(after.round_trips - before.round_trips),
		number(after.values + after.absent - before.values - before.absent), number(after.staged - before.staged),
		number(after.file_reads - before.file_reads), number(after.failed - before.failed),
		number(after.stale - before.stale));
	std::fflush(stdout);
}

std::vector<std::string> Split(const std::string &list)
{
	std::istringstream stream(list);
	std::vector<std::string> words;

	for (std::string word; std::getline(stream, word, ',');)
		words.push_back(word);
	return words;
}

// A copy of a closed database, beside it, that lives as long as this object: each run begins with the
// same tables.
class Copy {
    public:
	explicit Copy(const std::string &folder) : folder_(folder + ".run")
	{
		namespace fs = std::filesystem;

		fs::remove_all(folder_);
		fs::copy(folder, folder_);
		// Chains read the device, past the page cache: sync the copy first.
		const int file = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		CHECK(file >= 0 && !syncfs(file) && !close(file), "%s: %s", folder_.c_str(), std::strerror(errno));
	}
	~Copy()
	{
		std::error_code ignored;

		std::filesystem::remove_all(folder_, ignored);
	}
	Copy(const Copy &) = delete;
	Copy &operator=(const Copy &) = delete;

	const std::string &folder() const { return folder_; }

    private:
	const std::string folder_;
};

// Brings all pages into the cache.
void ScanAll(WT_CONNECTION *connection)
{
	WT_SESSION *session;
	WT_CURSOR *cursor;
	int error;

	CHECK_WT(connection->open_session(connection, nullptr, nullptr, &session));
	CHECK_WT(session->open_cursor(session, "table:rows", nullptr, nullptr, &cursor));
	while (!(error = cursor->next(cursor)))
		;
	CHECK(error == WT_NOTFOUND, "%s", wiredtiger_strerror(error));
	CHECK_WT(session->close(session, nullptr));
}

void Run(const Options &options)
{
	WT_CONNECTION *connection;
	const std::string settings = "cache_size=" + std::to_string(options.cache_bytes) +
				     ",eviction=(threads_min=2,threads_max=2),session_max=1000,extensions=[" + options.extension +
				     "={early_load=true,config={url=\"" + options.url + "\",device=\"" + options.device +
				     "\",lanes=" + std::to_string(options.lanes) + ",target_reads=true}}]";

	for (const std::string &workload : Split(options.workloads))
		MixOf(workload);
	const Copy copy(options.folder);

	CHECK_WT(wiredtiger_open(copy.folder().c_str(), nullptr, settings.c_str(), &connection));
	const Extension extension(options.extension);
	Rows rows(options.keys, options.threads);

	extension.set_mode(BPFOF_WIREDTIGER_PLAIN);
	if (options.scan_first)
		ScanAll(connection);
	for (const std::string &workload : Split(options.workloads)) {
		bench::Histogram fill;

		// Plain reads fill the cache with this workload's pages.
		extension.set_mode(BPFOF_WIREDTIGER_PLAIN);
		For(options, connection, MixOf(workload), bench::Zipf(options.keys, 0.99), &rows,
			3 * options.warm_milliseconds, &fill);
		// Each mode comes first equally often: its writes affect all modes after it.
		const std::vector<std::string> modes = Split(options.modes);

		for (int repetition = 0; repetition < options.repetitions; repetition++)
			for (size_t turn = 0; turn < modes.size(); turn++)
				Measure(options, connection, extension, &rows, workload, modes[(turn + repetition) % modes.size()]);
	}
	CHECK_WT(connection->close(connection, nullptr));
}

} // namespace

int main(int argc, char **argv)
{
	Options options;
	const struct option known[] = {{"extension", 1, nullptr, 'x'}, {"url", 1, nullptr, 'u'},
		{"device", 1, nullptr, 'd'}, {"pages", 1, nullptr, 'p'}, {"workloads", 1, nullptr, 'w'},
		{"modes", 1, nullptr, 'm'}, {"keys", 1, nullptr, 'k'}, {"cache-bytes", 1, nullptr, 'c'},
		{"milliseconds", 1, nullptr, 'l'}, {"warm-milliseconds", 1, nullptr, 'W'}, {"threads", 1, nullptr, 't'},
		{"repetitions", 1, nullptr, 'r'}, {"target-pid", 1, nullptr, 'T'}, {"scan-first", 0, nullptr, 's'},
		{"lanes", 1, nullptr, 'L'},
		{"help", 0, nullptr, 'h'}, {}};
	const auto number = [] { return std::strtoull(optarg, nullptr, 10); };

	for (int found; (found = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
		switch (found) {
		case 'x': options.extension = optarg; break;
		case 'u': options.url = optarg; break;
		case 'd': options.device = optarg; break;
		case 'p': options.pages = optarg; break;
		case 'w': options.workloads = optarg; break;
		case 'm': options.modes = optarg; break;
		case 'k': options.keys = number(); break;
		case 'c': options.cache_bytes = number(); break;
		case 'l': options.milliseconds = number(); break;
		case 'W': options.warm_milliseconds = number(); break;
		case 't': options.threads = int(number()); break;
		case 'r': options.repetitions = int(number()); break;
		case 'T': options.target_pid = int(number()); break;
		case 's': options.scan_first = true; break;
		case 'L': options.lanes = int(number()); break;
		default: std::fputs(kUsage, found == 'h' ? stdout : stderr); return found == 'h' ? 0 : 2;
		}
	}
	const std::string command = optind < argc ? argv[optind] : "";

	if (optind + 2 != argc || (command != "create" && command != "run") || options.keys < 2 || options.threads < 1) {
		std::fputs(kUsage, stderr);
		return 2;
	}
	options.folder = argv[optind + 1];
	// Threads share a processor. If a thread that wakes preempts a running one, as is usual, that
	// one waits for milliseconds, and high percentiles show nothing else. If this call fails,
	// preemption stays as usual.
	const struct sched_param none = {};

	sched_setscheduler(0, SCHED_BATCH, &none);
	command == "create" ? Create(options) : Run(options);
	return 0;
}
