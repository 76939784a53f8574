# ctest: timeout=2400 labels=soak
"""The long form of test_guard_spikes.TestTrainings: 20,000 healthy steps, 50 divergences."""
import unittest
from unittest import mock

import guard_divergence

import torch  # noqa: F401


class TestDivergence(unittest.TestCase):
    def test_full_counts(self):
        with mock.patch("sys.argv", ["guard_divergence.py", "--healthy", "20000", "--divergences", "50"]):
            self.assertEqual(guard_divergence.main(), 0)


if __name__ == "__main__":
    unittest.main()
