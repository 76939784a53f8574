# ctest: timeout=900 labels=soak
"""The long form of test_guard_breaks.py: 500 SIGINTs."""
import unittest

import test_guard_breaks

import torch  # noqa: F401


class TestCtrlCLong(test_guard_breaks.TestCtrlC):
    count = 500


if __name__ == "__main__":
    unittest.main()
