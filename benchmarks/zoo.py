"""
Train and evaluate the shipped hyperparameters: the rows and the curves of docs/zoo.md, the paper's tasks among them.

    python benchmarks/zoo.py --folder zoo --jobs 2

Every run is `sb3-pois train` and then `sb3-pois enjoy --deterministic` of the last model, in one thread. Runs that the folder
has already are not repeated, so an interrupted benchmark goes on. `results.md` in the folder has the table in RL Zoo's format,
`curves.png` the evaluations during the training.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib import pyplot as plt
from pytablewriter import MarkdownTableWriter

from sb3_pois.zoo import ALGORITHMS, HYPERPARAMS_FOLDER

N_EVALUATIONS = 10
MAX_COLUMNS = 4
HYPERPARAMS: dict[str, dict[str, dict[str, Any]]] = {
    algo: yaml.safe_load((HYPERPARAMS_FOLDER / f"{algo}.yml").read_text()) for algo in ALGORITHMS
}
ENVS = [env for env in HYPERPARAMS["apois"] if env != "default"]


def command(folder: Path, *arguments: object) -> str:
    """Run a command of sb3-pois in a folder and return what it printed, which stays there too."""
    words = [sys.executable, "-m", "sb3_pois.zoo", *map(str, arguments), "-f", "logs", "--num-threads", "1"]
    process = subprocess.run(words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    (folder / f"{arguments[0]}.txt").write_text(process.stdout)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} failed in {folder}:\n{process.stdout[-2000:]}")
    return process.stdout


def run(folder: Path, algo: str, env: str, seed: int, n_timesteps: int, eval_timesteps: int) -> dict[str, Any]:
    """Train and evaluate, or read what has been evaluated before: one row of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    if not result.exists():
        who = ["--algo", algo, "--env", env, "--seed", seed]
        evaluate = ["--eval-freq", max(n_timesteps // N_EVALUATIONS, 1), "--eval-episodes", 20]
        command(folder, "train", *who, "-n", n_timesteps, *evaluate)
        printed = command(folder, "enjoy", *who, "--deterministic", "--no-render", "-n", eval_timesteps)
        mean, std = re.findall(r"Mean reward: (\S+) \+/- (\S+)", printed)[-1]
        row = {
            "algo": algo,
            "env_id": env,
            "mean_reward": float(mean),
            "std_reward": float(std),
            "n_timesteps": n_timesteps,
            "eval_timesteps": eval_timesteps,
            "eval_episodes": int(re.findall(r"(\d+) Episodes", printed)[-1]),
            "seed": seed,
        }
        result.write_text(json.dumps(row))
        print(row, flush=True)
    row = json.loads(result.read_text())
    if (row["n_timesteps"], row["eval_timesteps"]) != (n_timesteps, eval_timesteps):
        raise ValueError(f"{result} is of a run with other numbers of steps: choose another --folder, or delete it")
    return row


def draw(rows: pd.DataFrame, folders: list[Path], path: Path) -> None:
    """Draw the evaluations during the training, mean and standard deviation over episodes, one panel a task."""
    envs = rows["env_id"].unique()
    n_columns = min(len(envs), MAX_COLUMNS)
    n_rows = math.ceil(len(envs) / n_columns)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=(3.2 * n_columns, 2.4 * n_rows), squeeze=False)
    for axis in axes.flat[len(envs) :]:
        axis.axis("off")
    for axis, env in zip(axes.flat, envs, strict=False):
        for (_, row), folder in zip(rows.iterrows(), folders, strict=True):
            if row["env_id"] == env:
                evaluations = np.load(max(folder.glob("logs/*/*/evaluations.npz"), key=os.path.getmtime))
                mean, std = evaluations["results"].mean(axis=1), evaluations["results"].std(axis=1)
                color = f"C{list(ALGORITHMS).index(row['algo'])}"
                axis.plot(evaluations["timesteps"], mean, color=color, label=row["algo"].upper())
                axis.fill_between(evaluations["timesteps"], mean - std, mean + std, color=color, alpha=0.2, linewidth=0)
        axis.set_title(env, fontsize="medium")
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
        axis.ticklabel_format(axis="y", useOffset=False)
        axis.grid(alpha=0.3)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    axes.flat[0].legend(by_label.values(), by_label.keys(), loc="lower right", fontsize="small")
    figure.supxlabel("environment steps")
    figure.supylabel("return")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--envs", nargs="+", default=ENVS, choices=ENVS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("-n", "--n-timesteps", type=int, help="environment steps; default: those of the hyperparameters")
    parser.add_argument("--eval-timesteps", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--folder", type=Path, default=Path("zoo"))
    arguments = parser.parse_args()

    jobs = []
    for env in arguments.envs:
        for algo in arguments.algos:
            for seed in arguments.seeds:
                folder = arguments.folder / f"{algo}-{env.replace('/', '-')}-{seed}"
                n_timesteps = arguments.n_timesteps or int(HYPERPARAMS[algo][env]["n_timesteps"])
                jobs.append((folder, algo, env, seed, n_timesteps, arguments.eval_timesteps))
    with ThreadPool(arguments.jobs) as pool:
        rows = pd.DataFrame(pool.starmap(run, jobs, chunksize=1))
    table = MarkdownTableWriter(dataframe=rows).dumps()
    (arguments.folder / "results.md").write_text(table)
    draw(rows, [job[0] for job in jobs], arguments.folder / "curves.png")
    print(table)


if __name__ == "__main__":
    main()
