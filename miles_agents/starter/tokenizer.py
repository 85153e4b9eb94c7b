"""The starter model's tokenizer: byte-level BPE trained on generated text, in about a second."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from miles_agents.chat.starter import CONTROL_TOKENS, END_OF_TURN, PAD_TOKEN, starter_chat_template
from miles_agents.envs.python_math.problems import Problem
from miles_agents.starter.shape import SHAPE
from miles_agents.starter.traces import corpus_texts

_PROBLEMS = 4000


def train_tokenizer(problems: Iterable[Problem], *, seed: int) -> Tokenizer:
    """Train the tokenizer on the texts of the first 4,000 problems.

    Digits are single tokens, so that numbers of any length are read alike; nothing else is split beforehand, so
    that whole phrases of the few templates become single tokens and episodes stay short.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = corpus_texts(random.Random(seed), islice(iter(problems), _PROBLEMS))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files `transformers.AutoTokenizer` and `ChatFormat` read."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": PAD_TOKEN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": SHAPE["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(starter_chat_template(), encoding="utf-8")
