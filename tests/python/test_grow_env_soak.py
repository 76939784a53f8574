# ctest: timeout=1800 labels=soak
"""GrowEnv: 10,000 random legal steps, of four environments each, on images, text and a table."""
import unittest

import esper
from grow_env_cases import TINY, walk

CASES = [("synth", 4000, {}), ("synth_table", 3000, dict(channels=None, blocks=None)),
         ("synth_text", 3000, dict(channels=None, blocks=None, batch=2, layers=2, width=8, heads=2, context=8))]


class TestSoak(unittest.TestCase):
    def test_ten_thousand_legal_steps(self):
        n_steps = 0
        for task, n, more in CASES:
            env = open_env(task, dict(epochs=12, max_steps=2, **more))
            n_over, ops = walk(self, env, n)
            n_steps += n
            print(f"{task}: {n} steps of {env.num_envs} environments, {n_over} episodes, "
                  + ", ".join(f"{op} {count}" for op, count in zip(env.ops, ops)), flush=True)
            self.assertEqual(n_over, n // 12 * 4)
            self.assertTrue((ops > 0).all(), dict(zip(env.ops, ops)))
            env.close()
        self.assertEqual(n_steps, 10000)


def open_env(task, settings):
    """None: that setting is not this task's."""
    wanted = {key: value for key, value in dict(TINY, **settings).items() if value is not None}
    return esper.GrowEnv(task, 4, **wanted)


if __name__ == "__main__":
    unittest.main()
