# ctest: timeout=400 cost=7
"""The guard changes nothing: training with it and without, bit for bit."""
import unittest

from guard_cases import DEVICES, Case, Net, can_fuse, state_of, train

import torch

import esper


class TestSameBits(Case):
    """With the guard and without: 1,000 steps, bit for bit."""

    def compare(self, device, make, **options):
        states = []
        for guarded in (False, True):
            torch.manual_seed(11)
            model = torch.nn.Sequential(Net(norm=True), torch.nn.Dropout(0.1)).to(device)
            optimizer = make(model)
            guard = self.guard(model, optimizer, **options).attach() if guarded else None
            train(model, optimizer, 1000, device)
            if guard is not None:
                guard.detach()
                self.assertEqual(guard.steps, 1000)
            states.append(state_of(model, optimizer))
        self.assertSameState(*states)

    def test_raise(self):
        for device in DEVICES:
            self.compare(device, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2), state_every=50)

    def test_skip_and_snapshots(self):
        for device in DEVICES:
            self.compare(device, lambda m: torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9), on_bad="rollback",
                         snapshot=esper.Snapshots(every=40))

    def test_fused(self):
        tried = [device for device in DEVICES if can_fuse(device)]
        for device in tried:
            self.compare(device, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True), on_bad="skip")
        if not tried:
            self.skipTest("needs fused AdamW that is told through found_inf; this is torch " + torch.__version__)


if __name__ == "__main__":
    unittest.main()
