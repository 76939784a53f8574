# ctest: timeout=240
"""python -m esper: doctor, version and help; what it says where something is missing."""
import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch

import esper
from esper import __main__ as command
from esper import _doctor

PACKAGE = os.path.join(os.environ["SOURCE_DIR"], "bindings", "python", "esper")


def run(*arguments):
    """In this process: its status and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            status = command.main(list(arguments))
        except SystemExit as left:
            status = left.code
    return status, said.getvalue()


def start(*command_line, **environment):
    done = subprocess.run(command_line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
                          env=dict(os.environ, **environment))
    return done.returncode, done.stdout


class TestDoctor(unittest.TestCase):
    def test_finds_and_proves(self):
        status, said = run("doctor", "--device", "cpu")
        self.assertEqual(status, 0, said)
        for text in (esper.__version__, os.path.realpath(os.environ["ESPER_GUARD_LIBRARY"]), torch.__version__,
                     "CPU kernels", "no alarm; the same bits as without the guard",
                     "step 11: NaN in 2.weight.grad, 1 of 288, first at 7; step skipped, optimizer untouched",
                     "step 11: Inf in 0.bias.grad, 1 of 48, first at 3; optimizer untouched",
                     "step 11: NaN in 2.weight, 1 of 288, first at 5; rolled back to step 8",
                     "step 11: Inf in 0.weight.exp_avg_sq, 1 of 1,152, first at 5; rolled back to step 8"):
            self.assertIn(text, said)
        if os.path.exists(os.environ["ESPER_ENGINE_LIBRARY"]) and importlib.util.find_spec("numpy") is not None:
            self.assertIn(os.path.realpath(os.environ["ESPER_ENGINE_LIBRARY"]) + ", for esper.GrowEnv", said)
            self.assertRegex(said, "12 legal steps +ok +4 episodes of growing networks, twice the same rewards")
        n = len(_doctor._cases(torch, "cpu"))
        self.assertIn(f"{n} of {n} passed", said)

    def test_only_looks(self):
        status, said = run("doctor", "--no-test")
        self.assertEqual(status, 0)
        self.assertNotIn("self-test", said)

    def test_works_where_it_is_switched_off(self):
        os.environ["ESPER_GUARD"] = "0"
        self.addCleanup(os.environ.pop, "ESPER_GUARD")
        status, said = run("doctor", "--device", "cpu")
        self.assertEqual(status, 0, said)
        self.assertIn("ESPER_GUARD=0 is set", said)
        self.assertEqual(os.environ["ESPER_GUARD"], "0")

    def test_a_failure_is_told(self):
        """A guard that looks away: its alarms go nowhere."""
        cases = _doctor.CASES
        _doctor.CASES = [("a case that fails", lambda torch, device: (False, "as it should"))]
        self.addCleanup(setattr, _doctor, "CASES", cases)
        status, said = run("doctor", "--device", "cpu")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"a case that fails +FAILED +as it should")

    def test_device_that_is_not_there(self):
        status, said = run("doctor", "--device", "cuda:99")
        self.assertEqual(status, 2)
        self.assertIn("missing: --device cuda:99: there is no such device here, only cpu", said)


class TestCommand(unittest.TestCase):
    def test_version(self):
        status, said = run("version")
        self.assertEqual(status, 0)
        self.assertIn(f"esper-guard {esper.__version__}\nlibesper-guard.so {esper.__version__} at ", said)

    def test_help_teaches(self):
        for arguments in ((), ("--help",)):
            status, said = run(*arguments)
            self.assertEqual(status, 0)
            for text in ("esper.Guard(model, optimizer)", "guard.attach()", "doctor", "version", "ESPER_GUARD=0",
                         "exit status"):
                self.assertIn(text, said)

    def test_without_the_library(self):
        status, said = start(sys.executable, "-m", "esper", "doctor", ESPER_GUARD_LIBRARY="/nowhere/libesper-guard.so")
        self.assertEqual(status, 2, said)
        self.assertIn("missing: libesper-guard.so was not found. Looked at: /nowhere/libesper-guard.so", said)

    def test_without_the_engine(self):
        """The guard needs none."""
        status, said = start(sys.executable, "-m", "esper", "doctor", ESPER_ENGINE_LIBRARY="/nowhere/libesper.so")
        self.assertEqual(status, 0, said)
        self.assertIn("there is no esper.GrowEnv; the guard needs none. libesper.so was not found", said)
        self.assertNotIn("self-test of esper.GrowEnv", said)

    def test_without_torch(self):
        code = "import sys; sys.modules['torch'] = None; from esper.__main__ import main; sys.exit(main(['doctor']))"
        status, said = start(sys.executable, "-c", code)
        self.assertEqual(status, 2, said)
        self.assertIn("missing: PyTorch cannot be imported", said)

    def test_another_package_of_that_name(self):
        place = tempfile.mkdtemp(dir=".")
        self.addCleanup(shutil.rmtree, place)
        shutil.copytree(PACKAGE, os.path.join(place, "esper"), ignore=shutil.ignore_patterns("__pycache__", "lib"))
        with open(os.path.join(place, "esper", "__init__.py"), "w") as file:
            file.write("class World:\n    pass\n")
        status, said = start(sys.executable, "-m", "esper", "doctor", PYTHONPATH=os.path.abspath(place))
        self.assertEqual(status, 2, said)
        self.assertIn("another package called \"esper\" was installed over it", said)
        self.assertNotIn("Traceback", said)


if __name__ == "__main__":
    unittest.main()
