"""Snapshots on disk, so that a job that was killed goes back to minutes ago.

The library's ring writes them (esper_ring, in include/esper.h): in the background, as a draft that takes the place of
the older file in one move, with sums over everything. Its tensors are the memory of a snapshot; what is not four kinds
of floats goes with it as a blob. A ring fits one list of tensors, so each list has a folder:

    DIRECTORY/rank0/<sum of the list>/tensors       the list, in JSON
                                      snapshot.ring the newest
                                      previous.ring the one before: ranks may be killed between two writings

`Disk.write` never waits for the disk, and trouble with it is told once; a training does not end because of it.
"""

import ctypes as c
import hashlib
import io
import json
import os
import shutil
import struct
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import _abi
from ._copy import Copy, Slot
from ._cover import Key
from ._errors import GuardError

_LIST, _NEWEST, _PREVIOUS = "tensors", "snapshot.ring", "previous.ring"
_HEAD = struct.Struct("<8sIIQ")  # of a ring's file: what it is, its version, byte order, the step
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

    def take(self, step: int, blob: bytes) -> None:
        """Queues what is in `memory` for writing."""
        self._library.check(self._library.ring_take(self._ring, step, blob, len(blob)))
        self.status(1)

    def status(self, wait: int) -> Tuple[int, Optional[str]]:
        """The step that is on disk, and what went wrong. wait: 0 not, 1 until it was judged, 2 until it is written."""
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
        self._ring: Optional[_Ring] = None
        self._n_written = 0  # of this list of tensors
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise GuardError(f"Snapshots(directory={directory!r}): {error}") from error

    # --------------------------------------------------------------------------------------------------------- write

    def write(self, entry: Copy) -> None:
        """A good snapshot: handed over, and written in the background."""
        try:
            self._write(entry)
            _, error = self._ring.status(0)
        except (GuardError, OSError) as met:
            error = str(met)
        if error is not None and error != self._told:
            self._tell("alarm", f"the snapshot of step {entry.step} is not on disk: {error}")
        self._told = error

    def _write(self, entry: Copy) -> None:
        held = [key for key in entry.keys if _is_held(entry.slot[key])]
        table: Table = [(key, str(entry.slot[key].dtype), list(entry.slot[key].shape)) for key in held]
        if self._ring is None or self._ring.table != table:
            self._open(table)
        for key, memory in zip(held, self._ring.memory):
            memory.copy_(entry.slot[key])
        folder = self._folder_of(table)
        newest = os.path.join(folder, _NEWEST)
        if os.path.exists(newest):
            _link(newest, os.path.join(folder, _PREVIOUS))
        self._ring.take(entry.step, _pack(entry, held))
        self._n_written += 1
        if self._n_written == 2:
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
        self._n_written = 0

    def _folder_of(self, table: Table) -> str:
        text = json.dumps([[list(key), kind, shape] for key, kind, shape in table])
        return os.path.join(self.folder, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())

    def wait(self) -> Optional[int]:
        """Until the newest is on disk; gives its step."""
        if self._ring is None:
            return None
        step, error = self._ring.status(2)
        return None if step == _abi.NONE or error else step

    def close(self) -> None:
        """What is on its way to the disk is waited for."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()

    def _tidy(self) -> None:
        """Folders of other lists of tensors go, now that there is something newer."""
        if self._ring.status(2)[1] is None:
            mine = self._folder_of(self._ring.table)
            for name in os.listdir(self.folder):
                path = os.path.join(self.folder, name)
                if path != mine and os.path.isdir(path):
                    shutil.rmtree(path, ignore_errors=True)

    # ---------------------------------------------------------------------------------------------------------- read

    def steps(self) -> List[int]:
        """Of what there is, newest first."""
        return sorted(self._found(), reverse=True)

    def _found(self) -> Dict[int, Tuple[str, str]]:
        """By step: the folder, and the file in it."""
        found = {}
        for name in os.listdir(self.folder):
            for file in (_PREVIOUS, _NEWEST):
                try:
                    with open(os.path.join(self.folder, name, file), "rb") as opened:
                        found[_HEAD.unpack(opened.read(_HEAD.size))[3]] = os.path.join(self.folder, name), file
                except (OSError, struct.error):
                    continue
        return found

    def read(self, step: int) -> Copy:
        """The snapshot of that step, verified."""
        self.close()
        folder, file = self._found()[step]
        if file == _PREVIOUS:
            os.replace(os.path.join(folder, _PREVIOUS), os.path.join(folder, _NEWEST))
        with open(os.path.join(folder, _LIST), encoding="utf-8") as opened:
            table: Table = [(tuple(key), kind, shape) for key, kind, shape in json.load(opened)]
        ring = _Ring(folder, table, resume=True)
        try:
            return _unpack(ring.read(), {key: memory for (key, _, _), memory in zip(ring.table, ring.memory)})
        finally:
            ring.close()


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


def _pack(entry: Copy, held: List[Key]) -> bytes:
    content: Dict[str, Any] = {name: getattr(entry, name) for name in _BLOB}
    content["devices"] = {key: str(device) for key, device in entry.devices.items()}
    known = set(held)
    content["rest"] = {key: entry.slot[key].cpu() for key in entry.keys if key not in known}
    file = io.BytesIO()
    try:
        torch.save(content, file)
    except Exception:  # an object of state= that can be copied in memory, and not written
        for name in ("extras", "inside", "schedule"):
            content[name] = {key: value for key, value in content[name].items() if _can_be_written(value)}
        file = io.BytesIO()
        torch.save(content, file)
    return file.getvalue()


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
