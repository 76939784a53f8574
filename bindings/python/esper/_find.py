"""Where the C libraries are: the places that are looked at, in order."""

import os
from typing import Iterator, List, NamedTuple


class Wanted(NamedTuple):
    name: str
    variable: str


GUARD = Wanted("libesper-guard.so", "ESPER_GUARD_LIBRARY")
ENGINE = Wanted("libesper.so", "ESPER_ENGINE_LIBRARY")


def places(wanted: Wanted = GUARD) -> Iterator[str]:
    """Candidates: the variable, beside the package (a wheel), build/ of a checkout, the system's loader."""
    here = os.path.dirname(os.path.abspath(__file__))
    given = os.environ.get(wanted.variable)
    if given:
        yield given
        return
    yield os.path.join(here, "lib", wanted.name)
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    if os.path.isfile(os.path.join(checkout, "include", "esper.h")):
        yield os.path.join(checkout, "build", wanted.name)
    yield wanted.name + ".0"


def existing(wanted: Wanted = GUARD) -> List[str]:
    """Those of `places` that may be there: files that exist, and what only the loader can tell."""
    return [place for place in places(wanted) if os.sep not in place or os.path.isfile(place)]
