/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "table.h"

#include <fcntl.h>
#include <linux/types.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "wt_get.h"

namespace bpf_of {

namespace {

/* The alignment of memory that direct I/O needs. */
constexpr size_t ALIGNMENT = 4096;
/* A file is extended by its own size, within these limits. */
constexpr uint64_t AHEAD_MIN = 256 << 10;
constexpr uint64_t AHEAD_MAX = 16 << 20;
/* And by at most 1 / AHEAD_OF_FREE of the disk's free space, which logs and other files need, too. */
constexpr uint64_t AHEAD_OF_FREE = 8;
/* Bytes of zeroes in one write, and the zeroes. */
constexpr size_t ZEROES = 1 << 20;
alignas(ALIGNMENT) char zeroes[ZEROES];

/* Larger buffers are freed after use. */
constexpr size_t KEPT_MAX = 256 << 10;

/* Growing, aligned memory of a thread. */
class Bounce {
    public:
	~Bounce() { free(memory_); }

	char *get(size_t bytes)
	{
		if (bytes > size_) {
			free(memory_);
			size_ = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
			memory_ = static_cast<char *>(aligned_alloc(ALIGNMENT, size_));
			if (!memory_)
				size_ = 0;
		}
		return memory_;
	}
	/* Ends the use of the memory; a large buffer is freed. */
	void put()
	{
		if (size_ <= KEPT_MAX)
			return;
		free(std::exchange(memory_, nullptr));
		size_ = 0;
	}

    private:
	char *memory_ = nullptr;
	size_t size_ = 0;
};

thread_local Bounce bounce;

std::atomic<uint64_t> files{0};

} /* namespace */

File::File(Table *table, int fd, uint64_t size, bool is_direct)
	: table_(table), fd_(fd), number_(++files), is_direct_(is_direct), end_(size)
{
}

File::~File()
{
	close(fd_);
}

/* Whether the file is not longer than this. */
bool File::ends_at(uint64_t offset) const
{
	struct stat found;

	return fstat(fd_, &found) == 0 && static_cast<uint64_t>(found.st_size) <= offset;
}

int File::transfer(bool is_write, uint64_t offset, size_t bytes, char *memory)
{
	while (bytes) {
		const ssize_t done = is_write ? pwrite(fd_, memory, bytes, offset) : pread(fd_, memory, bytes, offset);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0 && errno == EINVAL && is_direct_.exchange(false)) {
			/* The drive's blocks are larger than the file's: use the page cache. */
			fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_DIRECT);
			continue;
		}
		if (done < 0)
			return errno;
		/* Recovery leaves out a table whose file ends too soon after WT_ERROR, and fails after
		 * anything else. A direct read cannot go on from an end within a block. */
		if (!is_write && static_cast<size_t>(done) < bytes && (done == 0 || ends_at(offset + done)))
			return WT_ERROR;
		if (done == 0)
			return EIO;
		offset += done;
		memory += done;
		bytes -= done;
	}
	return 0;
}

int File::read(uint64_t offset, size_t bytes, void *to)
{
	if (!is_direct_.load(std::memory_order_relaxed) || reinterpret_cast<uintptr_t>(to) % ALIGNMENT == 0)
		return transfer(false, offset, bytes, static_cast<char *>(to));
	char *const aligned = bounce.get(bytes);

	if (!aligned)
		return ENOMEM;
	const int error = transfer(false, offset, bytes, aligned);

	if (!error)
		memcpy(to, aligned, bytes);
	bounce.put();
	return error;
}

uint64_t File::room_ahead(uint64_t at) const
{
	struct statvfs disk;

	/* WiredTiger recognizes a new file by its size, which is that of its first block. */
	if (!at || fstatvfs(fd_, &disk) < 0)
		return 0;
	const uint64_t most = uint64_t(disk.f_bavail) * disk.f_frsize / AHEAD_OF_FREE / ALIGNMENT * ALIGNMENT;

	return most < AHEAD_MIN ? 0 : std::min(std::clamp(at, AHEAD_MIN, AHEAD_MAX), most);
}

/*
 * Extends the file in advance, so that its extents change seldom. After success no zeroes are written
 * before `end` any more.
 */
int File::extend(uint64_t end, Target *target)
{
	std::lock_guard<std::mutex> lock(extending_);
	uint64_t at = end_.load();
	bool extended = false;

	if (end > at && is_direct_) {
		const uint64_t wanted = end + room_ahead(at);

		while (at < wanted) {
			const size_t part = std::min<uint64_t>(ZEROES - at % ALIGNMENT, wanted - at);
			const size_t whole = part / ALIGNMENT ? part / ALIGNMENT * ALIGNMENT : part;
			const int error = transfer(true, at, whole, zeroes);

			/* A full disk may still have room for the bytes that are needed now. */
			if (error && at < end && error != ENOSPC && error != EDQUOT)
				return error;
			if (error)
				break;
			at += whole;
			end_ = at;
			extended = true;
		}
	}
	end_ = std::max(at, end);
	const std::shared_ptr<Session> session = target ? target->session() : nullptr;

	if (extended && session && session_.load() == session->number())
		bpfof_refresh(session->get(), fd_);
	return 0;
}

int File::write(uint64_t offset, size_t bytes, const void *from, Target *target)
{
	if (offset + bytes > end_.load(std::memory_order_relaxed)) {
		const int error = extend(offset + bytes, target);

		if (error)
			return error;
	}
	char *memory = const_cast<char *>(static_cast<const char *>(from));

	if (is_direct_.load(std::memory_order_relaxed) && reinterpret_cast<uintptr_t>(from) % ALIGNMENT) {
		memory = bounce.get(bytes);
		if (!memory)
			return ENOMEM;
		memcpy(memory, from, bytes);
	}
	log_.note(offset, bytes);
	const int error = transfer(true, offset, bytes, memory);

	log_.note(offset, bytes);
	if (memory != from)
		bounce.put();
	note_page(offset);
	note_content(offset, bytes, from);
	return error;
}

int File::size(uint64_t *bytes) const
{
	struct stat found;

	if (fstat(fd_, &found) < 0)
		return errno;
	*bytes = found.st_size;
	return 0;
}

int File::sync()
{
	return fdatasync(fd_) < 0 ? errno : 0;
}

bool File::is_shared_with(Session *session)
{
	if (!is_direct_.load(std::memory_order_relaxed))
		return false;
	if (session_.load(std::memory_order_acquire) == session->number())
		return true;
	std::lock_guard<std::mutex> lock(sharing_);

	if (session_.load() == session->number())
		return true;
	if (!session->add(fd_))
		return false;
	session_.store(session->number(), std::memory_order_release);
	return true;
}

void File::forget(Target *target)
{
	const std::shared_ptr<Session> session = target ? target->session() : nullptr;

	if (session && session_.load() == session->number())
		session->forget(fd_);
}

void File::note_content(uint64_t offset, size_t bytes, const void *page)
{
	const uint32_t unit = table_->allocation_bytes.load(std::memory_order_relaxed);

	if (neighbours_.note(page, bytes, unit, &checksums_))
		table_->has_deleted = true;
	if (!unit || bytes < WT_PAGE_CELLS)
		return;
	uint32_t checksum;

	/* WiredTiger compares a page with its address, and stops if they differ. */
	memcpy(&checksum, static_cast<const char *>(page) + WT_PAGE_CHECKSUM, sizeof(checksum));
	checksums_.note(offset / unit, checksum);
}

} /* namespace bpf_of */
