/* Stands between the agent and libc and lets the machine misbehave on request (LD_PRELOAD).
 *
 * What it does is read from a mapped file ($TORTURE_SHIM) that the test writes while the agent runs. Files below
 * $TORTURE_DISK are the "disk". Only what a test needs is taken over; everything else is libc's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {                     /* shim.py has the same order */
    volatile int64_t wall_offset_s;  /* added to CLOCK_REALTIME */
    volatile int64_t boot_offset_s;  /* added to CLOCK_BOOTTIME */
    volatile int64_t fsync_ms;       /* every fsync on the disk takes so long */
    volatile int64_t write_errno;    /* every write to the disk fails with this */
    volatile int64_t open_errno;     /* every opening for writing on the disk fails with this */
    volatile int64_t proc_errno;     /* every second opening below /proc/PID fails with this */
    volatile int64_t dns_ms;         /* every look-up of a name takes so long */
};

static struct control none;
static struct control *control = &none;
static const char *disk = "\1";
static volatile unsigned proc_opens;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TORTURE_SHIM"), *folder = getenv("TORTURE_DISK");
    if (!path || !folder) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return;
    disk = strdup(folder);
    control = mapped;
}

static void dawdle(int64_t milliseconds) {
    struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    if (milliseconds > 0) nanosleep(&span, NULL);
}

static int on_disk_path(const char *path) { return path && strncmp(path, disk, strlen(disk)) == 0; }

static int on_disk(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return on_disk_path(path);
}

static int refused_open(const char *path, int flags) {
    int writing = (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT;
    if (control->open_errno && writing && on_disk_path(path)) return (int)control->open_errno;
    if (control->proc_errno && path && strncmp(path, "/proc/", 6) == 0 && path[6] >= '0' && path[6] <= '9' &&
        __atomic_fetch_add(&proc_opens, 1, __ATOMIC_RELAXED) % 2)
        return (int)control->proc_errno;
    return 0;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        int refused = refused_open(path, flags); \
        if (refused) { errno = refused; return -1; } \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        int refused = refused_open(path, flags); \
        if (refused) { errno = refused; return -1; } \
        return real(at, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define REFUSE_WRITE(fd) \
    if (control->write_errno && on_disk(fd)) { errno = (int)control->write_errno; return -1; }

ssize_t write(int fd, const void *data, size_t size) { REAL(write); REFUSE_WRITE(fd); return real(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite); REFUSE_WRITE(fd); return real(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64); REFUSE_WRITE(fd); return real(fd, data, size, at);
}
int ftruncate(int fd, off_t size) { REAL(ftruncate); REFUSE_WRITE(fd); return real(fd, size); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); REFUSE_WRITE(fd); return real(fd, size); }

int fsync(int fd) {
    REAL(fsync);
    if (control->fsync_ms && on_disk(fd)) dawdle(control->fsync_ms);
    return real(fd);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    if (control->fsync_ms && on_disk(fd)) dawdle(control->fsync_ms);
    return real(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += control->wall_offset_s;
    if (result == 0 && clock == CLOCK_BOOTTIME) now->tv_sec += control->boot_offset_s;
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    REAL(gettimeofday);
    int result = real(now, zone);
    if (result == 0) now->tv_sec += control->wall_offset_s;
    return result;
}
time_t time(time_t *where) {
    REAL(time);
    time_t now = real(NULL) + control->wall_offset_s;
    if (where) *where = now;
    return now;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    REAL(getaddrinfo);
    dawdle(control->dns_ms);
    return real(node, service, hints, found);
}
