"""Where the guard's sentences go."""

import os
import sys
from typing import Callable, Union

Log = Union[None, str, "os.PathLike[str]", Callable[[str], None]]


def _to_stderr(text: str) -> None:
    try:
        print(f"esper: {text}", file=sys.stderr, flush=True)
    except (AttributeError, OSError, ValueError):  # there is none, or it was closed
        pass


class _Careful:
    """Writes lines. Trouble with that is told once, and is no reason to end a training: lines go to stderr then."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._told = False

    def __call__(self, text: str) -> None:
        try:
            self._write(text)
            return
        except Exception as error:  # a full disk, a closed connection, whatever the caller's function does
            if not self._told:
                self._told = True
                _to_stderr(f"the log could not be written ({type(error).__name__}: {error}): lines that it does not "
                           "take are told here")
        _to_stderr(text)


def make(log: Log) -> Callable[[str], None]:
    """A function that takes a line: the caller's, one that appends to a file, or one that writes to stderr."""
    if callable(log):
        return _Careful(log)
    if log is None:
        return _to_stderr
    if not isinstance(log, (str, os.PathLike)):
        raise TypeError(f"log={log!r}: expected a function of a line, a path, or None (standard error)")
    path = os.fspath(log)

    def append(text: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    append_nothing = open(path, "a", encoding="utf-8")  # a place that cannot be written is told of now
    append_nothing.close()
    return _Careful(append)
