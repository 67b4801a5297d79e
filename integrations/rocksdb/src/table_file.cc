/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "table_file.h"

#include <rocksdb/version.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace bpf_of {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

/* What RocksDB has called when a read is done. */
#if ROCKSDB_MAJOR >= 9
using ReadDone = std::function<void(rocksdb::FSReadRequest &, void *)>;
#else
using ReadDone = std::function<void(const rocksdb::FSReadRequest &, void *)>;
#endif

TableFile::~TableFile()
{
	{
		std::lock_guard<std::mutex> lock(files_->mutex_);
		const auto found = files_->open_.find(path_);

		/* Another file may have that path by now. */
		if (found != files_->open_.end() && found->second.expired())
			files_->open_.erase(found);
	}
	/* Fails if it was never used, or if the session is broken: then nothing is held. */
	bpfof_forget(files_->target_->session()->get(), fd_);
	::close(fd_);
}

rocksdb::Status TableFiles::open(const std::string &path, std::shared_ptr<const TableFile> *file)
{
	/* All the time: a plan knows by the object where RocksDB has stopped. */
	std::lock_guard<std::mutex> lock(mutex_);
	std::weak_ptr<const TableFile> &known = open_[path];

	if ((*file = known.lock()))
		return rocksdb::Status::OK();
	const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
	struct stat found;

	if (fd < 0 || ::fstat(fd, &found) < 0) {
		const rocksdb::Status status =
			rocksdb::Status::IOError("opening " + path, std::strerror(errno));

		if (fd >= 0)
			::close(fd);
		open_.erase(path);
		return status;
	}
	file->reset(new TableFile(shared_from_this(), path, fd, found.st_size));
	known = *file;
	return rocksdb::Status::OK();
}

void TableFiles::reconnect()
{
	if (!target_->reconnect())
		return;
	const std::shared_ptr<Session> session = target_->session();
	std::vector<std::shared_ptr<const TableFile>> files;
	{
		std::lock_guard<std::mutex> lock(mutex_);

		for (const auto &entry : open_) {
			if (auto file = entry.second.lock())
				files.push_back(std::move(file));
		}
	}
	/* Chains over one that cannot be added tell why. */
	for (const auto &file : files)
		bpfof_add(session->get(), file->fd());
}

bool TableFiles::read(const std::vector<FileRange> &ranges, char *to) const
{
	std::vector<struct bpfof_file_read> reads;

	reads.reserve(ranges.size());
	for (const FileRange &range : ranges) {
		reads.push_back({range.file->fd(), range.offset, range.size, to, 0});
		to += range.size;
	}
	const Reader reader(target_->session());

	if (!reader.get() || bpfof_read_files(reader.get(), reads.data(), reads.size()) < 0)
		return false;
	for (const struct bpfof_file_read &read : reads) {
		if (read.length != read.size)
			return false;
	}
	return true;
}

namespace {

class HookedFile : public rocksdb::FSRandomAccessFileOwnerWrapper {
    public:
	HookedFile(std::unique_ptr<rocksdb::FSRandomAccessFile> plain,
		std::shared_ptr<TableFiles> files, std::shared_ptr<const TableFile> file,
		bool target_reads)
		: FSRandomAccessFileOwnerWrapper(std::move(plain)), files_(std::move(files)),
		  file_(std::move(file)), target_reads_(target_reads)
	{
	}

	IOStatus Read(uint64_t offset, size_t size, const IOOptions &options, Slice *result,
		char *scratch, IODebugContext *debug) const override
	{
		ReadScope *scope = ReadScope::current();
		IOStatus status;

		if (scope && scope->read(*file_, offset, size, scratch, result, &status))
			return status;
		if (target_reads_ && read_at_target(offset, size, scratch, result))
			return IOStatus::OK();
		return target()->Read(offset, size, options, result, scratch, debug);
	}

	IOStatus MultiRead(rocksdb::FSReadRequest *requests, size_t count, const IOOptions &options,
		IODebugContext *debug) override
	{
		if (!ReadScope::current() && !target_reads_)
			return target()->MultiRead(requests, count, options, debug);
		if (!ReadScope::current() && multi_read_at_target(requests, count))
			return IOStatus::OK();
		for (size_t i = 0; i < count; i++)
			requests[i].status = Read(requests[i].offset, requests[i].len, options,
				&requests[i].result, requests[i].scratch, debug);
		return IOStatus::OK();
	}

	/* A scope fetches in advance itself, and what the kernel reads ahead is of no use to reads that
	 * do not go through it. */
	IOStatus Prefetch(
		uint64_t offset, size_t size, const IOOptions &options, IODebugContext *debug) override
	{
		if (ReadScope::current())
			return IOStatus::OK();
		if (target_reads_)
			return IOStatus::NotSupported("reads go to the target");
		return target()->Prefetch(offset, size, options, debug);
	}

	IOStatus ReadAsync(rocksdb::FSReadRequest &request, const IOOptions &options, ReadDone done,
		void *argument, void **handle, rocksdb::IOHandleDeleter *deleter,
		IODebugContext *debug) override
	{
		return FSRandomAccessFile::ReadAsync(
			request, options, std::move(done), argument, handle, deleter, debug);
	}

#if ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR >= 1108
	bool SubmitReadAsync(rocksdb::FSReadRequest &request, const IOOptions &options,
		std::function<void(rocksdb::FSReadRequest &)> done, IODebugContext *debug) override
	{
		return FSRandomAccessFile::SubmitReadAsync(request, options, std::move(done), debug);
	}
#endif

	bool use_direct_io() const override { return !target_reads_ && target()->use_direct_io(); }

    private:
	bool read_at_target(uint64_t offset, size_t size, char *scratch, Slice *result) const
	{
		if (!scratch || offset > file_->size_bytes())
			return false;
		size = std::min<uint64_t>(size, file_->size_bytes() - offset);
		if (!files_->read({{file_, offset, size}}, scratch))
			return false;
		*result = Slice(scratch, size);
		return true;
	}

	bool multi_read_at_target(rocksdb::FSReadRequest *requests, size_t count)
	{
		std::vector<FileRange> ranges;
		size_t size = 0;

		for (size_t i = 0; i < count; i++) {
			if (!requests[i].scratch)
				return false;
			ranges.push_back({file_, requests[i].offset, requests[i].len});
			size += requests[i].len;
		}
		std::vector<char> bytes(size);

		if (!files_->read(ranges, bytes.data()))
			return false;
		const char *from = bytes.data();

		for (size_t i = 0; i < count; i++) {
			std::memcpy(requests[i].scratch, from, requests[i].len);
			requests[i].result = Slice(requests[i].scratch, requests[i].len);
			requests[i].status = IOStatus::OK();
			from += requests[i].len;
		}
		return true;
	}

	const std::shared_ptr<TableFiles> files_;
	const std::shared_ptr<const TableFile> file_;
	const bool target_reads_;
};

bool is_table(const std::string &path)
{
	const size_t dot = path.rfind('.');

	return dot != std::string::npos && path.compare(dot, std::string::npos, ".sst") == 0;
}

class HookedFileSystem : public rocksdb::FileSystemWrapper {
    public:
	HookedFileSystem(std::shared_ptr<TableFiles> files, bool target_reads)
		: FileSystemWrapper(rocksdb::FileSystem::Default()), files_(std::move(files)),
		  target_reads_(target_reads)
	{
	}

	static const char *kClassName() { return "bpf-of"; }
	const char *Name() const override { return kClassName(); }

	IOStatus NewRandomAccessFile(const std::string &path, const rocksdb::FileOptions &options,
		std::unique_ptr<rocksdb::FSRandomAccessFile> *result, IODebugContext *debug) override
	{
		std::unique_ptr<rocksdb::FSRandomAccessFile> plain;
		rocksdb::FileOptions how = options;

		/* What RocksDB reads is not aligned then, and the target may be gone. */
		if (target_reads_ && is_table(path))
			how.use_direct_reads = false;
		IOStatus status = target()->NewRandomAccessFile(path, how, &plain, debug);
		std::shared_ptr<const TableFile> file;

		if (!status.ok())
			return status;
		if (!is_table(path) || !files_->open(path, &file).ok())
			*result = std::move(plain);
		else
			*result = std::make_unique<HookedFile>(
				std::move(plain), files_, std::move(file), target_reads_);
		return status;
	}

    private:
	const std::shared_ptr<TableFiles> files_;
	const bool target_reads_;
};

} /* namespace */

std::shared_ptr<rocksdb::FileSystem> make_file_system(
	std::shared_ptr<TableFiles> files, bool target_reads)
{
	return std::make_shared<HookedFileSystem>(std::move(files), target_reads);
}

} /* namespace bpf_of */
