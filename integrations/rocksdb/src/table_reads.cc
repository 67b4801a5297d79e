/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "table_reads.h"

namespace bpf_of {

using rocksdb::FSRandomAccessFile;
using rocksdb::IOStatus;

TableHandle::~TableHandle()
{
	std::lock_guard<std::mutex> lock(reads_->mutex_);
	const auto [begin, end] = reads_->by_path_.equal_range(path_);

	for (auto found = begin; found != end; ++found) {
		if (found->second == this) {
			reads_->by_path_.erase(found);
			break;
		}
	}
	reads_->leave(*this);
}

IOStatus TableHandle::file(std::shared_ptr<FSRandomAccessFile> *file) const
{
	*file = std::atomic_load(&open_);
	if (!*file)
		return reads_->open(*this, file);
	/* Written only when it changes: all readers share the cache line. */
	if (!is_used_.load(std::memory_order_relaxed))
		is_used_.store(true, std::memory_order_relaxed);
	return IOStatus::OK();
}

void TableHandle::hint(FSRandomAccessFile::AccessPattern pattern)
{
	pattern_ = pattern;
	if (const auto file = std::atomic_load(&open_))
		file->Hint(pattern);
}

IOStatus TableReads::open(const std::string &path, const rocksdb::FileOptions &options,
	std::unique_ptr<TableHandle> *handle)
{
	std::unique_ptr<TableHandle> made(new TableHandle(shared_from_this(), path, options));
	std::shared_ptr<FSRandomAccessFile> file;
	{
		std::lock_guard<std::mutex> lock(mutex_);

		by_path_.emplace(made->path_, made.get());
	}
	IOStatus status = open(*made, &file);

	if (status.ok())
		*handle = std::move(made);
	return status;
}

IOStatus TableReads::open(const TableHandle &handle, std::shared_ptr<FSRandomAccessFile> *file)
{
	std::unique_ptr<FSRandomAccessFile> opened;
	IOStatus status = files_->NewRandomAccessFile(handle.path_, handle.options_, &opened, nullptr);

	if (status.ok() && handle.pattern_ != FSRandomAccessFile::kNormal)
		opened->Hint(handle.pattern_);
	std::lock_guard<std::mutex> lock(mutex_);

	/* Another thread may have opened the file meanwhile, or kept it open for good. */
	if ((*file = std::atomic_load(&handle.open_)))
		return IOStatus::OK();
	if (!status.ok())
		return status;
	*file = std::move(opened);
	std::atomic_store(&handle.open_, *file);
	enter(handle);
	return status;
}

void TableReads::enter(const TableHandle &handle)
{
	handle.is_used_.store(true, std::memory_order_relaxed);
	if (handle.options_.use_mmap_reads) {
		handle.place_ = TableHandle::FOR_EVER;
		return;
	}
	if (open_.size() < descriptors_max_) {
		handle.place_ = open_.size();
		open_.push_back(&handle);
		return;
	}
	/* The clock algorithm: a table used since the hand passed stays for another turn. */
	while (open_[hand_]->is_used_.exchange(false, std::memory_order_relaxed))
		hand_ = (hand_ + 1) % open_.size();
	const TableHandle &other = *open_[hand_];

	std::atomic_store(&other.open_, std::shared_ptr<FSRandomAccessFile>());
	other.place_ = TableHandle::NONE;
	handle.place_ = hand_;
	open_[hand_] = &handle;
	hand_ = (hand_ + 1) % open_.size();
}

void TableReads::leave(const TableHandle &handle)
{
	if (handle.place_ >= TableHandle::FOR_EVER)
		return;
	open_.back()->place_ = handle.place_;
	open_[handle.place_] = open_.back();
	open_.pop_back();
	if (hand_ >= open_.size())
		hand_ = 0;
	handle.place_ = TableHandle::NONE;
}

void TableReads::keep(const std::string &path)
{
	std::lock_guard<std::mutex> lock(mutex_);
	const auto [begin, end] = by_path_.equal_range(path);

	for (auto found = begin; found != end; ++found) {
		const TableHandle &handle = *found->second;
		std::unique_ptr<FSRandomAccessFile> opened;

		if (!std::atomic_load(&handle.open_) &&
			files_->NewRandomAccessFile(path, handle.options_, &opened, nullptr).ok())
			std::atomic_store(&handle.open_, std::shared_ptr<FSRandomAccessFile>(std::move(opened)));
		leave(handle);
		handle.place_ = TableHandle::FOR_EVER;
	}
}

} /* namespace bpf_of */
