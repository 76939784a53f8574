/* Internal. Where ours differs on purpose from what was recorded, case by case: the one list, which docs/parity.md shows
 * (parity/fixtures checks that).
 *
 * A test compares every case of every file. Where one shows a difference of the list, the test checks that ours is what the
 * list says, and calls difference_met. How many there are is the recording's business: it is printed, not expected. */
#ifndef ESPER_TESTS_DIFFERENCE_H
#define ESPER_TESTS_DIFFERENCE_H

#include <jansson.h>
#include <stdbool.h>

/* name, file, mark of the recorded cases ("-": they carry none), recorded, ours */
#define DIFFERENCE_LIST(X)                                                                                             \
    X(RAMP_NOT_FINITE, "alpha_ramp", "lifecycle D3", "a target that is not finite is clamped to 0 or 1",               \
      "refused, nothing changes")                                                                                      \
    X(RAMP_PHANTOM, "alpha_ramp", "lifecycle D12", "a target equal to alpha leaves 0 of N steps", "no steps are left") \
    X(GATE_NOT_FINITE, "gates", "lifecycle D3", "a contribution of NaN is available, and insufficient",                \
      "it is not finite: one check fails")                                                                             \
    X(BLEND_TRAINING, "blend", "lifecycle D1", "a seed in TRAINING that is not isolated adds to the host's gradient",  \
      "the host's gradient is its own, whatever the setting; the seed's is compared with STRAIGHT")                    \
    X(BLEND_NOT_FINITE, "blend", "lifecycle D14", "a seed that is not finite spoils y at weight 0", "y is h there")    \
    X(BLEND_ALPHA, "blend", "-", "TRAINING, HOLDING and FOSSILIZED with any alpha, or one given for each sample",      \
      "a stage has its alpha: compared as BLENDING, which is the same operator")                                       \
    X(SLOTTED_GATE, "nets/slotted_*", "lifecycle D4", "a gate network is made when blending begins",                   \
      "it is there from germination")                                                                                  \
    X(SLOTTED_SCALE, "nets/slotted_*", "-", "conv_light and depthwise end in no scale", "in one, held at 1")           \
    X(SLOTTED_NORM, "nets/slotted_*", "-", "conv_light and depthwise have group norms",                                \
      "batch norms: compared with group norms in their places")                                                        \
    X(COOLING, "lifecycle", "lifecycle D5", "an accuracy makes a slot that cools down count on", "ignored there")      \
    X(GERMINATION, "lifecycle", "lifecycle D8", "a refused germination changes ramp, tempo and target",                \
      "nothing changes")                                                                                               \
    X(PRUNE, "lifecycle", "lifecycle D9", "a refused prune raises or lowers the auto-prune flag", "the flag stays")    \
    X(PRUNE_OTHER, "lifecycle", "-", "so does one of another reason, or scheduled", "the flag stays")                  \
    X(INSTANT, "lifecycle", "lifecycle D12", "an instant target acts at the next tick", "at once")                     \
    X(PHANTOM, "lifecycle", "lifecycle D12", "a target equal to alpha leaves 0 of N steps", "no steps are left")       \
    X(THAW, "lifecycle", "lifecycle D12",                                                                              \
      "weights stay frozen after a ramp down is done, until the next tick or target", "until it is done")              \
    X(STUCK, "lifecycle", "lifecycle D12", "a holding seed told 0.9999995 ramps down and never arrives",               \
      "that is 1: it holds")                                                                                           \
    X(SWITCH, "lifecycle", "lifecycle D13", "the blend can be switched at alpha above 0", "refused")                   \
    X(TRAINABLE, "lifecycle", "lifecycle D21", "a frozen seed has no trainable parameters",                            \
      "their number is what it is")                                                                                    \
    X(MASK_OVERRIDE, "masks", "-", "the governor's override opens a prune while alpha moves",                          \
      "a policy has no override: compared with alpha at rest")                                                         \
    X(MASK_TOPOLOGY, "masks", "-", "a topology that is none is refused", "no view can hold it")                        \
    X(MASK_SLOT, "masks", "-", "a slot that takes part and is none is refused", "no view can hold it")                 \
    X(MASK_STATE, "masks", "-", "a slot that takes part and of which nothing is said is refused",                      \
      "no view can hold it")                                                                                           \
    X(TRY, "masks", "-", "six operations",                                                                             \
      "a seventh, `try`, which is masked where no trial may be asked for: the six are compared")                       \
    X(HEALTH, "features", "-", "a gradient health of NaN is refused", "it was not measured: 0")                        \
    X(DORMANT, "features", "-", "a slot that is DORMANT and yet has a report is shown", "it is empty: zeros")          \
    X(PROPERTIES, "features", "-", "23 values of the run and 31 of each slot",                                         \
      "these first, then those of task, seed and place: what was recorded is compared")                                \
    X(NO_STEPS, "gae", "-", "statistics of no step are NaN", "0")                                                      \
    X(STAGE_TERM, "rewards_loss", "training D6", "the term of the stage is paid in every step",                        \
      "when the stage changes: `0.1 (0.995 phi(stage) - phi(previous))` less")                                         \
    X(FLOOR, "masked_dist", "policy D-1", "a probability below the floor is raised to it and has no gradient",         \
      "a mixture, `(1 - n f) p + f`: checked by its properties")                                                       \
    X(ROTATION, "heuristic", "-", "the default rotation is that of images, refused by transformers",                   \
      "valid in both topologies")                                                                                      \
    X(PANIC, "governor", "-", "a panic that is not answered is forgotten", "asked again until there was a rollback")   \
    X(UNMEASURED, "gradient_stats", "lifecycle D18", "a set without gradients has norm 0 and health 1",                \
      "not measured, and not healthy")                                                                                 \
    X(FINITE_NORMS, "gradient_stats", "safety 2.2", "smallest and largest norm and their ratio are not finite",        \
      "over the finite norms, and a flag")                                                                             \
    X(RATIO_NOT_FINITE, "gradient_stats", "lifecycle D3", "a ratio of norms that are not finite is a number", "NaN")   \
    X(RATIO_CAP, "gradient_stats", "-", "a ratio can be above 10", "10 at most")

typedef enum difference {
#define X(name, file, mark, recorded, ours) DIFFERENCE_##name,
    DIFFERENCE_LIST(X)
#undef X
        N_DIFFERENCES
} difference;

/* Whether the recorded case carries the mark of the difference; true for all where it has none. */
bool difference_is_marked(difference d, const json_t *line);

/* Within a cmocka test that has found the difference in this case, and ours to be what the list says: counts it, and fails
 * where the case is not marked. */
void difference_met(difference d, const json_t *line);

/* How often each difference of a file was met since it was said last, on standard output; and in all. */
int difference_say(const char *file);

/* As a row of the table in docs/parity.md. */
enum { DIFFERENCE_ROW_CHARS = 512 };
const char *difference_row(difference d, char row[DIFFERENCE_ROW_CHARS]);

#endif
