/* Loads of a real-time test: threads that compute, that sleep 1 us at a time, or that write 4 KB and sync.

   rtload cpu|sched|io THREADS COUNTER [DIRECTORY]

   It runs until it is killed. COUNTER is a file for whoever watches, of 64-byte lines: the first begins with the number
   of threads that run, each further one with the rounds that one thread has done (64-bit, native). It is memory that
   is shared: to read it costs the load nothing, and it can be read while the load is frozen. A round is COMPUTATIONS
   steps of a random generator, one sleep, or one file that was opened, written and synced.

   Each thread of io has a file of its own in DIRECTORY, so that they meet at the disk and not at one inode. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 4096
#define COMPUTATIONS 10000
#define BLOCK_BYTES 4096
#define STACK_BYTES (64 * 1024)

struct line {
    _Atomic uint64_t count;
    volatile uint64_t state; /* where computing ends up, or a compiler could leave it out */
    char rest[48];           /* a cache line for each thread: they must not disturb each other */
};

static enum { CPU, SCHED, IO } kind;
static struct line *lines;
static const char *directory;
static char block[BLOCK_BYTES];

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void doze(void) {
    const struct timespec one_microsecond = {0, 1000};
    nanosleep(&one_microsecond, NULL);
}

static void compute(struct line *own) {
    uint64_t x = own->state;
    for (int i = 0; i < COMPUTATIONS; i++) { /* xorshift: no two steps can be done at once */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    own->state = x;
}

static void write_and_sync(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        fail(path);
    ssize_t written = write(file, block, sizeof block);
    if (written >= 0 && written < (ssize_t)sizeof block)
        errno = ENOSPC;
    if (written < (ssize_t)sizeof block || fsync(file) < 0 || close(file) < 0)
        fail(path);
}

static void *run(void *argument) {
    struct line *own = argument;
    char path[4096];
    if (kind == IO)
        snprintf(path, sizeof path, "%s/rtload-%d", directory, (int)(own - lines));
    own->state = 1 + (uint64_t)(own - lines); /* a generator stays at 0 for ever */
    atomic_fetch_add(&lines[0].count, 1);
    for (;;) {
        if (kind == CPU)
            compute(own);
        if (kind == IO)
            write_and_sync(path);
        if (kind != CPU)
            doze();
        atomic_store_explicit(&own->count, atomic_load_explicit(&own->count, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *named = argc > 3 ? argv[1] : "";
    long threads = argc > 3 ? strtol(argv[2], NULL, 10) : 0;
    kind = !strcmp(named, "io") ? IO : !strcmp(named, "sched") ? SCHED : CPU;
    if ((kind == CPU && strcmp(named, "cpu")) || argc != 4 + (kind == IO) || threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "usage: rtload cpu|sched THREADS COUNTER, or rtload io THREADS COUNTER DIRECTORY\n");
        return 2;
    }
    int file = open(argv[3], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t bytes = (1 + threads) * sizeof(struct line);
    if (file < 0 || ftruncate(file, bytes) < 0)
        fail(argv[3]);
    lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (lines == MAP_FAILED)
        fail(argv[3]);
    directory = argv[4];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    for (long i = 1; i <= threads; i++) {
        pthread_t thread;
        errno = pthread_create(&thread, &small, run, &lines[i]);
        if (errno)
            fail("cannot start a thread");
    }
    for (;;)
        pause();
}
