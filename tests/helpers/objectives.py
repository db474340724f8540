"""Every objective that there is, for tests that hold for all of them."""

from sb3_pois.common.bounds import BOUNDS, Objective


def objectives(delta: float = 0.4) -> list[Objective]:
    """Every bound with each estimator that an optimisation may climb and that goes with it."""
    return [
        Objective(name, iw_norm, delta)
        for name, bound in BOUNDS.items()
        for iw_norm in ("none", "sn")
        if iw_norm in bound.estimators
    ]


def an_objective_with(bound: str, delta: float = 0.4) -> Objective:
    """A bound with the first estimator that goes with it."""
    return Objective(bound, BOUNDS[bound].estimators[0], delta)
