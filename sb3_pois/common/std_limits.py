"""
How far a batch may move a standard deviation.

The surrogate is climbed on the batch that it was estimated from, and nothing is gained so easily there as by a standard
deviation that closes around the luckiest draws. It then shrinks faster than the mean moves, and the search ends before it
has arrived; where nothing penalises it, it grows as fast, until actions are infinite. So a batch may change it by a fixed
factor at the most, as an evolution strategy's generation does.
"""

import math

import torch as th

from sb3_pois.common.line_search import Box

# Most that a batch may change a log standard deviation
MAX_LOG_STD_CHANGE = 0.1
# Root of what float32 holds: draws, and their products with numbers as large as they are, stay finite
LARGEST_LOG_STD = 0.5 * math.log(th.finfo(th.float32).max)


def std_box(theta: th.Tensor, is_log_std: th.Tensor) -> Box:
    """
    Limits of a target's parameters.

    :param theta: behavioral parameters, shape (n_params,)
    :param is_log_std: mask of those that are log standard deviations, shape (n_params,)
    :return: the limits; infinite for all others
    """
    lower = (theta - MAX_LOG_STD_CHANGE).clamp(min=-LARGEST_LOG_STD).minimum(theta)
    upper = (theta + MAX_LOG_STD_CHANGE).clamp(max=LARGEST_LOG_STD).maximum(theta)
    return Box(lower.masked_fill(~is_log_std, -math.inf), upper.masked_fill(~is_log_std, math.inf))
