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
 * The first read is made, the storage function is called on its bytes and asks
 * for the next reads, of any size and in any of the files, until it is done;
 * the first bytes of scratch are then the answer. That happens at the target,
 * in one round trip, where that is possible, and otherwise on this machine by
 * reads of the same files, with the same answer: direct ones where there is no
 * target, plain ones where there is. So a program works with and without. docs/files.md says what is guaranteed while other
 * processes change the files.
 *
 * Storage functions are written with another header of the same name, which is
 * installed apart: pkg-config --variable=functiondir bpfof.
 *
 * Errors. Calls return -1 or NULL and set errno; bpfof_error() tells in words
 * what was attempted, why it failed, and what to do. No call ends the process:
 * an internal error is ENOTRECOVERABLE, and what it happened to is unusable.
 *
 * Threads. A struct bpfof and its functions may be used by any number of
 * threads at once. A reader is for one thread at a time; make one for each
 * thread. A call on a reader that another call is using fails with EBUSY.
 * Closing something that another thread is using is an error of the program.
 * After fork() a child must not use what its parent opened.
 *
 * Signals. The library's threads block all signals but those of faults: what
 * is sent to the process is left to the program, which may block it to wait for
 * it. One of them waits for SIGRTMAX - 1, which is sent to it alone, and for
 * SIGIO, which the kernel sends in its place when too many signals are queued.
 * That thread takes a SIGIO, or a SIGRTMAX - 1, that is sent to the process and
 * blocked by its other threads: a program that waits for one of the two itself
 * may miss it. Calls go on after a signal.
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

/* Files of one chain; bytes of its scratch buffer. */
#define BPFOF_FILES_MAX 16
#define BPFOF_SCRATCH_MAX 16384

/* A target, or none, and the files that chains read. */
struct bpfof;
/* A storage function, loaded on both sides. */
struct bpfof_function;
/* What runs chains, on a connection of its own or a shared one. */
struct bpfof_reader;

/*
 * Why the last call on this thread that failed did so, in words, or "". Valid
 * until the next call on this thread.
 */
const char *bpfof_error(void);

/* What the library has to say while it works: levels of bpfof_set_log(). */
#define BPFOF_LOG_ERROR 1
#define BPFOF_LOG_WARNING 2
#define BPFOF_LOG_INFO 3
#define BPFOF_LOG_DEBUG 4

/*
 * From now on log is called with each line of this level or a lower one, in any
 * thread, also in several at once: that a path to the target is lost, for
 * example, of which no call fails. The line is valid during the call, in which
 * nothing of this library may be called; nor may log wait for a thread that is
 * in such a call or is about to enter one (for a lock that it has, say): the
 * library may hold locks of its own meanwhile. With NULL nothing is said any more,
 * as at first; when that returns log is not running. Fails with EBUSY in a
 * program that has a logger of Rust's crate log.
 */
int bpfof_set_log(void (*log)(int level, const char *line), int level);

/* Fail rather than run a chain on this machine, or open without a target. */
#define BPFOF_NO_FALL_BACK 1u
/* Never sleep while waiting. For threads that own a processor. */
#define BPFOF_POLL 2u
/* From bpfof_add(), or its first use, to bpfof_forget() a number stands for the
 * same file: this saves a system call for each use. The descriptor may be closed
 * meanwhile, but its number must not be used for another file. */
#define BPFOF_STABLE_FDS 4u

/* Start from BPFOF_OPTIONS_INIT. */
struct bpfof_options {
	/* sizeof(struct bpfof_options): it may grow in later versions */
	size_t size;
	/* BPFOF_NO_FALL_BACK, BPFOF_POLL, BPFOF_STABLE_FDS */
	uint32_t flags;
	/* how often a chain is tried again whose files have changed, and how
	 * long it waits for their new maps each time */
	uint32_t retries;
	uint32_t patience_us;
	/* longest time to connect; and from sending a chain, or another
	 * command, to its end, after which the connection is given up.
	 * bpfof_open() may take longer than the first: before that the name of
	 * the host is resolved, and then the target is asked what it is, which
	 * may take command_timeout_ms each time. 0 is no time at all: nothing
	 * succeeds. */
	uint32_t connect_timeout_ms;
	uint32_t command_timeout_ms;
	/* chains that a reader has at the target at once, 1 to 4095 */
	uint32_t queue_depth;
	/* 0: each reader has a connection of its own. Otherwise readers share
	 * connections, one for each processor that one of them begins on, and at
	 * most so many; UINT32_MAX is no limit. A shared connection has
	 * queue_depth chains, or vectors of them, at once. */
	uint32_t lanes_max;
	/* 0 */
	uint32_t reserved;
};

#define BPFOF_OPTIONS_INIT { sizeof(struct bpfof_options), 0, 1, 20000, 5000, 30000, 128, 0, 0 }

/*
 * Connects to the target at url (nvme-tcp://HOST[:PORT]/NQN[?ns=N][&…]). device is
 * what its namespace is on this machine: the block device that the kernel made
 * of it, or the disk or image file that a target on this machine serves. A
 * wrong device of the right size gives wrong answers, unless it is the kernel's
 * disk of another namespace: that is an error, EXDEV. options may be NULL.
 *
 * url may also be grantd:PATH, the socket of a grant daemon (bpfof grantd), for
 * processes that may not read whole namespaces: it grants single files, by the
 * descriptors that chains name. device is then any file or directory of the file
 * system that is meant, such as the database's; NULL or "" will do where the
 * daemon serves one namespace. Chains over files that get no grant run here;
 * bpfof_wait_mapped() tells why. How many chains a connection has at once is the
 * daemon's matter, not that of options.queue_depth.
 *
 * url may also be nvme:PATH, the character device of an NVMe namespace of this machine
 * (/dev/ngXnY), with device its block device (/dev/nvmeXnY): chains run here and read by NVMe
 * commands, past the file system, and one that is alone runs in the kernel while its module is loaded
 * (docs/kernel.md). Needs the right to read the whole namespace.
 *
 * With url NULL there is no target, and all chains run here. They do so as well
 * if the target cannot be reached or knows no pushdown, unless BPFOF_NO_FALL_BACK
 * is set; bpfof_has_target() is then 0 and bpfof_error() tells why. With that
 * flag it fails: with EINVAL if url is NULL, with EACCES if a key is missing or
 * wrong, or the target does not know this host.
 *
 * Who this host is and which keys it has is part of the url: &hostnqn=NQN, and
 * &tls-psk=FILE, &tls-compat, &dhchap-key=FILE, &dhchap-ctrl-key=FILE. If it has none
 * of these, $XDG_CONFIG_HOME/bpfof/hosts.toml or ~/.config/bpfof/hosts.toml may say
 * so (docs/security.md). That file and those with keys make it fail, with EACCES, if
 * they cannot be read, others may read them or something in them is wrong. The library does not change whether the process can be
 * dumped: a program with keys sets prctl(PR_SET_DUMPABLE, 0) or RLIMIT_CORE itself.
 *
 * url may name several portals of a subsystem, HOST[:PORT],HOST[:PORT]…: paths to the
 * same namespace. When one is lost, chains in flight are sent again by another, and the
 * lost one is connected again; if none works, chains run here until one does
 * (docs/failover.md). With one portal a
 * connection that is lost is not made again: chains run here from then on. That
 * of a program that does nothing is kept: a thread of the library tells the target
 * once a minute that the program is there. A target may end that of a process which
 * is stopped for two minutes.
 */
struct bpfof *bpfof_open(const char *url, const char *device, const struct bpfof_options *options);

/*
 * NULL is allowed. Readers and functions may be closed before or after; the
 * connection and the files are closed with the last of them.
 *
 * It ends the thread that tells the target of files, and waits for what that is
 * at: a command to the target (command_timeout_ms), an answer of the grant
 * daemon (a second), or that a file is written back to its disk. Threads that
 * connect may outlive it, by connect_timeout_ms: do not unload the library
 * (dlclose()).
 */
void bpfof_close(struct bpfof *bpfof);

/* Whether there was a target when it was opened. */
int bpfof_has_target(const struct bpfof *bpfof);

/*
 * Files are named by descriptors of regular files, open for reading. The first
 * use of one, or bpfof_add(), opens the same file once more, for reading only,
 * and begins to find out where it lies. The caller's descriptor must be open
 * whenever a call names it: each looks which file it is of, so that a number
 * that is used again for another file is noticed. With BPFOF_STABLE_FDS that
 * is not looked at, and it may be closed.
 *
 * If nobody has the file open for writing, the caller's descriptor included, a
 * read lease guards it, and chains over it cost least.
 */
int bpfof_add(struct bpfof *bpfof, int fd);

/*
 * Makes the file at path known by a number below -1, which from then on stands
 * for it wherever a descriptor does: for many files, of which none takes a
 * descriptor. The file is opened by its path when it is needed, so until
 * bpfof_forget() the path must not become that of another file. Once the target
 * knows where it lies, it is kept without a descriptor, even if it is removed;
 * what then runs here fails. Without a target, direct reads keep descriptors of
 * files that they have read, at most a quarter of RLIMIT_NOFILE. Fails with EEXIST if the number is known for
 * another path; that the file cannot be opened is told by its chains, and by
 * bpfof_wait_mapped().
 */
int bpfof_add_path(struct bpfof *bpfof, const char *path, int number);

/*
 * The same for a file that nobody but the caller writes or truncates until
 * bpfof_forget(), and the caller only past the page cache (O_DIRECT): the files
 * of a database that writes in place. A chain over it counts if all bytes that
 * the target knew of still are where they were. It needs no lease, and writes do
 * not disturb it; what it sees of a block that is written meanwhile is the
 * caller's matter. Give a file room in advance, by written zeroes: then its
 * place does not change. Fails with EEXIST if the descriptor is known.
 */
int bpfof_add_own(struct bpfof *bpfof, int fd);

/*
 * Looks in the background whether the file is longer, or elsewhere, than the
 * target knows, and tells it. For files of bpfof_add_own() that have grown; other
 * files are looked at without it.
 */
int bpfof_refresh(struct bpfof *bpfof, int fd);

/*
 * Waits until the target knows where the file lies; a negative timeout is
 * endless. The file is looked at again if it was refused before, but with a
 * timeout of 0, which tells what is known. Fails with ETIMEDOUT, with ENOTCONN without a target or after it has
 * ended the association, and with ENOTSUP if it cannot know, for reasons that
 * bpfof_error() tells; with the error of the system if the file cannot be looked
 * at, or of the target if that refuses it. Chains that read the file then run
 * here. Need not be called: until the target knows, chains run here, or fail with
 * ESTALE (BPFOF_NO_FALL_BACK).
 */
int bpfof_wait_mapped(struct bpfof *bpfof, int fd, int timeout_ms);

/*
 * Closes what bpfof_add() opened, after the chains that read it have ended. A
 * file that was deleted keeps its space until then. Fails with ENOENT if the
 * number is not known; it may have been closed already.
 */
int bpfof_forget(struct bpfof *bpfof, int fd);

/*
 * Loads a storage function from an ELF object, as clang writes it for -target
 * bpf. entry is the name of its section after "bpfof/"; NULL is the only one of
 * the object. Fails with ENOEXEC if the object is refused, with ENOENT if it
 * has no such entry. bpfof_function_load_file() reads the object from a file.
 */
struct bpfof_function *bpfof_function_load(struct bpfof *bpfof, const void *object, size_t length,
					   const char *entry);
struct bpfof_function *bpfof_function_load_file(struct bpfof *bpfof, const char *path,
						const char *entry);

/*
 * Unloads it here and at the target. End its chains before: those that are at the
 * target are run here then, or fail with ENOENT (BPFOF_NO_FALL_BACK). By a grant daemon it stays at the target until
 * the struct bpfof ends. A reader that has run it here keeps its memory until
 * its next chain. NULL is allowed.
 */
void bpfof_function_unload(struct bpfof_function *function);

/*
 * A reader for chains over the files of bpfof. Fails with EAGAIN if the target
 * grants the host no more connections. By a grant daemon it waits while that examines files
 * of this process, at most 2 minutes if it does not answer; so does
 * bpfof_function_load().
 */
struct bpfof_reader *bpfof_reader_open(struct bpfof *bpfof);

/* Chains that have not ended never do; their memory is not touched any more. NULL is allowed. */
void bpfof_reader_close(struct bpfof_reader *reader);

/* The read that a chain begins with. */
struct bpfof_read {
	/* file offset and size in bytes; the size is 1 to 65536, at a target
	 * together with the rest of the blocks that it touches, or EPROTO */
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
	/* hops it took: rounds of reads and calls of the function */
	uint32_t hops;
	/* times it was thrown away because a file had changed or had no map */
	uint32_t stale;
	/* the protocol's status (type << 8 | code) if one ended it, and what
	 * that says more: the code that the function returned for ECANCELED,
	 * the file for ERANGE, the instruction for EFAULT and ETIME */
	uint32_t status;
	uint32_t value;
	/* bpfof_error() for this chain */
	char message[256];
};

/*
 * Errors of chains:
 *
 * EBADF         a descriptor is not open for reading
 * EINVAL        the call makes no sense, a descriptor is of no regular file
 * EISDIR        a descriptor is of a directory
 * E2BIG         more than BPFOF_FILES_MAX files or BPFOF_SCRATCH_MAX bytes of scratch
 * ECANCELED     the function returned a number other than 0
 * EFAULT        the function used memory that is not its own
 * ETIME         the function ran too long
 * ELOOP         too many hops, or bytes read: is there a cycle in the data?
 * EPROTO        the function asked for what is not allowed
 * ERANGE        the chain reads beyond the end of a file
 * EMSGSIZE      the answer is longer than scratch
 * ENOENT        the path of bpfof_add_path() is gone
 * EIO, …        a read failed; as read() sets it for reads on this machine
 * EAGAIN        the target cannot run the chain now, and the function has maps
 *               there, so that it runs nowhere else
 * ESTALE        a file became shorter while it was read on this machine
 *
 * and only with BPFOF_NO_FALL_BACK, or of a function that has maps at the target:
 *
 * ESTALE        a file changed each time, or has no map (EAGAIN if the function has maps)
 * ENOTCONN      there is no target or no connection to it any more, or function or
 *               reader are of another struct bpfof
 * ECONNRESET    the connection was lost
 * EHOSTUNREACH  of several portals none works
 * ENOENT        the function was unloaded at the target
 * EACCES        the target denies a read
 * ENOBUFS       the target's limits are reached
 * EREMOTEIO     another status of the target
 */

/*
 * Runs one chain and waits for its end: reads in the files of fds, beginning
 * with first, calling function. scratch has scratch_len bytes, at most
 * BPFOF_SCRATCH_MAX; the first argument_len are the function's argument, the
 * others are zero for it. Returns the length of the answer, which is in scratch
 * then; what is behind it is undefined. result may be NULL.
 *
 * A chain that the target interrupts to serve others is sent again a few times
 * within a quarter of a second, and then runs here, as one that cannot run at the
 * target does. Chains only read; but a function that has maps has changed them
 * each time.
 */
ssize_t bpfof_read_pushdown(struct bpfof_reader *reader, const int *fds, size_t nfds,
			    const struct bpfof_read *first, const struct bpfof_function *function,
			    void *scratch, size_t scratch_len, size_t argument_len,
			    struct bpfof_result *result);

/* A chain, for those who have many in flight. */
struct bpfof_chain {
	/* as bpfof_read_pushdown() takes them */
	const int *fds;
	size_t nfds;
	struct bpfof_read first;
	const struct bpfof_function *function;
	void *scratch;
	size_t scratch_len;
	size_t argument_len;
	/* the caller's own */
	void *user;
	/* how it ended */
	struct bpfof_result result;
};

/*
 * Begins a chain; it leaves with the next bpfof_poll(). The chain and its
 * scratch must stay where they are, and untouched, until bpfof_poll() has
 * returned it; fds need not, and the descriptors may be closed.
 */
int bpfof_submit(struct bpfof_reader *reader, struct bpfof_chain *chain);

/*
 * Begins count chains, an array, as bpfof_submit() does each. Their fds (the same
 * array), nfds, function and scratch_len must be the same, so that they are one
 * command where the target can, or a few. None is begun if the call makes no sense
 * for one of them.
 */
int bpfof_submit_many(struct bpfof_reader *reader, struct bpfof_chain *chains, size_t count);

/*
 * Waits until a chain has ended, at most timeout_ms; a negative timeout is
 * endless. Returns how many have ended and stores them, in the order of their
 * ends, at most max; 0 if none are in flight or none has ended in time. Whether
 * a chain succeeded is in its result. Chains that run on this machine do so
 * during this call, whatever the timeout. So does connecting again: by another path
 * when one is lost, or for fresh keys when those of TLS have been used enough, which
 * bpfof_submit() may do as well. It takes a few round trips, but up to three times
 * connect_timeout_ms where a target does not answer, and threads that share the
 * connection wait for it, too.
 */
int bpfof_poll(struct bpfof_reader *reader, struct bpfof_chain **ended, size_t max,
	       int timeout_ms);

/* The same, with a timeout in microseconds. */
int bpfof_poll_within(struct bpfof_reader *reader, struct bpfof_chain **ended, size_t max,
		      int64_t timeout_us);

/* Chains that were submitted and not returned by bpfof_poll(). 0, with EBUSY in
 * errno, while another thread uses the reader. */
size_t bpfof_in_flight(const struct bpfof_reader *reader);

/*
 * Runs count chains, as many at once as options.queue_depth says, and waits for
 * all of them. Returns how many succeeded; the result of each is in it. Chains
 * that follow each other with the same fds (the same array), nfds, function and
 * scratch_len are one command where the target can, as those of
 * bpfof_read_pushdown_many().
 */
ssize_t bpfof_read_pushdown_batch(struct bpfof_reader *reader, struct bpfof_chain *chains,
				  size_t count);

/* One of many chains over the same files with the same function. */
struct bpfof_entry {
	/* where it begins */
	struct bpfof_read first;
	/* memory of this chain alone, of which the first argument_len bytes are
	 * its argument; afterwards the answer is there */
	void *scratch;
	size_t argument_len;
	/* how it ended */
	struct bpfof_result result;
};

/*
 * Runs count chains over the files of fds with the same function, and waits for
 * all of them. Each has scratch_len bytes of scratch, and ends as by
 * bpfof_read_pushdown(). Where the target can, up to 256 chains are one command,
 * which costs the target, the network and this machine less than as many
 * commands. Returns how many succeeded; the result of each is in it. -1 is
 * returned, and no chain was begun, if the call makes no sense for one of them;
 * bpfof_error() tells which.
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
	/* where the bytes go, which are of this read alone */
	void *data;
	/* how many there were: fewer than size only at the end of the file */
	size_t length;
};

/*
 * Reads count ranges of files, as pread() does but through the target where it
 * knows them: all in one round trip, past this machine's kernel and page cache.
 * Returns 0 once all are read. If any cannot be, it fails as pread() does, and
 * what the others have read is undefined; EBUSY while chains that were
 * submitted have not ended. With BPFOF_NO_FALL_BACK it fails for what the target
 * has not read: with ESTALE, ENOTCONN and ECONNRESET as chains do, or as the
 * target's read has; always with ENOTCONN by a grant daemon, which lets chains
 * read and nothing else, and on a drive of this machine (nvme:).
 */
int bpfof_read_files(struct bpfof_reader *reader, struct bpfof_file_read *reads, size_t count);

/*
 * The same, but waits for the target at most so long, in microseconds, and then
 * fails with ETIMEDOUT. A connection that is not shared is given up with that. A
 * negative timeout is endless. Connecting again may take longer, as bpfof_poll()
 * says.
 */
int bpfof_read_files_within(struct bpfof_reader *reader, struct bpfof_file_read *reads, size_t count,
			    int64_t timeout_us);

/*
 * Whether the reader has a connection to the target, and the target still knows
 * the struct bpfof. A connection that is shared (lanes_max) is made again within
 * some 10 s, and the reader goes on by it; what else was lost is not: open another
 * reader, or if that fails another struct bpfof. 0, with EBUSY in errno, while another thread
 * uses the reader: it says nothing then.
 */
int bpfof_reader_is_connected(const struct bpfof_reader *reader);

/* Bytes that the reader has sent to the target and received from it, without
 * TCP and IP headers. On a shared connection it exchanges bytes of others as well,
 * and others its own: each byte is one reader's. */
int bpfof_reader_traffic(const struct bpfof_reader *reader, uint64_t *sent, uint64_t *received);

#ifdef __cplusplus
}
#endif

#endif
