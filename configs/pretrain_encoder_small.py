"""The small BERT encoder that ships with the package: it learns all-MiniLM-L6-v2's embeddings on a CPU.

Needs wiki_passages, wiki_qa and webquestions in the folder that --data-folder names (default: data), and the teacher:
the hub's, or the folder that --teacher names. Of wiki_qa's questions only the texts of its SQuAD, TyDi and BoolQ
train parts are read: no judgement, no answer, and no question of Natural Questions, which the quickstart and
configs/art_small.py train and test on.
"""

from jaxretr.config import BertShape, EmbeddingDistillationConfig, Optimizer, PretrainData, Train


def config(data_folder: str = "data") -> EmbeddingDistillationConfig:
    return EmbeddingDistillationConfig(
        name="pretrain_encoder_small",
        data=PretrainData(
            corpora=(f"{data_folder}/wiki_qa", f"{data_folder}/wiki_passages"),
            vocab_size=16384,
            max_length=96,
            held_out=1000,
        ),
        teacher_passages=60_000,
        teacher_sentences=250_000,
        teacher="sentence-transformers/all-MiniLM-L6-v2",
        questions=(f"{data_folder}/wiki_qa", f"{data_folder}/webquestions/trainmodel.json"),
        exclude_questions=("nq:",),
        bert=BertShape(hidden_size=256, layers=3, heads=8, intermediate_size=1024),
        dtype="bfloat16",
        optimizer=Optimizer(learning_rate=1e-3, b2=0.98, weight_decay=0.01, warmup=0.03, final=0.0),
        train=Train(steps=3000, batch_size=32, log_every=50, save_every=1000, eval_every=1000, best_metric="loss"),
    )
