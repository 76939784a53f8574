"""Where the guard's sentences go: the logger `esper.guard`, or what the caller gives instead."""

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Union

if TYPE_CHECKING:
    from ._events import Event

Log = Union[None, str, "os.PathLike[str]", logging.Logger, Callable[[str], Any]]
NAME = "esper.guard"


def _to_stderr(text: str) -> None:
    try:
        print(f"esper: {text}", file=sys.stderr, flush=True)
    except (AttributeError, OSError, ValueError):  # there is none, or it was closed
        pass


class _Careful:
    """Writes lines. Trouble with that is told once, and is no reason to end a training: lines go to stderr then."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._told = False

    def __call__(self, event: "Event") -> None:
        try:
            self._write(event.text)
            return
        except Exception as error:  # a full disk, a closed connection, whatever the caller's function does
            if not self._told:
                self._told = True
                _to_stderr(f"the log could not be written ({type(error).__name__}: {error}): lines that it does not "
                           "take are told here")
        _to_stderr(event.text)


class _Records:
    """To a logger, with rank, step, kind and report in the record. While nobody has set up logging, to stderr."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __call__(self, event: "Event") -> None:
        if self._logger.hasHandlers():
            self._logger.log(event.level, "%s", event.text, extra={
                "rank": event.rank, "world": event.world, "step": event.step, "kind": event.kind,
                "report": event.report})
        elif event.level > logging.DEBUG:
            _to_stderr((f"rank {event.rank}: " if event.rank else "") + event.text)


def make(log: Log) -> Callable[["Event"], None]:
    """A function that takes an event: for the caller's function of a line, for a file, or for a logger."""
    if isinstance(log, logging.Logger) or log is None:
        return _Records(log if log is not None else logging.getLogger(NAME))
    if callable(log):
        return _Careful(log)
    if not isinstance(log, (str, os.PathLike)):
        raise TypeError(f"log={log!r}: expected a function of a line, a path, a logger, or None (the logger "
                        f"{NAME!r}; standard error while logging is not set up)")
    path = os.fspath(log)

    def append(text: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    append_nothing = open(path, "a", encoding="utf-8")  # a place that cannot be written is told of now
    append_nothing.close()
    return _Careful(append)
