"""Over a process group: whether any rank is bad, and which was first; norms of gradients that are sharded."""

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from . import _abi, _names
from ._errors import GuardError, Unsupported
from ._scan import Reading

_BITS = 6  # of _abi.BAD_*
_WORDS = 10  # of every vote, whatever it is about: ranks that are not at the same one still meet, and find out
_VOTES = ("judging gradients", "judging the state", "verifying a rollback", "asking on_bad",
          "looking for snapshots on disk", "looking whether a snapshot may be taken")
GRADIENTS, STATE, RESTORED, ANSWER, DISK, CALM = range(len(_VOTES))
ALIKE = ("all ranks, or none, call optimizer.step(), guard.attach(), snapshot(), rollback(), refresh() and "
         "launch().result(over_ranks=True)")


def _initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def own_rank() -> int:
    """Of this process, whether or not it decides together with others."""
    return torch.distributed.get_rank() if _initialized() else 0


def _ddp(model: torch.nn.Module) -> Optional[torch.nn.Module]:
    """The DistributedDataParallel among a model's wrappers."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return model
        if not hasattr(model, "_orig_mod"):
            return None
        model = model._orig_mod


def find_groups(model: torch.nn.Module) -> List[Any]:
    """The groups that train this model together: DDP's, or those of the mesh that its parameters are sharded over.
    Where neither tells, gradients may be reduced by hand: one rank that passed over a step alone would have another
    model from then on, so all ranks decide together."""
    ddp = _ddp(model)
    if ddp is not None:
        return [ddp.process_group]
    first, mesh = "", None
    for name, parameter in _names.parameters(model):
        other = getattr(parameter, "device_mesh", None)
        if other is None or mesh is other or (mesh is not None and mesh == other):
            continue
        if mesh is not None:
            raise Unsupported(f"{first} and {name} are sharded over different meshes, from which it cannot be told "
                              "which ranks train together: give the process group of all of them, as "
                              "group=torch.distributed.group.WORLD")
        first, mesh = name, other
    if mesh is not None:
        return [mesh.get_group(dim) for dim in range(mesh.ndim)]
    return [torch.distributed.group.WORLD] if torch.distributed.get_world_size() > 1 else []


class Peers:
    """The ranks that decide together. Without any, every question is answered here."""

    def __init__(self, model: torch.nn.Module, group: Any) -> None:
        if group is not None and group != "auto" and not _initialized():
            raise GuardError("group= is given, but torch.distributed is not initialized: init_process_group first")
        self._group = group
        self._ddp: Optional[torch.nn.Module] = None
        self.told_of_join = False
        self.look(model)

    def look(self, model: torch.nn.Module) -> None:
        """Finds out, for a model as it is now, who trains it together and what is sharded."""
        self._ddp = _ddp(model)
        if self._group == "auto":
            self.groups = find_groups(model) if _initialized() else []
        else:
            self.groups = [] if self._group is None else [self._group]
        self.rank = torch.distributed.get_rank() if self.groups else 0
        self.world = torch.distributed.get_world_size() if self.groups else 1
        self.shards: Dict[str, Tuple[Tuple[Any, int], ...]] = {}
        for name, parameter in _names.parameters(model):
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None:
                self.shards[name] = tuple((mesh, dim) for dim, placement in enumerate(parameter.placements)
                                          if placement.is_shard())
        # nothing but the number of ranks says so
        self.guessed = bool(self.groups) and self._group == "auto" and self._ddp is None and not self.shards
        if self._group is None and self.shards:
            raise Unsupported("group=None and sharded parameters: a rank that passed over a step alone would hold "
                              "shards of another model than the others. Leave group='auto', or give the process group")

    def __bool__(self) -> bool:
        return bool(self.groups) and not self.within_join

    @property
    def within_join(self) -> bool:
        """DDP.join(): ranks that have no more inputs do not come, so nobody can be asked. Gradients, which DDP has
        reduced, are the same on all that are there; each decides by them."""
        config = getattr(self._ddp, "_join_config", None)
        return config is not None and bool(config.enable)

    def _reduce(self, values: List[float], op: Any, groups: Sequence[Any]) -> List[float]:
        for group in groups:
            backend = str(torch.distributed.get_backend(group))
            device = "cuda" if "nccl" in backend and "gloo" not in backend else "cpu"
            tensor = torch.tensor(values, dtype=torch.float64, device=device)
            self._all_reduce(tensor, op, group)
            values = tensor.tolist()
        return values

    @staticmethod
    def _all_reduce(tensor: torch.Tensor, op: Any, group: Any) -> None:
        try:
            torch.distributed.all_reduce(tensor, op=op, group=group)
        except RuntimeError as error:  # a rank has gone, or did not come within the group's timeout
            raise GuardError(f"the other ranks could not be asked: {error}. Each has to be here: {ALIKE}. Where ranks "
                             "train apart from each other, make the guard with group=None") from error

    def _vote(self, about: int, values: List[float]) -> List[float]:
        """The largest of each value over the ranks. Raises when they are not voting about the same thing."""
        words = [float(about), -float(about), *values] + [0.0] * (_WORDS - 2 - len(values))
        found = self._reduce(words, torch.distributed.ReduceOp.MAX, self.groups)
        if found[0] != -found[1]:
            other = int(found[0]) if found[0] != about else int(-found[1])
            raise GuardError(f"the ranks are not at the same call of the guard: this one is {_VOTES[about]}, another "
                             f"is {_VOTES[other]}. Each has to be here: {ALIKE}")
        return found[2:]

    def verdict(self, bits: int, about: int = GRADIENTS) -> Tuple[int, Optional[int]]:
        """The bits of all ranks together, and the lowest rank that has any."""
        if not self:
            return bits, None
        values = [float(bits >> bit & 1) for bit in range(_BITS)] + [float(self.world - self.rank if bits else 0)]
        values = self._vote(about, values)
        found = sum(1 << bit for bit in range(_BITS) if values[bit])
        return found, self.world - int(values[_BITS]) if found else None

    def agree(self, good: bool, about: int = RESTORED) -> bool:
        """Whether it is so on every rank: that what was restored is good, unless said."""
        return good if not self else self._vote(about, [float(not good)])[0] == 0.0

    def common(self, numbers: Sequence[int]) -> Optional[int]:
        """The largest number that every rank has."""
        bound = max(numbers, default=-1)
        while True:
            mine = max((number for number in numbers if number <= bound), default=-1)
            if not self:
                return mine if mine >= 0 else None
            most, least = self._vote(DISK, [float(mine), -float(mine)])[:2]
            if most == -least:
                return int(most) if most >= 0 else None
            bound = int(-least)

    def most(self, number: int) -> int:
        """The largest number that any rank has."""
        return number if not self else int(self._vote(ANSWER, [float(number)])[0])

    def spread(self, flag: torch.Tensor) -> None:
        """A flag on the device becomes the largest of all ranks', without a wait where the backend has none."""
        for group in self.groups:
            self._all_reduce(flag, torch.distributed.ReduceOp.MAX, group)

    def sum_of_squares(self, readings: Sequence[Reading]) -> Optional[float]:
        """Of all gradients: of a sharded one, the squares of all shards; of a replicated one, those of one copy."""
        if not self.shards:
            return None
        sums: Dict[Tuple[Tuple[Any, int], ...], float] = {over: 0.0 for over in self.shards.values()}
        sums.setdefault((), 0.0)
        for reading in readings:
            for item, stat in zip(reading.items, reading.stats()):
                if item.role == _abi.GRAD:
                    sums[self.shards.get(item.name, ())] += stat.norm * stat.norm
        total = 0.0
        for over, squares in sums.items():  # in the same order on every rank: that of the parameters
            for mesh, dim in over:
                squares = self._reduce([squares], torch.distributed.ReduceOp.SUM, [mesh.get_group(dim)])[0]
            total += squares
        return math.nan if math.isnan(total) else total
