/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "table_file.h"

#include "table_reads.h"

#include <rocksdb/version.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/stat.h>

namespace bpf_of {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

bool ends_with(const std::string &path, const char *ending)
{
	const size_t dot = path.rfind('.');

	return dot != std::string::npos && path.compare(dot, std::string::npos, ending) == 0;
}

} /* namespace */

bool TableFile::is_table() const
{
	return ends_with(path_, ".sst");
}

TableFile::~TableFile()
{
	{
		std::lock_guard<std::mutex> lock(files_->mutex_);
		const auto found = files_->known_.find(path_);

		/* Another file may have this path by now. */
		if (found != files_->known_.end() && found->second.expired())
			files_->known_.erase(found);
	}
	/* Fails if this session does not know the file: then the session holds nothing. */
	bpfof_forget(files_->target_->session()->get(), number_);
}

rocksdb::Status TableFiles::open(const std::string &path, std::shared_ptr<const TableFile> *file)
{
	/* Locked throughout, so that each path has one object: plans compare objects to find where
	 * RocksDB stopped. */
	std::lock_guard<std::mutex> lock(mutex_);
	const auto known = known_.find(path);

	if (known != known_.end() && (*file = known->second.lock()))
		return rocksdb::Status::OK();
	struct stat found;

	if (::stat(path.c_str(), &found) < 0)
		return rocksdb::Status::IOError("opening " + path, std::strerror(errno));
	if (known != known_.end())
		known_.erase(known);
	file->reset(new TableFile(shared_from_this(), path, next_number_--, found.st_size));
	known_.emplace((*file)->path(), *file);
	add(**file, *target_->session());
	return rocksdb::Status::OK();
}

void TableFiles::add(const TableFile &file, const Session &session)
{
	/* Errors are ignored: chains over a file that cannot be read report them. */
	bpfof_add_path(session.get(), file.path().c_str(), file.number());
}

std::shared_ptr<void> TableFiles::add_all(const Session &session)
{
	auto files = std::make_shared<std::vector<std::shared_ptr<const TableFile>>>();
	{
		std::lock_guard<std::mutex> lock(mutex_);

		for (const auto &entry : known_) {
			if (auto file = entry.second.lock())
				files->push_back(std::move(file));
		}
	}
	for (const auto &file : *files)
		add(*file, session);
	return files;
}

void TableFiles::reconnect()
{
	/* All files are added before chains use the session; files opened meanwhile are added
	 * afterwards. A file destroyed meanwhile is forgotten in the current session, so the list keeps
	 * all files until the new session is current. */
	if (target_->reconnect([this](const Session &made) { return add_all(made); }))
		add_all(*target_->session());
}

bool TableFiles::has(const TableFile &file) const
{
	return file.files_.get() == this;
}

Fetched TableFiles::read(const std::vector<FileRange> &ranges, int64_t timeout_us, char *to) const
{
	std::vector<char *> places;

	places.reserve(ranges.size());
	for (const FileRange &range : ranges) {
		places.push_back(to);
		to += range.size;
	}
	return read(ranges, timeout_us, places.data());
}

Fetched TableFiles::read(
	const std::vector<FileRange> &ranges, int64_t timeout_us, char *const *to) const
{
	std::vector<struct bpfof_file_read> reads;

	/* After the deadline nothing is sent. */
	if (timeout_us == 0)
		return Fetched::kTimedOut;
	reads.reserve(ranges.size());
	for (const FileRange &range : ranges) {
		/* A merge operator that RocksDB calls may read another database in the same scope. There the
		 * number stands for another file. */
		if (!has(*range.file))
			return Fetched::kNot;
		reads.push_back({range.file->number(), range.offset, range.size, *to++, 0});
	}
	Reader reader(target_->session());

	if (!reader.get())
		return Fetched::kNot;
	if (bpfof_read_files_within(reader.get(), reads.data(), reads.size(), timeout_us) < 0) {
		if (timeout_us < 0 || errno != ETIMEDOUT)
			return Fetched::kNot;
		reader.give_up();
		return Fetched::kTimedOut;
	}
	for (const struct bpfof_file_read &read : reads) {
		if (read.length != read.size)
			return Fetched::kNot;
	}
	return Fetched::kAll;
}

IOStatus timed_out()
{
	return IOStatus::TimedOut("the target has not answered in time");
}

bool StopAtRead::read(
	const TableFile &file, uint64_t offset, size_t size, int64_t, char *, Slice *, IOStatus *status)
{
	if (!file.is_table())
		return false;
	if (!end_->table) {
		end_->table = &file;
		end_->offset = offset;
		end_->size = size;
	}
	*status = IOStatus::Aborted();
	return true;
}

namespace {

class HookedFile : public rocksdb::FSRandomAccessFile {
    public:
	HookedFile(std::unique_ptr<TableHandle> handle, std::shared_ptr<TableFiles> files,
		std::shared_ptr<const TableFile> file, bool target_reads)
		: handle_(std::move(handle)), files_(std::move(files)), file_(std::move(file)),
		  target_reads_(target_reads)
	{
		std::shared_ptr<FSRandomAccessFile> plain;

		if (handle_->file(&plain).ok()) {
			is_direct_ = plain->use_direct_io();
			alignment_ = plain->GetRequiredBufferAlignment();
			if (use_direct_io())
				file_->read_in(alignment_);
		}
	}

	IOStatus Read(uint64_t offset, size_t size, const IOOptions &options, Slice *result,
		char *scratch, IODebugContext *debug) const override
	{
		ReadScope *scope = ReadScope::current();
		IOStatus status;

		const int64_t timeout_us = timeout_of(options);

		if (scope && scope->read(*file_, offset, size, timeout_us, scratch, result, &status))
			return status;
		if (target_reads_ && read_at_target(offset, size, timeout_us, scratch, result, &status))
			return status;
		return with_file([&](FSRandomAccessFile &plain) {
			return plain.Read(offset, size, options, result, scratch, debug);
		});
	}

	IOStatus MultiRead(rocksdb::FSReadRequest *requests, size_t count, const IOOptions &options,
		IODebugContext *debug) override
	{
		if (!ReadScope::current() && !target_reads_)
			return with_file([&](FSRandomAccessFile &plain) {
				return plain.MultiRead(requests, count, options, debug);
			});
		IOStatus status;

		if (!ReadScope::current() && multi_read_at_target(requests, count, timeout_of(options), &status))
			return status;
		for (size_t i = 0; i < count; i++)
			requests[i].status = Read(requests[i].offset, requests[i].len, options,
				&requests[i].result, requests[i].scratch, debug);
		return IOStatus::OK();
	}

	/* A scope prefetches itself, and reads that bypass the kernel do not profit from its
	 * read-ahead. */
	IOStatus Prefetch(
		uint64_t offset, size_t size, const IOOptions &options, IODebugContext *debug) override
	{
		if (ReadScope::current())
			return IOStatus::OK();
		if (target_reads_)
			return IOStatus::NotSupported("reads go to the target");
		return with_file([&](FSRandomAccessFile &plain) {
			return plain.Prefetch(offset, size, options, debug);
		});
	}

	IOStatus InvalidateCache(size_t offset, size_t size) override
	{
		return with_file([&](FSRandomAccessFile &plain) { return plain.InvalidateCache(offset, size); });
	}

	void Hint(AccessPattern pattern) override { handle_->hint(pattern); }

	size_t GetUniqueId(char *id, size_t size) const override
	{
		std::shared_ptr<FSRandomAccessFile> plain;

		return handle_->file(&plain).ok() ? plain->GetUniqueId(id, size) : 0;
	}

	bool use_direct_io() const override { return !target_reads_ && is_direct_; }
	size_t GetRequiredBufferAlignment() const override { return alignment_; }

#if ROCKSDB_MAJOR >= 11
	IOStatus GetFileSize(uint64_t *size) override
	{
		*size = file_->size_bytes();
		return IOStatus::OK();
	}
#endif

    private:
	/* RocksDB derives it from ReadOptions: the time left until the deadline, or io_timeout. */
	static int64_t timeout_of(const IOOptions &options)
	{
		return options.timeout.count() > 0 ? options.timeout.count() : TimeLimit::NONE;
	}

	/* False if the target cannot read it; otherwise `status` is the status of the read. */
	bool read_at_target(uint64_t offset, size_t size, int64_t timeout_us, char *scratch, Slice *result,
		IOStatus *status) const
	{
		if (!scratch || offset > file_->size_bytes())
			return false;
		size = std::min<uint64_t>(size, file_->size_bytes() - offset);
		const Fetched fetched = files_->read({{file_, offset, size}}, timeout_us, scratch);

		*status = fetched == Fetched::kTimedOut ? timed_out() : IOStatus::OK();
		*result = Slice(scratch, fetched == Fetched::kAll ? size : 0);
		return fetched != Fetched::kNot;
	}

	bool multi_read_at_target(
		rocksdb::FSReadRequest *requests, size_t count, int64_t timeout_us, IOStatus *status)
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

		const Fetched fetched = files_->read(ranges, timeout_us, bytes.data());

		if (fetched == Fetched::kNot)
			return false;
		*status = IOStatus::OK();
		const char *from = bytes.data();

		for (size_t i = 0; i < count; i++) {
			std::memcpy(requests[i].scratch, from, requests[i].len);
			requests[i].result = Slice(requests[i].scratch, requests[i].len);
			requests[i].status = fetched == Fetched::kTimedOut ? timed_out() : IOStatus::OK();
			from += requests[i].len;
		}
		return true;
	}

	/* Calls `use` with the open file. */
	template <typename Use> IOStatus with_file(Use use) const
	{
		std::shared_ptr<FSRandomAccessFile> plain;
		const IOStatus status = handle_->file(&plain);

		return status.ok() ? use(*plain) : status;
	}

	const std::unique_ptr<TableHandle> handle_;
	const std::shared_ptr<TableFiles> files_;
	const std::shared_ptr<const TableFile> file_;
	const bool target_reads_;
	bool is_direct_ = false;
	size_t alignment_ = rocksdb::kDefaultPageSize;
};

/* Whether the file's size has changed since it was first opened: it is still written, as blob files may
 * be. */
bool has_grown(const TableFile &file)
{
	struct stat now;

	return ::stat(file.path().c_str(), &now) < 0 || uint64_t(now.st_size) != file.size_bytes();
}

class HookedFileSystem : public rocksdb::FileSystemWrapper {
    public:
	HookedFileSystem(std::shared_ptr<TableFiles> files, bool target_reads, size_t descriptors_max)
		: FileSystemWrapper(rocksdb::FileSystem::Default()), files_(std::move(files)),
		  target_reads_(target_reads),
		  reads_(std::make_shared<TableReads>(rocksdb::FileSystem::Default(), descriptors_max))
	{
	}

	static const char *kClassName() { return "bpf-of"; }
	const char *Name() const override { return kClassName(); }

	IOStatus NewRandomAccessFile(const std::string &path, const rocksdb::FileOptions &options,
		std::unique_ptr<rocksdb::FSRandomAccessFile> *result, IODebugContext *debug) override
	{
		rocksdb::FileOptions how = options;
		std::shared_ptr<const TableFile> file;
		std::unique_ptr<TableHandle> handle;

		if (!(ends_with(path, ".sst") || (target_reads_ && ends_with(path, ".blob"))) ||
			!files_->open(path, &file).ok() || has_grown(*file))
			return target()->NewRandomAccessFile(path, options, result, debug);
		/* RocksDB's reads are then not aligned, and must also work without the target. */
		if (target_reads_)
			how.use_direct_reads = false;
		IOStatus status = reads_->open(path, how, &handle);

		if (status.ok())
			*result = std::make_unique<HookedFile>(
				std::move(handle), files_, std::move(file), target_reads_);
		return status;
	}

	IOStatus DeleteFile(const std::string &path, const IOOptions &options, IODebugContext *debug) override
	{
		reads_->keep(path);
		return target()->DeleteFile(path, options, debug);
	}

	IOStatus RenameFile(const std::string &from, const std::string &to, const IOOptions &options,
		IODebugContext *debug) override
	{
		reads_->keep(from);
		reads_->keep(to);
		return target()->RenameFile(from, to, options, debug);
	}

    private:
	const std::shared_ptr<TableFiles> files_;
	const bool target_reads_;
	const std::shared_ptr<TableReads> reads_;
};

} /* namespace */

std::shared_ptr<rocksdb::FileSystem> make_file_system(
	std::shared_ptr<TableFiles> files, bool target_reads, size_t descriptors_max)
{
	return std::make_shared<HookedFileSystem>(std::move(files), target_reads, descriptors_max);
}

} /* namespace bpf_of */
