// SPDX-License-Identifier: Apache-2.0 OR MIT
// files_test EXTENSION FOLDER URL DEVICE [TEST]: the extension's files serve WiredTiger like its own:
// durable, complete in backups, and on any file system. Databases are in FOLDER, on a file system that
// the target serves. Needs root.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wiredtiger_ext.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "database.h"

namespace {

// A sync of a file whose path ends like this fails, once.
std::atomic<const char *> failing{nullptr};

std::string PathOf(int fd)
{
	char path[4096];
	const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof(path));

	return std::string(path, size > 0 ? size_t(size) : 0);
}

bool EndsWith(const std::string &text, const std::string &end)
{
	return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

int Insert(WT_CURSOR *cursor, int number)
{
	const std::string key = Key(number), value = Value(number);
	const WT_ITEM item = {value.data(), value.size(), nullptr, 0, 0};

	SetKey(cursor, key);
	cursor->set_value(cursor, &item);
	return cursor->insert(cursor);
}

void CheckRows(Database *database, const char *uri, int count, const char *when)
{
	WT_CURSOR *const cursor = database->Open(uri);

	for (int number = 0; number < count; number++)
		CHECK(IsThere(cursor, number), "row %d %s", number, when);
	CHECK_WT(cursor->close(cursor));
}

// If `attempt` of a database fails with one sync, it fails again.
template <typename Attempt>
void CheckSyncFails(const Place &place, const char *path, const std::string &more, const Attempt &attempt)
{
	Make(place, "sync", "table:t");
	Database database(place, "sync", more);
	WT_CURSOR *const cursor = database.Open("table:t");

	CHECK_WT(Insert(cursor, kRows));
	CHECK_WT(cursor->close(cursor));
	failing = path;
	const int first = attempt(&database), second = attempt(&database);

	CHECK(!failing, "%s was not synced", path);
	CHECK(first && second, "%s: %s, then %s", path, wiredtiger_strerror(first), wiredtiger_strerror(second));
	// Closing ends, with or without an error.
	database.Close();
	Database again(place, "sync", more);

	CheckRows(&again, "table:t", kRows, "after a sync that failed");
}

// The kernel reports a failed write only once: the next sync would succeed, as if everything were
// durable.
void FailedSyncsAreFinal(const Place &place)
{
	const auto checkpoint = [](Database *database) {
		return database->session()->checkpoint(database->session(), "force=true");
	};

	CheckSyncFails(place, "/t.wt", "", checkpoint);
	CheckSyncFails(place, "/WiredTiger.wt", "", checkpoint);
	CheckSyncFails(place, "/WiredTigerLog.0000000001", ",log=(enabled),transaction_sync=(enabled,method=fsync)",
		[](Database *database) {
			WT_CURSOR *const cursor = database->Open("table:t");
			const int error = Insert(cursor, kRows + 1);

			return error ? error : cursor->close(cursor);
		});
	// The sync of the folder, when a file is new.
	CheckSyncFails(place, "/sync", "", [](Database *database) {
		return database->session()->create(database->session(), "table:new", kPages);
	});
	std::printf("a failed sync is not repeated\n");
}

// Counts the open files whose paths contain `part`, and those of them that are open with O_DSYNC.
void CountOpen(const std::string &part, int *open, int *synchronous)
{
	*open = *synchronous = 0;
	for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
		const int fd = std::stoi(entry.path().filename());

		if (PathOf(fd).find(part) == std::string::npos)
			continue;
		++*open;
		*synchronous += (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
	}
}

// With method=dsync WiredTiger never syncs its log: its writes must be synchronous.
void LogsAreDurable(const Place &place)
{
	const std::string log = ",log=(enabled,prealloc=false),transaction_sync=(enabled,method=dsync)";
	constexpr int kLogged = 2000;
	int open, synchronous;

	MakeFolder(place.folder + "/log");
	{
		Database database(place, "log", log);
		WT_SESSION *const session = database.session();

		CHECK_WT(session->create(session, "table:t", kPages));
		WT_CURSOR *const cursor = database.Open("table:t");

		for (int number = 0; number < kLogged; number++)
			CHECK_WT(Insert(cursor, number));
		CountOpen("/log/WiredTigerLog.", &open, &synchronous);
		CHECK(open > 0 && open == synchronous, "%d of %d log files are synchronous", synchronous, open);
		const std::string copy = "cd '" + place.folder + "' && rm -rf recovered && cp -r log recovered";

		CHECK(system(copy.c_str()) == 0, "%s", copy.c_str());
	}
	{
		Database database(place, "recovered", log);

		CheckRows(&database, "table:t", kLogged, "after recovery");
	}
	Database database(place, "log", ",log=(enabled,prealloc=false)", ",log_dsync=false");

	CountOpen("/log/WiredTigerLog.", &open, &synchronous);
	CHECK(open > 0 && !synchronous, "%d of %d log files are synchronous", synchronous, open);
	std::printf("logs are durable\n");
}

#if WIREDTIGER_VERSION_MAJOR > 3
void CopyPart(const std::string &from, const std::string &to, uint64_t offset, uint64_t bytes)
{
	const int source = open(from.c_str(), O_RDONLY | O_CLOEXEC);
	const int copy = open(to.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	std::string part(bytes, 0);
	const ssize_t size = pread(source, &part[0], bytes, off_t(offset));

	CHECK(size >= 0 && pwrite(copy, part.data(), size_t(size), off_t(offset)) == size, "%s: %s", to.c_str(), strerror(errno));
	close(source);
	close(copy);
}

// Updates the copy of a database, or makes it.
void Backup(Database *database, const std::string &home, const std::string &copy, const char *config, bool is_whole)
{
	WT_CURSOR *const files = database->Open("backup:", nullptr, config);
	const char *name;
	int error;

	while (!(error = files->next(files))) {
		CHECK_WT(files->get_key(files, &name));
		const std::string from = home + "/" + name, to = copy + "/" + name;
		WT_CURSOR *parts = nullptr;
		uint64_t offset, bytes, type;

		if (is_whole) {
			std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
			continue;
		}
		CHECK_WT(database->session()->open_cursor(database->session(), nullptr, files,
			(std::string("incremental=(file=") + name + ")").c_str(), &parts));
		while (!(error = parts->next(parts))) {
			CHECK_WT(parts->get_key(parts, &offset, &bytes, &type));
			CopyPart(from, to, offset, bytes);
		}
		CHECK(error == WT_NOTFOUND, "%s", wiredtiger_strerror(error));
		CHECK_WT(parts->close(parts));
	}
	CHECK(error == WT_NOTFOUND, "%s", wiredtiger_strerror(error));
	CHECK_WT(files->close(files));
}

// WiredTiger recognizes a table that is new since the last backup by the size of its file.
void NewTablesAreBackedUp(const Place &place)
{
	const std::string home = place.folder + "/backed_up", copy = place.folder + "/backup";

	Make(place, "backed_up", "table:t");
	MakeFolder(copy);
	{
		Database database(place, "backed_up");

		Backup(&database, home, copy, "incremental=(enabled=true,granularity=4KB,this_id=first)", true);
		// Such that the first 4 KiB have no other block.
		Fill(&database, "table:new", ",allocation_size=4KB,leaf_page_max=4KB");
		Backup(&database, home, copy, "incremental=(src_id=first,this_id=second)", false);
	}
	Database database(place, "backup");

	CheckRows(&database, "table:t", kRows, "in a backup");
	CheckRows(&database, "table:new", kRows, "in a backup");
	std::printf("new tables are in incremental backups\n");
}
#endif

void NewTablesAreShort(const Place &place)
{
	struct stat found;

	MakeFolder(place.folder + "/new");
	Database database(place, "new");

	CHECK_WT(database.session()->create(database.session(), "table:t", kPages));
	CHECK(stat((place.folder + "/new/t.wt").c_str(), &found) == 0, "%s", strerror(errno));
	CHECK(found.st_size == 512, "a new table has %lld bytes", static_cast<long long>(found.st_size));
	std::printf("new tables have one block\n");
}

// On a file system where files cannot be opened past the page cache.
void OtherFileSystemsDo(const Place &place)
{
	const std::string folder = place.folder + "/ramfs", file = folder + "/file";
	const Place other = {place.extension, place.url, place.device, folder};

	MakeFolder(folder);
	CHECK(mount("none", folder.c_str(), "ramfs", 0, nullptr) == 0, "%s", strerror(errno));
	CHECK(open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0666) < 0 && errno == EINVAL,
		"a file on ramfs is opened with O_DIRECT");
	Make(other, "database", "table:t");
	{
		Database database(other, "database");

		CheckRows(&database, "table:t", kRows, "on ramfs");
	}
	CHECK(umount2(folder.c_str(), MNT_DETACH) == 0, "%s", strerror(errno));
	std::printf("tables are made on file systems without O_DIRECT\n");
}

// Salvage reads the whole file, not only its pages: up to its end, which is zeroes.
void TablesAreSalvaged(const Place &place)
{
	Make(place, "salvage", "table:t");
	{
		Database database(place, "salvage");

		CHECK_WT(database.session()->salvage(database.session(), "table:t", "force=true"));
		CHECK_WT(database.session()->verify(database.session(), "table:t", nullptr));
		CheckRows(&database, "table:t", kRows, "after salvage");
	}
	Database database(place, "salvage");

	CheckRows(&database, "table:t", kRows, "after salvage");
	std::printf("tables are salvaged\n");
}

int Open(const std::string &home, const std::string &extensions)
{
	static WT_EVENT_HANDLER quiet = {};
	WT_CONNECTION *connection = nullptr;

	quiet.handle_error = Quiet;
	const int error = wiredtiger_open(home.c_str(), &quiet, ("create,extensions=[" + extensions + "]").c_str(), &connection);

	if (!error)
		CHECK_WT(connection->close(connection, nullptr));
	return error;
}

void SettingsAreChecked(const Place &place)
{
	const std::string home = place.folder + "/settings", counters = place.folder + "/counters.json";
	const auto with = [&place](const std::string &config) {
		return std::string(place.extension) + "={early_load=true,config={" + config + "}}";
	};

	MakeFolder(home);
	unlink(counters.c_str());
	for (const char *good : {"", "target_reads", "target_reads=true", "log_dsync=false", "log_dsync=0"})
		CHECK(Open(home, with(good)) == 0, "%s is refused", good);
	for (const char *wrong : {"target_reads=maybe", "target_reads=2", "log_dsync=\"\"", "sample=101", "other=1"})
		CHECK(Open(home, with(wrong)) == EINVAL, "%s is accepted", wrong);
	CHECK(Open(home, with("") + "," + with("")) == EINVAL, "the extension is loaded twice");
	CHECK(Open(home, with("counters=\"" + counters + "\"")) == 0, "counters without a target are refused");
	CHECK(access(counters.c_str(), R_OK) == 0, "counters without a target are not written");
	std::printf("settings are checked\n");
}

const char *OtherMinor(int *major, int *minor, int *patch)
{
	const char *const version = wiredtiger_version(major, minor, patch);

	++*minor;
	return version;
}

int SayNothing(WT_EXTENSION_API *, WT_SESSION *, const char *, ...)
{
	return 0;
}

// Pretends to be another minor version, whose sessions and cursors may have other methods.
void OtherVersionsAreRefused(const Place &place)
{
	static WT_EXTENSION_API other;
	const std::string home = place.folder + "/version";
	WT_CONNECTION *connection;

	MakeFolder(home);
	CHECK_WT(wiredtiger_open(home.c_str(), nullptr, "create", &connection));
	void *const library = dlopen(place.extension, RTLD_NOW);

	CHECK(library, "%s", dlerror());
	const auto init = reinterpret_cast<int (*)(WT_CONNECTION *, WT_CONFIG_ARG *)>(dlsym(library, "wiredtiger_extension_init"));
	WT_CONNECTION loading = {};

	CHECK(init, "%s", dlerror());
	other = *connection->get_extension_api(connection);
	other.version = OtherMinor;
	other.err_printf = SayNothing;
	loading.get_extension_api = [](WT_CONNECTION *) { return &other; };
	CHECK(init(&loading, nullptr) == EINVAL, "another minor version is accepted");
	CHECK_WT(connection->close(connection, nullptr));
	std::printf("another minor version is refused\n");
}

} // namespace

extern "C" int fdatasync(int fd)
{
	static const auto real = reinterpret_cast<decltype(&fdatasync)>(dlsym(RTLD_NEXT, "fdatasync"));
	const char *const end = failing;

	if (!end || !EndsWith(PathOf(fd), end))
		return real(fd);
	failing = nullptr;
	errno = EIO;
	return -1;
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(const Place &);
	} tests[] = {
		{"sync", FailedSyncsAreFinal},
		{"log", LogsAreDurable},
		{"new", NewTablesAreShort},
#if WIREDTIGER_VERSION_MAJOR > 3
		{"backup", NewTablesAreBackedUp},
#endif
		{"ramfs", OtherFileSystemsDo},
		{"salvage", TablesAreSalvaged},
		{"settings", SettingsAreChecked},
		{"version", OtherVersionsAreRefused},
	};

	CHECK(argc == 5 || argc == 6, "usage: files_test EXTENSION FOLDER URL DEVICE [TEST]");
	const Place place = {argv[1], argv[3], argv[4], argv[2]};

	for (const auto &test : tests)
		if (argc == 5 || !std::strcmp(argv[5], test.name))
			test.run(place);
	return 0;
}
