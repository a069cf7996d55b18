"""Cross-encoders and causal language models give the scores of transformers and sentence-transformers."""

import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_models import GENERATORS, KINDS, LM_VOCABULARY, PAIRS, make_model, random_lm

import jaxretr
from jaxretr.data.corpus import Passage
from jaxretr.data.tokens import bare_question
from jaxretr.models.any_scorer import load_scorer
from jaxretr.models.engine_choice import ENGINE_VARIABLE
from jaxretr.models.hub.cross_encoder_folder import read_causal_lm
from jaxretr.models.pair_scorer import _score_marked
from jaxretr.models.scorers.cross_encoder import _without_padding
from jaxretr.models.scorers.pair_frame import PairFrame, unmarked
from jaxretr.models.scorers.shared_passages import SharingEngine
from jaxretr.models.scorers.teachers import PairTeacher
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.programs import programs

torch = pytest.importorskip("torch", reason="the reference needs torch: see requirements-torch.txt")

QUESTIONS = [question for question, _ in PAIRS]
PASSAGES = [{"title": "", "text": passage} for _, passage in PAIRS]

# Of logits of random models, of the order of 1.
ROUNDING = 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_sentence_transformers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In padded rows, and for some of the kinds in packed ones."""
    from sentence_transformers import CrossEncoder

    folder = make_model(kind, tmp_path)
    reference = CrossEncoder(str(folder), device="cpu", max_length=64, activation_fn=torch.nn.Identity())
    wanted = np.asarray(reference.predict(list(PAIRS), batch_size=4))
    ours = jaxretr.CrossEncoder.from_pretrained(folder, max_length=64)
    np.testing.assert_allclose(ours.score(QUESTIONS, PASSAGES), wanted, atol=ROUNDING)
    assert np.ptp(wanted) > 100 * ROUNDING  # The pairs differ.
    if kind in ("bert", "mpnet", "modernbert, mean", "qwen3"):
        monkeypatch.setenv(ENGINE_VARIABLE, "packed")
        packed = jaxretr.CrossEncoder.from_pretrained(folder, max_length=64)
        np.testing.assert_allclose(packed.score(QUESTIONS, PASSAGES), wanted, atol=ROUNDING)


def test_one_program_scores_packed_pairs_of_every_length(
    tiny_cross_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their types travel with them, neighbours do not matter, and a padding token at a pair's end is not its last token."""
    rng = np.random.default_rng(0)
    words = ["who", "founded", "the", "city", "of", "rome", "?"]
    texts = [" ".join(rng.choice(words, length)) for length in rng.integers(1, 24, 1500)]
    questions, passages = texts[:750], [{"text": text} for text in texts[750:]]
    expected = jaxretr.CrossEncoder.from_pretrained(tiny_cross_encoder).score(questions, passages)
    monkeypatch.setenv(ENGINE_VARIABLE, "packed")
    scorer = jaxretr.CrossEncoder.from_pretrained(tiny_cross_encoder)
    before = programs()
    np.testing.assert_allclose(scorer.score(questions, passages), expected, rtol=0, atol=ROUNDING)
    news = programs() - before
    assert news.compiled + news.cached <= 2
    order = rng.permutation(750)
    shuffled = scorer.score([questions[place] for place in order], [passages[place] for place in order])
    np.testing.assert_allclose(shuffled, expected[order], rtol=0, atol=ROUNDING)
    assert scorer.config.backbone.type_vocab_size == 2  # pyright: ignore


def test_a_pair_ends_at_its_last_token_that_is_no_padding() -> None:
    """In padded rows [2, 5], and packed into one."""
    tokens, lengths = jnp.array([[3, 4, 0, 0, 9], [0, 5, 6, 9, 9]]), jnp.array([4, 3])
    packed = jnp.array([[3, 4, 0, 0, 0, 5, 6, 9, 9]])
    np.testing.assert_array_equal(_without_padding(tokens, lengths, 0), [2, 3])
    np.testing.assert_array_equal(_without_padding(packed, lengths[None], 0), [[2, 3]])
    np.testing.assert_array_equal(unmarked(packed, lengths[None], 5)[1], packed >= 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_loses_nothing(kind: str, tmp_path: Path) -> None:
    scorer = jaxretr.CrossEncoder.from_pretrained(make_model(kind, tmp_path / "model"), max_length=64)
    scorer.save(tmp_path / "saved")
    again = jaxretr.CrossEncoder.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(again.score(QUESTIONS, PASSAGES), scorer.score(QUESTIONS, PASSAGES))
    assert again.fingerprint() == scorer.fingerprint()


def test_sentence_transformers_reads_what_is_saved(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    for kind in ("bert", "modernbert"):
        scorer = jaxretr.CrossEncoder.from_pretrained(make_model(kind, tmp_path / kind / "model"), max_length=64)
        scorer.save(tmp_path / kind / "saved")
        theirs = CrossEncoder(str(tmp_path / kind / "saved"), device="cpu").predict(list(PAIRS))
        np.testing.assert_allclose(scorer.score(QUESTIONS, PASSAGES), theirs, atol=ROUNDING)


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_models_likelihood_equals_transformers(tied: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_model("qwen3_lm", tmp_path, tied=tied)
    ours = jaxretr.CausalScorer.from_pretrained(folder, max_length=80, max_question_length=16)
    scores = ours.score(QUESTIONS, PASSAGES)
    reference = AutoModelForCausalLM.from_pretrained(folder).eval()
    rows, seconds, _ = ours.rows(QUESTIONS, PASSAGES)
    wanted = []
    for row, second in zip(rows, seconds, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([row])).logits[0].log_softmax(-1)
        wanted.append(np.mean([float(logits[at - 1, row[at]]) for at in range(second, len(row))]))
    np.testing.assert_allclose(scores, wanted, atol=ROUNDING)
    # An empty question has no token: on the host, and in rows that a step takes apart.
    assert ours.score([""], PASSAGES[:1]).tolist() == [0.0]
    assert bare_question(ours.tokenizer, [""], ours.question_length, ours.question_form).ids == [[]]


@pytest.mark.parametrize("case", [name for name in GENERATORS if name != "t5"])
def test_a_passage_is_read_once_for_all_of_its_questions(case: str, tmp_path: Path) -> None:
    """With transformers' likelihoods: of passages with few questions and with more than a device takes at once."""
    reference = random_lm(case).eval()
    reference.save_pretrained(tmp_path)
    config, params = read_causal_lm(tmp_path, 8)
    draws = np.random.default_rng(5)
    passages = [draws.integers(3, LM_VOCABULARY, length).tolist() for length in (57, 45, 60, 52, 60)]
    asked = [0] * 400 + [1] + [2] * 3 + [3] * 2 + [4] * 4
    texts = [draws.integers(3, LM_VOCABULARY, length).tolist() for length in draws.integers(0, 9, len(asked))]
    rows = [[*passages[one], *(id + LM_VOCABULARY for id in text)] for one, text in zip(asked, texts, strict=True)]
    teacher = PairTeacher(config, PairFrame((), (), (), 70, order="passage_first", cut="passage"))
    engine = SharingEngine(config, _score_marked(teacher, "float32"), params, "float32")

    def scores(rows: list[list[int]]) -> np.ndarray:
        return engine.encode(lambda start, stop: (rows[start:stop], 0), len(rows), 1, max_length=70)[0][:, 0]

    wanted = []
    for one, text in zip(asked, texts, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([passages[one] + text])).logits[0].log_softmax(-1)
        at = len(passages[one]) - 1
        wanted.append(np.mean([float(logits[at + n, id]) for n, id in enumerate(text)] or [0.0]))
    np.testing.assert_allclose(scores(rows), wanted, atol=1e-4)
    shapes = {shapes for _, shapes in engine._compiled}
    assert {len(of_one) for of_one in shapes} == {5}, "all of them shared"
    few = [399, 400, 401, 404]
    np.testing.assert_allclose(scores([rows[number] for number in few]), np.array(wanted)[few], atol=1e-4)
    assert {len(of_one) for _, of_one in engine._compiled} == {2, 5}, "each of another passage"


def test_a_language_model_of_few_positions_reads_rows_as_long_as_they(tmp_path: Path) -> None:
    folder = make_model("qwen3_lm", tmp_path)
    assert load_scorer(folder).texts.frame.max_length == 128, "its positions, and not 512"
    with pytest.raises(UserError, match="128 positions"):
        load_scorer(folder, max_length=129)


@pytest.mark.parametrize("cut", ["longest", "passage"])
@pytest.mark.parametrize("order", ["question_first", "passage_first"])
def test_rows_are_the_same_on_the_host_and_in_a_program(cut: str, order: str) -> None:
    frame = PairFrame((1,), (2, 3), (4,), 16, order=order, cut=cut)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    lengths = [(q, p) for q in (0, 1, 5, 6, 7, 13) for p in (0, 1, 5, 6, 7, 20)]
    questions = [rng.integers(10, 99, q).tolist() for q, _ in lengths]
    passages = [rng.integers(10, 99, p).tolist() for _, p in lengths]
    rows, seconds, _ = frame.rows(questions, passages)

    def padded(rows: list[list[int]], width: int) -> tuple[jax.Array, jax.Array]:
        return jnp.array([[*row, *[0] * (width - len(row))] for row in rows]), jnp.array([len(row) for row in rows])

    tokens, found, starts = jax.jit(frame.splice)(*padded(questions, 13), *padded(passages, 20))
    np.testing.assert_array_equal(starts, seconds)
    np.testing.assert_array_equal(found, [len(row) for row in rows])
    np.testing.assert_array_equal(tokens, padded(rows, 16)[0])


def test_long_pairs_are_cut_as_tokenizers_cut_them(tmp_path: Path) -> None:
    ours = jaxretr.CrossEncoder.from_pretrained(make_model("bert", tmp_path), max_length=17)
    words = "who what red sea moon of the in a is"
    for q in range(0, 21, 3):
        for p in range(1, 25, 2):
            pair = (" ".join((words.split() * 3)[:q]), " ".join((words.split() * 3)[:p]))
            (row,), (second,), _ = ours.rows([pair[0]], [{"text": pair[1]}])
            theirs = ours.tokenizer(*pair, truncation="longest_first", max_length=17)
            assert row == theirs["input_ids"], (q, p)
            assert [int(at >= second) for at in range(len(row))] == theirs["token_type_ids"], (q, p)


def test_an_adapter_beside_a_scorer_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_model("bert", tmp_path)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    jaxretr.CrossEncoder.from_pretrained(folder)
    assert "holds an adapter too, which is not applied" in caplog.text


@pytest.mark.parametrize("kind", ["t5", "qwen3_lm"])
def test_a_run_directory_is_that_of_its_model(kind: str, tiny_models: Path, tmp_path: Path) -> None:
    """The run's own config.json is no model's."""
    folder = tiny_models / "scorer" if kind == "t5" else make_model("qwen3_lm", tmp_path / "hub")
    shutil.copytree(folder, tmp_path / "run/model")
    (tmp_path / "run/config.json").write_text('{"kind": "passage_lm"}')
    scorer, plain = (load_scorer(place, max_length=64) for place in (tmp_path / "run", folder))
    assert scorer.fingerprint() == plain.fingerprint()


def test_another_number_of_scores_is_refused(tmp_path: Path) -> None:
    folder = make_model("bert", tmp_path, labels=3)
    with pytest.raises(UserError, match=r"3 scores.*num_labels 1"):
        jaxretr.CrossEncoder.from_pretrained(folder)
    encoder = Path(jaxretr.__file__).parent / "assets" / "encoder_small"
    with pytest.raises(UserError, match="no cross-encoder; give"):
        jaxretr.CrossEncoder.from_pretrained(encoder)
    jaxretr.DualEncoder.from_pretrained(encoder).save(tmp_path / "ours")
    for folder, found in ((encoder, "BertForMaskedLM"), (tmp_path / "ours", "a dual encoder of jaxretr")):
        with pytest.raises(UserError, match=rf"is {found}.*ForSequenceClassification.*ForCausalLM.*T5"):
            load_scorer(folder)


def test_several_devices_share_the_pairs_and_agree(tmp_path: Path) -> None:
    assert jax.local_device_count() > 1
    scorer = jaxretr.CrossEncoder.from_pretrained(make_model("bert", tmp_path), max_length=64)
    whole = scorer.score(QUESTIONS, PASSAGES)
    apart = [scorer.score([q], [p])[0] for q, p in zip(QUESTIONS, PASSAGES, strict=True)]
    np.testing.assert_allclose(whole, apart, atol=ROUNDING)
    assert dataclasses.replace(scorer.texts.frame, max_length=8).room == 5


@pytest.mark.parametrize("kind", ["cross_encoder", "t5"])
def test_scorers_take_passages_as_encoders_do(tiny_models: Path, tiny_cross_encoder: Path, kind: str) -> None:
    scorer = load_scorer(tiny_cross_encoder if kind == "cross_encoder" else tiny_models / "scorer")
    text = "It was written by her."
    given = [text, {"text": text}, {"title": None, "text": text}, Passage("p", "", text)]
    expected = scorer.score(["who wrote it"] * 4, [{"title": "", "text": text}] * 4)
    np.testing.assert_array_equal(scorer.score(["who wrote it"] * 4, given), expected)
    for questions, passages, message in (
        (["who"], [{"title": "a", "txt": "b"}], r"passages\[0\]: has no 'text'; did you mean 'txt'"),
        (["who", None], ["a", "b"], r"questions\[1\]: a text is expected, not NoneType"),
        ("who", ["a", "b", "c"], "questions: a list is expected, not str"),
        (["who"], {"a"}, "passages: a set has no order; give a list"),
        (["who"], ["a", "b"], "1 questions and 2 passages; give one passage a question"),
    ):
        with pytest.raises(UserError, match=message):
            scorer.score(questions, passages)
