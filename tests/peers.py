"""Libraries that tests compare with, imported when a test first uses them: torch and its friends take seconds."""

from typing import Any

import pytest


class Peer:
    """Stands for a module; a test that uses it is skipped with a reason if the module is not installed."""

    def __init__(self, name: str, reason: str):
        self._name, self._reason = name, reason

    def __getattr__(self, attribute: str) -> Any:
        return getattr(pytest.importorskip(self._name, reason=self._reason), attribute)


torch: Any = Peer("torch", "compared with PyTorch: pip install torch")
transformers: Any = Peer("transformers", "compared with transformers: pip install transformers")
sentence_transformers: Any = Peer("sentence_transformers", "pip install sentence-transformers")
mteb: Any = Peer("mteb", "pip install mteb")
datasets: Any = Peer("datasets", "pip install datasets")
ir_measures: Any = Peer("ir_measures", "pip install ir_measures")
pytrec_eval: Any = Peer("pytrec_eval", "pip install pytrec-eval-terrier")
