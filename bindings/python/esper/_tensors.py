"""What of a torch tensor the library can read: dense memory of four types. Says why where it cannot."""

from typing import Iterable, List, Optional, Tuple, Union

import torch

from . import _abi

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}


class Item:
    """A tensor to scan. It is kept by `tensor` until that is dropped: a gradient must not outlive its step."""

    __slots__ = ("name", "role", "tensor", "layout", "dtype", "device", "count", "pointer", "copied", "parts")

    def __init__(self, name: str, role: int, tensor: torch.Tensor, copied: bool, parts: int = 1) -> None:
        self.name = name
        self.role = role
        self.tensor: Optional[torch.Tensor] = tensor
        self.layout = None if tensor.is_contiguous() else (tuple(tensor.shape), tensor.stride())
        self.dtype = DTYPES[tensor.dtype]
        self.device = tensor.get_device()
        self.count = tensor.numel()
        self.pointer = tensor.data_ptr()
        self.copied = copied
        self.parts = parts  # numbers in an element: 2 in a complex one

    @property
    def form(self) -> Tuple[str, int, int, int, int]:
        """All but the address: where these are the same, a new address is enough."""
        return self.name, self.role, self.dtype, self.device, self.count

    @property
    def shown(self) -> str:
        """The name in reports: a gradient's ends in .grad."""
        return self.name + ".grad" if self.role == _abi.GRAD else self.name


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    part = getattr(tensor, "_local_tensor", None)
    return tensor if part is None else part


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def make(name: str, role: int, tensor: torch.Tensor) -> Union[Item, str, None]:
    """The item of a tensor, or in words why there is none; None where there is nothing to find, as among integers."""
    tensor = local(tensor.detach())
    if tensor.layout is not torch.strided:
        if not tensor.is_sparse:
            return f"{name}: its layout is {tensor.layout}"
        tensor = (tensor if tensor.is_coalesced() else tensor.coalesce())._values()
    parts = 1
    if tensor.dtype.is_complex:
        tensor, parts = torch.view_as_real(tensor.resolve_conj()), 2
    if not tensor.dtype.is_floating_point:
        return None
    if tensor.dtype not in DTYPES:
        return f"{name}: its type is {tensor.dtype}"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"{name}: it lies on {tensor.device}"
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if is_dense(tensor):
        return Item(name, role, tensor, False, parts)
    return Item(name, role, tensor.contiguous(), True, parts)


def logical(item: Item, offset: int) -> int:
    """The index, counted through the dimensions in order, of the element that lies `offset` elements into memory."""
    index = offset
    if item.layout is not None:
        index = 0
        for size, stride in zip(*item.layout):
            index = index * size + ((offset // stride) % size if stride else 0)
    return index // item.parts


def sort(found: List[Union[Item, str, None]]) -> Tuple[List[Item], List[str]]:
    """Items, and what is not covered."""
    return [x for x in found if isinstance(x, Item)], [x for x in found if isinstance(x, str)]


def addresses(tensors: Iterable[torch.Tensor]) -> List[int]:
    """Where they are. By map, which is faster than a loop: this is asked of every gradient at every step."""
    return list(map(torch.Tensor.data_ptr, tensors))


def current_stream(device: int) -> int:
    """The raw stream that torch uses now on a CUDA device."""
    return _raw_stream(device)


def capturing(device: Optional[int]) -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    return device is not None and device >= 0 and torch.cuda.is_current_stream_capturing()


if hasattr(torch._C, "_cuda_getCurrentRawStream"):
    _raw_stream = torch._C._cuda_getCurrentRawStream
else:
    def _raw_stream(device: int) -> int:
        return torch.cuda.current_stream(device).cuda_stream
