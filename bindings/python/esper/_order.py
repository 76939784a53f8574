"""In which order the forward pass uses the parameters: that in which the backward pass makes their gradients, turned
round. It is noted once, in the first backward pass after attach(), by hooks that are taken away again."""

from typing import Any, Callable, Dict, List

from ._watched import Watched


class Order:
    """Places of parameters in the forward pass, by name; those of the model until a backward pass was seen."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._handles: List[Any] = []
        self._met: Dict[str, None] = {}  # in the order of the backward pass
        self.places: Dict[str, int] = {}
        self._of = -1

    def listen(self) -> None:
        """The next backward pass tells."""
        self.stop()
        self._of = self._watched.version
        self._met.clear()
        for name, parameter in self._watched.parameters:
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._notes(name)))

    def _notes(self, name: str) -> Callable[[Any], None]:
        met = self._met

        def note(_: Any) -> None:
            met.setdefault(name)

        return note

    def settle(self) -> None:
        """A step begins, behind its backward pass. Parameters without a gradient stay where the model has them."""
        if not self._handles or not self._met:
            return
        self.stop()
        listed = [name for name, _ in self._watched.parameters]
        if len(self._met) * 2 >= len(listed):
            met = list(reversed(self._met))
            self.places = {name: place for place, name in enumerate(_merge(listed, met))}

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _merge(listed: List[str], met: List[str]) -> List[str]:
    """The met ones in their order, each of the others behind the one that the model lists before it."""
    known = set(met)
    behind: Dict[str, List[str]] = {}
    before = ""
    for name in listed:
        if name in known:
            before = name
        else:
            behind.setdefault(before, []).append(name)
    merged = list(behind.get("", []))
    for name in met:
        merged += [name, *behind.get(name, [])]
    return merged
