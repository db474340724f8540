"""
The main job on a real task, as `make demo` runs it.

Trains APOIS on MuJoCo's inverted pendulum until the deterministic policy holds the pole, with a progress bar; saves the
model and a picture of how it learned; then a new process loads the model and evaluates it.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure

from sb3_pois import APOIS

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ENV_ID = "InvertedPendulum-v5"
N_ENVS = 8
HOLDS_THE_POLE = 950.0
N_EVAL_EPISODES = 20


def train(folder: Path, total_timesteps: int, seed: int) -> Path:
    """
    Train until the deterministic policy holds the pole.

    :param folder: where the model and the logs go
    :param total_timesteps: environment steps after which training ends in any case
    :param seed: seed of everything
    :return: path of the saved model
    """
    env = make_vec_env(ENV_ID, N_ENVS, seed=seed)
    stop = StopTrainingOnRewardThreshold(HOLDS_THE_POLE, verbose=1)
    evaluate = EvalCallback(
        make_vec_env(ENV_ID, 1, seed=seed + 1000),
        callback_on_new_best=stop,
        n_eval_episodes=N_EVAL_EPISODES,
        eval_freq=12_500 // N_ENVS,
        log_path=str(folder),
        verbose=0,
    )
    model = APOIS("MlpPolicy", env, seed=seed)
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(total_timesteps, callback=evaluate, progress_bar=True)
    path = folder / "apois_inverted_pendulum.zip"
    model.save(path)
    return path


def draw_learning_curve(folder: Path) -> Path:
    """
    Draw how the training went from the logs it left.

    :param folder: folder with ``progress.csv`` and ``evaluations.npz``
    :return: path of the picture
    """
    log = pd.read_csv(folder / "progress.csv").dropna(subset="train/ess")  # evaluations write rows of their own
    evaluations = np.load(folder / "evaluations.npz")
    steps = log["time/total_timesteps"]

    figure, (returns, gain, ess) = plt.subplots(3, 1, figsize=(8, 10), sharex=True, layout="constrained")
    figure.suptitle(f"APOIS on {ENV_ID}")
    returns.set_title("Return: of the batches, and of the policy without noise")
    returns.plot(steps, log["rollout/ep_rew_mean"], marker=".", label="sampled policy (mean of the batch)")
    returns.plot(
        evaluations["timesteps"],
        evaluations["results"].mean(axis=1),
        marker="s",
        label=f"deterministic policy (mean of {N_EVAL_EPISODES} episodes)",
    )
    returns.axhline(HOLDS_THE_POLE, color="grey", linestyle=":", label="holds the pole")
    returns.set_ylabel("return")
    returns.legend()

    gain.set_title("Gain: by how much each update raised the surrogate of the return, never below 0")
    gain.plot(steps, log["train/surrogate_improvement"], marker=".")
    gain.set_ylim(bottom=0.0)
    gain.set_ylabel("return")

    ess.set_title("Effective sample size: as how many steps the batch counts for the new policy")
    ess.plot(steps, log["train/ess"], marker=".", label="effective sample size")
    n_steps = log["rollout/n_episodes"] * log["rollout/ep_len_mean"]
    ess.plot(steps, n_steps, color="grey", linestyle=":", label="steps in the batch")
    ess.set_ylim(bottom=0.0)
    ess.set_ylabel("steps")
    ess.set_xlabel("environment steps")
    ess.legend()

    path = folder / "learning_curve.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def main() -> None:
    """Train, draw, and evaluate in a new process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the results go")
    parser.add_argument("--total-timesteps", type=int, default=1_000_000, help="steps after which training ends in any case")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    start = time.perf_counter()
    model_path = train(arguments.folder, arguments.total_timesteps, arguments.seed)
    print(f"trained in {time.perf_counter() - start:.0f} s, model saved to {model_path}")
    print(f"learning curve drawn to {draw_learning_curve(arguments.folder)}")
    print("reloading in a new process:", flush=True)
    deploy = Path(__file__).with_name("deploy.py")
    subprocess.run([sys.executable, str(deploy), str(model_path), "--env", ENV_ID], check=True)


if __name__ == "__main__":
    main()
