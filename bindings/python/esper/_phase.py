"""What a guard is doing: six phases, and the one function that moves between them.

                 attach                     begin                     may step
    DETACHED ──────────────> BETWEEN ──────────────> JUDGING ──────────────────> STEPPING
        ^                     ^ │ │ │                 │   ^                        │   │
        │       detach        │ │ │ └────────┐        │   └── a closure's gradients┘   │ end
        └─────────────────────┼─┘ │ rollback │        │ passed over                    v
                              │   │          v        v                             KEEPING
                              │   │      RESTORING <──┴────── bad state ──────────────┤
                              │   │          │                                        │
                              └───┼──────────┴────────────────────────────────────────┘
                                  └── snapshot ──> KEEPING

    DETACHED    the optimiser steps unseen; no parameter is claimed
    BETWEEN     nothing is half done. Scans may be on their way, to be acted on when the next step begins
    JUDGING     gradients are scanned, ranks asked; the optimiser has not been let near them
    STEPPING    the optimiser is at work: the learning rate is lowered, its flag is set
    KEEPING     the state is scanned, a snapshot may be taken of it
    RESTORING   a rollback is under way; what it is to bring about is written down, so that it can be made again

Any of these may be broken off by an exception, Ctrl-C first of all, between any two instructions. So every call begins
with a look at the phase: when it is none in which nothing is half done, what was left is put in order first, by
`Machine.recover`, which may be broken off as well, and made again.
"""

import enum


class Phase(enum.IntEnum):  # whose hash is quick: the table is asked four times a step
    DETACHED = 0
    BETWEEN = 1
    JUDGING = 2
    STEPPING = 3
    KEEPING = 4
    RESTORING = 5


MOVES = {
    Phase.DETACHED: {Phase.BETWEEN},
    Phase.BETWEEN: {Phase.JUDGING, Phase.STEPPING, Phase.KEEPING, Phase.RESTORING, Phase.DETACHED},
    Phase.JUDGING: {Phase.STEPPING, Phase.BETWEEN, Phase.KEEPING, Phase.RESTORING},
    Phase.STEPPING: {Phase.JUDGING, Phase.KEEPING, Phase.RESTORING, Phase.BETWEEN},
    Phase.KEEPING: {Phase.BETWEEN, Phase.JUDGING, Phase.RESTORING},
    Phase.RESTORING: {Phase.BETWEEN},
}
WHOLE = (Phase.BETWEEN, Phase.DETACHED)  # nothing is half done


class Phased:
    """Has a phase."""

    def __init__(self) -> None:
        self.phase = Phase.BETWEEN

    def move(self, to: Phase) -> None:
        """Every change of phase but `recover`'s."""
        if to is not self.phase:
            assert to in MOVES[self.phase], f"{self.phase.name} to {to.name}"
            self.phase = to
