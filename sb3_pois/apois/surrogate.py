"""
The surrogate of APOIS as a function of the policy's parameters.

An episode's log weight is a sum over its steps of log pi'(a|s) - log pi(a|s), and its divergence a sum over its steps of
D2(pi'(.|s) || pi(.|s)). :class:`DirectSurrogate` evaluates both step by step, for any policy. For linear-Gaussian
policies :class:`LinearGaussianSurrogate` gets both from sums over each episode that are computed once per batch.
:class:`PerDecisionSurrogate` weights the steps of an episode one by one.
"""

import functools
import itertools
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_pois.apois.action_distributions import Params
from sb3_pois.apois.policies import MlpPolicy
from sb3_pois.common.ascent import Direction
from sb3_pois.common.bounds import LowerBound, Objective, Terms
from sb3_pois.common.buffers import EpisodeRolloutBuffer
from sb3_pois.common.divergences import gaussian_renyi_divergence, mean_exponentiated_divergence
from sb3_pois.common.estimators import per_decision_estimate
from sb3_pois.common.gains import StepGains
from sb3_pois.common.importance import self_normalized_weights, sum_per_episode
from sb3_pois.common.natural_gradient import conjugate_gradient, solve_outer_products
from sb3_pois.common.parameters import ParameterVector
from sb3_pois.common.surrogate import Surrogate

# Statistics of up to this many numbers are always worth their memory
SMALL_STATISTICS = 2**22
# Steps on which the rounding of float32 is measured, and the expected error of a log weight from which float64 is taken: three
# of it make the default tolerance of the line search, below which no gain counts
MAX_PROBED_STEPS = 100
MAX_ROUNDING_ERROR = 1e-4 / 3.0
# The scores of a batch's episodes are kept up to this many numbers: 512 MiB, and as much again to solve with them
MAX_SCORES = 2**26
# States that the Fisher information of single steps is averaged over
MAX_FISHER_STEPS = 2000
# Products that the mean of its diagonal is estimated from
N_PROBES = 3


class ActionSurrogate(Surrogate):
    """
    Surrogate of a batch as a function of the policy's parameters.

    The policy is never changed: targets are evaluated functionally.

    :param policy: policy that collected the batch, with its behavioral parameters
    :param buffer: the batch
    :param returns: episode returns, float64, shape (n_episodes,)
    :param objective: what to climb
    """

    def __init__(self, policy: MlpPolicy, buffer: EpisodeRolloutBuffer, returns: th.Tensor, objective: Objective) -> None:
        super().__init__(returns, objective)
        self.policy = policy
        self.buffer = buffer
        self.parameters = ParameterVector(policy)

    def natural_direction(self, damping: float) -> Direction:
        """
        Natural gradient by the Fisher information that goes with what the surrogate weights.

        :param damping: what is added to the diagonal of the Fisher information, in units of its mean
        :return: the direction
        """
        return score_natural_gradient(self, damping)

    @abstractmethod
    def scores(self, theta: th.Tensor) -> Iterator[th.Tensor]:
        """
        Scores of the episodes one after the other, the gradients of their log weights.

        :param theta: target parameters, shape (n_params,)
        :return: float64 scores, each of shape (n_params,)
        """


class _Chunk(NamedTuple):
    """Steps that are evaluated together, and what the behavioral policy has to say about them."""

    observations: PyTorchObs
    actions: th.Tensor
    episode_index: th.Tensor
    behavioral_outputs: th.Tensor
    behavioral_log_prob: th.Tensor


class StepTerms(NamedTuple):
    """
    What each step of a chunk contributes to the terms of a target.

    :param log_ratios: log pi'(a|s) - log pi(a|s), float64, shape (n_chunk_steps,)
    :param divergences: D2(pi'(.|s) || pi(.|s)), float64, shape (n_chunk_steps,); None if not asked for
    """

    log_ratios: th.Tensor
    divergences: th.Tensor | None


class DirectSurrogate(ActionSurrogate):
    """
    Surrogate evaluated step by step, for any policy.

    Steps are packed and summed by episode, in float64. The behavioral policy's part is computed once. At most
    ``max_chunk_steps`` steps are evaluated at a time, so that memory does not grow with the batch; a gradient then takes
    two passes, one for the steps' terms and one that carries their gradients back to the parameters.

    The networks are evaluated in float64 where float32 would not do: where the standard deviations are small, or very many
    steps are summed (:meth:`rounding_error`).

    :param policy: policy that collected the batch, with its behavioral parameters
    :param buffer: the batch
    :param returns: episode returns, float64, shape (n_episodes,)
    :param objective: what to climb
    :param max_chunk_steps: most steps to evaluate at a time
    """

    def __init__(
        self,
        policy: MlpPolicy,
        buffer: EpisodeRolloutBuffer,
        returns: th.Tensor,
        objective: Objective,
        max_chunk_steps: int,
    ) -> None:
        super().__init__(policy, buffer, returns, objective)
        self.in_float64 = self._needs_float64()
        self.max_chunk_steps = max_chunk_steps
        # Two passes: what is allocated for good between two passes of a network keeps their memory from being used again
        self.chunks = list(self._make_chunks(buffer, max_chunk_steps))
        self.behavioral_shared_params = self._evaluate_behavioral_policy()

    def terms(self, theta: th.Tensor, with_divergence: bool) -> Terms:
        return self.terms_of_steps([self.step_terms(theta, chunk, with_divergence) for chunk in self.chunks])

    def terms_of_steps(self, steps: Sequence[StepTerms]) -> Terms:
        """
        Terms of a target from those of all its steps.

        :param steps: terms of each chunk's steps
        :return: terms of the episodes
        """
        log_weights = self._sum_per_episode([chunk_steps.log_ratios for chunk_steps in steps])
        divergences = [chunk_steps.divergences for chunk_steps in steps if chunk_steps.divergences is not None]
        log_d2 = mean_exponentiated_divergence(self._sum_per_episode(divergences)) if divergences else None
        return Terms(log_weights=log_weights.unsqueeze(1), log_d2=None if log_d2 is None else log_d2.unsqueeze(0))

    def value_and_gradient(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        if len(self.chunks) == 1:
            return super().value_and_gradient(theta)
        with_divergence = self.objective.needs_divergence
        with th.no_grad():
            steps = [self.step_terms(theta, chunk, with_divergence) for chunk in self.chunks]
        inputs = [values.requires_grad_() for chunk_steps in steps for values in chunk_steps if values is not None]
        value = self.lower_bound(self.terms_of_steps(steps)).value
        gradients = iter(th.autograd.grad(value.sum(), inputs, materialize_grads=True, allow_unused=True))
        theta = theta.detach().requires_grad_()
        gradient = th.zeros_like(theta, dtype=th.float64)
        for chunk in self.chunks:
            outputs = [values for values in self.step_terms(theta, chunk, with_divergence) if values is not None]
            # A product's sum rather than `grad_outputs`, for whose checks torch imports half a second of other modules
            product = _sum((values * next(gradients)).sum() for values in outputs)
            gradient += th.autograd.grad(product, theta)[0]
        return value.detach(), gradient

    def scores(self, theta: th.Tensor) -> Iterator[th.Tensor]:
        theta = theta.detach().requires_grad_()
        ends = self.buffer.episode_lengths.cumsum().tolist()
        for start, end in itertools.pairwise([0, *ends]):
            score = th.zeros_like(theta, dtype=th.float64)
            for first in range(start, end, self.max_chunk_steps):
                rows = slice(first, min(first + self.max_chunk_steps, end))
                params = self.action_params(self._observations(rows), theta)
                actions = th.as_tensor(self.buffer.actions[rows], device=theta.device)
                score += th.autograd.grad(self.policy.distribution.log_prob(params, actions).sum(), theta)[0]
            yield score

    def step_terms(self, theta: th.Tensor, chunk: _Chunk, with_divergence: bool) -> StepTerms:
        """
        What the steps of a chunk contribute to the terms of a target, differentiable in it.

        :param theta: target parameters, shape (n_params,)
        :param chunk: the steps
        :param with_divergence: whether the divergence is needed
        :return: the terms of the steps
        """
        params = self.action_params(chunk.observations, theta)
        log_ratios = self.policy.distribution.log_prob(params, chunk.actions) - chunk.behavioral_log_prob
        if not with_divergence:
            return StepTerms(log_ratios, None)
        behavioral_params = (chunk.behavioral_outputs, *self.behavioral_shared_params)
        return StepTerms(log_ratios, self.policy.distribution.renyi_divergence(params, behavioral_params))

    def _sum_per_episode(self, values_of_chunks: Sequence[th.Tensor]) -> th.Tensor:
        """Sum values of all chunks' steps within each episode, shape (n_episodes,)."""
        return _sum(
            sum_per_episode(values, chunk.episode_index, self.n_episodes)
            for values, chunk in zip(values_of_chunks, self.chunks, strict=True)
        )

    def action_params(self, observations: PyTorchObs, theta: th.Tensor) -> Params:
        """
        Parameters of a target's action distributions, in float64: the networks' own type loses small ratios.

        :param observations: observations, shape (n_states, *obs_shape), or a dict of such
        :param theta: target parameters, shape (n_params,)
        :return: parameters of the distributions
        """
        return self._evaluate_policy(observations, theta, self.in_float64)

    def rounding_error(self, by_float64: bool = True) -> float:
        r"""
        Expected error of the longest episode's log weight if the networks are evaluated in float32.

        A log weight is a sum of T differences of log densities. Where each has an error of standard deviation e, that of the
        sum is :math:`e \sqrt{2 T}`. Here e is what float32 and float64 make different of the behavioral log densities of some
        of the batch's steps.

        :param by_float64: False is for policies that float64 is foreign to, and coarser: e is then what parameters one unit
            in the last place away make different
        :return: the error, in nats
        """
        rows = np.unique(np.linspace(0, self.buffer.n_steps - 1, MAX_PROBED_STEPS, dtype=np.int64))
        observations, theta = self._observations(rows), self.parameters.get()
        actions = th.as_tensor(self.buffer.actions[rows], device=theta.device)
        other = theta if by_float64 else th.nextafter(theta, th.full_like(theta, math.inf))
        with th.no_grad():
            log_probs = [
                self.policy.distribution.log_prob(self._evaluate_policy(observations, *arguments), actions)
                for arguments in ((theta, False), (other, by_float64))
            ]
        return math.sqrt(2.0 * self.n_summed_steps * float(((log_probs[0] - log_probs[1]) ** 2).mean()))

    @property
    def n_summed_steps(self) -> float:
        """How many steps' log ratios the longest log weight is the sum of."""
        return float(self.buffer.episode_lengths.max())

    def _needs_float64(self) -> bool:
        """Whether float32 would falsify the log weights; where it would and the policy cannot do without it, that is said."""
        try:
            return self.rounding_error() > MAX_ROUNDING_ERROR
        except Exception as error:  # whatever a module of the user's says to a type that it does not expect
            refusal = str(error).partition("\n")[0]
        coarse = self.rounding_error(by_float64=False)
        if coarse > MAX_ROUNDING_ERROR:
            warnings.warn(
                f"rounding to float32 changes log weights by about {coarse:.1g}, and the policy cannot be evaluated in float64"
                f" ({refusal}): let its modules take the type of their inputs, or raise the standard deviation",
                stacklevel=2,
            )
        return False

    def _evaluate_policy(self, observations: PyTorchObs, theta: th.Tensor, in_float64: bool) -> Params:
        named = self.parameters.split(theta)
        if not in_float64:
            params = th.func.functional_call(self.policy, named, (observations,))
            return tuple(param.double() for param in params)
        tensors = {**dict(self.policy.named_parameters()), **dict(self.policy.named_buffers()), **named}
        tensors = {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}
        params = th.func.functional_call(self.policy, tensors, (observations,))
        if params[0].dtype != th.float64:
            raise TypeError(f"its outputs are {params[0].dtype}")
        return params

    def _make_chunks(self, buffer: EpisodeRolloutBuffer, max_chunk_steps: int) -> Iterator[_Chunk]:
        """Split the batch, with room for what the behavioral policy has to say."""
        device = self.parameters.get().device
        episode_index = buffer.episode_index
        outputs = th.empty(buffer.n_steps, self.policy.distribution.n_outputs, dtype=th.float64, device=device)
        log_prob = th.empty(buffer.n_steps, dtype=th.float64, device=device)
        for start in range(0, buffer.n_steps, max_chunk_steps):
            rows = slice(start, start + max_chunk_steps)
            observations = self._observations(rows)
            actions = th.as_tensor(buffer.actions[rows], device=device)
            index = th.as_tensor(episode_index[rows], device=device)
            yield _Chunk(observations, actions, index, outputs[rows], log_prob[rows])

    def spread_observations(self, n_most: int) -> PyTorchObs:
        """
        Observations of steps spread evenly over the batch.

        :param n_most: how many at the most
        :return: the observations
        """
        return self._observations(slice(None, None, -(-self.buffer.n_steps // n_most)))

    def _observations(self, rows: slice | np.ndarray) -> PyTorchObs:
        device, observations = self.returns.device, self.buffer.observations
        if isinstance(observations, dict):
            return {key: th.as_tensor(obs[rows], device=device) for key, obs in observations.items()}
        return th.as_tensor(observations[rows], device=device)

    def _evaluate_behavioral_policy(self) -> Params:
        """Fill in the behavioral policy's part of every chunk; returns the parameters that all states share."""
        theta = self.parameters.get()
        shared: Params = ()
        with th.no_grad():
            for chunk in self.chunks:
                params = self.action_params(chunk.observations, theta)
                chunk.behavioral_outputs.copy_(params[0])
                chunk.behavioral_log_prob.copy_(self.policy.distribution.log_prob(params, chunk.actions))
                shared = params[1:]
        return shared


class PerDecisionSurrogate(DirectSurrogate):
    r"""
    Surrogate whose estimate weights every step's gain by the ratios up to it.

    With ``iw_lambda`` below 1 the weights forget, :math:`\log w_t = \sum_{u \le t} \lambda^{t - u} \log \rho_u`: from
    per-decision importance sampling at 1 to the one-step ratios of TRPO and PPO at 0. The effective sample size is that of
    the weights of all steps.

    :param policy: policy that collected the batch, with its behavioral parameters
    :param buffer: the batch
    :param gains: what the steps gain
    :param objective: what to climb
    :param iw_lambda: how much of a ratio's logarithm the next step's weight keeps, in [0, 1]
    :param max_chunk_steps: most steps to evaluate at a time
    """

    def __init__(
        self,
        policy: MlpPolicy,
        buffer: EpisodeRolloutBuffer,
        gains: StepGains,
        objective: Objective,
        iw_lambda: float,
        max_chunk_steps: int,
    ) -> None:
        self.iw_lambda = iw_lambda
        super().__init__(policy, buffer, gains.of_episodes, objective, max_chunk_steps)
        self.gains = gains

    @property
    def n_summed_steps(self) -> float:
        longest, factor = super().n_summed_steps, self.iw_lambda**2
        return longest if factor == 1.0 else (1.0 - factor**longest) / (1.0 - factor)

    def terms_of_steps(self, steps: Sequence[StepTerms]) -> Terms:
        layout = self.gains.layout
        log_weights = layout.decayed_sums(th.cat([chunk_steps.log_ratios for chunk_steps in steps]), self.iw_lambda)
        if steps[0].divergences is None:
            return Terms(log_weights=log_weights.unsqueeze(1))
        divergences = th.cat([chunk_steps.divergences for chunk_steps in steps if chunk_steps.divergences is not None])
        per_episode = sum_per_episode(divergences, layout.episode_index, layout.n_episodes)
        return Terms(
            log_weights=log_weights.unsqueeze(1),
            log_d2=mean_exponentiated_divergence(per_episode).unsqueeze(0),
            second_moment=self.gains.second_moment(divergences).unsqueeze(0),
        )

    def natural_direction(self, damping: float) -> Direction:
        return step_natural_gradient(self, damping)

    def lower_bound(self, terms: Terms) -> LowerBound:
        gains, is_normalized = self.gains, self.objective.iw_norm == "sn"
        estimate = per_decision_estimate(terms.log_weights[:, 0], gains.of_steps, gains.after_end, gains.layout, is_normalized)
        return self.objective.subtract_penalty(estimate.unsqueeze(0) + gains.constant, self.returns, terms)


class LinearGaussianSurrogate(ActionSurrogate):
    r"""
    Surrogate of a linear-Gaussian policy at a cost that does not depend on the horizon.

    With the residuals :math:`e = a - M_0 s` of the behavioral mean and :math:`\Delta = M' - M_0`, the log density of an
    action under the target is quadratic in Delta:

    .. math::

        \sum_t (a - M' s)^2 = \sum_t e^2 - 2 \Delta \sum_t s e + \Delta \Big(\sum_t s s^T\Big) \Delta^T

    and so is the divergence, so each episode enters through its length and three sums only.

    :param policy: linear-Gaussian policy that collected the batch, with its behavioral parameters
    :param buffer: the batch
    :param returns: episode returns, float64, shape (n_episodes,)
    :param objective: what to climb
    """

    def __init__(
        self,
        policy: MlpPolicy,
        buffer: EpisodeRolloutBuffer,
        returns: th.Tensor,
        objective: Objective,
    ) -> None:
        super().__init__(policy, buffer, returns, objective)
        self.behavioral_mean, self.behavioral_log_std = self._mean_and_log_std(self.parameters.get())
        device = self.behavioral_mean.device
        self.lengths = th.as_tensor(buffer.episode_lengths, dtype=th.float64, device=device)  # (N,)
        statistics = self._sum_over_episodes(buffer, self.behavioral_mean.cpu().numpy())
        self.sum_ss, self.sum_es, self.sum_ee = (th.as_tensor(sums, device=device) for sums in statistics)

    def terms(self, theta: th.Tensor, with_divergence: bool) -> Terms:
        mean, log_std = self._mean_and_log_std(theta)
        shift = mean - self.behavioral_mean  # (k, d)
        squared_shift = th.einsum("nij,ki,kj->nk", self.sum_ss, shift, shift)  # sum_t (shift s_t)^2
        shift_residual = th.einsum("nkd,kd->nk", self.sum_es, shift)  # sum_t e_t (shift s_t)

        precision, behavioral_precision = th.exp(-2.0 * log_std), th.exp(-2.0 * self.behavioral_log_std)
        squares = (precision - behavioral_precision) * self.sum_ee + precision * (squared_shift - 2.0 * shift_residual)
        log_std_change = (log_std - self.behavioral_log_std).sum()
        log_weights = -0.5 * squares.sum(1) - self.lengths * log_std_change
        log_d2 = self._log_d2(log_std, squared_shift).unsqueeze(0) if with_divergence else None
        return Terms(log_weights=log_weights.unsqueeze(1), log_d2=log_d2)

    def scores(self, theta: th.Tensor) -> Iterator[th.Tensor]:
        mean, log_std = self._mean_and_log_std(theta.detach())
        shift, precision = mean - self.behavioral_mean, th.exp(-2.0 * log_std)
        # With the target's residuals e' = a - M' s: sum_t e' s, and sum_t e'^2 less its part under the target
        residual_s = self.sum_es - shift @ self.sum_ss  # (N, k, d)
        squares = self.sum_ee - ((self.sum_es + residual_s) * shift).sum(2)  # (N, k)
        mean_scores = precision.unsqueeze(1) * residual_s
        n_inputs = self.policy.action_net.in_features
        named = {
            "action_net.weight": mean_scores[:, :, :n_inputs],
            "action_net.bias": mean_scores[:, :, n_inputs:],
            "log_std": precision * squares - self.lengths.unsqueeze(1),
        }
        yield from th.cat([named[name].flatten(1) for name in self.parameters.parameters], dim=1)

    def _log_d2(self, log_std: th.Tensor, squared_shift: th.Tensor) -> th.Tensor:
        """Divergence of the trajectories: what a change of std costs per step, and the mean's shift over all steps."""
        zero = th.zeros_like(log_std)
        per_step = gaussian_renyi_divergence(zero, log_std, zero, self.behavioral_log_std)
        mixed_variance = 2.0 * th.exp(2.0 * self.behavioral_log_std) - th.exp(2.0 * log_std)
        # Where that is not positive per_step is infinite already, and a finite stand-in keeps gradients free of NaN
        mixed_variance = th.where(mixed_variance > 0.0, mixed_variance, th.ones_like(mixed_variance))
        return mean_exponentiated_divergence(self.lengths * per_step + (squared_shift / mixed_variance).sum(1))

    def _mean_and_log_std(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Matrix of the mean, a bias as its last column, shape (k, d); log std, shape (k,)."""
        named = {**dict(self.policy.named_parameters()), **self.parameters.split(theta)}  # with those that are frozen
        mean = named["action_net.weight"].double()
        if "action_net.bias" in named:
            mean = th.cat([mean, named["action_net.bias"].double().unsqueeze(1)], dim=1)
        return mean, named["log_std"].double()

    @staticmethod
    def _sum_over_episodes(
        buffer: EpisodeRolloutBuffer, behavioral_mean: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sums over each episode of s s^T (N, d, d), e s^T (N, k, d) and e^2 (N, k)."""
        assert isinstance(buffer.observations, np.ndarray)
        n_actions, n_inputs = behavioral_mean.shape
        sum_ss = np.empty((buffer.n_episodes, n_inputs, n_inputs))
        sum_es = np.empty((buffer.n_episodes, n_actions, n_inputs))
        sum_ee = np.empty((buffer.n_episodes, n_actions))
        observations, actions = buffer.observations, buffer.actions
        bounds = [*buffer.episode_starts.tolist(), buffer.n_steps]
        for episode, (start, end) in enumerate(itertools.pairwise(bounds)):
            # The network takes float32 inputs: the statistics are of what it saw
            states = observations[start:end].reshape(end - start, -1).astype(np.float32).astype(np.float64)
            if states.shape[1] < n_inputs:
                states = np.hstack([states, np.ones((end - start, 1))])
            residuals = actions[start:end].reshape(end - start, -1) - states @ behavioral_mean.T
            sum_ss[episode] = states.T @ states
            sum_es[episode] = residuals.T @ states
            sum_ee[episode] = (residuals**2).sum(0)
        return sum_ss, sum_es, sum_ee


def make_surrogate(
    policy: MlpPolicy,
    buffer: EpisodeRolloutBuffer,
    returns: th.Tensor,
    objective: Objective,
    max_chunk_steps: int,
) -> ActionSurrogate:
    """
    Choose how to evaluate the surrogate of a batch.

    :param policy: policy that collected the batch, with its behavioral parameters
    :param buffer: the batch
    :param returns: episode returns, float64, shape (n_episodes,)
    :param objective: what to climb
    :param max_chunk_steps: most steps to evaluate at a time
    :return: the surrogate
    """
    if policy.is_linear_gaussian:
        n_inputs = policy.action_net.in_features + 1
        n_statistics = buffer.n_episodes * n_inputs**2
        if n_statistics <= max(SMALL_STATISTICS, buffer.n_steps * n_inputs):
            return LinearGaussianSurrogate(policy, buffer, returns, objective)
    return DirectSurrogate(policy, buffer, returns, objective, max_chunk_steps)


def score_natural_gradient(surrogate: ActionSurrogate, damping: float) -> Direction:
    r"""
    Natural gradient by the Fisher information of whole episodes (Metelli et al. 2018, section 4.3).

    Solves :math:`(F + \lambda f I) x = g`, exactly unless the scores are more than ``MAX_SCORES`` numbers. F is the outer
    product of the episodes' scores with self-normalised weights, and f the mean of its diagonal, so that lambda means the
    same whatever the episodes' length, the network, the observations and the standard deviation:

    .. math:: F = \sum_i \tilde w_i \Big(\sum_t \nabla \log \pi'\Big) \Big(\sum_t \nabla \log \pi'\Big)^T

    (The reference code uses minus a Hessian instead.)

    :param surrogate: surrogate of the batch
    :param damping: lambda, what is added to the diagonal of the Fisher information, in units of its mean
    :return: the direction
    """

    def direction(theta: th.Tensor, gradient: th.Tensor) -> th.Tensor:
        with th.no_grad():
            log_weights = surrogate.terms(theta, with_divergence=False).log_weights[:, 0]
        weights = self_normalized_weights(log_weights)
        if len(weights) * len(theta) <= MAX_SCORES:
            scores = th.stack(list(surrogate.scores(theta)))
            mean_diagonal = weights @ scores.square().mean(1)
            return solve_outer_products(scores, weights, damping * mean_diagonal, gradient)

        def weighted_scores() -> Iterator[tuple[th.Tensor, th.Tensor]]:
            return zip(weights, surrogate.scores(theta), strict=True)

        diagonal = damping * _sum(weight * score.square().mean() for weight, score in weighted_scores())

        def damped_fisher_times(v: th.Tensor) -> th.Tensor:
            return _sum(weight * (score @ v) * score for weight, score in weighted_scores()) + diagonal * v

        return conjugate_gradient(damped_fisher_times, gradient)

    return direction


def step_natural_gradient(surrogate: DirectSurrogate, damping: float) -> Direction:
    r"""
    Natural gradient by the Fisher information of single steps, for estimates that weight steps.

    Solves :math:`(F + \lambda f I) x = g` by conjugate gradient, with f the mean of F's diagonal, so that lambda means the
    same whatever the network, the observations and the standard deviation. F is half the curvature of the divergence from
    the target itself, averaged over some of the batch's states:

    .. math:: D_2(\pi_{\theta + d}(\cdot|s) \| \pi_\theta(\cdot|s)) = d^T F(s) d + O(d^3)

    :param surrogate: surrogate of the batch
    :param damping: lambda, what is added to the diagonal of the Fisher information, in units of its mean
    :return: the direction
    """
    observations = surrogate.spread_observations(MAX_FISHER_STEPS)

    def direction(theta: th.Tensor, gradient: th.Tensor) -> th.Tensor:
        theta = theta.detach().requires_grad_()
        params = surrogate.action_params(observations, theta)
        divergences = surrogate.policy.distribution.renyi_divergence(params, tuple(param.detach() for param in params))
        (slope,) = th.autograd.grad(divergences.mean(), theta, create_graph=True)

        def fisher_times(v: th.Tensor) -> th.Tensor:
            (curvature,) = th.autograd.grad((slope * v).sum(), theta, retain_graph=True)
            return 0.5 * curvature.double()

        diagonal = damping * _mean_diagonal(fisher_times, gradient)
        return conjugate_gradient(lambda v: fisher_times(v) + diagonal * v, gradient)

    return direction


def _mean_diagonal(matrix_times: Callable[[th.Tensor], th.Tensor], like: th.Tensor) -> th.Tensor:
    """Hutchinson's estimate of the mean of a matrix's diagonal, from the same few random signs every time."""
    generator = th.Generator().manual_seed(0)
    signs = 1.0 - 2.0 * th.randint(2, (N_PROBES, len(like)), generator=generator).to(like)
    return th.stack([(sign * matrix_times(sign)).mean() for sign in signs]).mean()


def _sum(tensors: Iterable[th.Tensor]) -> th.Tensor:
    return functools.reduce(th.add, tensors)
