# ctest: timeout=200
"""Types, by mypy where it is installed (Debian package mypy): the package itself, and what it says to wrong calls."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGE = os.path.join(os.environ["SOURCE_DIR"], "bindings", "python")
# torch is taken as it comes: its own types differ from version to version
CONFIG = """
[mypy]
mypy_path = {package}
disallow_untyped_defs = True
disallow_incomplete_defs = True
strict_optional = {strict}
[mypy-torch.*]
follow_imports = skip
[mypy-lightning.*,pytorch_lightning.*,transformers.*]
ignore_missing_imports = True
follow_imports = skip
"""
RIGHT = '''
import logging
from typing import Optional

import torch

import esper


def decide(report: esper.Report) -> str:
    return "skip" if report.n_bad < 3 else "raise"


def heard(event: esper.Event) -> None:
    print(event.kind, event.step, event.rank)


def run(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Optional[str]:
    esper.Guard(model, optimizer, log=print)
    esper.Guard(model, optimizer, log="guard.log")
    esper.Guard(model, optimizer, log=logging.getLogger("mine"))
    esper.Guard(model, [optimizer, optimizer], decide)
    guard = esper.Guard(model, optimizer, "rollback", scan=("grad", "param"), state_every=10, clip=1.0,
                        snapshot=esper.Snapshots(every=10, where="host"), spikes=esper.Spikes(), on_event=heard)
    with guard:
        number: float = guard.loss(1.5)
    guard.inject("weight", at=3, fault="inf")
    place = guard.locate(lambda: model(number))
    module: Optional[str] = place.module
    report: Optional[esper.Report] = guard.last
    if report is not None and not report.ok:
        return report.first_bad
    return module
'''
WRONG = {  # a line, and what is in its error
    'esper.Guard(model, optimizer, on_bad="rolback")': "on_bad",
    'esper.Guard(model, optimizer, "skipp")': "argument 3",
    'esper.Guard(model, optimizer, lambda: "skip")': "lambda",
    'esper.Guard(model, optimizer, scan=("gard",))': "scan",
    'esper.Guard(model, optimizer, snapshot=10)': "snapshot",
    'esper.Guard(model, optimizer, snapshots=esper.Snapshots())': "unexpected keyword",
    'esper.Snapshots(where="hos")': "where",
    'esper.Spikes(window="100")': "window",
    'esper.Guard(model, optimizer).inject("weight", fault="nam")': "fault",
    'esper.Guard(model, optimizer).last.ok': "optional",
    'esper.Guard(model, optimizer).comit()': "no attribute",
    'esper.Gaurd(model, optimizer)': "no attribute",
}


def mypy():
    """How it is called: the program, or this Python's own."""
    if shutil.which("mypy"):
        return ["mypy", "--python-executable", sys.executable]
    found = subprocess.run([sys.executable, "-m", "mypy", "--version"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL).returncode == 0
    return [sys.executable, "-m", "mypy"] if found else None


@unittest.skipUnless(mypy(), "mypy is not installed (Debian package mypy)")
class TestTypes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def said(self, *arguments, strict):
        config = os.path.join(self.folder, "mypy.ini")
        with open(config, "w") as file:
            file.write(CONFIG.format(package=PACKAGE, strict=strict))
        done = subprocess.run([*mypy(), "--config-file", config, "--cache-dir", os.path.join(self.folder, "cache"),
                               *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        return done.returncode, done.stdout

    def test_the_package(self):
        status, said = self.said("-p", "esper", strict=False)
        self.assertEqual(status, 0, said)

    def test_the_marker_is_there(self):
        self.assertTrue(os.path.exists(os.path.join(PACKAGE, "esper", "py.typed")))

    def test_calls(self):
        """Right ones pass; each wrong one is an error on its line."""
        lines = RIGHT.splitlines()
        lines += ["", "", "def wrong(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:"]
        start = len(lines) + 1
        lines += ["    " + line for line in WRONG]
        path = os.path.join(self.folder, "calls.py")
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        _, said = self.said("--follow-imports=silent", path, strict=True)
        errors = {}
        for number, text in re.findall(r"(?m)^calls\.py:(\d+): error: (.*)$", said):
            errors.setdefault(int(number), text)
        self.assertEqual([(number, text) for number, text in errors.items() if number < start], [], said)
        for number, (line, expected) in enumerate(WRONG.items(), start):
            with self.subTest(line):
                self.assertIn(number, errors)
                self.assertIn(expected, errors[number].lower())


if __name__ == "__main__":
    unittest.main()
