"""The frozen teacher of an ART run: loaded with its weights, or its shape alone for a plan."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import Scorer
from jaxretr.data.corpus import Corpus
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokens import load_tokenizer, vocabulary_size
from jaxretr.models.any_scorer import Scorer as LoadedScorer
from jaxretr.models.any_scorer import load_scorer
from jaxretr.models.backbones.layers import Params
from jaxretr.models.encode import note_cut
from jaxretr.models.hub.model_shapes import holds_t5, scorer_shape
from jaxretr.models.hub.name_table import Place
from jaxretr.models.question_scorer import passage_length
from jaxretr.models.scorers.cross_encoder import HEAD
from jaxretr.models.scorers.t5_scorer import Prompt
from jaxretr.models.scorers.teachers import T5Teacher, Teacher
from jaxretr.runtime.parallel import sharding
from jaxretr.runtime.parallel.hosts import fingerprint
from jaxretr.runtime.parallel.sharding import dotted
from jaxretr.training.runs.outline import T5_PROMPT


class TeacherShape(NamedTuple):
    """Constants and lengths that a teacher's programs depend on.

    Attributes:
      teacher: constants of the compiled programs.
      passage_length: largest number of ids of a passage in a row of its own.
      question_length: largest number of ids of a question.
      vocabulary: number of entries of the tokenizer's vocabulary.
    """

    teacher: Teacher
    passage_length: int
    question_length: int
    vocabulary: int


def load_teacher(config: Scorer, place: Place | None = None) -> LoadedScorer:
    """Load the teacher with its weights and its tokenizer; raises the errors of `load_scorer`.

    Args:
      place: function that gets each parameter in the form that it has on the devices (`stored`), a T5's as soon as it
        is read; its result is kept instead.
    """
    scorer = load_scorer(
        config.path,
        kind=config.kind,
        max_length=config.max_length,
        max_question_length=config.max_question_length,
        dtype=config.dtype,
        place=place,
    )
    if place is not None and not isinstance(scorer.teacher, T5Teacher):
        params = stored(scorer.teacher, scorer.params, config.dtype)
        scorer.params = jax.tree_util.tree_map_with_path(lambda path, leaf: place(dotted(path), leaf), params)
    return scorer


def scorer_rows(scorer: LoadedScorer, texts: Corpus | Sequence[str], stores: Path, name: str) -> TokenStore:
    """Tokenise passages or questions as a scorer reads them, or open their store where that has been done.

    Args:
      scorer: scorer with the tokenizer, the templates and the lengths.
      texts: the passages, as a corpus, or the questions.
      name: name of a text in the warning of those that are cut.
    """
    if isinstance(texts, Corpus):
        template, length, form = scorer.passage_template, scorer.passage_length, scorer.passage_form
    else:
        template, length, form = scorer.question_template, scorer.question_length, scorer.question_form
    rows = TokenStore.build(stores, texts, scorer.tokenizer, template, length, prompt=form)
    note_cut(rows.truncated, rows.num_rows, name, length)
    return rows


class OnDevices:
    """Puts a model's parameters on the devices one after another, so that a host need not hold all of them."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._prints: list[str] = []

    def __call__(self, name: str, array: np.ndarray) -> jax.Array:
        """Put an array on the devices by `sharding.shardings`, and wait until it is there."""
        leaf = {name: array}
        self._prints.append(fingerprint(leaf))
        return jax.block_until_ready(sharding.put(leaf, self._mesh))[name]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all parameters so far, which tells arrays apart like `hosts.fingerprint`."""
        return json.dumps(sorted(self._prints))


def teacher_shape(config: Scorer) -> TeacherShape:
    """Return the shape of the teacher that `load_teacher` loads; weights are read unless it is a T5.

    Raises:
      UserError: no such folder, and none of the known T5s; or another kind of model.
    """
    if config.kind == "t5" or (config.kind == "auto" and holds_t5(config.path)):
        t5 = scorer_shape(config.path)
        tokenizer = load_tokenizer(config.path) if Path(config.path).expanduser().is_dir() else None
        prompt = T5_PROMPT if tokenizer is None else Prompt.of(tokenizer)
        return TeacherShape(
            T5Teacher(t5, prompt),
            passage_length(prompt, config.max_length),
            config.max_question_length,
            t5.vocab_size if tokenizer is None else vocabulary_size(tokenizer),
        )
    scorer = load_teacher(config)
    return TeacherShape(
        scorer.teacher, scorer.passage_length, scorer.question_length, vocabulary_size(scorer.tokenizer)
    )


def stored(teacher: Teacher, params: Params, dtype: str) -> Params:
    """Return a teacher's parameters in the form that they have on the devices.

    All of a T5's are of `dtype`. Of other teachers only kernels and tables are: norms, biases and a cross-encoder's
    head are small, and stay float32, the type that they are computed in.

    Args:
      params: the parameters, float32.
    """

    def one(path: tuple[Any, ...], leaf: Any) -> Any:
        names = [str(key.key) for key in path]
        if not isinstance(teacher, T5Teacher) and (names[0] == HEAD or names[-1] not in ("kernel", "table")):
            return leaf
        return leaf.astype(jnp.dtype(dtype))

    return jax.tree_util.tree_map_with_path(one, params)
