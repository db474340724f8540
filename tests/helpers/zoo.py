"""RL Zoo's commands, run in this process."""

import sys
from pathlib import Path

import pytest
from matplotlib import pyplot as plt

from sb3_pois import zoo


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, command: str) -> None:
    """Run a command line of sb3-pois in a folder, without windows."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["sb3-pois", *command.split()])
    monkeypatch.setattr(plt, "show", lambda *args, **kwargs: None)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    zoo.main()
