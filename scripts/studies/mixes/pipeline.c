/* pipeline: a pipeline-parallel benchmark that plays Ferret's part: similarity search for generated images.
 *
 * As in Ferret, images pass through stages with bounded queues between them: load (one thread), segment, extract, index
 * and rank (each T threads), collect (one thread). In the working mode T threads of each middle stage work and the
 * others sleep; it may change between two images. What comes out for an image depends on it alone, and the digest is a
 * sum over images, so it is the same for every number of threads. The database that all rank against has 3 MiB.
 */
#include "tunable.h"

#include <math.h>

#define SIDE 256
#define SEGMENTS 6
#define FEATURES 12
#define ENTRIES 65536
#define BUCKETS 256
#define TOP 8
#define QUEUE 8 /* images between two stages */
#define MIDDLE 4

typedef struct {
    int id;
    float pixels[SIDE * SIDE];
    unsigned char segment[SIDE * SIDE];
    float features[SEGMENTS][FEATURES];
    int bucket[SEGMENTS];
    int best[SEGMENTS][TOP];
} image;

static float (*database)[FEATURES];
static int *order, first_of[BUCKETS + 1]; /* entries by bucket */
static float planes[8][FEATURES];

/* ---- queues ----------------------------------------------------------------------------------------------------- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    image *ring[QUEUE];
    int head, count;
    int writers; /* of the stage before it that still work; nobody is left when it is 0 */
} queue;

static queue queues[MIDDLE + 1];

static void put(queue *q, image *one) {
    pthread_mutex_lock(&q->lock);
    while (q->count == QUEUE)
        pthread_cond_wait(&q->less, &q->lock);
    q->ring[(q->head + q->count++) % QUEUE] = one;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
}

/* The next one, or NULL at the end. */
static image *take(queue *q) {
    pthread_mutex_lock(&q->lock);
    while (q->count == 0 && q->writers > 0)
        pthread_cond_wait(&q->more, &q->lock);
    image *one = NULL;
    if (q->count > 0) {
        one = q->ring[q->head];
        q->head = (q->head + 1) % QUEUE;
        q->count--;
        pthread_cond_signal(&q->less);
    }
    pthread_mutex_unlock(&q->lock);
    return one;
}

static void leave(queue *q) {
    pthread_mutex_lock(&q->lock);
    if (--q->writers == 0)
        pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

/* ---- who works -------------------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int threads;
    bool over; /* nothing more is loaded: whoever sleeps may leave */
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static atomic_int threads_wanted; /* crew.threads, for a look without the lock */

static void set_crew(int threads, bool over) {
    if (threads == atomic_load(&threads_wanted) && !over)
        return;
    pthread_mutex_lock(&crew.lock);
    crew.threads = threads, crew.over = over;
    atomic_store(&threads_wanted, threads);
    pthread_cond_broadcast(&crew.changed);
    pthread_mutex_unlock(&crew.lock);
}

/* False when a worker that is not needed now will not be needed any more. */
static bool needed(int worker) {
    if (worker < atomic_load(&threads_wanted))
        return true;
    pthread_mutex_lock(&crew.lock);
    while (worker >= crew.threads && !crew.over)
        pthread_cond_wait(&crew.changed, &crew.lock);
    bool still = worker < crew.threads;
    pthread_mutex_unlock(&crew.lock);
    return still;
}

/* ---- stages ----------------------------------------------------------------------------------------------------- */

static void load(image *one) {
    uint64_t seed = opt.seed << 32 ^ (uint64_t)one->id;
    float fx = 0.05f + 0.2f * unit(seed), fy = 0.05f + 0.2f * unit(~seed), phase = 6.28f * unit(seed + 77);
    float wave[SIDE];
    for (int x = 0; x < SIDE; x++)
        wave[x] = sinf(fx * (float)x + phase);
    for (int y = 0; y < SIDE; y++) {
        float row = cosf(fy * (float)y);
        for (int x = 0; x < SIDE; x++)
            one->pixels[y * SIDE + x] = 0.5f + 0.4f * wave[x] * row + 0.1f * unit(seed + (uint64_t)(y * SIDE + x));
    }
}

/* k-means over brightness, six rounds. */
static void segment(image *one) {
    float centre[SEGMENTS], sum[SEGMENTS];
    int count[SEGMENTS];
    for (int s = 0; s < SEGMENTS; s++)
        centre[s] = ((float)s + 0.5f) / SEGMENTS;
    for (int round = 0; round < 6; round++) {
        memset(sum, 0, sizeof sum), memset(count, 0, sizeof count);
        for (int i = 0; i < SIDE * SIDE; i++) {
            int nearest = 0;
            for (int s = 1; s < SEGMENTS; s++)
                if (fabsf(one->pixels[i] - centre[s]) < fabsf(one->pixels[i] - centre[nearest]))
                    nearest = s;
            one->segment[i] = (unsigned char)nearest;
            sum[nearest] += one->pixels[i], count[nearest]++;
        }
        for (int s = 0; s < SEGMENTS; s++)
            if (count[s] > 0)
                centre[s] = sum[s] / (float)count[s];
    }
}

/* Moments of place and brightness, and a histogram of slopes, for each segment. */
static void extract(image *one) {
    memset(one->features, 0, sizeof one->features);
    for (int y = 1; y < SIDE - 1; y++)
        for (int x = 1; x < SIDE - 1; x++) {
            const float *at = one->pixels + y * SIDE + x;
            float *f = one->features[one->segment[y * SIDE + x]], dx = at[1] - at[-1], dy = at[SIDE] - at[-SIDE];
            float px = (float)x / SIDE, py = (float)y / SIDE, slope = sqrtf(dx * dx + dy * dy);
            f[0] += 1.0f, f[1] += px, f[2] += py, f[3] += px * px, f[4] += py * py, f[5] += px * py;
            f[6] += *at, f[7] += *at * *at;
            f[8 + (dx > 0) + 2 * (dy > 0)] += slope;
        }
    for (int s = 0; s < SEGMENTS; s++)
        for (int i = FEATURES - 1; i >= 0; i--)
            one->features[s][i] /= i ? one->features[s][0] + 1.0f : SIDE * SIDE;
}

static int bucket_of(const float *features) {
    int bucket = 0;
    for (int p = 0; p < 8; p++) {
        float side = 0;
        for (int i = 0; i < FEATURES; i++)
            side += planes[p][i] * (features[i] - 0.25f);
        bucket |= (side > 0) << p;
    }
    return bucket;
}

static void find_bucket(image *one) {
    for (int s = 0; s < SEGMENTS; s++)
        one->bucket[s] = bucket_of(one->features[s]);
}

static void rank_bucket(int bucket, const float *wanted, float *distance, int *best) {
    for (int k = first_of[bucket]; k < first_of[bucket + 1]; k++) {
        const float *entry = database[order[k]];
        float sum = 0;
        for (int i = 0; i < FEATURES; i++)
            sum += (entry[i] - wanted[i]) * (entry[i] - wanted[i]);
        int place = TOP;
        while (place > 0 && sum < distance[place - 1])
            place--;
        if (place == TOP)
            continue;
        memmove(distance + place + 1, distance + place, sizeof *distance * (size_t)(TOP - 1 - place));
        memmove(best + place + 1, best + place, sizeof *best * (size_t)(TOP - 1 - place));
        distance[place] = sum, best[place] = order[k];
    }
}

/* The nearest of the segment's bucket and of its neighbours. */
static void rank(image *one) {
    for (int s = 0; s < SEGMENTS; s++) {
        float distance[TOP];
        for (int i = 0; i < TOP; i++)
            distance[i] = INFINITY, one->best[s][i] = -1;
        rank_bucket(one->bucket[s], one->features[s], distance, one->best[s]);
        for (int p = 0; p < 8; p++)
            rank_bucket(one->bucket[s] ^ 1 << p, one->features[s], distance, one->best[s]);
    }
}

static void (*const stages[MIDDLE])(image *) = {segment, extract, find_bucket, rank};

static void *work(void *argument) {
    int stage = (int)(intptr_t)argument / MOST_THREADS, worker = (int)(intptr_t)argument % MOST_THREADS;
    image *one;
    while (needed(worker) && (one = take(&queues[stage])) != NULL) {
        stages[stage](one);
        put(&queues[stage + 1], one);
    }
    leave(&queues[stage + 1]);
    return NULL;
}

static void *collect(void *argument) {
    uint64_t digest = 0;
    for (image *one; (one = take(&queues[MIDDLE])) != NULL; free(one)) {
        uint64_t own = (uint64_t)one->id;
        for (int s = 0; s < SEGMENTS; s++)
            for (int i = 0; i < TOP; i++)
                own = mixed(own ^ (uint64_t)(unsigned)one->best[s][i]);
        digest += own; /* they come in any order */
    }
    *(uint64_t *)argument = digest;
    return NULL;
}

/* ---- main ------------------------------------------------------------------------------------------------------- */

static void make_database(void) {
    database = allocated(sizeof *database * ENTRIES);
    order = allocated(sizeof *order * ENTRIES);
    unsigned char *bucket = allocated(ENTRIES);
    for (int p = 0; p < 8; p++)
        for (int i = 0; i < FEATURES; i++)
            planes[p][i] = unit((uint64_t)(p * FEATURES + i)) - 0.5f;
    for (int e = 0; e < ENTRIES; e++) {
        for (int i = 0; i < FEATURES; i++)
            database[e][i] = 0.5f * unit((uint64_t)e * FEATURES + (uint64_t)i + 1000);
        bucket[e] = (unsigned char)bucket_of(database[e]);
        first_of[bucket[e] + 1]++;
    }
    int filled[BUCKETS] = {0};
    for (int b = 0; b < BUCKETS; b++)
        first_of[b + 1] += first_of[b];
    for (int e = 0; e < ENTRIES; e++)
        order[first_of[bucket[e]] + filled[bucket[e]]++] = e;
    free(bucket);
}

static pthread_t started(void *(*body)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument) != 0)
        die("cannot start a thread");
    return thread;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    make_database();
    for (int q = 0; q <= MIDDLE; q++) {
        pthread_mutex_init(&queues[q].lock, NULL);
        pthread_cond_init(&queues[q].more, NULL), pthread_cond_init(&queues[q].less, NULL);
        queues[q].writers = q ? opt.most_threads : 1;
    }
    set_crew(threads_now(), false);
    pthread_t workers[MIDDLE][MOST_THREADS];
    for (int s = 0; s < MIDDLE; s++)
        for (int i = 0; i < opt.most_threads; i++)
            workers[s][i] = started(work, (void *)(intptr_t)(s * MOST_THREADS + i));
    uint64_t digest;
    pthread_t collector = started(collect, &digest);
    for (int id = 0; id < opt.work; id++) {
        set_crew(threads_now(), false);
        image *one = allocated(sizeof *one);
        one->id = id;
        load(one);
        put(&queues[0], one);
    }
    leave(&queues[0]);
    set_crew(crew.threads, true);
    for (int s = 0; s < MIDDLE; s++)
        for (int i = 0; i < opt.most_threads; i++)
            pthread_join(workers[s][i], NULL);
    pthread_join(collector, NULL);
    return finish("pipeline", digest);
}
