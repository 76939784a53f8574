"""Forms of training that the guard does not cover, each refused with a sentence rather than watched in part."""

from typing import List, Sequence

import torch

from . import _names
from ._errors import Unsupported

_FSDP1 = "FullyShardedDataParallel"
_OTHERS = {"DeepSpeedEngine": "DeepSpeed's engine steps and partitions by itself"}


def check(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> List[str]:
    """Raises Unsupported; gives what is let through and not covered."""
    for name, tensor in [*_names.parameters(model), *_names.buffers(model)]:
        if is_lazy(tensor):
            raise Unsupported(f"{name} has no shape yet (a lazy module): pass one batch through the model, then make "
                              "optimizer and guard")
    for optimizer in optimizers:
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise Unsupported("ZeroRedundancyOptimizer(overlap_with_ddp=True) steps during the backward pass: when the "
                              "guard could look, the gradient is used. Without overlap it is covered")
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ == _FSDP1 and "fsdp" in kind.__module__:
                raise Unsupported("FullyShardedDataParallel (FSDP1) flattens parameters, so that tensors have no names "
                                  "of their own: use fully_shard (FSDP2), which the guard covers")
            if kind.__name__ in _OTHERS:
                raise Unsupported(f"{_OTHERS[kind.__name__]}: the guard cannot come between gradients and step there")
    return _hooks_after_accumulation(model)


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a lazy module has not made it yet."""
    kind = getattr(torch.nn.parameter, "UninitializedTensorMixin", None)
    return kind is not None and isinstance(tensor, kind)


def _hooks_after_accumulation(model: torch.nn.Module) -> List[str]:
    not_covered = []
    for name, parameter in _names.parameters(model):
        if getattr(parameter, "_in_backward_optimizers", None):
            raise Unsupported(_in_backward(name))
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            if "step" in _names_used(hook):
                raise Unsupported(_in_backward(name))
            not_covered.append(f"{name}: a post-accumulate-grad hook may change it during the backward pass")
    return not_covered


def _names_used(hook: object) -> tuple:
    function = getattr(hook, "func", hook)  # of functools.partial
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), "__call__", None), "__code__", None)
    return code.co_names if code is not None else ()


def _in_backward(name: str) -> str:
    return (f"{name} has a hook that steps an optimizer during the backward pass: when the guard could look, the "
            "gradient is used and gone. Step after the backward pass to be guarded")
