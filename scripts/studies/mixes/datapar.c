/* datapar: a data-parallel benchmark that plays Bodytrack's part: a figure is followed through generated frames.
 *
 * As in Bodytrack, each frame passes through steps that all threads share, with a barrier behind each: edges, two
 * blurs, then layers of an annealed particle filter, between which one thread draws the particles anew. The number of
 * threads may change between two frames. What a thread computes depends on its items alone, so the digest is the same
 * for every number of threads. Two images of 4 MiB and the particles: more than most L2 caches hold.
 */
#include "tunable.h"

#include <math.h>

#define SIDE 1024 /* 4 MiB of floats */
#define PARTICLES 512
#define POINTS 24 /* of the figure's outline, at which a particle is compared with the image */
#define LAYERS 3
#define BLUR 2

typedef struct {
    float x, y, size, turn;
} pose;

static float *image, *scratch;
static pose particles[PARTICLES], drawn[PARTICLES];
static double weights[PARTICLES];
static int frame, layer;

/* ---- a step that all threads share ------------------------------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    void (*step)(int from, int to);
    int items, threads, running;
    uint64_t number;
    bool over;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .begin = PTHREAD_COND_INITIALIZER, .end = PTHREAD_COND_INITIALIZER};

static void share_of(int worker, int items, int threads, void (*step)(int, int)) {
    step((int)((long)items * worker / threads), (int)((long)items * (worker + 1) / threads));
}

static void *work(void *argument) {
    int worker = (int)(intptr_t)argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.over && (pool.number == seen || worker >= pool.threads))
            pthread_cond_wait(&pool.begin, &pool.lock);
        if (pool.over)
            break;
        seen = pool.number;
        void (*step)(int, int) = pool.step;
        int items = pool.items, threads = pool.threads;
        pthread_mutex_unlock(&pool.lock);
        share_of(worker, items, threads, step);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0)
            pthread_cond_signal(&pool.end);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* The calling thread takes the first share, and waits for the others. */
static void shared(void (*step)(int, int), int items) {
    pthread_mutex_lock(&pool.lock);
    pool.step = step, pool.items = items, pool.running = pool.threads - 1, pool.number++;
    if (pool.running > 0)
        pthread_cond_broadcast(&pool.begin);
    pthread_mutex_unlock(&pool.lock);
    share_of(0, items, pool.threads, step);
    pthread_mutex_lock(&pool.lock);
    while (pool.running > 0)
        pthread_cond_wait(&pool.end, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* ---- the steps -------------------------------------------------------------------------------------------------- */

/* Where the figure is in a frame; what the filter has to find. */
static pose truth(int at) {
    float t = 0.05f * (float)at;
    return (pose){SIDE * (0.5f + 0.2f * sinf(t)), SIDE * (0.5f + 0.2f * cosf(1.3f * t)), SIDE * 0.12f, 0.3f * t};
}

/* Radius of the outline of a figure in a direction: a body with limbs. */
static inline float outline(float size, float angle) { return size * (1.0f + 0.35f * cosf(3.0f * angle)); }

/* What the camera sees: a bright disc at the figure's place, and noise. */
static void see(int from, int to) {
    pose body = truth(frame);
    float reach = 1.0f / (body.size * body.size);
    for (int y = from; y < to; y++)
        for (int x = 0; x < SIDE; x++) {
            float dx = (float)x - body.x, dy = (float)y - body.y;
            uint32_t noise = (uint32_t)x * 73856093u ^ (uint32_t)y * 19349663u ^ (uint32_t)frame * 83492791u;
            noise = (noise ^ noise >> 13) * 0x5bd1e995u;
            image[y * SIDE + x] = 1.0f / (1.0f + (dx * dx + dy * dy) * reach) + 0.1f * (float)(noise >> 24) / 255.0f;
        }
}

static inline int within(int at) { return at < 0 ? 0 : at >= SIDE ? SIDE - 1 : at; }

static void edges(int from, int to) {
    for (int y = from; y < to; y++) {
        const float *up = image + within(y - 1) * SIDE, *here = image + y * SIDE, *down = image + within(y + 1) * SIDE;
        for (int x = 0; x < SIDE; x++) {
            int l = within(x - 1), r = within(x + 1);
            float gx = up[r] + 2 * here[r] + down[r] - up[l] - 2 * here[l] - down[l];
            float gy = down[l] + 2 * down[x] + down[r] - up[l] - 2 * up[x] - up[r];
            scratch[y * SIDE + x] = sqrtf(gx * gx + gy * gy);
        }
    }
}

static void blur_rows(int from, int to) {
    for (int y = from; y < to; y++)
        for (int x = 0; x < SIDE; x++) {
            float sum = 0;
            for (int d = -BLUR; d <= BLUR; d++)
                sum += scratch[y * SIDE + within(x + d)];
            image[y * SIDE + x] = sum / (2 * BLUR + 1);
        }
}

static void blur_columns(int from, int to) {
    for (int y = from; y < to; y++)
        for (int x = 0; x < SIDE; x++) {
            float sum = 0;
            for (int d = -BLUR; d <= BLUR; d++)
                sum += image[within(y + d) * SIDE + x];
            scratch[y * SIDE + x] = sum / (2 * BLUR + 1);
        }
}

/* How well particles explain the edges, sharper with every layer. */
static void weigh(int from, int to) {
    for (int p = from; p < to; p++) {
        pose at = particles[p];
        double sum = 0;
        for (int i = 0; i < POINTS; i++) {
            float angle = 6.2831853f * (float)i / POINTS, radius = outline(at.size, angle);
            int x = within((int)(at.x + radius * cosf(angle + at.turn)));
            int y = within((int)(at.y + radius * sinf(angle + at.turn)));
            sum += scratch[y * SIDE + x];
        }
        weights[p] = exp((layer + 1) * 20.0 * sum / POINTS);
    }
}

/* ---- what one thread does --------------------------------------------------------------------------------------- */

/* Draw particles by their weights, and move them a little: less with every layer. */
static void draw_anew(void) {
    double total = 0, passed = 0;
    for (int p = 0; p < PARTICLES; p++)
        total += weights[p];
    float spread = 0.03f * SIDE / (float)(layer + 1);
    for (int p = 0, from = 0; p < PARTICLES; p++) {
        double target = total * (p + 0.5) / PARTICLES;
        while (from < PARTICLES - 1 && passed + weights[from] < target)
            passed += weights[from++];
        uint64_t seed = opt.seed ^ ((uint64_t)frame << 40 | (uint64_t)layer << 32 | (uint64_t)p << 2);
        drawn[p] = particles[from];
        drawn[p].x += spread * (unit(seed) - 0.5f);
        drawn[p].y += spread * (unit(seed + 1) - 0.5f);
        drawn[p].size *= 1.0f + 0.1f * (unit(seed + 2) - 0.5f);
        drawn[p].turn += 0.2f * (unit(seed + 3) - 0.5f);
    }
    memcpy(particles, drawn, sizeof particles);
}

static uint64_t track(void) {
    shared(see, SIDE);
    shared(edges, SIDE);
    shared(blur_rows, SIDE);
    shared(blur_columns, SIDE);
    uint64_t digest = 0;
    for (layer = 0; layer < LAYERS; layer++) {
        shared(weigh, PARTICLES);
        for (int p = 0; p < PARTICLES; p++)
            digest = mixed(digest ^ bits(weights[p]));
        draw_anew();
    }
    return digest;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    image = allocated(sizeof *image * SIDE * SIDE);
    scratch = allocated(sizeof *scratch * SIDE * SIDE);
    for (int p = 0; p < PARTICLES; p++)
        particles[p] = truth(0);
    pthread_t workers[MOST_THREADS];
    for (int i = 1; i < opt.most_threads; i++)
        if (pthread_create(&workers[i], NULL, work, (void *)(intptr_t)i) != 0)
            die("cannot start a thread");
    uint64_t digest = 0;
    for (frame = 0; frame < opt.work; frame++) {
        int threads = threads_now();
        pthread_mutex_lock(&pool.lock); /* workers look at it when they wake up by mistake */
        pool.threads = threads;
        pthread_mutex_unlock(&pool.lock);
        digest = mixed(digest ^ track());
    }
    pthread_mutex_lock(&pool.lock);
    pool.over = true;
    pthread_cond_broadcast(&pool.begin);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 1; i < opt.most_threads; i++)
        pthread_join(workers[i], NULL);
    return finish("datapar", digest);
}
