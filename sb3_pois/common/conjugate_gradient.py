"""Conjugate gradient solver for the natural gradient, where the Fisher matrix is known by its products only."""

from collections.abc import Callable

import torch as th


def conjugate_gradient(
    matrix_vector_product: Callable[[th.Tensor], th.Tensor], b: th.Tensor, max_iter: int = 10, tol: float = 1e-10
) -> th.Tensor:
    """
    Solve A x = b approximately for a symmetric positive definite A (Hestenes and Stiefel 1952), from x = 0.

    :param matrix_vector_product: maps v of shape (n,) to A v
    :param b: right-hand side, shape (n,)
    :param max_iter: largest number of products
    :param tol: squared residual relative to b's at which the solution is good enough
    :return: x, shape (n,); every iterate satisfies b . x > 0 unless b is 0
    """
    x = th.zeros_like(b)
    residual, search = b.clone(), b.clone()
    squared_residual = residual @ residual
    enough = tol * squared_residual
    for _ in range(max_iter):
        if squared_residual <= enough:
            break
        product = matrix_vector_product(search)
        step = squared_residual / (search @ product)
        x = x + step * search
        residual = residual - step * product
        previous, squared_residual = squared_residual, residual @ residual
        search = residual + (squared_residual / previous) * search
    return x
