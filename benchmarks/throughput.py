"""
How fast it samples and learns, beside other algorithms in the same process, on one thread.

    python benchmarks/throughput.py --folder throughput

Sections (``--sections`` picks some):

* ``end-to-end``: environment steps per second of a whole ``learn()``, beside the bare vector environment with random
  actions, and where the time goes. Contenders take turns in every round, so that ratios hold while the machine drifts.
* ``batches``: the paper's settings on its cart-pole with 100 native environments: linear, deep, and N-POIS' first batch.
* ``controllers``: 100 networks for 100 environments, each with an observation of its own: one call against a loop.
* ``surrogate``: cost of one evaluation of the surrogate as the horizon, the number of episodes and the network grow.
* ``gpu``: the same on the CPU and on a GPU, and how far the results are apart; skipped without one.
* ``memory``: peak memory of optimising on a million steps, above that of the interpreter with everything imported.
* ``import``: what ``import sb3_pois`` adds to ``import stable_baselines3``.

Writes ``*.csv`` for every section and a bar chart of the first.
"""

import argparse
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch as th
from gymnasium import spaces
from sb3_contrib import ARS, TRPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from torch import nn

import sb3_pois.envs as pois_envs
from sb3_pois import APOIS, PPOIS
from sb3_pois.apois import LinearPolicy, MlpPolicy
from sb3_pois.apois.surrogate import make_surrogate
from sb3_pois.common.bounds import Objective
from sb3_pois.common.buffers import EpisodeRolloutBuffer
from sb3_pois.ppois import MlpPolicy as HyperMlpPolicy

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

DEEP = {"net_arch": [100, 50, 25], "weight_init": "xavier"}
# Steps per rollout of PPO and TRPO: their defaults for eight environments
ROLLOUT_STEPS = 8 * 2048
PENDULUM, CARTPOLE = "InvertedPendulum-v5", "POIS/Cartpole-v0"


class TimedVecEnv(VecEnvWrapper):
    """Adds up the time spent inside the environments."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.seconds = 0.0
        self.n_steps = 0

    def reset(self) -> Any:
        start = time.perf_counter()
        observations = self.venv.reset()
        self.seconds += time.perf_counter() - start
        return observations

    def step_wait(self) -> Any:
        start = time.perf_counter()
        result = self.venv.step_wait()
        self.seconds += time.perf_counter() - start
        self.n_steps += self.num_envs
        return result


def make_env(task: str) -> TimedVecEnv:
    """
    Environments of a task: eight in one process, or the native hundred of a benchmark task.

    :param task: Gymnasium id
    :return: the environments
    """
    if task.startswith("POIS/"):
        return TimedVecEnv(pois_envs.make_vec_env(task, n_envs=100, seed=0))
    return TimedVecEnv(make_vec_env(task, 8, seed=0))


def paper_batch(batch_timesteps: int, n_offline_iters: int) -> dict[str, Any]:
    """The paper's arguments with batches of some steps."""
    return {**APOIS.PAPER, "n_episodes": None, "batch_timesteps": batch_timesteps, "n_offline_iters": n_offline_iters}


CONTENDERS: dict[str, Callable[[VecEnv], BaseAlgorithm]] = {
    "APOIS linear": lambda env: APOIS("LinearPolicy", env, seed=0, **APOIS.PAPER),
    "APOIS 64-64": lambda env: APOIS("MlpPolicy", env, seed=0),
    "PPOIS linear": lambda env: PPOIS("LinearPolicy", env, seed=0),
    "PPO": lambda env: PPO("MlpPolicy", env, n_steps=ROLLOUT_STEPS // env.num_envs, seed=0, device="cpu"),
    "A2C": lambda env: A2C("MlpPolicy", env, seed=0, device="cpu"),
    "TRPO": lambda env: TRPO("MlpPolicy", env, n_steps=ROLLOUT_STEPS // env.num_envs, seed=0, device="cpu"),
    "ARS linear": lambda env: ARS("LinearPolicy", env, seed=0, device="cpu"),
}


def bare_rate(env: TimedVecEnv, n_steps: int) -> float:
    """
    Environment steps per second of the environments alone, under random actions drawn beforehand.

    :param env: environments
    :param n_steps: environment steps to take
    :return: steps per second
    """
    n_vec_steps = n_steps // env.num_envs
    actions = [np.stack([env.action_space.sample() for _ in range(env.num_envs)]) for _ in range(n_vec_steps)]
    env.reset()
    start = time.perf_counter()
    for action in actions:
        env.venv.step(action)
    return n_vec_steps * env.num_envs / (time.perf_counter() - start)


def time_training(model: Any) -> list[float]:
    """
    Let a model note how long each of its optimisations takes.

    :param model: the model
    :return: the seconds, a list that grows as it learns; stays empty for algorithms without ``train``
    """
    seconds: list[float] = []
    if hasattr(model, "train"):
        train = model.train

        def timed_train() -> None:
            start = time.perf_counter()
            train()
            seconds.append(time.perf_counter() - start)

        model.train = timed_train
    return seconds


class TimedLearner:
    """
    Trains a model in slices and tells where the time went.

    :param name: name of the contender
    :param task: Gymnasium id
    """

    def __init__(self, name: str, task: str) -> None:
        self.env = make_env(task)
        self.model = CONTENDERS[name](self.env)
        self.model.set_logger(configure(None, []))
        self.train_seconds = time_training(self.model)

    def learn(self, n_steps: int) -> dict[str, float]:
        """
        Learn for some more steps.

        :param n_steps: environment steps
        :return: steps per second, and the shares of the environment, the optimisation and everything else
        """
        self.env.seconds, self.env.n_steps = 0.0, 0
        self.train_seconds.clear()
        start = time.perf_counter()
        self.model.learn(n_steps, reset_num_timesteps=False, log_interval=None)  # type: ignore[arg-type]
        seconds = time.perf_counter() - start
        environment, optimisation = self.env.seconds / seconds, sum(self.train_seconds) / seconds
        return {
            "steps/s": self.env.n_steps / seconds,
            "environment": environment,
            "optimisation": optimisation,
            "acting": 1.0 - environment - optimisation,
        }


def end_to_end(n_rounds: int, n_steps: int) -> pd.DataFrame:
    """
    Compare whole ``learn()`` calls, in turns.

    :param n_rounds: rounds to take the median of
    :param n_steps: environment steps per contender and round
    :return: one row per task and contender
    """
    rows = []
    for task in (PENDULUM, CARTPOLE):
        bare_env = make_env(task)
        learners = {name: TimedLearner(name, task) for name in CONTENDERS}
        for learner in learners.values():
            learner.learn(n_steps // 4)  # warm up
        for i in range(n_rounds):
            bare = bare_rate(bare_env, n_steps)
            rows.append({"task": task, "contender": "bare environment", "round": i, "steps/s": bare, "of bare": 1.0})
            for name, learner in learners.items():
                row = learner.learn(n_steps)
                rows.append({"task": task, "contender": name, "round": i, **row, "of bare": row["steps/s"] / bare})
    table = pd.DataFrame(rows)
    ppo = table[table.contender == "PPO"].set_index(["task", "round"])["steps/s"]
    table["of PPO"] = table["steps/s"] / ppo.reindex(pd.MultiIndex.from_frame(table[["task", "round"]])).to_numpy()
    return table.groupby(["task", "contender"], sort=False).median(numeric_only=True).drop(columns="round").reset_index()


def draw(table: pd.DataFrame, path: Path) -> None:
    """
    Bar chart of the end-to-end rates.

    :param table: result of :func:`end_to_end`
    :param path: where to write the picture
    """
    tasks = table.task.unique()
    figure, axes = plt.subplots(1, len(tasks), figsize=(13, 4), layout="constrained")
    for axis, task in zip(axes, tasks, strict=True):
        rows = table[table.task == task].iloc[::-1]
        bars = axis.barh(rows.contender, rows["steps/s"])
        axis.bar_label(bars, [f"{rate:,.0f}" for rate in rows["steps/s"]], padding=3)
        axis.set_title(task)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_xlim(right=1.2 * rows["steps/s"].max())
    figure.supxlabel("environment steps per second, one thread")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def batches(n_rounds: int) -> pd.DataFrame:
    """
    The paper's settings on its cart-pole, from the first batch on.

    :param n_rounds: rounds to take the median of
    :return: one row per setting
    """
    horizon_runs = {
        # Episodes last 500 steps once the pole is held, so train until then before the clock starts; seed 1 gets there
        "APOIS linear, 100 episodes": (lambda env: APOIS("LinearPolicy", env, seed=1, **APOIS.PAPER), 2_500_000, 500_000),
        "APOIS 100-50-25, 50,000 steps, 20 offline iterations": (
            lambda env: APOIS("MlpPolicy", env, policy_kwargs=DEEP, seed=0, **paper_batch(50_000, 20)),
            0,
            100_000,
        ),
    }
    rows = []
    for name, (make, n_warm_up, n_steps) in horizon_runs.items():
        env = make_env(CARTPOLE)
        model = make(env)
        model.set_logger(configure(None, []))
        if n_warm_up > 0:
            model.learn(n_warm_up, log_interval=None)
        rates = []
        for _ in range(n_rounds):
            n_useful, start = 0, time.perf_counter()
            n_before = model.num_timesteps
            while model.num_timesteps - n_before < n_steps:
                model.learn(1, reset_num_timesteps=False, log_interval=None)
                n_useful += model.rollout_buffer.n_steps
            rates.append(n_useful / (time.perf_counter() - start))
        mean_length = float(model.rollout_buffer.episode_lengths.mean())
        rows.append({"setting": name, "useful steps/s": np.median(rates), "mean length": mean_length})
    rows += [in_new_process(npois_first_batch, budget) for budget in ({"batch_timesteps": 50_000}, {"n_episodes": 7_000})]
    return pd.DataFrame(rows)


def in_new_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """
    Call a function in a new interpreter, with one thread, so that its memory is its own.

    :param function: a function of this module
    :param arguments: its arguments
    :return: its result
    """
    with multiprocessing.get_context("spawn").Pool(1, th.set_num_threads, [1]) as pool:
        return pool.apply(function, arguments)


def npois_first_batch(budget: dict[str, int]) -> dict[str, Any]:
    """
    Optimise N-POIS with a deep controller on its first batch.

    :param budget: ``batch_timesteps`` or ``n_episodes``
    :return: one row: seconds of the optimisation and peak memory above the interpreter's
    """
    baseline = _peak_mebibytes()
    model = PPOIS(
        "MlpPolicy",
        make_env(CARTPOLE),
        n_offline_iters=20,
        **budget,  # type: ignore[arg-type]
        grouping="neuron",
        bound="max-ess",
        policy_kwargs={"net_arch": [100, 50, 25]},
        seed=0,
    )
    model.set_logger(configure(None, []))
    seconds = time_training(model)
    model.learn(1, log_interval=None)
    n_episodes, n_steps = model.rollout_buffer.n_episodes, model.rollout_buffer.n_steps
    name = f"N-POIS 100-50-25, {n_episodes} episodes of {n_steps} steps in all, 20 offline iterations"
    return {"setting": name, "optimisation s": seconds[0], "peak MiB": _peak_mebibytes() - baseline}


def controllers(n_rounds: int, n_envs: int = 100) -> pd.DataFrame:
    """
    Let many networks act, each on an observation of its own, in one call and in a loop over torch modules.

    :param n_rounds: rounds to take the median of, of 200 calls and of 20 loops
    :param n_envs: number of networks and of environments
    :return: one row
    """
    policy = HyperMlpPolicy(spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2), net_arch=[100, 50, 25])
    params = policy.draw_params(n_envs).astype(np.float32)
    observations = np.random.default_rng(0).standard_normal((n_envs, 4), dtype=np.float32)
    networks = []
    for i in range(n_envs):
        layers: list[nn.Module] = []
        for weight, bias in policy.controller.split(params[i : i + 1]):
            assert bias is not None
            linear = nn.Linear(*weight.shape[1:])
            nn.utils.vector_to_parameters(th.from_numpy(np.concatenate([weight[0].T.ravel(), bias[0]])), linear.parameters())
            layers += [linear, nn.Tanh()]
        networks.append(nn.Sequential(*layers[:-1]))

    def one_call() -> np.ndarray:
        return policy.act(params, observations)

    def loop() -> np.ndarray:
        with th.no_grad():
            tensors = th.from_numpy(observations)
            return np.array([int(network(tensors[i : i + 1]).argmax()) for i, network in enumerate(networks)])

    np.testing.assert_array_equal(one_call(), loop())
    times = [(_median_seconds(one_call, 200), _median_seconds(loop, 20)) for _ in range(n_rounds)]
    once, looped = 1e3 * np.median(times, axis=0)
    return pd.DataFrame([{"networks": n_envs, "one call ms": once, "loop ms": looped, "times faster": looped / once}])


def synthetic_surrogate(policy: MlpPolicy, n_episodes: int, horizon: int, max_chunk_steps: int = 16_384) -> Any:
    """
    Surrogate of a made-up batch, on the policy's device.

    :param policy: policy
    :param n_episodes: number of episodes
    :param horizon: steps of every episode
    :param max_chunk_steps: most steps to evaluate at a time
    :return: the surrogate
    """
    rng = np.random.default_rng(0)
    buffer = EpisodeRolloutBuffer(policy.observation_space, policy.action_space)
    n_steps = n_episodes * horizon
    buffer.observations = rng.standard_normal((n_steps, 4), dtype=np.float32)
    buffer.actions = rng.standard_normal((n_steps, 1), dtype=np.float32)
    buffer.rewards = np.ones(n_steps, dtype=np.float32)
    buffer.episode_lengths = np.full(n_episodes, horizon)
    returns = th.as_tensor(rng.standard_normal(n_episodes), device=policy.device)
    return make_surrogate(policy, buffer, returns, Objective("max-d2", "none", 0.4), max_chunk_steps)


def surrogate_costs(n_rounds: int) -> pd.DataFrame:
    """
    Cost of one evaluation and of one gradient as the batch and the network grow.

    :param n_rounds: rounds to take the median of
    :return: one row per case
    """
    spaces_ = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
    linear, deep = LinearPolicy(*spaces_), MlpPolicy(*spaces_, **DEEP)
    cases: list[tuple[str, MlpPolicy, int, int]] = [
        *(("linear", linear, 100, horizon) for horizon in (50, 500, 5_000)),
        *(("100-50-25", deep, 100, horizon) for horizon in (50, 500, 5_000)),
        *(("linear", linear, n_episodes, 50) for n_episodes in (10, 1_000, 10_000)),
        *(("100-50-25", deep, n_episodes, 50) for n_episodes in (10, 1_000, 10_000)),
        *((f"{n}-{n}", MlpPolicy(*spaces_, net_arch=[n, n]), 100, 500) for n in (16, 64, 256)),
    ]
    rows = []
    for name, policy, n_episodes, horizon in cases:
        surrogate = synthetic_surrogate(policy, n_episodes, horizon)
        rows.append({"policy": name, "episodes": n_episodes, "horizon": horizon, **evaluation_times(surrogate, n_rounds)})
    return pd.DataFrame(rows)


def gpu_costs(n_rounds: int) -> pd.DataFrame:
    """
    Cost of one evaluation and of one gradient on the CPU, with one thread, and on a GPU.

    :param n_rounds: rounds to take the median of
    :return: one row per case and device; empty without a GPU
    """
    if not th.cuda.is_available():
        return pd.DataFrame()
    spaces_ = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
    cases = [("linear", 1_000, 500), ("100-50-25", 100, 500), ("100-50-25", 2_000, 500), ("256-256", 2_000, 500)]
    networks = {"linear": [], "100-50-25": [100, 50, 25], "256-256": [256, 256]}
    rows = []
    for name, n_episodes, horizon in cases:
        policy = MlpPolicy(*spaces_, net_arch=networks[name])
        reference = None
        for device, max_chunk_steps in (("cpu", 16_384), ("cuda", 16_384), ("cuda", 1_000_000)):
            surrogate = synthetic_surrogate(policy.to(device), n_episodes, horizon, max_chunk_steps)
            results = [result.cpu() for result in surrogate.value_and_gradient(target_near(surrogate))]
            reference = reference or results
            error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(results, reference, strict=True))
            rows.append(
                {
                    "policy": name,
                    "steps": n_episodes * horizon,
                    "device": device,
                    "max_chunk_steps": max_chunk_steps,
                    **evaluation_times(surrogate, n_rounds),
                    "relative difference": error,
                }
            )
    return pd.DataFrame(rows)


def target_near(surrogate: Any) -> th.Tensor:
    """
    A target close to the behavioral policy.

    :param surrogate: a surrogate
    :return: its parameters
    """
    theta = surrogate.parameters.get()
    return theta + 1e-4 * th.randn(len(theta), generator=th.Generator().manual_seed(0)).to(theta.device)


def evaluation_times(surrogate: Any, n_rounds: int) -> dict[str, float]:
    """
    Time of one evaluation of a surrogate and of one gradient.

    :param surrogate: a surrogate
    :param n_rounds: rounds to take the median of
    :return: milliseconds
    """
    theta = target_near(surrogate)
    return {
        "value ms": 1e3 * _median_seconds(lambda: surrogate.value(theta).cpu(), n_rounds),
        "gradient ms": 1e3 * _median_seconds(lambda: surrogate.value_and_gradient(theta)[1].cpu(), n_rounds),
    }


def _median_seconds(function: Callable[[], Any], n_rounds: int) -> float:
    function()
    seconds = []
    for _ in range(n_rounds):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def million_steps() -> dict[str, Any]:
    """
    Peak memory of a million steps, collected and optimised on, above the interpreter's.

    :return: one row
    """
    env = make_env(CARTPOLE)
    baseline = _peak_mebibytes()
    model = APOIS("MlpPolicy", env, policy_kwargs=DEEP, seed=0, **paper_batch(1_000_000, 1))
    model.set_logger(configure(None, []))
    model.learn(1, log_interval=None)
    return {"case": "APOIS 100-50-25, 1,000,000 steps", "peak MiB": _peak_mebibytes() - baseline}


def _peak_mebibytes() -> float:
    # Linux only; getrusage would start at the size of the process that started this one
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    return int(peak) / 1024.0


def imports(n_rounds: int) -> pd.DataFrame:
    """
    Time of the import in fresh interpreters.

    :param n_rounds: rounds to take the median of
    :return: one row
    """
    code = (
        "import time; s = time.perf_counter(); import stable_baselines3; m = time.perf_counter(); import sb3_pois;"
        "print(m - s, time.perf_counter() - m)"
    )
    times = [
        [float(x) for x in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()]
        for _ in range(n_rounds)
    ]
    sb3, added = np.median(times, axis=0)
    return pd.DataFrame([{"import stable_baselines3 s": sb3, "import sb3_pois adds s": added}])


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["end-to-end", "batches", "controllers", "surrogate", "gpu", "memory", "import"]
    parser.add_argument("--sections", nargs="+", default=names, choices=names)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take the median of")
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps per contender and round")
    parser.add_argument("--folder", type=Path, default=Path("throughput"), help="where the tables and the picture go")
    arguments = parser.parse_args()
    th.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Callable[[], pd.DataFrame]] = {
        "end-to-end": lambda: end_to_end(arguments.rounds, arguments.steps),
        "batches": lambda: batches(arguments.rounds),
        "controllers": lambda: controllers(arguments.rounds),
        "surrogate": lambda: surrogate_costs(arguments.rounds),
        "gpu": lambda: gpu_costs(arguments.rounds),
        "memory": lambda: pd.DataFrame([in_new_process(million_steps)]),
        "import": lambda: imports(arguments.rounds),
    }
    for name in arguments.sections:
        table = sections[name]()
        if table.empty:
            print(f"\n{name}: skipped, this machine has no GPU")
            continue
        table.to_csv(arguments.folder / f"{name}.csv", index=False)
        print(f"\n{name}\n{table.to_string(index=False, float_format='{:,.4g}'.format)}", flush=True)
        if name == "end-to-end":
            draw(table, arguments.folder / "throughput.png")


if __name__ == "__main__":
    main()
