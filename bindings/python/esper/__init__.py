"""Esper's guard for PyTorch: tells at once which tensor of a training went bad, and gets back."""

from ._errors import (BadGradient, BadState, BadTensor, GuardError, LibraryNotFound, ModelChanged, NoSnapshot,
                      Unsupported)

__version__ = "0.1.0"

__all__ = ["BadGradient", "BadState", "BadTensor", "GuardError", "LibraryNotFound", "ModelChanged", "NoSnapshot",
           "Unsupported"]
