"""Loading the engines that are optional extras."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from gymnasium.error import DependencyNotInstalled


def load_engine(module: str, task: str) -> ModuleType:
    """
    Import an optional module that a task needs.

    :param module: Name of the module.
    :param task: What needs it, for the message.
    :return: The module.
    :raises gymnasium.error.DependencyNotInstalled: if it cannot be imported.
    """
    if module == "mujoco" and sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        # without a display MuJoCo can draw through EGL, but it has to be told before it is imported
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        return import_module(module)
    except ImportError as error:
        raise DependencyNotInstalled(
            f"{task} needs {module}, which cannot be imported ({error}): pip install 'sb3_pois[envs]'"
        ) from error
