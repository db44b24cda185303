/* Preloaded by tests/faults: counts the calls that change regular files or folders, over all threads of a process.
 *
 * KILL_AT=N     the signal KILL_WITH comes in the N-th: a write is done by half before it, any other call not at all
 * FULL_AT=N     from the N-th on there is no space left: nothing can be written or made, but things can be removed
 * FAULTS_LOG=F  each call is a line in F
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum Fault { NONE, KILLED, FULL };

static atomic_long calls;

static void note(const char* name) {
    const char* log = getenv("FAULTS_LOG");
    const long file = log ? syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file < 0) return;
    char line[64];
    const int size = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), name);
    syscall(SYS_write, file, line, size);
    syscall(SYS_close, file);
}

static enum Fault fault(const char* name) {
    const long number = atomic_fetch_add(&calls, 1) + 1;
    const char *killed = getenv("KILL_AT"), *full = getenv("FULL_AT");
    note(name);
    if (killed && number == atol(killed)) return KILLED;
    return full && number >= atol(full) ? FULL : NONE;
}

/* A handler may want to go on. */
static void end(void) {
    const char* with = getenv("KILL_WITH");
    kill(getpid(), with ? atoi(with) : SIGKILL);
}

static int no_space(void) {
    errno = ENOSPC;
    return -1;
}

static int is_file(int descriptor) {
    struct stat found;
    return !syscall(SYS_fstat, descriptor, &found) && S_ISREG(found.st_mode);
}

ssize_t write(int file, const void* data, size_t size) {
    switch (is_file(file) ? fault("write") : NONE) {
        case FULL:
            return no_space();
        case KILLED:
            if (size > 1) size /= 2;
            REAL(write)(file, data, size);
            end();
            return (ssize_t)size;
        default:
            return REAL(write)(file, data, size);
    }
}

ssize_t writev(int file, const struct iovec* parts, int count) {
    switch (is_file(file) ? fault("writev") : NONE) {
        case FULL:
            return no_space();
        case KILLED:
            end(); /* fallthrough */
        default:
            return REAL(writev)(file, parts, count);
    }
}

/* Calls that need space. */
#define MAKES(name, parameters, arguments)     \
    int name parameters {                      \
        const enum Fault found = fault(#name); \
        if (found == FULL) return no_space();  \
        if (found == KILLED) end();            \
        return REAL(name) arguments;           \
    }

/* Calls that do not. */
#define KEEPS(name, parameters, arguments) \
    int name parameters {                  \
        if (fault(#name) == KILLED) end(); \
        return REAL(name) arguments;       \
    }

MAKES(mkdir, (const char* path, mode_t mode), (path, mode))
MAKES(link, (const char* from, const char* to), (from, to))
MAKES(ftruncate64, (int file, off64_t size), (file, size))
MAKES(posix_fallocate64, (int file, off64_t at, off64_t size), (file, at, size))
MAKES(fsync, (int file), (file))
KEEPS(symlink, (const char* from, const char* to), (from, to))
KEEPS(rename, (const char* from, const char* to), (from, to))
KEEPS(unlink, (const char* path), (path))
KEEPS(unlinkat, (int folder, const char* path, int flags), (folder, path, flags))
KEEPS(rmdir, (const char* path), (path))
