"""Questions scaled by powers of two, which changes no bit of what is computed from them but its exponent.

The smallest denormal numbers and the largest ones are searched alike then, also by XLA, which takes denormal numbers for 0.
"""

import numpy as np


def scaled_questions(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales questions by powers of two.

    Args:
      queries: float32 [B, D].

    Returns:
      float64 [B, D] with the largest number of each question in [0.5, 1), and int32 [B], the exponents of two that
      scale back.
    """
    _, exponents = np.frexp(np.abs(queries).max(axis=1, initial=0).astype(np.float64))
    return np.ldexp(queries.astype(np.float64), -exponents[:, None]), exponents


def unscaled(scores: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Scores [B, k] of scaled questions -> float32 scores of the questions; 0.0 has no sign."""
    with np.errstate(over="ignore"):  # a score that no float32 holds is infinite
        return np.ldexp(scores.astype(np.float64), exponents[:, None]).astype(np.float32) + np.float32(0)
