"""What the README and the examples promise, run as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo, quickstart

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_readme_example():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    namespace: dict = {}
    for block in blocks:
        exec(block, namespace)
    assert namespace["env"].action_space.contains(namespace["action"])
    assert Path("apois_cartpole.zip").exists()


def test_quickstart_and_deployment(capsys):
    quickstart.main(total_timesteps=2_000, path="model.zip")
    assert "return of one episode" in capsys.readouterr().out
    deploy = [sys.executable, str(ROOT / "examples" / "deploy.py"), "model.zip", "--episodes", "2"]
    printed = subprocess.run(deploy, capture_output=True, text=True, check=True).stdout
    assert re.search(r"2 episodes: mean return \d+\.\d, standard deviation \d+\.\d", printed)


def test_demo_in_short(tmp_path):
    path = demo.train(tmp_path, total_timesteps=26_000, seed=0)
    assert path.exists()
    picture = demo.draw_learning_curve(tmp_path)
    assert picture.stat().st_size > 10_000


def test_readme_names_every_option():
    import inspect

    from sb3_pois import APOIS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    options = set(inspect.signature(APOIS.__init__).parameters) - {"self", "policy", "env", "_init_setup_model"}
    missing = {option for option in options if f"`{option}`" not in readme}
    assert not missing
    defaults = {"n_offline_iters": "3", "delta": "0.9", "bound": "`std-ess`", "line_search_max_iter": "30"}
    for option, default in defaults.items():
        assert re.search(rf"\| `{option}` \| {re.escape(default)} \|", readme)
