# ctest: timeout=600 cost=12
"""Ranks whose process group the guard has to find, or cannot use: no DDP, DDP.join(), ZeRO-1; local statistics under
esper.Agreement; snapshots on disk of several ranks. Three processes over gloo."""
import os
import shutil
import sys
import tempfile
import unittest

from guard_cases import Net, backward
from test_guard_ranks import JobCase, checksum, main, needs_gloo

import torch
import torch.distributed as dist

import esper

try:
    from torch.distributed.optim import ZeroRedundancyOptimizer
except ImportError:
    ZeroRedundancyOptimizer = None
DDP = torch.nn.parallel.DistributedDataParallel


def made(norm=False, kind=DDP):
    torch.manual_seed(0)
    model = Net(norm)
    return model if kind is None else kind(model)


def rank_by_hand(rank, world):
    """Gradients are reduced by hand; one rank's goes bad after that."""
    model, lines = made(kind=None), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = esper.Guard(model, optimizer, "skip", log=lines.append).attach()
    for step in range(5):
        optimizer.zero_grad()
        backward(model, 10 * step + rank)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if step == 3 and rank == 1:
            guard.inject("first.weight.grad")
        optimizer.step()
    return {"skipped": guard.n_skipped, "sum": checksum(model, optimizer), "lines": lines}


def rank_alone(rank, world):
    """group=None: ranks that train apart from each other."""
    model = made(kind=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = esper.Guard(model, optimizer, "skip", group=None, log=lambda line: None).attach()
    for step in range(3 + rank):
        optimizer.zero_grad()
        backward(model, step)
        if step == 1 and rank == 1:
            guard.inject("first.weight.grad")
        optimizer.step()
    return {"skipped": guard.n_skipped, "steps": guard.steps}


def rank_join(rank, world):
    """Uneven inputs: ranks that have none left do not vote. A bad batch of one reaches all that are there."""
    model, lines = made(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = esper.Guard(model, optimizer, "skip", log=lines.append).attach()
    with model.join():
        for step in range(5 + 3 * rank):
            optimizer.zero_grad()
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + rank))
            if step == 6 and rank == 2:
                x[0, 0] = float("nan")
            model(x).pow(2).mean().backward()
            optimizer.step()
    finite = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    return {"skipped": guard.n_skipped, "finite": finite, "sum": checksum(model, optimizer),
            "told": sum("DDP.join()" in line for line in lines)}


def rank_zero1(rank, world):
    """Moments of one rank's shard go bad: all ranks go back, moments included."""
    if ZeroRedundancyOptimizer is None:
        return {}
    model, lines = made(), []
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    guard = esper.Guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=5),
                        log=lines.append).attach()
    for step in range(12):
        optimizer.zero_grad()
        backward(model, 10 * step + rank)
        if step == 7 and rank == 1:
            next(iter(optimizer.optim.state.values()))["exp_avg"].view(-1)[0] = float("nan")
        optimizer.step()
    finite = all(bool(torch.isfinite(state["exp_avg"]).all()) for state in optimizer.optim.state.values())
    steps = {int(state["step"]) for state in optimizer.optim.state.values()}
    return {"rollbacks": guard.n_rollbacks, "steps": guard.steps, "finite": finite, "own": sorted(steps),
            "sum": sum(float(parameter.double().sum()) for parameter in model.parameters()), "lines": lines[-3:],
            "not_covered": guard.not_covered}


def rank_agreement(rank, world):
    """BatchNorm's statistics are local; a weight that differs is named."""
    model = made(norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, 10 * step + rank)
        optimizer.step()
    agreement = esper.Agreement()
    agreement.agree(3, state=model)
    if rank == 2:
        with torch.no_grad():
            model.module.second.weight[0, 0] += 1e-6
    try:
        agreement.agree(4, state={"model": model, "optimizer": optimizer})
    except esper.Divergence as met:
        return {"text": str(met), "tensors": list(met.tensors), "ranks": list(met.ranks)}
    return {}


def rank_disk(rank, world):
    """Ranks that were killed between two writings: the newest snapshot that all have."""
    folder = os.environ["GUARD_FOLDER"]
    said = []
    for again in (False, True):
        model = made()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        guard = esper.Guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=2, directory=folder),
                            log=lambda line: None)
        if again:
            said += [guard.resume(), checksum(model, optimizer)]
        guard.attach()
        sums = {}
        for step in range(9):
            optimizer.zero_grad()
            backward(model, 10 * step + rank)
            optimizer.step()
            sums[guard.steps] = checksum(model, optimizer)
            guard._machine.ring.disk.wait()  # on a busy machine a newer one may else take the place of one on its way
        guard.detach()
        if not again:
            said.append(sums[6])
            if rank == 1:  # as if it had been killed before its newest was written
                for top, _, names in os.walk(os.path.join(folder, "rank1")):
                    if "previous.ring" in names:
                        os.remove(os.path.join(top, "snapshot.ring"))
        dist.barrier()
    return said


def anew(rank, folder, loses):
    """Two jobs in one folder, the second from the start and shorter; rank 1 was killed before its newest of the second
    was written. loses: rank 2 has lost what it had of the first. Gives where a third goes on."""
    own = os.path.join(folder, f"rank{rank}")
    for n_steps in (9, 3, 0):
        model = made()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        guard = esper.Guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=2, directory=folder),
                            log=lambda line: None)
        if not n_steps:
            return guard.resume()
        guard.attach()
        for step in range(n_steps):
            optimizer.zero_grad()
            backward(model, 10 * step + rank)
            optimizer.step()
            guard._machine.ring.disk.wait()
        guard.detach()
        if n_steps == 9 and rank == 2 and loses:
            shutil.rmtree(own)
        if n_steps == 3 and rank == 1:
            for top, _, names in os.walk(own):
                if "previous.ring" in names:
                    os.remove(os.path.join(top, "snapshot.ring"))
        dist.barrier()


def rank_anew(rank, world):
    return [anew(rank, os.path.join(os.environ["GUARD_FOLDER"], f"anew{loses}"), loses) for loses in (0, 1)]


@needs_gloo
class TestGroups(JobCase):
    names, world, script = ["by_hand", "alone", "join", "zero1", "agreement", "disk", "anew"], 3, __file__

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, folder)
        os.environ["GUARD_FOLDER"] = folder
        super().setUpClass()

    def test_ranks_without_ddp_decide_together(self):
        found = self.found("by_hand")
        self.assertEqual([rank["skipped"] for rank in found], [1] * 3)
        self.assertEqual(len({rank["sum"] for rank in found}), 1)
        self.assertTrue(any("torch.distributed has 3 ranks, which decide together" in line
                            for line in found[0]["lines"]))

    def test_ranks_that_train_apart(self):
        self.assertEqual([(rank["skipped"], rank["steps"]) for rank in self.found("alone")], [(0, 3), (1, 4), (0, 5)])

    def test_join(self):
        found = self.found("join")
        self.assertEqual([rank["skipped"] for rank in found], [0, 1, 1], "rank 0 had no more inputs")
        self.assertTrue(all(rank["finite"] and rank["told"] == 1 for rank in found), found)
        self.assertEqual(len({rank["sum"] for rank in found}), 1)

    @unittest.skipIf(ZeroRedundancyOptimizer is None, "no ZeroRedundancyOptimizer")
    def test_zero1(self):
        found = self.found("zero1")
        for rank in found:
            self.assertEqual((rank["rollbacks"], rank["steps"], rank["finite"], rank["own"]), (1, 9, True, [9]), rank)
            self.assertEqual(rank["sum"], found[0]["sum"])
        self.assertIn(".exp_avg, 1 of ", found[1]["lines"][-1])

    def test_local_statistics_are_no_divergence(self):
        for rank in self.found("agreement"):
            self.assertEqual((rank["ranks"], rank["tensors"]), ([2], ["model.second.weight"]), rank)
            self.assertIn("; tensors that differ: model.second.weight", rank["text"])

    def test_on_disk(self):
        for before, resumed, sum_of in self.found("disk"):
            self.assertEqual(resumed, 6)
            self.assertEqual(sum_of, before)

    def test_a_newer_job_on_disk(self):
        """Its snapshot of step 0 is the newest that all have; the first job had come to step 8."""
        self.assertEqual(self.found("anew"), [[0, 0]] * 3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:], globals())
    else:
        unittest.main()
