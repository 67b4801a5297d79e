/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * WiredTiger's files. Files of tables are opened past the page cache, are never shortened, and have
 * their pages read by read_page(); all others are plain POSIX files.
 */
#include "guard.h"
#include "scope.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace bpf_of {

namespace {

struct FileSystem {
	WT_FILE_SYSTEM methods;
	Engine *engine;
};

/* `methods` comes first: WiredTiger has its address. */
struct Handle {
	WT_FILE_HANDLE methods = {};
	Engine *engine;
	/* For files that are not tables; -1 for tables once they are open. */
	int fd = -1;
	std::unique_ptr<File> file;

	explicit Handle(Engine *engine) : engine(engine) {}
	~Handle()
	{
		if (fd >= 0)
			close(fd);
		free(methods.name);
	}
	Handle(const Handle &) = delete;
	Handle &operator=(const Handle &) = delete;
};

Engine *engine_of_system(WT_FILE_SYSTEM *system)
{
	return reinterpret_cast<FileSystem *>(system)->engine;
}

Handle *handle_of(WT_FILE_HANDLE *handle)
{
	return reinterpret_cast<Handle *>(handle);
}

/* ---- Files that are not tables ---- */

int plain_read(WT_FILE_HANDLE *handle, WT_SESSION *, wt_off_t offset, size_t bytes, void *to)
{
	char *memory = static_cast<char *>(to);

	while (bytes) {
		const ssize_t done = pread(handle_of(handle)->fd, memory, bytes, offset);

		if (done < 0 && errno == EINTR)
			continue;
		/* As WiredTiger's own file system at the end of a file. */
		if (done <= 0)
			return done < 0 ? errno : WT_ERROR;
		memory += done;
		offset += done;
		bytes -= done;
	}
	return 0;
}

int plain_write(WT_FILE_HANDLE *handle, WT_SESSION *, wt_off_t offset, size_t bytes, const void *from)
{
	const char *memory = static_cast<const char *>(from);

	if (handle_of(handle)->engine->has_failed())
		return WT_PANIC;
	while (bytes) {
		const ssize_t done = pwrite(handle_of(handle)->fd, memory, bytes, offset);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return errno;
		memory += done;
		offset += done;
		bytes -= done;
	}
	return 0;
}

int plain_size(WT_FILE_HANDLE *handle, WT_SESSION *, wt_off_t *bytes)
{
	struct stat found;

	if (fstat(handle_of(handle)->fd, &found) < 0)
		return errno;
	*bytes = found.st_size;
	return 0;
}

int plain_sync(WT_FILE_HANDLE *handle, WT_SESSION *session)
{
	Handle *const own = handle_of(handle);

	if (own->engine->has_failed())
		return WT_PANIC;
	return fdatasync(own->fd) < 0 ? own->engine->fail(session, own->methods.name, errno) : 0;
}

int plain_truncate(WT_FILE_HANDLE *handle, WT_SESSION *, wt_off_t bytes)
{
	return ftruncate(handle_of(handle)->fd, bytes) < 0 ? errno : 0;
}

int lock(WT_FILE_HANDLE *handle, WT_SESSION *, bool is_lock)
{
	struct flock range = {};
	const Handle *const own = handle_of(handle);

	range.l_type = is_lock ? F_WRLCK : F_UNLCK;
	range.l_whence = SEEK_SET;
	range.l_len = 1;
	if (fcntl(own->file ? own->file->fd() : own->fd, F_SETLK, &range) == 0)
		return 0;
	return errno == EACCES || errno == EAGAIN ? EBUSY : errno;
}

int close_handle(WT_FILE_HANDLE *handle, WT_SESSION *)
{
	Handle *const own = handle_of(handle);
	int error = 0;

	if (own->file)
		own->file->forget(own->engine->target());
	else if (close(std::exchange(own->fd, -1)) < 0)
		error = errno;
	delete own;
	return error;
}

/* ---- Tables ---- */

int table_read(WT_FILE_HANDLE *handle, WT_SESSION *, wt_off_t offset, size_t bytes, void *to)
{
	Handle *const own = handle_of(handle);

	return guarded([=] { return read_page(own->file.get(), own->engine, offset, bytes, to); });
}

int table_write(WT_FILE_HANDLE *handle, WT_SESSION *, wt_off_t offset, size_t bytes, const void *from)
{
	Handle *const own = handle_of(handle);

	if (own->engine->has_failed())
		return WT_PANIC;
	return guarded([=] { return own->file->write(offset, bytes, from, own->engine->target()); });
}

int table_size(WT_FILE_HANDLE *handle, WT_SESSION *, wt_off_t *bytes)
{
	uint64_t found = 0;
	const int error = handle_of(handle)->file->size(&found);

	*bytes = wt_off_t(found);
	return error;
}

int table_sync(WT_FILE_HANDLE *handle, WT_SESSION *session)
{
	Handle *const own = handle_of(handle);

	if (own->engine->has_failed())
		return WT_PANIC;
	const int error = own->file->sync();

	return error ? own->engine->fail(session, own->methods.name, error) : 0;
}

/* ---- Opening ---- */

int flags_of(WT_FS_OPEN_FILE_TYPE type, uint32_t flags, bool is_log_dsync)
{
	int open_flags = O_CLOEXEC;

	if (type == WT_FS_OPEN_FILE_TYPE_DIRECTORY || flags & WT_FS_OPEN_READONLY)
		return open_flags | O_RDONLY;
	open_flags |= O_RDWR;
	if (type == WT_FS_OPEN_FILE_TYPE_LOG && is_log_dsync)
		open_flags |= O_DSYNC;
	if (flags & WT_FS_OPEN_CREATE)
		open_flags |= O_CREAT | (flags & WT_FS_OPEN_EXCLUSIVE ? O_EXCL : 0);
	return open_flags;
}

/* Syncs the folder of a name that was made, changed or removed. */
int sync_folder_of(Engine *engine, WT_SESSION *session, const char *path)
{
	const char *const slash = strrchr(path, '/');
	const std::string folder = slash ? std::string(path, slash + 1 - path) : ".";
	const int fd = open(folder.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);

	/* No sync was tried, so none has failed. */
	if (fd < 0)
		return errno;
	const bool is_synced = fdatasync(fd) == 0;
	const int error = errno;

	close(fd);
	return is_synced ? 0 : engine->fail(session, folder.c_str(), error);
}

int sync_folder(Engine *engine, WT_SESSION *session, const char *path)
{
	return guarded([=] { return sync_folder_of(engine, session, path); });
}

bool is_table(WT_FS_OPEN_FILE_TYPE type, const std::string &name)
{
	return (type == WT_FS_OPEN_FILE_TYPE_DATA || type == WT_FS_OPEN_FILE_TYPE_CHECKPOINT) &&
	       name.compare(0, 10, "WiredTiger") != 0;
}

int open_table(Handle *handle, const std::string &name, const char *path, int flags)
{
	/* Without O_DIRECT nothing is pushed down, and all reads and writes use the page cache. */
	int fd = open(path, flags | O_DIRECT, 0666);
	const bool is_direct = fd >= 0;
	struct stat found;

	/* O_EXCL would fail now: the first attempt has created the file. */
	if (fd < 0 && errno == EINVAL)
		fd = open(path, flags & ~O_EXCL, 0666);
	if (fd < 0)
		return errno;
	if (fstat(fd, &found) < 0) {
		const int error = errno;

		close(fd);
		return error;
	}
	handle->fd = fd;
	Table *const table = handle->engine->table(name);

	/* The file may belong to another table of the same name, and does if it is new. */
	table->is_suitable = false;
	table->is_known = false;
	if (flags & O_EXCL)
		table->has_deleted = false;
	/* In this order: either a beginning truncation is seen here, or the truncation sees the
	 * table. */
	table->is_truncated = false;
	if (handle->engine->may_be_truncating())
		table->is_truncated = true;
	handle->file = std::make_unique<File>(table, fd, found.st_size, is_direct);
	handle->fd = -1;
	handle->methods.fh_read = table_read;
	handle->methods.fh_write = table_write;
	handle->methods.fh_size = table_size;
	handle->methods.fh_sync = table_sync;
	return 0;
}

int open_any(WT_FILE_SYSTEM *system, WT_SESSION *session, const char *path, WT_FS_OPEN_FILE_TYPE type, uint32_t flags,
	WT_FILE_HANDLE **opened)
{
	Engine *const engine = engine_of_system(system);
	const std::string name = engine->name_of(path);
	const int open_flags = flags_of(type, flags, engine->settings().log_dsync);
	std::unique_ptr<Handle> handle(new (std::nothrow) Handle(engine));

	if (!handle || !(handle->methods.name = strdup(path)))
		return ENOMEM;
	handle->methods.file_system = system;
	handle->methods.close = close_handle;
	handle->methods.fh_lock = lock;
	if (is_table(type, name)) {
		const int error = open_table(handle.get(), name, path, open_flags);

		if (error)
			return error;
	} else {
		handle->fd = open(path, open_flags, 0666);
		if (handle->fd < 0)
			return errno;
		handle->methods.fh_read = plain_read;
		handle->methods.fh_write = plain_write;
		handle->methods.fh_size = plain_size;
		handle->methods.fh_sync = plain_sync;
		handle->methods.fh_truncate = plain_truncate;
	}
	if (flags & WT_FS_OPEN_DURABLE) {
		const int error = sync_folder(engine, session, path);

		if (error)
			return error;
	}
	*opened = &handle.release()->methods;
	return 0;
}

int open_file(WT_FILE_SYSTEM *system, WT_SESSION *session, const char *path, WT_FS_OPEN_FILE_TYPE type, uint32_t flags,
	WT_FILE_HANDLE **opened)
{
	return guarded([=] { return open_any(system, session, path, type, flags, opened); });
}

/* ---- Names ---- */

int directory_list_free(WT_FILE_SYSTEM *, WT_SESSION *, char **names, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		free(names[i]);
	free(names);
	return 0;
}

int list(const char *folder, const char *prefix, uint32_t most, char ***names, uint32_t *count)
{
	DIR *const directory = opendir(folder);
	const size_t prefix_size = prefix ? strlen(prefix) : 0;
	int error = 0;

	*names = nullptr;
	*count = 0;
	if (!directory)
		return errno;
	while (const struct dirent *entry = *count < most ? readdir(directory) : nullptr) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
			strncmp(entry->d_name, prefix ? prefix : "", prefix_size))
			continue;
		char **const longer = static_cast<char **>(realloc(*names, (*count + 1) * sizeof(char *)));
		char *const name = longer ? strdup(entry->d_name) : nullptr;

		if (longer)
			*names = longer;
		if (!name) {
			error = ENOMEM;
			break;
		}
		longer[(*count)++] = name;
	}
	closedir(directory);
	if (error) {
		directory_list_free(nullptr, nullptr, *names, *count);
		*names = nullptr;
		*count = 0;
	}
	return error;
}

int directory_list(WT_FILE_SYSTEM *, WT_SESSION *, const char *folder, const char *prefix, char ***names,
	uint32_t *count)
{
	return list(folder, prefix, UINT32_MAX, names, count);
}

int directory_list_single(WT_FILE_SYSTEM *, WT_SESSION *, const char *folder, const char *prefix, char ***names,
	uint32_t *count)
{
	return list(folder, prefix, 1, names, count);
}

int exist(WT_FILE_SYSTEM *, WT_SESSION *, const char *path, bool *is_there)
{
	struct stat found;

	*is_there = stat(path, &found) == 0;
	return *is_there || errno == ENOENT ? 0 : errno;
}

int size(WT_FILE_SYSTEM *, WT_SESSION *, const char *path, wt_off_t *bytes)
{
	struct stat found;

	if (stat(path, &found) < 0)
		return errno;
	*bytes = found.st_size;
	return 0;
}

int remove_file(WT_FILE_SYSTEM *system, WT_SESSION *session, const char *path, uint32_t flags)
{
	if (unlink(path) < 0)
		return errno;
	return flags & WT_FS_DURABLE ? sync_folder(engine_of_system(system), session, path) : 0;
}

int rename_file(WT_FILE_SYSTEM *system, WT_SESSION *session, const char *from, const char *to, uint32_t flags)
{
	Engine *const engine = engine_of_system(system);
	const int error = guarded([=] {
		engine->renames(engine->name_of(from), engine->name_of(to));
		return 0;
	});

	if (error)
		return error;
	if (rename(from, to) < 0)
		return errno;
	return flags & WT_FS_DURABLE ? sync_folder(engine_of_system(system), session, to) : 0;
}

/* The database is closed. */
int terminate(WT_FILE_SYSTEM *system, WT_SESSION *)
{
	FileSystem *const own = reinterpret_cast<FileSystem *>(system);

	unwrap_connection(own->engine);
	delete own->engine;
	delete own;
	return 0;
}

} /* namespace */

int set_file_system(WT_CONNECTION *connection, Engine *engine)
{
	FileSystem *const system = new FileSystem();

	system->engine = engine;
	system->methods.fs_directory_list = directory_list;
	system->methods.fs_directory_list_single = directory_list_single;
	system->methods.fs_directory_list_free = directory_list_free;
	system->methods.fs_exist = exist;
	system->methods.fs_open_file = open_file;
	system->methods.fs_remove = remove_file;
	system->methods.fs_rename = rename_file;
	system->methods.fs_size = size;
	system->methods.terminate = terminate;
	const int error = connection->set_file_system(connection, &system->methods, nullptr);

	if (error)
		delete system;
	return error;
}

} /* namespace bpf_of */
