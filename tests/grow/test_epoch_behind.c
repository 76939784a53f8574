/* ctest: timeout=120 cost=4 driver=only */
/* Epochs whose end is settled behind their validation, as those of environments are on a device: whatever is spoiled, and wherever, the
 * same is found, done and measured as where everybody waits for it. */
#include "grow/epoch.h"
#include "grow/growing.h"
#include "support/cuda_driver.h"

enum { STEPS = 3, EPOCHS = 3, BEFORE = -1 };

/* A value that is no number any more: of a family, after so many steps of an epoch, or before its first. */
typedef struct spoiling {
    uint32_t epoch;
    int      after;
    int      family;
} spoiling;

typedef struct bed {
    garden          g;
    esper_epoch_player player;
    const spoiling *what;
    bool            done;
} bed;

static void spoil(bed *self)
{
    const esper_slab *slab = &self->g.network->slab;
    const float nothing = NAN;

    self->done = true;
    check_good(esper_backend_copy_in(slab->backend, self->g.network->stream,
                                     slab->family[self->what->family] + slab->param_begin[0] + 3, &nothing,
                                     sizeof(nothing)));
}

static esper_status stepped(void *context)
{
    bed *self = context;
    const esper_cursor *at = &self->g.network->cursor;

    if (self->what != NULL && !self->done && at->epoch == self->what->epoch && (int)at->batch == self->what->after)
        spoil(self);
    return ESPER_OK;
}

static esper_status met(void *context, const esper_incident *incident)
{
    heed(&((bed *)context)->g, incident);
    return ESPER_OK;
}

static void play(bed *self)
{
    esper_network *network = self->g.network;
    esper_epoch_record record;
    esper_epoch_end end;

    while (network->cursor.epoch < EPOCHS) {
        if (self->what != NULL && !self->done && self->what->after == BEFORE &&
            network->cursor.epoch == self->what->epoch)
            spoil(self);
        check_good(esper_epoch_play(&self->player, &record, &end));
        if (end != ESPER_EPOCH_GOOD)
            continue;
        self->g.last = record;
        check_good(esper_growth_end_epoch(self->g.growth, &record));
        esper_network_next_epoch(network);
    }
}

static bed *played(const spoiling *what, bool behind)
{
    bed *self = calloc(1, sizeof(*self));

    assert_non_null(self);
    garden_open(
        &self->g,
        "backend = cuda\nmax_steps = 3\ntrain_limit = 40\nvalid_fraction = 0.3\nbatch = 4\nchannels = 2\nkernel = 1\n"
        "plant = r1c1:norm\n",
        NULL, NULL);
    assert_int_equal(self->g.network->engine->steps_per_epoch, STEPS);
    esper_guarded_let_behind(self->g.network, behind);
    self->what = what;
    self->player = (esper_epoch_player){
        .network = self->g.network, .growth = self->g.growth, .context = self, .stepped = stepped, .met = met};
    play(self);
    return self;
}

static void free_bed(bed *self)
{
    garden_close(&self->g);
    free(self);
}

static void check_same(const bed *a, const bed *b)
{
    assert_int_equal(a->g.n_incidents, b->g.n_incidents);
    for (int i = 0; i < a->g.n_incidents; i++) {
        const esper_incident *x = &a->g.incidents[i], *y = &b->g.incidents[i];

        assert_int_equal(x->action, y->action);
        assert_memory_equal(&x->at, &y->at, sizeof(x->at));
        assert_memory_equal(&x->to, &y->to, sizeof(x->to));
        assert_int_equal(x->restored, y->restored);
        assert_string_equal(x->role, y->role);
        assert_int_equal(x->n_elements, y->n_elements);
    }
    assert_memory_equal(&a->g.network->cursor, &b->g.network->cursor, sizeof(a->g.network->cursor));
    assert_true(a->g.last.loss_train == b->g.last.loss_train && a->g.last.loss_valid == b->g.last.loss_valid);
    assert_true(a->g.last.grad_norm == b->g.last.grad_norm);
    assert_int_equal(esper_network_hash(a->g.network), esper_network_hash(b->g.network));
}

static void check_spoiled(const spoiling *what, int n_incidents)
{
    bed *behind = played(what, true), *at_once = played(what, false);

    assert_int_equal(at_once->g.n_incidents, n_incidents);
    check_same(behind, at_once);
    free_bed(behind);
    free_bed(at_once);
}

static bed *played_with_waits(bool behind, int *n_waits_out)
{
    int before = cuda_driver_waits();
    bed *self = played(NULL, behind);

    *n_waits_out = cuda_driver_waits() - before;
    return self;
}

/* The epoch's last steps, the scan that settles and the validation: one wait of the host for the device, where it was three. */
static void an_epoch_is_waited_for_once(void **state)
{
    int n_behind, n_at_once;
    bed *behind = played_with_waits(true, &n_behind), *at_once = played_with_waits(false, &n_at_once);

    (void)state;
    assert_int_equal(at_once->g.n_incidents, 0);
    check_same(behind, at_once);
    if (!cuda_driver_is_real() && n_behind > n_at_once - 2 * EPOCHS)
        fail_msg("%d waits of the host where the end is settled behind, %d where it is not", n_behind, n_at_once);
    free_bed(behind);
    free_bed(at_once);
}

static void what_is_spoiled_is_found(void **state)
{
    static const spoiling list[] = {
        {1, STEPS, ESPER_FAMILY_PARAM},                                       /* found by the scan that settles */
        {1, STEPS, ESPER_FAMILY_MOMENT1}, {1, STEPS - 1, ESPER_FAMILY_PARAM}, /* by that before the last step */
        {1, 1, ESPER_FAMILY_PARAM},                                           /* in the midst */
        {2, BEFORE, ESPER_FAMILY_PARAM},                                      /* before the epoch's snapshot */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        check_spoiled(&list[i], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_epoch_is_waited_for_once),
                                       cmocka_unit_test(what_is_spoiled_is_found)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
