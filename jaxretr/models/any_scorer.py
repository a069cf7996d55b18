"""Any model that scores pairs, chosen by the content of its folder."""

from pathlib import Path
from typing import Any, get_args

from jaxretr.config import AutoDtype, ScorerKind
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.encode import chosen_dtype
from jaxretr.models.hub.cross_encoder_folder import is_causal_lm, is_cross_encoder
from jaxretr.models.hub.dual_encoder_folder import model_folder
from jaxretr.models.hub.export_note import NOTE
from jaxretr.models.hub.hf_files import read_json, resolve, stated_architecture
from jaxretr.models.hub.name_table import Place
from jaxretr.models.pair_scorer import CausalScorer, CrossEncoder
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.models.scorers.pair_texts import has_pair_template
from jaxretr.runtime.errors import UsageError, UserError, did_you_mean

Scorer = QuestionScorer | CrossEncoder | CausalScorer


def scorer_kind(path_or_name: str | Path) -> ScorerKind | None:
    """Return the kind of scorer that a folder holds; None: an encoder, which gives vectors and no score.

    A decoder is a causal language model, unless its folder says that it answers with a token: by a chat template for
    the roles query and document, or by sentence-transformers' module LogitScore.
    """
    folder, content, stated = _stated(path_or_name)
    if is_cross_encoder(content, str(folder)):
        return "cross_encoder"
    if is_causal_lm(content, str(folder)):
        answers = any(folder.glob("*_LogitScore")) or has_pair_template(load_tokenizer(folder))
        return "cross_encoder" if answers else "causal_lm"
    return "t5" if "t5" in stated.lower() else None


def holds_cross_encoder(path: str) -> bool:
    """Whether a MODEL has a head already, or is a decoder that answers with a token."""
    if Path(path).expanduser().is_file():
        return False
    folder = model_folder(resolve(path))
    return (folder / "config.json").is_file() and scorer_kind(path) == "cross_encoder"


def _stated(path_or_name: str | Path) -> tuple[Path, dict[str, Any], str]:
    """Return a model's folder, its config.json, and the architecture or type of model that it states."""
    folder = model_folder(resolve(path_or_name))
    ours = (folder / NOTE).exists() and not (folder / "config.json").exists()
    content = {"architectures": ["a dual encoder of jaxretr"]} if ours else read_json(folder, "config.json")
    return folder, content, stated_architecture(content, str(folder)) or f"model_type {content.get('model_type')!r}"


def load_scorer(
    path_or_name: str | Path,
    *,
    kind: ScorerKind = "auto",
    max_length: int | None = None,
    max_question_length: int = 128,
    dtype: AutoDtype = "float32",
    place: Place | None = None,
) -> Scorer:
    """Load a model that scores how well a passage fits a question.

    Args:
      path_or_name: a folder or hub name of a T5 (log p(question | passage)), of a cross-encoder, or of a causal
        language model; or a run directory of one.
      kind: t5: log p(question | passage); causal_lm: the same by a decoder; cross_encoder: also a decoder that answers yes
        or no without saying so in its folder, such as Qwen3-Reranker; auto: what the folder says. See `scorer_kind`.
      max_length: tokens of a question and a passage together; by default a cross-encoder's own limit; 512 for others,
        or a decoder's positions if there are fewer.
      max_question_length: tokens of a question.
      dtype: type of the matmuls' operands; "auto" is the faster one on this machine.
      place: function that takes each parameter of a T5 as soon as it is read (see `QuestionScorer.from_pretrained`).

    Raises:
      UserError: no such folder, or another kind of model.
      UsageError: no such kind.
    """
    if kind not in get_args(ScorerKind):
        raise UsageError(
            f"no kind '{kind}'{did_you_mean(kind, get_args(ScorerKind)) or ''}; give one of {', '.join(get_args(ScorerKind))}"
        )
    if kind == "auto":
        found = scorer_kind(path_or_name)
        if found is None:
            folder, _, stated = _stated(path_or_name)
            raise UserError(
                f"{folder}: is {stated}, which gives no score of a question and a passage; supported are encoders with "
                "a classification head (...ForSequenceClassification), causal language models (...ForCausalLM) and T5 "
                "(T5ForConditionalGeneration); `jaxretr train cross_encoder_small --encoder.path` puts a head on an encoder"
            )
        kind = found
    lengths = {"max_question_length": max_question_length, "dtype": chosen_dtype(dtype)}
    if kind == "cross_encoder":
        return CrossEncoder.from_pretrained(path_or_name, max_length=max_length, **lengths)
    if kind == "t5":
        return QuestionScorer.from_pretrained(path_or_name, max_length=max_length or 512, place=place, **lengths)
    return CausalScorer.from_pretrained(path_or_name, max_length=max_length, **lengths)
