/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "session.h"

#include "counters.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

namespace bpf_of {

namespace {

/* How often a lost target is tried again, and counters are written. */
constexpr std::chrono::seconds PAUSE(1);

/* The storage function's object, in this library's read-only data. */
extern "C" const unsigned char bpfof_wt_get_object[];
extern "C" const unsigned char bpfof_wt_get_object_end[];

__asm__(".pushsection .rodata\n"
	".balign 8\n"
	".global bpfof_wt_get_object\n"
	".hidden bpfof_wt_get_object\n"
	"bpfof_wt_get_object:\n"
	".incbin \"" BPFOF_WT_GET_OBJECT "\"\n"
	".global bpfof_wt_get_object_end\n"
	".hidden bpfof_wt_get_object_end\n"
	"bpfof_wt_get_object_end:\n"
	".popsection\n");

/* How long to wait after a reader was refused before asking for another. */
constexpr int64_t REFUSED_SECONDS = 2;

/*
 * Errors that no later attempt could fix: an invalid address, or a device that does not exist or is not
 * the namespace. The socket of a grant daemon may appear later.
 */
bool is_mistake(int error, const Settings &settings)
{
	const bool has_device = settings.url.rfind("grantd:", 0) != 0 || !settings.device.empty();

	return error == EINVAL || error == ENOTBLK || error == EXDEV ||
	       (error == ENOENT && has_device && access(settings.device.c_str(), F_OK) < 0);
}

int64_t seconds()
{
	using namespace std::chrono;

	return duration_cast<std::chrono::seconds>(steady_clock::now().time_since_epoch()).count();
}

std::atomic<uint64_t> sessions{0};

} /* namespace */

Session::Session(uint32_t readers_max) : number_(++sessions), left_(readers_max) {}

std::shared_ptr<Session> Session::open(const Settings &settings)
{
	if (settings.url.empty())
		return nullptr;
	std::shared_ptr<Session> opened(new Session(settings.readers_max));
	struct bpfof_options options = BPFOF_OPTIONS_INIT;

	/* Chains that cannot run at the target are not needed: WiredTiger then reads by itself. */
	options.flags = BPFOF_STABLE_FDS | BPFOF_NO_FALL_BACK;
	options.patience_us = 2000;
	options.lanes_max = settings.lanes_max;
	options.connect_timeout_ms = settings.deadline_ms;
	options.command_timeout_ms = settings.deadline_ms;
	opened->bpfof_ = bpfof_open(settings.url.c_str(), settings.device.c_str(), &options);
	if (!opened->bpfof_)
		return nullptr;
	opened->function_ = bpfof_function_load(opened->bpfof_, bpfof_wt_get_object,
		bpfof_wt_get_object_end - bpfof_wt_get_object, nullptr);
	return opened->function_ ? opened : nullptr;
}

Session::~Session()
{
	end();
}

void Session::end()
{
	forget_all();
	std::lock_guard<std::mutex> lock(mutex_);

	for (struct bpfof_reader *reader : readers_)
		bpfof_reader_close(reader);
	readers_.clear();
	if (function_)
		bpfof_function_unload(std::exchange(function_, nullptr));
	if (bpfof_)
		bpfof_close(std::exchange(bpfof_, nullptr));
}

struct bpfof_reader *Session::take()
{
	if (is_lost())
		return nullptr;
	if (left_.fetch_sub(1) <= 0) {
		left_++;
		return nullptr;
	}
	struct bpfof_reader *const reader = bpfof_reader_open(bpfof_);

	if (reader) {
		std::lock_guard<std::mutex> lock(mutex_);

		readers_.insert(reader);
		return reader;
	}
	left_++;
	/* A full target, or a process at its limit, reports these errors; a lost target does not
	 * answer. */
	if (errno == EAGAIN || errno == EMFILE || errno == ENFILE || errno == ENOMEM)
		refused_until_ = seconds() + REFUSED_SECONDS;
	else
		lose();
	return nullptr;
}

bool Session::is_refusing() const
{
	const int64_t until = refused_until_.load(std::memory_order_relaxed);

	return until && seconds() < until;
}

void Session::give_back(struct bpfof_reader *reader)
{
	std::lock_guard<std::mutex> lock(mutex_);

	if (!readers_.erase(reader))
		return;
	bpfof_reader_close(reader);
	left_++;
}

void Session::forget_all()
{
	std::lock_guard<std::mutex> lock(mutex_);

	has_ended_ = true;
	for (const int fd : files_)
		bpfof_forget(bpfof_, fd);
	files_.clear();
}

Target::Target(const Settings &settings, Log log)
	: settings_(settings), log_(std::move(log)), session_(Session::open(settings))
{
	if (session_) {
		number_ = session_->number();
	} else if (!settings.url.empty()) {
		if (is_mistake(errno, settings))
			throw Mistake(bpfof_error());
		problem_ = bpfof_error();
	}
	keeper_ = std::thread([this] { keep(); });
}

Target::~Target()
{
	{
		std::lock_guard<std::mutex> lock(mutex_);

		stop_ = true;
	}
	stopping_.notify_all();
	keeper_.join();
	write_counters();
	if (session_)
		session_->end();
}

void Target::keep()
{
	std::unique_lock<std::mutex> lock(mutex_);

	while (!stopping_.wait_for(lock, PAUSE, [this] { return stop_; })) {
		const std::shared_ptr<Session> now = session();

		lock.unlock();
		write_counters();
		if (now && now->is_lost()) {
			number_ = 0;
			std::atomic_store(&session_, std::shared_ptr<Session>());
			now->forget_all();
			counters().add(BPFOF_COUNTER(lost));
			log_("the connection to the target is lost: searches use plain reads until it is restored");
		}
		std::shared_ptr<Session> made;

		if ((!now || now->is_lost()) && (made = Session::open(settings_))) {
			std::atomic_store(&session_, made);
			number_.store(made->number(), std::memory_order_release);
			counters().add(BPFOF_COUNTER(reconnected));
			log_("connected to the target: searches are pushed down");
		}
		lock.lock();
	}
}

/* Written and then renamed: readers see the old file or the new one. */
void Target::write_counters() const
{
	if (settings_.counters.empty())
		return;
	const std::string part = settings_.counters + ".part";
	FILE *file = fopen(part.c_str(), "we");

	if (!file)
		return;
	const bool written = fprintf(file, "%s\n", counters_as_json().c_str()) > 0;

	if (fclose(file) == 0 && written)
		rename(part.c_str(), settings_.counters.c_str());
}

} /* namespace bpf_of */
