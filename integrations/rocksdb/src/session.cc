/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "session.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>

namespace bpf_of {

namespace {

/* How long a chain waits for the map of a file. Views have already waited for the maps of new tables
 * (version_tracker.cc). Where mapping takes longer, as for many tables of a newly opened database, no
 * Get waits for it. */
constexpr uint32_t PATIENCE_US = 2000;
/* How long to wait before asking a target for a connection again that had none left. */
constexpr int64_t REFUSED_MS = 2000;
/* How long a reader without a target may be idle. */
constexpr int64_t IDLE_MS = 10000;

/* The storage function's object, in this library's read-only data. */
extern "C" const unsigned char bpfof_sst_get_object[];
extern "C" const unsigned char bpfof_sst_get_object_end[];

__asm__(".pushsection .rodata\n"
	".balign 8\n"
	".global bpfof_sst_get_object\n"
	".hidden bpfof_sst_get_object\n"
	"bpfof_sst_get_object:\n"
	".incbin \"" BPFOF_SST_GET_OBJECT "\"\n"
	".global bpfof_sst_get_object_end\n"
	".hidden bpfof_sst_get_object_end\n"
	"bpfof_sst_get_object_end:\n"
	".popsection\n");

} /* namespace */

rocksdb::Status Session::open(const PushdownOptions &options, std::shared_ptr<Session> *session)
{
	std::shared_ptr<Session> opened(new Session(options));
	struct bpfof_options settings = BPFOF_OPTIONS_INIT;

	/* A TableFile keeps its number until it calls bpfof_forget(). */
	settings.flags = BPFOF_STABLE_FDS;
	settings.lanes_max = options.lanes_max;
	settings.patience_us = PATIENCE_US;

	if (options.url.empty()) {
		opened->bpfof_ = bpfof_open(nullptr, nullptr, &settings);
	} else {
		const char *const device = options.device.empty() ? nullptr : options.device.c_str();

		/* A caller who names a target needs to know if it cannot be reached. */
		opened->bpfof_ = bpfof_open(options.url.c_str(), device, &settings);
		if (opened->bpfof_ && !bpfof_has_target(opened->bpfof_))
			return rocksdb::Status::IOError("connecting to " + options.url, bpfof_error());
	}
	if (!opened->bpfof_)
		return rocksdb::Status::IOError(
			"opening libbpfof for " + options.url + " and " + options.device,
			bpfof_error());
	opened->has_target_ = bpfof_has_target(opened->bpfof_) != 0;
	opened->function_ = bpfof_function_load(opened->bpfof_, bpfof_sst_get_object,
		bpfof_sst_get_object_end - bpfof_sst_get_object, nullptr);
	if (!opened->function_)
		return rocksdb::Status::IOError("loading the storage function sst_get", bpfof_error());
	*session = std::move(opened);
	return rocksdb::Status::OK();
}

Session::~Session()
{
	for (size_t i = 0; i < idle_.count(); i++) {
		for (const PooledReader &reader : idle_[i].readers)
			bpfof_reader_close(reader.reader);
	}
	bpfof_function_unload(function_);
	bpfof_close(bpfof_);
}

PooledReader Session::take_idle(Idle &idle)
{
	std::lock_guard<std::mutex> lock(idle.mutex);

	if (idle.readers.empty())
		return {};
	const PooledReader reader = idle.readers.back();

	idle.readers.pop_back();
	return reader;
}

static int64_t ms()
{
	const auto now = std::chrono::steady_clock::now().time_since_epoch();

	return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

bool Session::is_refusing() const
{
	const int64_t until = refused_until_.load(std::memory_order_relaxed);

	return until && ms() < until;
}

PooledReader Session::take()
{
	/* Connecting might take long. */
	if (is_lost())
		return {};
	const size_t here = idle_.here();

	for (size_t i = 0; i < idle_.count(); i++) {
		const PooledReader reader = take_idle(idle_[(here + i) % idle_.count()]);

		if (reader.reader)
			return reader;
	}
	if (is_refusing())
		return {};
	if (readers_.fetch_add(1) >= readers_max_) {
		readers_--;
		return {};
	}
	const PooledReader reader = {bpfof_reader_open(bpfof_), 0, 0, 0};

	if (!reader.reader) {
		/* A full target says so, and this process may be out of descriptors or memory: both pass. */
		if (errno == EAGAIN || errno == EMFILE || errno == ENFILE || errno == ENOMEM)
			refused_until_ = ms() + REFUSED_MS;
		else if (has_target_)
			lost_ = true;
		readers_--;
	}
	return reader;
}

void Session::put(PooledReader reader, uint64_t sent, uint64_t received)
{
	Idle &idle = idle_[idle_.here()];
	std::lock_guard<std::mutex> lock(idle.mutex);

	idle.sent += sent - reader.sent;
	idle.received += received - reader.received;
	if (reader.reader)
		idle.readers.push_back({reader.reader, sent, received, has_target_ ? 0 : ms()});
}

void Session::close_idle()
{
	if (has_target_)
		return;
	const int64_t before = ms() - IDLE_MS;
	std::vector<PooledReader> closed;

	for (size_t i = 0; i < idle_.count(); i++) {
		std::lock_guard<std::mutex> lock(idle_[i].mutex);
		std::vector<PooledReader> &readers = idle_[i].readers;
		/* The last is used first, so those that have been idle for longest come first. */
		const auto end = std::find_if(readers.begin(), readers.end(),
			[&](const PooledReader &reader) { return reader.idle_since > before; });

		closed.insert(closed.end(), readers.begin(), end);
		readers.erase(readers.begin(), end);
	}
	for (const PooledReader &reader : closed) {
		bpfof_reader_close(reader.reader);
		readers_--;
	}
}

void Session::give_back(PooledReader reader)
{
	uint64_t sent = reader.sent, received = reader.received;

	if (has_target_ && !bpfof_reader_is_connected(reader.reader)) {
		give_away(reader);
		lost_ = true;
		return;
	}
	bpfof_reader_traffic(reader.reader, &sent, &received);
	put(reader, sent, received);
}

void Session::give_away(PooledReader reader)
{
	uint64_t sent = reader.sent, received = reader.received;

	bpfof_reader_traffic(reader.reader, &sent, &received);
	/* After this call the chains that have not ended do not touch their memory. */
	bpfof_reader_close(reader.reader);
	reader.reader = nullptr;
	put(reader, sent, received);
	readers_--;
}

void Session::count(PushdownStats *stats) const
{
	for (size_t i = 0; i < idle_.count(); i++) {
		std::lock_guard<std::mutex> lock(idle_[i].mutex);

		stats->sent_bytes += idle_[i].sent;
		stats->received_bytes += idle_[i].received;
	}
}

rocksdb::Status Target::open(const PushdownOptions &options, std::shared_ptr<Target> *target)
{
	std::shared_ptr<Target> opened(new Target(options));
	std::shared_ptr<Session> session;
	const rocksdb::Status status = Session::open(options, &session);

	if (!status.ok())
		return status;
	opened->session_.store(session);
	opened->sessions_.push_back(std::move(session));
	*target = std::move(opened);
	return status;
}

std::vector<std::shared_ptr<Session>> Target::take_unused()
{
	const auto is_used = [](const std::shared_ptr<Session> &session) { return session.use_count() > 1; };
	const auto last = sessions_.end() - 1;
	const auto unused = std::stable_partition(sessions_.begin(), last, is_used);
	std::vector<std::shared_ptr<Session>> taken(
		std::make_move_iterator(unused), std::make_move_iterator(last));

	sessions_.erase(unused, last);
	return taken;
}

bool Target::reconnect(const std::function<std::shared_ptr<void>(const Session &)> &prepare)
{
	/* Declared before the lock, so that the sessions are closed after it is released. */
	std::vector<std::shared_ptr<Session>> unused;
	std::unique_lock<std::mutex> lock(reconnecting_, std::try_to_lock);

	/* Another thread is reconnecting, which may take long: closing the database waits for this
	 * caller. */
	if (!lock)
		return false;
	unused = take_unused();
	const std::shared_ptr<Session> lost = sessions_.back();
	std::shared_ptr<Session> made;

	if (!lost->is_lost() || !Session::open(options_, &made).ok())
		return false;
	const std::shared_ptr<void> prepared = prepare(*made);

	session_.store(made);
	sessions_.push_back(std::move(made));
	PushdownStats past;

	/* Traffic that its last users add after this is not counted. */
	lost->count(&past);
	sent_ += past.sent_bytes;
	received_ += past.received_bytes;
	return true;
}

void Target::count(PushdownStats *stats) const
{
	stats->sent_bytes = sent_;
	stats->received_bytes = received_;
	session()->count(stats);
}

} /* namespace bpf_of */
