"""python -m esper doctor: tells what was found, and proves on this very machine that faults are named and undone."""

import ctypes as c
import os
import platform
import sys
import time
from typing import Any, Callable, List, Literal, Tuple

from . import _abi
from ._errors import GuardError

SECONDS = 30.0  # for the whole self-test

# ---------------------------------------------------------------------------------------------------- what is here


class Missing(Exception):
    """Something without which nothing works; the text says what to do."""


def _say(label: str, text: str) -> None:
    print(f"  {label:<14}{text}")


def _kernels(library: _abi.Library) -> str:
    """Which kernels for host memory the library can use here, the one it takes first. It is asked one by one."""
    wanted = os.environ.get("ESPER_KERNELS")
    able = []
    cell = (c.c_float * 4)()
    for name in ("avx512", "avx2", "portable"):
        os.environ["ESPER_KERNELS"] = name
        guard = c.c_void_p()
        library.check(library.guard_open(None, c.byref(guard)))
        tensor = _abi.Tensor(b"probe", b"", _abi.OTHER, 0, _abi.HOST, c.addressof(cell), 4)
        if library.guard_add(guard, c.byref(tensor), 1) == 0:
            able.append(name)
        library.guard_close(guard)
    if wanted is None:
        del os.environ["ESPER_KERNELS"]
    else:
        os.environ["ESPER_KERNELS"] = wanted
    if wanted and wanted in able:
        return f"{wanted}, by ESPER_KERNELS"
    return able[0] + (f" (also {', '.join(able[1:])})" if able[1:] else "")


def _show_library() -> _abi.Library:
    from . import __version__

    _say("package", f"esper-guard {__version__} at {os.path.dirname(os.path.abspath(__file__))}")
    _say("python", f"{platform.python_version()} at {sys.executable}")
    if os.environ.get("ESPER_GUARD", "1") != "1":
        _say("switch", f"ESPER_GUARD={os.environ['ESPER_GUARD']} is set: with 0, guards do nothing. The self-test runs "
                       "all the same")
    try:
        library = _abi.load()
    except ImportError as error:
        raise Missing(str(error)) from None
    path = os.path.realpath(library.path) if os.sep in library.path else library.path
    _say("library", f"{library.version} at {path}")
    _say("CPU kernels", _kernels(library))
    return library


def _show_engine() -> bool:
    """What esper.GrowEnv needs; the guard does without. Gives whether it is there."""
    from . import _engine

    try:
        library = _engine.load()
    except ImportError as error:
        _say("engine", f"not here, so there is no esper.GrowEnv; the guard needs none. {error}")
        return False
    path = os.path.realpath(library.path) if os.sep in library.path else library.path
    _say("engine", f"{library.version} at {path}, for esper.GrowEnv")
    try:
        import numpy
    except ImportError:
        _say("numpy", "not here: esper.GrowEnv needs it (Debian: apt-get install python3-numpy)")
        return False
    _say("numpy", numpy.__version__)
    return True


def _show_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Missing(f"PyTorch cannot be imported by {sys.executable} ({error}). Debian: apt-get install "
                      "python3-torch, then use /usr/bin/python3, or the Python of an environment made by "
                      "`/usr/bin/python3 -m venv --system-site-packages`") from None
    _say("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(number)
            _say(f"cuda:{number}", f"{found.name}, compute capability {found.major}.{found.minor}, "
                                   f"{found.total_memory / 2**30:.0f} GiB")
    else:
        _say("CUDA", "no device" if torch.version.cuda else "this PyTorch is built without it")
    return torch


def _fused(torch: Any, device: str) -> bool:
    """Whether a fused optimiser can be told on the device to pass a step over: it is tried out."""
    from . import _optim

    try:
        return _optim.takes_flag(torch.optim.AdamW([torch.zeros(4, device=device, requires_grad=True)], fused=True))
    except (TypeError, RuntimeError):  # not known in this version, or not for this device
        return False


def _show_paths(torch: Any) -> None:
    able = [device for device in ("cpu", "cuda") if device == "cpu" or torch.cuda.is_available()]
    able = [device for device in able if _fused(torch, device)]
    if able:
        _say("skipping", f"without a wait for fused=True optimisers on {' and '.join(able)} (found_inf); else with one")
    else:
        _say("skipping", "with one wait a step (there is no fused optimiser here that could be told on the device)")
    hooks = hasattr(torch.optim.Optimizer, "register_step_pre_hook")
    _say("attach", "by hooks of the optimiser" if hooks else "by a wrapped optimizer.step: this PyTorch has no hooks")
    _say("compile", "torch.compile is here" if hasattr(torch, "compile") else "no torch.compile in this version")
    dist = torch.distributed
    if not dist.is_available():
        _say("distributed", "not in this PyTorch")
        return
    known = [(name, getattr(dist, f"is_{name}_available", None)) for name in ("gloo", "nccl", "mpi")]
    _say("distributed", ", ".join(name for name, here in known if here is not None and here()) or "yes")


def _show_namesake() -> None:
    """Another distribution has the same import name: whichever is installed last lies over the other."""
    from importlib import metadata

    try:
        found = metadata.distribution("esper")
    except metadata.PackageNotFoundError:
        return
    _say("beware", f"another package called \"esper\", {found.version}, is installed here too; it and the guard are "
                   "both imported as `esper`: one hides or overwrites the other. Keep them in two environments")


# ------------------------------------------------------------------------------------------------------- self-test

STEPS, SNAPSHOT_EVERY, FAULT_AT = 20, 4, 10


class Bench:
    """A small network that learns made-up numbers, the same ones each time, and its guard."""

    def __init__(self, torch: Any, device: str, fused: bool = False, **options: Any) -> None:
        import esper

        self.torch = torch
        self.device = device
        self.lines: List[str] = []
        numbers = torch.Generator().manual_seed(1)
        torch.manual_seed(2)
        self.model = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.Tanh(), torch.nn.Linear(48, 6)).to(device)
        more = {"fused": True} if fused else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, **more)
        self.inputs = torch.randn(STEPS + 5, 16, 24, generator=numbers).to(device)
        self.targets = torch.randint(0, 6, (STEPS + 5, 16), generator=numbers).to(device)
        self.guard = None
        if options:
            self.guard = esper.Guard(self.model, self.optimizer, state_every=1, log=self.lines.append, **options)
            self.guard.attach()

    def backward(self, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.model(self.inputs[step]), self.targets[step])
        loss.backward()
        return float(loss)

    def steps(self, first: int, last: int) -> float:
        loss = 0.0
        for step in range(first, last):
            loss = self.backward(step)
            self.optimizer.step()
        return loss

    def weights(self) -> List[Any]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def same(self, weights: List[Any]) -> bool:
        return all(self.torch.equal(a, b) for a, b in zip(self.weights(), weights))

    def finite(self) -> bool:
        return all(bool(self.torch.isfinite(weight).all()) for weight in self.weights())

    def close(self) -> None:
        if self.guard is not None:
            self.guard.detach()


Outcome = Tuple[bool, str]


def _healthy(torch: Any, device: str) -> Outcome:
    """With the guard and without: no alarm, and the same bits."""
    plain, guarded = Bench(torch, device), Bench(torch, device, on_bad="raise")
    try:
        plain.steps(0, STEPS)
        guarded.steps(0, STEPS)
        if not guarded.same(plain.weights()):
            return False, "the weights differ from those without the guard"
        return True, "no alarm; the same bits as without the guard"
    finally:
        guarded.close()


def _skipped(torch: Any, device: str, fused: bool = False) -> Outcome:
    bench = Bench(torch, device, fused, on_bad="skip")
    try:
        bench.steps(0, FAULT_AT)
        bench.backward(FAULT_AT)
        bench.guard.inject("2.weight.grad", at=7, fault="nan")
        before = bench.weights()
        bench.optimizer.step()
        bench.guard.result()
        untouched = bench.same(before)
        said = _line(bench, "2.weight.grad")
        bench.steps(FAULT_AT + 1, STEPS)
        return bool(said) and untouched and bench.finite(), said or "not named: " + "; ".join(bench.lines)
    finally:
        bench.close()


def _skipped_fused(torch: Any, device: str) -> Outcome:
    """The optimiser passes the step over by itself, and nobody waits."""
    return _skipped(torch, device, fused=True)


def _raised(torch: Any, device: str) -> Outcome:
    import esper

    bench = Bench(torch, device, on_bad="raise")
    try:
        bench.steps(0, FAULT_AT)
        bench.backward(FAULT_AT)
        bench.guard.inject("0.bias.grad", at=3, fault="inf")
        before = bench.weights()
        try:
            bench.optimizer.step()
        except esper.BadTensor as error:
            return error.report.first_bad == "0.bias.grad" and bench.same(before), str(error)
        return False, "no exception"
    finally:
        bench.close()


def _rolled_back(name: str, fault: Literal["nan", "inf"]) -> Callable[[Any, str], Outcome]:
    def case(torch: Any, device: str) -> Outcome:
        import esper

        bench = Bench(torch, device, on_bad="rollback", snapshot=esper.Snapshots(every=SNAPSHOT_EVERY))
        plain = Bench(torch, device)
        try:
            bench.steps(0, FAULT_AT)
            plain.steps(0, FAULT_AT - FAULT_AT % SNAPSHOT_EVERY)
            bench.backward(FAULT_AT)
            bench.guard.inject(name, at=5, fault=fault)
            bench.optimizer.step()
            bench.guard.result()  # what the next step would begin with
            said = _line(bench, name)
            if not said:
                return False, "not named: " + "; ".join(bench.lines)
            if not bench.same(plain.weights()):
                return False, said + ", but these are not the weights of that step"
            bench.steps(FAULT_AT + 1, STEPS)
            return bench.finite(), said
        finally:
            bench.close()

    return case


def _line(bench: Bench, name: str) -> str:
    """The line of the log that names the tensor first."""
    return next((line for line in bench.lines if f" in {name}," in line), "")


CASES: List[Tuple[str, Callable[[Any, str], Outcome]]] = [
    (f"{STEPS} healthy steps", _healthy),
    ("NaN in a gradient", _skipped),
    ("Inf in a gradient", _raised),
    ("NaN in a parameter", _rolled_back("2.weight", "nan")),
    ("Inf in a moment", _rolled_back("0.weight.exp_avg_sq", "inf")),
]


def _cases(torch: Any, device: str) -> List[Tuple[str, Callable[[Any, str], Outcome]]]:
    return CASES + ([("NaN, fused optimiser", _skipped_fused)] if _fused(torch, device) else [])


def _attempt(case: Callable[[Any, str], Outcome], torch: Any, device: str) -> Outcome:
    try:
        return case(torch, device)
    except Exception as error:  # whatever it is, it belongs in the table
        return False, f"{type(error).__name__}: {error}"


def self_test(torch: Any, devices: List[str]) -> int:
    """Prints a line for each device and fault; gives how many failed."""
    print(f"\nself-test: a small network is trained, and spoiled on purpose ({SECONDS:.0f} s at most)")
    wanted = os.environ.pop("ESPER_GUARD", None)
    state = torch.get_rng_state()
    end = time.monotonic() + SECONDS
    n_failed = n_left = n_done = 0
    for device in devices:
        for what, case in _cases(torch, device):
            if time.monotonic() > end:
                n_left += 1
                continue
            good, said = _attempt(case, torch, device)
            n_done += 1
            n_failed += not good
            print(f"  {device:<8}{what:<22}{'ok     ' if good else 'FAILED '} {said}", flush=True)
    torch.set_rng_state(state)
    if wanted is not None:
        os.environ["ESPER_GUARD"] = wanted
    if n_left:
        print(f"  {n_left} more {'was' if n_left == 1 else 'were'} not run: {SECONDS:.0f} s are over")
    print(f"\n{n_done - n_failed} of {n_done} passed")
    return n_failed


def growing_test() -> int:
    """The same legal steps of two growing networks, twice; gives how many tests failed."""
    import esper

    def play() -> Tuple[int, List[float]]:
        with esper.GrowEnv("synth", 2, epochs=6, gate_epochs=1, max_steps=2, batch=8, channels=4, blocks=2) as env:
            env.reset(seed=1)
            steps = [env.step(env.sample()) for _ in range(12)]
            return sum(int(step[2].sum()) for step in steps), [float(reward) for step in steps for reward in step[1]]

    try:
        n_ended, rewards = play()
        good = n_ended == 4 and play() == (n_ended, rewards)
        again = "twice the same rewards" if good else "and not the same again"
        said = f"{n_ended} episodes of growing networks, {again}"
    except Exception as error:
        good, said = False, f"{type(error).__name__}: {error}"
    print(f"  {'engine':<8}{'12 legal steps':<22}{'ok     ' if good else 'FAILED '} {said}", flush=True)
    return 0 if good else 1


def _devices(torch: Any, wanted: str) -> List[str]:
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if wanted == "all":
        return ["cpu", *cuda]
    found = ["cpu"] if wanted == "cpu" else [name for name in cuda if wanted in ("cuda", name)]
    if not found:
        raise Missing(f"--device {wanted}: there is no such device here, only {', '.join(['cpu', *cuda])}")
    return found


def run(device: str = "all", test: bool = True) -> int:
    """What `python -m esper doctor` does; its exit status."""
    print("esper doctor")
    try:
        _show_library()
        has_engine = _show_engine()
        torch = _show_torch()
        _show_paths(torch)
        _show_namesake()
        devices = _devices(torch, device)
    except (Missing, GuardError) as error:
        print(f"\nmissing: {error}")
        return 2
    if not test:
        return 0
    n_failed = self_test(torch, devices)
    if has_engine:
        print("\nself-test of esper.GrowEnv")
        n_failed += growing_test()
    return 1 if n_failed else 0
