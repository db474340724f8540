"""What each step of a batch adds to a per-decision estimate."""

from dataclasses import dataclass, replace

import torch as th

from sb3_pois.common.episodes import EpisodeLayout


@dataclass(frozen=True, kw_only=True)
class StepGains:
    """
    What a per-decision estimate weights, in units of return.

    :param layout: where the episodes' steps lie
    :param of_steps: discounted gain of each step, float64, shape (n_steps,)
    :param after_end: discounted gain, at each step, of an episode that has ended, float64, shape (horizon,)
    :param discounts: factor of each step, float64, shape (horizon,)
    :param constant: what is added to the estimate without a weight
    :param largest: largest absolute gain of a step before discounting
    """

    layout: EpisodeLayout
    of_steps: th.Tensor
    after_end: th.Tensor
    discounts: th.Tensor
    constant: float
    largest: float

    @property
    def of_episodes(self) -> th.Tensor:
        """What each episode gains in all, after its end too, shape (n_episodes,)."""
        return self.layout.sums_after_end(self.after_end).index_add(0, self.layout.episode_index, self.of_steps)

    def second_moment(self, divergences: th.Tensor) -> th.Tensor:
        r"""
        Bound on the second moment of what an episode's weighted gains sum to (Metelli et al. 2020).

        .. math::

            r_{max}^2 \sum_t c_t \, d_2(0{:}t), \qquad c_t = \gamma^{2t} + 2 \gamma^t \sum_{u > t} \gamma^u, \qquad
            d_2(0{:}t) = \frac{1}{N} \sum_i \exp \sum_{u \le t} D_2(\pi'(\cdot|s_{iu}) \| \pi(\cdot|s_{iu}))

        :param divergences: divergence of every step from the behavioral policy, in nats, shape (n_steps,)
        :return: the bound, a scalar
        """
        d2 = self.layout.sum_over_episodes(th.exp(self.layout.decayed_sums(divergences, 1.0))) / self.layout.n_episodes
        later = self.discounts.flip(0).cumsum(0).flip(0) - self.discounts
        return self.largest**2 * (self.discounts * (self.discounts + 2.0 * later) * d2).sum()

    def over(self, unit: float) -> "StepGains":
        """
        Measure in another unit.

        :param unit: the unit, in units of return
        :return: the gains divided by it
        """
        return replace(
            self,
            of_steps=self.of_steps / unit,
            after_end=self.after_end / unit,
            constant=self.constant / unit,
            largest=self.largest / unit,
        )


def gains_of_rewards(rewards: th.Tensor, layout: EpisodeLayout, gamma: float, discounted: bool, centered: bool) -> StepGains:
    r"""
    Rewards as they are, :math:`\gamma^t r_t`, or less their mean over all N episodes at every step.

    An ended episode has reward 0, from which the mean is subtracted too.

    :param rewards: rewards, float64, shape (n_steps,)
    :param layout: where the episodes' steps lie
    :param gamma: discount factor
    :param discounted: whether to multiply with gamma^t
    :param centered: whether to subtract the mean reward of every step
    :return: the gains
    """
    mean = rewards.new_zeros(layout.horizon)
    if centered:
        mean = mean.index_add(0, layout.step_index, rewards) / layout.n_episodes
    discounts = _discounts(rewards, layout, gamma if discounted else 1.0)
    gains = rewards - mean[layout.step_index]
    has_ended = bool((layout.lengths < layout.horizon).any())
    largest = max(gains.abs().max().item(), mean.abs().max().item() if has_ended else 0.0)
    return StepGains(
        layout=layout,
        of_steps=discounts[layout.step_index] * gains,
        after_end=-discounts * mean,
        discounts=discounts,
        constant=0.0,
        largest=largest,
    )


def gains_over_baseline(
    rewards: th.Tensor, values: th.Tensor, layout: EpisodeLayout, gamma: float, discounted: bool, centered: bool
) -> StepGains:
    r"""
    Rewards less what a baseline V explains of them, :math:`\gamma^t (r_t + \gamma V(s_{t+1}) - V(s_t))`.

    :param rewards: rewards, float64, shape (n_steps,)
    :param values: V at the steps' states, float64, shape (n_steps,)
    :param layout: where the episodes' steps lie
    :param gamma: discount factor
    :param discounted: whether to multiply with gamma^t
    :param centered: whether to leave out the mean of V at the starts of the episodes, so that estimates are relative to it
    :return: the gains
    """
    gains = rewards + gamma * layout.next_values(values) - values
    discounts = _discounts(rewards, layout, gamma if discounted else 1.0)
    return StepGains(
        layout=layout,
        of_steps=discounts[layout.step_index] * gains,
        after_end=rewards.new_zeros(layout.horizon),
        discounts=discounts,
        constant=0.0 if centered else values[layout.first_steps].mean().item(),
        largest=gains.abs().max().item(),
    )


def _discounts(rewards: th.Tensor, layout: EpisodeLayout, gamma: float) -> th.Tensor:
    """Powers of gamma, shape (horizon,)."""
    return gamma ** th.arange(layout.horizon, dtype=rewards.dtype, device=rewards.device)
