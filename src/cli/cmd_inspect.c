/* esper inspect: what is in a checkpoint, or in any safetensors file. */
#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/cli.h"
#include "run/checkpoint.h"
#include "run/run_dir.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum { LONGEST_NOTE = 100, NARROW = 17, WIDE = 40 }; /* the last two: columns for the keys of notes */

/* Text of a file that may come from anywhere, filled up to a width: nothing in it may command the terminal. */
static void print_text(FILE *out, const char *text, size_t n, int width)
{
    for (size_t i = 0; i < n; i++)
        fputc(iscntrl((unsigned char)text[i]) ? '?' : text[i], out);
    fprintf(out, "%*s", (int)n < width ? width - (int)n : 0, "");
}

/* A note on one line; a long or many-lined one is shown from its beginning, unless everything is wanted. */
static void print_note(FILE *out, const esper_safetensors_note *note, int width, bool all)
{
    const char *end = strchr(note->value, '\n');
    size_t line = end != NULL ? (size_t)(end - note->value) : strlen(note->value);

    if (all && end != NULL) {
        print_text(out, note->key, strlen(note->key), 0);
        fprintf(out, "\n");
        for (const char *at = note->value; *at != '\0'; at = *end != '\0' ? end + 1 : end) {
            end = strchr(at, '\n') != NULL ? strchr(at, '\n') : at + strlen(at);
            fprintf(out, "    ");
            print_text(out, at, (size_t)(end - at), 0);
            fprintf(out, "\n");
        }
        return;
    }
    print_text(out, note->key, strlen(note->key), width);
    fprintf(out, "%s", (int)strlen(note->key) < width ? "" : " ");
    print_text(out, note->value, all || line <= LONGEST_NOTE ? line : LONGEST_NOTE, 0);
    fprintf(out, "%s\n", !all && (end != NULL || line > LONGEST_NOTE) ? " ... (--all shows the rest)" : "");
}

/* Numbers that tell at a glance whether a tensor is sound. */
static void print_values(FILE *out, const esper_safetensors_tensor *tensor)
{
    uint64_t n = tensor->n_bytes / sizeof(float), n_bad = 0;
    double sum = 0.0, squares = 0.0, most = 0.0;

    if (tensor->dtype != ESPER_SAFETENSORS_F32 || n == 0)
        return;
    assert(tensor->data != NULL);
    for (uint64_t i = 0; i < n; i++) {
        float value;

        memcpy(&value, (const char *)tensor->data + i * sizeof(value), sizeof(value));
        if (!isfinite(value)) {
            n_bad++;
            continue;
        }
        sum += (double)value;
        squares += (double)value * (double)value;
        most = fmax(most, fabs((double)value));
    }
    if (n > n_bad)
        fprintf(out, "  mean %10.3g  norm %10.4g  largest %10.3g", sum / (double)(n - n_bad), sqrt(squares), most);
    else
        fprintf(out, "  mean %10s  norm %10s  largest %10s", "-", "-", "-");
    if (n_bad > 0)
        fprintf(out, "  %llu NOT FINITE", (unsigned long long)n_bad);
}

static void print_tensor(FILE *out, const esper_safetensors_tensor *tensor)
{
    char shape[128] = "";
    size_t used = 0;

    for (int i = 0; i < tensor->rank && used < sizeof(shape); i++)
        used += (size_t)snprintf(shape + used, sizeof(shape) - used, "%s%llu", i > 0 ? "x" : "",
                                 (unsigned long long)tensor->shape[i]);
    print_text(out, tensor->name, strlen(tensor->name), 44);
    fprintf(out, " %-4s %-16s", esper_safetensors_dtype_name(tensor->dtype), tensor->rank > 0 ? shape : "scalar");
    print_values(out, tensor);
    fprintf(out, "\n");
}

/* What is shown of a file. */
typedef struct content {
    const esper_safetensors *file;
    bool                     all;
} content;

static void print_file(FILE *out, const void *context)
{
    const content *shown = context;
    const esper_safetensors *file = shown->file;
    uint64_t bytes = 0;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];
    int width = NARROW;

    for (size_t i = 0; i < esper_safetensors_note_count(file); i++) {
        int chars = (int)strlen(esper_safetensors_note_at(file, i).key) + 1;

        width =
            chars > width && chars <= WIDE ? chars : width; /* room for every key, unless one is long beyond measure */
    }
    for (size_t i = 0; i < esper_safetensors_note_count(file); i++) {
        esper_safetensors_note note = esper_safetensors_note_at(file, i);

        print_note(out, &note, width, shown->all);
    }
    fprintf(out, "\n");
    for (size_t i = 0; i < esper_safetensors_count(file); i++) {
        print_tensor(out, esper_safetensors_at(file, i));
        bytes += esper_safetensors_at(file, i)->n_bytes;
    }
    fprintf(out, "\n%s tensors, %s\n", esper_text_count((int64_t)esper_safetensors_count(file), a),
            esper_text_bytes((double)bytes, b));
}

enum { ALL };

static const esper_command_option options[] = {[ALL] = {"all", false}, {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    char path[ESPER_PATH_CHARS];
    esper_safetensors *file;
    esper_status status;
    const char *format;

    ESPER_TRY(esper_run_checkpoint_find(call->words[0], path));
    ESPER_TRY(esper_safetensors_open(path, &file));
    esper_terminal_print(stdout, "%s\n\n", path);
    status = esper_cli_print(print_file, &(content){file, call->given[ALL] != NULL});
    format = esper_safetensors_note_find(file, "format");
    if (status == ESPER_OK && format != NULL && strcmp(format, ESPER_CHECKPOINT_FORMAT) == 0)
        status = esper_checkpoint_check(file, path);
    esper_safetensors_close(file);
    return status;
}

const esper_command esper_command_inspect = {
    .name = "inspect",
    .arguments = "RUN|FILE [flags]",
    .summary = "what is in a checkpoint",
    .help =
        "Shows the notes and tensors of a checkpoint (or of any safetensors file), with values that are not finite marked,\n"
        "and says so when a checkpoint is damaged or of another version.\n"
        "FILE is a file; RUN a directory, the beginning of its name below runs/, or 'last'.\n\n"
        "  --all           long notes, such as the configuration, in full",
    .keys = (const char *const[]){NULL},
    .options = options,
    .wants = "one run or file",
    .run = run,
};
