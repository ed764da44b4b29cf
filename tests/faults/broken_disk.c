/* Writes below some folders fail, and what of their files is synced is kept. The file named by NASFLOW_FAULTS_DISK has the
   error number, an int32, 0 for none; where contents are kept, empty for nowhere; the folders in which writes fail, and
   those in which contents are kept, each with a NUL at its end, and one more at the end of all. See broken_disk.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE 4096
#define WRITES (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)

struct control {
    volatile int32_t error;
    char synced[252];
    char failing[(SIZE - 256) / 2];
    char kept[(SIZE - 256) / 2];
};

static const struct control *control(void) {
    static const struct control none, *place;
    if (!place) {
        const char *path = getenv("NASFLOW_FAULTS_DISK");
        int file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0)
            close(file);
        place = mapped == MAP_FAILED ? &none : mapped;
    }
    return place;
}

static int below(const char *path, const char *folder) {
    for (; *folder; folder += strlen(folder) + 1)
        if (!strncmp(path, folder, strlen(folder)) && path[strlen(folder)] == '/')
            return 1;
    return 0;
}

static void path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = file == AT_FDCWD ? syscall(SYS_getcwd, path, PATH_MAX) - 1 : readlink(link, path, PATH_MAX);
    path[length < 0 ? 0 : length] = 0;
}

/* Whether to fail; errno is set then. */
static int file_fails(int file) {
    char path[PATH_MAX + 1];
    int error = control()->error;
    if (!error)
        return 0;
    path_of(file, path);
    if (!below(path, control()->failing))
        return 0;
    errno = error;
    return 1;
}

static int name_fails(int folder, const char *name) {
    char path[2 * PATH_MAX + 2] = "";
    int error = control()->error;
    if (!error || !name || strlen(name) >= PATH_MAX)
        return 0;
    if (*name != '/') {
        path_of(folder, path);
        strcat(path, "/");
    }
    strcat(path, name);
    if (!below(path, control()->failing))
        return 0;
    errno = error;
    return 1;
}

/* Copies what was synced to a file with the inode and its birth in the name, which a rename does not change. */
static int keep(int file, int result) {
    char path[PATH_MAX + 1], aside[PATH_MAX], kept[PATH_MAX], bytes[1 << 16];
    struct statx facts;
    ssize_t size;
    if (result || !*control()->synced)
        return result;
    path_of(file, path);
    if (!below(path, control()->kept) || syscall(SYS_statx, file, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &facts) ||
        !S_ISREG(facts.stx_mode))
        return result;
    snprintf(aside, sizeof aside, "%s/new-%ld", control()->synced, syscall(SYS_gettid));
    snprintf(kept, sizeof kept, "%s/%llu-%lld-%u", control()->synced, facts.stx_ino, (long long)facts.stx_btime.tv_sec,
             facts.stx_btime.tv_nsec);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int from = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    int to = syscall(SYS_openat, AT_FDCWD, aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while ((size = syscall(SYS_read, from, bytes, sizeof bytes)) > 0)
        syscall(SYS_write, to, bytes, size);
    close(from);
    close(to);
    syscall(SYS_renameat2, AT_FDCWD, aside, AT_FDCWD, kept, 0);
    return result;
}

static int open_any(int folder, const char *name, int flags, va_list rest) {
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    return (flags & WRITES) && name_fails(folder, name) ? -1 : syscall(SYS_openat, folder, name, flags, mode);
}

#define OPEN(NAME)                                                                                                     \
    int NAME(const char *name, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        int file = open_any(AT_FDCWD, name, flags, rest);                                                              \
        va_end(rest);                                                                                                  \
        return file;                                                                                                   \
    }
#define OPENAT(NAME)                                                                                                   \
    int NAME(int folder, const char *name, int flags, ...) {                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        int file = open_any(folder, name, flags, rest);                                                                \
        va_end(rest);                                                                                                  \
        return file;                                                                                                   \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define ON_FILE(RESULT, NAME, ARGUMENTS, CALL)                                                                         \
    RESULT NAME ARGUMENTS { return file_fails(file) ? -1 : CALL; }
ON_FILE(ssize_t, write, (int file, const void *bytes, size_t size), syscall(SYS_write, file, bytes, size))
ON_FILE(ssize_t, writev, (int file, const struct iovec *parts, int count), syscall(SYS_writev, file, parts, count))
ON_FILE(ssize_t, pwrite, (int file, const void *bytes, size_t size, off_t at),
        syscall(SYS_pwrite64, file, bytes, size, at))
ON_FILE(ssize_t, pwrite64, (int file, const void *bytes, size_t size, off64_t at),
        syscall(SYS_pwrite64, file, bytes, size, at))
ON_FILE(int, fsync, (int file), keep(file, syscall(SYS_fsync, file)))
ON_FILE(int, fdatasync, (int file), keep(file, syscall(SYS_fdatasync, file)))
ON_FILE(int, ftruncate, (int file, off_t size), syscall(SYS_ftruncate, file, size))
ON_FILE(int, ftruncate64, (int file, off64_t size), syscall(SYS_ftruncate, file, size))

#define ON_NAME(NAME, ARGUMENTS, FOLDER, CALL)                                                                         \
    int NAME ARGUMENTS { return name_fails(FOLDER, name) ? -1 : CALL; }
ON_NAME(mkdir, (const char *name, mode_t mode), AT_FDCWD, syscall(SYS_mkdirat, AT_FDCWD, name, mode))
ON_NAME(mkdirat, (int folder, const char *name, mode_t mode), folder, syscall(SYS_mkdirat, folder, name, mode))
ON_NAME(unlink, (const char *name), AT_FDCWD, syscall(SYS_unlinkat, AT_FDCWD, name, 0))
ON_NAME(unlinkat, (int folder, const char *name, int flags), folder, syscall(SYS_unlinkat, folder, name, flags))
ON_NAME(rmdir, (const char *name), AT_FDCWD, syscall(SYS_unlinkat, AT_FDCWD, name, AT_REMOVEDIR))
ON_NAME(rename, (const char *old, const char *name), AT_FDCWD,
        syscall(SYS_renameat2, AT_FDCWD, old, AT_FDCWD, name, 0))
ON_NAME(renameat, (int from, const char *old, int folder, const char *name), folder,
        syscall(SYS_renameat2, from, old, folder, name, 0))
ON_NAME(link, (const char *old, const char *name), AT_FDCWD, syscall(SYS_linkat, AT_FDCWD, old, AT_FDCWD, name, 0))
ON_NAME(linkat, (int from, const char *old, int folder, const char *name, int flags), folder,
        syscall(SYS_linkat, from, old, folder, name, flags))
