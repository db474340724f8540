"""What the three batched rigid-body solvers share: Box2D's constants, speed limits and position correction."""

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from sb3_pois.envs.simulation import BoolArray, FloatArray

GRAVITY = 10.0
# Box2D moves no body further than this in one world step (metres, radians)
MAX_TRANSLATION = 2.0
MAX_ROTATION = pi / 2
# A joint is left alone once it is apart by no more than this (metres)
POSITION_TOLERANCE = 0.005


def limit_speeds(velocities: FloatArray, step_seconds: float, linear: tuple[slice, ...], angular: slice) -> None:
    """
    Apply Box2D's limits on how far a body moves in one world step.

    :param velocities: one row per velocity component, shape ``(n_components, n_worlds)``; changed in place
    :param step_seconds: length of the world step
    :param linear: for each body, the rows of its linear velocity
    :param angular: the rows of the spins
    """
    # Both limits are out of reach in ordinary motion: one look at the largest component settles it. A planar speed is at
    # most sqrt(2) times its larger component, and the rotation limit is the tighter one.
    if max(velocities.max(), -velocities.min()) * step_seconds <= min(MAX_TRANSLATION / sqrt(2), MAX_ROTATION):
        return
    for rows in linear:
        distance = step_seconds * np.sqrt((velocities[rows] ** 2).sum(axis=0))
        velocities[rows] *= MAX_TRANSLATION / np.maximum(distance, MAX_TRANSLATION)
    np.clip(velocities[angular], -MAX_ROTATION / step_seconds, MAX_ROTATION / step_seconds, out=velocities[angular])


def correct_positions(positions: FloatArray, correct: Callable[[FloatArray], BoolArray], max_passes: int) -> None:
    """
    Pull violated joints together, pass by pass, each world stopping by itself.

    A world gets another pass as long as the errors that its last pass found, before it corrected them, were too large.

    :param positions: one row per position component, shape ``(n_components, n_worlds)``; changed in place
    :param correct: one pass over the columns it is given, in place; tells which of them were too far apart
    :param max_passes: most passes of one world step
    """
    apart = correct(positions).nonzero()[0]
    for _ in range(max_passes - 1):
        if not apart.size:
            return
        # only these worlds go on: the others must not be corrected further
        columns = positions.take(apart, axis=1)
        still_apart = correct(columns)
        positions[:, apart] = columns
        apart = apart[still_apart]
