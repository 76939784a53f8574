"""Names as the user wrote them: without what torch.compile, DDP and checkpointing put around modules."""

from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")  # parts of a name that stand for a wrapper wherever they are


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside torch.compile, DistributedDataParallel and DataParallel, however they are nested."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            model = model.module
        else:
            return model


def clean(name: str) -> str:
    """A dotted name without the parts that are wrappers'."""
    if "_" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def parameters(model: torch.nn.Module) -> List[Tuple[str, torch.nn.Parameter]]:
    """Every parameter once (tied ones under their first name), in the order of the model."""
    return [(clean(name), parameter) for name, parameter in unwrap(model).named_parameters()]


def buffers(model: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """Every buffer once."""
    for name, buffer in unwrap(model).named_buffers():
        yield clean(name), buffer


def buffer_places(model: torch.nn.Module) -> List[Tuple[Dict[str, Any], str]]:
    """Where `buffers` finds them: dicts of modules and keys, so that they are found again without a walk."""
    seen, places = set(), []
    for module in unwrap(model).modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                places.append((module._buffers, name))
    return places


def all_buffer_places(model: torch.nn.Module) -> Dict[str, Tuple[Dict[str, Any], str]]:
    """Where buffers are kept, by name, those that are None now too."""
    return {clean(f"{path}.{name}" if path else name): (module._buffers, name)
            for path, module in unwrap(model).named_modules() for name in module._buffers}


def of_optimizers(optimizers: Sequence[torch.optim.Optimizer], known: List[Tuple[str, torch.nn.Parameter]]
                  ) -> List[Tuple[str, torch.nn.Parameter]]:
    """Parameters that optimisers have and the model does not, under names by their place."""
    ids = {id(parameter) for _, parameter in known}
    return [(f"optimizer{o or ''}.group{g}.param{i}", parameter) for o, optimizer in enumerate(optimizers)
            for g, group in enumerate(optimizer.param_groups)
            for i, parameter in enumerate(group["params"]) if id(parameter) not in ids]
