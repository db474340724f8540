"""
What APOIS and PPOIS learn with the constructors' defaults, beside PPO, TRPO and ARS with theirs.

    python benchmarks/defaults.py --jobs 2                                       # days; finished runs are not repeated
    python benchmarks/defaults.py --tasks Pendulum-v1 --contenders apois ppo --seeds 0 1 2

Every run has the task's budget of environment steps, four environments in one process and one thread. Its score is the mean
undiscounted return of 20 episodes of the deterministic policy in environments of other seeds. PPO and TRPO are scored
after the seconds that APOIS with the same seed and an MLP took, and after the budget of steps (not with ``--seconds-only``).
Seconds are those of the processor, which are wall-clock seconds of one thread on a machine that does nothing else. PPO and
TRPO collect their 2,048 steps a batch in all four environments. On the tasks of ``NORMALIZED`` all have ``VecNormalize`` of
the observations, PPO and TRPO of the rewards, too, as in RL Zoo.

Writes one json file a run, ``scores.csv``, ``curves.png`` and tables of medians with 95 % bootstrap intervals over the seeds.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
import torch as th
from sb3_contrib import ARS, TRPO
from scipy import stats
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import sb3_pois.envs as pois_envs
from sb3_pois import APOIS, PPOIS
from sb3_pois.common.saving import replaced_when_complete

matplotlib.use("Agg")
from matplotlib import pyplot as plt

N_ENVS = 4
N_EVAL_EPISODES = 20
# Environment steps
TASKS = {
    "CartPole-v1": 200_000,
    "Acrobot-v1": 500_000,
    "MountainCarContinuous-v0": 500_000,
    "Pendulum-v1": 300_000,
    "LunarLanderContinuous-v3": 1_000_000,
    "InvertedPendulum-v5": 300_000,
    "InvertedDoublePendulum-v5": 400_000,
    "Reacher-v5": 1_000_000,
    "Swimmer-v5": 1_000_000,
    "Hopper-v5": 1_000_000,
    "Walker2d-v5": 1_000_000,
    "HalfCheetah-v5": 1_000_000,
    "POIS/Cartpole-v0": 2_000_000,
    "POIS/InvertedPendulum-v0": 2_000_000,
    "POIS/InvertedDoublePendulum-v0": 2_000_000,
    "POIS/Acrobot-v0": 2_000_000,
    "POIS/MountainCar-v0": 2_000_000,
    "POIS/Swimmer-v0": 2_000_000,
}
NORMALIZED = ("Reacher-v5", "Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")
# Algorithm, policy, arguments besides the defaults
CONTENDERS: dict[str, tuple[type[BaseAlgorithm], str, dict[str, Any]]] = {
    "apois": (APOIS, "MlpPolicy", {}),
    "apois-linear": (APOIS, "LinearPolicy", {}),
    "ppois": (PPOIS, "LinearPolicy", {}),
    "ppois-mlp": (PPOIS, "MlpPolicy", {}),
    "ppo": (PPO, "MlpPolicy", {"n_steps": 2048 // N_ENVS, "device": "cpu"}),
    "trpo": (TRPO, "MlpPolicy", {"n_steps": 2048 // N_ENVS, "device": "cpu"}),
    "ars": (ARS, "LinearPolicy", {"device": "cpu"}),
}


class Curve(BaseCallback):
    """
    Keeps returns with the steps and the seconds that they took, and stops after some steps and seconds.

    :param n_timesteps: steps to take at least, after which the policy is scored; None for any
    :param seconds: seconds to take at least, after which the policy is scored; None to leave the end to the algorithm
    :param evaluation_env: where to score it
    """

    def __init__(self, n_timesteps: int | None, seconds: float | None, evaluation_env: VecEnv) -> None:
        super().__init__()
        self.n_least = n_timesteps
        self.seconds = seconds
        self.evaluation_env = evaluation_env
        self.rows: list[tuple[int, float, float]] = []
        self.returns: list[float] = []
        self.after_seconds: float | None = None
        self.after_steps: float | None = None

    def _on_training_start(self) -> None:
        self.start = time.process_time()

    @property
    def elapsed(self) -> float:
        """Seconds of training so far."""
        return time.process_time() - self.start

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals.get("infos", ()) if "episode" in info]
        if self.seconds is None:
            return True
        if self.after_seconds is None and self.elapsed >= self.seconds:
            self.after_seconds = self.score()
        if self.n_least is not None and self.after_steps is None and self.num_timesteps >= self.n_least:
            self.after_steps = self.score()
        return self.after_seconds is None or (self.n_least is not None and self.after_steps is None)

    def _on_rollout_end(self) -> None:
        if self.returns:
            self.rows.append((self.num_timesteps, round(self.elapsed, 2), round(float(np.mean(self.returns)), 2)))
            self.returns = []

    def score(self) -> float:
        """Mean return of the deterministic policy; takes no time of the training's."""
        before = time.process_time()
        mean, _ = evaluate_policy(self.model, self.evaluation_env, N_EVAL_EPISODES)
        self.start += time.process_time() - before
        return round(float(np.mean(mean)), 1)


def make_envs(task: str, contender: str, seed: int) -> tuple[VecEnv, VecEnv]:
    """Environments to learn in, and others to be scored in."""
    make: Any = pois_envs.make_vec_env if task.startswith("POIS/") else make_vec_env
    env, evaluation_env = make(task, N_ENVS, seed=seed), make(task, N_ENVS, seed=seed + 10_000)
    if task in NORMALIZED:
        env = VecNormalize(env, norm_reward=contender in ("ppo", "trpo"))
        evaluation_env = VecNormalize(evaluation_env, training=False, norm_reward=False)
        evaluation_env.obs_rms = env.obs_rms
    return env, evaluation_env


def run(job: tuple[Path, str, str, int, bool]) -> dict[str, Any]:
    """
    Train and score once, or read what was found before.

    :param job: folder, task, contender, seed, whether only equal seconds are asked for
    :return: scores and curve
    """
    folder, task, contender, seed, seconds_only = job
    file = folder / f"{task.replace('/', '-')}-{contender}-{seed}.json"
    if file.exists():
        return json.loads(file.read_text())
    th.set_num_threads(1)
    algorithm, policy, arguments = CONTENDERS[contender]
    has_seconds = algorithm in (PPO, TRPO)
    seconds = run((folder, task, "apois", seed, seconds_only))["seconds"] if has_seconds else None
    env, evaluation_env = make_envs(task, contender, seed)
    curve = Curve(None if seconds_only else TASKS[task], seconds, evaluation_env)
    model: Any = algorithm(policy, env, seed=seed, **arguments)
    model.learn(10**9 if has_seconds else TASKS[task], callback=curve, log_interval=None)
    row = dict(task=task, contender=contender, seed=seed, steps=model.num_timesteps, seconds=round(curve.elapsed, 1))
    row["at equal steps"] = curve.after_steps if has_seconds else curve.score()
    row["at equal seconds"] = curve.after_seconds if has_seconds else row["at equal steps"]
    row["curve"] = curve.rows
    with replaced_when_complete(file) as opened:
        opened.write(json.dumps(row).encode())
    print({key: value for key, value in row.items() if key != "curve"}, flush=True)
    return row


def median_and_interval(values: pd.Series) -> str:
    """Median, and its 95 % interval by the bootstrap."""
    if len(values) < 2 or values.nunique() == 1:
        return f"{values.median():.4g}"
    low, high = stats.bootstrap((values,), np.median, method="percentile", rng=0).confidence_interval
    return f"{values.median():.4g} [{low:.4g}, {high:.4g}]"


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Curves by seconds, up to APOIS's: median over the seeds, and their range."""
    points = []
    for row in rows:
        _, seconds, returns = np.array(row["curve"] or [(0, 0.0, np.nan)]).T
        last = max(other["seconds"] for other in rows if other["task"] == row["task"] and other["contender"] == "apois")
        grid = np.linspace(0.0, last, 100)
        on_grid = np.interp(grid, seconds, returns, right=np.nan)
        points += [
            {"task": row["task"], "contender": row["contender"], "seconds": at, "mean return of a batch": value}
            for at, value in zip(grid, on_grid, strict=True)
        ]
    grid_of_axes = sns.relplot(
        pd.DataFrame(points),
        x="seconds",
        y="mean return of a batch",
        hue="contender",
        col="task",
        col_wrap=4,
        kind="line",
        estimator="median",
        errorbar=("pi", 100),
        height=2.4,
        aspect=1.3,
        facet_kws=dict(sharex=False, sharey=False),
    )
    grid_of_axes.set_titles("{col_name}")
    grid_of_axes.legend.set_title("median and\nrange of seeds")
    grid_of_axes.savefig(file, dpi=90)
    plt.close("all")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--seconds-only", action="store_true", help="stop PPO and TRPO after APOIS's seconds")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--folder", type=Path, default=Path("defaults"))
    arguments = parser.parse_args()
    jobs = [
        (arguments.folder, task, contender, seed, arguments.seconds_only)
        for task in arguments.tasks
        for seed in arguments.seeds
        for contender in arguments.contenders
    ]
    # whole (task, seed) groups go to one process: PPO and TRPO need APOIS's seconds
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        rows = pool.map(run, jobs, chunksize=len(arguments.contenders))
    table = pd.DataFrame(rows).drop(columns="curve")
    table.to_csv(arguments.folder / "scores.csv", index=False)
    grouped = table.groupby(["task", "contender"], sort=False)
    for column in ("at equal steps", "at equal seconds"):
        print(f"\n{column}\n{grouped[column].apply(median_and_interval).unstack(sort=False).to_string()}")
    print(f"\nseconds\n{grouped['seconds'].median().unstack(sort=False).to_string()}")
    draw(rows, arguments.folder / "curves.png")


if __name__ == "__main__":
    main()
