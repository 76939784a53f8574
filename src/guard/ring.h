/* Internal. The ring's structs, shared by its files:
 *
 *   ring.c          entries: which gives way, which counts, which is put back
 *   ring_side.c     one device's share: its tensors, arenas and streams
 *   ring_streams.c  the order between copies and the streams on which others write
 *   ring_memory.c   arenas: from the caller's allocator or our own, within the limit
 *   ring_host.c     the copies of tensors in host memory
 *   ring_device.c   the copies of tensors on a CUDA device
 *   ring_disk.c     the copy on disk: the background writer;  ring_file.c its file
 *
 *             side 0 (cuda 0)       side 1 (host)
 *   entry 0   arena [+ mirror]      arena           step, state, blob
 *   entry 1   arena [+ mirror]      arena           step, state, blob
 *
 * An arena holds the side's tensors at offsets that are fixed when the ring is opened. */
#ifndef ESPER_GUARD_RING_H
#define ESPER_GUARD_RING_H

#include <stdbool.h>

#include "base/pool.h"
#include "guard/engine.h"
#include "guard/scan_kernels.h"

typedef struct ring_side ring_side;
typedef struct ring_disk ring_disk;

/* One allocation. Zeroed; `at` is a multiple of 256. */
typedef struct ring_memory {
    void    *raw; /* as the allocator gave it */
    void    *at;
    uint64_t bytes;
    bool     on_host;
    bool     pinned; /* by us, after the caller's allocator gave it */
} ring_memory;

/* One entry's share on one side. */
typedef struct ring_copy {
    ring_memory         arena;
    ring_memory         mirror;      /* in pinned host memory; no bytes: there is none */
    esper_device_event *mirror_done; /* on the side's background stream; NULL without a mirror */
    bool                mirrored;    /* the mirror holds this entry, or will when mirror_done is reached */
    uint64_t            sum;         /* of the arena, sealed when the entry was found good */
} ring_copy;

enum { RING_GATHERED, RING_SCATTERED, RING_N_SUMS };

/* How a kind of device copies. Work is queued on side->stream; the sum of the bytes that passed is in side->sums
 * when what `fetch_sum` queued is done. A member that may be NULL has nothing to do then. */
typedef struct ring_side_ops {
    const char *kind; /* of device/ */
    esper_status (*open)(ring_side *side);
    void         (*close)(ring_side *side);
    esper_status (*rebind)(ring_side *side); /* or NULL: parts have new addresses */
    esper_status (*gather)(ring_side *side, ring_copy *copy);        /* tensors to arena */
    esper_status (*scatter)(ring_side *side, const ring_copy *copy); /* arena to tensors */
    esper_status (*load)(ring_side *side, ring_copy *copy, const void *host_arena); /* arena from one in host memory */
    esper_status (*fetch_sum)(ring_side *side, int which); /* or NULL */
    esper_status (*check_writers)(ring_side *side); /* or NULL; E_STATE while a stream of the caller's is captured */
} ring_side_ops;

extern const ring_side_ops esper_ring_side_host;
extern const ring_side_ops esper_ring_side_cuda;

/* One device's share of the ring. */
struct ring_side {
    const ring_side_ops *ops;
    esper_ring          *ring;
    int32_t              number; /* ESPER_GUARD_HOST or that of a CUDA device */
    esper_device        *device;
    esper_stream        *stream;     /* copies between tensors and arenas, and the scan */
    esper_stream        *background; /* mirrors and the disk's stage, which must not delay a rollback */
    esper_stream       **writers;    /* (n_writers) the caller's streams */
    size_t               n_writers;
    bool                 writers_named;  /* false: writers is the default stream alone */
    esper_device_event  *writers_reached, *copied, *settled, *staged;
    esper_copy_part     *parts;   /* (n_parts) */
    size_t              *tensors; /* (n_parts) the guard's index of each */
    size_t               n_parts;
    bool                 moved; /* parts have addresses that `rebind` has not been told yet */
    uint64_t             arena_bytes;
    bool                 resident;  /* arenas lie in the device's own memory */
    bool                 scan_live; /* arenas are out of its reach: the tensors are scanned, before writers go on */
    ring_copy           *copies;    /* (n_entries) */
    uint64_t            *sums;      /* (RING_N_SUMS) that the host can read */
    void                *private_data;
};

typedef struct ring_entry {
    esper_ring_state state; /* a damaged entry is EMPTY */
    bool             doubted; /* good, but its arena was found damaged: its mirror is to mend it */
    uint64_t         sequence, step;
    uint64_t         refused_tensor; /* the guard's index */
    void            *blob;
    size_t           blob_bytes, blob_room;
    uint64_t         blob_sum;
} ring_entry;

struct esper_ring {
    esper_guard       *guard;
    esper_ring_options options;       /* `directory` is not kept */
    esper_guard_options memory_options; /* the guard's: threads and allocator */
    size_t             n_guard_tensors; /* that the guard had; another number later is a mistake */
    uint64_t           layout;        /* a hash of names, roles, types and counts */
    const esper_scan_kernels *kernels; /* for sums of blobs and files */
    esper_device      *host;
    esper_pool        *pool;          /* the scanner's; NULL without tensors in host memory */
    ring_side         *sides;         /* (n_sides) CUDA devices by number, then the host */
    size_t             n_sides;
    ring_entry        *entries;       /* (options.n_entries) */
    uint64_t           sequence;      /* of the last take */
    esper_guard       *scanner;       /* scans what was copied */
    size_t            *scan_tensors;  /* (n_scan) the guard's index of each of the scanner's tensors */
    void             **scan_data;     /* (n_scan) */
    size_t             n_scan;
    void             **scan_streams;  /* (n_scan_streams) by number of the CUDA device */
    size_t             n_scan_streams;
    ring_entry        *pending;       /* its scan has not been read */
    ring_entry        *unverified;    /* was put back without waiting: its sum has not been compared */
    bool               held;
    bool               spoiled; /* the live tensors hold what a damaged entry left there */
    uint64_t           device_bytes, host_bytes;
    ring_disk         *disk; /* NULL: not wanted */
};

/* ring_memory.c. side: whose device reaches it. */
esper_status esper_ring_memory_init(ring_side *side, bool on_host, uint64_t bytes, ring_memory *memory_out);
void         esper_ring_memory_fini(ring_side *side, ring_memory *memory);
/* "1,234.5 MB" */
const char *esper_ring_bytes_text(uint64_t bytes, char text[32]);

/* ring_streams.c */
/* Lets what is queued next on side->stream begin behind all that the caller queued so far ... */
esper_status esper_ring_side_after_writers(ring_side *side);
/* ... and what the caller queues next behind all that is queued on side->stream so far. */
esper_status esper_ring_side_before_writers(ring_side *side);

/* ring_side.c */
/* NULL: the ring has no tensors there. */
ring_side   *esper_ring_find_side(esper_ring *ring, int32_t number);
esper_status esper_ring_sides_open(esper_ring *ring);
void         esper_ring_sides_close(esper_ring *ring);
/* The tensors' addresses as the guard has them now; E_STATE when they are other tensors than those of the ring. */
esper_status esper_ring_sides_follow(esper_ring *ring);
/* E_STATE while one of the caller's streams is under capture: what was queued there would be part of a graph. */
esper_status esper_ring_sides_check(esper_ring *ring);
/* Memory of the size of an arena for each; all or none. E_NOMEM says what was wanted and what there is. */
esper_status esper_ring_side_reserve(ring_side *side, bool on_host, ring_memory *const *memories, size_t n_memories);
/* Queues the sum of the bytes that were gathered or scattered on its way to side->sums. */
esper_status esper_ring_side_fetch_sum(ring_side *side, int which);
/* Queues a good entry's mirror. */
esper_status esper_ring_side_mirror(ring_side *side, uint32_t entry);

/* ring_disk.c. The newest good entry is offered; the writer takes it when it is free. */
esper_status esper_ring_disk_open(esper_ring *ring, const char *directory);
void         esper_ring_disk_close(esper_ring *ring);
void         esper_ring_disk_offer(esper_ring *ring, const ring_entry *entry);
/* Returns when the writer does not read this entry's memory any more. */
void         esper_ring_disk_leave(esper_ring *ring, const ring_entry *entry);
/* Reads the file into the entry, which is then good. E_NOTFOUND: there is none, or an earlier ring left it and nobody asked
 * to resume. */
esper_status esper_ring_disk_load(esper_ring *ring, ring_entry *entry);
/* Returns when what was offered is written or has failed. */
void         esper_ring_disk_wait(esper_ring *ring);
/* Words on what an earlier ring left here and this one does not use, since nobody asked it to; "" when there is none. */
enum { RING_TEXT_CHARS = 512 };
void         esper_ring_disk_left_over(esper_ring *ring, char text[RING_TEXT_CHARS]);
/* Fills disk_step, disk_left_over and disk_error. */
void         esper_ring_disk_status(esper_ring *ring, esper_ring_status *status);

/* ring_file.c: a snapshot in a file,
 *
 *     | head | one record for each side | blob | side 0's arena | side 1's arena | ...
 *
 * all in the order of bytes of the machine, which the head tells. */
typedef struct ring_file_side {
    int32_t  number;
    uint32_t zero;
    uint64_t bytes, sum;
} ring_file_side;

typedef struct ring_file_image {
    uint64_t              step, layout;
    const ring_file_side *sides; /* (n_sides) */
    size_t                n_sides;
    void                **arenas; /* (n_sides) */
    void                 *blob;
    uint64_t              blob_bytes, blob_sum;
} ring_file_image;

esper_status esper_ring_file_write(const char *path, const ring_file_image *image);
/* The step of a file that would fit, from its head alone; `sides` are overwritten. E_NOTFOUND: there is none. */
esper_status esper_ring_file_look(const char *path, const ring_file_image *image, ring_file_side *sides,
                                  uint64_t *step_out);
/* Fills the arenas of `image`, whose layout, n_sides and sides' bytes say what is expected, and its step, sums and
 * blob (to be freed with esper_mem_free). `sides` are written. All sums are compared. */
esper_status esper_ring_file_read(const char *path, ring_file_image *image, ring_file_side *sides);

#endif
