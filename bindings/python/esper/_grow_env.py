"""GrowEnv: growing networks as a vector environment, over libesper.so. docs/grow-env.md tells what is seen and done."""

import ctypes as c
import os
import threading
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import numpy as np

from . import _engine
from ._errors import GrowEnvError, IllegalAction
from ._spaces import Box, Dict_, MultiBinary, MultiDiscrete, Space

Observations = Dict[str, np.ndarray]

_OBSERVED = ("features", "blueprints", "mask_op", "mask_slot", "mask_blueprint", "mask_style")
_TOLD = ("accuracy", "params", "seed")
_STEPPED = ("reward", "parts", "effective_op", "accepted", "rolled_back", "terminated")
_DTYPES = {
    "features": np.float32, "blueprints": np.int32, "mask_op": np.int8, "mask_slot": np.int8, "mask_blueprint": np.int8,
    "mask_style": np.int8, "accuracy": np.float64, "params": np.int64, "seed": np.uint64, "reward": np.float64,
    "parts": np.float64, "effective_op": np.int32, "accepted": np.bool_, "rolled_back": np.bool_, "terminated": np.bool_,
}
WAIT, GERMINATE, SET_ALPHA_TARGET, PRUNE, FOSSILIZE, ADVANCE, TRY = range(7)


class GrowEnv:
    """`n` growing networks of a task, each an episode of so many decisions; Gymnasium's vector interface.

        env = esper.GrowEnv("fashion_fast", 16, seed=1)
        observations, infos = env.reset()
        observations, rewards, terminations, truncations, infos = env.step(env.sample())

    `task` is a name that `esper info tasks` lists, or a path to data; further arguments are settings of `esper learn`, as
    `esper learn --help` has them (epochs=12, max_steps=20, reward="shaped", threads=2). An environment whose episode is
    over begins the next one in the same step. For one thread at a time, and for the process that made it.
    """

    metadata: Dict[str, Any] = {"render_modes": [], "autoreset_mode": "SameStep"}
    render_mode: Optional[str] = None
    spec: Any = None
    closed = True  # until it is open

    def __init__(self, task: Union[str, "os.PathLike[str]"], n: int = 4, **settings: Any) -> None:
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
            raise TypeError(f"n is the number of environments, not {n!r}")
        if not 0 < n <= 1024:
            raise ValueError(f"{n} environments: from 1 to 1024 are possible")
        self._library = _engine.load()
        self._env = c.c_void_p()
        options = _options(self._library, task, int(n), settings)
        self._library.check(self._library.grow_env_open(c.byref(options), c.byref(self._env)))
        self._close = weakref.finalize(self, self._library.grow_env_close, self._env)
        self.closed = False
        self._shape = _engine.Shape(size=c.sizeof(_engine.Shape))
        self._library.check(self._library.grow_env_shape_get(self._env, c.byref(self._shape)))
        self._name()
        self._make_spaces()
        self._last: Optional[Observations] = None  # what was seen last, copied for final observations
        self._told: Dict[str, np.ndarray] = {}
        self._rng = np.random.default_rng(int(self._shape.seed))
        self._inside = threading.Lock()

    # ------------------------------------------------------------------------------------------ what there is

    def _name(self) -> None:
        """Names of everything that arrays have numbers for."""
        library, shape = self._library, self._shape
        self.task_seed = int(shape.seed)
        self.num_envs = int(shape.n_envs)
        self.episode_length = int(shape.n_decisions)
        self.params_host = int(shape.params_host)
        self.heads = self._names(library.grow_env_head)
        self.choices = {head: self._names(library.grow_env_choice, number) for number, head in enumerate(self.heads)}
        self.ops, self.slots = self.choices["op"], self.choices["slot"]
        self.blueprint_names = self.choices["blueprint"]
        self.feature_names = self._names(library.grow_env_feature)
        self.reward_parts = self._names(library.grow_env_part)
        self.asked = {op: tuple(head for number, head in enumerate(self.heads)
                                if library.grow_env_asked(code) >> number & 1) for code, op in enumerate(self.ops)}
        self._at = {head: number for number, head in enumerate(self.heads)}

    def _names(self, function: Callable[..., int], *first: int) -> Tuple[str, ...]:
        names: List[str] = []
        text = c.create_string_buffer(80)
        while function(self._env, *first, len(names), text, len(text)) == _engine.OK:
            names.append(text.value.decode(errors="replace"))
        return tuple(names)

    def _make_spaces(self) -> None:
        shape = self._shape
        rows = {
            "features": (shape.n_features,), "blueprints": (shape.n_slots,), "mask_op": (shape.n_ops,),
            "mask_slot": (shape.n_ops, shape.n_slots), "mask_blueprint": (shape.n_slots, shape.n_blueprints),
            "mask_style": (shape.n_slots, shape.n_styles), "parts": (shape.n_parts,),
        }
        self._rows: Dict[str, Tuple[int, ...]] = {name: (shape.n_envs, *rows.get(name, ())) for name in _DTYPES}
        sizes = [len(self.choices[head]) for head in self.heads]

        def observed(*batch: int) -> Dict_:
            spaces: Dict[str, Space] = {
                "features": Box(-np.inf, np.inf, (*batch, *rows["features"]), np.float32),
                "blueprints": Box(-1, shape.n_blueprints - 1, (*batch, *rows["blueprints"]), np.int32),
            }
            spaces.update((name, MultiBinary((*batch, *rows[name]))) for name in _OBSERVED[2:])
            return Dict_(spaces)

        self.single_observation_space = observed()
        self.observation_space = observed(self.num_envs)
        self.single_action_space = MultiDiscrete(sizes)
        self.action_space = MultiDiscrete([sizes] * self.num_envs)

    @property
    def unwrapped(self) -> "GrowEnv":
        return self

    @property
    def np_random(self) -> np.random.Generator:
        """What `sample` draws from."""
        return self._rng

    # ------------------------------------------------------------------------------------------ calls

    def reset(self, *, seed: Union[int, Sequence[int], None] = None, options: Optional[Dict[str, Any]] = None
              ) -> Tuple[Observations, Dict[str, Any]]:
        """Begins episodes anew: the next ones of the run.

        seed: a number, and episodes are counted from 0 in the run with that seed (`GrowEnv(..., seed=s)` begins with s
        itself, which also chooses the validation set); or a list, the seeds of these episodes themselves, as infos["seed"]
        tells them. options: {"reset_mask": (n,) booleans, those that begin anew; "episode": count from here}.
        """
        self._check_open()
        which, episode = self._reset_options(options)
        seeds: Optional[np.ndarray] = None
        if seed is not None and not isinstance(seed, (int, np.integer)):
            seeds = self._seeds(seed)
        elif seed is not None or episode is not None:
            run = self.task_seed if seed is None else _whole("seed", seed, 2**64)
            self._library.check(self._library.grow_env_seek(self._env, run, episode or 0))
            self._rng = np.random.default_rng(run)
        observations = self._arrays(_OBSERVED, self._last if which is not None else None)
        told = self._arrays(_TOLD, self._told if which is not None else None)
        self._play(self._library.grow_env_reset, _pointer(which), _pointer(seeds), {**observations, **told})
        self._last, self._told = observations, told
        return _copied(observations), _with_marks(_copied(told), self.num_envs)

    def step(self, actions: Any) -> Tuple[Observations, np.ndarray, np.ndarray, np.ndarray, Dict[str, Any]]:
        """Carries out `actions`, (num_envs, 8) whole numbers in the order of `heads`.

        What an operation does not ask (`asked`) is not looked at. IllegalAction: one is masked; nothing has moved. Gives
        observations, rewards, terminations, truncations (an episode has a fixed length and is never cut short: all False)
        and infos.
        """
        self._check_open()
        wanted = self._actions(actions)
        if self._last is None:
            raise GrowEnvError("the environment has to be reset before it is stepped")
        observations, told, stepped = self._arrays(_OBSERVED), self._arrays(_TOLD), self._arrays(_STEPPED)
        self._play(self._library.grow_env_step, _pointer(wanted), {**observations, **told, **stepped})
        infos: Dict[str, Any] = dict(_copied(told), reward_parts=stepped["parts"])
        infos.update((name, stepped[name]) for name in ("effective_op", "accepted", "rolled_back"))
        infos = _with_marks(infos, self.num_envs)
        over = stepped["terminated"]
        if over.any():
            self._tell_ends(infos, over, stepped)
        self._last, self._told = observations, told
        return _copied(observations), stepped["reward"], over, np.zeros(self.num_envs, np.bool_), infos

    def _tell_ends(self, infos: Dict[str, Any], over: np.ndarray, stepped: Dict[str, np.ndarray]) -> None:
        """What is known of episodes that are over: their rows show the next ones already."""
        assert self._last is not None
        finals, about = np.full((2, self.num_envs), None, object)
        names = ("r", "l", "accuracy", "accuracy_best", "params", "n_germinated", "n_kept", "n_pruned", "n_rollbacks",
                 "stopped")
        episode: Dict[str, np.ndarray] = {name: np.zeros(self.num_envs, np.float64) for name in names}
        for i in np.flatnonzero(over):
            ended = _engine.Episode(size=c.sizeof(_engine.Episode))
            self._library.check(self._library.grow_env_episode_get(self._env, int(i), c.byref(ended)))
            values = (ended.total_reward, ended.n_decisions, ended.accuracy_final, ended.accuracy_best, ended.params,
                      ended.n_germinated, ended.n_kept, ended.n_pruned, ended.n_rollbacks, ended.stopped)
            for name, value in zip(names, values):
                episode[name][i] = value
            finals[i] = {name: rows[i].copy() for name, rows in self._last.items()}
            about[i] = {"episode": dict(zip(names, values)), "seed": ended.seed, "accuracy": ended.accuracy_final,
                        "params": ended.params, "reward_parts": stepped["parts"][i].copy()}
        for name in ("final_observation", "final_obs"):  # as Gymnasium called it before 1.0, and since
            infos[name], infos["_" + name] = finals, over.copy()
        infos["final_info"], infos["_final_info"] = about, over.copy()
        infos["episode"], infos["_episode"] = episode, over.copy()

    def sample(self) -> np.ndarray:
        """Legal actions by chance: an operation that is open, then where and how; all by the masks of what was seen last."""
        self._check_open()
        if self._last is None:
            raise GrowEnvError("the environment has to be reset before actions can be drawn")
        seen, rng = self._last, self._rng
        actions = rng.integers(0, self.action_space.nvec).astype(np.int32)
        for i in range(self.num_envs):
            op = _draw(rng, seen["mask_op"][i])
            actions[i, self._at["op"]] = op
            if op == WAIT:
                continue
            slot = _draw(rng, seen["mask_slot"][i, op])
            actions[i, self._at["slot"]] = slot
            if op == GERMINATE:
                actions[i, self._at["blueprint"]] = _draw(rng, seen["mask_blueprint"][i, slot])
            if op == SET_ALPHA_TARGET:
                actions[i, self._at["style"]] = _draw(rng, seen["mask_style"][i, slot])
        return actions

    def close(self, **kwargs: Any) -> None:
        """Gives its memory and threads back. What is done with it afterwards is a GrowEnvError, but for closing it again."""
        if self.closed:
            return
        if not self._inside.acquire(blocking=False):
            raise GrowEnvError("another thread is using the environment: it cannot be closed")
        self.closed = True
        self._close()
        self._inside.release()

    def close_extras(self, **kwargs: Any) -> None:
        """Gymnasium's name for what is closed besides: nothing."""

    def render(self) -> None:
        """There is nothing to be drawn."""

    def __enter__(self) -> "GrowEnv":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a GrowEnv cannot be pickled or copied: its networks live in the process that made it. Make one "
                        "there")

    def __repr__(self) -> str:
        if self.closed:
            return "<GrowEnv, closed>"
        return (f"<GrowEnv, {self.num_envs} networks with slots {', '.join(self.slots)}; episodes of "
                f"{self.episode_length} decisions>")

    # ------------------------------------------------------------------------------------------ below

    def _check_open(self) -> None:
        if self.closed:
            raise GrowEnvError("the environment is closed")

    def _reset_options(self, options: Optional[Dict[str, Any]]) -> Tuple[Optional[np.ndarray], Optional[int]]:
        given = dict(options or {})
        which, episode = given.pop("reset_mask", None), given.pop("episode", None)
        if given:
            raise ValueError(f"options that are not known: {', '.join(map(repr, given))}; there are 'reset_mask' and "
                             "'episode'")
        if episode is not None:
            episode = _whole("episode", episode, 2**63)
        if which is None:
            return None, episode
        mask = np.asarray(which)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask is ({self.num_envs},) booleans, not {mask.shape} {mask.dtype}")
        if self._last is None:
            raise GrowEnvError("some environments are to be reset, and the others have not begun: reset all")
        return mask.astype(np.uint8), episode

    def _seeds(self, seed: Any) -> np.ndarray:
        if isinstance(seed, (str, bytes)) or not hasattr(seed, "__len__"):
            raise TypeError(f"seed is a number or a list of {self.num_envs} numbers, not {seed!r}")
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments")
        return np.array([_whole("seed", one, 2**64) for one in seed], np.uint64)

    def _actions(self, actions: Any) -> np.ndarray:
        """As the library takes them. Floats are refused even where they are whole: a NaN would be, too, some number."""
        given = np.asarray(actions)
        wanted = (self.num_envs, len(self.heads))
        if given.shape != wanted:
            raise ValueError(f"actions are an array {wanted}, a row for each environment and a number for each of "
                             f"{', '.join(self.heads)}, not {given.shape}")
        if given.dtype.kind not in "iu":
            raise TypeError(f"actions are whole numbers, not {given.dtype}")
        low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        if given.min() < low or given.max() > high:
            wild = given.min() if given.min() < low else given.max()
            raise IllegalAction(f"an action holds {wild}, which is no choice of any head", "ESPER_E_ARG")
        return np.ascontiguousarray(given, np.int32)

    def _arrays(self, names: Tuple[str, ...], before: Optional[Dict[str, np.ndarray]] = None) -> Dict[str, np.ndarray]:
        if before is not None:
            return _copied(before)
        return {name: np.zeros(self._rows[name], _DTYPES[name]) for name in names}  # type: ignore[misc]

    def _play(self, function: Callable[..., int], *arguments: Any) -> None:
        """Calls the library with arrays to write into (the last argument), so that Ctrl-C is heard meanwhile."""
        *given, arrays = arguments
        shown = _engine.Arrays(size=c.sizeof(_engine.Arrays))
        for name, array in arrays.items():
            setattr(shown, name, array.ctypes.data)
        if not self._inside.acquire(blocking=False):
            raise GrowEnvError("another thread is using the environment")
        try:
            self._check_open()  # another thread may have closed it since
            status, said = _heard(lambda: function(self._env, *given, c.byref(shown)), self._library,
                                  lambda: self._library.grow_env_stop(self._env))
        except BaseException:  # interrupted: environments are at different places, and have to be reset
            self._last = None
            raise
        finally:
            self._inside.release()
        if status == _engine.E_ARG:
            raise IllegalAction(said, "ESPER_E_ARG")
        if status != _engine.OK and status != _engine.E_STATE:
            self._last = None
        _engine.raise_for(self._library, status, said)


def _heard(call: Callable[[], int], library: _engine.Library, stop: Callable[[], None]) -> Tuple[int, str]:
    """Status and message of a call that takes long. Python hears signals on its main thread alone, and between its own
    instructions: so there the call is another thread's, and who is interrupted has it end first."""
    outcome: List[Tuple[int, str]] = []
    done = threading.Event()

    def work() -> None:
        status = call()
        outcome.append((status, library.said() if status != _engine.OK else ""))
        done.set()

    if threading.current_thread() is not threading.main_thread():
        work()
        return outcome[0]
    try:
        try:
            threading.Thread(target=work, name="esper.GrowEnv", daemon=True).start()
        except RuntimeError as error:
            if str(error) != "can't start new thread":  # what a signal's handler has raised, and the thread runs
                raise
            work()  # a limit is reached: then a signal waits
        done.wait()
    except BaseException:
        while True:
            try:
                stop()
                if done.wait(0.01):
                    break
            except BaseException:  # a second signal: the call still has to end, as it writes into our arrays
                continue
        raise
    return outcome[0]


def _options(library: _engine.Library, task: Any, n: int, settings: Dict[str, Any]) -> _engine.Options:
    options = _engine.Options()
    library.grow_env_options_init(c.byref(options))
    if options.size != c.sizeof(_engine.Options):
        raise GrowEnvError(f"{library.path} has other structs than this package: install the two of one version")
    if not isinstance(task, (str, os.PathLike)):
        raise TypeError(f"a task is a name or a path, not {task!r}")
    options.task = _text("task", os.fspath(task))
    options.n_envs = n
    pairs = [_engine.Setting(_text("setting", key), _text(key, _word(key, value))) for key, value in settings.items()]
    options.settings = (_engine.Setting * len(pairs))(*pairs)
    options.n_settings = len(pairs)
    return options


def _word(key: str, value: Any) -> str:
    """A setting as the command line would have it."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    raise TypeError(f"{key} is {value!r}: a setting is a number, a text, True or False")


def _text(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r}, and has to be a text")
    if "\0" in value:
        raise ValueError(f"{what} has a NUL in it: {value!r}")
    return os.fsencode(value)


def _whole(what: str, value: Any, bound: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{what} is a whole number, not {value!r}")
    if not 0 <= value < bound:
        raise ValueError(f"{what} is {value}: it has to be from 0 to {bound - 1}")
    return int(value)


def _draw(rng: np.random.Generator, mask: np.ndarray) -> int:
    return int(rng.choice(np.flatnonzero(mask)))


def _copied(arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    return {name: array.copy() for name, array in arrays.items()}


def _with_marks(infos: Dict[str, Any], n: int) -> Dict[str, Any]:
    """As Gymnasium has it: beside each info which environments it is of. Here all of them."""
    infos.update([("_" + name, np.ones(n, np.bool_)) for name in infos])
    return infos


def _pointer(array: Optional[np.ndarray]) -> Optional[Any]:
    """For ctypes, and keeps the array for as long as the call."""
    return None if array is None else array.ctypes.data_as(c.c_void_p)


GrowEnv.__module__ = "esper"
