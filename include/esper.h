/* esper.h: the one public header of Esper, valid as C99 and C++.
 *
 * Ownership: whoever opens closes; a pointer argument is borrowed for the call unless a function says otherwise.
 * Errors: a function that can fail returns esper_status (0 good, negative bad) and writes its outputs only on success;
 * esper_last_error() then tells, in words, what the calling thread's last failing call met.
 */
#ifndef ESPER_H
#define ESPER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ESPER_VERSION_MAJOR 0
#define ESPER_VERSION_MINOR 1
#define ESPER_VERSION_PATCH 0
#define ESPER_VERSION "0.1.0"

#if defined(__GNUC__)
#define ESPER_API __attribute__((visibility("default")))
#else
#define ESPER_API
#endif

/* Code ranges say what the caller must rebuild: to -99 nothing, to -199 the device's backend, to -299 the communicator. */
#define ESPER_STATUS_LIST(X)                                    \
    X(OK, 0, "ok")                                              \
    X(E_ARG, -1, "bad argument")                                \
    X(E_NOMEM, -2, "out of memory")                             \
    X(E_STATE, -3, "not allowed in this state")                 \
    X(E_UNSUPPORTED, -4, "backend cannot do this")              \
    X(E_IO, -5, "reading or writing failed")                    \
    X(E_FORMAT, -6, "file is damaged or of another format")     \
    X(E_CONFIG, -7, "bad configuration")                        \
    X(E_NOTFOUND, -8, "not found")                              \
    X(E_STOPPED, -9, "stopped by request")                      \
    X(E_DEVICE, -100, "device lost: reopen the backend")        \
    X(E_PEER, -200, "rank lost: rebuild the communicator")

typedef enum esper_status {
#define X(name, value, text) ESPER_##name = value,
    ESPER_STATUS_LIST(X)
#undef X
} esper_status;

/* The name ("ESPER_E_ARG") and the general meaning of a status. Static strings; any thread. */
ESPER_API const char *esper_status_name(esper_status status);
ESPER_API const char *esper_status_text(esper_status status);

/* What the last failing call on this thread met, in one sentence; "" when none has failed yet.
 * The string belongs to the thread and holds until its next failing call. */
ESPER_API const char *esper_last_error(void);

/* ESPER_VERSION of the library in use. */
ESPER_API const char *esper_version(void);

/* ================================================================================================================ guard
 *
 * The guard watches tensors: yours, whatever trains them. It knows names and addresses, not networks.
 *
 *   1. open a guard, add tensors once (name, group, role, address, type, count, device);
 *   2. after the backward pass: esper_guard_launch  (queued on your stream; no wait, no allocation)
 *   3. whenever you want to know: esper_guard_read  (one wait; every statistic of every tensor, the first bad one by name)
 *
 * and, to get back: a ring of snapshots of the same tensors (esper_ring), and a governor that says when (esper_governor).
 *
 * Threads: a guard, ring or governor is used by one thread at a time; different ones are independent, but for a ring and the
 * guard it was opened for, which count as one.
 * Streams: `stream` arguments are CUstream / cudaStream_t of the tensor's device as void *, NULL for its default stream.
 * They are ignored for host memory, where work is done in the call.
 * Structs that you fill begin with `size` = sizeof(the struct): set it with the *_init function, so that a later library
 * understands an earlier program. Structs that the library fills (esper_guard_stat, _group, _report, esper_ring_status,
 * esper_ring_restored, esper_governor_reading) and esper_guard_tensor have none: they stay as they are while the library's
 * SOVERSION does, and it changes when one of them does. */

/* The types of elements that are understood: name, text, bytes. */
#define ESPER_GUARD_DTYPE_LIST(X) X(F32, "float32", 4) X(F16, "float16", 2) X(BF16, "bfloat16", 2) X(F64, "float64", 8)

typedef enum esper_guard_dtype {
#define X(name, text, bytes) ESPER_GUARD_##name,
    ESPER_GUARD_DTYPE_LIST(X)
#undef X
    ESPER_GUARD_N_DTYPES
} esper_guard_dtype;

/* No index, no step. */
#define ESPER_GUARD_NONE UINT64_MAX

/* What a tensor is to the training. */
#define ESPER_GUARD_ROLE_LIST(X) \
    X(PARAM, "param") X(GRAD, "grad") X(MOMENT, "moment") X(BUFFER, "buffer") X(OTHER, "other")

typedef enum esper_guard_role {
#define X(name, text) ESPER_GUARD_ROLE_##name,
    ESPER_GUARD_ROLE_LIST(X)
#undef X
    ESPER_GUARD_N_ROLES
} esper_guard_role;

/* Where a tensor lies. Devices of CUDA are 0, 1, ...; ESPER_GUARD_HOST is host memory. -2 down to ESPER_GUARD_HOST_LAST are
 * host memory too: further partitions of it, each scanned by threads of its own after the one before, as if it were another
 * device (several logical devices in one process). Anything lower is E_ARG. */
enum { ESPER_GUARD_HOST = -1, ESPER_GUARD_HOST_LAST = -64 };

/* A tensor to watch. Texts are copied. */
typedef struct esper_guard_tensor {
    const char       *name;  /* unique within its role: the two moments of Adam need two names, "w.m" and "w.v" */
    const char       *group; /* "host", "seed r0c1", ...: statistics are also given for each group and role */
    esper_guard_role  role;
    esper_guard_dtype dtype;
    int32_t           device; /* ESPER_GUARD_HOST or the number of a CUDA device, see above */
    void             *data;   /* dense; may be NULL when count is 0 */
    uint64_t          count;  /* elements */
} esper_guard_tensor;

/* Memory for snapshots and for what scans of a CUDA device need, from your allocator. device as above, where memory of a
 * CUDA device is at a multiple of 256; host memory that a device uses is asked for as ESPER_GUARD_HOST and registered by the
 * library. Returns NULL when there is none. Lists of tensors and of their parts, small beside them, are the library's own,
 * on a device too. */
typedef void *(*esper_guard_alloc)(void *context, int32_t device, size_t bytes);
typedef void (*esper_guard_release)(void *context, int32_t device, void *memory);

typedef struct esper_guard_options {
    size_t size;
    int    n_threads; /* for tensors in host memory; 0 = one for each core */
    double vanishing; /* a tensor whose norm is below this counts as vanishing: 1e-7 */
    double exploding; /* ... above this, or not finite, as exploding: 10.0 */
    double tiny;      /* |x| below this counts as near zero: 1e-8 */
    esper_guard_alloc   alloc; /* both or none; NULL = the library's own */
    esper_guard_release release;
    void               *alloc_context;
} esper_guard_options;

ESPER_API void esper_guard_options_init(esper_guard_options *options);

typedef struct esper_guard esper_guard;

/* options may be NULL. Close with esper_guard_close, which takes NULL and waits for what is still queued. Graphs that hold a
 * scan must not be launched any more then. */
ESPER_API esper_status esper_guard_open(const esper_guard_options *options, esper_guard **guard_out);
ESPER_API void         esper_guard_close(esper_guard *guard);

/* Registers tensors; all or none. Their indices are their order of registration, from 0. Takes memory, so it is done before
 * training or when the network changes, not between launch and read. Ends the life of graphs that hold a scan: it waits for
 * those that run; capture them again. */
ESPER_API esper_status esper_guard_add(esper_guard *guard, const esper_guard_tensor *tensors, size_t n_tensors);

/* Forgets all tensors (the network changed its shape): add them again. Graphs that hold a scan end with them. */
ESPER_API esper_status esper_guard_clear(esper_guard *guard);

/* New addresses for all registered tensors, in their order; counts, types and devices stay. Takes no memory. Rings that are
 * open follow. Graphs that hold a scan read the new ones from their next launch on; it waits for those that run. */
ESPER_API esper_status esper_guard_replace(esper_guard *guard, void *const *data, size_t n_tensors);

/* The same for a caller whose tensors move at every step, and who knows that they lie on the devices they are registered
 * for: nobody asks the driver or the system about each address, which takes longer than a small scan. A wrong address is
 * found by the scan that reads it, and then the device is lost, or the process. */
ESPER_API esper_status esper_guard_move(esper_guard *guard, void *const *data, size_t n_tensors);

/* Compares what the caller believes with what is registered: E_STATE names the first tensor that differs, in what, and what
 * to do about it. */
ESPER_API esper_status esper_guard_verify(const esper_guard *guard, const esper_guard_tensor *tensors,
                                          size_t n_tensors);

ESPER_API size_t esper_guard_count(const esper_guard *guard);

/* The index of the tensor with that name and role, or ESPER_GUARD_NONE. Looks through all of them. */
ESPER_API uint64_t esper_guard_find(const esper_guard *guard, const char *name, esper_guard_role role);

/* One scan. */
typedef struct esper_guard_scan {
    size_t   size;
    uint32_t roles;      /* bit 1u << role for each role to read; 0 = all */
    void    *stream;     /* for tensors on a CUDA device: the stream of the first device that has any ... */
    void *const *streams; /* ... or, with several devices, one stream for each of n_streams devices, by number */
    size_t   n_streams;
    double   clip_norm;  /* > 0: after the scan, gradients (role GRAD) are scaled so that their norm is at most this */
    uint32_t
        checksum; /* 1: remember the sum of every tensor read; 2: compare with what was remembered (report.changed) */
    uint32_t
        *skip_flag; /* NULL, or a word in the memory of the tensors' device (host memory for host tensors): becomes the
                          * ESPER_GUARD_BAD_* bits of this scan, for an optimiser to read without asking the host */
} esper_guard_scan;

/* Bits of a scan's verdict. */
enum {
    ESPER_GUARD_BAD_NAN_GRAD = 1,
    ESPER_GUARD_BAD_INF_GRAD = 2,
    ESPER_GUARD_BAD_NAN_STATE = 4, /* parameters, moments, buffers and others */
    ESPER_GUARD_BAD_INF_STATE = 8,
    ESPER_GUARD_BAD_CHANGED =
        16, /* for esper_governor_scan, when report.changed names a tensor; a scan does not set it */
};

ESPER_API void         esper_guard_scan_init(esper_guard_scan *scan);
/* Queues the scan. E_STATE while an earlier one has not been read, and when no tensor is registered. scan may be NULL:
 * everything, default streams.
 * clip_norm and skip_flag need what they depend on in one place: all gradients (all tensors scanned) on one CUDA device, or
 * all in host memory; else E_UNSUPPORTED. Gradients whose norm is not finite are left as they are.
 * On a stream under capture the scan becomes part of the graph: every replay is a scan, and read may be called once after
 * each, or after several, for the last of them. All streams of a scan are under capture or none, and it has no tensors in
 * host memory; else E_UNSUPPORTED. Scans of one guard, replays too, wait for each other, on whatever streams they are. */
ESPER_API esper_status esper_guard_launch(esper_guard *guard, const esper_guard_scan *scan);

/* One tensor's statistics. Those of finite elements unless said otherwise. */
typedef struct esper_guard_stat {
    uint64_t n_nan, n_pos_inf, n_neg_inf;
    uint64_t first_bad;        /* index of the first element that is not finite, or ESPER_GUARD_NONE */
    uint64_t n_zero, n_tiny;   /* exact zeros (of either sign); |x| < tiny, zeros included */
    double   norm;             /* L2, accumulated in double; NaN or Inf when the data hold such */
    double   mean;
    double   max_abs, min_abs; /* largest |x|; smallest |x| that is not 0 (0 when there is none) */
    uint64_t checksum;         /* of the bytes, when asked for */
    uint32_t scanned;          /* 0: its role was not asked for, everything else here is 0 */
    uint32_t norm_overflow;    /* all elements finite, but the norm is not */
} esper_guard_stat;

/* Statistics of the tensors of one group and one role. */
typedef struct esper_guard_group {
    const char      *name;
    esper_guard_role role;
    uint32_t         measured;      /* 0: no tensor was scanned; unmeasured is neither healthy nor ill */
    uint64_t         n_tensors, n_elements;
    uint64_t         n_nan, n_inf, n_zero;
    uint64_t         n_vanishing, n_exploding; /* tensors */
    double           norm;
    double           min_norm, max_norm; /* over tensors with a finite norm */
    uint32_t         norm_not_finite;    /* some tensor's norm is not */
    double           norm_ratio;         /* max_norm / max(min_norm, 1e-10) */
    double           zero_fraction;
    double           health;     /* 0 if norm is not finite, else 1 - 0.5 vanishing/tensors - 0.8 exploding/tensors, 0..1 */
    uint32_t         is_healthy; /* no NaN, no Inf, ratio < 1000, fewer than half zeros, nothing exploding */
} esper_guard_group;

/* What a scan found. Belongs to the guard and holds until its next launch (or replay, of one that was captured), add, clear
 * or close. */
typedef struct esper_guard_report {
    uint64_t                 sequence;  /* counts launches, from 1 */
    uint32_t                 bad;       /* ESPER_GUARD_BAD_* bits; 0 = all is finite */
    uint64_t                 first_bad; /* index of the first tensor that holds a non-finite element, or ESPER_GUARD_NONE */
    uint64_t                 n_bad;     /* such tensors */
    uint64_t                 changed;   /* index of the first tensor whose checksum differs from the one remembered, or NONE */
    double                   grad_norm; /* of all gradients, before clipping */
    double                   clip_factor; /* what gradients were multiplied by; 1 = nothing */
    size_t                   n_tensors, n_groups;
    const esper_guard_stat  *stats;  /* (n_tensors) in the order of registration */
    const esper_guard_group *groups; /* (n_groups) */
    esper_guard_group        totals[ESPER_GUARD_N_ROLES]; /* of all groups together, by role; their name is "" */
} esper_guard_report;

/* Waits for the scan, once, and gives the report. E_STATE when nothing was launched; for a scan that was captured, when its
 * graph was not launched since the last read. Of several graphs with scans of one guard it reports the one that ran last. */
ESPER_API esper_status esper_guard_read(esper_guard *guard, const esper_guard_report **report_out);

/* Name, group, role, ... of a registered tensor; NULL past the end. Texts belong to the guard. */
ESPER_API const esper_guard_tensor *esper_guard_tensor_at(const esper_guard *guard, size_t index);

/* Activity of a seed against its host: (seed norm / sqrt(seed elements)) / (host norm / sqrt(host elements) + 1e-8), 0 where
 * either norm is below 1e-8 or either has no element, at most 10; NaN where either norm is not finite or unmeasured. */
ESPER_API double esper_guard_ratio(const esper_guard_group *seed, const esper_guard_group *host);

/* "NaN in blocks.7.attn.c_proj.weight (grad, host): 3 of 589,824, first at 41,102; 2 more tensors" or "all 148 tensors are
 * finite, gradient norm 1.234". Writes at most `chars` with the terminating zero, returns text. */
ESPER_API const char *esper_guard_describe(const esper_guard *guard, const esper_guard_report *report, char *text,
                                           size_t chars);

/* ---------------------------------------------------------------------------------------------------------------- ring
 *
 * A ring of last-good states. Taking one copies the guard's tensors (by role) on a stream of the ring's own, ordered after
 * the streams that write them; the copy itself is scanned and summed, and only then does it count. Rolling back copies the
 * newest good one back, ordered after every writer and before their next work, by events: nothing else on the device waits.
 * The caller waits only where something has to be known first: while the snapshot taken last is still being scanned, the next
 * take and a rollback wait for that verdict. An entry whose sum no longer fits is passed over for the next older one. */
typedef struct esper_ring esper_ring;

typedef enum esper_ring_place {
    ESPER_RING_AUTO,   /* on the tensors' device when it fits, else in pinned host memory */
    ESPER_RING_DEVICE, /* on the device, or not at all */
    ESPER_RING_HOST    /* in (pinned) host memory */
} esper_ring_place;

typedef struct esper_ring_options {
    size_t           size;
    uint32_t         n_entries;    /* 2 or more; 2 */
    esper_ring_place place;
    uint32_t         mirror;       /* not 0 (1): entries on a device are also copied to pinned host memory, in the background */
    uint64_t         max_bytes;    /* of device and host memory each; 0 = no limit of ours */
    const char      *directory;    /* NULL, or where the newest good entry is also kept on disk, written in the background;
                                    * one ring at a time uses it */
    uint32_t         roles;        /* bits 1u << role; 0 = parameters, moments and buffers */
    uint32_t         resume;       /* what an earlier ring left in `directory`: 0 = not used, the first good snapshot takes its
                                    * place; 1 = a rollback may use it while there is nothing newer (this run goes on where
                                    * that one ended) */
} esper_ring_options;

ESPER_API void esper_ring_options_init(esper_ring_options *options);

/* A ring for the tensors of a guard, which must outlive it. Takes all its memory here; E_NOMEM says how much was wanted and
 * how much there is. options may be NULL.
 * While it is open the tensors may move (esper_guard_replace): snapshots taken before fit the new addresses. After
 * esper_guard_add or _clear they are other tensors, and take and rollback are E_STATE: close the ring before, open it anew
 * after, and take a snapshot at once, for the entries are gone with the ring. */
ESPER_API esper_status esper_ring_open(esper_guard *guard, const esper_ring_options *options, esper_ring **ring_out);
ESPER_API void         esper_ring_close(esper_ring *ring);

/* Names a stream on which the tensors of a device are written and read: the ring orders itself after what is queued there
 * when it copies, and lets later work there begin only behind a rollback. Without any it takes the default stream. The
 * stream must outlive the ring; while it is under capture, take and rollback are E_STATE. */
ESPER_API esper_status esper_ring_add_stream(esper_ring *ring, int32_t device, void *stream);

/* Queues a snapshot of the tensors as they are behind the work queued so far, with `blob` (random state, cursor, slot
 * table: copied). E_STATE while an anomaly is pending (esper_ring_hold). The oldest entry gives way, but never the last
 * good one. */
ESPER_API esper_status esper_ring_take(esper_ring *ring, uint64_t step, const void *blob, size_t blob_bytes);

/* While on, no snapshot may be taken: something is wrong and not yet judged. */
ESPER_API void esper_ring_hold(esper_ring *ring, int on);

/* The tensors were loaded from elsewhere, a checkpoint for instance: whatever a damaged snapshot left in them is gone. */
ESPER_API void esper_ring_trust(esper_ring *ring);

/* The newest entry's state. */
typedef enum esper_ring_state {
    ESPER_RING_EMPTY,   /* nothing was taken yet */
    ESPER_RING_PENDING, /* its copy or scan is still queued */
    ESPER_RING_GOOD,
    ESPER_RING_REFUSED /* the scan found it not finite: it does not count */
} esper_ring_state;

typedef struct esper_ring_status {
    esper_ring_state newest;
    uint64_t         newest_step, good_step; /* ESPER_GUARD_NONE where there is none */
    uint32_t         n_good;
    uint64_t         refused_tensor; /* the guard's index of the first bad tensor of a refused entry */
    uint64_t         device_bytes, host_bytes;
    uint64_t         disk_step;  /* of what is on disk now, ESPER_GUARD_NONE where nothing fits this ring */
    uint32_t         disk_left_over; /* 1: an earlier ring wrote that, see `resume` */
    const char      *disk_error; /* NULL, or why the last writing to disk failed, or what was found there cannot be used;
                                  * holds until the next call for this ring */
} esper_ring_status;

/* wait 0: as far as is known. 1: waits until the newest entry was judged, GOOD or REFUSED. 2: and until the newest good one is
 * on disk, or disk_error says why it is not (as esper_ring_close does). Writing takes as long as the disk does: 1 is what a
 * training loop wants. */
ESPER_API esper_status esper_ring_status_get(esper_ring *ring, int wait, esper_ring_status *status_out);

/* What a rollback restored. */
typedef struct esper_ring_restored {
    uint64_t    step;
    const void *blob; /* belongs to the ring until its next take, rollback or close */
    size_t      blob_bytes;
    uint32_t    n_passed_over; /* newer entries that were found damaged */
    uint32_t    from_host;     /* 1: from host memory; 2: from disk */
    double      seconds;       /* from the call until the state was back, when the caller waited; else 0 */
} esper_ring_restored;

/* Puts the newest good entry back. With `wait` 0 it returns when everything is queued, having verified entries only as
 * they were sealed (the next call that needs to know compares the sums of what nobody waited for); otherwise when the
 * restored state has been verified against its sum. A device's damaged entry is mended from its mirror; else the next
 * older one is used, and after all of memory the copy on disk (that of an earlier ring only with `resume`). restored_out may
 * be NULL. E_STATE: there is no good entry, nothing was touched. E_DEVICE: the device failed, or (the message tells) all
 * were damaged, in which case nothing has to be opened anew, but what they left in the tensors is not to be trusted: no
 * snapshot is taken until another rollback succeeds, or esper_ring_trust says that the tensors were loaded from
 * elsewhere. */
ESPER_API esper_status esper_ring_rollback(esper_ring *ring, int wait, esper_ring_restored *restored_out);

/* ------------------------------------------------------------------------------------------------------------ governor
 *
 * Says when. Vital signs are judged once an epoch (or whenever a loss is known), scans once a step; the ladder is one rule:
 *   skip       a gradient is not finite, the weights are good: pass this step over; after max_skips in a row: roll back
 *   roll back  weights or moments are bad, or the vital signs panic
 *   prune      a second panic from the same snapshot: roll back, drop what is not settled, lower the learning rate
 *   stop       after max_rollbacks in all, over the governor's whole life: healthy steps and new snapshots give none back
 * What it once asked for, from ROLL_BACK on, it asks for until it was done (esper_governor_rolled_back), whatever scans and
 * losses come meanwhile. A pure state machine: it does no work itself, and the same readings give the same answers. */
typedef struct esper_governor esper_governor;

typedef struct esper_governor_options {
    size_t   size;
    /* A loss is an anomaly when it is above all three levels, once 10 healthy losses are known: */
    double   sensitivity;       /* so many standard deviations above their mean: 6 */
    double   multiplier;        /* ... and so many times their mean: 3 */
    double   absolute;          /* ... and this loss: 12. Set it for your task: a loss that never reaches it never diverges */
    double   random_guess_loss; /* ln(classes): ln 10 */
    uint32_t window;            /* healthy losses remembered: 20, at least 10 */
    uint32_t min_panics;        /* anomalies in a row before a panic: 3 */
    uint32_t max_skips;         /* steps that may be passed over in a row: 10; one more bad gradient rolls back */
    uint32_t max_rollbacks;     /* in all, prunes included, never forgotten: 3; the next panic stops */
} esper_governor_options;

#define ESPER_GOVERNOR_REASON_LIST(X)                 \
    X(NONE, "none")                                   \
    X(NAN, "governor_nan")                            \
    X(LOBOTOMY, "governor_lobotomy")                  \
    X(DIVERGENCE, "governor_divergence")              \
    X(ROLLBACK, "governor_rollback")                  \
    X(SCAN, "governor_scan")

typedef enum esper_governor_reason {
#define X(name, text) ESPER_GOVERNOR_##name,
    ESPER_GOVERNOR_REASON_LIST(X)
#undef X
} esper_governor_reason;

/* SKIP: this step. PRUNE: roll back, drop what is not settled, lower the learning rate. STOP: with a checkpoint and a
 * report. From ROLL_BACK on, the state has to go back. */
#define ESPER_GOVERNOR_ACTION_LIST(X) \
    X(GO, "go") X(SKIP, "skip") X(ROLL_BACK, "roll_back") X(PRUNE, "prune") X(STOP, "stop")

typedef enum esper_governor_action {
#define X(name, text) ESPER_GOVERNOR_##name,
    ESPER_GOVERNOR_ACTION_LIST(X)
#undef X
} esper_governor_action;

/* What the governor thinks now. */
typedef struct esper_governor_reading {
    esper_governor_action action;
    esper_governor_reason reason;
    uint32_t              pending;      /* take no snapshot: the action is not GO, or an anomaly is not yet judged */
    uint32_t              consecutive;  /* anomalies in a row */
    double                panic_loss;   /* NaN when there was none */
    uint32_t              history_count;
    double                history_mean, threshold; /* mean + sensitivity * deviation over the history; 0 when it is empty */
    uint64_t              n_skipped, n_rollbacks;
    uint32_t              faulted; /* sticky: after STOP, or after a rollback that failed; see esper_governor_rolled_back */
} esper_governor_reading;

ESPER_API void         esper_governor_options_init(esper_governor_options *options);
ESPER_API esper_status esper_governor_open(const esper_governor_options *options, esper_governor **governor_out);
ESPER_API void         esper_governor_close(esper_governor *governor);
/* "governor_nan", "roll_back", ...; "unknown" for any other number. Static strings. */
ESPER_API const char  *esper_governor_reason_name(esper_governor_reason reason);
ESPER_API const char  *esper_governor_action_name(esper_governor_action action);

/* A validation loss. reading_out may be NULL, here and below. */
ESPER_API esper_status esper_governor_check(esper_governor *governor, double loss, esper_governor_reading *reading_out);
/* A scan's verdict (the report's `bad` bits; those of the state outweigh those of the gradients). Unknown bits: E_ARG. */
ESPER_API esper_status esper_governor_scan(esper_governor *governor, uint32_t bad, esper_governor_reading *reading_out);
/* A snapshot of that step is good now: a later panic is no longer one "from the same snapshot". */
ESPER_API esper_status esper_governor_snapshot(esper_governor *governor, uint64_t snapshot_step);
/* The rollback that was asked for is done (from the snapshot of that step), or failed, which is a STOP. E_STATE when none was
 * asked for: one that was your own idea is not told. After a STOP this says that the state was restored all the same, and
 * clears `faulted`; it counts, and n_rollbacks stays at its limit, so the next panic stops again. Who wants new credit opens
 * a new governor. */
ESPER_API esper_status esper_governor_rolled_back(esper_governor *governor, uint64_t snapshot_step, int failed);
ESPER_API void         esper_governor_reading_get(const esper_governor *governor, esper_governor_reading *reading_out);

/* ----------------------------------------------------------------------------------------------------- fault injection */
typedef enum esper_fault {
    ESPER_FAULT_NAN,
    ESPER_FAULT_INF,
    ESPER_FAULT_NEG_INF,
    ESPER_FAULT_EXPONENT, /* flips a bit of the exponent */
    ESPER_FAULT_MANTISSA  /* flips a bit of the mantissa */
} esper_fault;

/* Spoils one element of a registered tensor, behind what is queued on `stream`. `bit` counts from 0 within the exponent or
 * mantissa (modulo its width); unused otherwise. For drills: see how your training takes it. */
ESPER_API esper_status esper_guard_inject(esper_guard *guard, size_t tensor, uint64_t element, esper_fault fault,
                                          uint32_t bit, void *stream);

/* ======================================================================================================= experimental
 *
 * What follows is in libesper.so alone, which has all of the above as well. It is not promised yet: a later version may change
 * it, and then changes ESPER_GROW_ENV_ABI.
 *
 * Growing networks as an environment for those who learn policies. `esper_grow_env` is a fleet: n networks of one task, each
 * an episode of a fixed number of decisions. A decision is taken once an epoch of each network, and paid for:
 *
 *   1. open it for a task;
 *   2. esper_grow_env_reset: every network trains to its first view, and shows what it sees and what is open to it;
 *   3. esper_grow_env_step, with an action for each: it is carried out, the network trains its next epoch, and shows what it was
 *      worth and what it sees now. Where an episode has ended, the next one has begun, and it is its first view that is shown.
 *
 * They are the environments of `esper learn`, to the bit: the same episodes by the same seeds, and the same rewards for the same
 * decisions (docs/grow-env.md).
 *
 * Threads: computes on a pool of its own; an environment is used by one thread at a time (another one's call is E_STATE), but for
 * esper_grow_env_stop. Different ones are independent; open them one after another. After fork() the child can only close it.
 * Arrays are the caller's, dense, and as long as esper_grow_env_shape says; rows are environments. */
#define ESPER_GROW_ENV_ABI 1

/* ESPER_GROW_ENV_ABI of the library in use. Any thread. */
ESPER_API int esper_grow_env_abi(void);

typedef struct esper_grow_env esper_grow_env;

/* A setting of `esper learn`, as text: {"max_steps", "20"}. */
typedef struct esper_grow_env_setting {
    const char *key, *value;
} esper_grow_env_setting;

typedef struct esper_grow_env_options {
    size_t      size;
    const char *task;   /* "fashion_fast": `esper info tasks` lists them. Or a path to data of one's own */
    uint32_t    n_envs; /* 4 */
    const esper_grow_env_setting
        *settings; /* (n_settings) others are the task's own; variables ESPER_... are not looked at */
    size_t      n_settings;
} esper_grow_env_options;

/* Sets size and defaults. */
ESPER_API void esper_grow_env_options_init(esper_grow_env_options *options);

/* Loads the task's data and makes room for its networks. Nothing of options is kept. Close with esper_grow_env_close, which takes
 * NULL and waits for nothing; no call may be under way then. E_CONFIG: a task or setting that is none, or has no effect here;
 * E_NOTFOUND, E_IO, E_FORMAT: its data is missing, or damaged. */
ESPER_API esper_status esper_grow_env_open(const esper_grow_env_options *options, esper_grow_env **env_out);
ESPER_API void         esper_grow_env_close(esper_grow_env *env);

/* How large arrays are. Set `size` = sizeof(the struct) before. */
typedef struct esper_grow_env_shape {
    size_t   size;
    uint32_t n_envs;
    uint32_t n_decisions; /* of an episode */
    uint32_t n_features, n_slots;
    uint32_t n_heads;     /* numbers of an action */
    uint32_t n_ops, n_blueprints, n_styles;
    uint32_t n_parts;     /* of a reward */
    int64_t  params_host; /* parameters of a network without seeds */
    uint64_t seed;        /* of the run: the setting of that name */
} esper_grow_env_shape;

ESPER_API esper_status esper_grow_env_shape_get(const esper_grow_env *env, esper_grow_env_shape *shape_out);

/* What numbers stand for, as text in the caller's memory, cut to `bytes`. E_ARG: there is no such number, so lists can be read to
 * their ends. Heads: "slot", "blueprint", ...; their choices: "r0c1", "conv_light", "0.7"; features: "epoch", "r0c1.alpha";
 * parts of rewards: "gain". */
ESPER_API esper_status esper_grow_env_head(const esper_grow_env *env, uint32_t head, char *text, size_t bytes);
ESPER_API esper_status esper_grow_env_choice(const esper_grow_env *env, uint32_t head, uint32_t choice, char *text,
                                             size_t bytes);
ESPER_API esper_status esper_grow_env_feature(const esper_grow_env *env, uint32_t feature, char *text, size_t bytes);
ESPER_API esper_status esper_grow_env_part(const esper_grow_env *env, uint32_t part, char *text, size_t bytes);

/* Which heads an operation asks, bits 1 << head: what an action says for others is not looked at. 0: no such operation. */
ESPER_API uint32_t esper_grow_env_asked(uint32_t op);

/* What is shown. Set `size`; every pointer may be NULL. Masks are 1 where a choice is open, and are all that there is to know
 * about legality: an operation needs a slot of its row, germinate then one of the slot's blueprints, set_alpha_target one of the
 * slot's styles; choices of other heads are always open. `wait` (0) is always open and asks nothing else. */
typedef struct esper_grow_env_arrays {
    size_t   size;
    float   *features;       /* (n_envs, n_features) finite, not normalised */
    int32_t *blueprints;     /* (n_envs, n_slots) of the seed in each slot; -1 = none, 0 = one beyond the menu */
    uint8_t *mask_op;        /* (n_envs, n_ops) */
    uint8_t *mask_slot;      /* (n_envs, n_ops, n_slots) */
    uint8_t *mask_blueprint; /* (n_envs, n_slots, n_blueprints) */
    uint8_t *mask_style;     /* (n_envs, n_slots, n_styles) */
    double  *accuracy;       /* (n_envs) on validation, percent; NaN: the governor has stopped it before its first view */
    int64_t *params;         /* (n_envs) of the network, with every seed in a slot */
    uint64_t *seed;          /* (n_envs) of the episode */
    /* The rest by esper_grow_env_step alone: about the decision that was taken, in the episode in which it was. */
    double  *reward;         /* (n_envs) */
    double  *parts;          /* (n_envs, n_parts) that add up to the reward */
    int32_t *effective_op;   /* (n_envs) what was done: `wait` where the operation could not be */
    uint8_t *accepted;       /* (n_envs) it was carried out, and not refused by a gate or a veto */
    uint8_t *rolled_back;    /* (n_envs) the governor went back, or stopped: the reward is the penalty, and no earlier
                              * reward of the episode, or since the last time, counts any more */
    uint8_t *terminated;     /* (n_envs) the episode is over, and another one has begun */
} esper_grow_env_arrays;

/* Begins episodes anew, the ones in which `which` ((n_envs), NULL: all) is not 0; rows of others are left as they are. seeds
 * ((n_envs)) are those of the episodes; NULL: the run's next ones, environment i playing the episodes i, i + n_envs, ... of the
 * run, whatever others do. E_STOPPED: esper_grow_env_stop was called. After a failure (of memory, or of data on the way), and
 * after E_STOPPED, all have to be reset before there is a step. */
ESPER_API esper_status esper_grow_env_reset(esper_grow_env *env, const uint8_t *which, const uint64_t *seeds,
                                            const esper_grow_env_arrays *shown);

/* Where the episodes of the run are counted from: environment i begins `number` + i of the run with that seed next. */
ESPER_API esper_status esper_grow_env_seek(esper_grow_env *env, uint64_t seed, uint64_t number);

/* Carries out the actions, (n_envs, n_heads). E_ARG: one of them is masked, or no action at all; the message names it, and no
 * environment has moved. Other failures as of reset. */
ESPER_API esper_status esper_grow_env_step(esper_grow_env *env, const int32_t *actions,
                                           const esper_grow_env_arrays *shown);

/* Ends the reset or step that is under way, soon and with E_STOPPED; when there is none, does nothing. Any thread, and signal
 * handlers. */
ESPER_API void esper_grow_env_stop(esper_grow_env *env);

/* The last episode of an environment that has ended. Set `size`. E_STATE: none has. */
typedef struct esper_grow_env_episode {
    size_t   size;
    uint64_t seed;
    double   total_reward;
    double   accuracy_final, accuracy_best; /* on validation, percent */
    int64_t  params;
    uint32_t n_decisions, n_germinated, n_kept, n_pruned, n_rollbacks;
    uint32_t stopped; /* 1: by the governor, before its last decision */
} esper_grow_env_episode;

ESPER_API esper_status esper_grow_env_episode_get(const esper_grow_env *env, uint32_t index,
                                                  esper_grow_env_episode *episode_out);

#ifdef __cplusplus
}
#endif

#endif
