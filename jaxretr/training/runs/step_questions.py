"""The questions of a training step as token ids: as they are written, and misspelt where the config asks for it.

Typos are made on the host: a fresh one for each (seed, step, question), or, with `typos.pre_drawn`, one of those that
were made and tokenised before the first step.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxretr.config import Typos
from jaxretr.data.prompts import Prompt, times
from jaxretr.data.tokens import question_rows
from jaxretr.data.typos import TypoGenerator
from jaxretr.runtime.streams import HostStream, host_generator
from jaxretr.training.runs.corpus_tokens import width_of
from jaxretr.training.runs.encoder_start import ModelShape
from jaxretr.training.runs.outline import token_shapes
from jaxretr.training.runs.whole_corpus import Model, token_store, typo_generator
from jaxretr.training.state import TokenRows

# The generator's `variant`: 0 is the question that is itself read misspelt, the other forms count from 1.
_AUGMENTED = 0


class StepQuestions:
    """A run's questions.

    Attributes:
      width: number of columns of the token ids.
    """

    def __init__(
        self, texts: Sequence[str], typos: Typos, model: Model, stores: Path, seed: int, prompt: Prompt | None = None
    ):
        """Tokenise the questions, or open the store where that has been done.

        Args:
          typos: typos that a step reads, if any.
          model: model with the tokenizer and the maximum length of questions.
          stores: folder of the token stores.
          prompt: the questions' prompt in place of the model's.
        """
        self.texts, self.typos, self.model, self.seed = texts, typos, model, seed
        self.prompt: Prompt = model.config.query_prompt if prompt is None else prompt
        self.store = token_store(model, texts, stores, self.prompt, name="training question")
        self.width = width_of(self.store)
        if not typos.active:
            return
        # A typo may take more tokens than the longest question has: one width for all that can come.
        self.width = -(-model.config.max_question_length // 8) * 8
        self.generator = typo_generator(typos, seed)
        self.drawn = None
        if typos.pre_drawn:
            drawn = _PreDrawn(texts, self.generator, typos.pre_drawn)
            self.drawn = token_store(model, drawn, stores, times(self.prompt, typos.pre_drawn))

    def of_step(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray, tuple[Any, Any] | None]:
        """Return the questions of a step.

        Args:
          chosen: numbers of B questions.
          step: number of the training step; the typos depend on (seed, step, question).

        Returns:
          tokens [B, L], lengths int32 [B], and the misspelt forms' tokens [B, V, L] and lengths [B, V], or None without
          forms.
        """
        tokens, lengths = self.store.select(chosen, self.width)
        typos, b = self.typos, len(chosen)
        if not typos.active:
            return tokens, lengths, None
        rng = host_generator(self.seed, HostStream.MISSPELT_QUESTIONS, step)
        misspelt = rng.random(b) < typos.augmentation
        # Places among the pre-drawn forms, in an order of this step: the forms take the first, augmentation the last.
        places = np.argsort(rng.random((b, typos.pre_drawn)), axis=1)
        if misspelt.any():
            tokens[misspelt], lengths[misspelt] = self._typos(chosen[misspelt], step, _AUGMENTED, places[misspelt, -1:])
        if not typos.forms:
            return tokens, lengths, None
        made = [self._typos(chosen, step, 1 + v, places[:, v : v + 1]) for v in range(typos.forms)]
        of_forms = tuple(np.stack(parts, axis=1) for parts in zip(*made, strict=True))
        return tokens, lengths, (of_forms[0], of_forms[1])

    def _typos(self, chosen: np.ndarray, step: int, variant: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return one typo of n questions each, tokens [n, L] and lengths [n]; `places` [n, 1] of pre-drawn ones."""
        if self.drawn is not None:
            return self.drawn.select(places[:, 0] * len(self.texts) + chosen, self.width)
        texts = [self.texts[int(i)] for i in chosen]
        misspelt = self.generator.texts(texts, step, chosen.tolist(), variant)
        prompt = self.prompt if isinstance(self.prompt, str) else [self.prompt.of(int(i)) for i in chosen]
        rows = question_rows(self.model.tokenizer, misspelt, self.model.config.max_question_length, prompt).ids
        lengths = np.array([len(row) for row in rows], np.int32)
        tokens = np.zeros((len(rows), self.width), self.store.dtype)
        tokens[np.arange(self.width) < lengths[:, None]] = np.concatenate(rows)
        return tokens, lengths


class _PreDrawn(Sequence[str]):
    """All draws of all questions, one draw after the other; created when they are read, and the same every time."""

    def __init__(self, texts: Sequence[str], generator: TypoGenerator, draws: int):
        self.texts, self.generator, self.draws = texts, generator, draws

    def __len__(self) -> int:
        return self.draws * len(self.texts)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        draw, row = divmod(int(place), len(self.texts))
        return self.generator.texts([self.texts[row]], draw, [row], 1)[0]


def question_shapes(model: ModelShape, mesh: Mesh, b: int, typos: Typos) -> tuple[TokenRows, TokenRows | None]:
    """Return the shapes of a step's B questions, and of their misspelt forms if a term reads any."""
    longest = model.config.max_question_length
    forms = token_shapes(mesh, model.ids, longest, b, typos.forms) if typos.forms else None
    return token_shapes(mesh, model.ids, longest, b), forms
