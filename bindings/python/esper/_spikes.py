"""Divergence that is still finite: losses and gradient norms that are far from what they were.

Each is judged against its own recent past by median and upper quartile, which a few outliers do not move. Those that
are positive are judged by their logarithm: their noise is in proportion. Three rules, of which one is enough:

    jump    one gradient norm, far above everything in the window
    run     three in a row, each clearly above the window: what explodes, and no outlier
    drift   half of the last forty losses or more too high: what goes wrong slowly

"Above" is measured in deviations of the window, so that a noisy run has room for its noise, and beyond what the window
has seen. What is abnormal does not join the window, so that it does not become the norm; when nothing was done about it
for the length of a window (on_bad="report"), it has, and the window begins anew.

A value waits before it joins the window, 40 losses and 3 norms, so that what is found out to be abnormal can still be
left out. So the first loss that is judged is that after 70, the first norm that after 33.
"""

import bisect
import contextlib
import math
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional

import torch

from . import _options
from ._errors import GuardError, Unsupported

MIN_HISTORY = 30  # in the window: nothing is judged before so many
RUN = 3  # of the governor: min_panics
RECENT = 40
LATELY = 10  # whose median says whether a drift may be under way
MAX_PARTS = 1024  # losses of one step
FAR = 6.0  # deviations, unless said: the governor's sensitivity
DRIFT = 5.0  # of the deviations that are far for one value: the median of many has little noise


class Spikes:
    """What is a spike.

    window: how many losses and norms are remembered. Nothing is judged before 30 are, and some are on their way: 70
    losses, 33 norms.
    sensitivity: how many deviations are far; more is more patient. norm, loss: which of the two are judged.
    """

    def __init__(self, window: int = 150, sensitivity: float = FAR, norm: bool = True, loss: bool = True) -> None:
        if not hasattr(window, "__index__") or isinstance(window, bool) or not MIN_HISTORY <= window <= 1 << 20:
            raise ValueError(f"Spikes(window={window!r}): expected a whole number from {MIN_HISTORY} to 1,048,576")
        self.window = int(window)
        self.sensitivity = _options.number("Spikes: sensitivity", sensitivity)
        if not 1 <= self.sensitivity < math.inf:
            raise ValueError(f"Spikes(sensitivity={sensitivity!r}): expected a number of deviations, 1 or more")
        if not norm and not loss:
            raise ValueError("Spikes(norm=False, loss=False): nothing would be judged")
        self.norm = bool(norm)
        self.loss = bool(loss)

    def __repr__(self) -> str:
        return (f"esper.Spikes(window={self.window}, sensitivity={self.sensitivity:g}, norm={self.norm}, "
                f"loss={self.loss})")


class _Window:
    """The last values, and the same in order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.values: Deque[float] = deque()
        self._ordered: List[float] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        if len(self.values) == self._size:
            del self._ordered[bisect.bisect_left(self._ordered, self.values.popleft())]
        self.values.append(value)
        bisect.insort(self._ordered, value)

    def quantile(self, part: float) -> float:
        """0 is the smallest, 1 the largest, 0.5 the median."""
        place = part * (len(self._ordered) - 1)
        below = int(place)
        above = min(below + 1, len(self._ordered) - 1)
        return self._ordered[below] + (place - below) * (self._ordered[above] - self._ordered[below])


class Signal:
    """One number a step: the loss, or the norm of all gradients."""

    def __init__(self, name: str, config: Spikes, jumps: bool, drifts: bool) -> None:
        self.name = name
        self._config = config
        self._jumps = jumps
        self._drifts = drifts
        self._delay = RECENT if drifts else RUN
        self.forget()

    def forget(self) -> None:
        """What comes next is judged by itself."""
        self._window = _Window(self._config.window)
        self.restart()

    def restart(self) -> None:
        """The state is another: it is the one of which the window tells."""
        self._recent: Deque[float] = deque()  # on their way into the window
        self._n_high = 0  # in a row, not yet often enough
        self._n_alarms = 0

    def judge(self, value: float) -> Optional[str]:
        """What is wrong with a finite value, in words; None when nothing is."""
        if len(self._window) < MIN_HISTORY:
            self._remember(value, True)
            return None
        level = _Level(self._window, self._config.sensitivity)
        height = level.of(value)
        self._n_high = self._n_high + 1 if height > level.high else 0
        found = None
        if self._jumps and height > level.jump:
            found = self._told("jumps to", value)
        elif self._n_high >= RUN:
            found = self._told(f"is far too high {self._n_high} times in a row, now", value)
            if self._n_high == RUN:
                for _ in range(min(RUN - 1, len(self._recent))):
                    self._recent.pop()
        else:
            if self._drifts and level.of(self._middle_with(value)) > level.drift:
                found = self._told(f"is too high in half of {RECENT} steps, now", value)
            self._remember(value, found is None)
        self._count(found is not None)
        return found

    @property
    def calm(self) -> bool:
        """Whether nothing is being counted that may turn out to be a divergence: the state is worth keeping."""
        if self._n_high or self._n_alarms:
            return False
        if not self._drifts or len(self._window) < MIN_HISTORY or not self._recent:
            return True
        lately = sorted(list(self._recent)[-LATELY:])
        level = _Level(self._window, self._config.sensitivity)
        return level.of(lately[len(lately) // 2]) <= level.drift

    def _middle_with(self, value: float) -> float:
        """Of the last values, this one included."""
        if len(self._recent) < RECENT:
            return -math.inf
        return sorted([*self._recent, value])[RECENT // 2]

    def _remember(self, value: float, healthy: bool) -> None:
        self._recent.append(value)
        if len(self._recent) > self._delay:
            eldest = self._recent.popleft()
            if healthy:
                self._window.add(eldest)

    def _count(self, alarm: bool) -> None:
        self._n_alarms = self._n_alarms + 1 if alarm else 0
        if self._n_alarms > self._config.window:
            self.forget()  # nobody does anything about it: that is how it is now

    def _told(self, what: str, value: float) -> str:
        return f"the {self.name} {what} {value:.4g}; its median was {self._window.quantile(0.5):.4g}"

    def state_dict(self) -> Dict[str, Any]:
        return {"window": list(self._window.values), "recent": list(self._recent), "n_high": self._n_high,
                "n_alarms": self._n_alarms}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.forget()
        for value in state["window"][-self._config.window:]:
            self._window.add(float(value))
        self._recent.extend(float(value) for value in state["recent"][-self._delay:])
        self._n_high, self._n_alarms = int(state["n_high"]), int(state["n_alarms"])


class _Level:
    """How high a value is above the median of a window, in a measure that suits it, and how high is too high."""

    def __init__(self, window: _Window, far: float) -> None:
        self._logs = window.quantile(0) > 0
        self._middle = 0.0
        self._middle = self.of(window.quantile(0.5))
        # The upper half alone: how a loss falls is no measure of how it rises. 1.4826 times the distance of the
        # quartile from the median is the standard deviation of normal noise.
        least = 0.02 if self._logs else 0.02 * abs(self._middle)
        deviation = max(1.4826 * self.of(window.quantile(0.75)), least)
        spread = self.of(window.quantile(1))
        self._patience = far / FAR
        self.jump = max(2 * far * deviation, self._times(100), spread + self._times(10) if self._logs else 3 * spread)
        self.high = max(far * deviation, self._times(3), (1.5 if self._logs else 2) * spread)
        self.drift = max(far * deviation / (DRIFT if self._logs else 4.0), self._times(1.8))

    def of(self, value: float) -> float:
        if not self._logs:
            return value - self._middle
        return math.log(value) - self._middle if value > 0 else -math.inf

    def _times(self, factor: float) -> float:
        """So many times the median; of values that may be negative, that is no measure."""
        return self._patience * math.log(factor) if self._logs else 0.0


class Judge:
    """Takes the losses of a step without waiting for them, and says of its report whether it is a spike."""

    def __init__(self, config: Spikes) -> None:
        self._norm = Signal("gradient norm", config, jumps=True, drifts=False) if config.norm else None
        self._loss = Signal("loss", config, jumps=False, drifts=True) if config.loss else None
        self._incoming: Deque[_Incoming] = deque(maxlen=MAX_PARTS)  # since the last step

    @property
    def calm(self) -> bool:
        """Whether a snapshot may be taken."""
        return all(signal.calm for signal in self._signals().values())

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Losses that are given meanwhile are of no step."""
        incoming = self._incoming
        self._incoming = deque(maxlen=MAX_PARTS)
        try:
            yield
        finally:
            self._incoming = incoming

    def take(self, loss: Any) -> None:
        """The loss of this step, or of a part of it. It belongs to the next step that is asked for."""
        if self._loss is None:
            raise GuardError("loss(): this guard judges no losses: Spikes(loss=False)")
        self._incoming.append(_Incoming(loss))

    def losses_of_step(self) -> Optional["Losses"]:
        """Those that were given since the last step; None: there were none."""
        incoming = list(self._incoming)
        self._incoming.clear()
        return Losses(incoming) if incoming else None

    def source(self, report: Any) -> Optional[str]:
        """What is wrong with a report on finite gradients, in words; None when nothing is."""
        found, loss, norm = [], report.loss, report.total_norm
        if loss is not None and self._loss is not None:
            found.append(self._loss.judge(loss) if math.isfinite(loss) else f"the loss is {loss:g}")
        if self._norm is not None and math.isfinite(norm):
            found.append(self._norm.judge(norm))
        return "; ".join(sentence for sentence in found if sentence is not None) or None

    def _signals(self) -> Dict[str, Signal]:
        return {key: signal for key, signal in (("norm", self._norm), ("loss", self._loss)) if signal is not None}

    def restart(self) -> None:
        """After a rollback."""
        self._incoming.clear()
        for signal in self._signals().values():
            signal.restart()

    def state_dict(self) -> Dict[str, Any]:
        return {key: signal.state_dict() for key, signal in self._signals().items()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for key, signal in self._signals().items():
            if key in state:
                signal.load_state_dict(state[key])


class _Incoming:
    """One loss. Of a tensor on a device a copy to the host is queued: it is there when the scan behind it is."""

    def __init__(self, loss: Any) -> None:
        self._event: Any = None
        if not isinstance(loss, torch.Tensor):
            self._value: Any = _options.number("loss", loss)
            return
        if loss.numel() != 1:
            raise TypeError(f"loss(): a tensor of shape {tuple(loss.shape)}: expected one number, as .mean() gives")
        loss = loss.detach().reshape(())
        if loss.device.type != "cuda":
            self._value = loss if loss.device.type != "cpu" else float(loss)
            return
        if torch.cuda.is_current_stream_capturing():
            raise Unsupported("loss(): this step is being captured in a CUDA graph: give the loss after a replay")
        self._value = torch.empty((), dtype=torch.float32, pin_memory=True)
        self._value.copy_(loss.float(), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(loss.device))

    def value(self) -> float:
        if self._event is not None:
            self._event.synchronize()
        return float(self._value)


class Losses:
    """The losses of one step, several where gradients are accumulated."""

    def __init__(self, incoming: List[_Incoming]) -> None:
        self._incoming = incoming

    def mean(self) -> float:
        values = [loss.value() for loss in self._incoming]
        return sum(values) / len(values)
