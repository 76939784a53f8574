"""Names of earlier versions: they work, warn, and go with version 1.0."""

import warnings


def warn(former: str, name: str) -> None:
    """To who called the package."""
    warnings.warn(f"{former} is called {name} now: the former name goes with version 1.0", DeprecationWarning,
                  stacklevel=3)


class Names:
    """Former names of what a guard has."""

    def commit(self) -> bool:
        warn("guard.commit()", "guard.snapshot()")
        return self.snapshot()  # type: ignore[attr-defined,no-any-return]

    @property
    def path(self) -> str:
        warn("guard.path", "guard.mode")
        return self.mode  # type: ignore[attr-defined,no-any-return]
