/* Internal. The one list of configuration keys. It yields the fields of esper_config, the defaults, what files,
 * environment and flags may say, the help text and the run record; a new key is one entry here and nothing elsewhere.
 *
 *     X(section, name, kind, default, range, unit, jobs, needs, effect, help)
 *
 * kind    INT, U64, REAL, BOOL, CHOICE (one of ESPER_CONFIG_<NAME>_LIST below) or TEXT
 * range   BETWEEN(a, b) closed, BELOW(a, b) without b, ABOVE(a, b) without a, FROM(a) and up, OVER(a) without a, ANY
 * unit    what a number counts, what stands for a text in the help (PATH when empty); "" where the help says it
 * jobs    the commands whose runs it can change: TRAIN, GROW, LEARN and COMPARE, joined by |; EVERY, or GROWN (all but TRAIN)
 * needs   what must hold besides for it to have an effect, from ESPER_CONFIG_NEED_LIST, joined by |; ALWAYS: nothing
 * effect  what it changes, one of ESPER_CONFIG_EFFECT_LIST
 * help    one or two sentences for somebody who meets the key for the first time
 *
 * Defaults are those of the task `fashion`; other tasks lay their presets over them. */
#ifndef ESPER_BASE_CONFIG_KEYS_H
#define ESPER_BASE_CONFIG_KEYS_H

#include "base/log.h"

#define ESPER_CONFIG_SECTION_LIST(X) \
    X(RUN, "Run")                    \
    X(TRAINING, "Training")          \
    X(GROWTH, "Growth") X(LEARN, "Learn") X(GUARD, "Guard") X(RANKS, "Ranks") X(DATA, "Data") X(NETWORK, "Network")

/* The words a choice may be: X(of, name, text). The log level's are those of the log. */
#define ESPER_CONFIG_BACKEND_LIST(X) \
    X(BACKEND, AUTO, "auto")         \
    X(BACKEND, CPU, "cpu") X(BACKEND, CUDA, "cuda") X(BACKEND, REF, "ref") X(BACKEND, NULL, "null")
/* In the order of esper_precision (tensor/op.h), which says what they mean. */
#define ESPER_CONFIG_PRECISION_LIST(X) X(PRECISION, FP32, "fp32") X(PRECISION, TF32, "tf32") X(PRECISION, BF16, "bf16")
#define ESPER_CONFIG_PROGRESS_LIST(X) \
    X(PROGRESS, AUTO, "auto") X(PROGRESS, BAR, "bar") X(PROGRESS, PLAIN, "plain") X(PROGRESS, NONE, "none")
#define ESPER_CONFIG_OPTIMIZER_LIST(X) X(OPTIMIZER, SGD, "sgd") X(OPTIMIZER, ADAMW, "adamw")
#define ESPER_CONFIG_SCHEDULE_LIST(X) \
    X(SCHEDULE, CONSTANT, "constant") X(SCHEDULE, COSINE, "cosine") X(SCHEDULE, HOLD, "hold")
#define ESPER_CONFIG_LENGTH_LIST(X)     X(LENGTH, FLOPS, "flops") X(LENGTH, EPOCHS, "epochs")
#define ESPER_CONFIG_GATES_LIST(X)      X(GATES, STRICT, "strict") X(GATES, PERMISSIVE, "permissive")
#define ESPER_CONFIG_CURRICULUM_LIST(X) X(CURRICULUM, EVEN, "even") X(CURRICULUM, LADDER, "ladder")
#define ESPER_CONFIG_COMM_LIST(X)       X(COMM, AUTO, "auto") X(COMM, SELF, "self") X(COMM, MPI, "mpi")
#define ESPER_CONFIG_INCUBATION_LIST(X) X(INCUBATION, STRAIGHT, "straight") X(INCUBATION, ASIDE, "aside")
/* esper_birth of nn/blueprint.h has its values from here, and says what they mean. */
#define ESPER_CONFIG_BIRTH_LIST(X) \
    X(BIRTH, OWN, "own") X(BIRTH, ZERO, "zero") X(BIRTH, SMALL, "small") X(BIRTH, COPY, "copy") X(BIRTH, FIRST, "first")

/* clang-format off */

/* The commands that make runs. */
#define ESPER_CONFIG_JOB_LIST(X) X(TRAIN, "train") X(GROW, "grow") X(LEARN, "learn") X(COMPARE, "compare")

/* What settings may need, so as to have an effect.
 *
 *     X(name, holds, why it has none where that does not hold, what else one could do, the same in `esper compare`)
 *
 * IMAGES, TEXT and DENSE (text or tables) are what is left of the three kinds of data. `holds` is asked of `config`, the configuration in force, and `use`, what is known of the run besides. What one could do is
 * said to who gave a flag; "" = nothing. */
#define ESPER_CONFIG_NEED_LIST(X)                                                                                      \
    X(NO_TEXT, !use->text, "its host is a transformer", "", "")                                                        \
    X(NO_IMAGES, !use->images, "its host is convolutional", "", "")                                                    \
    X(NO_TABLE, !use->table, "its host is for tables", "", "")                                                         \
    X(SHAPED, config->host[0] == '\0', "its host is given as text", "leave out --host", "leave out --host")            \
    X(FILES, use->has_files, "its data is synthetic", "", "")                                                          \
    X(OWN, use->own, "its data is not a folder, a table or an array of your own", "", "")                              \
    X(DECODED, use->own || (use->job == ESPER_CONFIG_IN_LEARN && config->tasks[0] != '\0'),                            \
      "its data is not a folder, a table or an array of your own", "", "")                                             \
    X(COLUMNS, use->table, "its data is not a table", "", "")                                                          \
    X(SGD, config->optimizer == ESPER_CONFIG_OPTIMIZER_SGD, "the optimiser is adamw", "give --optimizer sgd",          \
      "give --optimizer sgd")                                                                                          \
    X(ADAMW, config->optimizer == ESPER_CONFIG_OPTIMIZER_ADAMW, "the optimiser is sgd", "give --optimizer adamw",      \
      "give --optimizer adamw")                                                                                        \
    X(FALLS, config->schedule != ESPER_CONFIG_SCHEDULE_CONSTANT, "the schedule is constant", "give --schedule hold",   \
      "give --schedule hold")                                                                                          \
    X(HOLDS, config->schedule == ESPER_CONFIG_SCHEDULE_HOLD, "the schedule does not hold the rate",                    \
      "give --schedule hold", "give --schedule hold")                                                                  \
    X(BUDGET, config->length == ESPER_CONFIG_LENGTH_FLOPS, "its length is a number of epochs", "give --length flops", \
      "give --length flops")                                                                                           \
    X(EPOCHS,                                                                                                          \
      config->flops <= 0.0 || config->length == ESPER_CONFIG_LENGTH_EPOCHS || use->job == ESPER_CONFIG_IN_LEARN,       \
      "its length is given in FLOPs",                                                                                  \
      "leave out --flops", "leave out --flops")                                                                        \
    X(GUARDED, config->guard, "the guard is off", "switch it on with --guard", "switch it on with --guard")            \
    X(RANKS, use->launched, "it is a job of one process", "start ranks with mpirun", "")                               \
    X(DECIDES, use->deciders & ~(unsigned)ESPER_CONFIG_BY_SEARCH, "nobody decides about seeds",                        \
      "give a --policy other than none", "name one that grows among --policies")                                       \
    X(CHOOSES, use->deciders != 0, "nobody decides about seeds", "give a --policy other than none",                    \
      "name one that grows among --policies")                                                                          \
    X(SEEDS, use->deciders != 0 || config->plant[0] != '\0', "nobody decides about seeds, and none is planted",        \
      "give a --policy other than none, or --plant", "name one that grows among --policies")                           \
    X(STRIKES, use->deciders != 0 || config->plant[0] != '\0' || !waits_for_seed(config->inject),                      \
      "its first fault waits for a seed, nobody decides about any, and none is planted",                               \
      "give a --policy other than none", "name one that grows among --policies")                                       \
    X(RULES, use->deciders & ESPER_CONFIG_BY_RULES, "the heuristic does not decide", "give --policy heuristic",        \
      "name `heuristic` among --policies")                                                                             \
    X(TRIALS, use->deciders & ESPER_CONFIG_BY_TRIALS, "no trials are held", "give --policy trials",                   \
      "name `trials` among --policies")                                                                                \
    X(FORKS,                                                                                                           \
      use->deciders & (ESPER_CONFIG_BY_TRIALS | ESPER_CONFIG_BY_SCRIPT | ESPER_CONFIG_BY_PROGRAM |                     \
                       ESPER_CONFIG_BY_LEARNED),                                                                       \
      "nobody who decides here holds trials or asks for one", "give --policy trials",                                  \
      "name `trials` among --policies")                                                                                \
    X(KINDS, use->deciders & ~(unsigned)(ESPER_CONFIG_BY_CHANCE | ESPER_CONFIG_BY_SEARCH),                             \
      "nobody who decides here tries kinds of seeds", "give --policy trials", "name `trials` among --policies")        \
    X(PLATEAUS, use->deciders & (ESPER_CONFIG_BY_RULES | ESPER_CONFIG_BY_LEARNED | ESPER_CONFIG_BY_PROGRAM),           \
      "neither the heuristic, a policy that learns nor a program decides, and nobody else looks for plateaus", "",     \
      "name `heuristic` among --policies")                                                                             \
    X(SCRIPT, use->deciders & ESPER_CONFIG_BY_SCRIPT,                                                                  \
      "only the policy scripted reads a decision file, and it does not decide", "give --policy scripted",              \
      "name `scripted` among --policies")                                                                              \
    X(PROGRAM, use->deciders & ESPER_CONFIG_BY_PROGRAM, "no program decides", "name one with --policy-cmd",            \
      "name `command` among --policies")                                                                               \
    X(LEARNER, !(use->deciders & ESPER_CONFIG_BY_PROGRAM), "a program learns, by itself", "leave out --policy-cmd",    \
      "leave out --policy-cmd")                                                                                        \
    X(SEVERAL, config->tasks[0] != '\0', "all episodes are of one task", "give --tasks", "")                          \
    X(NAMED, use->job != ESPER_CONFIG_IN_LEARN || use->deciders & ESPER_CONFIG_BY_PROGRAM,                             \
      "a program that learns is named by the flag --policy-cmd alone", "", "")                                         \
    X(LISTED, use->job != ESPER_CONFIG_IN_COMPARE || use->deciders & ESPER_CONFIG_BY_PROGRAM, "no program is compared",\
      "", "name `command` among --policies")

/* What a setting changes: the bits of weights, plans or decisions; or nothing of these, but how long a run takes, which files it
 * writes, what it prints, how long it waits, or what becomes of a fault. */
#define ESPER_CONFIG_EFFECT_LIST(X) X(BITS) X(SPEED) X(FILES) X(WORDS) X(WAITS) X(RESCUE)

#define ESPER_CONFIG_KEY_LIST(X)                                                                                       \
    X(RUN, seed, U64, "1", ANY, "", EVERY, ALWAYS, BITS,                                                               \
      "Start of every random number: weights, splits, order, augmentation. The same seed gives the same run.")         \
    X(RUN, threads, INT, "0", BETWEEN(0, 256), "threads", EVERY, ALWAYS, SPEED,                                        \
      "Threads that compute; 0 uses every core. Results do not depend on it.")                                         \
    X(RUN, backend, CHOICE, "auto", ANY, "", EVERY, ALWAYS, BITS,                                                      \
      "Who computes: cpu, or cuda on an NVIDIA GPU; auto takes the GPU, if there is one, for steps of 500 MFLOP and more. " \
      "ref is the plain definition of correct, null goes through the motions only.")                                   \
    X(RUN, precision, CHOICE, "fp32", ANY, "", EVERY, ALWAYS, BITS,                                                    \
      "What a GPU's products are made of: fp32; tf32, ten bits behind the point in place of 23, faster where layers are "  \
      "wide; or bf16, seven bits, which is also how images are kept between layers. Sums, weights and optimiser stay "   \
      "fp32. Only backend cuda has other than fp32.")                                                                  \
    X(RUN, run_dir, TEXT, "", ANY, "", TRAIN | GROW | LEARN, ALWAYS, FILES,                                            \
      "Directory for this run's checkpoints and events. Empty: runs/<task>-<date>-<n>.")                               \
    X(RUN, checkpoint_every, INT, "1", FROM(0), "epochs", TRAIN | GROW | COMPARE, ALWAYS, FILES,                       \
      "Epochs between checkpoints; 0 saves only at the start, at the end and on Ctrl-C.")                                          \
    X(RUN, progress, CHOICE, "auto", ANY, "", TRAIN | GROW | LEARN, ALWAYS, WORDS,                                     \
      "How progress is shown: a live bar, plain lines for logs, or none. auto takes the bar on a terminal "             \
      "that takes escapes (TERM).")                                                                                    \
    X(RUN, log_level, CHOICE, "info", ANY, "", EVERY, ALWAYS, WORDS,                                                   \
      "The least important messages still printed on standard error.")                                                 \
    X(RUN, log, TEXT, "", ANY, "NAMES", TRAIN | GROW | LEARN, ALWAYS, FILES,                                           \
      "Copies of the numbers for other tools, in the run's directory: tensorboard, csv, or both with a comma between "  \
      "them.")                                                                                                         \
    X(TRAINING, epochs, INT, "5", FROM(0), "epochs", EVERY, EPOCHS, BITS,                                              \
      "Passes over the training samples.")                                                                             \
    X(TRAINING, length, CHOICE, "flops", ANY, "", GROW | COMPARE, ALWAYS, BITS,                                        \
      "What the run's length is. flops: it may spend what `epochs` cost the network as it begins, so that they get "   \
      "fewer as it grows. epochs: so many, whatever they cost.")                                                       \
    X(TRAINING, flops, REAL, "0", FROM(0), "FLOP", TRAIN | GROW | COMPARE, BUDGET, BITS,                               \
      "Training FLOPs that the run may spend, all that is measured and tried included, such as 2e13. 0: what `epochs` " \
      "cost the network as it begins.")                                                                                \
    X(TRAINING, batch, INT, "128", BETWEEN(1, 65536), "samples", EVERY, ALWAYS, BITS,                                  \
      "Samples whose gradients are averaged into one step of the optimiser.")                                          \
    X(TRAINING, max_steps, INT, "0", FROM(0), "steps", EVERY, ALWAYS, BITS,                                            \
      "Ends each epoch, and its validation, after this many batches; 0 goes through all. For quick trials.")                        \
    X(TRAINING, optimizer, CHOICE, "sgd", ANY, "", EVERY, ALWAYS, BITS,                                                \
      "The rule that turns gradients into steps: SGD with momentum, or AdamW.")                                        \
    X(TRAINING, lr, REAL, "0.01", OVER(0), "", EVERY, ALWAYS, BITS,                                                    \
      "Learning rate: how far a step follows the gradient. The first thing to lower when the loss explodes.")          \
    X(TRAINING, momentum, REAL, "0.9", BELOW(0, 1), "", EVERY, SGD, BITS,                                              \
      "Part of the last step that SGD carries into the next.")                                                         \
    X(TRAINING, weight_decay, REAL, "5e-4", FROM(0), "", EVERY, ALWAYS, BITS,                                          \
      "Pull of the weights towards 0: added to the gradient by SGD, applied apart from it by AdamW.")                  \
    X(TRAINING, beta1, REAL, "0.9", BELOW(0, 1), "", EVERY, ADAMW, BITS,                                               \
      "AdamW's memory of the mean gradient.")                                                                          \
    X(TRAINING, beta2, REAL, "0.999", BELOW(0, 1), "", EVERY, ADAMW, BITS,                                             \
      "AdamW's memory of the mean squared gradient.")                                                                  \
    X(TRAINING, adam_eps, REAL, "1e-8", OVER(0), "", EVERY, ADAMW, BITS,                                               \
      "AdamW's guard against division by a vanishing squared gradient.")                                               \
    X(TRAINING, clip, REAL, "1", FROM(0), "", EVERY, ALWAYS, BITS,                                                     \
      "Longest gradient a step may use: a longer one is scaled down to this norm. 0 switches clipping off.")           \
    X(TRAINING, schedule, CHOICE, "constant", ANY, "", EVERY, ALWAYS, BITS,                                            \
      "How the learning rate moves over the run: not at all, down along half a cosine to lr_min, or held and then down " \
      "along a straight line (see fall).")                                                                             \
    X(TRAINING, warmup, REAL, "0", BETWEEN(0, 1000000), "epochs", EVERY, ALWAYS, BITS,                                 \
      "Epochs (or a part of one) over which the learning rate climbs to lr, step by step. ")                                   \
    X(TRAINING, lr_min, REAL, "0", FROM(0), "", EVERY, FALLS, BITS,                                                    \
      "Where a schedule that falls ends.")                                                                             \
    X(TRAINING, fall, REAL, "0.4", BETWEEN(0, 1), "", EVERY, HOLDS, BITS,                                              \
      "Last part of the run in which a rate that was held falls. A network grows while it is held.")                   \
    X(TRAINING, patience, INT, "0", FROM(0), "epochs", TRAIN | GROW | LEARN, ALWAYS, BITS,                             \
      "Epochs without a lower validation loss after which a rate that was held begins to fall, and a run whose rate falls " \
      "or stays ends; in `esper learn` rounds in which the mean return of ten has not risen, and the learning ends. "  \
      "0 waits for ever.") \
    X(GROWTH, policy, TEXT, "trials", ANY, "NAME|FILE|RUN", GROW, ALWAYS, BITS,                                        \
      "Who decides about seeds: trials, none, heuristic, random, scripted (see decisions), command (see policy_cmd), "  \
      "halving (nobody: the best of 16 static networks is searched for within the run's FLOPs), or a "                 \
      "learned policy: its file, the run of `esper learn` (a directory, the beginning of its name, or 'last'), or learned: " \
      "the one that ships with the program.")    \
    X(GROWTH, policy_cmd, TEXT, "", ANY, "COMMAND", GROWN, NAMED | LISTED, BITS,                                                \
      "A program that decides, asked once an epoch over JSON lines (docs/policy-protocol.md). Sets policy = command.") \
    X(GROWTH, policy_deadline, REAL, "30", OVER(0), "seconds", GROWN, PROGRAM, WAITS,                                  \
      "How long such a program may think about one answer before the run stops with a checkpoint.")                    \
    X(GROWTH, decisions, TEXT, "", ANY, "PATH", GROW | COMPARE, SCRIPT, BITS,                                          \
      "The decision file of the policy `scripted`.")                                                                   \
    X(GROWTH, gates, CHOICE, "strict", ANY, "", GROWN, DECIDES, BITS,                                                  \
      "What gates ask of a seed: strict judges its merit, permissive its safety alone.")                               \
    X(GROWTH, gate_epochs, INT, "10", FROM(1), "epochs", GROWN, DECIDES, BITS,                                         \
      "Least epochs of a seed in TRAINING, and with strict gates in BLENDING. The heuristic keeps time by it.")         \
    X(GROWTH, embargo, INT, "5", FROM(1), "epochs", GROWN, DECIDES, BITS,                                              \
      "How long a slot rests after a seed was pruned there.")                                                          \
    X(GROWTH, max_seeds, INT, "0", FROM(0), "seeds", GROWN, DECIDES, BITS,                                             \
      "Most seeds at a time, kept ones included; 0 allows one in every slot.")                                         \
    X(GROWTH, max_params, INT, "0", FROM(0), "parameters", GROWN, CHOOSES, BITS,                                       \
      "Most parameters the network may grow to; 0 sets no limit.")                                                     \
    X(GROWTH, max_kib, REAL, "0", FROM(0), "KiB", GROWN, CHOOSES, BITS,                                                \
      "The same by the size of its weights, four bytes each; 0 sets no limit.")                                        \
    X(GROWTH, max_flops, REAL, "0", FROM(0), "FLOPs", GROWN, CHOOSES, BITS,                                            \
      "Most FLOPs for one sample, forward, that the network may grow to; 0 sets no limit.")                            \
    X(GROWTH, blueprints, TEXT, "", ANY, "NAMES", GROWN, KINDS, BITS,                                                  \
      "Kinds of seeds that are tried, in trials beside each other, by the heuristic in turn, separated by commas. "    \
      "Empty: the usual ones.")                                                                                        \
    X(GROWTH, add_blueprints, TEXT, "", ANY, "NAME = TEXT|FILE", TRAIN | GROW | COMPARE, SEEDS, BITS,                  \
      "Kinds of seeds of one's own, as text such as 'wide = conv 2w | conv w', or a file of them (docs/hosts.md). Trials " \
      "try them beside the usual ones; blueprints, plant and decisions name them.")                                    \
    X(GROWTH, trial_share, REAL, "0.2", BETWEEN(0, 1), "", GROWN, FORKS, BITS,                                         \
      "Most that trials may cost, as a share of the run's FLOPs: those of the policy `trials`, and those that others "  \
      "ask for. 0: there are none.")                                                                                   \
    X(GROWTH, trial_first, REAL, "0.03", BETWEEN(0, 1), "", GROW | COMPARE, TRIALS, BITS,                              \
      "Share of the run after which the first trial is held.")                                                         \
    X(GROWTH, trial_steps, INT, "0", FROM(0), "steps", GROWN, FORKS, BITS,                                             \
      "Steps for which the last forks of a trial train, at most; 0: as many as can be paid. Of one that is asked for: " \
      "as many as that; 0: a hundredth of the run's, at least 12.")                                                    \
    X(GROWTH, trial_rounds, INT, "0", FROM(0), "rounds", GROW | COMPARE, TRIALS, BITS,                                 \
      "Rounds of a trial at most, the better half going on after each; 0: until two candidates are left.")             \
    X(GROWTH, trial_seeds, INT, "1", BETWEEN(1, 8), "seeds", GROW | COMPARE, TRIALS, BITS,                            \
      "Seeds that one trial may bring, each in another slot: all that have won, one an epoch, the best first.")        \
    X(GROWTH, trial_price, REAL, "0.01", FROM(0), "", GROWN, FORKS, BITS,                                              \
      "Validation loss that a seed has to win for each doubling of the FLOPs of a sample.")                            \
    X(GROWTH, plateau, REAL, "0.5", FROM(0), "points", GROWN, PLATEAUS, BITS,                                          \
      "An epoch that gains less validation accuracy than this counts towards a plateau.")                              \
    X(GROWTH, plateau_epochs, INT, "3", FROM(1), "epochs", GROW | COMPARE, RULES, BITS,                                \
      "So many such epochs in a row, and the heuristic lets a seed germinate.")                                        \
    X(GROWTH, plant, TEXT, "", ANY, "SLOT:BLUEPRINT,...", EVERY, ALWAYS, BITS,                                         \
      "Seeds that are part of the network from the start, as if they had been kept: r0c1:conv_light,r1c2:norm.")       \
    X(GROWTH, birth, CHOICE, "own", ANY, "", GROWN, DECIDES, BITS,                                                      \
      "How a seed's weights are born where a decision does not say: as its blueprint has them, with its output at 0 or " \
      "a tenth, as a copy of the host's layer before its slot, or at 0 with those of several draws whose first step "  \
      "would lower the loss fastest.")                                                                                \
    X(GROWTH, incubation, CHOICE, "aside", ANY, "", GROWN, DECIDES, BITS,                                              \
      "What a seed learns by before it is blended in: the loss of a trial of its own, or the stream's gradient alone.") \
    X(GROWTH, seed_lr, REAL, "1", OVER(0), "", GROWN, DECIDES, BITS,                                                   \
      "Learning rate of a seed until it is kept, as a factor on the host's.")                                          \
    X(GROWTH, attribution, REAL, "0.25", FROM(0), "", GROWN, SEEDS, BITS,                                              \
      "Most FLOPs spent on finding out what each seed is worth, as a share of the epoch's training.")                  \
    X(GROWTH, reward, TEXT, "gain", ANY, "MODE", GROWN, ALWAYS, BITS,                                                  \
      "What decisions are paid by: gain, escrow, shaped, basic, basic_plus, simplified, sparse, minimal or loss "      \
      "(docs/learning.md). A policy that learns goes by it. Told at the end where it is set; gain needs a control.")   \
    X(GROWTH, reward_weights, TEXT, "", ANY, "NAME=VALUE,...", GROWN, ALWAYS, BITS,                                    \
      "Weights of the reward other than its usual ones, such as size_price=1; `esper info rewards` lists them.")    \
    X(GROWTH, inject, TEXT, "", ANY, "STEP:WHERE:ROLE:FAULT,...", GROWN, STRIKES, BITS,                                \
      "Drill: spoils one number before a step, such as 300:host:param:nan or 450:seed:moment:inf@2 (docs/growing.md).") \
    X(LEARN, rounds, INT, "100", FROM(1), "rounds", LEARN, ALWAYS, BITS,                                               \
      "Rounds of `esper learn`: episodes of all environments, then one update of the policy.")                         \
    X(LEARN, envs, INT, "16", BETWEEN(1, 1024), "environments", LEARN, ALWAYS, BITS,                                   \
      "Networks that grow side by side in a round, each with its own weights, order of samples and slots.")            \
    X(LEARN, host_seeds, INT, "0", FROM(0), "seeds", LEARN, ALWAYS, BITS,                                              \
      "Different seeds that episodes have, in turn: those of one begin alike, and what its host comes to without seeds is "  \
      "trained once. 0: every episode has its own.")                                                                   \
    X(LEARN, tasks, TEXT, "", ANY, "TASK NAME=VALUE ...,...", LEARN, LEARNER, BITS,                                    \
      "Other tasks that episodes are of, with settings of their training, data and network; drawn=N: N of them with "   \
      "hosts drawn by chance, draws=all: data and budgets, too. Such as \"synth_table, synth batch=32 drawn=6\"; or a "  \
      "list: fast, or @FILE (docs/learning.md).")                                                                    \
    X(LEARN, curriculum, CHOICE, "even", ANY, "", LEARN, LEARNER | SEVERAL, BITS,                                                 \
      "Which task an episode is of, where there are several. even: any of them. ladder: the first at first, the others " \
      "join in their order during the first half of the rounds.")                                                      \
    X(LEARN, policy_width, INT, "64", BETWEEN(8, 1024), "", LEARN, LEARNER, BITS,                                      \
      "Numbers that a policy thinks and remembers with; a multiple of 8.")                                             \
    X(LEARN, ppo_lr, REAL, "1e-3", OVER(0), "", LEARN, LEARNER, BITS,                                                  \
      "Learning rate of the policy.")                                                                                  \
    X(LEARN, ppo_epochs, INT, "4", BETWEEN(1, 100), "passes", LEARN, LEARNER, BITS,                                    \
      "Passes over a round's steps in one update.")                                                                    \
    X(LEARN, ppo_chunk, INT, "16", BETWEEN(1, 1024), "steps", LEARN, LEARNER, BITS,                                    \
      "Length of the sequences that the recurrent policy learns from.")                                                \
    X(LEARN, ppo_batch, INT, "8", BETWEEN(1, 4096), "sequences", LEARN, LEARNER, BITS,                                 \
      "Sequences of a minibatch.")                                                                                     \
    X(LEARN, ppo_clip, REAL, "0.2", ABOVE(0, 1), "", LEARN, LEARNER, BITS,                                             \
      "How far an update may move the odds of a decision before it stops to pay.")                                     \
    X(LEARN, ppo_kl, REAL, "0.02", FROM(0), "", LEARN, LEARNER, BITS,                                                  \
      "An update ends early once the policy has moved 1.5 times this far; 0 lets it go on.")                           \
    X(LEARN, ppo_lambda, REAL, "0.95", BETWEEN(0, 1), "", LEARN, LEARNER, BITS,                                        \
      "How far credit reaches back: 0 trusts the critic alone, 1 the rewards alone. The discount is the reward's gamma.") \
    X(LEARN, ppo_entropy, REAL, "0.02", FROM(0), "", LEARN, LEARNER, BITS,                                             \
      "Weight of undecidedness at first; it keeps a policy trying.")                                                   \
    X(LEARN, ppo_entropy_end, REAL, "0.005", FROM(0), "", LEARN, LEARNER, BITS,                                        \
      "The same at the end of all rounds.")                                                                            \
    X(LEARN, ppo_floor, REAL, "1", BETWEEN(0, 2), "", LEARN, LEARNER, BITS,                                            \
      "Scale of the least probability that every open choice keeps while learning.")                                   \
    X(GUARD, guard, BOOL, "true", ANY, "", EVERY, ALWAYS, RESCUE,                                                      \
      "Scans parameters, moments and gradients at every step; skips a bad step, goes back to the last good state.")    \
    X(GUARD, snapshot_every, INT, "100", FROM(1), "steps", EVERY, GUARDED, RESCUE,                                     \
      "Steps between snapshots to go back to; one is also taken at the start of every epoch.")                         \
    X(GUARD, guard_checksum, BOOL, "false", ANY, "", EVERY, GUARDED, RESCUE,                                           \
      "Also compares checksums of the state: finds any bit that flips between the end of a step and the next.")          \
    X(GUARD, max_rollbacks, INT, "3", FROM(0), "times", EVERY, GUARDED, RESCUE,                                        \
      "Times the governor may go back before it stops the run.")                                                       \
    X(RANKS, rank_deadline, REAL, "30", OVER(0), "seconds", TRAIN | GROW | LEARN, RANKS, WAITS,                        \
      "How long a rank may keep the others waiting before they take it for lost, save and leave.")                     \
    X(RANKS, join_deadline, REAL, "60", OVER(0), "seconds", TRAIN | GROW | LEARN, RANKS, WAITS,                        \
      "How long ranks wait at the start until all have joined; then they name who is missing, and leave.")             \
    X(RANKS, comm, CHOICE, "auto", ANY, "", TRAIN | GROW | LEARN, ALWAYS, SPEED,                                       \
      "How processes work on one run together: auto is mpi below mpirun or srun, and self, a job of one, elsewhere.")  \
    X(RANKS, sync_norm, BOOL, "false", ANY, "", TRAIN | GROW, RANKS | IMAGES, BITS,                                    \
      "Batch norm over the whole batch of all ranks instead of each rank's part of it.")                               \
    X(DATA, data, TEXT, "", ANY, "", EVERY, FILES, BITS,                                                               \
      "Where the data lies, several paths separated by ':'. Empty: the task's usual place.")                           \
    X(DATA, image_size, TEXT, "", ANY, "HxW", EVERY, OWN | IMAGES, BITS,                                               \
      "Size that images of your own are brought to, such as 32x32. Empty: theirs, if they are equal and small.")       \
    X(DATA, grey, BOOL, "false", ANY, "", EVERY, OWN | IMAGES, BITS,                                                   \
      "Turns images of your own into grey ones; otherwise they stay as they are.")                                     \
    X(DATA, skip_bad, BOOL, "false", ANY, "", EVERY, OWN | IMAGES, BITS,                                               \
      "Leaves damaged image files out, and tells which, instead of refusing the folder.")                              \
    X(DATA, target, TEXT, "", ANY, "COLUMN", EVERY, OWN | COLUMNS, BITS,                                               \
      "The column of a table of your own that holds the classes. Empty: the last.")                                    \
    X(DATA, cache, TEXT, "", ANY, "DIR", EVERY, DECODED, FILES,                                                        \
      "Where decoded data of your own is kept, so that it is decoded once. Empty: ~/.cache/esper.")                    \
    X(DATA, valid_fraction, REAL, "0.1", ABOVE(0, 0.5), "", EVERY, ALWAYS, BITS,                                       \
      "Part of the training samples set aside, by seed, for validation. The test set is read once, at the end.")       \
    X(DATA, train_limit, INT, "0", FROM(0), "samples", EVERY, ALWAYS, BITS,                                            \
      "Uses only this many training samples; 0 uses all.")                                                             \
    X(DATA, classes, INT, "0", BETWEEN(0, 256), "classes", EVERY, NO_TEXT, BITS,                                       \
      "Uses the samples of so many classes, drawn by data_seed; synthetic data is made with so many. 0: as many as "   \
      "there are.")                                                                                                    \
    X(DATA, data_seed, U64, "0", ANY, "", EVERY, ALWAYS, BITS,                                                         \
      "Start of the random numbers of the data alone: what is set aside, which samples and classes are used, what "   \
      "synthetic data is like. 0: seed.")                                                                              \
    X(DATA, crop, INT, "0", BETWEEN(0, 16), "pixels", EVERY, IMAGES, BITS,                                             \
      "Augmentation: pads each image by this border and cuts it out again at a random place.")                         \
    X(DATA, flip, BOOL, "false", ANY, "", EVERY, IMAGES, BITS,                                                         \
      "Augmentation: mirrors half of the images, left to right.")                                                      \
    X(DATA, cutout, INT, "0", BETWEEN(0, 64), "pixels", EVERY, IMAGES, BITS,                                           \
      "Augmentation: blanks a random square of this side in each image.")                                              \
    X(NETWORK, host, TEXT, "", ANY, "TEXT|FILE|NAME", EVERY, ALWAYS, BITS,                                             \
      "The network to begin with, as text such as 'conv 16 | pool | conv 32 | mean | linear' (docs/hosts.md), a file of " \
      "it, or a name from `esper info hosts`. Empty: what the settings below make.")                                   \
    X(NETWORK, slots, TEXT, "", ANY, "NAMES", GROWN, SEEDS, BITS,                                                      \
      "Slots where it may grow, separated by commas, such as r0c1,r1c0; `esper info net` lists them. Empty: all.")     \
    X(NETWORK, stack, INT, "0", BETWEEN(0, 7), "times", EVERY, SEEDS, BITS,                                            \
      "How often a slot opens again: behind a seed that was kept in r0c1 another can grow in r0c1_2, and so on.")      \
    X(NETWORK, widen, BOOL, "false", ANY, "", EVERY, SEEDS | IMAGES, BITS,                                             \
      "Lets the layers of an image host take new channels, half as many as they have: seeds `wide` in slots wide0 and so on.") \
    X(NETWORK, blocks, INT, "3", BETWEEN(2, 8), "blocks", EVERY, IMAGES | SHAPED, BITS,                                \
      "Convolution blocks of an image host; each doubles the channels.")                                               \
    X(NETWORK, channels, INT, "8", BETWEEN(1, 512), "channels", EVERY, IMAGES | SHAPED, BITS,                          \
      "Channels of the first block.")                                                                                  \
    X(NETWORK, kernel, INT, "3", BETWEEN(1, 7), "pixels", EVERY, IMAGES | SHAPED, BITS,                                \
      "Side of the convolution window; odd, so that it has a middle.")                                                 \
    X(NETWORK, pools, INT, "-1", BETWEEN(-1, 8), "blocks", EVERY, IMAGES | SHAPED, BITS,                               \
      "Leading blocks that end by halving height and width; -1, or more than there are, means all of them.")           \
    X(NETWORK, layers, INT, "4", BETWEEN(1, 64), "layers", EVERY, DENSE | SHAPED, BITS,                                \
      "Layers of a text host, a transformer, or of a host for tables.")                                                \
    X(NETWORK, width, INT, "128", BETWEEN(1, 8192), "", EVERY, DENSE | SHAPED, BITS,                                   \
      "Numbers that stand for one token inside a text host, a multiple of heads, or for a row inside a host for tables.") \
    X(NETWORK, heads, INT, "4", BETWEEN(1, 256), "heads", EVERY, TEXT | SHAPED, BITS,                                  \
      "Attention heads that share the width of a layer.")                                                              \
    X(NETWORK, context, INT, "128", BETWEEN(1, 4096), "tokens", EVERY, TEXT, BITS,                                     \
      "Tokens a text host sees at once.")                                                                              \
    X(NETWORK, segments, INT, "2", BETWEEN(1, 64), "segments", EVERY, TEXT | SHAPED, BITS,                             \
      "Parts a text host is divided into, each of layers / segments layers and with a place to grow at its end.")      \
    X(NETWORK, dropout, REAL, "0", BELOW(0, 1), "", EVERY, DENSE | SHAPED, BITS,                                       \
      "Part of the activations of a text host, or one for tables, that is blanked at random while training.")
/* clang-format on */

#endif
