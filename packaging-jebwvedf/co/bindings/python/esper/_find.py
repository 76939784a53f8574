"""Where libesper-guard.so is: the places that are looked at, in order."""

import os
from typing import Iterator, List

NAME = "libesper-guard.so"
SONAME = NAME + ".0"


def places() -> Iterator[str]:
    """Candidates: $ESPER_GUARD_LIBRARY, beside the package (a wheel), build/ of a checkout, the system's loader."""
    here = os.path.dirname(os.path.abspath(__file__))
    given = os.environ.get("ESPER_GUARD_LIBRARY")
    if given:
        yield given
        return
    yield os.path.join(here, "lib", NAME)
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    if os.path.isfile(os.path.join(checkout, "include", "esper.h")):
        yield os.path.join(checkout, "build", NAME)
    yield SONAME


def existing() -> List[str]:
    """Those of `places` that may be there: files that exist, and what only the loader can tell."""
    return [place for place in places() if os.sep not in place or os.path.isfile(place)]
