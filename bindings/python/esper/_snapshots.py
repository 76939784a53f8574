"""Copies of the last good states, in memory that torch allocates, and the way back to them.

A snapshot counts only after the scan of the state it was taken from found it finite. That scan also sums the bytes of
every tensor; after a rollback the restored state is summed again, and an entry that was damaged meanwhile is passed
over for the next older one.
"""

import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Literal, Optional, Sequence, Tuple, Union

import torch

from . import _copy
from ._copy import Copy, Extras, Slot
from ._cover import Cover, Key
from ._disk import Disk
from ._errors import GuardError, NoSnapshot
from ._ranks import Peers
from ._rate import Rate
from ._report import some
from ._scan import Reading


@dataclass
class Snapshots:
    """How snapshots are kept.

    every: steps from one to the next. keep: how many, 2 or more. where: "device", "host" (pinned, for tensors on a
    GPU) or "auto": on the device if they fit there. max_bytes: of all of them together; None is no limit.
    directory: where the newest is also kept on disk, written in the background, for guard.resume() of a later job. It
    takes host memory of its own, three times the size of a snapshot, which max_bytes does not count.
    """

    every: int = 200
    keep: int = 2
    where: Literal["auto", "device", "host"] = "auto"
    max_bytes: Optional[int] = None
    directory: Union[None, str, "os.PathLike[str]"] = None

    def __post_init__(self) -> None:
        if self.directory is not None and not isinstance(self.directory, (str, os.PathLike)):
            raise TypeError(f"Snapshots(directory={self.directory!r}): expected a path, or None")
        for name, value in (("every", self.every), ("keep", self.keep), ("max_bytes", self.max_bytes)):
            if name == "max_bytes" and value is None:
                continue
            if not hasattr(value, "__index__") or isinstance(value, bool):
                raise TypeError(f"Snapshots({name}={value!r}): expected a whole number")
        if self.every < 1:
            raise ValueError(f"Snapshots(every={self.every}): expected 1 or more steps")
        if self.keep < 2:
            raise ValueError(f"Snapshots(keep={self.keep}): expected 2 or more, for while one is being taken another "
                             "has to be good")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"Snapshots(max_bytes={self.max_bytes}): expected 1 or more; None is no limit")
        if self.where not in ("auto", "device", "host"):
            raise ValueError(f"Snapshots(where={self.where!r}): expected 'auto', 'device' or 'host'")


def size_text(n_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return some(n_bytes, "byte")


class Restored:
    """What a rollback has brought back, and what not."""

    def __init__(self, entry: Copy, readings: List[Reading], left: List[str]) -> None:
        self.entry = entry
        self.readings = readings  # of the state as it is now
        self.left = left  # names of tensors that are not in the snapshot: they stay as they were


class Ring:
    """The good states, oldest first. Each lies in one of `keep` slots: a slot that no good state has is free, so that
    whatever breaks off the taking of a snapshot, nothing is lost."""

    def __init__(self, config: Snapshots, cover: Cover, extras: Dict[str, Any], peers: Peers, rate: Rate,
                 tell: Callable[..., None]) -> None:
        self.config = config
        self.good: List[Copy] = []
        self.extras = Extras(extras, cover)
        self._cover = cover
        self._peers = peers
        self._rate = rate
        self._tell = tell
        self._slots: List[Slot] = [{} for _ in range(config.keep)]
        self._told = 0
        self._n_extra_bytes = 0
        self.knows_state = False  # the optimiser's was there when sizes were last summed up
        self._told_of_scheduler = False
        self._on_host: Optional[bool] = None
        self.disk = None if config.directory is None else Disk(os.fspath(config.directory), peers.rank, tell)
        self.guard_state: Callable[[], Dict[str, Any]] = dict  # what goes to disk of the guard itself
        self._put_back: Optional[Copy] = None  # whose schedule is looked at once more when the loop comes back

    # ------------------------------------------------------------------------------------------------------- memory

    def memory(self) -> Dict[str, int]:
        """Bytes that snapshots take now, on devices and in host memory."""
        sizes = _copy.n_bytes(self._slots)
        for entry in self.good:
            for where, size in entry.n_extra_bytes().items():
                sizes[where] += size
        return sizes

    def _plan(self, tensors: List[Tuple[Key, torch.Tensor]]) -> None:
        """Before the first copy, and when the state has grown: where copies go, whether they may, how much it is."""
        one = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors) + self._n_extra_bytes
        if one == self._told:
            return
        need = one * self.config.keep
        if self.config.max_bytes is not None and need > self.config.max_bytes:
            fewer = ", or keep fewer (2 at least)" if self.config.keep > 2 else " (fewer than 2 cannot be kept)"
            raise GuardError(f"{self.config.keep} snapshots of {size_text(one)} are {size_text(need)}, more than "
                             f"max_bytes, {size_text(self.config.max_bytes)}: allow more{fewer}")
        if self._on_host is None:
            self._on_host = self.config.where == "host" or (self.config.where == "auto" and not _fits(tensors, need))
        where = "host memory" if self._on_host or all(not t.is_cuda for _, t in tensors) else "device memory"
        if self._told == 0:
            more = "" if any(_is_state(key) for key, _ in tensors) else "; optimizer state joins when there is any"
            self._tell("snapshot", f"snapshots: {self.config.keep} of {size_text(one)} in {where}{more}")
        else:
            self._tell("snapshot", f"snapshots: {self.config.keep} of {size_text(one)} in {where} from now on")
        self._told = one

    def plan_ahead(self) -> None:
        """The optimiser has made its state: what snapshots will take is known now, long before the next is due."""
        self._plan(_copy.live_tensors(self._cover))
        self.knows_state = True

    def _empty(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda and self._on_host:
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return torch.empty_like(tensor)

    # --------------------------------------------------------------------------------------------------------- take

    def take(self, step: int) -> Copy:
        """Copies the state, behind what is queued. It counts when `judge` has seen the scan that was queued with it."""
        tensors = _copy.live_tensors(self._cover)
        if self.disk is not None and not self.disk.has_begun:
            self.disk.begin(self._peers.most(self.disk.newest()))
        if self._told == 0:
            states = [item.state_dict() for item in self.extras.items.values()]
            self._n_extra_bytes = sum(_copy.n_bytes(states).values())
        self._plan(tensors)
        self.knows_state = self.knows_state or any(_is_state(key) for key, _ in tensors)
        if len(self.good) == len(self._slots):
            self.good = self.good[1:]
        used = [id(entry.slot) for entry in self.good]
        slot = next(slot for slot in self._slots if id(slot) not in used)
        entry = _copy.take(step, slot, tensors, self._cover, self.extras, self._empty)
        self._n_extra_bytes = sum(entry.n_extra_bytes().values())
        return entry

    def judge(self, entry: Copy, reading: Optional[Reading], good: bool) -> None:
        """The scan of what was copied is known."""
        if not good or (self.good and self.good[-1] is entry):
            return
        if reading is not None:
            entry.checksums = {(item.name, item.role): stat.checksum
                               for item, stat in zip(reading.items, reading.stats())}
        self.good = [*self.good, entry]

    def come_back(self) -> None:
        """The loop is here again: its iteration is over, scheduler.step() included. After a rollback schedulers that
        went back are where the iteration of the snapshot left them, whether the loop has stepped them or not."""
        self.close_iteration()
        entry, self._put_back = self._put_back, None
        if entry is not None:
            schedulers, _ = self.extras.split()
            if schedulers and _copy.schedule_differs(entry, self._cover, schedulers):
                _copy.put_back_schedule(entry.schedule, self._cover, schedulers)

    def close_iteration(self) -> None:
        """The newest snapshot has the schedule as it is now, and is whole: it goes to disk."""
        if self.good and self.good[-1].is_open:
            _copy.close_iteration(self.good[-1], self._cover, self.extras)
            if self.disk is not None:
                self.good[-1].guard = self.guard_state()
                self.disk.write(self.good[-1])

    def adopt(self, entry: Copy) -> None:
        """A snapshot from disk: the only one now."""
        self._slots[0] = entry.slot
        self.good = [entry]

    # ------------------------------------------------------------------------------------------------------ restore

    def restore(self, asked: bool) -> Restored:
        """Puts the newest good state back, verified. Gradients, which are of the state that is gone, become zero.
        asked: by guard.rollback(), between two steps: the random state goes back, too."""
        self.close_iteration()
        if not self.good:
            raise NoSnapshot("rollback: there is no good snapshot yet. Call guard.snapshot() before the first step "
                             "(attach() does so when the guard has snapshots)")
        watched = self._cover.watched
        watched.look()
        watched.validate()
        while self.good:
            entry = self.good[-1]
            self._tell_of_scheduler(entry)
            left = _copy.put_back(entry, self._cover, self.extras, self._rate.set_inside, within=not asked)
            found = _copy.verify(entry, self._cover)
            if self._peers.agree(found.damaged is None and found.absent is None):
                _zero_gradients(watched.tensors)
                if asked:
                    _copy.put_back_rng(entry.rng)
                self._put_back = entry
                return Restored(entry, found.readings, left)
            why = "was damaged in memory" if found.absent is None else f"has {found.absent}, which has no place now"
            self._tell("snapshot", f"rollback: the snapshot of step {entry.step} {why}; trying an older one")
            self.good = self.good[:-1]
        raise NoSnapshot("rollback: all snapshots were damaged in memory, and what is in the tensors now is not to be "
                         "trusted: load a checkpoint")

    def _tell_of_scheduler(self, entry: Copy) -> None:
        if (not self._told_of_scheduler and _copy.schedule_differs(entry, self._cover, {})
                and not self.extras.split()[0]):
            self._told_of_scheduler = True
            self._tell("rollback", "a scheduler that is not in state= sets the learning rate: it goes on where it is")


def _zero_gradients(parameters: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()


def _is_state(key: Key) -> bool:
    return key[0].startswith("state")


def _fits(tensors: List[Tuple[Key, torch.Tensor]], need: int) -> bool:
    """Whether a device has room for the snapshots, and for optimiser state twice the size of what is there now."""
    devices = {tensor.get_device() for _, tensor in tensors if tensor.is_cuda}
    if not devices or not hasattr(torch.cuda, "mem_get_info"):
        return True
    has_state = any(_is_state(key) for key, _ in tensors)
    return all(need * (1 if has_state else 5) < 0.9 * torch.cuda.mem_get_info(device)[0] for device in devices)
