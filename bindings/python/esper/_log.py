"""Where the guard's sentences go."""

import os
import sys
from typing import Callable, Union

Log = Union[None, str, "os.PathLike[str]", Callable[[str], None]]


def make(log: Log) -> Callable[[str], None]:
    """A function that takes a line: the caller's, one that appends to a file, or one that writes to stderr."""
    if callable(log):
        return log
    if log is None:
        return lambda text: print(f"esper: {text}", file=sys.stderr, flush=True)
    path = os.fspath(log)

    def append(text: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    append_nothing = open(path, "a", encoding="utf-8")  # a place that cannot be written is told of now
    append_nothing.close()
    return append
