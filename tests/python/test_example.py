# ctest: timeout=240 cost=7
"""examples/guard_torch.py learns, is poisoned twice, names the tensor each time, and ends as well as it should."""
import contextlib
import io
import os
import runpy
import subprocess
import sys
import types
import unittest
from unittest import mock

import torch

EXAMPLE = os.path.join(os.environ["SOURCE_DIR"], "examples", "guard_torch.py")


BOARD = os.path.join(os.environ["SOURCE_DIR"], "examples", "guard_tensorboard.py")


class Writer:
    """As SummaryWriter: keeps what is written."""

    made = []

    def __init__(self, folder):
        self.folder, self.texts, self.numbers = folder, [], {}
        self.made.append(self)

    def add_text(self, tag, text, step):
        self.texts.append((tag, text, step))

    def add_scalar(self, tag, value, step):
        self.numbers.setdefault(tag, {})[step] = float(value)

    def add_scalars(self, tag, values, step):
        self.numbers.setdefault(tag, {})[step] = dict(values)

    def close(self):
        self.folder = None


class TestTensorBoard(unittest.TestCase):
    """With a writer of the test's own: TensorBoard need not be installed."""

    def test_what_is_written(self):
        module = types.ModuleType("torch.utils.tensorboard")
        module.SummaryWriter = Writer
        with mock.patch.dict(sys.modules, {"torch.utils.tensorboard": module}), \
                mock.patch("sys.argv", [BOARD, "there"]), \
                contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()), \
                self.assertRaises(SystemExit) as left:
            runpy.run_path(BOARD, run_name="__main__")
        self.assertEqual(left.exception.code, 0)
        self.assertIn("2 skips, 1 rollbacks; see them with: tensorboard --logdir there", said.getvalue())
        writer = Writer.made[-1]
        self.assertEqual([(tag, step) for tag, _, step in writer.texts if tag in ("guard/skip", "guard/rollback")],
                         [("guard/skip", 80), ("guard/skip", 120), ("guard/rollback", 160)])
        self.assertIn("jumps", next(text for _, text, step in writer.texts if step == 120))
        self.assertEqual(writer.numbers["guard/events"][160], {"skip": 2, "rollback": 1, "bad": 0, "raise": 0})
        self.assertEqual(writer.numbers["guard/lr_factor"][200], 0.5)
        self.assertEqual(len(writer.numbers["loss"]), 200)
        self.assertLess(writer.numbers["loss"][200], 0.7 * writer.numbers["loss"][1])


class TestExample(unittest.TestCase):
    def test_learns_and_recovers(self):
        torch.set_num_threads(1)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), self.assertRaises(SystemExit) as left:
            runpy.run_path(EXAMPLE, run_name="__main__")
        lines = said.getvalue().splitlines()
        self.assertEqual(left.exception.code, 0, said.getvalue())
        self.assertIn("step 90: Inf in blocks.1.mlp.0.weight.grad, 1 of 9,216, first at 417; step skipped, optimizer "
                      "untouched", lines)
        self.assertIn("step 150: NaN in blocks.0.attn.proj.weight, 1 of 2,304, first at 1,002; rolled back to step 140 "
                      "(1 of 3)", lines)
        self.assertEqual(sum(" in blocks." in line for line in lines), 2)
        self.assertRegex(lines[-1], r"^two faults, two lines: 1 step skipped, 1 rollback; the loss fell from 4\.\d+ ")
        self.assertLess(float(lines[-1].rsplit(" ", 1)[1]), 2.6)

    def test_says_what_is_missing(self):
        code = "import sys; sys.modules['torch'] = None; import runpy; runpy.run_path(%r, run_name='__main__')"
        done = subprocess.run([sys.executable, "-c", code % EXAMPLE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=100)
        self.assertEqual(done.returncode, 1)
        self.assertIn("This example needs PyTorch", done.stdout)
        self.assertNotIn("Traceback", done.stdout)


if __name__ == "__main__":
    unittest.main()
