/* esper bench tickets: the list, the figures recorded elsewhere, and the table. docs/tickets.md tells the rest. */
#include "bench/tickets.h"

#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/json_write.h"
#include "base/status.h"
#include "dist/launch.h"
#include "ui/terminal.h"

enum { TICKET_CHARS = 9 };

/* Measured with this program on another machine; docs/tickets.md has the same figures. */
typedef struct recorded {
    double      before, after, ratio;
    const char *machine;
} recorded;

typedef struct ticket {
    const char *name;      /* "tickets." and the ticket's own */
    const char *finding;
    const char *before_is, *after_is; /* what the two sides are */
    const char *unit;
    const char *needs;     /* NULL: nothing but a processor */
    const char *see;       /* a command that measures it or more of it */
    esper_status (*measure)(const esper_bench_request *request, esper_ticket_result *result);
    recorded    elsewhere; /* shown where what it needs is not here; of the two that need nothing, all 0 */
} ticket;

static const ticket tickets[] = {
    {
        .name = "tickets.B1-PT-02",
        .finding = "a rollback waits for the whole device",
        .before_is =
            "GPT-2's weights from pinned memory, all streams waited for, one of them a stranger's with 50 ms to do",
        .after_is = "the same by the ring, which waits for the streams that write the weights",
        .unit = "ms",
        .needs = "a CUDA device",
        .see = "esper bench guard.rollback; beside PyTorch: bench/vs_torch guard.rollback.gpt2",
        .measure = esper_ticket_rollback,
        .elsewhere = {50.9, 9.23, 5.5, "NVIDIA H200, driver 580.159"},
    },
    {
        .name = "tickets.B3-CR-05",
        .finding = "norms are moved between devices one by one",
        .before_is = "100 gradients on two devices, the host one of them: moving the norms, without computing them",
        .after_is = "reading all gradients, one transfer from each device, every statistic",
        .unit = "ms",
        .needs = "a CUDA device",
        .see = "esper bench guard.scan.small100_grads",
        .measure = esper_ticket_norms,
        .elsewhere = {0.478, 0.0686, 6.9, "NVIDIA H200 and host, 16 threads"},
    },
    {
        .name = "tickets.B3-DRL-18",
        .finding = "ranks agree by sending objects",
        .before_is = "one gate's result written as JSON, its length and its bytes sent from rank 0, read by the others",
        .after_is = "a table of ten slots hashed, one OR of 64 bytes, the answer checked",
        .unit = "us",
        .needs = "two ranks: mpirun -n 2 esper bench tickets.B3-DRL-18",
        .see = "mpirun -n 2 esper bench gate; beside PyTorch: bench/vs_torch gate",
        .measure = esper_ticket_gate,
        .elsewhere = {5.08, 0.700, 7.3, "2 ranks on 2 cores of an AMD EPYC"},
    },
    {
        .name = "tickets.B7-PT-02",
        .finding = "the NaN check asks each parameter four times",
        .before_is = "GPT-2's weights and gradients: NaN? Inf? of each, by a mask, one answer after the other",
        .after_is = "one scan: counts, first bad index, norm and extremes of every tensor",
        .unit = "ms",
        .see = "esper bench guard.scan; beside PyTorch: bench/vs_torch guard.scan.gpt2 --form before",
        .measure = esper_ticket_checks,
    },
    {
        .name = "tickets.B7-PT-03",
        .finding = "statistics copy all gradients",
        .before_is = "memory: GPT-2's gradients in a flat copy, and a mask of it to count NaN, Inf and 0",
        .after_is = "memory: one scan, which keeps a record for each tensor",
        .unit = "MB",
        .see = "esper bench guard.scan.gpt2_grads; beside PyTorch: bench/vs_torch guard.scan.gpt2 --form grads_cat",
        .measure = esper_ticket_statistics,
    },
};

enum { N_TICKETS = sizeof(tickets) / sizeof(tickets[0]) };

/* ---- measuring */

static esper_status measure(const ticket *of, const esper_bench_request *request, esper_ticket_result *result_out)
{
    esper_ticket_result result = {0};

    ESPER_TRY(of->measure(request, &result));
    if (!result.measured) {
        result.before = of->elsewhere.before;
        result.after = of->elsewhere.after;
        result.ratio = of->elsewhere.ratio;
        snprintf(result.machine, sizeof(result.machine), "%s", of->elsewhere.machine);
    }
    *result_out = result;
    return ESPER_OK;
}

/* ---- printing */

static const char *title_of(const ticket *of)
{
    return of->name + strlen("tickets.");
}

static void print_json(const ticket *of, const esper_ticket_result *result, bool quick)
{
    char text[2048];
    esper_json out;

    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, of->name);
    esper_json_key(&out, "ticket"), esper_json_text(&out, title_of(of));
    esper_json_key(&out, "finding"), esper_json_text(&out, of->finding);
    esper_json_key(&out, "before"), esper_json_real(&out, result->before);
    esper_json_key(&out, "after"), esper_json_real(&out, result->after);
    esper_json_key(&out, "unit"), esper_json_text(&out, of->unit);
    esper_json_key(&out, "ratio"), esper_json_real(&out, result->ratio);
    esper_json_key(&out, "measured"), esper_json_text(&out, result->measured ? "here" : "recorded");
    esper_json_key(&out, "machine"), esper_json_text(&out, result->machine);
    if (!result->measured)
        esper_json_key(&out, "needs"), esper_json_text(&out, of->needs);
    if (result->before_ms > 0.0) {
        esper_json_key(&out, "before_ms"), esper_json_real(&out, result->before_ms);
        esper_json_key(&out, "after_ms"), esper_json_real(&out, result->after_ms);
    }
    if (result->measured)
        esper_json_key(&out, "rounds"), esper_json_int(&out, result->n_rounds);
    esper_json_key(&out, "before_is"), esper_json_text(&out, of->before_is);
    esper_json_key(&out, "after_is"), esper_json_text(&out, of->after_is);
    if (result->measured && quick)
        esper_json_key(&out, "quick"), esper_json_bool(&out, true);
    esper_json_key(&out, "commit"), esper_json_text(&out, esper_build_commit());
    esper_json_object_end(&out);
    printf("%s\n", text);
}

/* About three digits. */
static const char *figure(double value, const char *unit, char text[32])
{
    int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : value >= 0.09995 ? 3 : 4;

    snprintf(text, 32, "%.*f %s", decimals, value, unit);
    return text;
}

static void print_head(void)
{
    esper_terminal_print(stdout, "%-*s  %-44s  %10s  %10s  %9s  %s\n", TICKET_CHARS, "ticket", "finding", "before",
                         "after", "ratio", "measured");
}

static void print_row(const ticket *of, const esper_ticket_result *result, bool quick)
{
    char before[32], after[32], ratio[32];

    esper_terminal_print(stdout, "%-*s  %-44s  %10s  %10s  %9s  %s%s%s\n", TICKET_CHARS, title_of(of), of->finding,
                         figure(result->before, of->unit, before), figure(result->after, of->unit, after),
                         figure(result->ratio, "x", ratio), result->measured ? "here: " : "recorded: ", result->machine,
                         result->measured && quick ? " (quick: small shapes, no figure to keep)" : "");
}

static void print_note(const ticket *of, const esper_ticket_result *result)
{
    esper_terminal_print(stdout, "\n%-*s  before: %s\n", TICKET_CHARS, title_of(of), of->before_is);
    esper_terminal_print(stdout, "%*s  after:  %s\n", TICKET_CHARS, "", of->after_is);
    if (result->before_ms > 0.0)
        esper_terminal_print(stdout, "%*s  time:   %.1f ms before, %.1f ms after\n", TICKET_CHARS, "",
                             result->before_ms, result->after_ms);
    if (!result->measured)
        esper_terminal_print(stdout, "%*s  needs:  %s\n", TICKET_CHARS, "", of->needs);
    esper_terminal_print(stdout, "%*s  see:    %s\n", TICKET_CHARS, "", of->see);
}

/* ---- the subject */

static esper_status check_request(const esper_bench_request *request)
{
    esper_launcher launch = esper_launcher_look();

    if (esper_config_place_of(request->config, esper_config_find("backend")) == ESPER_CONFIG_FLAG || request->paced)
        return ESPER_FAIL(ESPER_E_CONFIG, "tickets takes neither --backend nor --paced");
    if (request->n_run > 1 && launch.launched && launch.size != 1)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "of the tickets, ranks measure tickets.B3-DRL-18 alone; the others are for one "
                          "process, without a launcher");
    return ESPER_OK;
}

static void print(const ticket *of, const esper_ticket_result *result, const esper_bench_request *request, bool first)
{
    if (result->silent)
        return;
    if (request->json) {
        print_json(of, result, request->quick);
    } else {
        if (first)
            print_head();
        print_row(of, result, request->quick);
    }
    fflush(stdout);
}

static esper_status run_tickets(const esper_bench_request *request, esper_ticket_result results[N_TICKETS])
{
    bool first = true;

    for (int i = 0; i < N_TICKETS; i++) {
        if (!esper_bench_is_wanted(request, tickets[i].name))
            continue;
        ESPER_TRY(measure(&tickets[i], request, &results[i]));
        print(&tickets[i], &results[i], request, first);
        first = false;
    }
    for (int i = 0; i < N_TICKETS && !request->json; i++)
        if (esper_bench_is_wanted(request, tickets[i].name) && !results[i].silent)
            print_note(&tickets[i], &results[i]);
    return ESPER_OK;
}

static esper_status run(esper_bench_request *request)
{
    esper_ticket_result results[N_TICKETS];
    int n_wanted = 0;

    for (int i = 0; i < N_TICKETS; i++)
        n_wanted += esper_bench_is_wanted(request, tickets[i].name);
    if (n_wanted == 0)
        return ESPER_OK;
    request->n_run += n_wanted;
    ESPER_TRY(check_request(request));
    return run_tickets(request, results);
}

const esper_bench_subject esper_bench_tickets = {.name = "tickets", .run = run};
