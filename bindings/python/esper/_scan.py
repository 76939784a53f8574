"""One guard of the C library over a list of tensors: bound once, moved when addresses change, launched, read."""

import ctypes as c
import struct
from array import array
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _abi
from ._tensors import Item, capturing, current_stream

_STAT = struct.Struct("<6Q4dQ2I")
assert _STAT.size == _abi.STAT_BYTES
# esper_guard_report up to `stats`: bad, first_bad, n_bad, grad_norm, clip_factor, n_tensors, stats. All at once, for
# each field of a ctypes structure is a call.
_HEAD = struct.Struct("<8xI4xQQ8xddQ8xQ")
assert _HEAD.size == _abi.Report.stats.offset + _abi.Report.stats.size


class Stat(NamedTuple):
    """Statistics of one tensor, as esper_guard_stat."""

    n_nan: int
    n_pos_inf: int
    n_neg_inf: int
    first_bad: int
    n_zero: int
    n_tiny: int
    norm: float
    mean: float
    max_abs: float
    min_abs: float
    checksum: int
    scanned: int
    norm_overflow: int


class Reading:
    """What one scan found: copied out of the library, unpacked when it is asked for."""

    __slots__ = ("items", "bad", "first_bad", "n_bad", "grad_norm", "clip_factor", "_bytes")

    def __init__(self, items: Sequence[Item], report: int) -> None:
        """report: where the library's esper_guard_report is."""
        self.items = items
        (self.bad, self.first_bad, self.n_bad, self.grad_norm, self.clip_factor, n_tensors, stats
         ) = _HEAD.unpack(c.string_at(report, _HEAD.size))
        self._bytes = c.string_at(stats, n_tensors * _abi.STAT_BYTES)

    def stat(self, i: int) -> Stat:
        return Stat._make(_STAT.unpack_from(self._bytes, i * _abi.STAT_BYTES))

    def stats(self) -> List[Stat]:
        return [Stat._make(values) for values in _STAT.iter_unpack(self._bytes)]


class Scanner:
    """Scans tensors. Launch and read take turns; a scan in a CUDA graph may be read after every replay."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._library = _abi.load()
        self._handle = c.c_void_p()
        options = _abi.Options()
        self._library.guard_options_init(c.byref(options))
        options.n_threads = max(1, min(torch.get_num_threads(), 1024))
        self._library.check(self._library.guard_open(c.byref(options), c.byref(self._handle)))
        self._scan = _abi.Scan()
        self._library.guard_scan_init(c.byref(self._scan))
        self._scan_pointer = c.byref(self._scan)
        self._report = c.POINTER(_abi.Report)()
        self._report_pointer = c.byref(self._report)
        self._report_at = c.c_void_p.from_buffer(self._report)  # the same pointer, as a number
        self._settings: Optional[Tuple[float, Optional[int], int, int]] = None
        self._streams: Optional[c.Array] = None
        self.launched = False
        self.items: Tuple[Item, ...] = ()
        self.bind(items)

    def update(self, items: Sequence[Item]) -> None:
        """These tensors: by their addresses if that is all that changed."""
        if [item.form for item in items] == [item.form for item in self.items]:
            self.move([item.pointer for item in items])
            self.items = tuple(items)
        else:
            self.bind(items)

    def bind(self, items: Sequence[Item]) -> None:
        """Other tensors from now on."""
        self._discard()
        self.items = ()  # until all of this is done
        self.pointers: Optional[List[int]] = None
        self.devices = sorted({item.device for item in items})
        self._cuda = [device for device in self.devices if device >= 0]
        names = [item.name.encode() for item in items]  # alive until they were copied
        tensors = (_abi.Tensor * len(items))(*[  # type: ignore[misc]
            (name, b"model", item.role, item.dtype, item.device, item.pointer, item.count)
            for name, item in zip(names, items)])
        if len(self._cuda) > 1:
            self._streams = (c.c_void_p * (self._cuda[-1] + 1))()
            self._scan.streams = c.cast(self._streams, c.POINTER(c.c_void_p))
            self._scan.n_streams = len(self._streams)
        else:
            self._streams = None
            self._scan.streams, self._scan.n_streams = None, 0
        self._library.check(self._library.guard_clear(self._handle))
        if items:
            self._library.check(self._library.guard_add(self._handle, tensors, len(items)))
        self.pointers = [item.pointer for item in items]
        self.items = tuple(items)

    def move(self, pointers: List[int]) -> None:
        """New addresses of the same tensors."""
        if pointers == self.pointers:
            return
        if self.launched:
            self._discard()
        addresses = array("Q", pointers)
        self.pointers = None  # the library's are the old ones or the new ones, until this is done
        self._library.check(self._library.guard_move(self._handle, addresses.buffer_info()[0], len(pointers)))
        self.pointers = pointers

    def launch(self, clip: float = 0.0, flag: Optional[int] = None, checksum: int = 0, roles: int = 0) -> None:
        """Queues a scan behind what torch has queued; on the CPU it is done at once. roles: bits, 0 is all."""
        scan = self._scan
        if self._settings != (clip, flag, checksum, roles):
            scan.clip_norm, scan.skip_flag, scan.checksum, scan.roles = clip, flag, checksum, roles
            self._settings = clip, flag, checksum, roles
        if self._streams is not None:
            for device in self._cuda:
                self._streams[device] = current_stream(device)
        elif self._cuda:
            scan.stream = current_stream(self._cuda[0])
        self._report_at.value = None
        self.launched = True  # before it is: who breaks this off leaves a scan that `_discard` sees to
        status = self._library.guard_launch(self._handle, self._scan_pointer)
        if status == _abi.E_STATE and not capturing(self._cuda[0] if self._cuda else None):
            # an earlier scan was never read: whoever was to do it was broken off, by Ctrl-C for instance
            self._library.guard_read(self._handle, self._report_pointer)
            self._report_at.value = None
            status = self._library.guard_launch(self._handle, self._scan_pointer)
        if status != 0:
            self.launched = False
            self._library.check(status)

    def read(self) -> Reading:
        """Waits for the scan, if it is not done yet. Who breaks this off may ask again."""
        if not self.launched:
            self._report_at.value = None  # it was read before: a graph may have been replayed since
        if self._report_at.value is None:
            status = self._library.guard_read(self._handle, self._report_pointer)
            if status != 0:
                self.launched = False
                self._library.check(status)
        reading = Reading(self.items, self._report_at.value)
        self.launched = False
        return reading

    def _discard(self) -> None:
        """A scan that nobody will read."""
        if self.launched:
            self._library.guard_read(self._handle, self._report_pointer)
            self.launched = False

    def inject(self, index: int, element: int, fault: int, bit: int) -> None:
        """Spoils one element."""
        device = self.items[index].device
        stream = current_stream(device) if device >= 0 else None
        self._library.check(self._library.guard_inject(self._handle, index, element, fault, bit, stream))

    def close(self) -> None:
        handle, self._handle = self._handle, c.c_void_p()
        self._library.guard_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
