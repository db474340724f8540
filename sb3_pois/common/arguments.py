"""Checks of arguments: what was given, what is allowed."""

from collections.abc import Iterable
from typing import Any

import numpy as np


def check_integer(name: str, value: Any, least: int) -> None:
    """
    Refuse what is no integer of at least a certain size.

    :param name: name of the argument
    :param value: its value
    :param least: least value that is allowed
    :raises ValueError: if it is not allowed
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} is {value!r}, but must be an integer >= {least}")


def check_number(name: str, value: Any) -> None:
    """
    Refuse what is no finite number.

    :param name: name of the argument
    :param value: its value
    :raises ValueError: if it is not allowed
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}, but must be a finite number")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """
    Refuse what is not among some choices.

    :param name: name of the argument
    :param value: its value
    :param choices: what is allowed
    :raises ValueError: if it is not allowed
    """
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, but allowed are {', '.join(map(repr, choices))}")


def check_flag(name: str, value: Any) -> None:
    """
    Refuse what is no truth value.

    :param name: name of the argument
    :param value: its value
    :raises ValueError: if it is not allowed
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} is {value!r}, but must be True or False")
