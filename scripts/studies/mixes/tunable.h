/* What the tunable benchmarks have in common: options, threads per working mode, digests, and one JSON line at the end.
 *
 * Threads: --threads is the most, and what runs unmanaged, as the originals of PARSEC do. Under rlctl the working mode
 * says how many run, from the start (RLCTL_THREADS) and whenever it changes (rlctl_mode.h).
 * Exit: 0 done, 1 the digest is not the one of --expect, 2 usage.
 */
#ifndef TUNABLE_H
#define TUNABLE_H

#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "rlctl_mode.h"

#define MOST_THREADS 64
#define MOST_CHANGES 256

static struct {
    int work, most_threads;
    uint64_t seed, expected;
    bool verify;
} opt = {.work = 100, .most_threads = 4, .seed = 1};

static rlctl_mode mode;
static double begun;
static int changes, change_threads[MOST_CHANGES]; /* threads over time; changes beyond the limit are not noted */
static double change_at[MOST_CHANGES];

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(2);
}

static void *allocated(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (memory == NULL)
        die("out of memory");
    return memory;
}

/* splitmix64: a good mix of one number, and with a counter a good generator. */
static inline uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline float unit(uint64_t x) { /* 0 to 1 */
    return (float)(mixed(x) >> 40) * 0x1p-24f;
}

static inline uint64_t bits(double x) {
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static uint64_t number(const char *text, uint64_t least, uint64_t most, int base) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, base);
    if (errno || *text == '-' || end == text || *end != '\0' || value < least || value > most) {
        fprintf(stderr, "%s is no number from %" PRIu64 " to %" PRIu64 "\n", text, least, most);
        exit(2);
    }
    return value;
}

static void begin(int argc, char **argv) {
    static const struct option known[] = {{"work", 1, 0, 'w'}, {"threads", 1, 0, 't'}, {"seed", 1, 0, 's'},
                                          {"expect", 1, 0, 'e'}, {0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;)
        switch (c) {
        case 'w': opt.work = (int)number(optarg, 1, 1000000, 10); break;
        case 't': opt.most_threads = (int)number(optarg, 1, MOST_THREADS, 10); break;
        case 's': opt.seed = number(optarg, 0, UINT64_MAX, 10); break;
        case 'e': opt.expected = number(optarg, 0, UINT64_MAX, 16), opt.verify = true; break;
        default: exit(2);
        }
    if (optind < argc)
        die("usage: [--work ITEMS] [--threads MOST] [--seed N] [--expect DIGEST]");
    begun = now_seconds();
    rlctl_mode_open(&mode);
}

/* How many threads are to run now. Call it from one thread, between items. */
static int threads_now(void) {
    rlctl_mode_poll(&mode);
    int wanted = mode.threads > 0 ? mode.threads : rlctl_mode_threads(opt.most_threads);
    wanted = wanted < opt.most_threads ? wanted : opt.most_threads;
    if (changes < MOST_CHANGES && (changes == 0 || change_threads[changes - 1] != wanted)) {
        change_at[changes] = now_seconds() - begun;
        change_threads[changes++] = wanted;
    }
    return wanted;
}

static int finish(const char *workload, uint64_t digest) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    printf("{\"workload\": \"%s\", \"items\": %d, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"digest\": \"%016" PRIx64
           "\", \"voluntary_switches\": %ld, \"involuntary_switches\": %ld, \"page_faults\": %ld, \"threads\": [",
           workload, opt.work, now_seconds() - begun, cpu, digest, used.ru_nvcsw, used.ru_nivcsw,
           used.ru_minflt + used.ru_majflt);
    for (int i = 0; i < changes; i++)
        printf("%s[%.6f, %d]", i ? ", " : "", change_at[i], change_threads[i]);
    printf("]}\n");
    if (!opt.verify || digest == opt.expected)
        return 0;
    fprintf(stderr, "digest %016" PRIx64 " instead of %016" PRIx64 "\n", digest, opt.expected);
    return 1;
}

#endif
