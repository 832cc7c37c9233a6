/* Stands between a program and its disk, for tests: loaded with LD_PRELOAD.
 *
 * With DISK_LOG it writes down, in the order in which they happen, all changes of files below DISK_ROOT
 * and what the program prints, so that a test can say what a power loss at any moment leaves. With
 * DISK_FAIL, as soon as that file exists, every write and flush below DISK_ROOT fails with EIO. With
 * DISK_KILL, a number, the program is killed just before the change of that number. With DISK_LIES, an
 * end of names, the flush of a file whose name ends so does nothing and says that it is done. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FDS = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char inside[FDS], lied[FDS];
static const char *root, *fail, *lies;
static long kill_at, changes;
static size_t root_length;
static int out = -1;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("DISK_LOG");
    root = getenv("DISK_ROOT");
    fail = getenv("DISK_FAIL");
    lies = getenv("DISK_LIES");
    kill_at = getenv("DISK_KILL") ? atol(getenv("DISK_KILL")) : 0;
    root_length = root ? strlen(root) : 0;
    if (name) out = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, name)

static int is_inside(const char *path) {
    return root && path && strncmp(path, root, root_length) == 0;
}

static int fails(void) {
    return fail && syscall(SYS_faccessat, AT_FDCWD, fail, F_OK) == 0;
}

/* Counts a change that is about to be made. Called with the lock held. */
static void about_to_change(void) {
    if (kill_at && ++changes == kill_at) syscall(SYS_kill, getpid(), SIGKILL);
}

static int ends_with(const char *text, const char *end) {
    size_t all = strlen(text), part = strlen(end);
    return all >= part && strcmp(text + all - part, end) == 0;
}

static int is_ours(int fd) { return fd >= 0 && fd < FDS && inside[fd]; }

/* One entry: kind, inode, offset, two lengths, then two texts. Called with the lock held. */
static void note(char kind, uint64_t inode, uint64_t offset, const void *one, uint32_t ones,
                 const void *two, uint32_t twos) {
    if (out < 0) return;
    char head[1 + 8 + 8 + 4 + 4];
    head[0] = kind;
    memcpy(head + 1, &inode, 8);
    memcpy(head + 9, &offset, 8);
    memcpy(head + 17, &ones, 4);
    memcpy(head + 21, &twos, 4);
    struct iovec parts[3] = {{head, sizeof head}, {(void *)one, ones}, {(void *)two, twos}};
    if (syscall(SYS_writev, out, parts, 3) != (long)(sizeof head + ones + twos)) abort();
}

static uint64_t inode_of(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 ? about.st_ino : 0;
}

static int opened(int fd, const char *path, int flags) {
    if (fd < 0 || fd >= FDS) return fd;
    inside[fd] = is_inside(path);
    lied[fd] = inside[fd] && lies && ends_with(path, lies);
    if (inside[fd]) {
        note('O', inode_of(fd), 0, path, strlen(path), "", 0);
        if (flags & O_TRUNC) note('T', inode_of(fd), 0, "", 0, "", 0);
    }
    return fd;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        pthread_mutex_lock(&lock); \
        if ((flags & O_CREAT) && is_inside(path)) about_to_change(); \
        int fd = opened(real(path, flags, mode), path, flags); \
        pthread_mutex_unlock(&lock); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    REAL(int, "close", int);
    pthread_mutex_lock(&lock);
    if (fd >= 0 && fd < FDS) inside[fd] = 0;
    int done = real(fd);
    pthread_mutex_unlock(&lock);
    return done;
}

static ssize_t wrote(int fd, ssize_t done, const void *bytes, uint64_t at) {
    if (done > 0 && is_ours(fd)) note('W', inode_of(fd), at, "", 0, bytes, done);
    if (done > 0 && fd == 1) note('A', 0, 0, "", 0, bytes, done);
    return done;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (is_ours(fd) && fails()) return errno = EIO, -1;
    pthread_mutex_lock(&lock);
    if (is_ours(fd)) about_to_change();
    uint64_t at = is_ours(fd) ? (uint64_t)lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t done = wrote(fd, real(fd, bytes, count), bytes, at);
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name) \
    ssize_t name(int fd, const void *bytes, size_t count, off64_t at) { \
        REAL(ssize_t, #name, int, const void *, size_t, off64_t); \
        if (is_ours(fd) && fails()) return errno = EIO, -1; \
        pthread_mutex_lock(&lock); \
        if (is_ours(fd)) about_to_change(); \
        ssize_t done = wrote(fd, real(fd, bytes, count, at), bytes, at); \
        pthread_mutex_unlock(&lock); \
        return done; \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name) \
    int name(int fd, off64_t length) { \
        REAL(int, #name, int, off64_t); \
        if (is_ours(fd) && fails()) return errno = EIO, -1; \
        pthread_mutex_lock(&lock); \
        if (is_ours(fd)) about_to_change(); \
        int done = real(fd, length); \
        if (done == 0 && is_ours(fd)) note('T', inode_of(fd), length, "", 0, "", 0); \
        pthread_mutex_unlock(&lock); \
        return done; \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNC(name) \
    int name(int fd) { \
        REAL(int, #name, int); \
        if (is_ours(fd) && fails()) return errno = EIO, -1; \
        if (is_ours(fd) && lied[fd]) return 0; \
        pthread_mutex_lock(&lock); \
        if (is_ours(fd)) about_to_change(); \
        int done = real(fd); \
        if (done == 0 && is_ours(fd)) note('S', inode_of(fd), 0, "", 0, "", 0); \
        pthread_mutex_unlock(&lock); \
        return done; \
    }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    if (is_inside(to) && fails()) return errno = EIO, -1;
    pthread_mutex_lock(&lock);
    if (is_inside(to)) about_to_change();
    int done = real(from, to);
    if (done == 0 && is_inside(to)) note('R', 0, 0, from, strlen(from), to, strlen(to));
    pthread_mutex_unlock(&lock);
    return done;
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    pthread_mutex_lock(&lock);
    if (is_inside(path)) about_to_change();
    int done = real(path);
    if (done == 0 && is_inside(path)) note('U', 0, 0, path, strlen(path), "", 0);
    pthread_mutex_unlock(&lock);
    return done;
}
