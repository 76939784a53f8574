"""What the tests of GrowEnv share: tiny networks, and the checks of what a step gives."""
import numpy as np

import esper

TINY = dict(epochs=6, gate_epochs=1, max_steps=3, batch=8, channels=4, blocks=2, threads=2, valid_fraction=0.02)


def tiny(n=3, task="synth", **more):
    return esper.GrowEnv(task, n, **dict(TINY, **more))


def check_step(case, env, step):
    """Everything that holds of any step."""
    observations, rewards, over, cut, infos = step
    n = env.num_envs
    case.assertTrue(env.observation_space.contains(observations))
    case.assertEqual((rewards.shape, rewards.dtype), ((n,), np.float64))
    case.assertTrue(np.isfinite(rewards).all())
    np.testing.assert_allclose(infos["reward_parts"].sum(1), rewards, rtol=1e-9, atol=1e-9)
    case.assertEqual((over.dtype, over.shape, cut.dtype, cut.any()), (np.bool_, (n,), np.bool_, False))
    case.assertTrue((observations["mask_op"][:, 0] == 1).all())
    case.assertTrue((infos["params"] >= env.params_host).all())
    case.assertEqual("final_observation" in infos, bool(over.any()))
    for name in [name for name in infos if not name.startswith("_")]:
        case.assertEqual(infos["_" + name].shape, (n,))
        case.assertEqual(len(infos[name]["r"]) if name == "episode" else len(infos[name]), n)


def walk(case, env, n_steps):
    """So many random legal steps; gives how many episodes ended and how often each operation was taken."""
    n_over, ops = 0, np.zeros(len(env.ops), int)
    seen, _ = env.reset()
    for _ in range(n_steps):
        actions = env.sample()
        case.assertTrue(env.action_space.contains(actions))
        step = env.step(actions)
        check_step(case, env, step)
        over, infos = step[2], step[4]
        for i in np.flatnonzero(over):
            for name, rows in infos["final_observation"][i].items():  # what the last decision was taken by
                np.testing.assert_array_equal(rows, seen[name][i])
        seen = step[0]
        ops += np.bincount(infos["effective_op"], minlength=len(ops))
        n_over += int(over.sum())
    return n_over, ops
