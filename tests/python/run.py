#!/usr/bin/env python3
"""Runs the unittest cases of one file against the package in bindings/python and a library that was built.

    usage: run.py tests/python/test_<thing>.py [CASE...]

The library is ESPER_GUARD_LIBRARY, or the one beside the program ESPER, or build/libesper-guard.so; for GrowEnv,
ESPER_ENGINE_LIBRARY and libesper.so likewise. What is left out is told in lines "skipped: ..."; exit status 77 means that nothing was run.
"""
import importlib
import importlib.util
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


def find_library():
    beside = os.path.dirname(os.environ.get("ESPER", os.path.join(ROOT, "build", "esper")))
    path = os.environ.setdefault("ESPER_GUARD_LIBRARY", os.path.join(beside, "libesper-guard.so"))
    if not os.path.exists(path):
        skip("%s is not here: this is not a folder it was built in" % path)
    os.environ.setdefault("ESPER_ENGINE_LIBRARY", os.path.join(beside, "libesper.so"))


def main(arguments):
    if not arguments:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    path = os.path.abspath(arguments[0])
    find_library()
    with open(path) as file:
        text = file.read()
    if re.search(r"(?m)^import numpy\b", text) and importlib.util.find_spec("numpy") is None:
        skip("%s has no NumPy (Debian package python3-numpy): what needs it is not tested" % sys.executable)
    wants_torch = re.search(r"(?m)^import torch\b", text)
    if wants_torch and importlib.util.find_spec("torch") is None:
        skip("%s has no PyTorch (Debian package python3-torch): the guard for it is not tested" % sys.executable)
    os.environ.setdefault("SOURCE_DIR", ROOT)
    os.environ["PYTHONPATH"] = os.path.join(ROOT, "bindings", "python")  # for processes that tests start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path[:0] = [os.path.dirname(path), os.environ["PYTHONPATH"]]
    tests = importlib.import_module(os.path.splitext(os.path.basename(path))[0])
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(arguments[1:], tests) if arguments[1:] else loader.loadTestsFromModule(tests)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    for case, why in result.skipped:
        print("skipped: %s: %s" % (case.id().split(".", 1)[-1], why))
    if result.wasSuccessful() and result.testsRun > 0 and result.testsRun == len(result.skipped):
        return 77
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
