"""Do all ranks still have the same state? One record of 64 bytes, reduced over the process group at each question.

The record, byte by byte (numbers are little-endian):

     0   health      8 flags, a byte each: 0, or 1 where this rank raises it
     8   state       64 bits and, at 16, their complement
    24   decisions   64 bits and, at 32, their complement
    40   step        64 bits and, at 48, their complement
    56   version     32 bits of the package's version and, at 60, their complement

All bytes are reduced by MAX, which every backend has for bytes (NCCL has no OR). Where all ranks said the same, a byte
and its complement still add up to 255; where two differ, the largest byte and the largest complement belong to two
ranks and add up to more. MAX of a flag is its OR. Only when something differs are all records gathered, and the ranks
named that differ from what more than half of them say; where there is no such half, two ranks for example, all are
named.
"""

import ctypes as c
import hashlib
import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from . import _abi, _names
from ._errors import GuardError, Unsupported
from ._guard import is_off

RECORD_BYTES = 64
FIELDS = (("state", 8, 8), ("decisions", 24, 8), ("step", 40, 8), ("version", 56, 4))  # name, offset, bytes
N_HEALTH = 8


class Divergence(GuardError):
    """Ranks are not in the same state. `ranks` are those that differ, `fields` what differs in them, `step` whose;
    `tensors` are the names of those that differ, where state or decisions were more than numbers."""

    __module__ = "esper"

    def __init__(self, message: str, ranks: Sequence[int] = (), fields: Sequence[str] = (), step: int = -1,
                 tensors: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.fields = tuple(fields)
        self.step = step
        self.tensors = tuple(tensors)


# ------------------------------------------------------------------------------------------------------- the record

def pack(health: int, state: int, decisions: int, step: int, version: int) -> bytes:
    """The record of one rank."""
    flags = bytes(health >> i & 1 for i in range(N_HEALTH))
    words = b"".join(struct.pack("<QQ", word, ~word & 2**64 - 1) for word in (state, decisions, step))
    return flags + words + struct.pack("<II", version, ~version & 2**32 - 1)


def health_of(record: bytes) -> int:
    return sum(1 << i for i in range(N_HEALTH) if record[i])


def value_of(record: bytes, field: str) -> int:
    offset, n = next((at, n) for name, at, n in FIELDS if name == field)
    return int.from_bytes(record[offset:offset + n], "little")


def differing(reduced: bytes) -> List[str]:
    """The fields that are not the same everywhere, from the record that was reduced over all ranks."""
    return [name for name, at, n in FIELDS
            if any(reduced[at + i] + reduced[at + n + i] != 255 for i in range(n))]


def majority(values: Sequence[int]) -> Optional[int]:
    """What more than half of them are, or None."""
    best = max(set(values), key=values.count)
    return best if 2 * values.count(best) > len(values) else None


def judge(records: Sequence[bytes]) -> Tuple[List[int], List[str], Optional[int]]:
    """Who differs, in which fields, and what most say of the first of these; from all records in order of ranks."""
    said = {name: [value_of(record, name) for record in records] for name, _, _ in FIELDS}
    fields = [name for name in said if len(set(said[name])) > 1]
    most = {name: majority(said[name]) for name in fields}
    ranks = [rank for rank in range(len(records))
             if any(most[name] is None or said[name][rank] != most[name] for name in fields)]
    return ranks, fields, most[fields[0]] if fields else None


def _shown(field: str, value: int) -> str:
    return format(value, ",d") if field == "step" else format(value, "016x" if field != "version" else "08x")


def words(records: Sequence[bytes], names: Sequence[int]) -> str:
    """"rank 2 of 4 differs from the others in: state (rank 2 has ..., the majority ...)"; "" when all agree.

    names: what the ranks of the group are called."""
    ranks, fields, most = judge(records)
    if not ranks:
        return ""
    called = [str(names[rank]) for rank in ranks]
    listed = ", ".join(called[:-1]) + " and " + called[-1] if len(called) > 1 else called[0]
    how = ("differ, with no majority to say who is right," if most is None else
           "differs from the others" if len(called) == 1 else "differ from the others")
    first = next((rank for rank in ranks if value_of(records[rank], fields[0]) != most), ranks[0])
    mine = value_of(records[first], fields[0])
    if most is not None:
        other = f"the majority {_shown(fields[0], most)}"
    else:
        second = next(rank for rank in ranks if value_of(records[rank], fields[0]) != mine)
        other = f"rank {names[second]} has {_shown(fields[0], value_of(records[second], fields[0]))}"
    return (f"rank{'s' if len(called) > 1 else ''} {listed} of {len(records)} {how} in: {', '.join(fields)} "
            f"({fields[0]}: rank {names[first]} has {_shown(fields[0], mine)}, {other})")


# ---------------------------------------------------------------------------------------------------------- hashing

class _Sums:
    """Checksums of tensors' bytes by the library: one pass over all tensors of a device, one wait."""

    def __init__(self) -> None:
        self._library = _abi.load()
        self._guards: Dict[int, Tuple[c.c_void_p, List[Tuple[int, int, int]]]] = {}

    def close(self) -> None:
        for guard, _ in self._guards.values():
            self._library.guard_close(guard)
        self._guards.clear()

    def _guard_for(self, device: int, shapes: List[Tuple[int, int, int]]) -> c.c_void_p:
        """A guard with these tensors; that of the last time when they are the same."""
        if device in self._guards and self._guards[device][1] == shapes:
            return self._guards[device][0]
        check = self._library.check
        if device in self._guards:
            guard = self._guards.pop(device)[0]
            check(self._library.guard_clear(guard))
        else:
            guard = c.c_void_p()
            check(self._library.guard_open(None, c.byref(guard)))
        table = (_abi.Tensor * len(shapes))()
        for i, (address, count, dtype) in enumerate(shapes):
            table[i] = _abi.Tensor(b"%d" % i, b"hash", _abi.OTHER, dtype, device, address, count)
        try:
            check(self._library.guard_add(guard, table, len(shapes)))
        except GuardError:
            self._library.guard_close(guard)
            raise
        self._guards[device] = guard, shapes
        return guard

    def of_device(self, device: int, tensors: List[torch.Tensor]) -> List[int]:
        """device: the guard's number, _abi.HOST or that of a CUDA device. Tensors are dense."""
        kinds = {2: (_abi.DTYPES.index("float16"), 1), 4: (_abi.DTYPES.index("float32"), 1),
                 8: (_abi.DTYPES.index("float64"), 1), 16: (_abi.DTYPES.index("float64"), 2)}
        shapes = []
        for tensor in tensors:
            dtype, times = kinds[tensor.element_size()]
            shapes.append((tensor.data_ptr(), tensor.numel() * times, dtype))
        guard = self._guard_for(device, shapes)
        scan = _abi.Scan()
        self._library.guard_scan_init(c.byref(scan))
        scan.checksum = 1
        if device != _abi.HOST:
            scan.stream = torch.cuda.current_stream(device).cuda_stream
        report = c.POINTER(_abi.Report)()
        self._library.check(self._library.guard_launch(guard, c.byref(scan)))
        self._library.check(self._library.guard_read(guard, c.byref(report)))
        return [report.contents.stats[i].checksum for i in range(len(tensors))]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Those of a small tensor whose elements are single bytes."""
    flat = tensor.cpu().contiguous()
    return bytes(c.string_at(flat.data_ptr(), flat.numel() * flat.element_size())) if flat.numel() else b""


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor with the same values."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        if not all(placement.is_replicate() for placement in getattr(tensor, "placements", ())):
            raise Unsupported("a sharded tensor (DTensor) differs between ranks by design, so they cannot agree on it: "
                              "hash what they share, such as decisions, step and learning rate")
        tensor = tensor.to_local()
    if tensor.is_meta:
        raise Unsupported("a tensor on the device `meta` has no values to hash")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.clone()
    return tensor.contiguous()


class _Parts:
    """Tensors of a thing, in the order of its encoding, each with the way to it."""

    def __init__(self) -> None:
        self.tensors: List[torch.Tensor] = []
        self.names: List[str] = []

    def add(self, tensor: torch.Tensor, way: Tuple[str, ...]) -> None:
        self.tensors.append(tensor)
        self.names.append(".".join(way) or "the tensor")


def _is_local(module: torch.nn.Module) -> bool:
    """Whether its buffers are statistics of this rank's own batches, which differ without harm."""
    return (isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.track_running_stats
            and not isinstance(module, torch.nn.SyncBatchNorm))


def _shared(module: torch.nn.Module) -> Dict[str, Any]:
    """The state_dict of a module without running statistics, by the names that the user knows."""
    module = _names.unwrap(module)
    local = {f"{path}.{name}" if path else name for path, part in module.named_modules() if _is_local(part)
             for name in part._buffers}
    return {_names.clean(name): value for name, value in module.state_dict().items() if name not in local}


def _encode(thing: Any, tensors: _Parts, way: Tuple[str, ...] = ()) -> bytes:
    """Equal things give equal bytes, different ones different bytes. A tensor's values are left out: it is added to
    `tensors`, in the order of the encoding."""
    if thing is None or isinstance(thing, bool):
        return b"%s;" % str(thing).encode()
    if isinstance(thing, int):
        return b"i%d;" % thing
    if isinstance(thing, float):
        return b"f" + struct.pack("<d", thing)
    if isinstance(thing, (str, bytes, bytearray)):
        data = thing.encode() if isinstance(thing, str) else bytes(thing)
        return b"%s%d:" % (b"s" if isinstance(thing, str) else b"b", len(data)) + data
    if isinstance(thing, torch.Tensor):
        return _encode_tensor(thing, tensors, way)
    if isinstance(thing, dict):  # by its keys, as the order in which they came is nobody's decision
        items = sorted(((_encode(key, _Parts()), key) for key in thing), key=lambda item: item[0])
        return b"d%d:" % len(items) + b"".join(key + _encode(thing[name], tensors, (*way, str(name)))
                                               for key, name in items)
    if isinstance(thing, (list, tuple)):
        return b"l%d:" % len(thing) + b"".join(_encode(part, tensors, (*way, str(i))) for i, part in enumerate(thing))
    if isinstance(thing, (set, frozenset)):
        return b"S%d:" % len(thing) + b"".join(sorted(_encode(part, _Parts()) for part in thing))
    if isinstance(thing, torch.nn.Module):
        return _encode(_shared(thing), tensors, way)
    if hasattr(thing, "state_dict"):
        return _encode(thing.state_dict(), tensors, way)
    if hasattr(thing, "tobytes") and hasattr(thing, "dtype") and hasattr(thing, "shape"):  # as numpy has them
        return b"a" + _encode([str(thing.dtype), list(thing.shape), thing.tobytes()], tensors, way)
    raise TypeError(f"Agreement.hash cannot hash a {type(thing).__name__}: give it numbers, text, tensors, objects "
                    "with a state_dict, or lists and dictionaries of these")


def _encode_tensor(tensor: torch.Tensor, tensors: _Parts, way: Tuple[str, ...]) -> bytes:
    head = b"t" + _encode([str(tensor.dtype), list(tensor.shape), str(tensor.layout)], _Parts())
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.detach().coalesce()
        return head + _encode_tensor(tensor.indices(), tensors, way) + _encode_tensor(tensor.values(), tensors, way)
    if tensor.layout != torch.strided:
        raise Unsupported(f"a tensor of layout {tensor.layout} cannot be hashed")
    tensors.add(_local(tensor), way)
    return head


# -------------------------------------------------------------------------------------------------------- agreement

class Agreement:
    """Asks, over a process group, whether all ranks are in the same state.

        agreement = esper.Agreement()                        # or of a group of yours
        ...
        if step % 100 == 0:
            agreement.agree(step, state=model)               # esper.Divergence names ranks and tensors that differ

    Of a module, parameters and buffers count, but not the running statistics of BatchNorm, which are each rank's own
    (those of SyncBatchNorm are everybody's, and count).

    Every rank of the group makes the same calls. Without a process group there is one rank, which agrees with itself.
    `device` is where the 64 bytes lie: the CPU where the group's backend can reduce there, else the current CUDA
    device. How long a rank is waited for is the process group's timeout. ESPER_GUARD=0, for all ranks, turns it off."""

    def __init__(self, process_group: Optional[Any] = None, device: Optional[Any] = None) -> None:
        self.group = process_group
        self.alone = not (dist.is_available() and dist.is_initialized())
        if self.alone and process_group is not None:
            raise GuardError("Agreement got a process group, but torch.distributed is not initialised: call "
                             "torch.distributed.init_process_group first")
        self.size = 1 if self.alone else dist.get_world_size(process_group)
        self.rank = 0 if self.alone else dist.get_rank(process_group)
        if self.rank < 0:
            raise GuardError("this process is not a member of the process group: only its members make an Agreement")
        self.off = is_off()
        self.device = torch.device(device) if device is not None else self._default_device()
        self._sums: Optional[_Sums] = None
        from . import __version__

        self._version = int.from_bytes(hashlib.blake2b(__version__.encode(), digest_size=4).digest(), "little")

    def _default_device(self) -> torch.device:
        backend = "" if self.alone else str(dist.get_backend(self.group)).lower()
        on_cuda = "nccl" in backend and "gloo" not in backend
        return torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")

    def hash(self, thing: Any) -> int:
        """64 bits of a tensor, module, optimiser or state_dict, of numbers, text, and lists and dictionaries of these.

        Tensors are read where they lie: one pass of the library for each device, and one wait. The values count, not
        how they lie in memory. It finds accidents; it is no defence against someone who wants two things to look the
        same."""
        return 0 if self.off else self._hash(thing)[0]

    def _hash(self, thing: Any) -> Tuple[int, List[Tuple[str, bytes]]]:
        """With what each tensor contributes, by name."""
        tensors = _Parts()
        digest = hashlib.blake2b(_encode(thing, tensors), digest_size=8)
        parts = self._parts(tensors.tensors)
        for part in parts:
            digest.update(part)
        return int.from_bytes(digest.digest(), "little"), list(zip(tensors.names, parts))

    def _parts(self, tensors: List[torch.Tensor]) -> List[bytes]:
        """8 bytes or more for each tensor."""
        parts: List[bytes] = [b""] * len(tensors)
        by_device: Dict[int, List[int]] = {}
        for i, tensor in enumerate(tensors):
            if tensor.element_size() == 1 or tensor.device.type not in ("cpu", "cuda"):
                parts[i] = hashlib.blake2b(_bytes_of(tensor), digest_size=8).digest()
            elif tensor.numel() > 0:
                number = _abi.HOST if tensor.device.type == "cpu" else tensor.device.index
                by_device.setdefault(number, []).append(i)
        if by_device and self._sums is None:
            self._sums = _Sums()
        for number, places in by_device.items():
            for i, sum_of in zip(places, self._sums.of_device(number, [tensors[i] for i in places])):
                parts[i] = struct.pack("<Q", sum_of)
        return parts

    def _word(self, thing: Any) -> Tuple[int, List[Tuple[str, bytes]]]:
        """A number that was hashed already, or anything else, hashed here."""
        if isinstance(thing, int) and not isinstance(thing, bool) and 0 <= thing < 2**64:
            return thing, []
        return self._hash(thing)

    def agree(self, step: int, state: Any = 0, decisions: Any = 0, health: int = 0) -> int:
        """Compares step, state and decisions over all ranks; raises Divergence, on every rank, where they differ.

        state and decisions: numbers from `hash`, or what is to be hashed. health: up to 8 flags of yours, bits 0 to 7,
        which may differ; returned are those that any rank raised, so that all can act alike. It waits for the others.
        """
        if not 0 <= health < 1 << N_HEALTH:
            raise ValueError(f"health is {health}: expected up to {N_HEALTH} flags, 0 to {(1 << N_HEALTH) - 1}")
        if not 0 <= step < 2**64:
            raise ValueError(f"step is {step}: expected a number from 0 on")
        if self.off:
            return health
        of_state, of_decisions = self._word(state), self._word(decisions)
        record = pack(health, of_state[0], of_decisions[0], step, self._version)
        reduced = self._reduce(record, step)
        if differing(reduced):
            self._name(record, step, of_state[1] + of_decisions[1])
        return health_of(reduced)

    def _reduce(self, record: bytes, step: int) -> bytes:
        if self.alone or self.size == 1:
            return record
        tensor = torch.tensor(list(record), dtype=torch.uint8, device=self.device)
        try:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
            return bytes(tensor.tolist())
        except RuntimeError as error:
            raise GuardError(f"step {step}: rank {self.rank} of {self.size} could not compare with the others, one of "
                             f"which may be gone or late: {error}") from error

    def _gather(self, mine: bytes) -> List[bytes]:
        """What every rank has, in their order: as many bytes of each."""
        tensor = torch.tensor(list(mine), dtype=torch.uint8, device=self.device)
        every = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(every, tensor, group=self.group)
        return [bytes(one.tolist()) for one in every]

    def _differing_tensors(self, parts: List[Tuple[str, bytes]]) -> List[str]:
        """The names of tensors that are not the same on all ranks; none where ranks do not have the same tensors."""
        shape = hashlib.blake2b(repr([(name, len(part)) for name, part in parts]).encode(), digest_size=8).digest()
        if len(set(self._gather(shape))) > 1 or not parts:
            return []
        every = self._gather(b"".join(part for _, part in parts))
        found, at = [], 0
        for name, part in parts:
            if len({one[at:at + len(part)] for one in every}) > 1:
                found.append(name)
            at += len(part)
        return found

    def _name(self, record: bytes, step: int, parts: List[Tuple[str, bytes]]) -> None:
        """Rare. The reduced record has shown all ranks the same, so all come here."""
        records = self._gather(record)
        tensors = self._differing_tensors(parts)
        names = [self._global(rank) for rank in range(self.size)]
        ranks, fields, _ = judge(records)
        text = words(records, names) or "the record was damaged on its way: ranks say the same, the record does not"
        if tensors:
            more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
            text += f"; tensors that differ: {', '.join(tensors[:3])}{more}"
        raise Divergence(f"step {step}: {text}", [names[rank] for rank in ranks], fields, step, tensors)

    def _global(self, rank: int) -> int:
        """What a rank of the group is called among all."""
        if self.group is None or self.alone:
            return rank
        find = getattr(dist, "get_global_rank", None) or getattr(dist.distributed_c10d, "get_global_rank", None)
        return find(self.group, rank) if find is not None else rank

    def close(self) -> None:
        """Gives back what `hash` keeps for the next time."""
        if self._sums is not None:
            self._sums.close()
            self._sums = None

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at the end of the program anything may be gone already
            pass
