/* Preloaded into a process, records what it does to the files below one folder: names, writes, sizes and syncs.

   POWER_ROOT   the folder, an absolute path without links
   POWER_TRACE  the file to append to; it lies elsewhere

   A record is a head (struct head), two paths and data, appended in one write, so that processes and threads share a
   trace. Whatever is no sync is recorded when it is done and before its caller knows. A sync is recorded twice: what
   was recorded before its beginning is on disk at its end. So the trace never says "synced" too early.

   Ways past it that would go unseen end the process: O_SYNC, shared writable mappings (but of SQLite's -shm). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct head {
    uint32_t total, kind, path_bytes, other_bytes;
    uint64_t inode, offset, length;
};

enum { OPENED = 1, WRITTEN, SIZED, BEGUN, SYNCED, RENAMED, LINKED, REMOVED, MADE, POINTED };

static int trace = -1;
static char root[PATH_MAX];
static size_t root_bytes;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void give_up(const char *why) {
    (void)!syscall(SYS_write, 2, why, strlen(why));
    abort();
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("POWER_ROOT"), *file = getenv("POWER_TRACE");
    if (!folder || !file) return;
    root_bytes = strlen(folder);
    if (root_bytes >= sizeof root) give_up("recorder: POWER_ROOT is too long\n");
    memcpy(root, folder, root_bytes + 1);
    int opened = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (opened < 0) give_up("recorder: cannot open POWER_TRACE\n");
    /* Far above what the program counts with. */
    trace = fcntl(opened, F_DUPFD_CLOEXEC, 700);
    syscall(SYS_close, opened);
    if (trace < 0) give_up("recorder: no descriptor left\n");
}

static int below(const char *path) {
    return trace >= 0 && !strncmp(path, root, root_bytes) && (path[root_bytes] == '/' || !path[root_bytes]);
}

static void tell(uint32_t kind, const char *path, const char *other, uint64_t inode, uint64_t offset, uint64_t length,
                 const struct iovec *data, int pieces) {
    int saved = errno;
    struct head head = {0, kind, path ? strlen(path) : 0, other ? strlen(other) : 0, inode, offset, length};
    struct iovec all[1027] = {{&head, sizeof head}, {(void *)path, head.path_bytes}, {(void *)other, head.other_bytes}};
    size_t left = data ? length : 0, total = sizeof head + head.path_bytes + head.other_bytes;
    int count = 3;
    for (int at = 0; at < pieces && left; at++) {
        size_t part = data[at].iov_len < left ? data[at].iov_len : left;
        all[count++] = (struct iovec){data[at].iov_base, part};
        total += part;
        left -= part;
    }
    head.total = (uint32_t)total;
    if (syscall(SYS_writev, trace, all, count) != (ssize_t)total) give_up("recorder: the trace cannot be written\n");
    errno = saved;
}

/* The path of an open file without links; 0 where it is none of ours. */
static int path_of(int fd, char *path, struct stat *is) {
    char link[64];
    int saved = errno;
    if (trace < 0 || fstat(fd, is) || !(S_ISREG(is->st_mode) || S_ISDIR(is->st_mode))) {
        errno = saved;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int is_shared_memory(const char *path) {
    size_t length = strlen(path);
    return length > 4 && !strcmp(path + length - 4, "-shm");
}

/* The path of a name as seen from a folder, links of its folder resolved but not its own; 0 where it is none of ours. */
static int name_of(int dirfd, const char *name, char *path) {
    char given[PATH_MAX], folder[PATH_MAX], link[64];
    int saved = errno, length = 0;
    if (trace < 0 || !name) return 0;
    if (*name != '/') {
        if (dirfd == AT_FDCWD) {
            if (!getcwd(given, sizeof given)) return errno = saved, 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
            ssize_t read = readlink(link, given, sizeof given - 1);
            if (read < 0) return errno = saved, 0;
            given[read] = 0;
        }
        length = (int)strlen(given);
        given[length++] = '/';
    }
    snprintf(given + length, sizeof given - length, "%s", name);
    for (size_t end = strlen(given); end > 1 && given[end - 1] == '/'; end--) given[end - 1] = 0;
    char *slash = strrchr(given, '/');
    *slash = 0;
    char *whole = realpath(*given ? given : "/", folder);
    errno = saved;
    if (!whole) return 0;
    snprintf(path, PATH_MAX, "%s/%s", folder, slash + 1);
    return below(path);
}

static int opened(int fd, int flags) {
    char path[PATH_MAX];
    struct stat is;
    if (fd < 0 || !path_of(fd, path, &is)) return fd;
    if ((flags & (O_SYNC | O_DSYNC)) && (flags & O_ACCMODE) != O_RDONLY) give_up("recorder: O_SYNC is not known\n");
    if (S_ISREG(is.st_mode) && (flags & (O_CREAT | O_TRUNC)))
        tell(OPENED, path, 0, is.st_ino, 0, (flags & O_TRUNC) ? 1 : 0, 0, 0);
    return fd;
}

#define OPEN(name)                                                \
    int name(const char *path, int flags, ...) {                  \
        va_list more;                                             \
        va_start(more, flags);                                    \
        mode_t mode = va_arg(more, mode_t);                       \
        va_end(more);                                             \
        return opened(REAL(name)(path, flags, mode), flags);      \
    }
#define OPENAT(name)                                              \
    int name(int dirfd, const char *path, int flags, ...) {       \
        va_list more;                                             \
        va_start(more, flags);                                    \
        mode_t mode = va_arg(more, mode_t);                       \
        va_end(more);                                             \
        return opened(REAL(name)(dirfd, path, flags, mode), flags); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static ssize_t written(int fd, const struct iovec *data, int pieces, int64_t offset, ssize_t done) {
    char path[PATH_MAX];
    struct stat is;
    if (done <= 0 || !path_of(fd, path, &is) || is_shared_memory(path)) return done;
    if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - done;
    tell(WRITTEN, 0, 0, is.st_ino, (uint64_t)offset, (uint64_t)done, data, pieces);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    struct iovec piece = {(void *)data, length};
    return written(fd, &piece, 1, -1, REAL(write)(fd, data, length));
}
ssize_t writev(int fd, const struct iovec *data, int pieces) {
    return written(fd, data, pieces, -1, REAL(writev)(fd, data, pieces));
}
#define PWRITE(name, offset_t)                                                     \
    ssize_t name(int fd, const void *data, size_t length, offset_t offset) {       \
        struct iovec piece = {(void *)data, length};                               \
        return written(fd, &piece, 1, offset, REAL(name)(fd, data, length, offset)); \
    }
#define PWRITEV(name, offset_t)                                                    \
    ssize_t name(int fd, const struct iovec *data, int pieces, offset_t offset) {  \
        return written(fd, data, pieces, offset, REAL(name)(fd, data, pieces, offset)); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

/* What was copied within the kernel is read back. */
static ssize_t copied(int fd, ssize_t done) {
    char path[PATH_MAX], *data;
    struct stat is;
    if (done <= 0 || !path_of(fd, path, &is)) return done;
    int64_t offset = lseek(fd, 0, SEEK_CUR) - done;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int reading = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (reading < 0 || !(data = malloc(done)) || pread(reading, data, done, offset) != done)
        give_up("recorder: a copy cannot be read back\n");
    struct iovec piece = {data, done};
    tell(WRITTEN, 0, 0, is.st_ino, (uint64_t)offset, (uint64_t)done, &piece, 1);
    free(data);
    syscall(SYS_close, reading);
    return done;
}
ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    return copied(out, REAL(sendfile)(out, in, offset, count));
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) {
    return copied(out, REAL(sendfile64)(out, in, offset, count));
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    char path[PATH_MAX];
    struct stat is;
    if (to && path_of(out, path, &is)) give_up("recorder: copy_file_range to an offset is not known\n");
    return copied(out, REAL(copy_file_range)(in, from, out, to, count, flags));
}

static int sized(int fd, int result) {
    char path[PATH_MAX];
    struct stat is;
    if (!result && path_of(fd, path, &is) && !is_shared_memory(path))
        tell(SIZED, 0, 0, is.st_ino, 0, (uint64_t)is.st_size, 0, 0);
    return result;
}
static int sized_by_name(const char *name, int result) {
    struct stat is;
    char path[PATH_MAX];
    if (!result && name_of(AT_FDCWD, name, path) && !stat(path, &is))
        tell(SIZED, 0, 0, is.st_ino, 0, (uint64_t)is.st_size, 0, 0);
    return result;
}
int ftruncate(int fd, off_t size) { return sized(fd, REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { return sized(fd, REAL(ftruncate64)(fd, size)); }
int truncate(const char *path, off_t size) { return sized_by_name(path, REAL(truncate)(path, size)); }
int truncate64(const char *path, off64_t size) { return sized_by_name(path, REAL(truncate64)(path, size)); }
int posix_fallocate(int fd, off_t at, off_t length) { return sized(fd, REAL(posix_fallocate)(fd, at, length)); }
int posix_fallocate64(int fd, off64_t at, off64_t length) { return sized(fd, REAL(posix_fallocate64)(fd, at, length)); }
int fallocate(int fd, int mode, off_t at, off_t length) {
    char path[PATH_MAX];
    struct stat is;
    if (mode & ~1 && path_of(fd, path, &is)) give_up("recorder: this fallocate is not known\n");
    return sized(fd, REAL(fallocate)(fd, mode, at, length));
}
int fallocate64(int fd, int mode, off64_t at, off64_t length) {
    char path[PATH_MAX];
    struct stat is;
    if (mode & ~1 && path_of(fd, path, &is)) give_up("recorder: this fallocate is not known\n");
    return sized(fd, REAL(fallocate64)(fd, mode, at, length));
}

#define SYNC(name)                                                   \
    int name(int fd) {                                               \
        char path[PATH_MAX];                                         \
        struct stat is;                                              \
        int ours = path_of(fd, path, &is);                           \
        if (ours) tell(BEGUN, 0, 0, is.st_ino, 0, 0, 0, 0);          \
        int result = REAL(name)(fd);                                 \
        if (ours && !result) tell(SYNCED, path, 0, is.st_ino, 0, 0, 0, 0); \
        return result;                                               \
    }
SYNC(fsync)
SYNC(fdatasync)

static int named(uint32_t kind, int from, const char *old, int to, const char *new, int (*call)(void *), void *given) {
    char source[PATH_MAX], target[PATH_MAX];
    struct stat is = {0};
    int ours = old ? name_of(from, old, source) : 0;
    int theirs = new ? name_of(to, new, target) : 0;
    int result = call(given);
    if (result || !(ours || theirs)) return result;
    if (old && new && !(ours && theirs)) give_up("recorder: a name crosses the border of POWER_ROOT\n");
    int saved = errno;
    lstat(theirs ? target : source, &is);
    errno = saved;
    tell(kind, ours ? source : target, ours && theirs ? target : 0, is.st_ino, 0, 0, 0, 0);
    return result;
}

struct call {
    int from, to;
    const char *old, *new;
    unsigned flags;
    mode_t mode;
};
#define GIVEN struct call *call = given
static int do_rename(void *given) { GIVEN; return REAL(rename)(call->old, call->new); }
static int do_renameat(void *given) { GIVEN; return REAL(renameat)(call->from, call->old, call->to, call->new); }
static int do_renameat2(void *given) {
    GIVEN;
    return REAL(renameat2)(call->from, call->old, call->to, call->new, call->flags);
}
static int do_link(void *given) { GIVEN; return REAL(link)(call->old, call->new); }
static int do_linkat(void *given) {
    GIVEN;
    return REAL(linkat)(call->from, call->old, call->to, call->new, (int)call->flags);
}
static int do_unlink(void *given) { GIVEN; return REAL(unlink)(call->old); }
static int do_remove(void *given) { GIVEN; return REAL(remove)(call->old); }
static int do_unlinkat(void *given) { GIVEN; return REAL(unlinkat)(call->from, call->old, (int)call->flags); }
static int do_rmdir(void *given) { GIVEN; return REAL(rmdir)(call->old); }
static int do_mkdir(void *given) { GIVEN; return REAL(mkdir)(call->new, call->mode); }
static int do_mkdirat(void *given) { GIVEN; return REAL(mkdirat)(call->to, call->new, call->mode); }

int rename(const char *old, const char *new) {
    struct call call = {.old = old, .new = new};
    return named(RENAMED, AT_FDCWD, old, AT_FDCWD, new, do_rename, &call);
}
int renameat(int from, const char *old, int to, const char *new) {
    struct call call = {.from = from, .to = to, .old = old, .new = new};
    return named(RENAMED, from, old, to, new, do_renameat, &call);
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    struct call call = {.from = from, .to = to, .old = old, .new = new, .flags = flags};
    if (flags & ~1U) give_up("recorder: this renameat2 is not known\n");
    return named(RENAMED, from, old, to, new, do_renameat2, &call);
}
int link(const char *old, const char *new) {
    struct call call = {.old = old, .new = new};
    return named(LINKED, AT_FDCWD, old, AT_FDCWD, new, do_link, &call);
}
int linkat(int from, const char *old, int to, const char *new, int flags) {
    struct call call = {.from = from, .to = to, .old = old, .new = new, .flags = (unsigned)flags};
    return named(LINKED, from, old, to, new, do_linkat, &call);
}
int unlink(const char *path) {
    struct call call = {.old = path};
    return named(REMOVED, AT_FDCWD, path, 0, 0, do_unlink, &call);
}
int remove(const char *path) {
    struct call call = {.old = path};
    return named(REMOVED, AT_FDCWD, path, 0, 0, do_remove, &call);
}
int unlinkat(int from, const char *path, int flags) {
    struct call call = {.from = from, .old = path, .flags = (unsigned)flags};
    return named(REMOVED, from, path, 0, 0, do_unlinkat, &call);
}
int rmdir(const char *path) {
    struct call call = {.old = path};
    return named(REMOVED, AT_FDCWD, path, 0, 0, do_rmdir, &call);
}
int mkdir(const char *path, mode_t mode) {
    struct call call = {.new = path, .mode = mode};
    return named(MADE, 0, 0, AT_FDCWD, path, do_mkdir, &call);
}
int mkdirat(int to, const char *path, mode_t mode) {
    struct call call = {.to = to, .new = path, .mode = mode};
    return named(MADE, 0, 0, to, path, do_mkdirat, &call);
}

static int pointed(int dirfd, const char *target, const char *name, int result) {
    char path[PATH_MAX];
    if (!result && name_of(dirfd, name, path)) tell(POINTED, path, target, 0, 0, 0, 0, 0);
    return result;
}
int symlink(const char *target, const char *name) { return pointed(AT_FDCWD, target, name, REAL(symlink)(target, name)); }
int symlinkat(const char *target, int dirfd, const char *name) {
    return pointed(dirfd, target, name, REAL(symlinkat)(target, dirfd, name));
}

static void check_mapping(int protection, int flags, int fd) {
    char path[PATH_MAX];
    struct stat is;
    if (fd >= 0 && (protection & PROT_WRITE) && (flags & MAP_SHARED) && path_of(fd, path, &is) && !is_shared_memory(path))
        give_up("recorder: a shared writable mapping is not known\n");
}
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    check_mapping(protection, flags, fd);
    return REAL(mmap)(at, length, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t length, int protection, int flags, int fd, off64_t offset) {
    check_mapping(protection, flags, fd);
    return REAL(mmap64)(at, length, protection, flags, fd, offset);
}
