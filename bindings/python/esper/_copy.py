"""A copy of one state: how it is taken, put back and verified.

A copy has every tensor of the cover, what else is in the optimisers' state, their groups, modules' extra state, and the
objects of state=. Tensors lie in a slot, a dict of memory that is used again for the next copy.

What schedulers set is kept apart, for a loop calls scheduler.step() after optimizer.step(). A copy that is taken in a
step has the schedule as it is there, `inside`, and when the loop comes back (`close_iteration`) that of the whole
iteration. A rollback, which is made in a step too, puts the first back: a loop that steps the scheduler whatever
happened brings it to the second. When the loop comes back the second is put back if it did not.
"""

import copy
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from . import _names, _tensors
from ._cover import OWN, Cover, Holder, Key, extra_states, flat, put, tensors_in
from ._errors import GuardError, NotRestored, Unsupported
from ._rate import SCHEDULED, is_scheduler
from ._scan import Reading

Slot = Dict[Key, torch.Tensor]


def kept(value: Any) -> Any:
    """A deep copy. What has no copy and no state either is kept as it is: weak references, which some schedulers have
    in their state_dict, and functions."""
    try:
        return copy.deepcopy(value)
    except Exception:
        pass
    if isinstance(value, dict):
        return {key: kept(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(kept(inner) for inner in value)
    if isinstance(value, weakref.ReferenceType) or callable(value):
        return value
    raise GuardError(f"a {type(value).__name__} cannot be copied")


def n_bytes(value: Any) -> Dict[str, int]:
    """Of tensors in nested dicts and lists, on devices and in host memory."""
    sizes = {"device": 0, "host": 0}
    for tensor in tensors_in(value):
        sizes["host" if tensor.device.type == "cpu" else "device"] += tensor.numel() * tensor.element_size()
    return sizes


class Extras:
    """The objects of state=: schedulers, and others."""

    def __init__(self, items: Dict[str, Any], cover: Cover) -> None:
        self.items = items
        self._cover = cover

    def split(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Schedulers of these optimisers, and all else."""
        optimizers = self._cover.watched.optimizers
        schedulers = {name: item for name, item in self.items.items() if is_scheduler(item, optimizers)}
        return schedulers, {name: item for name, item in self.items.items() if name not in schedulers}


def _states(items: Dict[str, Any]) -> Dict[str, Any]:
    found = {}
    for name, item in items.items():
        try:
            found[name] = kept(item.state_dict())
        except GuardError as error:
            raise GuardError(f"state[{name!r}]: in its state_dict {error}: nothing could bring it back") from None
    return found


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory in another way than by expand()."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride == 0:
            continue
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Every element of the memory once: what expand() has repeated is left out."""
    if tensor.layout is torch.strided and 0 in tensor.stride():
        for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape)):
            if stride == 0 and size > 1:
                tensor = tensor.narrow(dim, 0, 1)
    return tensor


class Copy:
    """One state. `step` is whose it is; `checksums` come with the scan that has judged it."""

    def __init__(self, step: int, slot: Slot) -> None:
        self.step = step
        self.slot = slot  # also with memory that this copy has no use for
        self.keys: List[Key] = []
        self.devices: Dict[Key, torch.device] = {}
        self.loose: Dict[Tuple[str, str], List[Tuple[Key, Any]]] = {}  # by holder, parameter: what is no tensor
        self.lists: Dict[Tuple[str, str], Dict[Any, int]] = {}  # which of the state are lists of tensors, how long
        self.groups: List[List[Dict[str, Any]]] = []  # by optimiser
        self.modules: Dict[str, Any] = {}  # extra state
        self.extras: Dict[str, Any] = {}
        self.inside: Dict[str, Any] = {}  # schedulers, and under "" what they set in the groups
        self.schedule: Dict[str, Any] = {}  # the same at the end of the iteration
        self.is_open = False  # the iteration it was taken in is not over
        self.rng: Dict[int, torch.Tensor] = {}
        self.checksums: Dict[Tuple[str, int], int] = {}
        self.guard: Dict[str, Any] = {}  # of a copy that goes to disk: the guard's own state

    def n_extra_bytes(self) -> Dict[str, int]:
        """Of all that is not in the slot."""
        return n_bytes([self.extras, self.inside, self.schedule, self.modules])


def live_tensors(cover: Cover) -> List[Tuple[Key, torch.Tensor]]:
    """What a copy is taken of. Unsupported names a tensor that could not be put back."""
    found = [(key, _tensors.local(tensor.detach())) for key, _, tensor in cover.tensors()]
    for key, tensor in found:
        if tensor.layout is torch.strided and not tensor.is_contiguous() and overlaps(tensor):
            raise Unsupported(f"{'.'.join(key[1:])}: its elements overlap in memory, so that no rollback could put it "
                              "back: register a .clone() of it")
    return found


def take(step: int, slot: Slot, tensors: List[Tuple[Key, torch.Tensor]], cover: Cover, extras: Extras,
         empty: Callable[[torch.Tensor], torch.Tensor]) -> Copy:
    """Copies the state, behind what is queued. empty: makes memory for a copy of a tensor."""
    entry = Copy(step, slot)
    entry.keys = [key for key, _ in tensors]
    entry.devices = {key: tensor.device for key, tensor in tensors}
    sources = [_once(tensor) for _, tensor in tensors]
    buffers = []
    for key, tensor in zip(entry.keys, sources):
        buffer = slot.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = slot[key] = empty(tensor)
        buffers.append(buffer)
    copy_all(buffers, sources)
    for holder in cover.holders():
        for name, part in holder.parts(cover.watched.parameters):
            entry.loose[holder.tag, name] = [(key, kept(value)) for key, value in flat(part)
                                             if not isinstance(value, torch.Tensor)]
            entry.lists[holder.tag, name] = {
                key: len(value) for key, value in (part.items() if isinstance(part, dict) else ())
                if isinstance(value, list) and any(isinstance(v, torch.Tensor) for v in value)}
    entry.groups = [[{key: kept(value) for key, value in group.items() if key != "params"}
                     for group in optimizer.param_groups] for optimizer in cover.watched.optimizers]
    entry.modules = {name: kept(module.get_extra_state()) for name, module in extra_states(cover.watched.model)}
    schedulers, others = extras.split()
    entry.extras = _states(others)
    entry.inside = entry.schedule = _schedule(schedulers, cover)
    entry.is_open = True
    entry.rng = {-1: torch.get_rng_state()}
    for device in {tensor.get_device() for _, tensor in tensors if tensor.is_cuda}:
        entry.rng[device] = torch.cuda.get_rng_state(device)
    return entry


def _schedule(schedulers: Dict[str, Any], cover: Cover) -> Dict[str, Any]:
    found: Dict[str, Any] = {"": [[{key: kept(group[key]) for key in SCHEDULED if key in group}
                                   for group in optimizer.param_groups] for optimizer in cover.watched.optimizers]}
    found.update(_states(schedulers))
    return found


def close_iteration(entry: Copy, cover: Cover, extras: Extras) -> None:
    """The loop has come back: scheduler.step() of the iteration was called by now, if it is called at all."""
    entry.schedule = _schedule(extras.split()[0], cover)
    entry.is_open = False


# ------------------------------------------------------------------------------------------------------- putting back

def put_back(entry: Copy, cover: Cover, extras: Extras, set_inside: Set[str], within: bool = True) -> List[str]:
    """Everything as it was; gives the names of tensors that the copy does not have, which stay as they are. Doing it
    once more changes nothing: a rollback that was broken off is made again. within: a step, not between two."""
    watched = cover.watched
    holders = cover.holders()
    for holder in holders:
        _shape(entry, holder, watched.parameters)
    live = {key: tensor for key, _, tensor in cover.tensors()}
    _make_missing(entry, live, cover, holders)
    pairs = [(_once(_tensors.local(live[key].detach())), entry.slot[key]) for key in entry.keys if key in live]
    copy_all([to for to, _ in pairs], [saved for _, saved in pairs])
    schedulers, others = extras.split()
    for optimizer, groups in zip(watched.optimizers, entry.groups):
        for group, saved in zip(optimizer.param_groups, groups):
            put_back_group(group, {key: value for key, value in saved.items()
                                   if key not in SCHEDULED or key in set_inside})
    for name, module in extra_states(watched.model):
        if name in entry.modules and type(module).set_extra_state is not torch.nn.Module.set_extra_state:
            module.set_extra_state(kept(entry.modules[name]))
    for name, item in others.items():
        if name in entry.extras:
            _load(name, item, entry.extras[name])
    if schedulers:
        put_back_schedule(entry.inside if within else entry.schedule, cover, schedulers)
    had = set(entry.keys)
    return [".".join(key[1:]) for key in live if key not in had]


def _load(name: str, item: Any, state: Any) -> None:
    """Something that the user has named in state=. What it raises is his, and which it was is not in it."""
    try:
        item.load_state_dict(kept(state))
    except Exception as error:
        raise NotRestored(f"state[{name!r}].load_state_dict raised {type(error).__name__}: {error}") from error


def put_back_schedule(schedule: Dict[str, Any], cover: Cover, schedulers: Dict[str, Any]) -> None:
    """Schedulers, and what they set."""
    for name, item in schedulers.items():
        if name in schedule:
            _load(name, item, schedule[name])
    for optimizer, groups in zip(cover.watched.optimizers, schedule[""]):
        for group, saved in zip(optimizer.param_groups, groups):
            put_back_group(group, saved)


def schedule_differs(entry: Copy, cover: Cover, schedulers: Dict[str, Any]) -> bool:
    """Whether schedulers, or what they set, are now other than in the copy."""
    now = [[{key: group[key] for key in SCHEDULED if key in group} for group in optimizer.param_groups]
           for optimizer in cover.watched.optimizers]
    return repr(now) != repr(entry.schedule[""]) or any(
        repr(item.state_dict()) != repr(entry.schedule.get(name)) for name, item in schedulers.items())


def put_back_group(group: Dict[str, Any], saved: Dict[str, Any]) -> None:
    for key, value in saved.items():
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            group[key].copy_(value)
        else:
            group[key] = kept(value)


def _shape(entry: Copy, holder: Holder, parameters: Sequence[Tuple[str, torch.nn.Parameter]]) -> None:
    """State that was not there yet goes, what is no tensor is set, and lists get their length."""
    tops: Dict[str, Set[str]] = {name: {key[0] for key, _ in loose if key}
                                 for (tag, name), loose in entry.loose.items() if tag == holder.tag}
    for key in entry.keys:
        if key[0] == holder.tag:
            tops[key[1]].add(key[2])
    for name, parameter in parameters:
        if name in tops:
            _shape_part(holder.state[parameter], tops[name], entry, (holder.tag, name))
        elif parameter in holder.state:
            del holder.state[parameter]
    _shape_part(holder.state, tops.get(OWN, set()), entry, (holder.tag, OWN))


def _shape_part(part: Dict[Any, Any], tops: Set[str], entry: Copy, place: Tuple[str, str]) -> None:
    for key in [key for key in part if not isinstance(key, torch.Tensor) and str(key) not in tops]:
        del part[key]
    for key, length in entry.lists.get(place, {}).items():
        part[key] = (part.get(key) or [])[:length]
        part[key] += [None] * (length - len(part[key]))
    for key, value in entry.loose.get(place, []):
        if key:
            put(part, key, kept(value))


def _make_missing(entry: Copy, live: Dict[Key, torch.Tensor], cover: Cover, holders: List[Holder]) -> None:
    """Tensors that are gone or have another form come again; the others are written in place."""
    parameters = dict(cover.watched.parameters)
    by_tag = {holder.tag: holder for holder in holders}
    places: Dict[str, Tuple[Dict[str, Any], str]] = {}
    for key in entry.keys:
        saved = entry.slot[key]
        now = _tensors.local(live[key].detach()) if key in live else None
        if now is not None and _once(now).shape == saved.shape and now.dtype == saved.dtype:
            continue
        if key[0] in by_tag:
            holder, parameter = by_tag[key[0]], parameters.get(key[1])
            if parameter is not None:
                live[key] = _made_anew(saved, parameter, entry.devices[key])
                put(holder.state[parameter], key[2:], live[key])
            elif key[1] == OWN:
                live[key] = saved.to(entry.devices[key], copy=True)
                put(holder.state, key[2:], live[key])
        elif key[0] == "buffer" and now is not None and not hasattr(live[key], "_local_tensor"):
            live[key].data = saved.to(entry.devices[key], copy=True)  # the same object, wherever modules have it
        elif key[0] == "buffer" and now is None:
            places = places or _names.all_buffer_places(cover.watched.model)
            if key[1] in places:
                module, name = places[key[1]]
                module[name] = live[key] = saved.to(entry.devices[key], copy=True)


def _made_anew(saved: torch.Tensor, parameter: torch.nn.Parameter, device: torch.device) -> torch.Tensor:
    """The optimiser's tensor for a copy of it: sharded as its parameter is, where it has that shape."""
    if hasattr(parameter, "_local_tensor") and _tensors.local(parameter).shape == saved.shape:
        return torch.zeros_like(parameter.detach(), dtype=saved.dtype)  # its values are put back with the others
    return saved.to(device, copy=True)


class Verdict:
    """What the state is after a copy was put back."""

    def __init__(self) -> None:
        self.readings: List[Reading] = []
        self.damaged: Optional[str] = None  # a tensor that is not what the copy was when it was judged
        self.absent: Optional[str] = None  # a tensor of the copy that could not be put anywhere


def verify(entry: Copy, cover: Cover) -> Verdict:
    """Sums the state that was put back, and looks for every tensor that the copy has."""
    verdict = Verdict()
    here = {key: tensor for key, _, tensor in cover.tensors()}
    known = {".".join(key[1:]) for key in here}  # another guard may have taken some up
    scanner = cover.scanner()
    summed: Set[Tuple[str, int]] = set()
    if scanner is not None:
        scanner.launch(checksum=1)
        cover.drop()
        reading = scanner.read()
        verdict.readings = [reading]
        now = {(item.name, item.role): stat.checksum for item, stat in zip(reading.items, reading.stats())}
        summed = set(now)
        verdict.damaged = next((name for (name, role), checksum in entry.checksums.items()
                                if name in known and now.get((name, role)) != checksum), None)
    names, parameters = {name for name, _ in summed}, dict(cover.watched.parameters)
    for key in entry.keys:
        name = ".".join(key[1:])
        if key not in here:
            gone = key[0] == "buffer" or key[1] == OWN or key[1] in parameters
            verdict.absent = verdict.absent or (name if gone else None)
        elif name not in names:  # integers, and what else is not scanned
            tensor = _once(_tensors.local(here[key].detach()))
            if not _same(tensor, entry.slot[key]):
                verdict.damaged = verdict.damaged or name
    return verdict


def _same(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided:
        tensor, saved = tensor.to_dense(), saved.to_dense()
    saved = saved.to(tensor.device)
    if tensor.element_size() == 1:
        tensor, saved = tensor.contiguous().view(torch.uint8), saved.contiguous().view(torch.uint8)
    return tensor.shape == saved.shape and bool(((tensor == saved) | ((tensor != tensor) & (saved != saved))).all())


def put_back_rng(states: Dict[int, torch.Tensor]) -> None:
    torch.set_rng_state(states[-1])
    for device, state in states.items():
        if device >= 0:
            torch.cuda.set_rng_state(state, device)


def copy_all(to: List[torch.Tensor], source: List[torch.Tensor]) -> None:
    with torch.no_grad():
        if hasattr(torch, "_foreach_copy_") and to and all(a.device == b.device for a, b in zip(to, source)):
            torch._foreach_copy_(to, source)
            return
        for a, b in zip(to, source):
            a.copy_(b, non_blocking=True)
