# ctest: timeout=300
"""The short form of guard_soak.py."""
import unittest
from unittest import mock

import guard_soak

import torch


class TestSoak(unittest.TestCase):
    def test_short(self):
        count = "30" if torch.cuda.is_available() else "12"
        with mock.patch("sys.argv", ["guard_soak.py", "--faults", count, "--healthy", "200"]):
            self.assertEqual(guard_soak.main(), 0)


if __name__ == "__main__":
    unittest.main()
