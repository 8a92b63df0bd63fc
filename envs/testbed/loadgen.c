/* loadgen: open-loop Poisson load for one server on this host (HTTP/1.1 GET, memcached multi-get, redis PING or another
 * command, or a statement of PostgreSQL).
 *
 * Latency counts from the moment a request was *meant* to leave, whether or not a connection was free then: a slow
 * server cannot slow the arrivals down and so hide its own delay ("coordinated omission"). A request that fails
 * goes back to the queue under its old time, hence a dead server shows as an ever older request, never as silence.
 *
 * stdin    rate RPS | stats ID | peek ID | forget | quit      one per line; end of file means quit, forget drops what
 *          was not sent yet. The rate is 0 at first.
 * stdout   one JSON object per line after every `stats` and `peek`
 * stderr   notes for people
 * exit     0 asked to leave, 1 the server never became ready, 2 wrong options (`GeneratorConfig` has them)
 *
 * One thread, one epoll set. Order of the file: histogram, arrivals, queue, reply parsers, connections, report,
 * commands, preload, options, main. Build: cc -O2 -o loadgen loadgen.c -lm
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define NEVER INT64_MAX
#define BACKOFF_FIRST (SECOND / 1000)
#define BACKOFF_LAST (SECOND / 10)
#define LINE_BYTES 1024     /* longest line looked at; header lines may be longer, only their start matters */
#define KEY_BYTES 9         /* "k0000042 ": fixed width, so that a request is built by copying */
#define LARGEST_BODY (1ULL << 40)

/* ---- options --------------------------------------------------------------------------------------------------- */

static struct {
    bool memcached, postgres, redis;
    const char *unix_path, *http_path, *query;
    in_addr_t address;         /* network byte order */
    int port, connections, cpu, fifo;
    unsigned keys, gets, preload, value_bytes, queue_limit;
    uint64_t seed;
} opt = {.http_path = "/", .connections = 32, .cpu = -1, .gets = 100, .value_bytes = 100, .queue_limit = 200000,
         .seed = 1};

static void die(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* ---- histogram: 128 steps per power of two, so a quantile is at most 1/256 = .4 % off -------------------------- */

#define STEP_BITS 7
#define STEPS (1 << STEP_BITS)
#define CELLS ((44 - STEP_BITS) * STEPS) /* up to 2^43 ns = 2.4 hours; longer ones land in the last cell */

struct histogram {
    uint64_t count, largest;
    uint32_t cells[CELLS];
};

static unsigned cell_of(uint64_t value)
{
    if (value < STEPS)
        return (unsigned)value;
    int shift = 63 - __builtin_clzll(value) - STEP_BITS;
    uint64_t cell = ((uint64_t)shift << STEP_BITS) + (value >> shift);
    return cell < CELLS ? (unsigned)cell : CELLS - 1;
}

static double middle_of(unsigned cell)
{
    if (cell < STEPS)
        return cell;
    unsigned shift = (cell >> STEP_BITS) - 1;
    return ldexp((cell & (STEPS - 1)) + STEPS + 0.5, (int)shift);
}

static void histogram_add(struct histogram *h, int64_t nanoseconds)
{
    uint64_t value = nanoseconds > 0 ? (uint64_t)nanoseconds : 0;
    h->count++;
    if (value > h->largest)
        h->largest = value;
    h->cells[cell_of(value)]++;
}

static double quantile_seconds(const struct histogram *h, double q)
{
    uint64_t rank = (uint64_t)ceil(q * (double)h->count), seen = 0;
    unsigned cell = 0;
    for (; cell < CELLS - 1 && (seen += h->cells[cell]) < rank; cell++)
        ;
    return fmin(middle_of(cell), (double)h->largest) / SECOND;
}

/* ---- arrivals -------------------------------------------------------------------------------------------------- */

static struct {
    double rate;           /* requests per second */
    double units_left;     /* part of a unit-mean gap still to run, kept while the rate is 0 */
    int64_t next;          /* intended time of the next arrival */
    uint64_t random;
} arrivals = {.next = NEVER};

static uint64_t key_random;

static uint64_t splitmix(uint64_t *state) /* Steele, Lea, Flood 2014 */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

static double unit_gap(void) { return -log((double)((splitmix(&arrivals.random) >> 11) + 1) * 0x1p-53); }

static int64_t gap_ns(double units) { return (int64_t)fmin(units / arrivals.rate * SECOND, 1e17); /* 3 years */ }

/* Stretching the gap under way, rather than drawing a new one, keeps the process Poisson and the same seed gives the
 * same gaps whatever the rates in between. */
static void set_rate(double rate, int64_t now)
{
    if (arrivals.rate > 0)
        arrivals.units_left = (double)(arrivals.next - now) / SECOND * arrivals.rate;
    arrivals.rate = rate;
    arrivals.next = rate > 0 ? now + gap_ns(arrivals.units_left) : NEVER;
}

/* ---- queue of requests that have no connection yet: a ring, oldest first --------------------------------------- */

struct request {
    int64_t intended;
    bool waited;           /* for a connection, or failed once: its send lag says nothing about this program */
};

static struct {
    struct request *ring;
    unsigned head, length, capacity;
} queue;

static struct request *queue_at(unsigned index) { return &queue.ring[(queue.head + index) % queue.capacity]; }

static void queue_push(struct request request) { *queue_at(queue.length++) = request; }

static struct request queue_pop(void)
{
    struct request first = *queue_at(0);
    queue.head = (queue.head + 1) % queue.capacity;
    queue.length--;
    return first;
}

/* Failed requests are older than nearly everything queued, so the walk to their place is at most as long as the
 * number of connections. The ring has one spare place per connection: a failed request always fits. */
static void queue_restore(int64_t intended)
{
    queue.head = (queue.head + queue.capacity - 1) % queue.capacity;
    queue.length++;
    unsigned place = 0;
    for (; place + 1 < queue.length && queue_at(place + 1)->intended < intended; place++)
        *queue_at(place) = *queue_at(place + 1);
    *queue_at(place) = (struct request){intended, true};
}

/* ---- interval counters ----------------------------------------------------------------------------------------- */

static struct {
    int64_t since;
    uint64_t offered, errors, dropped, misses;
    struct histogram latency, lag;
} tally;

/* ---- reply parsers: lines, and runs of bytes to skip ----------------------------------------------------------- */

enum verdict { MORE, DONE, FAIL };
enum stage { STATUS, HEADERS, BODY, UNTIL_CLOSE, CHUNK_SIZE, TRAILERS };
enum state { DOWN, CONNECTING, IDLE, BUSY };

struct conn {
    TAILQ_ENTRY(conn) link;   /* in the idle list while IDLE */
    int fd;
    enum state state;
    int64_t intended, retry_at, backoff;
    char *request;            /* memcached only: HTTP requests are all the same */
    const char *out;
    size_t out_left;
    /* reply under way */
    enum stage stage;
    uint64_t skip, body_bytes;
    unsigned hits;
    bool interim, chunked, has_length, close_after, no_body;
    bool greeted;             /* PostgreSQL only, as is the next: the start-up message went before */
    int rounds;               /* "ready for query" still to come */
    size_t line_length;
    char line[LINE_BYTES];
};

static enum verdict memcached_line(struct conn *c, char *line)
{
    if (strncmp(line, "VALUE ", 6) == 0) { /* VALUE <key> <flags> <bytes> */
        char *last = strrchr(line, ' '), *end; /* sscanf would cost a quarter of a core at a million values/s */
        unsigned long long bytes = strtoull(last, &end, 10);
        if (end == last || *end || bytes > LARGEST_BODY)
            return FAIL;
        c->skip = bytes + 2; /* by length: a value may hold "END\r\n" */
        c->hits++;
        return MORE;
    }
    if (strcmp(line, "END") != 0)
        return FAIL;
    tally.misses += opt.gets - c->hits;
    return DONE;
}

/* An inline PING is answered by a simple string; "-LOADING ..." is an error (redis.io, "RESP protocol spec"). */
static enum verdict redis_line(const char *line)
{
    return strncmp(line, opt.query ? "+" : "+PONG", opt.query ? 1 : 6) == 0 ? DONE : FAIL;
}

static enum verdict http_status(struct conn *c, const char *line)
{
    int minor, code;
    if (sscanf(line, "HTTP/1.%1d %3d", &minor, &code) != 2)
        return FAIL;
    c->interim = code / 100 == 1;
    c->no_body = code == 204;
    c->close_after = minor == 0;
    c->stage = HEADERS;
    /* A fast 404 or 503 is a failed request, not a fast one. */
    return c->interim || code / 100 == 2 ? MORE : FAIL;
}

static enum verdict http_body(struct conn *c)
{
    if (c->interim) {
        c->stage = STATUS;
        return MORE;
    }
    if (c->chunked) {
        c->stage = CHUNK_SIZE;
        return MORE;
    }
    if (c->no_body || (c->has_length && c->body_bytes == 0))
        return DONE;
    c->stage = c->has_length ? BODY : UNTIL_CLOSE;
    c->skip = c->has_length ? c->body_bytes : UINT64_MAX;
    return MORE;
}

static enum verdict http_header(struct conn *c, const char *line)
{
    if (strncasecmp(line, "Content-Length:", 15) == 0) {
        char *end;
        c->body_bytes = strtoull(line + 15, &end, 10);
        c->has_length = true;
        return end > line + 15 && c->body_bytes <= LARGEST_BODY ? MORE : FAIL;
    }
    if (strncasecmp(line, "Transfer-Encoding:", 18) == 0)
        c->chunked = strcasestr(line + 18, "chunked") != NULL;
    else if (strncasecmp(line, "Connection:", 11) == 0)
        c->close_after = !strcasestr(line + 11, "keep-alive") && (c->close_after || strcasestr(line + 11, "close"));
    return MORE;
}

static enum verdict http_chunk(struct conn *c, const char *line)
{
    char *end;
    unsigned long long bytes = strtoull(line, &end, 16);
    if (end == line || bytes > LARGEST_BODY)
        return FAIL;
    if (bytes == 0)
        c->stage = TRAILERS;
    else
        c->skip = bytes + 2; /* and the CRLF that ends the chunk */
    return MORE;
}

static enum verdict http_line(struct conn *c, const char *line)
{
    switch (c->stage) {
    case STATUS:
        return http_status(c, line);
    case HEADERS:
        return *line ? http_header(c, line) : http_body(c);
    case CHUNK_SIZE:
        return http_chunk(c, line);
    case TRAILERS:
        return *line ? MORE : DONE;
    default:
        return FAIL;
    }
}

/* Take one line off the data, joined with what an earlier read left of it; NULL when its end has not come yet. */
static char *take_line(struct conn *c, char **data, size_t *size)
{
    char *line = *data, *end = memchr(line, '\n', *size);
    size_t length = end ? (size_t)(end - line) : *size;
    *data += length + (end != NULL);
    *size -= length + (end != NULL);
    if (!end || c->line_length > 0) {
        size_t room = LINE_BYTES - 1 - c->line_length, take = length < room ? length : room;
        memcpy(c->line + c->line_length, line, take);
        c->line_length += take;
        if (!end)
            return NULL;
        line = c->line;
        length = c->line_length;
        c->line_length = 0;
    }
    if (length > 0 && line[length - 1] == '\r')
        length--;
    line[length] = '\0';
    return line;
}

/* A message of PostgreSQL's protocol 3.0: type, length with itself, body. 'Z' is "ready for query", 'E' an error. */
static enum verdict postgres_header(struct conn *c, char **data, size_t *size)
{
    size_t want = 5 - c->line_length, take = want < *size ? want : *size;
    memcpy(c->line + c->line_length, *data, take);
    *data += take;
    *size -= take;
    c->line_length += take;
    if (take < want)
        return MORE;
    uint32_t length;
    memcpy(&length, c->line + 1, sizeof length);
    length = ntohl(length);
    c->line_length = 0;
    if (c->line[0] == 'E' || length < 4 || (c->line[0] == 'Z' && length != 5))
        return FAIL;
    c->skip = length - 4;
    if (c->line[0] == 'Z' && --c->rounds == 0)
        c->stage = BODY; /* done after its one byte */
    return MORE;
}

static enum verdict parse(struct conn *c, char *data, size_t size)
{
    enum verdict verdict = MORE;
    while (size > 0 && verdict == MORE) {
        if (c->skip > 0) {
            size_t take = c->skip < size ? (size_t)c->skip : size;
            c->skip -= take;
            data += take;
            size -= take;
            if (c->skip == 0 && c->stage == BODY)
                verdict = DONE;
            continue;
        }
        if (opt.postgres) {
            verdict = postgres_header(c, &data, &size);
            continue;
        }
        char *line = take_line(c, &data, &size);
        if (line)
            verdict = opt.memcached ? memcached_line(c, line) : opt.redis ? redis_line(line) : http_line(c, line);
    }
    return verdict == DONE && size > 0 ? FAIL : verdict; /* bytes nobody asked for: out of step */
}

/* ---- connections ----------------------------------------------------------------------------------------------- */

static struct {
    int epoll, signals;
    struct conn *conns;
    int idle;
    int64_t retry_at;      /* no connection is due for a retry before this */
    TAILQ_HEAD(, conn) idle_list;
    char *http_request;       /* or redis's, or PostgreSQL's statement */
    size_t http_request_length;
} net = {.retry_at = NEVER};

static int open_socket(int flags)
{
    return socket(opt.unix_path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
}

static int connect_socket(int fd)
{
    if (opt.unix_path) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strncpy(address.sun_path, opt.unix_path, sizeof address.sun_path - 1);
        return connect(fd, (struct sockaddr *)&address, sizeof address);
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port),
                                  .sin_addr.s_addr = opt.address};
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return connect(fd, (struct sockaddr *)&address, sizeof address);
}

static void watch(struct conn *c, int operation, uint32_t events)
{
    epoll_ctl(net.epoll, operation, c->fd, &(struct epoll_event){.events = events, .data.ptr = c});
}

static void conn_down(struct conn *c, int64_t now)
{
    if (c->state == IDLE) {
        TAILQ_REMOVE(&net.idle_list, c, link);
        net.idle--;
    }
    if (c->state == BUSY)
        queue_restore(c->intended);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->state = DOWN;
    c->retry_at = now + c->backoff;
    c->backoff = c->backoff * 2 < BACKOFF_LAST ? c->backoff * 2 : BACKOFF_LAST;
    if (c->retry_at < net.retry_at)
        net.retry_at = c->retry_at;
}

static void conn_fail(struct conn *c, int64_t now)
{
    tally.errors++;
    conn_down(c, now);
}

static void conn_idle(struct conn *c)
{
    /* At the tail: work goes round all connections, hence over all threads of the server. */
    TAILQ_INSERT_TAIL(&net.idle_list, c, link);
    net.idle++;
    c->state = IDLE;
}

static void conn_start(struct conn *c, int64_t now)
{
    c->greeted = false;
    c->fd = open_socket(SOCK_NONBLOCK);
    int result = c->fd < 0 ? -1 : connect_socket(c->fd);
    if (result < 0 && errno != EINPROGRESS) {
        conn_fail(c, now);
        return;
    }
    watch(c, EPOLL_CTL_ADD, result == 0 ? EPOLLIN : EPOLLOUT);
    if (result == 0)
        conn_idle(c);
    else
        c->state = CONNECTING;
}

static void retry_connections(int64_t now)
{
    if (now < net.retry_at)
        return;
    net.retry_at = NEVER;
    for (struct conn *c = net.conns; c < net.conns + opt.connections; c++) {
        if (c->state == DOWN && c->retry_at <= now)
            conn_start(c, now);
        if (c->state == DOWN && c->retry_at < net.retry_at)
            net.retry_at = c->retry_at;
    }
}

/* Protocol 3.0, the user, the database; the server trusts whoever reaches its socket. */
static const char greeting[] = "\0\0\0\x26\0\3\0\0" "user\0rlctl\0database\0postgres\0";

static void build_request(struct conn *c)
{
    if (opt.postgres) {
        size_t passed = c->greeted ? sizeof greeting : 0;
        c->rounds = c->greeted ? 1 : 2;
        c->greeted = true;
        c->out = net.http_request + passed;
        c->out_left = net.http_request_length - passed;
        return;
    }
    if (!opt.memcached) {
        c->out = net.http_request;
        c->out_left = net.http_request_length;
        return;
    }
    char *end = c->request + 4; /* "get " is there already */
    for (unsigned i = 0; i < opt.gets; i++, end += KEY_BYTES) {
        unsigned key = (unsigned)((splitmix(&key_random) >> 32) * opt.keys >> 32);
        end[0] = 'k';
        for (int digit = KEY_BYTES - 2; digit > 0; digit--, key /= 10)
            end[digit] = (char)('0' + key % 10);
        end[KEY_BYTES - 1] = ' ';
    }
    memcpy(end, "\r\n", 2);
    c->out = c->request;
    c->out_left = (size_t)(end + 2 - c->request);
}

static void flush_request(struct conn *c, bool watched)
{
    ssize_t sent = send(c->fd, c->out, c->out_left, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        conn_fail(c, now_ns());
        return;
    }
    c->out += sent > 0 ? sent : 0;
    c->out_left -= sent > 0 ? (size_t)sent : 0;
    if (watched != (c->out_left > 0))
        watch(c, EPOLL_CTL_MOD, c->out_left > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void dispatch_one(void)
{
    struct conn *c = TAILQ_FIRST(&net.idle_list);
    TAILQ_REMOVE(&net.idle_list, c, link);
    net.idle--;
    struct request request = queue_pop();
    c->intended = request.intended;
    c->state = BUSY;
    c->stage = STATUS;
    c->skip = c->body_bytes = c->hits = 0;
    c->line_length = 0;
    c->chunked = c->has_length = c->close_after = false;
    build_request(c);
    if (!request.waited)
        histogram_add(&tally.lag, now_ns() - request.intended);
    flush_request(c, false);
}

/* Turn due arrivals into requests, and requests into sends as far as connections go. Called after every single
 * reply too: a batch of replies must not delay the next send. */
static void pump(int64_t now)
{
    for (; arrivals.next <= now; arrivals.next += gap_ns(unit_gap())) {
        tally.offered++;
        if (queue.length < opt.queue_limit)
            queue_push((struct request){arrivals.next, queue.length >= (unsigned)net.idle});
        else
            tally.dropped++;
    }
    while (queue.length > 0 && net.idle > 0)
        dispatch_one();
}

/* The newest latencies, for `peek`, which leaves the interval as it is. */
#define NEWEST 64
static struct {
    int64_t latency[NEWEST];
    uint64_t count, told;
} newest;

static void reply_done(struct conn *c, int64_t now)
{
    histogram_add(&tally.latency, now - c->intended);
    newest.latency[newest.count++ % NEWEST] = now - c->intended;
    c->backoff = BACKOFF_FIRST;
    conn_idle(c);
    if (c->close_after || c->stage == UNTIL_CLOSE) {
        conn_down(c, now);
        conn_start(c, now);
    }
}

static void conn_readable(struct conn *c)
{
    static char buffer[1 << 18];
    ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
    int64_t now = now_ns();
    if (got < 0 && errno == EAGAIN)
        return;
    if (c->state == IDLE) { /* keep-alive ran out: normal; bytes or a reset are not */
        if (got == 0)
            conn_down(c, now);
        else
            conn_fail(c, now);
        return;
    }
    enum verdict verdict = got > 0 ? parse(c, buffer, (size_t)got) : FAIL;
    if (got == 0 && c->stage == UNTIL_CLOSE)
        verdict = DONE;
    if (verdict == FAIL || (verdict == DONE && c->out_left > 0))
        conn_fail(c, now);
    else if (verdict == DONE)
        reply_done(c, now);
}

static void conn_connected(struct conn *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        conn_fail(c, now_ns());
        return;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    conn_idle(c);
}

static void conn_event(struct conn *c, uint32_t events)
{
    if (c->state == CONNECTING)
        conn_connected(c);
    else if (c->state == BUSY && c->out_left > 0 && (events & EPOLLOUT))
        flush_request(c, true);
    else if (c->state != DOWN)
        conn_readable(c);
}

/* ---- report ---------------------------------------------------------------------------------------------------- */

static int64_t oldest_intended(int *outstanding)
{
    int64_t oldest = queue.length > 0 ? queue_at(0)->intended : NEVER;
    *outstanding = (int)queue.length;
    for (struct conn *c = net.conns; c < net.conns + opt.connections; c++)
        if (c->state == BUSY) {
            ++*outstanding;
            oldest = c->intended < oldest ? c->intended : oldest;
        }
    return oldest;
}

static void put_times(FILE *out, const char *prefix, const struct histogram *h)
{
    static const int percents[] = {50, 95, 99};
    for (int i = 0; i < 3; i++)
        if (h->count > 0)
            fprintf(out, ",\"%sp%d_seconds\":%.9f", prefix, percents[i], quantile_seconds(h, percents[i] / 100.0));
        else
            fprintf(out, ",\"%sp%d_seconds\":null", prefix, percents[i]);
}

static void put_line(FILE *out, const char *id, int64_t now)
{
    double seconds = (double)(now - tally.since) / SECOND;
    const struct histogram *h = &tally.latency;
    int outstanding;
    int64_t oldest = oldest_intended(&outstanding);
    fprintf(out, "{\"t\":%.9f,\"id\":%s,\"interval_seconds\":%.9f", (double)now / SECOND, id, seconds);
    fprintf(out, ",\"offered_rps\":%.3f,\"done_rps\":%.3f", (double)tally.offered / seconds,
            (double)h->count / seconds);
    fprintf(out, ",\"samples\":%" PRIu64, h->count);
    put_times(out, "", h);
    fprintf(out, ",\"oldest_seconds\":%.9f,\"outstanding\":%d", oldest < now ? (double)(now - oldest) / SECOND : 0.0,
            outstanding);
    fprintf(out, ",\"errors\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\"misses\":%" PRIu64, tally.errors, tally.dropped,
            tally.misses);
    fprintf(out, ",\"rate_rps\":%.3f", arrivals.rate);
    put_times(out, "lag_", &tally.lag);
    fputs("}\n", out);
}

/* Between two reports: what completed since the last peek, and the oldest request. Reported are both all the same. */
static void peek(const char *id)
{
    char line[2048];
    int outstanding;
    int64_t now = now_ns();
    pump(now);
    int64_t oldest = oldest_intended(&outstanding);
    uint64_t from = newest.count - newest.told > NEWEST ? newest.count - NEWEST : newest.told;
    FILE *out = fmemopen(line, sizeof line, "w");
    fprintf(out, "{\"id\":%s,\"oldest_seconds\":%.9f,\"newest_seconds\":[", id,
            oldest < now ? (double)(now - oldest) / SECOND : 0.0);
    for (uint64_t i = from; i < newest.count; i++)
        fprintf(out, "%s%.9f", i > from ? "," : "", (double)newest.latency[i % NEWEST] / SECOND);
    fputs("]}\n", out);
    size_t length = (size_t)ftell(out);
    fclose(out);
    ssize_t written = write(STDOUT_FILENO, line, length);
    if (written < 0 && errno != EAGAIN)
        exit(0);
    newest.told = newest.count;
}

/* A pipe nobody reads must not stop the load: then the line is given up and what it counted is in the next. */
static void report(const char *id)
{
    char line[2048];
    int64_t now = now_ns();
    pump(now);
    FILE *out = fmemopen(line, sizeof line, "w");
    put_line(out, id, now);
    size_t length = (size_t)ftell(out);
    fclose(out);
    ssize_t written = write(STDOUT_FILENO, line, length); /* below PIPE_BUF: all or nothing */
    if (written < 0 && errno == EAGAIN)
        return;
    if (written < 0)
        exit(0);
    memset(&tally, 0, sizeof tally);
    tally.since = now;
}

/* ---- commands -------------------------------------------------------------------------------------------------- */

static bool is_number(const char *text) { return *text && strspn(text, "0123456789") == strlen(text); }

static void obey(const char *line)
{
    double rate;
    char rest;
    if (strcmp(line, "quit") == 0)
        exit(0);
    if (strcmp(line, "forget") == 0) {
        tally.dropped += queue.length;
        queue.length = 0;
    } else if (strncmp(line, "stats ", 6) == 0 && is_number(line + 6)) {
        report(line + 6);
    } else if (strncmp(line, "peek ", 5) == 0 && is_number(line + 5)) {
        peek(line + 5);
    } else if (sscanf(line, "rate %lf%c", &rate, &rest) == 1 && rate >= 0 && rate <= 1e6) {
        int64_t now = now_ns();
        pump(now); /* what was due under the old rate stays due */
        set_rate(rate, now);
    } else {
        fprintf(stderr, "loadgen: not understood: %s\n", line);
    }
}

static void stdin_event(void)
{
    static char text[256];
    static size_t length;
    ssize_t got = read(STDIN_FILENO, text + length, sizeof text - 1 - length);
    if (got <= 0)
        exit(0);
    length += (size_t)got;
    text[length] = '\0';
    char *line = text;
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        obey(line);
    }
    length = strlen(line);
    memmove(text, line, length);
    if (length == sizeof text - 1)
        length = 0; /* no command is that long */
}

/* The kernel sends the parent-death signal when the *thread* that started us ends; only a new parent means that the
 * process is gone. */
static void signal_event(pid_t parent)
{
    struct signalfd_siginfo info;
    if (read(net.signals, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo != SIGUSR1 || getppid() != parent)
        exit(0);
}

/* ---- preload --------------------------------------------------------------------------------------------------- */

static int connect_patiently(void)
{
    for (int64_t give_up = now_ns() + 5 * SECOND;; usleep(10000)) {
        int fd = open_socket(0);
        if (fd >= 0 && connect_socket(fd) == 0)
            return fd;
        if (now_ns() > give_up)
            die(1, "preload: cannot connect: %s", strerror(errno));
        close(fd);
    }
}

/* Sets are sent with noreply, all in one stream; the get at the end waits for them and proves that they arrived. */
static void preload(void)
{
    int fd = connect_patiently();
    struct timeval patience = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    FILE *out = fdopen(fd, "w");
    char *value = malloc(opt.value_bytes + 1), answer[5] = "";
    if (!out || !value)
        die(1, "preload: out of memory");
    setvbuf(out, NULL, _IOFBF, 1 << 16);
    for (unsigned key = 0; key < opt.preload; key++) {
        for (unsigned i = 0; i < opt.value_bytes; i++)
            value[i] = (char)('a' + (key + i) % 26);
        fprintf(out, "set k%07u 0 0 %u noreply\r\n", key, opt.value_bytes);
        fwrite(value, 1, opt.value_bytes, out);
        fputs("\r\n", out);
    }
    fprintf(out, "get k%07u\r\n", opt.preload - 1);
    if (fflush(out) != 0 || recv(fd, answer, sizeof answer, MSG_WAITALL) != 5 || memcmp(answer, "VALUE", 5) != 0)
        die(1, "preload: the server did not keep the last of %u keys", opt.preload);
    fclose(out);
    free(value);
}

/* ---- options, set-up, loop ------------------------------------------------------------------------------------- */

static const struct option long_options[] = {
    {"protocol", 1, 0, 'P'}, {"unix", 1, 0, 'u'},        {"port", 1, 0, 'p'},        {"connections", 1, 0, 'c'},
    {"path", 1, 0, 'H'},     {"gets", 1, 0, 'g'},        {"preload", 1, 0, 'l'},     {"value-bytes", 1, 0, 'b'},
    {"fifo", 1, 0, 'f'},     {"cpu", 1, 0, 'C'},         {"seed", 1, 0, 's'},        {"queue-limit", 1, 0, 'q'},
    {"address", 1, 0, 'A'},  {"query", 1, 0, 'Q'},       {0}};

static double number(double smallest, double largest)
{
    char *end;
    double value = strtod(optarg, &end);
    if (end == optarg || *end || !(value >= smallest && value <= largest))
        die(2, "%s: a number from %g to %g is needed", optarg, smallest, largest);
    return value;
}

/* RFC 3927: no router forwards 169.254/16. So nobody's network can be flooded by a slip of the pen. */
static in_addr_t near_address(const char *text)
{
    struct in_addr address;
    if (inet_pton(AF_INET, text, &address) != 1)
        die(2, "%s: an IPv4 address is needed", text);
    uint32_t host = ntohl(address.s_addr);
    if (host >> 24 != 127 && host >> 16 != 0xa9fe)
        die(2, "%s: only addresses of 127/8 and 169.254/16 can be aimed at", text);
    return address.s_addr;
}

static void set_option(int name)
{
    switch (name) {
    case 'P':
        opt.memcached = strcmp(optarg, "memcached") == 0;
        opt.postgres = strcmp(optarg, "postgres") == 0;
        opt.redis = strcmp(optarg, "redis") == 0;
        if (!opt.memcached && !opt.postgres && !opt.redis && strcmp(optarg, "http") != 0)
            die(2, "%s: no such protocol (http, memcached, postgres, redis)", optarg);
        break;
    case 'u': opt.unix_path = optarg; break;
    case 'H': opt.http_path = optarg; break;
    case 'Q': opt.query = optarg; break;
    case 'A': opt.address = near_address(optarg); break;
    case 'p': opt.port = (int)number(1, 65535); break;
    case 'c': opt.connections = (int)number(1, 1000); break;
    case 'g': opt.gets = (unsigned)number(1, 10000); break;
    case 'l': opt.preload = (unsigned)number(0, 9999999); break;
    case 'b': opt.value_bytes = (unsigned)number(1, 1 << 20); break;
    case 'q': opt.queue_limit = (unsigned)number(1, 10e6); break;
    case 'f': opt.fifo = (int)number(0, 99); break;
    case 'C': opt.cpu = (int)number(0, CPU_SETSIZE - 1); break;
    case 's': opt.seed = (uint64_t)number(0, 0x1p53); break;
    default: exit(2); /* getopt has said why */
    }
}

static void read_options(int argc, char **argv)
{
    opt.address = htonl(INADDR_LOOPBACK);
    for (int name; (name = getopt_long(argc, argv, "", long_options, NULL)) != -1;)
        set_option(name);
    if (optind < argc || !opt.unix_path == !opt.port)
        die(2, "one of --unix and --port is needed, and nothing else");
    if (opt.unix_path && strlen(opt.unix_path) >= sizeof ((struct sockaddr_un *)0)->sun_path)
        die(2, "%s: too long for a unix socket", opt.unix_path);
    if (opt.http_path[0] != '/' || opt.http_path[strcspn(opt.http_path, " \r\n")])
        die(2, "--path must start with / and hold no space");
    if (opt.postgres && !opt.query)
        die(2, "--protocol postgres needs --query");
    opt.keys = opt.preload > 0 ? opt.preload : 10000;
}

static void settle_in(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (opt.cpu >= 0) {
        CPU_SET(opt.cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set) < 0)
            die(2, "--cpu %d: %s", opt.cpu, strerror(errno));
    }
    prctl(PR_SET_TIMERSLACK, 1UL); /* the default is 50 us late on purpose */
    struct sched_param parameters = {.sched_priority = opt.fifo};
    if (opt.fifo > 0 && sched_setscheduler(0, SCHED_FIFO, &parameters) < 0)
        fprintf(stderr, "loadgen: no SCHED_FIFO (%s): send lag will be larger\n", strerror(errno));
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
}

static void build_statement(void)
{
    size_t text = strlen(opt.query) + 1;
    uint32_t length = htonl((uint32_t)(text + sizeof length));
    free(net.http_request);
    net.http_request_length = sizeof greeting + 1 + sizeof length + text;
    char *end = net.http_request = malloc(net.http_request_length);
    if (!end)
        die(1, "out of memory");
    end = mempcpy(end, greeting, sizeof greeting);
    *end++ = 'Q';
    memcpy(mempcpy(end, &length, sizeof length), opt.query, text);
}

static void allocate(void)
{
    queue.capacity = opt.queue_limit + (unsigned)opt.connections;
    queue.ring = calloc(queue.capacity, sizeof *queue.ring);
    net.conns = calloc((size_t)opt.connections, sizeof *net.conns);
    const char *form = opt.redis ? "%s\r\n" : "GET %s HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n";
    const char *asked = !opt.redis ? opt.http_path : opt.query ? opt.query : "PING";
    int length = asprintf(&net.http_request, form, asked);
    if (!queue.ring || !net.conns || length < 0)
        die(1, "out of memory");
    net.http_request_length = (size_t)length;
    if (opt.postgres)
        build_statement();
    TAILQ_INIT(&net.idle_list);
    for (struct conn *c = net.conns; c < net.conns + opt.connections; c++) {
        c->fd = -1;
        c->backoff = BACKOFF_FIRST;
        if (opt.memcached && !(c->request = malloc(4 + opt.gets * KEY_BYTES + 2)))
            die(1, "out of memory");
        if (c->request)
            memcpy(c->request, "get ", 4);
    }
}

static void open_events(void)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    net.signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    net.epoll = epoll_create1(EPOLL_CLOEXEC);
    /* Connections are told apart from these two by a pointer that is not one of them. */
    struct epoll_event command = {.events = EPOLLIN, .data.ptr = &arrivals}, signals = {EPOLLIN, {&net.signals}};
    if (epoll_ctl(net.epoll, EPOLL_CTL_ADD, net.signals, &signals) < 0 ||
        epoll_ctl(net.epoll, EPOLL_CTL_ADD, STDIN_FILENO, &command) < 0)
        die(2, "stdin must be a pipe, a socket or a terminal (%s)", strerror(errno));
    struct stat out;
    if (fstat(STDOUT_FILENO, &out) == 0 && (S_ISFIFO(out.st_mode) || S_ISSOCK(out.st_mode)))
        fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
}

/* epoll_pwait2 (Linux 5.11) has the nanosecond timeout that epoll_wait lacks; older kernels get it from ppoll. */
static int wait_events(struct epoll_event *events, int most, int64_t until)
{
    static bool old_kernel;
    int64_t left = until - now_ns();
    left = left < 0 ? 0 : left > 3600 * SECOND ? 3600 * SECOND : left;
    struct timespec timeout = {.tv_sec = left / SECOND, .tv_nsec = left % SECOND};
#ifdef SYS_epoll_pwait2
    if (!old_kernel) {
        int count = (int)syscall(SYS_epoll_pwait2, net.epoll, events, most, &timeout, NULL, 0);
        if (count >= 0 || errno != ENOSYS)
            return count;
        old_kernel = true;
    }
#endif
    ppoll(&(struct pollfd){.fd = net.epoll, .events = POLLIN}, 1, &timeout, NULL);
    return epoll_wait(net.epoll, events, most, 0);
}

static void run(pid_t parent)
{
    struct epoll_event events[64];
    for (;;) {
        int count = wait_events(events, 64, net.retry_at < arrivals.next ? net.retry_at : arrivals.next);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == &arrivals)
                stdin_event();
            else if (events[i].data.ptr == &net.signals)
                signal_event(parent);
            else
                conn_event(events[i].data.ptr, events[i].events);
            pump(now_ns());
        }
        int64_t now = now_ns();
        retry_connections(now);
        pump(now);
    }
}

int main(int argc, char **argv)
{
    pid_t parent = getppid();
    read_options(argc, argv);
    settle_in();
    if (getppid() != parent) /* it ended before anybody was to tell us */
        return 0;
    if (opt.memcached && opt.preload > 0)
        preload();
    allocate();
    open_events();
    arrivals.random = opt.seed;
    key_random = ~opt.seed;
    arrivals.units_left = unit_gap();
    int64_t now = tally.since = now_ns();
    net.retry_at = 0; /* all connections are due */
    retry_connections(now);
    run(parent);
}
