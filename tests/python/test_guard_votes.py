# ctest: timeout=600 cost=12
"""Ranks that are not alike: one has no gradients, answers otherwise, asks alone, or does not come at all. Over gloo,
with CPU tensors; and norms over the meshes of sharded parameters."""
import datetime
import math
import random
import sys
import time
import types
import unittest

from guard_cases import Net, backward, needs
from test_guard_policy import FlagSGD, PlainScaler
from test_guard_ranks import JobCase, checksum, fully_shard, main, needs_gloo

import torch
import torch.distributed as dist

import esper
from esper import _tensors


# ---- what a rank does: each function returns what is compared

def own(rank, kind=torch.optim.AdamW, **options):
    """A model whose gradients nobody exchanges but the guard's group knows all ranks."""
    torch.manual_seed(0)
    model = Net()
    lines = []
    optimizer = kind(model.parameters(), lr=1e-2)
    guard = esper.Guard(model, optimizer, group=dist.group.WORLD, log=lines.append, **options)
    return model, optimizer, guard, lines


def step_own(model, optimizer, step, has=True, before=None):
    optimizer.zero_grad(set_to_none=True)
    if has:
        backward(model, step)
    if before is not None:
        before()
    optimizer.step()


def rank_no_gradients(rank, world):
    """Rank 1 has none at all in some steps: it votes all the same, and hears of the others'."""
    found = {}
    for kind in (torch.optim.AdamW, FlagSGD):
        for on_bad in ("skip", "raise", "report", "rollback"):
            model, optimizer, guard, lines = own(rank, kind, on_bad=on_bad, state_every=2)
            guard.attach()
            raised = 0
            for step in range(6):
                has = rank == 0 or step % 2 == 1
                try:
                    step_own(model, optimizer, step, has,
                             lambda: rank == 0 and step == 4 and guard.inject("last.bias.grad", 1))
                except esper.BadGradient:
                    raised += 1
                if on_bad == "report" and step == 4:
                    break  # the state is bad from here on
            if on_bad != "report":
                guard.detach()
            found[f"{kind.__name__} {on_bad}"] = [
                guard.steps, guard.n_skipped, raised, sum("rank 0" in line for line in lines),
                math.isfinite(checksum(model, optimizer))]
    return found


def rank_spike(rank, world):
    """The loss of one rank is out of the question: all leave the step out, and each says where it was. While that rank
    counts no rank takes a snapshot."""
    model, optimizer, guard, lines = own(rank, on_bad="skip", spikes=esper.Spikes(norm=False), state_every=0,
                                         snapshot=esper.Snapshots(every=1))
    guard.attach()
    kept = {}
    for step in range(90):
        guard.loss(1e6 if rank == 1 and step in (80, 81, 82) else 1.0 + 0.01 * (step % 7))
        step_own(model, optimizer, step)
        kept[step] = guard._machine.ring.good[-1].step
    guard.detach()
    return {"kept": [kept[step] for step in range(79, 85)],
            "skipped": guard.n_skipped, "sum": checksum(model, optimizer),
            "lines": [line for line in lines if line.startswith("step")]}


def rank_first_step(rank, world):
    """Told on the device: a rank whose optimiser has no state yet leaves out a bad first step all the same."""
    model, optimizer, guard, lines = own(rank, FlagSGD, on_bad="skip", state_every=0)
    guard.attach()
    for step in range(5):
        step_own(model, optimizer, step, rank == 0 or step >= 2,
                 lambda: rank == 0 and step == 2 and guard.inject("last.bias.grad", 1))
    guard.result()
    return {"skipped": guard.n_skipped, "seen": optimizer.seen, "finite": math.isfinite(checksum(model, optimizer)),
            "line": [line for line in lines if "step 3" in line]}


def rank_answers(rank, world):
    """A function as on_bad may answer otherwise on each rank: the most severe answer is everybody's."""
    found = []
    for mine, theirs in (("skip", "report"), ("report", "rollback"), ("rollback", "skip"), ("raise", "rollback"),
                         ("skip", "raise"), ("report", "skip"), ("report", "report")):
        model, optimizer, guard, lines = own(rank, on_bad=lambda report: mine if rank == 0 else theirs, state_every=0,
                                             max_skips=0 if "rollback" in (mine, theirs) else 5,
                                             snapshot=esper.Snapshots())
        guard.attach()
        step_own(model, optimizer, 0)
        try:
            step_own(model, optimizer, 1, True, lambda: rank == 1 and guard.inject("last.bias.grad", 1))
            found.append("rollback" if guard.n_rollbacks else "skip" if guard.n_skipped else "report")
        except esper.BadGradient:
            found.append("raise")
        guard.detach()
    return {"answers": found}


def rank_answer_fails(rank, world):
    """A function that raises on one rank: the others are not left waiting."""
    def on_bad(report):
        if rank == 1:
            raise KeyError("mine")
        return "skip"

    model, optimizer, guard, lines = own(rank, on_bad=on_bad, state_every=0)
    guard.attach()
    try:
        step_own(model, optimizer, 0, True, lambda: guard.inject("last.bias.grad", 1))
    except (KeyError, esper.BadGradient) as met:
        return {"met": type(met).__name__}
    return {"met": "nothing"}


def rank_asks_alone(rank, world):
    """While a scan of the state is on its way, one rank asks for results, launches and reads; the other does not."""
    model, optimizer, guard, lines = own(rank, FlagSGD, on_bad="rollback", state_every=1,
                                         snapshot=esper.Snapshots(every=2))
    guard._machine.at_once = False  # as on a GPU, where nobody waits
    guard.attach()
    asked, line = [], ""
    for step in range(6):
        step_own(model, optimizer, step, True, lambda: rank == 1 and step == 3 and guard.inject("last.bias", 1))
        if rank == 0:
            asked.append(guard.result().ok)
            line = str(guard.last) if step == 3 else line
            guard.launch().result()
            guard.launch(("param",)).result()
    guard.result()
    if rank == 0:
        guard.detach()
    return {"asked": asked, "line": line, "rollbacks": guard.n_rollbacks, "steps": guard.steps,
            "told": [line for line in lines if "rolled back" in line],
            "finite": all(bool(torch.isfinite(p).all()) for p in model.parameters())}


def rank_detaches(rank, world):
    """Bad state that is on its way when the guard is detached: raised on every rank, and nobody is asked."""
    model, optimizer, guard, lines = own(rank, FlagSGD, on_bad="rollback", state_every=1, snapshot=esper.Snapshots())
    guard._machine.at_once = False
    guard.attach()
    step_own(model, optimizer, 0, True, lambda: rank == 1 and guard.inject("last.bias", 1))
    time.sleep(rank)  # not at the same time
    met = ""
    try:
        guard.detach()
    except esper.BadState as error:
        met = str(error)
    dist.barrier()
    model, optimizer, guard, lines = own(rank, FlagSGD, on_bad="skip", state_every=0)
    guard.attach()
    for step in range(2):  # a bad gradient, which was passed over, is no reason to raise
        step_own(model, optimizer, step, True, lambda: rank == 1 and step == 1 and guard.inject("last.bias.grad", 1))
    guard.detach()
    return {"met": met, "line": lines[-1]}


def rank_other_call(rank, world):
    """The ranks are at different calls: a sentence on both, rather than a wait or a wrong answer."""
    model, optimizer, guard, lines = own(rank, on_bad="raise", state_every=0, snapshot=esper.Snapshots())
    guard.attach()
    try:
        if rank == 0:
            guard.snapshot()
        else:
            backward(model, 0)
            optimizer.step()
    except esper.GuardError as met:
        return {"met": str(met)}
    return {"met": ""}


def rank_does_not_come(rank, world):
    """One rank takes a snapshot, the other never does: the process group's timeout ends the wait with a sentence."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=3))
    torch.manual_seed(0)
    model = Net()
    guard = esper.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, log=lambda line: None,
                        snapshot=esper.Snapshots())
    if rank == 1:
        time.sleep(6)
        return {"met": ""}
    try:
        guard.snapshot()
    except esper.GuardError as met:
        return {"met": str(met)}
    return {"met": ""}


def rank_enough(rank, world):
    """The state is bad on one rank, and there were rollbacks enough: every rank meets the same exception."""
    model, optimizer, guard, lines = own(rank, on_bad="rollback", state_every=1, max_rollbacks=0)
    guard.attach()
    try:
        step_own(model, optimizer, 0, True, lambda: rank == 1 and guard.inject("last.bias", 1))
    except esper.BadTensor as met:
        return {"met": type(met).__name__}
    return {"met": ""}


class LenientScaler(PlainScaler):
    """PlainScaler for optimisers some of whose parameters have no gradient."""

    def unscale_(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for grad in grads:
            grad.mul_(1 / self._scale)
        bad = not all(bool(torch.isfinite(grad).all()) for grad in grads)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {"cpu": torch.full((1,), float(bad))}


def random_run(rank, seed):
    """Twelve steps under options that all ranks draw alike; what befalls its gradients and state, and what it asks the
    guard in between, each rank draws for itself. What became of the steps."""
    ours, mine = random.Random(seed), random.Random(1000 * seed + rank + 1)
    kind = ours.choice([torch.optim.AdamW, FlagSGD, torch.optim.SGD])
    on_bad = ours.choice(["skip", "rollback", "raise", lambda report: mine.choice(["skip", "rollback", "report"])])
    scaler = LenientScaler() if ours.random() < 0.35 else None
    model, optimizer, guard, lines = own(
        rank, kind, on_bad=on_bad, state_every=ours.choice([0, 1, 3]), clip=ours.choice([None, 0.5]),
        snapshot=esper.Snapshots(every=ours.choice([1, 2, 5])), max_skips=ours.choice([0, 1, 5]),
        max_rollbacks=ours.choice([1, 100]), lr_backoff=ours.choice([1.0, 0.5]))
    guard._machine.at_once = guard._machine.at_once and ours.random() < 0.5
    attached = ours.random() < 0.7
    if attached:
        guard.attach(scaler)
    became = []
    for step in range(12):
        optimizer.zero_grad(set_to_none=True)
        befall(mine, model, guard, step)
        try:
            if not attached:
                guard.step(optimizer, scaler)
            else:
                optimizer.step() if scaler is None else scaler.step(optimizer)
            became.append("made")
        except esper.BadTensor as met:
            became.append(type(met).__name__)
            if isinstance(met, esper.BadState):
                break
        if scaler is not None:
            scaler.update()
        if mine.random() < 0.3:
            guard.result()
        if mine.random() < 0.2:
            guard.launch().result()
        if ours.random() < 0.1:
            became.append(guard.snapshot())
    became += [guard.steps, guard.n_skipped, guard.n_rollbacks, guard.lr_factor]
    try:
        guard.detach()
    except esper.BadState:
        pass
    return became


def befall(mine, model, guard, step):
    if mine.random() < 0.8:
        backward(model, step)
        for parameter in list(model.parameters())[:mine.choice([0, 0, 0, 2, 5])]:
            parameter.grad = None
        if mine.random() < 0.15 and model.second.weight.grad is not None:
            wide = torch.zeros(8, 32)
            wide[:, ::2] = model.second.weight.grad
            model.second.weight.grad = wide[:, ::2]
        if mine.random() < 0.15:
            guard.inject("last.bias.grad", 1)
    if mine.random() < 0.06:
        guard.inject("first.weight", 3)


def rank_random(rank, world):
    return {str(seed): random_run(rank, seed) for seed in range(20)}


class Mesh:
    """What of a DeviceMesh the guard uses."""

    def __init__(self, groups):
        self.groups, self.ndim = groups, len(groups)

    def get_group(self, dim):
        return self.groups[dim]


def placement(sharded):
    return types.SimpleNamespace(is_shard=lambda: sharded)


def standing_in(mesh, layout):
    """A model whose parameters look like the local parts of DTensors: by name, which mesh dimensions each is sharded
    over."""
    torch.manual_seed(0)
    model = Net()
    for name, parameter in model.named_parameters():
        parameter.device_mesh = mesh
        parameter.placements = [placement(sharded) for sharded in layout(name)]
    return model


def rank_meshes(rank, world):
    """Two dimensions: norms are summed over those that a parameter is sharded over, and no others."""
    alone = [dist.new_group([i]) for i in range(world)][rank]
    everybody = dist.new_group(list(range(world)))
    model = standing_in(Mesh([everybody, alone]), lambda name: (name.startswith("first"), name.startswith("second")))
    found = {}
    scaler = PlainScaler()
    for on_bad in ("raise", "report", "skip", "scaler"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaled = on_bad == "scaler"
        guard = esper.Guard(model, optimizer, "skip" if scaled else on_bad, clip=0.5, log=lambda line: None)
        guard.attach(scaler if scaled else None)
        exact = 0.0
        for name, parameter in model.named_parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + (rank if name.startswith("first") else 0.0))
            squares = float(parameter.grad.double().pow(2).sum())
            exact += parameter.numel() * (1.0 + 4.0) if name.startswith("first") else squares
            parameter.grad *= 1024.0 if scaled else 1.0
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        report = guard.result()
        kept = sum(float(p.grad.double().pow(2).sum()) for p in model.parameters())
        found[on_bad] = {"norm": report.total_norm, "exact": math.sqrt(exact), "path": guard.mode,
                         "factor": math.sqrt(kept / sum(
                             p.numel() * (1.0 + (rank if n.startswith("first") else 0.0))**2
                             for n, p in model.named_parameters()))}
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        pending = guard.launch()
        before = pending.result()
        found[on_bad].update(alone=str(before.total_norm), said=any("sharded" in s for s in before.not_covered),
                             line=str(before), together=pending.result(over_ranks=True).total_norm)
        guard.detach()
    both = sum(p.numel() * (2 if n.startswith("first") else 1) for n, p in model.named_parameters())
    return {"steps": found, "both": math.sqrt(both)}


def rank_different_meshes(rank, world):
    meshes = [Mesh([dist.group.WORLD]), Mesh([dist.group.WORLD])]
    model = standing_in(meshes[0], lambda name: (True,))
    model.last.weight.device_mesh = meshes[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    met = []
    for group in ("auto", None):
        try:
            esper.Guard(model, optimizer, group=group)
        except esper.Unsupported as error:
            met.append(str(error))
    guard = esper.Guard(model, optimizer, group=dist.group.WORLD, log=lambda line: None).attach()
    backward(model, 0)
    exact = math.sqrt(2 * sum(float(p.grad.double().pow(2).sum()) for p in model.parameters()))
    optimizer.step()
    return {"met": met, "norm": guard.last.total_norm, "exact": exact}


class LocalScaler(PlainScaler):
    """PlainScaler over the local parts of DTensors."""

    def unscale_(self, optimizer):
        bad = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                grad = _tensors.local(parameter.grad)
                grad.mul_(1 / self._scale)
                bad = bad or not bool(torch.isfinite(grad).all())
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {"cpu": torch.full((1,), float(bad))}


def sharded(world, names, shape):
    from torch.distributed.device_mesh import init_device_mesh
    torch.manual_seed(0)
    whole, model = Net(), Net()
    model.load_state_dict(whole.state_dict())
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for part in (model.first, model.second, model.last, model):
        fully_shard(part, mesh=mesh)
        if len(shape) > 1 and hasattr(part, "set_force_sum_reduction_for_comms"):
            part.set_force_sum_reduction_for_comms(True)  # gloo's all_reduce knows no averages
    return whole, model


def fsdp2_norms(rank, world, names, shape):
    """Norms and clipping on every path, and a bad shard of one rank."""
    found = {}
    for on_bad in ("raise", "report", "skip", "scaler"):
        whole, model = sharded(world, names, shape)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = LocalScaler() if on_bad == "scaler" else None
        lines = []
        guard = esper.Guard(model, optimizer, "skip" if scaler else on_bad, clip=1e-3, log=lines.append)
        guard.attach(scaler)
        backward(whole, 0)
        backward(model, 0)
        exact = float(torch.cat([p.grad.flatten() for p in whole.parameters()]).double().norm())
        told = guard.launch().result(over_ranks=True).total_norm
        alone = guard.launch().result()
        if scaler is not None:
            for parameter in model.parameters():
                _tensors.local(parameter.grad).mul_(1024.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        norm = guard.result().total_norm
        clipped = math.sqrt(sum(float(p.grad.full_tensor().double().norm()) ** 2 for p in model.parameters()))
        optimizer.zero_grad()
        backward(model, 0)
        if rank == world - 1:
            guard.inject("second.weight.grad", 1)
        raised = ""
        try:
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        except esper.BadGradient as met:
            raised = str(met)
        found[on_bad] = {"exact": exact, "norm": norm, "clipped": clipped, "launch": told, "raised": raised,
                         "alone": math.isnan(alone.total_norm), "bad": guard.last.ok is False,
                         "line": str(guard.last)}
    return found


def rank_fsdp2_paths(rank, world):
    return fsdp2_norms(rank, world, ("shard",), (world,))


def rank_hsdp(rank, world):
    return fsdp2_norms(rank, world, ("replicate", "shard"), (2, world // 2))


# ---- what is required

@needs_gloo
class TestVotes(JobCase):
    script = __file__
    names = ["no_gradients", "spike", "first_step", "answers", "answer_fails", "asks_alone", "detaches", "enough",
             "random", "meshes", "different_meshes", "other_call", "does_not_come"]

    def test_a_rank_without_gradients(self):
        found = self.found("no_gradients")
        for kind in ("AdamW", "FlagSGD"):
            for rank in found:
                self.assertEqual(rank[kind + " skip"][:3], [6, 1, 0], kind)
                self.assertEqual(rank[kind + " raise"][:3], [6, 0, 1], kind)
                self.assertEqual(rank[kind + " rollback"][:3], [6, 1, 0], kind)
                self.assertTrue(all(rank[f"{kind} {on_bad}"][4] for on_bad in ("skip", "raise", "rollback")))
            self.assertEqual(found[1][kind + " skip"][3], 1)  # it was told of rank 0's

    def test_a_spike_of_one_rank(self):
        found = self.found("spike")
        self.assertEqual([rank["skipped"] for rank in found], [1, 1])
        self.assertEqual([rank["kept"] for rank in found], [[80, 80, 80, 80, 84, 85]] * 2)
        self.assertEqual(found[0]["sum"], found[1]["sum"])
        self.assertIn("step 83: a spike on rank 1, none on this one; first on rank 1 of 2", found[0]["lines"][0])
        self.assertIn("step 83: the loss is far too high 3 times in a row, now 1e+06", found[1]["lines"][0])

    def test_a_rank_whose_optimizer_has_no_state_yet(self):
        found = self.found("first_step")
        self.assertEqual([rank["skipped"] for rank in found], [1, 1])
        self.assertTrue(all(rank["finite"] for rank in found))
        self.assertEqual(found[0]["seen"], [0.0, 0.0, 1.0, 0.0, 0.0])
        self.assertIn("NaN or Inf on rank 0, none on this one", found[1]["line"][0])

    def test_the_most_severe_answer(self):
        for rank in self.found("answers"):
            self.assertEqual(rank["answers"], ["skip", "rollback", "rollback", "raise", "raise", "skip", "report"])

    def test_an_answer_that_fails(self):
        self.assertEqual([rank["met"] for rank in self.found("answer_fails")], ["BadGradient", "KeyError"])

    def test_one_asks_alone(self):
        found = self.found("asks_alone")
        self.assertEqual([rank["rollbacks"] for rank in found], [1, 1])
        self.assertEqual(found[0]["steps"], found[1]["steps"])
        self.assertEqual(found[0]["asked"], [True, True, True, False, False, True])  # the fifth was not made
        self.assertIn("NaN in last.bias, 1 of 3, first at 1; first on rank 1 of 2", found[1]["told"][0])
        self.assertIn("to be acted on at the next step", found[0]["line"])
        self.assertTrue(all(rank["finite"] for rank in found))

    def test_detached_with_bad_state(self):
        found = self.found("detaches")
        self.assertIn("NaN or Inf on rank 1, none on this one; first on rank 1 of 2; "
                      "found when the guard was detached", found[0]["met"])
        self.assertIn("NaN in last.bias, ", found[1]["met"])
        self.assertIn("step 2: NaN in last.bias.grad, 1 of 3, first at 1; first on rank 1 of 2; step skipped",
                      found[1]["line"])

    def test_every_rank_meets_the_same_exception(self):
        self.assertEqual([rank["met"] for rank in self.found("enough")], ["BadState"] * 2)

    def test_random_faults_are_everybody_s(self):
        first, second = self.found("random")
        for seed, became in first.items():
            self.assertEqual(became, second[seed], f"seed {seed}")
        self.assertTrue(any("BadGradient" in became for became in first.values()))
        self.assertTrue(any(became[-2] > 1 for became in first.values()))  # rollbacks

    def test_different_calls(self):
        found = self.found("other_call")
        self.assertIn("this one is judging the state, another is judging gradients", found[0]["met"])
        self.assertIn("this one is judging gradients, another is judging the state", found[1]["met"])
        self.assertIn("all ranks, or none, call optimizer.step()", found[1]["met"])

    def test_a_rank_that_does_not_come(self):
        met = self.found("does_not_come")[0]["met"]
        self.assertIn("the other ranks could not be asked", met)
        self.assertIn("all ranks, or none, call optimizer.step()", met)

    def test_norms_over_two_dimensions(self):
        for rank in self.found("meshes"):
            for on_bad, told in rank["steps"].items():
                self.assertAlmostEqual(told["norm"], told["exact"], delta=1e-6 * told["exact"], msg=on_bad)
                self.assertAlmostEqual(told["factor"], 0.5 / told["exact"], delta=1e-6, msg=on_bad)
                self.assertIn("one wait a step", told["path"])
                self.assertEqual((told["alone"], told["said"]), ("nan", True))
                self.assertIn("tensors are finite on this rank", told["line"])
                self.assertAlmostEqual(told["together"], rank["both"], delta=1e-6)

    def test_different_meshes(self):
        for rank in self.found("different_meshes"):
            self.assertIn("first.weight and last.weight are sharded over different meshes", rank["met"][0])
            self.assertIn("group=None and sharded parameters", rank["met"][1])
            self.assertAlmostEqual(rank["norm"], rank["exact"], delta=1e-6 * rank["exact"])


class ShardedCase(JobCase):
    script = __file__

    def check(self, name):
        for rank in self.found(name):
            for on_bad, told in rank.items():
                with self.subTest(on_bad=on_bad):
                    self.assertAlmostEqual(told["norm"], told["exact"], delta=1e-5 * told["exact"])
                    self.assertAlmostEqual(told["launch"], told["exact"], delta=1e-5 * told["exact"])
                    self.assertAlmostEqual(told["clipped"], 1e-3, delta=1e-6)
                    self.assertTrue(told["alone"])
                    self.assertTrue(told["bad"], told["line"])
                    self.assertEqual(bool(told["raised"]), on_bad == "raise")


@needs_gloo
@needs(fully_shard is not None, "fully_shard (FSDP2)")
class TestSharded(ShardedCase):
    names = ["fsdp2_paths"]

    def test_fsdp2_on_every_path(self):
        self.check("fsdp2_paths")


@needs_gloo
@needs(fully_shard is not None, "fully_shard (FSDP2)")
class TestHybrid(ShardedCase):
    names, world = ["hsdp"], 4

    def test_a_mesh_of_two_dimensions(self):
        self.check("hsdp")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:], globals())
    else:
        unittest.main()
