/* Threads of a block as stacks that take turns (host_cuda_run.h).
 *
 * A thread runs until it has to wait for others or ends, then the next that can go on is given the turn: one that has not begun gets
 * a stack, or goes on on that of a thread that has ended. So a block whose threads never wait is one call after the other on one
 * stack. A context begins a stack; from then on jumps change between stacks, without a system call each. */
#include "cuda/host_cuda_run.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(ESPER_SANITIZE_ADDRESS) /* which is told of every change of stacks */
#include <sanitizer/common_interface_defs.h>
#else
#define __sanitizer_start_switch_fiber(save, bottom, size)      ((void)(save), (void)(bottom), (void)(size))
#define __sanitizer_finish_switch_fiber(save, bottom, size)     ((void)(save), (void)(bottom), (void)(size))
#endif

enum { STACK_BYTES = 128 * 1024, WARP = 32, MAX_WARPS = HOST_CUDA_MAX_THREADS / WARP };

typedef struct stack {
    ucontext_t    context;
    jmp_buf       place;
    char         *memory;
    struct stack *next_free;
    bool          has_begun;
} stack;

typedef enum thread_state { NOT_BEGUN, READY, RUNNING, AT_WARP, AT_BLOCK, DONE } thread_state;

typedef struct thread {
    thread_state   state;
    stack         *on;
    int            line; /* where it waits */
    host_cuda_what what; /* of an exchange, with the next four */
    unsigned       mask;
    int            source;
    uint64_t       offered, received;
} thread;

host_cuda_place host_cuda_now;

static host_cuda_kernel *kernels;
static pthread_mutex_t   lock = PTHREAD_MUTEX_INITIALIZER;
static thread            threads[HOST_CUDA_MAX_THREADS];
static unsigned          arrived[MAX_WARPS]; /* lanes that wait in an exchange */
static stack             stacks[HOST_CUDA_MAX_THREADS], *free_stacks;
static int               n_stacks, n_threads, n_done, n_at_block, any_at_block, any_of_block, now;
static bool              backwards;
static bool without_cores;
static jmp_buf           launcher;
static const host_cuda_kernel *kernel_now;
static const void             *lanes_now;
static char                   *shared_memory;
static size_t                  shared_bytes_now;

/* ---------------------------------------------------------------------------------------------------------- sentences */

static const char *const STATES[] = {"has not begun",      "can go on",           "runs",
                                     "waits for its warp", "waits for its block", "has returned"};

#define DIE(...)                                                                                                      \
    do {                                                                                                              \
        fprintf(stderr, "CUDA on the host: %s, block (%u, %u), thread %d: ", kernel_now->name, host_cuda_now.block.x, \
                host_cuda_now.block.y, now);                                                                          \
        fprintf(stderr, __VA_ARGS__);                                                                                 \
        fprintf(stderr, "\n");                                                                                        \
        abort();                                                                                                      \
    } while (0)

/* Nobody can go on: says who waits, and for whom. */
static void die_of_a_hang(void)
{
    int waiting = 0, other = 0;

    while (threads[waiting].state != AT_BLOCK && threads[waiting].state != AT_WARP)
        waiting++;
    while (other < n_threads && threads[other].state == threads[waiting].state)
        other++;
    now = waiting;
    if (other == n_threads)
        DIE("the block hangs: all its threads wait, from line %d on, for lanes that never come", threads[waiting].line);
    DIE("the block hangs: it %s at line %d, but thread %d %s%s", STATES[threads[waiting].state], threads[waiting].line,
        other, STATES[threads[other].state], threads[other].state == DONE ? "" : " elsewhere");
}

/* -------------------------------------------------------------------------------------------------------------- turns */

/* Of the thread that launches, for the sanitizer: its stack, and what else it keeps of it. */
static const void *main_stack;
static size_t      main_stack_bytes;
static void       *main_stack_kept;

static void run_threads(void);

/* The turn has come to a stack of ours; at the first time in a launch, from the launching thread's. */
static void arrive(void)
{
    if (main_stack == NULL)
        __sanitizer_finish_switch_fiber(NULL, &main_stack, &main_stack_bytes);
    else
        __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
}

static void begin_stack(void)
{
    arrive();
    run_threads();
}

/* A function of its own: getcontext counts as one that may return twice, and nothing lives across it here. */
static void prepare(stack *s)
{
    getcontext(&s->context);
    s->context.uc_stack.ss_sp = s->memory;
    s->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&s->context, begin_stack, 0);
}

static stack *take_stack(void)
{
    stack *s = free_stacks;

    if (s != NULL) {
        free_stacks = s->next_free;
        return s;
    }
    s = &stacks[n_stacks++];
    s->memory = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->memory == MAP_FAILED)
        DIE("no memory for its stack");
    prepare(s);
    return s;
}

static void go_on(stack *s, void **kept)
{
    __sanitizer_start_switch_fiber(kept, s->memory, STACK_BYTES);
    if (s->has_begun)
        _longjmp(s->place, 1);
    s->has_begun = true;
    setcontext(&s->context);
}

static void take_the_place_of(int i)
{
    now = i;
    threads[i].state = RUNNING;
    host_cuda_now.linear = (unsigned)i;
    host_cuda_now.thread.x = (unsigned)i;
}

/* The next thread that has a turn, round about from this one on; -1 where there is none. */
static int next_thread(void)
{
    for (int k = 1, i = now; k <= n_threads; k++) {
        i = backwards ? (i == 0 ? n_threads - 1 : i - 1) : (i == n_threads - 1 ? 0 : i + 1);
        if (threads[i].state <= READY)
            return i;
    }
    return -1;
}

/* Gives the turn away, and returns when it has come back. */
static void wait_for_a_turn(thread_state state)
{
    int next;

    threads[now].state = state;
    next = next_thread();
    if (next < 0)
        die_of_a_hang();
    if (threads[next].state == NOT_BEGUN)
        threads[next].on = take_stack();
    if (_setjmp(threads[now].on->place) == 0) {
        take_the_place_of(next);
        go_on(threads[now].on, NULL);
    }
    arrive();
}

/* What a stack does: runs the thread that was put on it, and then others that have not begun. A stack that a thread has ended on
 * is taken up again here. */
static void run_threads(void)
{
    for (;;) {
        stack *own = threads[now].on;
        int next;

        kernel_now->run(lanes_now);
        threads[now].state = DONE;
        n_done++;
        next = next_thread();
        if (next >= 0 && threads[next].state == NOT_BEGUN) {
            threads[next].on = own;
            take_the_place_of(next);
            continue;
        }
        if (next < 0 && n_done != n_threads)
            die_of_a_hang();
        own->next_free = free_stacks;
        free_stacks = own;
        if (_setjmp(own->place) == 0) {
            if (next < 0) {
                __sanitizer_start_switch_fiber(NULL, main_stack, main_stack_bytes);
                _longjmp(launcher, 1);
            }
            take_the_place_of(next);
            go_on(threads[next].on, NULL);
        }
        arrive();
    }
}

/* ------------------------------------------------------------------------------------------------------------ meetings */

static void meet_block(int line)
{
    threads[now].line = line;
    if (++n_at_block < n_threads) {
        wait_for_a_turn(AT_BLOCK);
        return;
    }
    for (int i = 0; i < n_threads; i++) {
        if (i == now)
            continue;
        if (threads[i].line != line)
            DIE("the block meets at two barriers: line %d, and thread %d at line %d", line, i, threads[i].line);
        threads[i].state = READY;
    }
    n_at_block = 0;
    any_of_block = any_at_block;
    any_at_block = 0;
}

void host_cuda_wait_for_block(int line)
{
    meet_block(line);
}

int host_cuda_any_of_block(int predicate, int line)
{
    any_at_block |= predicate;
    meet_block(line);
    return any_of_block;
}

/* All lanes of the mask have come: gives each its share. */
static void complete_exchange(thread *warp, unsigned mask, const thread *last)
{
    unsigned ballot = 0;

    for (int i = 0; i < WARP; i++) {
        if ((mask >> i & 1) == 0)
            continue;
        if (warp[i].what != last->what || warp[i].line != last->line || warp[i].mask != mask)
            DIE("lanes meet in two exchanges: line %d with mask %08x, and lane %d at line %d with %08x", last->line,
                mask, i, warp[i].line, warp[i].mask);
        if (warp[i].what == HOST_CUDA_SHUFFLE && (mask >> warp[i].source & 1) == 0)
            DIE("line %d: lane %d reads lane %d, which takes no part (mask %08x)", last->line, i, warp[i].source, mask);
        ballot |= (unsigned)(warp[i].offered != 0) << i;
    }
    for (int i = 0; i < WARP; i++)
        if ((mask >> i & 1) != 0) {
            warp[i].received = warp[i].what == HOST_CUDA_SHUFFLE ? warp[warp[i].source].offered : ballot;
            if (&warp[i] != last)
                warp[i].state = READY;
        }
}

uint64_t host_cuda_exchange(host_cuda_what what, unsigned mask, uint64_t bits, int source, int line)
{
    thread *self = &threads[now], *warp = &threads[now / WARP * WARP];
    unsigned *here = &arrived[now / WARP];
    int in_warp = n_threads - now / WARP * WARP; /* the last warp may be short */

    if (in_warp < WARP)
        mask &= (1u << in_warp) - 1;
    if ((mask >> (now % WARP) & 1) == 0)
        DIE("line %d: a lane that is not in the mask %08x", line, mask);
    self->what = what;
    self->mask = mask;
    self->offered = bits;
    self->source = source;
    self->line = line;
    *here |= 1u << (now % WARP);
    if ((*here & mask) == mask) {
        *here &= ~mask;
        complete_exchange(warp, mask, self);
    } else {
        wait_for_a_turn(AT_WARP);
    }
    return self->received;
}

/* ------------------------------------------------------------------------------------------------------------ launches */

/* The shared memory that kernels declare. */
extern char __start_esper_shared[] __attribute__((weak)), __stop_esper_shared[] __attribute__((weak));

static void poison_shared(void)
{
    if (__start_esper_shared != NULL)
        memset(__start_esper_shared, 0xff, (size_t)(__stop_esper_shared - __start_esper_shared));
    if (shared_memory != NULL)
        memset(shared_memory, 0xff, shared_bytes_now);
}

/* As much as the launch said, to the byte. */
static void take_shared(size_t bytes)
{
    if (bytes == shared_bytes_now)
        return;
    free(shared_memory);
    shared_memory = bytes == 0 ? NULL : aligned_alloc(128, (bytes + 127) / 128 * 128);
    shared_bytes_now = bytes;
    if (bytes != 0 && shared_memory == NULL)
        DIE("no memory for %zu shared bytes", bytes);
}

void *host_cuda_shared(void)
{
    if (shared_memory == NULL)
        DIE("asks for shared memory, and the launch gave none");
    return shared_memory;
}

static void run_block(void)
{
    for (int i = 0; i < n_threads; i++)
        threads[i].state = NOT_BEGUN;
    memset(arrived, 0, sizeof(arrived));
    n_done = n_at_block = any_at_block = 0;
    poison_shared();
    take_the_place_of(backwards ? n_threads - 1 : 0);
    threads[now].on = take_stack();
    if (_setjmp(launcher) == 0)
        go_on(threads[now].on, &main_stack_kept);
    __sanitizer_finish_switch_fiber(main_stack_kept, NULL, NULL);
}

static const host_cuda_kernel *find(const char *name)
{
    const host_cuda_kernel *k = kernels;

    while (k != NULL && strcmp(k->name, name) != 0)
        k = k->next;
    return k;
}

bool host_cuda_has(const char *kernel)
{
    return find(kernel) != NULL;
}

void host_cuda_register(host_cuda_kernel *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}

void host_cuda_reverse(bool reverse)
{
    backwards = reverse;
}

void host_cuda_set_cores(bool has)
{
    without_cores = !has;
}

bool host_cuda_has_cores(void)
{
    return !without_cores;
}

static void check_launch(const char *name, int blocks_x, int n_lanes, int n, int shared_bytes)
{
    const char *wrong = kernel_now == NULL                                ? "there is no such kernel"
                        : n < 1 || n > kernel_now->threads                ? "threads: none, or more than it is compiled for"
                        : n > HOST_CUDA_MAX_THREADS                       ? "threads: more than a block can have"
                        : blocks_x < 1 || n_lanes < 1 || n_lanes > 65535  ? "an empty grid, or too many lanes"
                        : shared_bytes < 0 || shared_bytes > HOST_CUDA_MAX_SHARED ? "more shared memory than there is"
                                                                                  : NULL;

    if (wrong != NULL) {
        fprintf(stderr, "CUDA on the host: launch of %s: %s (%d x %d blocks of %d threads, %d bytes)\n", name, wrong,
                blocks_x, n_lanes, n, shared_bytes);
        abort();
    }
}

void host_cuda_launch(const char *kernel, int blocks_x, int n_lanes, int n, int shared_bytes, const void *lanes)
{
    pthread_mutex_lock(&lock);
    kernel_now = find(kernel);
    check_launch(kernel, blocks_x, n_lanes, n, shared_bytes);
    lanes_now = lanes;
    n_threads = n;
    host_cuda_now =
        (host_cuda_place){.block_dim = {(unsigned)n, 1, 1}, .grid_dim = {(unsigned)blocks_x, (unsigned)n_lanes, 1}};
    take_shared((size_t)shared_bytes);
    main_stack = NULL; /* another thread may launch now */
    for (int k = 0; k < blocks_x * n_lanes; k++) {
        int i = backwards ? blocks_x * n_lanes - 1 - k : k;

        host_cuda_now.block = (host_cuda_3){(unsigned)(i % blocks_x), (unsigned)(i / blocks_x), 0};
        run_block();
    }
    pthread_mutex_unlock(&lock);
}
