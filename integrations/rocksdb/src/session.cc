/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "session.h"

namespace bpf_of {

namespace {

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

	if (options.url.empty()) {
		opened->bpfof_ = bpfof_open(nullptr, nullptr, &settings);
	} else {
		/* Somebody who names a target wants to know that it is not there. */
		opened->bpfof_ = bpfof_open(options.url.c_str(), options.device.c_str(), &settings);
		if (opened->bpfof_ && !bpfof_has_target(opened->bpfof_))
			return rocksdb::Status::IOError("connecting to " + options.url, bpfof_error());
	}
	if (!opened->bpfof_)
		return rocksdb::Status::IOError(
			"opening libbpfof for " + options.url + " and " + options.device,
			bpfof_error());
	opened->function_ = bpfof_function_load(opened->bpfof_, bpfof_sst_get_object,
		bpfof_sst_get_object_end - bpfof_sst_get_object, nullptr);
	if (!opened->function_)
		return rocksdb::Status::IOError("loading the storage function sst_get", bpfof_error());
	*session = std::move(opened);
	return rocksdb::Status::OK();
}

Session::~Session()
{
	for (struct bpfof_reader *reader : idle_)
		bpfof_reader_close(reader);
	bpfof_function_unload(function_);
	bpfof_close(bpfof_);
}

struct bpfof_reader *Session::take()
{
	{
		std::lock_guard<std::mutex> lock(mutex_);

		if (!idle_.empty()) {
			struct bpfof_reader *reader = idle_.back();

			idle_.pop_back();
			return reader;
		}
		if (readers_ == readers_max_)
			return nullptr;
		readers_++;
	}
	/* Not under the lock: it connects. */
	struct bpfof_reader *reader = bpfof_reader_open(bpfof_);

	if (!reader) {
		std::lock_guard<std::mutex> lock(mutex_);

		readers_--;
	}
	return reader;
}

void Session::give_back(struct bpfof_reader *reader)
{
	std::lock_guard<std::mutex> lock(mutex_);

	idle_.push_back(reader);
}

} /* namespace bpf_of */
