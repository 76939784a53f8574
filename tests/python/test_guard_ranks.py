# ctest: timeout=600
"""Several processes over gloo, with CPU tensors: DistributedDataParallel, and FSDP2 where torch has it."""
import datetime
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from guard_cases import PACKAGE, Net, backward, needs, state_of

import torch
import torch.distributed as dist

import esper

LIMIT = 400  # seconds for the job, on a busy machine
try:
    from torch.distributed.fsdp import fully_shard
except Exception:  # Debian's torch 1.13 does not even import FSDP1 under Python 3.11
    fully_shard = None


# ---- what a rank does: each function returns what is compared

def ddp(rank, world):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Net())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train_ddp(model, optimizer, step, before=None):
    optimizer.zero_grad(set_to_none=True)
    backward(model, 10 * step + dist.get_rank())
    if before is not None:
        before()
    optimizer.step()


def rank_local_gradient(rank, world):
    """A gradient that is bad on one rank alone: all of them leave the step out."""
    model, optimizer = ddp(rank, world)
    lines = []
    guard = esper.Guard(model, optimizer, "skip", log=lines.append).attach()
    for step in range(5):
        train_ddp(model, optimizer, step, lambda: rank == 1 and step == 3 and guard.inject("second.weight.grad", 3))
    return {"skipped": guard.n_skipped, "line": lines[-1], "sum": checksum(model, optimizer)}


def rank_exchanged_gradient(rank, world):
    """NaN in the data of one rank reaches all through the exchange of gradients."""
    model, optimizer = ddp(rank, world)
    guard = esper.Guard(model, optimizer, "raise").attach()
    optimizer.zero_grad()
    x = torch.ones(4, 6)
    if rank == 1:
        x[0, 0] = float("nan")
    model(x).sum().backward()
    try:
        optimizer.step()
    except esper.BadGradient as met:
        return {"name": met.report.first_bad, "line": str(met)}
    return {}


def rank_parameter(rank, world):
    """A parameter that goes bad on one rank: it is named there, and all roll back."""
    model, optimizer = ddp(rank, world)
    lines = []
    guard = esper.Guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=3),
                        log=lines.append).attach()
    for step in range(5):
        train_ddp(model, optimizer, step)
    if rank == world - 1:
        guard.inject("last.weight.exp_avg", 5)
    for step in range(5, 8):
        train_ddp(model, optimizer, step)
    guard.result()
    told = [line for line in lines if "rolled back" in line]
    return {"told": told, "rollbacks": guard.n_rollbacks, "steps": guard.steps, "sum": checksum(model, optimizer)}


def rank_flag(rank, world):
    """Without a wait: the flag is exchanged, and the optimiser told."""
    from test_guard_policy import FlagSGD
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = FlagSGD(model.parameters(), lr=0.1)
    lines = []
    guard = esper.Guard(model, optimizer, "skip", log=lines.append).attach()
    for step in range(5):
        train_ddp(model, optimizer, step, lambda: rank == 1 and step == 3 and guard.inject("second.weight.grad", 3))
    return {"seen": optimizer.seen[1:], "line": lines[-1], "sum": checksum(model, optimizer)}


def rank_fsdp2(rank, world):
    """Sharded parameters: norms are those of the whole, a bad shard is named where it lies."""
    torch.manual_seed(0)
    whole = Net()
    model = Net()
    model.load_state_dict(whole.state_dict())
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (world,))
    for part in (model.first, model.second, model.last, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    lines = []
    guard = esper.Guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=2), clip=1e-3,
                        log=lines.append).attach()
    backward(model, 0)
    backward(whole, 0)
    exact = float(torch.cat([p.grad.flatten() for p in whole.parameters()]).double().norm())
    optimizer.step()
    norm = guard.last.total_norm
    clipped = math.sqrt(sum(float(p.grad.full_tensor().double().norm()) ** 2 for p in model.parameters()))
    for step in range(1, 5):
        optimizer.zero_grad()
        backward(model, 0)
        optimizer.step()
    if rank == 1:
        guard.inject("second.weight", 2)
    for step in range(5, 7):
        optimizer.zero_grad()
        backward(model, 0)
        optimizer.step()
    guard.result()
    finite = all(bool(torch.isfinite(p.full_tensor()).all()) for p in model.parameters())
    return {"exact": exact, "norm": norm, "clipped": clipped, "finite": finite, "rollbacks": guard.n_rollbacks,
            "told": [line for line in lines if "rolled back" in line]}


def checksum(model, optimizer):
    return sum(float(value.double().sum()) for value in state_of(model, optimizer).values()
               if isinstance(value, torch.Tensor))


# ---- the job

def main(rank, world, folder, names, functions=None):
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=200))
    for name in names:
        found = (functions or globals())["rank_" + name](rank, world)
        with open(os.path.join(folder, f"{name}.{rank}"), "w") as file:
            json.dump(found, file)
        dist.barrier()
    dist.destroy_process_group()


def run_job(folder, names, world=2, script=__file__):
    """One job for all cases, for starting torch takes longer than they do. What a rank said that failed, or ""."""
    here = os.path.dirname(os.path.abspath(__file__))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([PACKAGE, here]), OMP_NUM_THREADS="1",
                       GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="")
    processes = [subprocess.Popen([sys.executable, os.path.abspath(script), "rank", str(rank), str(world), folder,
                                   *names], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                 for rank in range(world)]
    said = ""
    try:
        for process in processes:
            text = process.communicate(timeout=LIMIT)[0].decode()
            if process.returncode != 0:
                said += f"a rank ended with {process.returncode}:\n{text}\n"
    except subprocess.TimeoutExpired:
        said += f"the job took more than {LIMIT} s\n"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return said


needs_gloo = needs(dist.is_available() and dist.is_gloo_available() if hasattr(dist, "is_gloo_available")
                   else dist.is_available(), "torch.distributed with gloo")


class JobCase(unittest.TestCase):
    """Runs the cases `names` of a script in one job; `found` is what the ranks told of one."""

    names, world, script = (), 2, __file__

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.said = run_job(cls.folder, cls.names, cls.world, cls.script)

    def found(self, name):
        paths = [os.path.join(self.folder, f"{name}.{rank}") for rank in range(self.world)]
        if not all(os.path.exists(path) for path in paths):
            self.fail(self.said or f"no rank has told of {name}")
        found = []
        for path in paths:
            with open(path) as file:
                found.append(json.load(file))
        return found


@needs_gloo
class TestRanks(JobCase):
    names = ["local_gradient", "exchanged_gradient", "parameter", "flag"] + (["fsdp2"] if fully_shard else [])

    def test_all_leave_the_step_out(self):
        found = self.found("local_gradient")
        self.assertEqual([rank["skipped"] for rank in found], [1, 1])
        self.assertEqual(found[0]["sum"], found[1]["sum"])
        self.assertIn("step 4: NaN or Inf on rank 1, none on this one", found[0]["line"])
        self.assertIn("step 4: NaN in second.weight.grad, 1 of 128, first at 3; first on rank 1 of 2", found[1]["line"])

    def test_through_the_exchange(self):
        found = self.found("exchanged_gradient")
        self.assertEqual({rank["name"] for rank in found} - {"last.weight.grad", "last.bias.grad"}, set())
        self.assertIn("first on rank 0 of 2", found[0]["line"])

    def test_one_rank_s_state(self):
        found = self.found("parameter")
        self.assertEqual([rank["rollbacks"] for rank in found], [1, 1])
        self.assertEqual(found[0]["steps"], found[1]["steps"])
        self.assertEqual(found[0]["sum"], found[1]["sum"])
        self.assertIn("NaN in last.weight.exp_avg", found[1]["told"][0])
        self.assertIn("NaN or Inf on rank 1, none on this one", found[0]["told"][0])

    def test_flag(self):
        found = self.found("flag")
        self.assertEqual([rank["seen"] for rank in found], [[0.0, 0.0, 1.0, 0.0]] * 2)
        self.assertEqual(found[0]["sum"], found[1]["sum"])
        self.assertIn("rank 1", found[0]["line"])
        self.assertIn("second.weight.grad", found[1]["line"])

    @needs(fully_shard is not None, "fully_shard (FSDP2)")
    def test_fsdp2(self):
        found = self.found("fsdp2")
        for rank in found:
            self.assertAlmostEqual(rank["norm"], rank["exact"], delta=1e-5 * rank["exact"])
            self.assertAlmostEqual(rank["clipped"], 1e-3, delta=1e-6)
            self.assertTrue(rank["finite"])
            self.assertEqual(rank["rollbacks"], 1)
        self.assertIn("NaN in second.weight, ", found[1]["told"][0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
    else:
        unittest.main()
