# ctest: timeout=300 cost=10
"""Ctrl-C at any moment: real SIGINTs while guarded steps, snapshots and rollbacks are made. Each breaks one call off,
and the next step works: no scan is stuck, no snapshot lost, no rollback half made, the learning rate as it was. The
long form, 500 of them, is test_guard_breaks_all.py."""
import os
import random
import signal
import threading
import time
import unittest

from guard_cases import Case, Net, backward, seeded, state_of
from test_guard_policy import FlagSGD

import torch

import esper
from esper._phase import Phase

LR = 0.01


class Signals:
    """Sends a SIGINT some time after `arm`; it raises KeyboardInterrupt in the main thread. Another follows where that
    was lost, as in __del__, until `disarm`."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._armed = False
        self._n = 0  # of the one that is to be sent
        self._go = threading.Semaphore(0)
        self._before = signal.signal(signal.SIGINT, self._handle)
        self._open = True
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _handle(self, number, frame):
        if self._armed:
            raise KeyboardInterrupt

    def _send(self):
        while True:
            self._go.acquire()
            if not self._open:
                return
            n = self._n
            time.sleep(self._random.random() * 0.004)
            while self._armed and self._n == n:
                os.kill(os.getpid(), signal.SIGINT)
                end = time.monotonic() + 2.0
                while self._armed and self._n == n and time.monotonic() < end:
                    time.sleep(0.001)

    def arm(self):
        self._n += 1
        self._armed = True
        self._go.release()

    def disarm(self):
        self._armed = False

    def close(self):
        self._open = self._armed = False
        self._go.release()
        self._thread.join()
        signal.signal(signal.SIGINT, self._before)


class TestCtrlC(Case):
    count = 100

    def interrupt(self, make, closure, on_device, count, seed):
        """`count` SIGINTs at random moments of a loop with faults; what the next step has to find after each."""
        model, optimizer = seeded(Net, optimizer=make, lr=LR)
        guard = self.guard(model, optimizer, "rollback", state_every=1, max_rollbacks=10**9, lr_backoff=0.999999,
                           snapshot=esper.Snapshots(every=2)).attach()
        if on_device:
            guard._machine.at_once = False  # as on a GPU, where nobody waits
        faults = random.Random(seed)
        made = [0]

        def evaluate():
            optimizer.zero_grad()
            loss = backward(model, made[0])
            if faults.random() < 0.1:
                guard.inject(faults.choice(["first.weight", "second.bias.grad", "last.weight"]))
            return loss

        calls = [guard.result, guard.snapshot, guard.rollback, guard.memory, guard.state_dict, guard.refresh,
                 lambda: (guard.detach(), guard.attach())]

        def step():
            made[0] += 1
            if faults.random() < 0.2:
                faults.choice(calls)()
            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()

        signals = Signals(seed)
        try:
            for i in range(count):
                phase = None
                try:
                    signals.arm()
                    while True:
                        step()
                except KeyboardInterrupt:
                    signals.disarm()
                    phase = guard._machine.phase
                torch.set_grad_enabled(True)  # torch's own no_grad does not survive every moment
                self.assertIs(phase, Phase.BETWEEN, f"SIGINT {i}")
                self.assertEqual(optimizer.param_groups[0]["lr"], LR, f"SIGINT {i}")
                self.assertFalse(hasattr(optimizer, "found_inf"), f"SIGINT {i}")
                self.assertTrue(guard._machine.ring.good or guard._machine.wants_first, f"SIGINT {i}")
                guard.attach()
                step()
                self.assertTrue(guard._machine.ring.good, f"SIGINT {i}: snapshots are gone")
                if i % 5 == 0:
                    self.assertIsNotNone(guard.rollback())
                    self.assertTrue(esper.check(model, optimizer).ok, f"SIGINT {i}: {esper.check(model, optimizer)}")
                if i % 20 == 0:
                    self.assertTrue(guard.snapshot())
        finally:
            signals.close()
        self.assertFalse([line for line in self.lines if "damaged" in line or "no place" in line])
        guard.result()
        guard.rollback()
        before = state_of(model, optimizer)
        guard.inject("first.weight")
        guard.rollback()
        self.assertSameState(before, state_of(model, optimizer))
        self.assertGreater(guard.n_skipped + guard.n_rollbacks, 0)

    def test_waiting(self):
        self.interrupt(torch.optim.AdamW, False, False, self.count * 2 // 5, 1)

    def test_told_on_the_device(self):
        self.interrupt(FlagSGD, False, True, self.count * 2 // 5, 2)

    def test_closure(self):
        self.interrupt(lambda parameters, lr: torch.optim.LBFGS(parameters, lr=lr, max_iter=3), True, False,
                       self.count // 5, 3)


if __name__ == "__main__":
    unittest.main()
