"""Where the steps of packed episodes lie, and recursions along them."""

import torch as th


class EpisodeLayout:
    """
    Places of the steps of episodes that lie one after the other.

    :param lengths: number of steps of each episode, int64, shape (n_episodes,)
    :ivar horizon: length of the longest episode
    :ivar episode_index: episode of each step, shape (n_steps,)
    :ivar step_index: number of each step in its episode, from 0, shape (n_steps,)
    :ivar steps_to_go: number of steps that follow each step in its episode, shape (n_steps,)
    :ivar first_steps: row of each episode's first step, shape (n_episodes,)
    :ivar last_steps: row of each episode's last step, shape (n_episodes,)
    """

    def __init__(self, lengths: th.Tensor) -> None:
        self.lengths = lengths
        self.horizon = int(lengths.max())
        self.last_steps = lengths.cumsum(0) - 1
        self.first_steps = self.last_steps - lengths + 1
        self.episode_index = th.repeat_interleave(th.arange(len(lengths), device=lengths.device), lengths)
        rows = th.arange(len(self.episode_index), device=lengths.device)
        self.step_index = rows - self.first_steps[self.episode_index]
        self.steps_to_go = self.last_steps[self.episode_index] - rows

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def n_steps(self) -> int:
        """Number of steps of all episodes."""
        return len(self.step_index)

    def decayed_sums(self, values: th.Tensor, decay: float) -> th.Tensor:
        r"""
        Within each episode, :math:`y_t = x_t + \lambda y_{t-1}`, which is a sum over the past with decaying factors.

        Pass k adds what lies :math:`2^k` steps back, so that a handful of passes over all steps do.

        :param values: x, shape (n_steps,)
        :param decay: lambda, in [0, 1]
        :return: y, shape (n_steps,)
        """
        return _decayed_sums(values, self.step_index, decay, self.horizon)

    def returns_to_go(self, rewards: th.Tensor, gamma: float) -> th.Tensor:
        r"""
        Discounted return from each step to the end of its episode, :math:`G_t = r_t + \gamma G_{t+1}`.

        :param rewards: rewards, shape (n_steps,)
        :param gamma: discount factor, in [0, 1]
        :return: returns to go, shape (n_steps,)
        """
        return _decayed_sums(rewards.flip(0), self.steps_to_go.flip(0), gamma, self.horizon).flip(0)

    def sum_over_episodes(self, values: th.Tensor) -> th.Tensor:
        """
        At every step, the sum over all episodes, in which an episode that has ended counts on with its last value.

        :param values: values, shape (n_steps,)
        :return: sums, shape (horizon,)
        """
        sums = values.new_zeros(self.horizon + 1)
        running = sums.index_add(0, self.step_index, values)
        ended = sums.index_add(0, self.lengths, values[self.last_steps]).cumsum(0)
        return (running + ended)[:-1]

    def sums_after_end(self, values: th.Tensor) -> th.Tensor:
        """
        For every episode, the sum over the steps that come after its end and before that of the longest one.

        :param values: values, shape (horizon,)
        :return: sums, shape (n_episodes,)
        """
        to_come = values.flip(0).cumsum(0).flip(0)
        return th.cat([to_come, to_come.new_zeros(1)])[self.lengths]

    def next_values(self, values: th.Tensor) -> th.Tensor:
        """
        Value of the state that each step leads to, 0 after the end of an episode.

        :param values: values, shape (n_steps,)
        :return: values one step later, shape (n_steps,)
        """
        after = th.cat([values[1:], values.new_zeros(1)])
        return th.where(self.steps_to_go > 0, after, after.new_zeros(()))


def _decayed_sums(values: th.Tensor, n_before: th.Tensor, decay: float, horizon: int) -> th.Tensor:
    """Decayed sums over the rows before each row of which ``n_before`` belong to its episode."""
    distance, factor = 1, decay
    while distance < horizon and factor > 0.0:
        earlier = th.cat([values.new_zeros(distance), values[:-distance]])
        values = values + factor * th.where(n_before >= distance, earlier, earlier.new_zeros(()))
        distance, factor = 2 * distance, factor**2
    return values
