"""Spaces as Gymnasium describes them, so far as GrowEnv needs some: the same names and attributes, without Gymnasium."""

from typing import Any, Dict, Iterator, Optional, Tuple

import numpy as np


class Space:
    """What all have: shape, dtype, contains, sample, seed."""

    def __init__(self, shape: Optional[Tuple[int, ...]], dtype: Any) -> None:
        self.shape = shape
        self.dtype = None if dtype is None else np.dtype(dtype)
        self._rng: Optional[np.random.Generator] = None

    @property
    def np_random(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = np.random.default_rng()
        return self._rng

    def seed(self, seed: Optional[int] = None) -> Any:
        self._rng = np.random.default_rng(seed)
        return seed

    def contains(self, x: Any) -> bool:
        raise NotImplementedError

    def __contains__(self, x: Any) -> bool:
        return self.contains(x)

    def _is_array(self, x: Any) -> bool:
        return (isinstance(x, np.ndarray) and x.shape == self.shape and self.dtype is not None
                and np.can_cast(x.dtype, self.dtype))


class Box(Space):
    """Numbers between two bounds."""

    def __init__(self, low: float, high: float, shape: Tuple[int, ...], dtype: Any) -> None:
        super().__init__(shape, dtype)
        self.low = np.full(shape, low, dtype)
        self.high = np.full(shape, high, dtype)

    def contains(self, x: Any) -> bool:
        return self._is_array(x) and bool(np.all(x >= self.low) and np.all(x <= self.high))

    def sample(self) -> np.ndarray:
        assert self.shape is not None and self.dtype is not None
        if self.dtype.kind == "f":  # it has no bounds that could be drawn between
            return self.np_random.standard_normal(self.shape).astype(self.dtype)
        return self.np_random.integers(self.low, self.high, endpoint=True).astype(self.dtype)

    def __repr__(self) -> str:
        return f"Box({self.low.min()}, {self.high.max()}, {self.shape}, {self.dtype})"


class MultiBinary(Space):
    """Zeros and ones."""

    def __init__(self, shape: Tuple[int, ...]) -> None:
        super().__init__(shape, np.int8)
        self.n = shape

    def contains(self, x: Any) -> bool:
        return self._is_array(x) and bool(np.all((x == 0) | (x == 1)))

    def sample(self) -> np.ndarray:
        return self.np_random.integers(0, 2, self.shape, np.int8)

    def __repr__(self) -> str:
        return f"MultiBinary({self.n})"


class MultiDiscrete(Space):
    """Whole numbers, each from 0 to one below its bound."""

    def __init__(self, nvec: Any, dtype: Any = np.int32) -> None:
        self.nvec = np.array(nvec, np.int64)
        super().__init__(self.nvec.shape, dtype)

    def contains(self, x: Any) -> bool:
        return self._is_array(x) and bool(np.all(x >= 0) and np.all(x < self.nvec))

    def sample(self) -> np.ndarray:
        """Any numbers of the menus, legal or not: GrowEnv.sample draws legal actions."""
        return self.np_random.integers(0, self.nvec).astype(self.dtype)

    def __repr__(self) -> str:
        return f"MultiDiscrete({self.nvec.tolist()})"


class Dict_(Space):
    """Spaces by name."""

    def __init__(self, spaces: Dict[str, Space]) -> None:
        super().__init__(None, None)
        self.spaces = spaces

    def contains(self, x: Any) -> bool:
        return (isinstance(x, dict) and x.keys() == self.spaces.keys()
                and all(space.contains(x[name]) for name, space in self.spaces.items()))

    def sample(self) -> Dict[str, Any]:
        return {name: space.sample() for name, space in self.spaces.items()}  # type: ignore[attr-defined]

    def seed(self, seed: Optional[int] = None) -> Any:
        return {name: space.seed(seed) for name, space in self.spaces.items()}

    def keys(self) -> Any:
        return self.spaces.keys()

    def items(self) -> Any:
        return self.spaces.items()

    def values(self) -> Any:
        return self.spaces.values()

    def __getitem__(self, name: str) -> Space:
        return self.spaces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spaces)

    def __len__(self) -> int:
        return len(self.spaces)

    def __repr__(self) -> str:
        return "Dict(" + ", ".join(f"{name!r}: {space!r}" for name, space in self.spaces.items()) + ")"


Dict_.__name__ = Dict_.__qualname__ = "Dict"
