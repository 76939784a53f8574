"""What a scan found, for people and for programs."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from . import _abi
from ._scan import Reading, Stat
from ._tensors import Item, logical


def some(count: int, what: str) -> str:
    """As "1 tensor" or "2,000 tensors"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


class Row(NamedTuple):
    """One tensor in `Report.table`."""

    name: str
    role: str
    count: int  # type: ignore[assignment]
    norm: float
    mean: float
    max_abs: float
    min_abs: float
    n_nan: int
    n_inf: int
    n_zero: int
    n_tiny: int
    checksum: int


class Bad(NamedTuple):
    """One tensor that holds NaN or Inf. `first` is the index of the first such element, dimensions in order. Of a
    complex tensor the scan counts real and imaginary parts: `n_bad` elements are bad at least (`at_least`)."""

    name: str
    role: str
    kind: str
    n_bad: int
    count: int  # type: ignore[assignment]
    first: int
    at_least: bool = False

    def __str__(self) -> str:
        least = "at least " if self.at_least else ""
        return f"{self.kind} in {self.name}, {least}{self.n_bad:,} of {self.count:,}, first at {self.first:,}"


def _kind(stat: Stat) -> str:
    n_inf = stat.n_pos_inf + stat.n_neg_inf
    return "NaN and Inf" if stat.n_nan and n_inf else "NaN" if stat.n_nan else "Inf"


class Report:
    """What the scan of one step found. `str()` is one line; nothing is computed before it is asked for."""

    # What most reports leave as it is belongs to the class: one is made at every step.
    action = ""  # what was done about it, in words
    alarm = False  # it was bad, and not merely GradScaler finding its scale
    first_rank: Optional[int] = None  # over a process group: the lowest rank whose tensors are bad
    world = 1
    spike: Optional[str] = None  # what is out of the question although it is finite, in words
    only_spikes = False  # no rank has more to tell than that
    losses: Any = None  # what guard.loss() was given for this step
    of_state = False  # parameters, buffers and optimiser state were scanned, not gradients
    sum_of_squares: Optional[float] = None  # of sharded gradients over the ranks that share them
    sharded = False  # gradients are shards, and nobody has asked the ranks that have the others
    order: Dict[str, int] = {}  # places of parameters in the forward pass, as far as they are known
    rewritten: Optional[bool] = None  # gradients were written in place after the backward pass; None: nobody has looked
    clips = False  # whoever called the step also calls clip_grad_norm_
    scale: Any = None  # what gradients are multiplied by, when they are still GradScaler's: a number, or a tensor

    def __init__(self, step: Optional[int], readings: Sequence[Reading], not_covered: Sequence[str] = ()) -> None:
        self.step = step
        self.readings = tuple(readings)
        self.not_covered: List[str] = list(not_covered)
        self.bits = 0
        for reading in readings:
            self.bits |= reading.bad

    @property
    def ok(self) -> bool:
        """Everything that was scanned is finite, and nothing a spike, on every rank."""
        return self.bits == 0 and self.first_rank is None

    def __bool__(self) -> bool:
        return self.ok

    @property
    def bad(self) -> List[Bad]:
        """The tensors of this rank that are not finite: in the order of the model, gradients among themselves in that
        of the forward pass. The last gradient is the one next to the loss."""
        entries = self._entries()
        if not self.order:
            return entries
        places = [i for i, entry in enumerate(entries) if entry.role == "grad"]
        gradients = sorted([entries[i] for i in places],
                           key=lambda entry: self.order.get(entry.name[:-len(".grad")], len(self.order)))
        for i, entry in zip(places, gradients):
            entries[i] = entry
        return entries

    def _entries(self) -> List[Bad]:
        found = []
        for reading in self.readings:
            if reading.bad:
                found += [self._bad(item, stat) for item, stat in zip(reading.items, reading.stats())
                          if stat.n_nan + stat.n_pos_inf + stat.n_neg_inf]
        return found

    @staticmethod
    def _bad(item: Item, stat: Stat) -> Bad:
        n_bad = stat.n_nan + stat.n_pos_inf + stat.n_neg_inf
        return Bad(item.shown, _abi.ROLES[item.role], _kind(stat), -(-n_bad // item.parts), item.count // item.parts,
                   logical(item, stat.first_bad), item.parts > 1 and n_bad > 1)

    @property
    def first_bad(self) -> Optional[str]:
        """The name of the tensor that is nearest to where it began: the first that is bad of the state; of gradients,
        which spoil those before them in the backward pass, the one next to the loss. None when all are finite."""
        entry = self._first()
        return entry.name if entry else None

    def _first(self) -> Optional[Bad]:
        if self.n_bad == 0:
            return None
        found = self.bad
        return next((entry for entry in found if entry.role != "grad"), found[-1])

    @property
    def n_bad(self) -> int:
        """How many tensors of this rank are not finite."""
        return sum(reading.n_bad for reading in self.readings)

    @property
    def total_norm(self) -> float:
        """The norm of all gradients, before clipping; NaN or Inf where they are, and NaN in a report that is not about
        gradients. Sharded ones are summed over ranks; NaN where nobody has asked those (`not_covered` says so)."""
        if self.sum_of_squares is not None:
            norm = math.sqrt(self.sum_of_squares) if self.sum_of_squares >= 0 else math.nan
        elif self.sharded or not self._has_grads():
            return math.nan
        else:
            norm = math.hypot(*[reading.grad_norm for reading in self.readings])
        return norm / self._scale()

    def _has_grads(self) -> bool:
        """Whether this is about gradients. Readings of those alone have one at their head."""
        return any(item.role == _abi.GRAD for reading in self.readings for item in reading.items)

    def _scale(self) -> float:
        if self.scale is None:
            return 1.0
        if not isinstance(self.scale, float):
            self.scale = float(self.scale)
        return self.scale

    @property
    def loss(self) -> Optional[float]:
        """What guard.loss() was given for this step, the mean where that was more than one; None where nothing was."""
        return None if self.losses is None else self.losses.mean()

    @property
    def clip_factor(self) -> float:
        """What gradients were multiplied by; 1 is nothing."""
        return min([reading.clip_factor for reading in self.readings], default=1.0)

    @property
    def norms(self) -> Dict[str, float]:
        """Norms by name, of what was scanned."""
        return {row.name: row.norm for row in self.table}

    @property
    def table(self) -> List[Row]:
        """Every tensor that was scanned, with its statistics. Of gradients that are still GradScaler's, numbers are
        those without its scale; n_tiny and checksum are of what lies in memory."""
        scale = self._scale()
        return [self._row(item, stat, scale if item.role == _abi.GRAD else 1.0) for reading in self.readings
                for item, stat in zip(reading.items, reading.stats()) if stat.scanned]

    @staticmethod
    def _row(item: Item, stat: Stat, scale: float) -> Row:
        return Row(item.shown, _abi.ROLES[item.role], item.count // item.parts, stat.norm / scale, stat.mean / scale,
                   stat.max_abs / scale, stat.min_abs / scale, stat.n_nan, stat.n_pos_inf + stat.n_neg_inf, stat.n_zero,
                   stat.n_tiny, stat.checksum)

    def __str__(self) -> str:
        parts = [self._found(), *self._others()]
        if self.first_rank is not None and self.world > 1:
            parts.append(f"first on rank {self.first_rank} of {self.world}")
        if self.action:
            parts.append(self.action)
        return ("" if self.step is None else f"step {self.step}: ") + "; ".join(parts)

    def _others(self) -> List[str]:
        """How far it went, and what that looks like."""
        if self.n_bad < 2:
            return [] if self.n_bad == 0 else self._looks_clipped()
        found = self.bad
        more = some(self.n_bad - 1, "more tensor")
        if found[0].role != "grad":
            return [more]
        return [f"{more}, back to {found[0].name}", *self._looks_clipped()]

    def _looks_clipped(self) -> List[str]:
        """clip_grad_norm_ multiplies everything by max_norm / norm: a NaN anywhere makes all of it NaN, and an Inf
        makes all of it 0, but for the Inf, which becomes NaN."""
        found = [(item.count, stat) for reading in self.readings for item, stat in zip(reading.items, reading.stats())
                 if item.role == _abi.GRAD and stat.scanned]
        if len(found) < 2 or not any(stat.n_nan for _, stat in found):
            return []
        if all(stat.n_nan == count for count, stat in found):
            if self.rewritten and self.clips:
                return ["all of every gradient, as clip_grad_norm_ before the guard leaves them: clip= keeps them "
                        "apart"]
            before = "" if self.rewritten is False else ", or clip_grad_norm_ ran before the guard"
            return [f"all of every gradient: the loss was bad{before}; guard.locate() finds where it began"]
        if self.rewritten is not False and all(stat.n_nan + stat.n_zero == count for count, stat in found):
            return ["all else is 0, as clip_grad_norm_ before the guard leaves it: clip= keeps it"]
        return []

    def _found(self) -> str:
        entry = self._first()
        if entry is not None:
            return str(entry)
        if self.spike is not None:
            return self.spike
        if self.first_rank is not None and self.only_spikes:
            return f"a spike on rank {self.first_rank}, none on this one"
        if self.first_rank is not None:
            return f"NaN or Inf on rank {self.first_rank}, none on this one"
        count = sum(stat.scanned for reading in self.readings for stat in reading.stats())
        if count == 0:
            return "nothing was scanned"
        told = f"all {count:,} tensors are finite" if count > 1 else "the one tensor is finite"
        if not self._has_grads():
            return told
        return told + (" on this rank" if self.sharded else f", gradient norm {self.total_norm:.4g}")

    def __repr__(self) -> str:
        return f"<esper.Report {self}>"
