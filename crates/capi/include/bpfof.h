/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libbpfof: chains of dependent reads over files, run at the storage target.
 *
 *     struct bpfof *b = bpfof_open(url, "/dev/nvme1n1", NULL);
 *     struct bpfof_function *find = bpfof_function_load_file(b, "find.bpf.o", NULL);
 *     struct bpfof_reader *reader = bpfof_reader_open(b);
 *     int fds[] = { open("/db/index", O_RDONLY), open("/db/data", O_RDONLY) };
 *     struct bpfof_read first = { 0, 512, 0 };
 *     length = bpfof_read_pushdown(reader, fds, 2, &first, find,
 *                                  scratch, sizeof(scratch), argument_len, NULL);
 *
 * The library makes the first read and calls the storage function on its
 * bytes. The function asks for the next reads, of any size and in any of the
 * files, until it is done; the first bytes of scratch are then the answer. If
 * possible, this happens at the target, in one round trip. Otherwise it
 * happens on this machine by reads of the same files, with the same answer: by
 * direct reads if there is no target, and by plain reads if there is one. So a
 * program works with and without a target. docs/files.md says what is
 * guaranteed while other processes change the files.
 *
 * Storage functions include another header of the same name, which is
 * installed elsewhere: pkg-config --variable=functiondir bpfof.
 *
 * Errors. Calls return -1 or NULL and set errno; bpfof_error() returns a
 * message that says what was attempted, why it failed, and what to do. No call
 * ends the process: an internal error is ENOTRECOVERABLE, and the object of
 * the call must not be used any more.
 *
 * Threads. A struct bpfof and its functions may be used by any number of
 * threads at once. A reader is for one thread at a time; open one for each
 * thread. A call on a reader that another call is using fails with EBUSY.
 * Closing an object that another thread is using is an error of the program.
 * After fork() a child must not use objects that its parent opened.
 *
 * Signals. The library's threads block all signals except those of faults:
 * signals to the process are left to the program, which may block a signal to
 * wait for it. One of the library's threads waits for SIGRTMAX - 1, which is
 * sent to that thread alone, and for SIGIO, which the kernel sends instead
 * when too many signals are queued. If a SIGIO or a SIGRTMAX - 1 is sent to
 * the process while all other threads block it, that thread takes it: a
 * program that waits for one of the two itself may miss it. Calls continue
 * after a signal.
 */
#ifndef LIBBPFOF_H
#define LIBBPFOF_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. */
#define BPFOF_VERSION_MAJOR 0
#define BPFOF_VERSION_MINOR 1
#define BPFOF_VERSION_PATCH 0
#define BPFOF_VERSION \
	(BPFOF_VERSION_MAJOR * 1000000 + BPFOF_VERSION_MINOR * 1000 + BPFOF_VERSION_PATCH)

/* Version of the library that is running, as BPFOF_VERSION and as "0.1.0". */
uint32_t bpfof_version(void);
const char *bpfof_version_string(void);

/* Maximum number of files of a chain; maximum size of its scratch buffer in
 * bytes. */
#define BPFOF_FILES_MAX 16
#define BPFOF_SCRATCH_MAX 16384

/* A target, or none, and the files that chains read. */
struct bpfof;
/* A storage function, loaded on both sides. */
struct bpfof_function;
/* Runs chains, on a connection of its own or a shared one. */
struct bpfof_reader;

/*
 * The message of the last call on this thread that failed, or "". Valid until
 * the next call on this thread.
 */
const char *bpfof_error(void);

/* Levels of log messages, for bpfof_set_log(). */
#define BPFOF_LOG_ERROR 1
#define BPFOF_LOG_WARNING 2
#define BPFOF_LOG_INFO 3
#define BPFOF_LOG_DEBUG 4

/*
 * From now on log is called with each message of this level or a more severe
 * one, in any thread, and in several threads at once. Some events are reported
 * only this way, because no call fails: for example that a path to the target
 * is lost. The line is valid during the call. log must not call this library.
 * It also must not wait for a thread that is in a call of this library or
 * about to enter one (for example by taking a lock that such a thread holds),
 * because the library may hold its own locks during the call. With NULL no
 * more messages are passed on, which is the initial state; when that call
 * returns, log is not running. Fails with EBUSY in a program that has a logger
 * of Rust's crate log.
 */
int bpfof_set_log(void (*log)(int level, const char *line), int level);

/* Fail rather than run a chain on this machine, or open without a target. */
#define BPFOF_NO_FALL_BACK 1u
/* Never sleep while waiting. For threads with a processor of their own. */
#define BPFOF_POLL 2u
/* From bpfof_add(), or from its first use, until bpfof_forget(), a number
 * stands for the same file. This saves a system call for each use. The
 * descriptor may be closed meanwhile, but its number must not be reused for
 * another file. */
#define BPFOF_STABLE_FDS 4u

/* Initialise with BPFOF_OPTIONS_INIT. */
struct bpfof_options {
	/* sizeof(struct bpfof_options), which may grow in later versions */
	size_t size;
	/* BPFOF_NO_FALL_BACK, BPFOF_POLL, BPFOF_STABLE_FDS */
	uint32_t flags;
	/* how often a chain is tried again if its files have changed, and
	 * how long it waits for their new maps each time */
	uint32_t retries;
	uint32_t patience_us;
	/* longest time to connect; and longest time from sending a chain, or
	 * another command, to its end, after which the connection is given
	 * up. bpfof_open() may take longer than connect_timeout_ms: it first
	 * resolves the name of the host, and finally sends commands to
	 * identify the target, each of which may take command_timeout_ms. 0
	 * means no time at all: nothing succeeds. */
	uint32_t connect_timeout_ms;
	uint32_t command_timeout_ms;
	/* most chains that a reader has at the target at once, 1 to 4095 */
	uint32_t queue_depth;
	/* 0: each reader has a connection of its own. Otherwise readers
	 * share connections: one for each processor on which a reader begins
	 * a chain, and at most this many; UINT32_MAX means no limit. A
	 * shared connection has up to queue_depth chains, or vectors of
	 * chains, at once. */
	uint32_t lanes_max;
	/* 0 */
	uint32_t reserved;
};

#define BPFOF_OPTIONS_INIT { sizeof(struct bpfof_options), 0, 1, 20000, 5000, 30000, 128, 0, 0 }

/*
 * Connects to the target at url (nvme-tcp://HOST[:PORT]/NQN[?ns=N][&…], or
 * nvme-rdma:// with one portal and without tls-psk, tls-compat, host-traddr).
 * device is the target's namespace on this machine: the block device that the
 * kernel created for it, or the disk or image file that a target on this
 * machine serves. A wrong device of the right size gives wrong answers, unless
 * it is the kernel's disk of another namespace: that fails with EXDEV. options
 * may be NULL.
 *
 * url may also be grantd:PATH, the socket of a grant daemon (bpfof grantd). It
 * is for processes that may not read whole namespaces: the daemon grants
 * single files, by the descriptors that chains name. device is then any file
 * or directory on the file system in question, such as the database's
 * directory; it may be NULL or "" if the daemon serves only one namespace.
 * Chains over files without a grant run on this machine; bpfof_wait_mapped()
 * says why. The daemon, rather than options.queue_depth, determines how many
 * chains a connection has at once.
 *
 * url may also be nvme:PATH, the character device of an NVMe namespace of this
 * machine (/dev/ngXnY), with its block device (/dev/nvmeXnY) as device. Chains
 * then run on this machine and read by NVMe commands, bypassing the file
 * system, and a chain that is alone runs in the kernel if the kernel module is
 * loaded (docs/kernel.md). This requires the right to read the whole
 * namespace.
 *
 * If url is NULL, there is no target, and all chains run on this machine. They
 * also do if the target cannot be reached or does not support pushdown, unless
 * BPFOF_NO_FALL_BACK is set; bpfof_has_target() is then 0 and bpfof_error()
 * says why. With that flag the call fails: with EINVAL if url is NULL, with
 * EACCES if a key is missing or wrong, or if the target does not know this
 * host.
 *
 * The host's NQN and keys are part of the url: &hostnqn=NQN, &tls-psk=FILE,
 * &tls-compat, &dhchap-key=FILE, &dhchap-ctrl-key=FILE. If the url has none of
 * these, they may come from $XDG_CONFIG_HOME/bpfof/hosts.toml or
 * ~/.config/bpfof/hosts.toml (docs/security.md). The call fails with EACCES if
 * that file or a key file cannot be read, can be read by other users, or is
 * invalid. The library does not change whether the process can be dumped: a
 * program with keys should call prctl(PR_SET_DUMPABLE, 0) or set RLIMIT_CORE
 * itself.
 *
 * url may name several portals of a subsystem, HOST[:PORT],HOST[:PORT]…: paths
 * to the same namespace. When a path is lost, chains in flight are sent again
 * on another one, and the lost path is reconnected; while no path works,
 * chains run on this machine (docs/failover.md). With one portal, a lost
 * connection is not reconnected, except a shared one
 * (bpfof_reader_is_connected()): from then on chains run on this machine. The
 * connection of an idle program is kept: a thread of the library sends the
 * target a Keep Alive once a minute. A target may close the connection of a
 * process that is stopped for two minutes.
 */
struct bpfof *bpfof_open(const char *url, const char *device, const struct bpfof_options *options);

/*
 * NULL is allowed. Readers and functions may be closed before or afterwards;
 * the connection and the files are closed with the last of them.
 *
 * The call ends the thread that sends file maps to the target, and waits for
 * its current operation: a command to the target (command_timeout_ms), an
 * answer of the grant daemon (one second), or the write-back of a file to its
 * disk. The map of a file with very many extents is sent by several commands,
 * each with as much as the target takes at once (MDTS); the call waits for all
 * of them, each within command_timeout_ms, or for the first that fails. With
 * several portals this applies to each of them, one after the other.
 * Threads that are connecting may outlive the call, by connect_timeout_ms: do
 * not unload the library (dlclose()).
 */
void bpfof_close(struct bpfof *bpfof);

/* Whether there was a target when it was opened. */
int bpfof_has_target(const struct bpfof *bpfof);

/*
 * Files are named by descriptors of regular files, open for reading. The first
 * use of a descriptor, or bpfof_add(), opens the same file again, for reading
 * only, and begins to find out where it lies. The caller's descriptor must be
 * open whenever a call names it: each call checks which file it stands for, so
 * that the reuse of a number for another file is detected. With
 * BPFOF_STABLE_FDS there is no such check, and the descriptor may be closed.
 *
 * If the file is not open for writing anywhere, not even by the caller's
 * descriptor, a read lease guards it, and chains over it cost least.
 *
 * The library closes what it opens, for example in bpfof_forget(). This ends
 * record locks by F_SETLK that the process has on the file: use F_OFD_SETLK.
 * If writing data back fails, the library learns of it and logs a warning;
 * fsync() then fails only for descriptors that were open at that time.
 */
int bpfof_add(struct bpfof *bpfof, int fd);

/*
 * Adds the file at path under a number below -1, which from then on stands for
 * it wherever a descriptor does. This is for many files, because none of them
 * takes a descriptor. The file is opened by its path when needed, so until
 * bpfof_forget() the path must not lead to another file. Once the target knows
 * where the file lies, the file is kept without a descriptor, even if it is
 * removed; chains over a removed file that must run on this machine fail.
 * Without a target, direct reads keep descriptors of files that they have
 * read, at most a quarter of RLIMIT_NOFILE. Fails with EEXIST if the number is
 * in use for another path. If the file cannot be opened, its chains and
 * bpfof_wait_mapped() fail.
 */
int bpfof_add_path(struct bpfof *bpfof, const char *path, int number);

/*
 * The same for a file that only the caller writes or truncates until
 * bpfof_forget(), and only past the page cache (O_DIRECT): the files of a
 * database that writes in place. The answer of a chain over it is valid if all
 * bytes that the target has mapped are still in their places. Chains need no
 * lease, and writes do not invalidate them; the caller must tolerate whatever
 * a chain sees of a block that is written meanwhile. Preallocate space by
 * writing zeroes: then the file does not move. Fails with EEXIST if the
 * descriptor is already known.
 */
int bpfof_add_own(struct bpfof *bpfof, int fd);

/*
 * Checks in the background whether the file has grown or moved since the
 * target got its map, and sends a new map. Needed after a file of
 * bpfof_add_own() has grown; other files are checked without it.
 */
int bpfof_refresh(struct bpfof *bpfof, int fd);

/*
 * Waits until the target knows where the file lies; a negative timeout is
 * endless. If the file was refused before, it is examined again, except with a
 * timeout of 0, which returns the current state. Data that the kernel holds of
 * a file without a lease is written back first. Fails with ETIMEDOUT; with
 * ENOTCONN if there is no target or it has ended the association; with ENOTSUP
 * if the file cannot be mapped, for a reason that bpfof_error() gives; with
 * the system's error if the file cannot be examined; or with the target's
 * error if it refuses the map. Chains that read the file then run on this
 * machine. The call is optional: until the target knows the file, chains run
 * on this machine, or fail with ESTALE (BPFOF_NO_FALL_BACK).
 */
int bpfof_wait_mapped(struct bpfof *bpfof, int fd, int timeout_ms);

/*
 * Closes the file that bpfof_add() opened, after the chains that read it have
 * ended. Until then a deleted file keeps its space. Without a target, a reader
 * that has read it keeps it open until its next chain, or until it is closed.
 * Fails with ENOENT if the number is not known. The caller's descriptor may
 * have been closed already.
 */
int bpfof_forget(struct bpfof *bpfof, int fd);

/*
 * Loads a storage function from an ELF object, as clang writes it for -target
 * bpf. entry is the name of its section after "bpfof/"; NULL means the only
 * entry of the object. Fails with ENOEXEC if the object is refused, with
 * ENOENT if it has no such entry. bpfof_function_load_file() reads the object
 * from a file.
 */
struct bpfof_function *bpfof_function_load(struct bpfof *bpfof, const void *object, size_t length,
					   const char *entry);
struct bpfof_function *bpfof_function_load_file(struct bpfof *bpfof, const char *path,
						const char *entry);

/*
 * Unloads the function on this machine and at the target. End its chains
 * first: chains that are still at the target may run on this machine instead,
 * or fail with ENOENT (BPFOF_NO_FALL_BACK). With a grant daemon the function
 * stays at the target until the struct bpfof is closed. A reader that has run
 * the function on this machine keeps its memory until its next chain. NULL is
 * allowed.
 */
void bpfof_function_unload(struct bpfof_function *function);

/*
 * Opens a reader for chains over the files of bpfof. Fails with EAGAIN if the
 * target grants the host no more connections. With a grant daemon, this call
 * and bpfof_function_load() wait while the daemon examines files of this
 * process, for at most 2 minutes if it does not answer.
 */
struct bpfof_reader *bpfof_reader_open(struct bpfof *bpfof);

/* Chains that have not ended never end; their memory is not accessed any
 * more. NULL is allowed. */
void bpfof_reader_close(struct bpfof_reader *reader);

/* The read that a chain begins with. */
struct bpfof_read {
	/* file offset and size in bytes. The size is 1 to 65536; at a
	 * target, this limit includes the rest of the blocks that the read
	 * touches, or the chain fails with EPROTO. */
	uint64_t offset;
	uint32_t size;
	/* index into the chain's list of descriptors */
	uint32_t file;
};

/* Where a chain ran. */
#define BPFOF_AT_TARGET 1u
#define BPFOF_HERE 2u

/* How a chain ended. */
struct bpfof_result {
	/* length of the answer in bytes, or -1 */
	ssize_t length;
	/* 0 or an errno value, see below */
	int32_t error;
	/* BPFOF_AT_TARGET or BPFOF_HERE if it succeeded */
	uint32_t executor;
	/* number of hops: rounds of reads and calls of the function */
	uint32_t hops;
	/* how often its result was discarded, or it could not start, because
	 * a file had changed or had no map */
	uint32_t stale;
	/* the protocol's status (type << 8 | code) if the chain ended with
	 * one, and its detail: the code that the function returned for
	 * ECANCELED, the file for ERANGE, the instruction for EFAULT and
	 * ETIME */
	uint32_t status;
	uint32_t value;
	/* bpfof_error() for this chain */
	char message[256];
};

/*
 * Errors of chains:
 *
 * EBADF         a descriptor is not open for reading
 * EINVAL        the call makes no sense, or a descriptor is of no regular file
 * EISDIR        a descriptor is of a directory
 * E2BIG         more than BPFOF_FILES_MAX files or BPFOF_SCRATCH_MAX bytes of scratch;
 *               with BPFOF_NO_FALL_BACK, or for a function that has maps at the
 *               target, also an argument that the target does not take: one takes
 *               files and argument of some 8000 bytes, over RDMA some 4000
 * ECANCELED     the function returned a number other than 0
 * EFAULT        the function accessed memory that it may not access
 * ETIME         the function ran too long
 * ELOOP         too many hops, or bytes read: is there a cycle in the data?
 * EPROTO        the function requested something that is not allowed
 * ERANGE        the chain reads beyond the end of a file
 * EMSGSIZE      the answer is longer than scratch
 * ENOENT        the path of bpfof_add_path() is gone, or leads to another file
 * EIO, …        a read failed; for reads on this machine, the error of read()
 * EAGAIN        the target cannot run the chain now, and the function has maps
 *               there, so that it cannot run elsewhere
 * ESTALE        a file became shorter while it was read on this machine
 *
 * and only with BPFOF_NO_FALL_BACK, or for a function that has maps at the
 * target:
 *
 * ESTALE        a file changed on each try, or has no map (EAGAIN if the function has maps)
 * ENOTCONN      there is no target, or no connection to it any more, or function or
 *               reader belong to another struct bpfof
 * ECONNRESET    the connection was lost
 * EHOSTUNREACH  none of several portals works; chains continue once one does
 *               (EAGAIN if the function has maps)
 * ENOENT        the function was unloaded at the target
 * EACCES        the target denies a read
 * ENOBUFS       the target's limits are reached
 * EREMOTEIO     another status of the target
 */

/*
 * Runs one chain and waits for its end. It reads in the files of fds, begins
 * with the read first, and calls function. scratch has scratch_len bytes, at
 * most BPFOF_SCRATCH_MAX: the first argument_len bytes are the function's
 * argument, and the function sees zeroes in the rest. Returns the length of
 * the answer, which is then at the beginning of scratch; the bytes after the
 * answer are undefined. result may be NULL.
 *
 * If the target interrupts a chain to serve others, the chain is sent again a
 * few times within a quarter of a second, and then runs on this machine, like
 * any chain that cannot run at the target. Chains only read, but a function
 * with maps has changed them on each try.
 */
ssize_t bpfof_read_pushdown(struct bpfof_reader *reader, const int *fds, size_t nfds,
			    const struct bpfof_read *first, const struct bpfof_function *function,
			    void *scratch, size_t scratch_len, size_t argument_len,
			    struct bpfof_result *result);

/* A chain, for programs with many chains in flight. */
struct bpfof_chain {
	/* parameters of bpfof_read_pushdown() */
	const int *fds;
	size_t nfds;
	struct bpfof_read first;
	const struct bpfof_function *function;
	void *scratch;
	size_t scratch_len;
	size_t argument_len;
	/* not used by the library */
	void *user;
	/* how it ended */
	struct bpfof_result result;
};

/*
 * Begins a chain; the next bpfof_poll() sends it. The chain and its scratch
 * must stay in place and must not be accessed until bpfof_poll() has returned
 * the chain; the array fds may be freed and the descriptors closed.
 */
int bpfof_submit(struct bpfof_reader *reader, struct bpfof_chain *chain);

/*
 * Begins count chains, an array, as bpfof_submit() begins each. Their fds (the
 * same array), nfds, function and scratch_len must be the same, so that they
 * are one command, or a few, if the target supports it. If the call makes no
 * sense for one of them, none is begun.
 */
int bpfof_submit_many(struct bpfof_reader *reader, struct bpfof_chain *chains, size_t count);

/*
 * Waits until a chain has ended, at most timeout_ms; a negative timeout is
 * endless. Stores at most max chains that have ended, in the order of their
 * ends, and returns their number; 0 if none are in flight or none has ended in
 * time. The result of a chain says whether it succeeded. Chains that run on
 * this machine do so during this call, regardless of the timeout. Reconnecting
 * also ignores the timeout: on another path when one is lost, or for fresh
 * keys when those of TLS have reached their usage limit; bpfof_submit() may do
 * this as well. It takes a few round trips, but up to three times
 * connect_timeout_ms if a target does not answer, and threads that share the
 * connection wait for it, too.
 */
int bpfof_poll(struct bpfof_reader *reader, struct bpfof_chain **ended, size_t max,
	       int timeout_ms);

/* The same, with a timeout in microseconds. */
int bpfof_poll_within(struct bpfof_reader *reader, struct bpfof_chain **ended, size_t max,
		      int64_t timeout_us);

/* The number of chains that were submitted and not returned by bpfof_poll().
 * 0, with EBUSY in errno, while another thread uses the reader. */
size_t bpfof_in_flight(const struct bpfof_reader *reader);

/*
 * Runs count chains, up to options.queue_depth at once, and waits for all of
 * them. Returns how many succeeded; each chain has its result. Consecutive
 * chains with the same fds (the same array), nfds, function and scratch_len
 * are one command if the target supports it, as with
 * bpfof_read_pushdown_many().
 */
ssize_t bpfof_read_pushdown_batch(struct bpfof_reader *reader, struct bpfof_chain *chains,
				  size_t count);

/* One of many chains over the same files with the same function. */
struct bpfof_entry {
	/* first read */
	struct bpfof_read first;
	/* memory used by this chain alone. Its first argument_len bytes are
	 * the argument; afterwards they hold the answer. */
	void *scratch;
	size_t argument_len;
	/* how it ended */
	struct bpfof_result result;
};

/*
 * Runs count chains over the files of fds with the same function, and waits
 * for all of them. Each has scratch_len bytes of scratch, and ends as with
 * bpfof_read_pushdown(). If the target supports it, up to 256 chains are one
 * command, which costs the target, the network and this machine less than
 * separate commands. Returns how many succeeded; each entry has its result. If
 * the call makes no sense for one of the chains, returns -1, and no chain was
 * begun; bpfof_error() says which one.
 */
ssize_t bpfof_read_pushdown_many(struct bpfof_reader *reader, const int *fds, size_t nfds,
				 const struct bpfof_function *function, size_t scratch_len,
				 struct bpfof_entry *entries, size_t count);

/* A read without a function. */
struct bpfof_file_read {
	int fd;
	/* file offset and size in bytes */
	uint64_t offset;
	size_t size;
	/* buffer for the bytes, used by this read alone */
	void *data;
	/* number of bytes read: fewer than size only at the end of the file */
	size_t length;
};

/*
 * Reads count ranges of files like pread(), but through the target for files
 * that it knows: all in one round trip, bypassing this machine's kernel and
 * page cache. Returns 0 when all are read. If a range cannot be read, the call
 * fails as pread() does, and the contents of the other buffers are undefined.
 * Fails with EBUSY while submitted chains have not ended. With
 * BPFOF_NO_FALL_BACK it fails for ranges that the target has not read: with
 * ESTALE, ENOTCONN, ECONNRESET and EHOSTUNREACH as chains do, or with the
 * error of the target's read. With that flag it always fails with ENOTCONN
 * with a grant daemon, which allows nothing but chains, and on a drive of this
 * machine (nvme:).
 */
int bpfof_read_files(struct bpfof_reader *reader, struct bpfof_file_read *reads, size_t count);

/*
 * The same, but waits for the target for at most timeout_us microseconds, and
 * then fails with ETIMEDOUT. A connection that is not shared is then given up.
 * A negative timeout is endless. Reconnecting may take longer: see
 * bpfof_poll().
 */
int bpfof_read_files_within(struct bpfof_reader *reader, struct bpfof_file_read *reads, size_t count,
			    int64_t timeout_us);

/*
 * Whether the reader has a connection to the target, and the target still has
 * the association of the struct bpfof. A lost shared connection (lanes_max) is
 * replaced within about 10 s, and the reader then uses the new one. Other lost
 * connections are not reconnected: open another reader, or if that fails
 * another struct bpfof. Returns 0, with EBUSY in errno, while another thread
 * uses the reader: this does not mean that the connection is lost.
 */
int bpfof_reader_is_connected(const struct bpfof_reader *reader);

/* Bytes that the reader has sent to the target and received from it, without
 * TCP and IP headers. On a shared connection a reader also transfers bytes
 * of other readers, and other readers its bytes: each byte is counted for
 * one reader. */
int bpfof_reader_traffic(const struct bpfof_reader *reader, uint64_t *sent, uint64_t *received);

#ifdef __cplusplus
}
#endif

#endif
