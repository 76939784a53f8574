"""The C library, as include/esper.h describes it: structs, functions, and the loading of libesper-guard.so."""

import ctypes as c
from typing import Any, List, Optional

from . import _find
from ._errors import GuardError, LibraryNotFound

ABI = "0.1"  # version of the library up to the part that may change
NONE = 2**64 - 1
E_STATE = -3  # esper_status: not allowed in this state

DTYPES = ("float32", "float16", "bfloat16", "float64")  # their index is esper_guard_dtype
DTYPE_BYTES = (4, 2, 2, 8)
ROLES = ("param", "grad", "moment", "buffer", "other")  # their index is esper_guard_role
PARAM, GRAD, MOMENT, BUFFER, OTHER = range(5)
HOST = -1
FAULTS = ("nan", "inf", "-inf", "exponent", "mantissa")  # their index is esper_fault

BAD_NAN_GRAD, BAD_INF_GRAD, BAD_NAN_STATE, BAD_INF_STATE = 1, 2, 4, 8
BAD_SPIKE = 32  # not the library's: a loss or a norm that is finite, and out of the question
BAD_GRAD = BAD_NAN_GRAD | BAD_INF_GRAD
BAD_STATE = BAD_NAN_STATE | BAD_INF_STATE


class Tensor(c.Structure):
    """esper_guard_tensor"""

    _fields_ = [
        ("name", c.c_char_p),
        ("group", c.c_char_p),
        ("role", c.c_int),
        ("dtype", c.c_int),
        ("device", c.c_int32),
        ("data", c.c_void_p),
        ("count", c.c_uint64),
    ]


ALLOC = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_int32, c.c_size_t)
RELEASE = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, c.c_void_p)


class Options(c.Structure):
    """esper_guard_options"""

    _fields_ = [
        ("size", c.c_size_t),
        ("n_threads", c.c_int),
        ("vanishing", c.c_double),
        ("exploding", c.c_double),
        ("tiny", c.c_double),
        ("alloc", ALLOC),
        ("release", RELEASE),
        ("alloc_context", c.c_void_p),
    ]


class Scan(c.Structure):
    """esper_guard_scan"""

    _fields_ = [
        ("size", c.c_size_t),
        ("roles", c.c_uint32),
        ("stream", c.c_void_p),
        ("streams", c.POINTER(c.c_void_p)),
        ("n_streams", c.c_size_t),
        ("clip_norm", c.c_double),
        ("checksum", c.c_uint32),
        ("skip_flag", c.c_void_p),
    ]


class Stat(c.Structure):
    """esper_guard_stat"""

    _fields_ = [
        ("n_nan", c.c_uint64),
        ("n_pos_inf", c.c_uint64),
        ("n_neg_inf", c.c_uint64),
        ("first_bad", c.c_uint64),
        ("n_zero", c.c_uint64),
        ("n_tiny", c.c_uint64),
        ("norm", c.c_double),
        ("mean", c.c_double),
        ("max_abs", c.c_double),
        ("min_abs", c.c_double),
        ("checksum", c.c_uint64),
        ("scanned", c.c_uint32),
        ("norm_overflow", c.c_uint32),
    ]


class Group(c.Structure):
    """esper_guard_group"""

    _fields_ = [
        ("name", c.c_char_p),
        ("role", c.c_int),
        ("measured", c.c_uint32),
        ("n_tensors", c.c_uint64),
        ("n_elements", c.c_uint64),
        ("n_nan", c.c_uint64),
        ("n_inf", c.c_uint64),
        ("n_zero", c.c_uint64),
        ("n_vanishing", c.c_uint64),
        ("n_exploding", c.c_uint64),
        ("norm", c.c_double),
        ("min_norm", c.c_double),
        ("max_norm", c.c_double),
        ("norm_not_finite", c.c_uint32),
        ("norm_ratio", c.c_double),
        ("zero_fraction", c.c_double),
        ("health", c.c_double),
        ("is_healthy", c.c_uint32),
    ]


class Report(c.Structure):
    """esper_guard_report"""

    _fields_ = [
        ("sequence", c.c_uint64),
        ("bad", c.c_uint32),
        ("first_bad", c.c_uint64),
        ("n_bad", c.c_uint64),
        ("changed", c.c_uint64),
        ("grad_norm", c.c_double),
        ("clip_factor", c.c_double),
        ("n_tensors", c.c_size_t),
        ("n_groups", c.c_size_t),
        ("stats", c.POINTER(Stat)),
        ("groups", c.POINTER(Group)),
        ("totals", Group * len(ROLES)),
    ]


class RingOptions(c.Structure):
    """esper_ring_options"""

    _fields_ = [
        ("size", c.c_size_t),
        ("n_entries", c.c_uint32),
        ("place", c.c_int),
        ("mirror", c.c_uint32),
        ("max_bytes", c.c_uint64),
        ("directory", c.c_char_p),
        ("roles", c.c_uint32),
        ("resume", c.c_uint32),
    ]


RING_HOST = 2  # esper_ring_place


class RingStatus(c.Structure):
    """esper_ring_status"""

    _fields_ = [
        ("newest", c.c_int),
        ("newest_step", c.c_uint64),
        ("good_step", c.c_uint64),
        ("n_good", c.c_uint32),
        ("refused_tensor", c.c_uint64),
        ("device_bytes", c.c_uint64),
        ("host_bytes", c.c_uint64),
        ("disk_step", c.c_uint64),
        ("disk_left_over", c.c_uint32),
        ("disk_error", c.c_char_p),
    ]


class RingRestored(c.Structure):
    """esper_ring_restored"""

    _fields_ = [
        ("step", c.c_uint64),
        ("blob", c.c_void_p),
        ("blob_bytes", c.c_size_t),
        ("n_passed_over", c.c_uint32),
        ("from_host", c.c_uint32),
        ("seconds", c.c_double),
    ]


STAT_BYTES = c.sizeof(Stat)

_FUNCTIONS = {
    "esper_version": (c.c_char_p, []),
    "esper_last_error": (c.c_char_p, []),
    "esper_status_name": (c.c_char_p, [c.c_int]),
    "esper_guard_options_init": (None, [c.POINTER(Options)]),
    "esper_guard_open": (c.c_int, [c.POINTER(Options), c.POINTER(c.c_void_p)]),
    "esper_guard_close": (None, [c.c_void_p]),
    "esper_guard_add": (c.c_int, [c.c_void_p, c.POINTER(Tensor), c.c_size_t]),
    "esper_guard_clear": (c.c_int, [c.c_void_p]),
    "esper_guard_replace": (c.c_int, [c.c_void_p, c.c_void_p, c.c_size_t]),
    "esper_guard_move": (c.c_int, [c.c_void_p, c.c_void_p, c.c_size_t]),
    "esper_guard_count": (c.c_size_t, [c.c_void_p]),
    "esper_guard_scan_init": (None, [c.POINTER(Scan)]),
    "esper_guard_launch": (c.c_int, [c.c_void_p, c.POINTER(Scan)]),
    "esper_guard_read": (c.c_int, [c.c_void_p, c.POINTER(c.POINTER(Report))]),
    "esper_ring_options_init": (None, [c.POINTER(RingOptions)]),
    "esper_ring_open": (c.c_int, [c.c_void_p, c.POINTER(RingOptions), c.POINTER(c.c_void_p)]),
    "esper_ring_close": (None, [c.c_void_p]),
    "esper_ring_take": (c.c_int, [c.c_void_p, c.c_uint64, c.c_char_p, c.c_size_t]),
    "esper_ring_status_get": (c.c_int, [c.c_void_p, c.c_int, c.POINTER(RingStatus)]),
    "esper_ring_rollback": (c.c_int, [c.c_void_p, c.c_int, c.POINTER(RingRestored)]),
    "esper_guard_inject": (c.c_int, [c.c_void_p, c.c_size_t, c.c_uint64, c.c_int, c.c_uint32, c.c_void_p]),
}

_NEWER = {"esper_guard_move": "esper_guard_replace"}  # what an earlier library of the same ABI has instead


class Library:
    """The functions of one libesper-guard.so, without their prefix `esper_`. `path` and `version` say which it is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._dll = c.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._dll, _NEWER.get(name, name) if not hasattr(self._dll, name) else name)
            function.restype = result
            function.argtypes = arguments
            setattr(self, name[len("esper_"):], function)
        self.version: str = self._dll.esper_version().decode()
        self._compare()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the library has no function esper_{name}")

    def _compare(self) -> None:
        """Refuses a library of another ABI: by its version, and by what it says of its structs."""
        if self.version.rsplit(".", 1)[0] != ABI:
            raise LibraryNotFound(f"{self.path} is version {self.version}, but this package is for {ABI}: "
                                  "install the two of one version")
        options, scan, ring = Options(), Scan(), RingOptions()
        self._dll.esper_guard_options_init(c.byref(options))
        self._dll.esper_guard_scan_init(c.byref(scan))
        self._dll.esper_ring_options_init(c.byref(ring))
        if (options.size, scan.size, ring.size) != (c.sizeof(Options), c.sizeof(Scan), c.sizeof(RingOptions)):
            raise LibraryNotFound(f"{self.path} has other structs than this package: install the two of one version")

    def check(self, status: int, what: str = "") -> None:
        """Raises what the library says of a call that failed."""
        if status != 0:
            said = self._dll.esper_last_error().decode(errors="replace")
            raise GuardError((f"{what}: " if what else "") + said)


_library: Optional[Library] = None


def load() -> Library:
    """The library, loaded once. LibraryNotFound says where it was looked for, and how to get it."""
    global _library
    if _library is None:
        _library = _load_first()
    return _library


def _load_first() -> Library:
    met: List[str] = []
    for place in _find.places():
        if place not in _find.existing():
            met.append(f"{place} (no such file)")
            continue
        try:
            return Library(place)
        except (OSError, AttributeError) as error:
            met.append(str(error) if place in str(error) else f"{place} ({error})")
    raise LibraryNotFound(
        "libesper-guard.so was not found. Looked at: " + "; ".join(met) + ". Build it with `make` in a checkout of "
        "Esper, or say where it is with ESPER_GUARD_LIBRARY=/path/to/libesper-guard.so")
