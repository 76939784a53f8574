# ctest: timeout=240 cost=7
"""examples/guard_torch.py learns, is poisoned twice, names the tensor each time, and ends as well as it should."""
import contextlib
import io
import os
import runpy
import subprocess
import sys
import unittest

import torch

EXAMPLE = os.path.join(os.environ["SOURCE_DIR"], "examples", "guard_torch.py")


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
