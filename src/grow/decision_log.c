/* The decision log: entries judged, written and synced one at a time. */
#include "grow/decision_log_fields.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/utf8.h"
#include "policy/view.h"

/* Room for any entry: every character of its texts escaped takes six. */
enum { LINE_BYTES = 6 * (ESPER_DECISION_TEXT_CHARS + ESPER_LOG_TENSOR_CHARS) + ESPER_LOG_MAX_SLOTS * 24 + 2048 };

/* Lines that wait for room on the disk. */
enum { WAITING_BYTES = 4 << 20 };

struct esper_decision_log {
    int            fd;
    bool           broken;    /* the end of the file is not known to be that of an entry */
    bool           no_room;   /* the last write failed for want of it, and left the file as it was */
    uint64_t       n_entries, n_bytes; /* entries that were appended; bytes of the file */
    char          *waiting;   /* (WAITING_BYTES), or NULL as long as none had to wait */
    size_t         waiting_bytes;
    uint64_t       n_waiting;
    esper_topology topology;
    char          *path;
    char           line[LINE_BYTES];
};

void esper_log_governor_init(esper_log_governor *governor)
{
    *governor = (esper_log_governor){
        .role = -1,
        .first_index = ESPER_GUARD_NONE,
        .to_step = ESPER_GUARD_NONE,
        .loss = (double)NAN,
        .lr_scale = 1.0,
    };
}

/* ------------------------------------------------------------------------------------------------ judging */

static bool is_utf8(const char *text)
{
    size_t n = strlen(text);

    for (size_t i = 0, length; i < n; i += length) {
        length = esper_utf8_length((const uint8_t *)text + i, n - i);
        if (length == 0)
            return false;
    }
    return true;
}

/* A terminated text that JSON can hold. */
static bool is_name(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL && is_utf8(text);
}

static bool is_slot(const char *text)
{
    return memchr(text, '\0', ESPER_SLOT_CHARS) != NULL && esper_slot_id_is_name(text);
}

static esper_status check_decision(const esper_log_entry *entry, esper_topology topology)
{
    esper_decision decision = entry->decision;

    if (entry->slot[0] != '\0' && !is_slot(entry->slot))
        return ESPER_FAIL(ESPER_E_ARG, "'%.*s' is no slot", ESPER_SLOT_CHARS, entry->slot);
    if (decision.slot >= ESPER_LOG_MAX_SLOTS || (decision.slot >= 0 && entry->slot[0] == '\0'))
        return ESPER_FAIL(ESPER_E_ARG, "the decision's slot %d has no name", (int)decision.slot);
    if (entry->slot[0] != '\0')
        decision.slot = 0; /* the name counts: who reads without a table of slots has no other */
    if (decision.blueprint != -1 && esper_policy_blueprint(topology, decision.blueprint) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "there is no blueprint %d", (int)decision.blueprint);
    return esper_decision_check(&decision, topology);
}

static esper_status check_governor(const esper_log_governor *governor)
{
    bool on_tensor = governor->role != -1;

    if (governor->action < ESPER_GOVERNOR_SKIP || governor->action > ESPER_GOVERNOR_STOP)
        return ESPER_FAIL(ESPER_E_ARG, "a governor has no action %d to log", (int)governor->action);
    if (governor->reason < 0 || governor->reason > ESPER_GOVERNOR_SCAN)
        return ESPER_FAIL(ESPER_E_ARG, "a governor has no reason %d", (int)governor->reason);
    if (!is_name(governor->tensor, sizeof(governor->tensor)) ||
        !is_name(governor->problem, sizeof(governor->problem)) || on_tensor != (governor->tensor[0] != '\0') ||
        (on_tensor && esper_log_role_name(governor->role) == NULL))
        return ESPER_FAIL(ESPER_E_ARG, "the governor's tensor, role (%d) and problem do not go together",
                          (int)governor->role);
    if (governor->n_pruned < 0 || governor->n_pruned > ESPER_LOG_MAX_SLOTS)
        return ESPER_FAIL(ESPER_E_ARG, "%d pruned slots, of %d at most", (int)governor->n_pruned, ESPER_LOG_MAX_SLOTS);
    for (int i = 0; i < governor->n_pruned; i++)
        if (!is_slot(governor->pruned[i]))
            return ESPER_FAIL(ESPER_E_ARG, "'%.*s' is no slot", ESPER_SLOT_CHARS, governor->pruned[i]);
    if (!(governor->lr_scale >= 0.0 && governor->lr_scale <= 1.0))
        return ESPER_FAIL(ESPER_E_ARG, "a learning rate scaled by %g", governor->lr_scale);
    return ESPER_OK;
}

static esper_status check_injection(const esper_log_injection *injection)
{
    if (!is_name(injection->tensor, sizeof(injection->tensor)) || injection->tensor[0] == '\0')
        return ESPER_FAIL(ESPER_E_ARG, "an injection without the name of a tensor");
    if (esper_log_role_name(injection->role) == NULL || esper_log_fault_name(injection->fault) == NULL ||
        esper_log_point_name(injection->point) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "an injection of role %d, fault %d, point %d", (int)injection->role,
                          (int)injection->fault, (int)injection->point);
    if (injection->bit > UINT32_MAX)
        return ESPER_FAIL(ESPER_E_ARG, "an injection into bit %llu", (unsigned long long)injection->bit);
    return ESPER_OK;
}

static esper_status check_trial(const esper_log_entry *entry, esper_topology topology)
{
    const esper_log_trial *trial = &entry->trial;
    bool has_seed = entry->slot[0] != '\0';

    if (has_seed && !is_slot(entry->slot))
        return ESPER_FAIL(ESPER_E_ARG, "'%.*s' is no slot", ESPER_SLOT_CHARS, entry->slot);
    if (has_seed != (trial->blueprint != -1) ||
        (has_seed && esper_policy_blueprint(topology, trial->blueprint) == NULL))
        return ESPER_FAIL(ESPER_E_ARG, "a fork's slot and blueprint (%d) do not go together", (int)trial->blueprint);
    if (trial->round < 0)
        return ESPER_FAIL(ESPER_E_ARG, "round %d: they count from 0", (int)trial->round);
    return ESPER_OK;
}

esper_status esper_log_entry_check(const esper_log_entry *entry, esper_topology topology)
{
    if (entry->epoch < 1)
        return ESPER_FAIL(ESPER_E_ARG, "epoch %d: they count from 1", (int)entry->epoch);
    if (!(entry->share >= 0.0 && entry->share <= 1.0))
        return ESPER_FAIL(ESPER_E_ARG, "a share of %g spent: it is 0 to 1", entry->share);
    switch (entry->source) {
    case ESPER_LOG_POLICY:
        return check_decision(entry, topology);
    case ESPER_LOG_GOVERNOR:
        return check_governor(&entry->governor);
    case ESPER_LOG_INJECTION:
        return check_injection(&entry->injection);
    case ESPER_LOG_TRIAL:
        return check_trial(entry, topology);
    default:
        return ESPER_FAIL(ESPER_E_ARG, "an entry of source %d", (int)entry->source);
    }
}

/* ------------------------------------------------------------------------------------------------ entries as JSON */

/* A text as it is read by people, and, where that is not all of it, its bytes. */
static void put_words(esper_json *json, const char *text)
{
    char bytes[2 * ESPER_DECISION_TEXT_CHARS + 1];
    size_t n = strlen(text);

    esper_json_text(json, text);
    if (is_utf8(text))
        return;
    for (size_t i = 0; i < n; i++)
        snprintf(bytes + 2 * i, 3, "%02x", (unsigned)(unsigned char)text[i]);
    esper_json_key(json, "text_bytes");
    esper_json_text(json, bytes);
}

/* base: an esper_log_entry, or the head. */
static void put_fields(esper_json *json, const log_field *field, const void *base, esper_topology topology)
{
    for (; field->name != NULL; field++) {
        const void *value = (const char *)base + field->offset;
        const esper_blueprint *blueprint;

        if (field->kind == LOG_MAYBE_HASH && *(const uint64_t *)value == 0)
            continue;
        esper_json_key(json, field->name);
        switch (field->kind) {
        case LOG_INT:
            esper_json_int(json, *(const int32_t *)value);
            break;
        case LOG_COUNT:
            if (*(const uint64_t *)value == ESPER_GUARD_NONE)
                esper_json_null(json);
            else if (*(const uint64_t *)value <= (uint64_t)1 << 53) /* as far as every reader keeps it whole */
                esper_json_int(json, *(const int64_t *)value);
            else
                esper_json_u64(json, *(const uint64_t *)value);
            break;
        case LOG_U64:
            esper_json_u64(json, *(const uint64_t *)value);
            break;
        case LOG_HASH:
        case LOG_MAYBE_HASH:
            esper_json_hash(json, *(const uint64_t *)value);
            break;
        case LOG_REAL:
            if (*(const double *)value == 0.0 && signbit(*(const double *)value))
                esper_json_text(json, "-0"); /* readers take -0 for a whole number, which has no sign */
            else
                esper_json_real(json, *(const double *)value);
            break;
        case LOG_CODE:
        case LOG_MAYBE_CODE:
            esper_json_text(json, field->name_of(*(const int32_t *)value));
            break;
        case LOG_TEXT:
            esper_json_text(json, value);
            break;
        case LOG_MAYBE_TEXT:
            esper_json_text(json, *(const char *)value != '\0' ? value : NULL);
            break;
        case LOG_WORDS:
            put_words(json, value);
            break;
        case LOG_BLUEPRINT:
            blueprint = esper_policy_blueprint(topology, *(const int32_t *)value);
            esper_json_text(json, blueprint != NULL ? blueprint->name : NULL);
            break;
        case LOG_SLOTS:
            esper_json_array_begin(json);
            for (int i = 0; i < ((const esper_log_entry *)base)->governor.n_pruned; i++)
                esper_json_text(json, ((const esper_log_entry *)base)->governor.pruned[i]);
            esper_json_array_end(json);
            break;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ the file */

static esper_status fail_errno(const esper_decision_log *log, const char *what)
{
    int code = errno;

    return ESPER_FAIL(code == ENOENT ? ESPER_E_NOTFOUND : ESPER_E_IO, "%s: %s: %s", log->path, what, strerror(code));
}

/* What is written belongs to the file that people will read: one that was moved away, removed or changed by somebody else while the
 * run goes on would take entries that nobody finds. */
static bool is_in_place(const esper_decision_log *log)
{
    struct stat ours, there;

    return fstat(log->fd, &ours) == 0 && lstat(log->path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino && (uint64_t)ours.st_size == log->n_bytes;
}

static bool means_no_room(int code)
{
    return code == ENOSPC || code == EDQUOT || code == EFBIG; /* disk, share of it, or size of a file */
}

/* Whole or with the part that was taken cut off again. After a sync that failed nobody can say what is on disk, so the log is then broken
 * even when it could be cut; but where room was missing: nothing is believed of what was cut off, all of it is written anew. */
static esper_status write_lines(esper_decision_log *log, const char *lines, size_t bytes)
{
    size_t done = 0;
    ssize_t n = 0;
    esper_status status;
    int code;

    assert(log->fd >= 0 && !log->broken);
    log->no_room = false;
    while (done < bytes && (n >= 0 || errno == EINTR)) {
        n = write(log->fd, lines + done, bytes - done);
        done += n > 0 ? (size_t)n : 0;
    }
    if (done == bytes && fdatasync(log->fd) == 0) {
        log->n_bytes += bytes;
        log->broken = !is_in_place(log);
        return !log->broken ? ESPER_OK
                            : ESPER_FAIL(ESPER_E_IO,
                                         "%s: was removed, replaced or changed by somebody else while the run wrote to "
                                         "it: put it back as it was",
                                         log->path);
    }
    code = errno;
    status = fail_errno(log, done < bytes ? "cannot be written" : "cannot be synced");
    log->broken = ftruncate(log->fd, (off_t)log->n_bytes) != 0 || (done == bytes && !means_no_room(code));
    log->no_room = !log->broken && means_no_room(code);
    return status;
}

/* Keeps the line that was composed until there is room. */
static esper_status keep_waiting(esper_decision_log *log, size_t bytes)
{
    if (log->waiting == NULL)
        log->waiting = esper_mem_alloc(WAITING_BYTES);
    if (log->waiting == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: entries that wait for room on the disk", log->path);
    if (log->waiting_bytes + bytes > WAITING_BYTES)
        return ESPER_FAIL(ESPER_E_IO,
                          "%s: there is no room on the disk, and %llu entries wait for it: no more are kept", log->path,
                          (unsigned long long)log->n_waiting);
    memcpy(log->waiting + log->waiting_bytes, log->line, bytes);
    log->waiting_bytes += bytes;
    log->n_waiting++;
    return ESPER_OK;
}

esper_status esper_decision_log_catch_up(esper_decision_log *log)
{
    if (log->n_waiting == 0)
        return ESPER_OK;
    if (log->broken)
        return ESPER_FAIL(ESPER_E_IO, "%s: takes no more entries since one could not be written", log->path);
    ESPER_TRY(write_lines(log, log->waiting, log->waiting_bytes));
    log->waiting_bytes = 0;
    log->n_waiting = 0;
    return ESPER_OK;
}

uint64_t esper_decision_log_n_waiting(const esper_decision_log *log)
{
    return log->n_waiting;
}

/* Behind those that wait. */
static esper_status write_entry(esper_decision_log *log, size_t bytes)
{
    esper_status status = esper_decision_log_catch_up(log);

    if (status == ESPER_OK)
        status = write_lines(log, log->line, bytes);
    return status != ESPER_OK && log->no_room ? keep_waiting(log, bytes) : status;
}

/* A line of members: the log's version or not, then one table or two. */
static esper_status put_line(esper_decision_log *log, bool is_head, const log_field *first, const log_field *second,
                             const void *base)
{
    esper_json json;

    esper_json_init(&json, log->line, LINE_BYTES - 1);
    esper_json_object_begin(&json);
    if (is_head) {
        esper_json_key(&json, "esper_decisions");
        esper_json_int(&json, ESPER_LOG_VERSION);
    }
    put_fields(&json, first, base, log->topology);
    if (second != NULL)
        put_fields(&json, second, base, log->topology);
    esper_json_object_end(&json);
    if (json.overflow)
        return ESPER_FAIL(ESPER_E_ARG, "%s: a line of more than %d bytes", log->path, LINE_BYTES);
    log->line[json.used] = '\n';
    ESPER_TRY(is_head ? write_lines(log, log->line, json.used + 1) : write_entry(log, json.used + 1));
    log->line[json.used] = '\0'; /* in place of its end: for those who want a copy */
    return ESPER_OK;
}

static esper_status begin_file(esper_decision_log *log, const esper_log_head *head)
{
    const char *slash = strrchr(log->path, '/');
    char dir[4096];
    int fd;

    log->fd = open(log->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (log->fd < 0)
        return fail_errno(log, "cannot be made");
    ESPER_TRY(put_line(log, true, log_head, NULL, head));
    /* Its name is to last, too. A directory that cannot be opened or synced is as durable as it gets. */
    snprintf(dir, sizeof(dir), "%.*s", slash != NULL ? (int)(slash - log->path) + 1 : 1,
             slash != NULL ? log->path : ".");
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    return ESPER_OK;
}

static esper_status check_head(const esper_decision_log *log, const esper_log_head *found, const esper_log_head *wanted)
{
    if (strcmp(found->task, wanted->task) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s:1: decisions of task %s, not %s", log->path, found->task, wanted->task);
    if (found->topology != wanted->topology)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s:1: decisions for a %s, not a %s", log->path,
                          esper_topology_name((esper_topology)found->topology),
                          esper_topology_name((esper_topology)wanted->topology));
    if (found->seed != wanted->seed)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s:1: decisions of seed %llu, not %llu", log->path,
                          (unsigned long long)found->seed, (unsigned long long)wanted->seed);
    return ESPER_OK;
}

/* Opens for writing only what was read and found good. */
static esper_status resume_file(esper_decision_log *log, const esper_log_head *head, uint64_t n_keep)
{
    esper_decision_history history;
    esper_status status;

    ESPER_TRY(esper_decision_history_read(log->path, n_keep, &history));
    status = check_head(log, &history.head, head);
    if (status == ESPER_OK && history.n < n_keep)
        status = ESPER_FAIL(ESPER_E_FORMAT,
                            "%s:%llu: %llu whole entries, but the checkpoint was saved after %llu: the log was cut or "
                            "belongs to another checkpoint",
                            log->path, (unsigned long long)history.n + 2, (unsigned long long)history.n,
                            (unsigned long long)n_keep);
    log->n_entries = history.n;
    log->n_bytes = history.bytes;
    esper_decision_history_free(&history);
    if (status != ESPER_OK)
        return status;
    log->fd = open(log->path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    if (log->fd < 0)
        return fail_errno(log, "cannot be opened");
    if (ftruncate(log->fd, (off_t)log->n_bytes) != 0 || fdatasync(log->fd) != 0)
        return fail_errno(log, "cannot be cut back");
    return ESPER_OK;
}

esper_status esper_decision_log_open(const char *path, const esper_log_head *head, bool resume, uint64_t n_keep,
                                     esper_decision_log **log_out)
{
    esper_decision_log *log;
    esper_status status;

    if (!is_name(head->task, sizeof(head->task)) || !is_name(head->kernels, sizeof(head->kernels)))
        return ESPER_FAIL(ESPER_E_ARG, "%s: the name of its task or kernels is no text", path);
    log = esper_mem_alloc(sizeof(*log));
    if (log == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "decisions to %s", path);
    log->fd = -1;
    log->topology = (esper_topology)head->topology;
    log->path = esper_mem_strdup(path);
    if (log->path == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "decisions to %s", path);
    else
        status = resume ? resume_file(log, head, n_keep) : begin_file(log, head);
    if (status != ESPER_OK) {
        esper_decision_log_close(log);
        return status;
    }
    *log_out = log;
    return ESPER_OK;
}

void esper_decision_log_close(esper_decision_log *log)
{
    if (log == NULL)
        return;
    if (log->fd >= 0)
        close(log->fd);
    esper_mem_free(log->waiting);
    esper_mem_free(log->path);
    esper_mem_free(log);
}

esper_status esper_decision_log_append(esper_decision_log *log, const esper_log_entry *entry)
{
    esper_log_entry numbered = *entry;
    esper_status status;

    if (log->broken)
        return ESPER_FAIL(ESPER_E_IO, "%s: takes no more entries since one could not be written", log->path);
    status = esper_log_entry_check(entry, log->topology);
    if (status != ESPER_OK)
        return esper_fail_within(status, "%s: entry %llu: ", log->path, (unsigned long long)log->n_entries);
    assert(log->fd >= 0 && log->n_bytes > 0); /* it has its head */
    numbered.number = log->n_entries;
    ESPER_TRY(put_line(log, false, log_entry, log_part_of(entry->source), &numbered));
    log->n_entries++;
    return ESPER_OK;
}

const char *esper_decision_log_line(const esper_decision_log *log)
{
    return log->n_entries > 0 ? log->line : "";
}
