"""The single environments: Gymnasium's contract, seeding, bad input, missing engines, copies."""

import ast
import copy
import pickle
import subprocess
import sys
import warnings
from graphlib import TopologicalSorter
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from envs_helpers import PAPER_TASKS, TASKS, can_draw, has_engine, make_env, random_actions
from gymnasium.utils.env_checker import check_env as check_gymnasium_env
from stable_baselines3.common.env_checker import check_env as check_sb3_env

import sb3_pois.envs
from sb3_pois.envs import HORIZON
from sb3_pois.envs.tasks import make_simulation


def rollout(env, actions, seed=None):
    """Observations and rewards under the given actions, with a reset wherever an episode ends."""
    observations, rewards = [env.reset(seed=seed)[0]], []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(env.reset()[0] if terminated or truncated else observation)
        rewards.append(reward)
    return np.array(observations), np.array(rewards)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("check", [check_gymnasium_env, check_sb3_env])
def test_checkers_pass(task, check):
    env = make_env(task, render_mode="rgb_array")
    skip = not can_draw(task)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(env.unwrapped, skip_render_check=skip)
        check(env, skip_render_check=skip)
    # Box2D's own import warns about its generated types; an unbounded observation box is meant to be unbounded
    expected = ("infinity", "has no __module__", "is different from the unwrapped version")
    unexpected = [w for w in caught if not any(part in str(w.message) for part in expected)]
    assert not unexpected, [str(w.message) for w in unexpected]


@pytest.mark.parametrize("task", TASKS)
def test_spaces_and_metadata(task):
    env = make_env(task)
    assert env.spec.max_episode_steps == HORIZON == 500
    assert env.action_space.dtype == np.float32
    assert (env.action_space.low == -1).all() and (env.action_space.high == 1).all()
    assert env.observation_space.dtype == np.float64
    observation, info = env.reset(seed=0)
    assert observation.dtype == np.float64 and observation in env.observation_space
    assert info == {}
    assert env.unwrapped.metadata["render_fps"] == round(1 / make_simulation(task, 1).step_seconds)


@pytest.mark.parametrize("task", ["POIS/Acrobot-v0", "POIS/Swimmer-v0"])
def test_time_limit_truncates_tasks_without_terminal_states(task):
    env = make_env(task, max_episode_steps=7)
    env.reset(seed=0)
    for step, action in enumerate(random_actions(task, 7)):
        _, _, terminated, truncated, _ = env.step(action)
        assert not terminated
        assert truncated == (step == 6)


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_determines_everything_that_follows(task):
    actions = random_actions(task, 60)
    env = make_env(task)
    first = rollout(env, actions, seed=11)
    rollout(env, actions[:20], seed=12)
    again = rollout(env, actions, seed=11)
    other = rollout(make_env(task), actions, seed=12)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("task", TASKS)
def test_episodes_of_one_seed_differ(task):
    env = make_env(task)
    starts = [env.reset(seed=1)[0], env.reset()[0], env.reset()[0]]
    assert len(np.unique(starts, axis=0)) == 3


def test_resets_follow_their_laws():
    laws = {
        "POIS/Cartpole-v0": ((-0.12, 0.12), (-0.2, 0.2), (-0.01, 0.01), (-0.2, 0.2)),
        "POIS/InvertedPendulum-v0": ((-1, 1), (-2, 2), (np.pi - 1, np.pi + 1), (-3, 3)),
    }
    n = 4000
    for task, bounds in laws.items():
        simulation = make_simulation(task, n)
        simulation.reset(np.arange(n), np.random.default_rng(0).random((n, 4)))
        for column, (low, high) in zip(simulation.observe(np.arange(n)).T, bounds, strict=True):
            assert low <= column.min() < low + 0.01 * (high - low)
            assert high - 0.01 * (high - low) < column.max() <= high
            assert column.mean() == pytest.approx((low + high) / 2, abs=0.02 * (high - low))
    simulation = make_simulation("POIS/Acrobot-v0", n)
    simulation.reset(np.arange(n), np.random.default_rng(0).normal(size=(n, 4)))
    states = np.array([simulation.get_state(index) for index in range(n)])
    np.testing.assert_allclose(states[:, [2, 8]].std(axis=0), 0.1, rtol=0.05)
    np.testing.assert_allclose(states[:, [5, 11]].std(axis=0), 0.01, rtol=0.05)
    np.testing.assert_allclose(states[:, [0, 1, 6, 7]], np.broadcast_to([0, 0, 0, -1], (n, 4)), atol=1e-12)


def test_a_reset_leaves_the_pole_over_the_middle_of_the_track():
    env = make_env("POIS/Cartpole-v0").unwrapped
    env.reset(seed=4)
    state = env.get_state()
    assert abs(state[0]) > 1e-3
    np.testing.assert_allclose(state[6:8], [0, np.sqrt(3) / 2], atol=1e-12)
    np.testing.assert_array_equal(state[9:11], 0)
    x, _, angle, _ = env.reset(seed=4)[0]
    next_angle = env.step(np.zeros(1))[0][2]
    # the first step pulls the pivot to the cart, which turns the pole by about 1.45 times the cart's offset
    assert next_angle - angle == pytest.approx(1.45 * x, rel=0.15, abs=0.02)


@pytest.mark.parametrize("task", TASKS)
def test_bad_input_is_named(task):
    env = make_env(task).unwrapped
    dim = env.action_space.shape[0]
    good = np.zeros(dim, dtype=np.float32)
    for too_early in (make_env(task), env):
        with pytest.raises(gym.error.ResetNeeded, match=rf"{task}: call reset\(\) before step\(\)"):
            too_early.step(good)
        with pytest.raises(RuntimeError, match=rf"{task}: call reset\(\) before render\(\)"):
            too_early.render()
    with pytest.raises(RuntimeError, match=rf"{task}: call reset\(\) before get_state\(\)"):
        env.get_state()
    env.reset(seed=0)
    (state_dim,) = env.get_state().shape
    for bad in (
        np.zeros(dim + 1),
        np.zeros((1, dim)),
        0.5,
        np.full(dim, "0.1"),
        np.full(dim, 1j),
        np.full(dim, True),
        [None] * dim,
    ):
        with pytest.raises(ValueError, match=rf"{task}: .*, but must be real numbers in \[-1, 1\] of shape \({dim},\)"):
            env.step(bad)
    with pytest.raises(ValueError, match=rf"{task}: the action is \[.*nan.*\]"):
        env.step(np.full(dim, np.nan))
    with pytest.raises(ValueError, match=r"render_mode is 'cinema', but allowed are 'human', 'rgb_array'"):
        make_env(task, render_mode="cinema")
    with pytest.raises(ValueError, match=rf"{task}: options is .*gravity.*, but reset\(\) takes none"):
        env.reset(options={"gravity": 9})
    with pytest.raises(ValueError, match=rf"{task}: the state has shape .*, but must have shape \({state_dim},\)"):
        env.set_state(np.zeros(state_dim + 1))
    with pytest.raises(ValueError, match=rf"{task}: the state is .*, but must be finite"):
        env.set_state(np.full(state_dim, np.inf))
    env.step(good)


def test_the_track_holds_the_cart():
    env = make_env("POIS/Cartpole-v0").unwrapped
    env.reset(seed=0)
    state = env.get_state()
    state[2] = 0.1
    with pytest.raises(ValueError, match=r"POIS/Cartpole-v0: the track holds the cart"):
        env.set_state(state)


@pytest.mark.parametrize("task", TASKS)
def test_actions_are_clipped_and_any_real_type_will_do(task):
    results = []
    for action in (1, 7, np.inf):
        env = make_env(task).unwrapped
        env.reset(seed=3)
        for dtype in (np.float64, np.float32, *((np.int64,) if action != np.inf else (np.float32,))):
            result = env.step(np.full(env.action_space.shape, action, dtype=dtype))
        results.append(result[0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike(task, duplicate):
    env = make_env(task)
    env.reset(seed=2)
    if has_engine(task):  # a copy starts a fresh world in the same state, so the original has to as well
        env.unwrapped.set_state(env.unwrapped.get_state())
    twin = duplicate(env)
    for action in random_actions(task, 30):
        observation, reward, terminated, truncated, _ = env.step(action)
        twin_observation, twin_reward, twin_terminated, twin_truncated, _ = twin.step(action)
        np.testing.assert_allclose(twin_observation, observation, rtol=0, atol=1e-9)
        assert twin_reward == pytest.approx(reward, abs=1e-9)
        assert (twin_terminated, twin_truncated) == (terminated, truncated)
        if terminated:
            np.testing.assert_array_equal(env.reset()[0], twin.reset()[0])


@pytest.mark.parametrize(
    ("module", "missing"), [("Box2D", ["MountainCar"]), ("mujoco", ["InvertedDoublePendulum", "Swimmer"])]
)
def test_a_missing_engine_is_named_and_harms_no_other_task(module, missing):
    script = f"""
import sys
sys.modules[{module!r}] = None
import gymnasium as gym
import sb3_pois.envs
for task in {PAPER_TASKS}:
    try:
        env = gym.make(task)
        env.reset(seed=0)
        env.step(env.action_space.sample())
    except gym.error.DependencyNotInstalled as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for name, line in zip(missing, lines, strict=True):
        assert line.startswith(f"POIS/{name}-v0 needs {module}") and "pip install 'sb3_pois[envs]'" in line


def test_the_modules_imports_go_in_no_circle():
    imports = {}
    for file in Path(sb3_pois.envs.__file__).parent.glob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        assert not [node for node in nodes if isinstance(node, ast.Name) and node.id == "TYPE_CHECKING"], file.name
        module = f"sb3_pois.envs.{file.stem}".removesuffix(".__init__")
        imports[module] = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert list(TopologicalSorter(imports).static_order())


def test_importing_the_environments_loads_no_engine():
    script = """
import sys
import sb3_pois
assert "sb3_pois.envs" not in sys.modules
import sb3_pois.envs
print([name for name in ("Box2D", "mujoco", "pygame") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
