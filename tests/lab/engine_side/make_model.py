"""Makes the tiny model the lab serves: a random Llama of 6 million weights and a tokenizer of its own.

Runs under the lab's engine environment: `python make_model.py FOLDER`. Only the configuration is written;
the engine draws the weights itself (`--load-format dummy`), and what the model says does not matter here.
The tokenizer is trained on text that a seeded generator makes up, so nothing is downloaded.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

VOCABULARY = 4096
SPECIAL = ["<s>", "</s>", "<unk>"]
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "il", "on")]
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{m['role']}}>{{m['content']}}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def sentences(count: int, seed: int) -> Iterator[str]:
    """Made-up prose whose words are drawn as unevenly as in real text, so that merges are worth learning."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(6000)]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    for _ in range(count):
        picked = draw.choices(words, weights, k=draw.randint(5, 15))
        yield " ".join(picked).capitalize() + "."


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(sentences(8000, seed=1), trainer)
    bos, eos, unknown = SPECIAL
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=bos, eos_token=eos, unk_token=unknown)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def configuration() -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
    )


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    made.save_pretrained(folder)
    configuration().save_pretrained(folder)
    print(f"model in {folder}: vocabulary {len(made)}")


if __name__ == "__main__":
    main()
