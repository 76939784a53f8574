"""Copies of the last good states, in memory that torch allocates, and the way back to them.

A snapshot counts only after the scan of the state it was taken from found it finite. That scan also sums the bytes of
every tensor; after a rollback the restored state is summed again, and an entry that was damaged meanwhile is passed
over for the next older one.
"""

import copy
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from . import _names, _tensors
from ._dist import Peers
from ._errors import GuardError, NoSnapshot
from ._report import some
from ._scan import Reading
from ._state import Key, State, flat, put


# What schedulers set in the groups of an optimiser.
_SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas", "base_momentum", "max_momentum")


@dataclass
class Snapshots:
    """How snapshots are kept.

    every: steps from one to the next. keep: how many, 2 or more. where: "device", "host" (pinned, for tensors on a
    GPU) or "auto": on the device if they fit there. max_bytes: of all of them together; None is no limit.
    """

    every: int = 200
    keep: int = 2
    where: str = "auto"
    max_bytes: Optional[int] = None

    def __post_init__(self) -> None:
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


class Entry:
    """One state."""

    def __init__(self, step: int, slot: Dict[Key, torch.Tensor]) -> None:
        self.step = step
        self.slot = slot  # buffers, also such as this entry has no use for
        self.keys: List[Key] = []
        self.devices: Dict[Key, torch.device] = {}
        self.loose: Dict[str, List[Tuple[Key, Any]]] = {}  # by parameter: what of its optimiser state is no tensor
        self.lists: Dict[str, Dict[Any, int]] = {}  # by parameter: which of its state are lists of tensors, how long
        self.groups: List[Dict[str, Any]] = []
        self.extras: Dict[str, Any] = {}
        self.rng: Dict[int, torch.Tensor] = {}
        self.checksums: Dict[Tuple[str, int], int] = {}


class Ring:
    """The entries, oldest first."""

    def __init__(self, config: Snapshots, state: State, extras: Dict[str, Any], peers: Peers,
                 log: Callable[[str], None]) -> None:
        self.config = config
        self.good: List[Entry] = []
        self._state = state
        self._extras = extras
        self._peers = peers
        self._log = log
        self._free: List[Dict[Key, torch.Tensor]] = [{} for _ in range(config.keep)]
        self._taken: Optional[Entry] = None  # and not judged yet
        self._told = 0
        self.knows_state = False  # the optimiser's was there when sizes were last summed up
        self._told_of_scheduler = False
        self._on_host: Optional[bool] = None
        self.restored: List[Reading] = []  # what the scan of a restored state found

    # ------------------------------------------------------------------------------------------------------- memory

    def memory(self) -> Dict[str, int]:
        """Bytes that snapshots take now, on devices and in host memory."""
        slots = self._free + [entry.slot for entry in [*self.good, *([self._taken] if self._taken is not None else [])]]
        sizes = {"device": 0, "host": 0}
        for slot in slots:
            for buffer in slot.values():
                sizes["host" if buffer.device.type == "cpu" else "device"] += buffer.numel() * buffer.element_size()
        return sizes

    def _plan(self, tensors: List[Tuple[Key, torch.Tensor]]) -> None:
        """Before the first copy, and when the state has grown: where copies go, whether they may, how much it is."""
        one = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
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
            more = "" if any(key[0] == "state" for key, _ in tensors) else "; optimizer state joins when there is any"
            self._log(f"snapshots: {self.config.keep} of {size_text(one)} in {where}{more}")
        else:
            self._log(f"snapshots: {self.config.keep} of {size_text(one)} in {where} from now on")
        self._told = one

    def plan_ahead(self) -> None:
        """The optimiser has made its state: what snapshots will take is known now, long before the next is due."""
        tensors = [(key, _tensors.local(tensor.detach())) for key, _, tensor in self._state.tensors()]
        self._plan(tensors)
        self.knows_state = True

    def _buffer(self, slot: Dict[Key, torch.Tensor], key: Key, tensor: torch.Tensor) -> torch.Tensor:
        buffer = slot.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            if tensor.is_cuda and self._on_host:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            else:
                buffer = torch.empty_like(tensor)
            slot[key] = buffer
        return buffer

    # --------------------------------------------------------------------------------------------------------- take

    def take(self, step: int) -> Entry:
        """Copies the state, behind what is queued. It counts when `judge` has seen the scan that was queued with it."""
        tensors = [(key, _tensors.local(tensor.detach())) for key, _, tensor in self._state.tensors()]
        self._plan(tensors)
        self.knows_state = self.knows_state or any(key[0] == "state" for key, _ in tensors)
        if not self._free:
            self._free.append(self.good.pop(0).slot)
        entry = Entry(step, self._free[-1])
        entry.keys = [key for key, _ in tensors]
        entry.devices = {key: tensor.device for key, tensor in tensors}
        _copy([self._buffer(entry.slot, key, tensor) for key, tensor in tensors], [tensor for _, tensor in tensors])
        self._keep_rest(entry, tensors)
        self._free.pop()  # now that nothing can fail any more
        self._taken = entry
        return entry

    def _keep_rest(self, entry: Entry, tensors: List[Tuple[Key, torch.Tensor]]) -> None:
        optimizer = self._state.watched.optimizer
        for name, parameter in self._state.watched.parameters:
            if parameter in optimizer.state:
                entry.loose[name] = [(key, copy.deepcopy(value)) for key, value in flat(optimizer.state[parameter])
                                     if not isinstance(value, torch.Tensor)]
                entry.lists[name] = {key: len(value) for key, value in optimizer.state[parameter].items()
                                     if isinstance(value, list) and any(isinstance(v, torch.Tensor) for v in value)}
        entry.groups = [{key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
                        for group in optimizer.param_groups]
        entry.extras = {name: copy.deepcopy(item.state_dict()) for name, item in self._extras.items()}
        entry.rng = {-1: torch.get_rng_state()}
        for device in {tensor.get_device() for _, tensor in tensors if tensor.is_cuda}:
            entry.rng[device] = torch.cuda.get_rng_state(device)

    def judge(self, entry: Entry, reading: Optional[Reading], good: bool) -> None:
        """The scan of what was copied is known."""
        self._taken = None
        if not good:
            self._free.append(entry.slot)
            return
        if reading is not None:
            entry.checksums = {(item.name, item.role): stat.checksum
                               for item, stat in zip(reading.items, reading.stats())}
        self.good.append(entry)

    # ------------------------------------------------------------------------------------------------------ restore

    def restore(self, rng: bool) -> Entry:
        """Puts the newest good state back, verified. rng: the random state too."""
        if not self.good:
            raise NoSnapshot("rollback: there is no good snapshot yet. Call guard.snapshot() before the first step "
                             "(attach() does so when the guard has snapshots)")
        self._state.watched.look()
        self._state.watched.validate()
        while self.good:
            entry = self.good[-1]
            self._put_back(entry)
            if self._peers.agree(self._verify(entry)):
                if rng:
                    _put_back_rng(entry.rng)
                return entry
            self._log(f"rollback: the snapshot of step {entry.step} was damaged in memory; trying an older one")
            self._free.append(self.good.pop().slot)
        raise NoSnapshot("rollback: all snapshots were damaged in memory, and what is in the tensors now is not to be "
                         "trusted: load a checkpoint")

    def _put_back(self, entry: Entry) -> None:
        watched = self._state.watched
        self._shape_optimizer(entry)
        live = {key: tensor for key, _, tensor in self._state.tensors()}
        self._make_missing(entry, live)
        pairs = [(_tensors.local(live[key].detach()), entry.slot[key]) for key in entry.keys if key in live]
        _copy([to for to, _ in pairs], [buffer for _, buffer in pairs])
        for group, saved in zip(watched.optimizer.param_groups, entry.groups):
            leave = _SCHEDULED if "initial_lr" in group and not self._has_scheduler() else ()
            if leave and not self._told_of_scheduler:
                self._told_of_scheduler = True
                self._log("a scheduler that is not in state= sets the learning rate: it goes on where it is")
            _put_back_group(group, saved, leave)
        for name, item in self._extras.items():
            if name in entry.extras:
                item.load_state_dict(copy.deepcopy(entry.extras[name]))

    def _has_scheduler(self) -> bool:
        """Whether what sets the learning rate goes back together with it. A scheduler computes the next rate from the
        one before: it must not find that of an earlier step while it is itself at a later one."""
        return any(getattr(item, "optimizer", None) is self._state.watched.optimizer
                   or any(key in item.state_dict() for key in ("last_epoch", "_last_lr", "_schedulers"))
                   for item in self._extras.values())

    def _shape_optimizer(self, entry: Entry) -> None:
        """State that was not there yet goes, what is no tensor is set, and lists get their length."""
        optimizer = self._state.watched.optimizer
        tops: Dict[str, set] = {name: {key[0] for key, _ in loose if key} for name, loose in entry.loose.items()}
        for key in entry.keys:
            if key[0] == "state":
                tops[key[1]].add(key[2])
        for name, parameter in self._state.watched.parameters:
            if name not in entry.loose:
                optimizer.state.pop(parameter, None)
                continue
            state = optimizer.state[parameter]
            for key in [key for key in state if str(key) not in tops[name]]:
                del state[key]
            for key, length in entry.lists[name].items():
                state[key] = (state.get(key) or [])[:length]
                state[key] += [None] * (length - len(state[key]))
            for key, value in entry.loose[name]:
                if key:
                    put(state, key, copy.deepcopy(value))

    def _make_missing(self, entry: Entry, live: Dict[Key, torch.Tensor]) -> None:
        """Tensors that are gone or have another form come again; the others are written in place."""
        parameters = dict(self._state.watched.parameters)
        places: Dict[str, Tuple[Dict[str, Any], str]] = {}
        for key in entry.keys:
            saved = entry.slot[key]
            now = _tensors.local(live[key].detach()) if key in live else None
            if now is not None and now.shape == saved.shape and now.dtype == saved.dtype:
                continue
            if key[0] == "state" and key[1] in parameters:
                parameter = parameters[key[1]]
                live[key] = _made_anew(saved, parameter, entry.devices[key])
                put(self._state.watched.optimizer.state[parameter], key[2:], live[key])
            elif key[0] == "buffer" and now is not None and not hasattr(live[key], "_local_tensor"):
                live[key].data = saved.to(entry.devices[key], copy=True)  # the same object, wherever modules have it
            elif key[0] == "buffer" and now is None:
                places = places or _names.all_buffer_places(self._state.watched.model)
                if key[1] in places:
                    module, name = places[key[1]]
                    module[name] = live[key] = saved.to(entry.devices[key], copy=True)

    def _verify(self, entry: Entry) -> bool:
        self.restored = []
        scanner = self._state.scanner()
        if scanner is None or not entry.checksums:
            return True
        scanner.launch(checksum=1)
        self._state.drop()
        reading = scanner.read()
        self.restored = [reading]
        now = {(item.name, item.role): stat.checksum for item, stat in zip(reading.items, reading.stats())}
        known = {".".join(key[1:]) for key, _, _ in self._state.tensors()}  # another guard may have taken some up
        return all(now.get(key) == checksum for key, checksum in entry.checksums.items() if key[0] in known)


def _made_anew(saved: torch.Tensor, parameter: torch.nn.Parameter, device: torch.device) -> torch.Tensor:
    """The optimiser's tensor for a copy of it: sharded as its parameter is, where it has that shape."""
    if hasattr(parameter, "_local_tensor") and _tensors.local(parameter).shape == saved.shape:
        return torch.zeros_like(parameter.detach(), dtype=saved.dtype)  # its values are put back with the others
    return saved.to(device, copy=True)


def _put_back_group(group: Dict[str, Any], saved: Dict[str, Any], leave: Sequence[str]) -> None:
    for key, value in saved.items():
        if key in leave:
            continue
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = copy.deepcopy(value)


def _put_back_rng(states: Dict[int, torch.Tensor]) -> None:
    torch.set_rng_state(states[-1])
    for device, state in states.items():
        if device >= 0:
            torch.cuda.set_rng_state(state, device)


def _fits(tensors: List[Tuple[Key, torch.Tensor]], need: int) -> bool:
    """Whether a device has room for the snapshots, and for optimiser state twice the size of what is there now."""
    devices = {tensor.get_device() for _, tensor in tensors if tensor.is_cuda}
    if not devices or not hasattr(torch.cuda, "mem_get_info"):
        return True
    has_state = any(key[0] == "state" for key, _ in tensors)
    return all(need * (1 if has_state else 5) < 0.9 * torch.cuda.mem_get_info(device)[0] for device in devices)


def _copy(to: List[torch.Tensor], source: List[torch.Tensor]) -> None:
    with torch.no_grad():
        if hasattr(torch, "_foreach_copy_") and to and all(a.device == b.device for a, b in zip(to, source)):
            torch._foreach_copy_(to, source)
            return
        for a, b in zip(to, source):
            a.copy_(b, non_blocking=True)
