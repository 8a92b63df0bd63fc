/* Learn from rlctl which working mode this application is in: one header, to be copied. C99 and POSIX.
 *
 *     #include "rlctl_mode.h"
 *
 *     rlctl_mode mode;
 *     rlctl_mode_open(&mode);                 // from the environment; outside rlctl it does no harm
 *     int threads = rlctl_mode_threads(4);    // to begin with: RLCTL_THREADS, or 4 outside rlctl
 *     while (working) {
 *         if (rlctl_mode_poll(&mode))         // 1 when the mode is another one than at the last call
 *             resize_pool(mode.threads);
 *         work();
 *     }
 *
 * The mode is a line of the file RLCTL_MODE_FILE, which the service replaces as a whole.
 */
#ifndef RLCTL_MODE_H
#define RLCTL_MODE_H

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int index;              /* which of the modes in the description, from 0; -1 until it is known */
    int threads;            /* how many threads the application should run; 0 until it is known */
    double cpus;            /* CPU time per second of wall clock that it gets */
    long long memory_bytes; /* memory that it may use; 0 says nothing about it */
} rlctl_mode;

/* Begin: nothing is known yet. */
static inline void rlctl_mode_open(rlctl_mode *mode) {
    mode->index = -1;
    mode->threads = 0;
    mode->cpus = 0.0;
    mode->memory_bytes = 0;
}

/* RLCTL_THREADS, the number of threads to begin with; `otherwise` outside rlctl. */
static inline int rlctl_mode_threads(int otherwise) {
    const char *text = getenv("RLCTL_THREADS");
    long threads = text != NULL ? strtol(text, NULL, 10) : 0;
    return threads > 0 && threads < 1 << 20 ? (int)threads : otherwise;
}

/* `mode 2 threads 4 millicpus 1500 memory 0`, and words that a later version adds. 1 if it was one and differs. */
static inline int rlctl_mode_take(rlctl_mode *mode, const char *line) {
    rlctl_mode fresh;
    long long millicpus;
    int changed;
    if (sscanf(line, "mode %d threads %d millicpus %lld memory %lld", &fresh.index, &fresh.threads, &millicpus,
               &fresh.memory_bytes) != 4)
        return 0;
    fresh.cpus = (double)millicpus / 1000.0;
    changed = fresh.index != mode->index || fresh.threads != mode->threads || fresh.cpus != mode->cpus ||
              fresh.memory_bytes != mode->memory_bytes;
    *mode = fresh;
    return changed;
}

/* 1 when the mode is another one than at the last call, else 0. */
static inline int rlctl_mode_poll(rlctl_mode *mode) {
    const char *path = getenv("RLCTL_MODE_FILE");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    char line[512];
    int changed = 0;
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof line, file) != NULL)
        changed = rlctl_mode_take(mode, line);
    fclose(file);
    return changed;
}

#endif
