"""Libraries that tests compare with, imported when a test first uses them: torch and its friends take seconds."""

from typing import Any

import pytest


class Peer:
    """Stands for a module; a test that uses it is skipped with a reason if the module is not installed.

    Args:
      name: of the module.
      reason: for which tests are skipped without it.
      not_in_all: how the names begin that not every release of it has; without them tests are skipped too.
    """

    def __init__(self, name: str, reason: str, not_in_all: tuple[str, ...] = ()):
        self._name, self._reason, self._not_in_all = name, reason, not_in_all

    def __getattr__(self, attribute: str) -> Any:
        module = pytest.importorskip(self._name, reason=self._reason)
        if attribute.startswith(self._not_in_all) and not hasattr(module, attribute):
            pytest.skip(f"{self._name} {module.__version__} has no {attribute}")
        return getattr(module, attribute)


torch: Any = Peer("torch", "compared with PyTorch: pip install torch")
transformers: Any = Peer("transformers", "compared with transformers: pip install transformers", ("Gte",))
sentence_transformers: Any = Peer("sentence_transformers", "pip install sentence-transformers")
mteb: Any = Peer("mteb", "pip install mteb")
datasets: Any = Peer("datasets", "pip install datasets")
ir_measures: Any = Peer("ir_measures", "pip install ir_measures")
pytrec_eval: Any = Peer("pytrec_eval", "pip install pytrec-eval-terrier")
