/* Learn from rlctl which working mode this application is in: one header, to be copied. C99 and POSIX
 * (with -std=c99 define _POSIX_C_SOURCE as 200809L).
 *
 *     #include "rlctl_mode.h"
 *
 *     rlctl_mode mode;
 *     rlctl_mode_open(&mode);                 // from the environment; outside rlctl it does no harm
 *     int threads = rlctl_mode_threads(4);    // to begin with: RLCTL_THREADS, or 4 outside rlctl
 *     while (working) {
 *         if (rlctl_mode_poll(&mode))         // never waits; 1 when the mode is another one than at the last call
 *             resize_pool(mode.threads);
 *         work();
 *         rlctl_mode_gap(&mode, 20.0);        // if it has a goal: 20 % short of it
 *     }
 *     rlctl_mode_close(&mode);
 *
 * Where there is no service (yet), the file of RLCTL_MODE_FILE answers, and a service that comes later is found by the
 * next rlctl_mode_poll. One thread at a time may use an rlctl_mode.
 */
#ifndef RLCTL_MODE_H
#define RLCTL_MODE_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RLCTL_MODE_LINE 512

typedef struct {
    int index;              /* which of the modes in the description, from 0; -1 until told */
    int threads;            /* how many threads the application should run; 0 until told */
    double cpus;            /* CPU time per second of wall clock that it gets */
    long long memory_bytes; /* memory that it may use; 0 says nothing about it */
    int fd;                 /* the connection, for poll() and epoll; -1 while there is none */
    time_t retry_at;
    size_t used;
    char line[RLCTL_MODE_LINE];
} rlctl_mode;

static inline time_t rlctl_mode_now(void) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* End the connection; the next rlctl_mode_poll makes another one. */
static inline void rlctl_mode_close(rlctl_mode *mode) {
    if (mode->fd >= 0)
        close(mode->fd);
    mode->fd = -1;
    mode->used = 0;
}

static inline void rlctl_mode_connect(rlctl_mode *mode) {
    const char *path = getenv("RLCTL_MODE_SOCKET");
    struct sockaddr_un address;
    time_t now = rlctl_mode_now();
    if (path == NULL || now < mode->retry_at || strlen(path) >= sizeof address.sun_path)
        return;
    mode->retry_at = now + 1;
    mode->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (mode->fd < 0)
        return;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (fcntl(mode->fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(mode->fd, F_SETFL, O_NONBLOCK) < 0 ||
        connect(mode->fd, (struct sockaddr *)&address, sizeof address) < 0)
        rlctl_mode_close(mode);
}

/* RLCTL_THREADS, the number of threads to begin with; `otherwise` outside rlctl. */
static inline int rlctl_mode_threads(int otherwise) {
    const char *text = getenv("RLCTL_THREADS");
    long threads = text != NULL ? strtol(text, NULL, 10) : 0;
    return threads > 0 && threads < 1 << 20 ? (int)threads : otherwise;
}

/* `mode 2 threads 4 millicpus 1500 memory 0`, and words that a later version adds. 1 if it was one and differs. */
static inline int rlctl_mode_take(rlctl_mode *mode, const char *line) {
    int index, threads, changed;
    long long millicpus, memory;
    if (sscanf(line, "mode %d threads %d millicpus %lld memory %lld", &index, &threads, &millicpus, &memory) != 4)
        return 0;
    changed = index != mode->index || threads != mode->threads || memory != mode->memory_bytes ||
              (double)millicpus / 1000.0 != mode->cpus;
    mode->index = index;
    mode->threads = threads;
    mode->cpus = (double)millicpus / 1000.0;
    mode->memory_bytes = memory;
    return changed;
}

static inline int rlctl_mode_from_file(rlctl_mode *mode) {
    const char *path = getenv("RLCTL_MODE_FILE");
    char line[RLCTL_MODE_LINE];
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    int changed = 0;
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof line, file) != NULL)
        changed = rlctl_mode_take(mode, line);
    fclose(file);
    return changed;
}

static inline int rlctl_mode_from_socket(rlctl_mode *mode) {
    int changed = 0;
    for (;;) {
        ssize_t got = recv(mode->fd, mode->line + mode->used, sizeof mode->line - 1 - mode->used, MSG_DONTWAIT);
        char *end;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return changed;
        if (got <= 0) {
            rlctl_mode_close(mode);
            return changed;
        }
        mode->used += (size_t)got;
        mode->line[mode->used] = '\0';
        while ((end = strchr(mode->line, '\n')) != NULL) {
            *end = '\0';
            changed |= rlctl_mode_take(mode, mode->line);
            mode->used -= (size_t)(end + 1 - mode->line);
            memmove(mode->line, end + 1, mode->used + 1);
        }
        if (mode->used == sizeof mode->line - 1) /* no line of ours is so long */
            mode->used = 0;
    }
}

/* 1 when the mode is another one than at the last call, else 0. Never waits. */
static inline int rlctl_mode_poll(rlctl_mode *mode) {
    if (mode->fd < 0)
        rlctl_mode_connect(mode);
    return mode->fd >= 0 ? rlctl_mode_from_socket(mode) : rlctl_mode_from_file(mode);
}

/* As rlctl_mode_poll, but waits up to so many milliseconds for a change. */
static inline int rlctl_mode_wait(rlctl_mode *mode, int milliseconds) {
    int changed = rlctl_mode_poll(mode);
    if (!changed) {
        struct pollfd waited = {mode->fd, POLLIN, 0}; /* poll() ignores a negative fd and just waits */
        poll(&waited, 1, milliseconds);
        changed = rlctl_mode_poll(mode);
    }
    return changed;
}

/* Say how far the application is from its goal, -100 to 100 percent of it. 0, or -1 if nobody listens. */
static inline int rlctl_mode_gap(rlctl_mode *mode, double percent) {
    char line[32];
    int hundredths, length;
    if (mode->fd < 0 || !(percent >= -100.0 && percent <= 100.0))
        return -1;
    hundredths = (int)(percent * 100.0); /* by hand: printf would write a comma in some locales */
    length = snprintf(line, sizeof line, "gap %s%d.%02d\n", hundredths < 0 ? "-" : "", abs(hundredths) / 100,
                      abs(hundredths) % 100);
    return send(mode->fd, line, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) == length ? 0 : -1;
}

/* Begin, from the environment. */
static inline void rlctl_mode_open(rlctl_mode *mode) {
    memset(mode, 0, sizeof *mode);
    mode->index = mode->fd = -1;
    mode->threads = 0;
    rlctl_mode_connect(mode);
}

#endif
