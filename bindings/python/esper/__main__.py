"""python -m esper: what was found on this machine, and whether it works."""

import argparse
import os
import sys
from typing import List, Optional

ABOUT = """\
The guard for PyTorch: says which tensor went bad, and brings back the last good state.

    import esper

    guard = esper.Guard(model, optimizer)      # raises at the first NaN or Inf, and names the tensor
    guard.attach()                             # the training loop stays as it is

With on_bad="skip" a bad step is passed over; with on_bad="rollback" and snapshot=esper.Snapshots(every=100) the last
good state comes back. ESPER_GUARD=0 in the environment turns everything off."""

AFTER = """\
examples:
  python -m esper doctor               what was found here, and a self-test with real faults (30 seconds at most)
  python -m esper doctor --device cpu  without the GPU
  python -m esper version              the package's version, the library's, and where that lies

exit status: 0 all is well; 1 the self-test failed; 2 something is missing, and it says what"""


def foreign() -> str:
    """Says so where this package's files are mixed with those of another package called esper."""
    import esper

    if hasattr(esper, "GuardError"):  # and not "Guard", which would import torch
        return ""
    return (f"{getattr(esper, '__file__', 'esper')} is not the guard's: another package called \"esper\" was installed "
            "over it. Both cannot be in one environment: `pip uninstall esper esper-guard`, then install esper-guard "
            "alone")


def show_version() -> int:
    import esper
    from esper import _abi

    print(f"esper-guard {esper.__version__}")
    try:
        library = _abi.load()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"libesper-guard.so {library.version} at {library.path}")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m esper", description=ABOUT, epilog=AFTER,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="what was found on this machine, and a self-test that injects faults",
                                 description="Tells what was found, then trains a small network, spoils its numbers on "
                                             "purpose, and checks that each fault is named and undone.")
    doctor.add_argument("--device", default="all", help="where to test: cpu, cuda, cuda:1, ... (cpu and all of CUDA)")
    doctor.add_argument("--no-test", action="store_true", help="only tell what was found")
    commands.add_parser("version", help="the versions of package and library")
    return top


def main(arguments: Optional[List[str]] = None) -> int:
    options = parser().parse_args(arguments)
    trouble = foreign()
    if trouble:
        print("esper-guard: " + trouble, file=sys.stderr)
        return 2
    if options.command == "version":
        return show_version()
    if options.command == "doctor":
        from esper import _doctor

        return _doctor.run(options.device, not options.no_test)
    parser().print_help()
    return 0


def run() -> int:
    """As `main`; who reads the output may stop before its end, as `head` does."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still flushes at its end
        return 128 + 13  # as if SIGPIPE had ended it


if __name__ == "__main__":
    sys.exit(run())
