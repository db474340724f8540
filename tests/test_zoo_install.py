"""The command line around RL Zoo's commands, and what an installation carries."""

import configparser
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sb3_pois import zoo

ROOT = Path(__file__).parents[1]
WITHOUT = "import runpy, sys; sys.modules[{missing!r}] = None; sys.argv = {argv!r}; {code}"
MODULE = "runpy.run_module('sb3_pois.zoo', run_name='__main__', alter_sys=True)"
SCRIPT = "from sb3_pois.__main__ import main; main()"


def run_without(missing: str, argv: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that cannot import a package."""
    program = WITHOUT.format(missing=missing, argv=argv, code=code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    ("missing", "command", "code"),
    [("optuna", "train", MODULE), ("rl_zoo3", "train", SCRIPT), ("seaborn", "plot_train", SCRIPT)],
)
def test_missing_extra_is_one_line(missing: str, command: str, code: str) -> None:
    result = run_without(missing, ["sb3-pois", command], code)
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert missing in result.stderr and "pip install 'sb3_pois[zoo]'" in result.stderr


def test_import_without_the_extra_is_an_import_error() -> None:
    code = "\ntry:\n    import sb3_pois.zoo\nexcept ImportError as error:\n    print(error)"
    result = run_without("rl_zoo3", [""], code)
    assert result.returncode == 0 and "pip install 'sb3_pois[zoo]'" in result.stdout


def test_unknown_command_lists_what_there_is(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["sb3-pois", "fly"])
    with pytest.raises(SystemExit):
        zoo.main()
    error = capsys.readouterr().err
    assert "'fly'" in error and "record_video" in error


@pytest.mark.parametrize("command", zoo.COMMANDS)
def test_every_command_has_the_arguments_of_rl_zoo(command: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["sb3-pois", command, "--help"])
    with pytest.raises(SystemExit) as exit_:
        zoo.main()
    assert exit_.value.code == 0
    usage = capsys.readouterr().out
    assert "usage:" in usage
    if "--algo {" in usage:
        assert "apois" in usage and "ppois" in usage and "trpo" in usage


def test_metadata_names_what_there_is() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    packages = {str(file.parent.relative_to(ROOT)).replace("/", ".") for file in (ROOT / "sb3_pois").rglob("__init__.py")}
    assert set(config["options"]["packages"].split()) == packages | {"sb3_pois.hyperparams"}
    name, target = config["options.entry_points"]["console_scripts"].split("=")
    module, function = target.strip().split(":")
    assert name.strip() == "sb3-pois" and callable(getattr(importlib.import_module(module), function))
