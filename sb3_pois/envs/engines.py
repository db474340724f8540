"""Loading the engines that are optional extras."""

import os
import sys
from importlib import import_module
from types import ModuleType

from gymnasium.error import DependencyNotInstalled

# What to tell an engine before it is imported on a machine without a display: MuJoCo can draw through EGL. SDL would fall
# back to an off-screen window through EGL too, and closing that would take MuJoCo's connection down with it.
WITHOUT_DISPLAY = {"mujoco": ("MUJOCO_GL", "egl"), "pygame": ("SDL_VIDEODRIVER", "dummy")}


def load_engine(module: str, task: str) -> ModuleType:
    """
    Import an optional module that a task needs.

    :param module: name of the module
    :param task: what needs it, for the message
    :return: the module
    :raises gymnasium.error.DependencyNotInstalled: if it cannot be imported
    """
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        if module in WITHOUT_DISPLAY:
            os.environ.setdefault(*WITHOUT_DISPLAY[module])
    try:
        return import_module(module)
    except ImportError as error:
        raise DependencyNotInstalled(
            f"{task} needs {module}, which cannot be imported ({error}): pip install 'sb3_pois[envs]'"
        ) from error
