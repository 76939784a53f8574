"""The experimental part of include/esper.h: structs, functions, and the loading of libesper.so."""

import ctypes as c
from typing import Any, Dict, List, Optional

from . import _find
from ._errors import GrowEnvError, LibraryNotFound

ABI = 1  # ESPER_GROW_ENV_ABI

OK, E_ARG, E_NOMEM, E_STATE, E_STOPPED = 0, -1, -2, -3, -9  # esper_status


class Setting(c.Structure):
    """esper_grow_env_setting"""

    _fields_ = [("key", c.c_char_p), ("value", c.c_char_p)]


class Options(c.Structure):
    """esper_grow_env_options"""

    _fields_ = [
        ("size", c.c_size_t),
        ("task", c.c_char_p),
        ("n_envs", c.c_uint32),
        ("settings", c.POINTER(Setting)),
        ("n_settings", c.c_size_t),
    ]


class Shape(c.Structure):
    """esper_grow_env_shape"""

    _fields_ = [
        ("size", c.c_size_t),
        ("n_envs", c.c_uint32),
        ("n_decisions", c.c_uint32),
        ("n_features", c.c_uint32),
        ("n_slots", c.c_uint32),
        ("n_heads", c.c_uint32),
        ("n_ops", c.c_uint32),
        ("n_blueprints", c.c_uint32),
        ("n_styles", c.c_uint32),
        ("n_parts", c.c_uint32),
        ("params_host", c.c_int64),
        ("seed", c.c_uint64),
    ]


ARRAYS = ("features", "blueprints", "mask_op", "mask_slot", "mask_blueprint", "mask_style", "accuracy", "params", "seed",
          "reward", "parts", "effective_op", "accepted", "rolled_back", "terminated")


class Arrays(c.Structure):
    """esper_grow_env_arrays"""

    _fields_ = [("size", c.c_size_t), *((name, c.c_void_p) for name in ARRAYS)]


class Episode(c.Structure):
    """esper_grow_env_episode"""

    _fields_ = [
        ("size", c.c_size_t),
        ("seed", c.c_uint64),
        ("total_reward", c.c_double),
        ("accuracy_final", c.c_double),
        ("accuracy_best", c.c_double),
        ("params", c.c_int64),
        ("n_decisions", c.c_uint32),
        ("n_germinated", c.c_uint32),
        ("n_kept", c.c_uint32),
        ("n_pruned", c.c_uint32),
        ("n_rollbacks", c.c_uint32),
        ("stopped", c.c_uint32),
    ]


_TEXT = [c.c_char_p, c.c_size_t]
_FUNCTIONS: Dict[str, Any] = {
    "esper_version": (c.c_char_p, []),
    "esper_last_error": (c.c_char_p, []),
    "esper_status_name": (c.c_char_p, [c.c_int]),
    "esper_grow_env_abi": (c.c_int, []),
    "esper_grow_env_options_init": (None, [c.POINTER(Options)]),
    "esper_grow_env_open": (c.c_int, [c.POINTER(Options), c.POINTER(c.c_void_p)]),
    "esper_grow_env_close": (None, [c.c_void_p]),
    "esper_grow_env_shape_get": (c.c_int, [c.c_void_p, c.POINTER(Shape)]),
    "esper_grow_env_head": (c.c_int, [c.c_void_p, c.c_uint32, *_TEXT]),
    "esper_grow_env_choice": (c.c_int, [c.c_void_p, c.c_uint32, c.c_uint32, *_TEXT]),
    "esper_grow_env_feature": (c.c_int, [c.c_void_p, c.c_uint32, *_TEXT]),
    "esper_grow_env_part": (c.c_int, [c.c_void_p, c.c_uint32, *_TEXT]),
    "esper_grow_env_asked": (c.c_uint32, [c.c_uint32]),
    "esper_grow_env_reset": (c.c_int, [c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(Arrays)]),
    "esper_grow_env_seek": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint64]),
    "esper_grow_env_step": (c.c_int, [c.c_void_p, c.c_void_p, c.POINTER(Arrays)]),
    "esper_grow_env_stop": (None, [c.c_void_p]),
    "esper_grow_env_episode_get": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(Episode)]),
}


class Library:
    """The functions of one libesper.so, without their prefix `esper_`. `path` and `version` say which it is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._dll = c.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._dll, name)
            function.restype = result
            function.argtypes = arguments
            setattr(self, name[len("esper_"):], function)
        self.version: str = self._dll.esper_version().decode()
        if self._dll.esper_grow_env_abi() != ABI:
            raise LibraryNotFound(f"{self.path} has version {self._dll.esper_grow_env_abi()} of its environments, but "
                                  f"this package is for {ABI}: install the two of one version")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the library has no function esper_{name}")

    def said(self) -> str:
        """What the last failing call on this thread met."""
        return self._dll.esper_last_error().decode(errors="replace")

    def check(self, status: int) -> None:
        raise_for(self, status, self.said() if status != OK else "")


def raise_for(library: Library, status: int, said: str) -> None:
    """The exception for a status that is none of success."""
    if status == OK:
        return
    if status == E_NOMEM:
        raise MemoryError(said)
    raise GrowEnvError(said, status=library.status_name(status).decode())


_library: Optional[Library] = None


def load() -> Library:
    """The library, loaded once. LibraryNotFound says where it was looked for, and how to get it."""
    global _library
    if _library is None:
        _library = _load_first()
    return _library


def _load_first() -> Library:
    met: List[str] = []
    for place in _find.places(_find.ENGINE):
        if place not in _find.existing(_find.ENGINE):
            met.append(f"{place} (no such file)")
            continue
        try:
            return Library(place)
        except (OSError, AttributeError) as error:
            met.append(str(error) if place in str(error) else f"{place} ({error})")
    raise LibraryNotFound(
        "libesper.so was not found. Looked at: " + "; ".join(met) + ". Build it with `make` in a checkout of Esper, "
        "install it with `make install`, or say where it is with ESPER_ENGINE_LIBRARY=/path/to/libesper.so")
