"""Snapshots on disk, so that a job that was killed goes back to minutes ago.

The library's ring writes them (esper_ring, in include/esper.h): in the background, as a draft that takes the place of
the older file in one move, with sums over everything. Its tensors are the memory of a snapshot; what is not four kinds
of floats goes with it as a blob. A ring fits one list of tensors, so each list has a folder:

    DIRECTORY/rank0/<sum of the list>/tensors       the list, in JSON
                                      snapshot.ring the newest
                                      previous.ring the one before: ranks may be killed between two writings

Steps do not say which snapshot is the newest: a rollback makes them again, and a job that begins anew in the folder
counts from 0. So each has a number beside its step, which grows from one writing to the next and from job to job, and
is the same on all ranks.

`Disk.write` waits for the disk only where the list of tensors has changed: what is on its way of the old list is
written first. It does wait for the copy of the snapshot into the ring's memory, from a GPU too. Trouble is told once; a
training does not end because of it.
"""

import ctypes as c
import hashlib
import io
import json
import os
import shutil
import struct
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch

from . import _abi
from ._copy import Copy, Slot
from ._cover import Key
from ._errors import GuardError

_LIST, _NEWEST, _PREVIOUS = "tensors", "snapshot.ring", "previous.ring"
_HEAD = struct.Struct("<8sIIQ")  # of a ring's file: what it is, its version, byte order, the mark
_STEP_BITS = 32  # of a mark, which is what the library takes for a step: the number above them, the step in them
_TYPES = {str(kind): i for kind, i in ((torch.float32, 0), (torch.float16, 1), (torch.bfloat16, 2), (torch.float64, 3))}
_BLOB = ("step", "keys", "loose", "lists", "groups", "modules", "extras", "inside", "schedule", "rng", "checksums",
         "guard")

Table = List[Tuple[Key, str, List[int]]]  # key, type and shape of each tensor that the library holds


class _Ring:
    """One ring of the library, over memory of ours."""

    def __init__(self, folder: str, table: Table, resume: bool) -> None:
        self.table = table
        self._library = _abi.load()
        self.memory = [torch.empty(shape, dtype=getattr(torch, kind.split(".")[1])) for _, kind, shape in table]
        self._guard, self._ring = c.c_void_p(), c.c_void_p()
        check = self._library.check
        check(self._library.guard_open(None, c.byref(self._guard)))
        names = [json.dumps(key).encode() for key, _, _ in table]
        tensors = (_abi.Tensor * len(table))(*[  # type: ignore[misc]
            (name, b"disk", _abi.OTHER, _TYPES[kind], _abi.HOST, memory.data_ptr(), memory.numel())
            for name, (_, kind, _), memory in zip(names, table, self.memory)])
        try:
            check(self._library.guard_add(self._guard, tensors, len(table)))
            options = _abi.RingOptions()
            self._library.ring_options_init(c.byref(options))
            options.place, options.mirror, options.roles = _abi.RING_HOST, 0, 1 << _abi.OTHER
            options.directory, options.resume = os.fsencode(folder), int(resume)
            check(self._library.ring_open(self._guard, c.byref(options), c.byref(self._ring)))
        except GuardError:
            self.close()
            raise

    def take(self, mark: int, blob: bytes) -> None:
        """Queues what is in `memory` for writing."""
        self._library.check(self._library.ring_take(self._ring, mark, blob, len(blob)))
        self.status(1)

    def status(self, wait: int) -> Tuple[int, Optional[str]]:
        """The mark of what is on disk, and what went wrong. wait: 0 not, 1 until it is judged, 2 until written."""
        status = _abi.RingStatus()
        self._library.check(self._library.ring_status_get(self._ring, wait, c.byref(status)))
        error = status.disk_error
        return status.disk_step, error.decode(errors="replace") if error else None

    def read(self) -> bytes:
        """Brings what is on disk into `memory`, verified; gives the blob."""
        restored = _abi.RingRestored()
        self._library.check(self._library.ring_rollback(self._ring, 1, c.byref(restored)))
        return c.string_at(restored.blob, restored.blob_bytes)

    def close(self) -> None:
        """Waits until the newest is written."""
        ring, self._ring = self._ring, c.c_void_p()
        guard, self._guard = self._guard, c.c_void_p()
        if ring:
            self._library.ring_close(ring)
        if guard:
            self._library.guard_close(guard)

    def __del__(self) -> None:
        self.close()


class Disk:
    """The copies on disk of one rank."""

    def __init__(self, directory: str, rank: int, tell: Callable[..., None]) -> None:
        self.folder = os.path.join(directory, f"rank{rank}")
        self._tell = tell
        self._told: Optional[str] = None
        self._told_left_out: Set[str] = set()
        self._ring: Optional[_Ring] = None
        self._number: Optional[int] = None  # of the newest; None until `begin`
        self._handed: Optional[int] = None  # the mark of what the ring was given last
        self._n_landed = 0  # of this list of tensors: seen to be on disk
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise GuardError(f"Snapshots(directory={directory!r}): {error}") from error

    # --------------------------------------------------------------------------------------------------------- write

    @property
    def has_begun(self) -> bool:
        return self._number is not None

    def begin(self, number: int) -> None:
        """What is written from now on is newer than that number, the largest that any rank has."""
        self._number = number

    def write(self, entry: Copy) -> None:
        """A good snapshot: handed over, and written in the background."""
        try:
            self._write(entry)
            _, error = self._ring.status(0)
        except Exception as met:  # whatever it is, the training is worth more than its copy
            error = str(met) if isinstance(met, (GuardError, OSError)) else f"{type(met).__name__}: {met}"
        if error is not None and error != self._told:
            self._tell("alarm", f"the snapshot of step {entry.step} is not on disk: {error}")
        self._told = error

    def _write(self, entry: Copy) -> None:
        if self._number is None:
            self.begin(self.newest())
        self._number += 1  # also when the rest fails, for other ranks count on
        held = [key for key in entry.keys if _is_held(entry.slot[key])]
        table: Table = [(key, str(entry.slot[key].dtype), list(entry.slot[key].shape)) for key in held]
        blob, left_out = _pack(entry, held)
        self._tell_left_out(left_out)
        if self._ring is None or self._ring.table != table:
            self._open(table)
        self._keep_previous()
        for key, memory in zip(held, self._ring.memory):
            memory.copy_(entry.slot[key])
        mark = self._number << _STEP_BITS | entry.step
        self._ring.take(mark, blob)
        self._handed = mark

    def _tell_left_out(self, names: List[str]) -> None:
        for name in names:
            if name not in self._told_left_out:
                self._told_left_out.add(name)
                self._tell("alarm", f"state[{name!r}] cannot be pickled and is not in the snapshots on disk: a later "
                           "job's resume() does not bring it back")

    def _keep_previous(self) -> None:
        """What is on disk becomes the previous one. Where the last that was handed over is still on its way it may land
        at any moment, and the older previous one stays."""
        folder = self._folder_of(self._ring.table)
        newest = os.path.join(folder, _NEWEST)
        if self._handed is None:
            if os.path.exists(newest):  # of an earlier job, or of before the guard was detached
                _link(newest, os.path.join(folder, _PREVIOUS))
        elif self._ring.status(0)[0] == self._handed:
            _link(newest, os.path.join(folder, _PREVIOUS))
            self._n_landed += 1
            if self._n_landed == 2:
                self._tidy()

    def _open(self, table: Table) -> None:
        """Another list of tensors. What was written of the one before stays until there is something of this one."""
        self.close()
        folder = self._folder_of(table)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, _LIST + ".draft"), "w", encoding="utf-8") as file:
            json.dump(table, file)
        os.replace(os.path.join(folder, _LIST + ".draft"), os.path.join(folder, _LIST))
        self._ring = _Ring(folder, table, resume=False)
        self._handed, self._n_landed = None, 0

    def _folder_of(self, table: Table) -> str:
        text = json.dumps([[list(key), kind, shape] for key, kind, shape in table])
        return os.path.join(self.folder, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())

    def wait(self) -> Optional[int]:
        """Until the newest is on disk; gives its step."""
        if self._ring is None:
            return None
        mark, error = self._ring.status(2)
        return None if mark == _abi.NONE or error else _step_of(mark)

    def close(self) -> None:
        """What is on its way to the disk is waited for."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()

    def _tidy(self) -> None:
        """Folders of other lists of tensors go, now that two of this one are on disk."""
        mine = self._folder_of(self._ring.table)
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if path != mine and os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)

    # ---------------------------------------------------------------------------------------------------------- read

    def numbers(self) -> List[int]:
        """Of what there is, newest first."""
        return sorted((mark >> _STEP_BITS for mark in self._found()), reverse=True)

    def newest(self) -> int:
        """The number of the newest, 0 where there is none."""
        return max(self.numbers(), default=0)

    def newest_step(self) -> Optional[int]:
        """The step of the newest."""
        marks = self._found()
        return _step_of(max(marks)) if marks else None

    def _found(self) -> Dict[int, Tuple[str, str]]:
        """By mark: the folder, and the file in it."""
        found = {}
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
            for file in (_PREVIOUS, _NEWEST):
                try:
                    with open(os.path.join(self.folder, name, file), "rb") as opened:
                        found[_HEAD.unpack(opened.read(_HEAD.size))[3]] = os.path.join(self.folder, name), file
                except (OSError, struct.error):
                    continue
        return found

    def read(self, number: int) -> Copy:
        """The snapshot of that number, verified."""
        self.close()
        folder, file = next(place for mark, place in self._found().items() if mark >> _STEP_BITS == number)
        if file == _PREVIOUS:
            os.replace(os.path.join(folder, _PREVIOUS), os.path.join(folder, _NEWEST))
        with open(os.path.join(folder, _LIST), encoding="utf-8") as opened:
            table: Table = [(tuple(key), kind, shape) for key, kind, shape in json.load(opened)]
        ring = _Ring(folder, table, resume=True)
        try:
            return _unpack(ring.read(), {key: memory for (key, _, _), memory in zip(ring.table, ring.memory)})
        finally:
            ring.close()


def _step_of(mark: int) -> int:
    return mark & ((1 << _STEP_BITS) - 1)


def _is_held(tensor: torch.Tensor) -> bool:
    """Whether the library's ring may have it: it looks at floats, and takes none that is not finite."""
    return (str(tensor.dtype) in _TYPES and tensor.layout is torch.strided and tensor.numel() > 0
            and bool(torch.isfinite(tensor).all()))


def _link(source: str, target: str) -> None:
    """A second name for a file, in one move."""
    draft = target + ".draft"
    if os.path.exists(draft):
        os.remove(draft)
    try:
        os.link(source, draft)
    except OSError:  # a file system without links
        shutil.copyfile(source, draft)
    os.replace(draft, target)


def _pack(entry: Copy, held: List[Key]) -> Tuple[bytes, List[str]]:
    """What goes with the tensors; and the names of objects of state= that can be copied in memory, and not written."""
    content: Dict[str, Any] = {name: getattr(entry, name) for name in _BLOB}
    content["devices"] = {key: str(device) for key, device in entry.devices.items()}
    known = set(held)
    content["rest"] = {key: entry.slot[key].cpu() for key in entry.keys if key not in known}
    file = io.BytesIO()
    left_out: List[str] = []
    try:
        torch.save(content, file)
    except Exception:
        for part in ("extras", "inside", "schedule"):
            left_out += [name for name, value in content[part].items() if name and not _can_be_written(value)]
        if not left_out:
            raise
        for part in ("extras", "inside", "schedule"):
            content[part] = {name: value for name, value in content[part].items() if name not in left_out}
        file = io.BytesIO()
        torch.save(content, file)
    return file.getvalue(), sorted(set(left_out))


def _can_be_written(value: Any) -> bool:
    try:
        torch.save(value, io.BytesIO())
        return True
    except Exception:
        return False


def _unpack(blob: bytes, slot: Slot) -> Copy:
    try:
        content = torch.load(io.BytesIO(blob), weights_only=False)
    except TypeError:  # torch 1.13 has no such choice
        content = torch.load(io.BytesIO(blob))
    entry = Copy(content["step"], slot)
    for name in _BLOB:
        setattr(entry, name, content[name])
    slot.update(content["rest"])
    entry.devices = {key: torch.device(device) for key, device in content["devices"].items()}
    return entry
