# ctest: timeout=300 cost=10
"""GrowEnv: its interface, the rewards of `esper learn` to the bit, what is refused, and what goes wrong."""
import contextlib
import copy
import gc
import importlib.util
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy as np

import esper
from esper import _engine
from grow_env_cases import TINY, check_step, tiny, walk

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.environ.get("ESPER", os.path.join(os.environ["SOURCE_DIR"], "build", "esper"))
PAGE = os.path.join(os.environ["SOURCE_DIR"], "docs", "grow-env.md")
LONG = dict(max_steps=1000000, n=2, channels=64, batch=64)  # an epoch that nobody waits for


def python(code, **environment):
    """In a process of its own: its status and what it printed."""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, env=dict(os.environ, PYTHONPATH=os.pathsep.join((os.environ["PYTHONPATH"], HERE)),
                                               **environment))
    return done.returncode, done.stdout


class TestInterface(unittest.TestCase):
    def test_is_a_vector_environment(self):
        with tiny(3, seed=4) as env:
            self.assertEqual((env.num_envs, env.closed, env.unwrapped is env, env.render_mode, env.render()),
                             (3, False, True, None, None))
            self.assertEqual(env.metadata["autoreset_mode"], "SameStep")
            self.assertEqual(env.single_action_space.shape, (8,))
            self.assertEqual(env.action_space.shape, (3, 8))
            self.assertEqual(env.heads[-1], "op")
            self.assertEqual(env.ops, ("wait", "germinate", "set_alpha_target", "prune", "fossilize", "advance",
                                   "try"))
            self.assertEqual(env.slots, ("r0c0", "r0c1", "r1c0", "r1c1"))
            self.assertEqual(len(env.feature_names), env.single_observation_space["features"].shape[0])
            self.assertEqual((env.feature_names[0], env.feature_names[41 + 71]), ("epoch", "r0c1.present"))
            self.assertEqual(env.asked["fossilize"], ("slot", "op"))
            self.assertIn("rollback", env.reward_parts)
            self.assertIn("r1c1", repr(env))
            observations, infos = env.reset(seed=None, options=None)
            self.assertTrue(env.observation_space.contains(observations))
            for name, space in env.single_observation_space.items():
                self.assertTrue(space.contains(observations[name][2]), name)
                self.assertTrue(space.contains(space.sample()), name)
            self.assertEqual(infos["params"].tolist(), [env.params_host] * 3)
            self.assertEqual(len(set(infos["seed"].tolist())), 3)
        self.assertTrue(env.closed)
        env.close()  # a second time is nothing
        self.assertIn("closed", repr(env))

    def test_legal_steps(self):
        with tiny(4, epochs=12) as env:
            n_over, ops = walk(self, env, 120)
            self.assertEqual(n_over, 40)
            self.assertGreater((ops > 0).sum(), 4, ops)

    def test_ends(self):
        with tiny(2) as env:
            seeds = env.reset()[1]["seed"]
            total = np.zeros(2)
            for t in range(6):
                observations, rewards, over, _, infos = env.step(env.sample())
                total += rewards
            self.assertTrue(over.all())
            np.testing.assert_allclose(infos["episode"]["r"], total, rtol=1e-12, atol=1e-12)
            self.assertEqual(infos["episode"]["l"].tolist(), [6, 6])
            self.assertIs(infos["final_obs"], infos["final_observation"])
            self.assertEqual([one["seed"] for one in infos["final_info"]], seeds.tolist())
            self.assertFalse(set(infos["seed"].tolist()) & set(seeds.tolist()))
            # the next ones have begun
            self.assertEqual(observations["features"][:, 0].tolist(), [np.float32(1 / 6)] * 2)
            self.assertEqual(infos["final_observation"][0]["features"][0], 1.0)

    def test_seeds(self):
        with tiny(2, seed=7) as env:
            first, told = env.reset()
            again = env.reset(seed=7)
            other = env.reset(seed=8)
            self.assertEqual(told["seed"].tolist(), again[1]["seed"].tolist())
            for name in first:
                np.testing.assert_array_equal(first[name], again[0][name])
            self.assertNotEqual(other[1]["seed"].tolist(), told["seed"].tolist())
            named = env.reset(seed=[int(seed) for seed in told["seed"][::-1]])
            np.testing.assert_array_equal(named[0]["features"], first["features"][::-1])
            later = env.reset(options={"episode": 2})[1]["seed"].tolist()
            env.reset(seed=7)
            self.assertEqual(env.reset()[1]["seed"].tolist(), later)
        with tiny(1, seed=7) as env:  # an episode does not depend on how many there are
            np.testing.assert_array_equal(env.reset()[0]["features"][0], first["features"][0])

    def test_some_begin_anew(self):
        with tiny(3) as env:
            env.reset()
            before, *_, told = env.step(env.sample())
            after, infos = env.reset(options={"reset_mask": np.array([False, True, False])})
            self.assertEqual((infos["seed"] == told["seed"]).tolist(), [True, False, True])
            self.assertEqual(after["features"][:, 0].tolist(), [np.float32(k / 6) for k in (2, 1, 2)])
            np.testing.assert_array_equal(after["features"][0], before["features"][0])
            over = [env.step(env.sample())[2].tolist() for _ in range(6)]
            self.assertEqual([over.index(row) for row in ([True, False, True], [False, True, False])], [4, 5])

    def test_what_is_given_is_the_callers(self):
        """Arrays of before are not written into."""
        with tiny(2) as env:
            seen, told = env.reset()
            kept = copy.deepcopy((seen, told))
            step = env.step(env.sample())
            kept_step = copy.deepcopy(step)
            seen["mask_op"][:] = 1  # and what is done to them is not looked at
            env.step(env.sample())
            np.testing.assert_array_equal(seen["features"], kept[0]["features"])
            np.testing.assert_array_equal(step[0]["features"], kept_step[0]["features"])
            np.testing.assert_array_equal(step[1], kept_step[1])


class TestRewards(unittest.TestCase):
    """`esper learn` with a program that decides: its decisions again, and rewards to the bit."""

    def learn(self, more, **settings):
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in dict(TINY, **settings).items()]
        log = f"decided-{settings['seed']}.jsonl"
        command = f"{sys.executable} {os.path.join(HERE, 'grow_env_decider.py')} {log} 5"
        done = subprocess.run([PROGRAM, "learn", "synth", "--envs", "3", "--rounds", "2", *flags, *more, "--run-dir",
                               f"learned-{settings['seed']}", "--policy-cmd", command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(log) as file:
            return [json.loads(line) for line in file]

    def action(self, env, decision):
        words = dict(decision, alpha_target=decision.get("target"), alpha_speed=decision.get("speed"),
                     alpha_curve=decision.get("curve"))
        action = []
        for head in env.heads:
            menu = [float(word) for word in env.choices[head]] if head in ("tempo", "alpha_target", "alpha_speed") \
                else list(env.choices[head])
            action.append(0 if words.get(head) is None else menu.index(words[head]))
        return action

    def compare(self, more=(), **settings):
        views = self.learn(more, **settings)
        episodes = {}
        for view in views:
            episodes.setdefault(view["episode"]["number"], []).append(view)
        self.assertEqual(sorted(episodes), list(range(6)))
        n_rewards, n_done = 0, 0
        with tiny(3, **settings) as env:
            _, infos = env.reset()
            for round_ in range(2):
                played = [episodes[round_ * 3 + i] for i in range(3)]
                for t in range(env.episode_length):
                    for i in range(3):
                        view = played[i][t]
                        self.assertEqual(view["episode"]["seed"], str(infos["seed"][i]))
                        self.assertEqual((view["accuracy"], view["params"]), (infos["accuracy"][i], infos["params"][i]))
                    step = env.step([self.action(env, played[i][t]["decision"]) for i in range(3)])
                    check_step(self, env, step)
                    infos = step[4]
                    for i in range(3):
                        wanted = played[i][t + 1]["episode"]["reward"]
                        self.assertEqual(float(step[1][i]).hex(), float(wanted).hex(), (round_, t, i))
                        n_rewards += wanted != 0.0
                        n_done += bool(infos["accepted"][i]) and infos["effective_op"][i] != 0
                self.assertTrue(step[2].all())
        self.assertGreater(n_rewards, 10)
        self.assertGreater(n_done, 3)

    def test_by_gain(self):
        self.compare(seed=3, epochs=8)

    def test_by_stages(self):
        self.compare(seed=4, reward="shaped", epochs=10)

    def test_where_the_governor_goes_back(self):
        self.compare(seed=5, inject="7:host:param:nan", snapshot_every=1)


class TestRefusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.env = tiny(2)

    @classmethod
    def tearDownClass(cls):
        cls.env.close()

    def setUp(self):
        self.before = self.env.reset(seed=1)[0]

    def check_unmoved(self):
        """It is as if nothing had been asked: the same step as ever leads to the same place."""
        waits = np.zeros((2, 8), np.int64)
        got = self.env.step(waits)[0]
        self.env.reset(seed=1)
        np.testing.assert_array_equal(got["features"], self.env.step(waits)[0]["features"])

    def refused(self, kind, words, actions):
        with self.assertRaises(kind) as caught:
            self.env.step(actions)
        for word in words.split("|"):
            self.assertIn(word, str(caught.exception))

    def test_shapes(self):
        for actions in (np.zeros(8, int), np.zeros((3, 8), int), np.zeros((2, 7), int), np.zeros((2, 8, 1), int), 0, [],
                        np.zeros((0, 8), int)):
            self.refused(ValueError, "(2, 8)|op", actions)
        with self.assertRaises(ValueError):
            self.env.step([[0] * 8, [0] * 7])
        self.check_unmoved()

    def test_types(self):
        zeros = np.zeros((2, 8))
        for actions in (zeros, zeros.astype(np.float32), zeros.astype(bool), zeros.astype(complex), zeros.astype(str),
                        zeros.astype(object), np.full((2, 8), np.nan), np.full((2, 8), np.inf)):
            self.refused(TypeError, "whole numbers", actions)
        with self.assertRaises((TypeError, ValueError)):
            self.env.step(None)
        for kind in (np.int8, np.uint8, np.int64, np.uint64, ">i4"):
            self.env.step(zeros.astype(kind))
        self.env.step(np.asfortranarray(np.zeros((2, 8), np.int32)))
        self.env.step(np.zeros((4, 16), np.int32)[::2, ::2])

    def test_masked(self):
        actions = np.zeros((2, 8), np.int64)
        actions[1, 7] = 4
        self.refused(esper.IllegalAction, "environment 1|fossilize|masked", actions)
        actions[1, 7] = 1
        self.refused(ValueError, "environment 1|blueprint 0 (noop)|masked|germinate|r0c0", actions)
        for wild in (7, -1, 2**31, -2**31 - 1, 2**63 - 1, -2**63):
            actions[1, 7] = wild
            self.refused(esper.IllegalAction, str(wild), actions)
        self.refused(esper.IllegalAction, str(2**64 - 1), np.full((2, 8), 2**64 - 1, np.uint64))
        self.check_unmoved()

    def test_unasked_heads_are_not_looked_at(self):
        self.env.step(np.array([[99, -99, 99, -99, 99, -99, 99, 0]] * 2))

    def test_resets(self):
        for kind, words, arguments in (
                (TypeError, "seed", dict(seed=1.5)),
                (TypeError, "seed", dict(seed="12")),
                (ValueError, "seed", dict(seed=-1)),
                (ValueError, "seed", dict(seed=2**64)), (ValueError, "3 seeds", dict(seed=[1, 2, 3])),
                (TypeError, "seed", dict(seed=[1, None])), (TypeError, "seed", dict(seed=True)),
                (ValueError, "'colour'", dict(options={"colour": 1})),
                (ValueError, "reset_mask", dict(options={"reset_mask": [1, 0]})),
                (ValueError, "reset_mask", dict(options={"reset_mask": [True]})),
                (TypeError, "episode", dict(options={"episode": 0.5}))):
            with self.assertRaises(kind) as caught:
                self.env.reset(**arguments)
            self.assertIn(words, str(caught.exception))
        self.check_unmoved()

    def test_arguments(self):
        for kind, words, arguments in (
                (TypeError, "n is the number", ("synth", 2.0)), (TypeError, "n is the number", ("synth", True)),
                (ValueError, "0 environments", ("synth", 0)),
                (ValueError, "-1", ("synth", -1)),
                (ValueError, "1025", ("synth", 1025)),
                (TypeError, "task", (None,)), (TypeError, "task", (3,)), (TypeError, "task", (b"synth",)),
                (ValueError, "NUL", ("synth\0evil",)),
                (esper.GrowEnvError, "synht", ("synht",)),
                (esper.GrowEnvError, "task", ("",)),
                (esper.GrowEnvError, "%s%n", ("%s%n%p",)),
                (esper.GrowEnvError, "$(touch stolen)", ("$(touch stolen)",)),
                (esper.GrowEnvError, "no such", ("no such/../folder",)),
                (esper.GrowEnvError, "x" * 100, ("x" * 100000,)),
                (esper.GrowEnvError, "", ("\udcff\udcfe",))):
            with self.assertRaises(kind) as caught:
                esper.GrowEnv(*arguments)
            self.assertIn(words, str(caught.exception))
        self.assertFalse(os.path.exists("stolen"))

    def test_settings(self):
        for kind, words, settings in (
                (esper.GrowEnvError, "epochs", dict(epohcs=3)), (esper.GrowEnvError, "2 or more", dict(epochs=1)),
                (esper.GrowEnvError, "epochs", dict(epochs=float("nan"))),
                (esper.GrowEnvError, "policy_cmd", dict(policy_cmd="touch stolen")),
                (esper.GrowEnvError, "n_envs", dict(envs=3)), (esper.GrowEnvError, "reward", dict(reward="sprase")),
                (TypeError, "epochs", dict(epochs=None)),
                (TypeError, "epochs", dict(epochs=[3])),
                (TypeError, "reward", dict(reward=b"gain")),
                (ValueError, "NUL", dict(reward="gain\0")),
                (esper.GrowEnvError, "reward", dict(reward="gain\nepochs = 3")),
                (esper.GrowEnvError, "reward", dict(reward="x" * 5000)),
                (esper.GrowEnvError, "context", dict(context=8))):
            with self.assertRaises(kind) as caught:
                esper.GrowEnv("synth", 1, **settings)
            self.assertIn(words, str(caught.exception))
        self.assertFalse(os.path.exists("stolen"))
        with self.assertRaises(esper.GrowEnvError) as caught:
            esper.GrowEnv("fashion_fast", 1, data="nowhere/at all")
        self.assertIn("nowhere/at all", str(caught.exception))
        self.assertEqual(caught.exception.status, "ESPER_E_NOTFOUND")

    def test_the_environments_variables_are_not_looked_at(self):
        os.environ["ESPER_EPOCHS"] = "9"
        self.addCleanup(os.environ.pop, "ESPER_EPOCHS")
        with tiny(1) as env:
            self.assertEqual(env.episode_length, 6)


class TestLife(unittest.TestCase):
    def test_closed(self):
        env = tiny(1)
        env.reset()
        env.close()
        for call in (env.reset, env.sample, lambda: env.step(np.zeros((1, 8), int))):
            with self.assertRaisesRegex(esper.GrowEnvError, "closed"):
                call()

    def test_before_a_reset(self):
        with tiny(1) as env:
            for call in (env.sample, lambda: env.step(np.zeros((1, 8), int)),
                         lambda: env.reset(options={"reset_mask": [True]})):
                with self.assertRaisesRegex(esper.GrowEnvError, "reset"):
                    call()

    def test_is_not_copied(self):
        with tiny(1) as env:
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "pickled or copied"):
                    call(env)

    def test_what_nobody_holds_is_closed(self):
        def threads():
            return len(os.listdir("/proc/self/task"))

        gc.collect()
        before = threads()
        env = tiny(2, threads=3)
        env.reset()
        self.assertGreater(threads(), before)
        env.me = env  # a ring, too
        del env
        gc.collect()
        self.assertEqual(threads(), before)

    def test_one_that_cannot_be_opened_leaves_nothing(self):
        for _ in range(3):
            with self.assertRaises(esper.GrowEnvError):
                tiny(1, epochs=1)
        gc.collect()

    def test_two_in_one_process(self):
        def walked(env, n):
            steps = [env.reset(seed=2)[0]["features"]]
            for _ in range(n):
                steps.append(env.step(env.sample())[0]["features"])
            return np.array(steps)

        with tiny(2) as env:
            alone = walked(env, 8)
        with tiny(2) as one, tiny(2, reward="shaped") as other:
            got = []
            beside = threading.Thread(target=lambda: got.append(walked(other, 8)))  # at the same time
            beside.start()
            np.testing.assert_array_equal(walked(one, 8), alone)
            beside.join()
        np.testing.assert_array_equal(got[0], alone)  # rewards are others, networks the same

    def test_one_thread_at_a_time(self):
        with tiny(1) as env:
            env.reset()
            with env._inside:
                for call in (env.reset, env.close, lambda: env.step(np.zeros((1, 8), int))):
                    with self.assertRaisesRegex(esper.GrowEnvError, "another thread"):
                        call()
            self.assertFalse(env.closed)

    def test_a_child_cannot_play(self):
        status, said = python("""
import os, sys
import numpy as np
import esper
from grow_env_cases import tiny
env = tiny(2)
env.reset()
child = os.fork()
if child == 0:
    try:
        env.step(np.zeros((2, 8), int))
    except esper.GrowEnvError as error:
        print(error, flush=True)
    env.close()
    with tiny(1) as own:  # one of its own it can have
        own.reset()
    sys.exit(3)  # with all that Python does at its end
_, ended = os.waitpid(child, 0)
env.step(np.zeros((2, 8), int))
print("the child ended with", ended >> 8)
child = os.fork()
if child == 0:
    del env  # not closed: Python does, at its end
    sys.exit(4)
print("the second with", os.waitpid(child, 0)[1] >> 8)
""")
        self.assertEqual(status, 0, said)
        for words in ("another process", "the child ended with 3", "the second with 4"):
            self.assertIn(words, said)

    def test_where_no_thread_can_be_started(self):
        def refuse(thread):
            raise RuntimeError("can't start new thread")

        with tiny(1) as env:
            start, threading.Thread.start = threading.Thread.start, refuse
            try:
                env.reset()
                check_step(self, env, env.step(env.sample()))
            finally:
                threading.Thread.start = start

    def test_ctrl_c(self):
        """It is heard in the midst of an epoch; then the environments have to be reset."""
        for kind in ("reset", "step"):
            with tiny(**(LONG if kind == "reset" else dict(n=2))) as env:
                if kind == "step":
                    env.reset()
                    env.step(env.sample())
                threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
                began = time.monotonic()
                with self.assertRaises(KeyboardInterrupt):
                    if kind == "reset":
                        env.reset()
                    while True:
                        env.step(env.sample())
                self.assertLess(time.monotonic() - began, 20)
                if kind == "reset":
                    with self.assertRaisesRegex(esper.GrowEnvError, "reset"):
                        env.step(np.zeros((2, 8), int))
                else:
                    check_step(self, env, (env.reset(), env.step(env.sample()))[1])

    def test_ctrl_c_ends_a_program(self):
        code = ("from grow_env_cases import tiny\nenv = tiny(2, max_steps=1000000, channels=64, batch=64)\n"
                "print('begins', flush=True)\nenv.reset()")
        program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=dict(os.environ, PYTHONPATH=os.pathsep.join((os.environ["PYTHONPATH"], HERE))))
        self.assertEqual(program.stdout.readline(), b"begins\n")
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
        self.assertIn(b"KeyboardInterrupt", said)
        self.assertEqual(program.returncode, -signal.SIGINT)

    def test_the_governor_stops_one(self):
        with tiny(2, inject="5:host:param:nan", max_rollbacks=0) as env:
            env.reset()
            for _ in range(3):
                step = env.step(np.zeros((2, 8), int))
                check_step(self, env, step)
                self.assertTrue(step[2].all() and step[4]["rolled_back"].all())
                self.assertEqual(step[1].tolist(), [-10, -10])
                self.assertEqual(step[4]["episode"]["stopped"].tolist(), [1, 1])


class TestLoading(unittest.TestCase):
    def test_needs_no_torch(self):
        status, said = python("import sys\nsys.modules['torch'] = None\nfrom grow_env_cases import tiny\n"
                              "print(tiny(1).reset()[1]['params'])\nimport esper\nesper.Guard")
        self.assertEqual(status, 1)
        self.assertIn("[", said)
        self.assertIn("esper needs PyTorch", said)

    def test_says_that_numpy_is_missing(self):
        status, said = python("import sys\nsys.modules['numpy'] = None\nimport esper\nesper.GrowEnv")
        self.assertEqual(status, 1)
        self.assertIn("esper.GrowEnv needs NumPy", said)

    def test_says_that_the_library_is_missing(self):
        open("text.so", "w").write("no library\n")
        for path, words in (("/nowhere/libesper.so", "/nowhere/libesper.so (no such file)"), ("text.so", "text.so"),
                            (os.environ["ESPER_GUARD_LIBRARY"], "esper_grow_env")):
            status, said = python("import esper\nesper.GrowEnv('synth')", ESPER_ENGINE_LIBRARY=os.path.abspath(path))
            self.assertEqual(status, 1)
            self.assertIn("LibraryNotFound: libesper.so was not found", said)
            self.assertIn(words, said)
            self.assertIn("ESPER_ENGINE_LIBRARY", said)

    def test_structs_are_the_librarys(self):
        options = _engine.Options()
        _engine.load().grow_env_options_init(options)
        self.assertEqual(options.size, __import__("ctypes").sizeof(_engine.Options))

    def test_beside_the_guards_library(self):
        from esper import _abi

        guard, engine = _abi.load(), _engine.load()
        self.assertEqual(guard.version, engine.version)
        with tiny(1) as env:
            env.reset()


@unittest.skipUnless(os.path.exists(PAGE), "docs/grow-env.md is not here")
class TestPage(unittest.TestCase):
    def test_blocks(self):
        """A block of Python marked `test` prints the block of text behind it."""
        with open(PAGE, encoding="utf-8") as file:
            blocks = re.findall(r"```python test\n(.*?)```\n\n```text test\n(.*?)```", file.read(), re.DOTALL)
        self.assertEqual(len(blocks), 1)
        for code, wanted in blocks:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(code, PAGE, "exec"), {"__name__": "page"})
            self.assertEqual(said.getvalue(), wanted)

    def test_every_info_and_array_has_a_row(self):
        with open(PAGE, encoding="utf-8") as file:
            text = file.read()
        with tiny(1) as env:
            observations, _ = env.reset()
            names = set(observations) | set(env.heads) | set(env.ops)
            for _ in range(6):
                names |= {name for name in env.step(env.sample())[4] if not name.startswith("_")}
        self.assertEqual([name for name in sorted(names) if f"`{name}`" not in text], [])


@unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch")
class TestExample(unittest.TestCase):
    def test_runs(self):
        """Two rounds of tiny networks: it gets to its end, and says what it has learned beside chance."""
        settings = [f"{key}={value}" for key, value in TINY.items()]
        example = os.path.join(os.environ["SOURCE_DIR"], "examples", "grow_env_torch.py")
        done = subprocess.run([sys.executable, example, "2", "synth", *settings], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stdout)
        lines = done.stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["by", "round", "round", "learned"])
        self.assertRegex(lines[-1], "learned +return +-?[0-9.]+ .*, by chance -?[0-9.]+ on the same 16 episodes")


if __name__ == "__main__":
    unittest.main()
