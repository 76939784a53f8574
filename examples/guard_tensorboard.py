#!/usr/bin/env python3
"""What the guard knows, in TensorBoard: gradient norm, learning rate factor and every event beside the loss.

    python3 examples/guard_tensorboard.py [FOLDER]        then: tensorboard --logdir FOLDER (runs/guard unless said)

A small network learns under the guard; one batch is poisoned, one is far too large, and a weight goes bad. Each shows
in the run's text as the sentence in the log, and in the curve guard/events as a step of its kind.
"""
import os
import sys

try:
    import torch
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    sys.exit("This example needs PyTorch and TensorBoard (%s): pip install torch tensorboard" % error)
try:
    import esper
except ImportError:  # not installed: the package of this checkout
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bindings", "python"))
    import esper

STEPS, POISONED_AT, TOO_LARGE_AT, BAD_WEIGHT_AT = 200, 80, 120, 160
KINDS = ("skip", "rollback", "bad", "raise")


class Board:
    """Everything the guard tells, at the step of the loop."""

    def __init__(self, writer):
        self.writer = writer
        self.step = 0
        self.counts = dict.fromkeys(KINDS, 0)

    def event(self, event):
        """on_event of the guard."""
        self.writer.add_text("guard/" + event.kind, event.text, self.step)
        if event.kind in self.counts:
            self.counts[event.kind] += 1
            self.writer.add_scalars("guard/events", self.counts, self.step)

    def numbers(self, guard, loss):
        self.writer.add_scalar("loss", loss, self.step)
        self.writer.add_scalar("guard/lr_factor", guard.lr_factor, self.step)
        if guard.last is not None and not guard.last.of_state:  # the newest report: nobody waits for one
            self.writer.add_scalar("guard/gradient_norm", guard.last.total_norm, self.step)


def main(folder="runs/guard"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    truth = torch.randn(32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    board = Board(SummaryWriter(folder))
    guard = esper.Guard(model, optimizer, on_bad="rollback", state_every=1, snapshot=esper.Snapshots(every=20),
                        spikes=esper.Spikes(), lr_backoff=0.5, on_event=board.event)
    with guard:
        for board.step in range(1, STEPS + 1):
            x = torch.randn(64, 32)
            y = (x @ truth).argmax(1)
            if board.step == POISONED_AT:
                x[3, 5] = float("nan")
            if board.step == TOO_LARGE_AT:
                x = x * 1e4
            loss = torch.nn.functional.cross_entropy(model(x), y)
            guard.loss(loss)
            optimizer.zero_grad()
            loss.backward()
            if board.step == BAD_WEIGHT_AT:
                guard.inject("2.weight", at=30)
            optimizer.step()
            board.numbers(guard, loss.item())
    board.writer.close()
    print("%d skips, %d rollbacks; see them with: tensorboard --logdir %s"
          % (guard.n_skipped, guard.n_rollbacks, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
