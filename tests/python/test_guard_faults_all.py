# ctest: timeout=1800 labels=soak
"""The long form of test_guard_faults.py: 500 faults, four times."""
import unittest

import guard_faults

import torch  # noqa: F401


class TestFaultsLong(unittest.TestCase):
    def test_named_recovered_and_equal_to_the_twin(self):
        for seed in range(4):
            self.assertEqual(guard_faults.main(["--faults", "500", "--seed", str(100 * seed)]), 0, seed)


if __name__ == "__main__":
    unittest.main()
