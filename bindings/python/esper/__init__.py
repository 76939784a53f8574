"""Esper's guard for PyTorch: tells at once which tensor of a training went bad, and gets back.

    import esper

    guard = esper.Guard(model, optimizer, on_bad="skip").attach()
    for batch in batches:           # the loop that is there already
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

ESPER_GUARD=0 in the environment turns all of the guard into nothing.

esper.GrowEnv is another thing: Esper's growing networks as an environment for those who learn policies
(docs/grow-env.md).
"""

import importlib
from typing import TYPE_CHECKING, Any, List

from ._errors import (BadGradient, BadState, BadTensor, GrowEnvError, GuardError, IllegalAction, LibraryNotFound,
                      ModelChanged, NoSnapshot, NoSuchTensor, NotRestored, Spike, Unsupported)

if TYPE_CHECKING:  # for editors and type checkers, which do not follow __getattr__
    from ._agreement import Agreement as Agreement, Divergence as Divergence
    from ._check import check as check
    from ._events import Event as Event
    from ._grow_env import GrowEnv as GrowEnv
    from ._guard import Guard as Guard
    from ._locate import Location as Location
    from ._report import Report as Report
    from ._snapshots import Snapshots as Snapshots
    from ._spikes import Spikes as Spikes

__version__ = "0.1.0"

# Imported when they are first asked for: they need torch (GrowEnv: numpy), and saying that it is missing does not.
_LATER = {
    "GrowEnv": "_grow_env",
    "Guard": "_guard",
    "check": "_check",
    "Report": "_report",
    "Event": "_events",
    "Snapshots": "_snapshots",
    "Spikes": "_spikes",
    "Location": "_locate",
    "Agreement": "_agreement",
    "Divergence": "_agreement",
}

__all__ = ["BadGradient", "BadState", "BadTensor", "GrowEnvError", "GuardError", "IllegalAction", "LibraryNotFound",
           "ModelChanged", "NoSnapshot", "NoSuchTensor", "NotRestored", "Spike", "Unsupported", *_LATER]


if not TYPE_CHECKING:  # to which every name would be there
    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'esper' has no attribute {name!r}")
        wanted = "numpy" if name == "GrowEnv" else "torch"
        try:
            importlib.import_module(wanted)
        except ImportError as error:
            called = {"numpy": "NumPy", "torch": "PyTorch"}[wanted]
            who = "esper.GrowEnv" if wanted == "numpy" else "esper"
            raise ImportError(f"{who} needs {called}, which this Python does not have: on Debian `apt-get install "
                              f"python3-{wanted}`, elsewhere `pip install {wanted}`") from error
        value = getattr(importlib.import_module("." + _LATER[name], __name__), name)
        globals()[name] = value
        return value


def __dir__() -> List[str]:
    return sorted([*__all__, "__version__"])
