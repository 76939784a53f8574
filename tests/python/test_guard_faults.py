# ctest: timeout=300
"""The short form of guard_faults.py: see there, and test_guard_faults_all.py."""
import unittest

import guard_faults

import torch  # noqa: F401


class TestFaults(unittest.TestCase):
    count, seed = 80, 1

    def test_named_recovered_and_equal_to_the_twin(self):
        self.assertEqual(guard_faults.main(["--faults", str(self.count), "--seed", str(self.seed)]), 0)


if __name__ == "__main__":
    unittest.main()
