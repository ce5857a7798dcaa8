"""The models that the demo runs: three small ones with random weights, or a local folder.

The weights are random but not arbitrary. With the libraries' default spread (0.02) the last token alone decides what
comes next, and a wrong cache goes unnoticed. The spread used here lets attention and the recurrent state speak about
as loud as the token itself: then every control of `kvrooms.demo.controls` changes the generated tokens.
"""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .jobs import Kind, ModelJob, RequestJob, Scale

PAGE_SIZE = 16
CHUNK = 24  # not a multiple of the page: chunks end inside a page
NEW_TOKENS = 32
VOCABULARY = 512
SEED = 20
KINDS: tuple[Kind, ...] = ("dense", "sliding", "hybrid")
_LENGTHS = (93, 37, 131, 61, 18, 110)  # tokens; none ends on a page's edge

_TEXT = (
    "A room carries the cache of one prompt from the process that read the prompt to the process that writes the "
    "answer. Both sides derive what is owed from one manifest, so neither waits for bytes that the other never sends. "
    "When the last page, the state and the first token have landed, the room is done and the answer can begin."
)

_COMMON: dict[str, int | float | str | bool] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "initializer_range": 0.16,
    "tie_word_embeddings": False,
}
_CONFIGS: dict[Kind, dict[str, int | float | str | bool]] = {
    "dense": {"model_type": "qwen3", "head_dim": 16},
    "sliding": {"model_type": "mistral", "head_dim": 16, "sliding_window": 48},
    "hybrid": {
        "model_type": "jamba",
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
}
# Jamba's default decay halves a state every token: a lower A remembers more of the prompt.
_SCALES: dict[Kind, list[Scale]] = {
    "dense": [],
    "sliding": [],
    "hybrid": [
        Scale(pattern="*.mamba.A_log", offset=-2.0),
        Scale(pattern="*.self_attn.o_proj.weight", factor=4.0),
    ],
}
_NAMES: dict[Kind, str] = {"dense": "Qwen3", "sliding": "Mistral", "hybrid": "Jamba"}


def builtin(kind: Kind, seed: int = SEED) -> ModelJob:
    """The demo's own small model of `kind`, with random weights from `seed`."""
    return ModelJob(
        name=_NAMES[kind],
        kind=kind,
        page_size=PAGE_SIZE,
        chunk=CHUNK,
        new_tokens=NEW_TOKENS,
        config={**_COMMON, **_CONFIGS[kind]},
        scales=_SCALES[kind],
        seed=seed,
        stepwise=kind == "hybrid",
    )


def local(path: Path) -> ModelJob:
    """The model in the local folder `path`, described from its configuration alone (no weights are read).

    Raises ValueError if the folder holds no causal language model whose cache the demo can carry.
    """
    from transformers import AutoConfig

    from .layout import describe

    if not (path / "config.json").is_file():
        raise ValueError(f"{path} is neither one of {', '.join(KINDS)} nor a folder with a config.json")
    config = AutoConfig.from_pretrained(str(path), local_files_only=True)
    kind, window = describe(config)
    chunk = 64 if window is None else min(64, window - 1)
    end = getattr(config, "eos_token_id", None)
    stop = [] if end is None else [int(token) for token in (end if isinstance(end, list) else [end])]
    return ModelJob(
        name=path.resolve().name,
        kind=kind,
        page_size=PAGE_SIZE,
        chunk=chunk,
        new_tokens=NEW_TOKENS,
        path=str(path.resolve()),
        stepwise=kind == "hybrid",
        stop=stop,
        strict=False,
    )


def build(job: ModelJob) -> Any:
    """The transformers model of `job`, on the CPU, ready to run. Nothing is downloaded."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if job.path:
        return AutoModelForCausalLM.from_pretrained(job.path, dtype="auto", local_files_only=True).eval()
    fields = dict(job.config)
    config = AutoConfig.for_model(str(fields.pop("model_type")), **fields)
    torch.manual_seed(job.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            for scale in job.scales:
                if fnmatch.fnmatchcase(name, scale.pattern):
                    weight.mul_(scale.factor).add_(scale.offset)
    return model


def prepared_prompts(job: ModelJob, count: int) -> list[list[int]]:
    """`count` prompts of different lengths, the same in every run: random tokens, or text for a local folder."""
    prompts = []
    if job.path:
        return [tokenize(job, _TEXT[: len(_TEXT) - 50 * (index % 5)]) for index in range(count)]
    for index in range(count):
        round_, at = divmod(index, len(_LENGTHS))
        draw = random.Random(f"{job.kind}/{index}")  # noqa: S311 - a repeatable prompt, no secret
        prompts.append([draw.randrange(VOCABULARY) for _ in range(_LENGTHS[at] + 7 * round_)])
    return prompts


def tokenize(job: ModelJob, text: str) -> list[int]:
    """Token ids of `text`: by the folder's tokenizer if it has one, else the UTF-8 bytes modulo the vocabulary.

    Raises ValueError if nothing is left to prefill.
    """
    tokens: list[int] = []
    if job.path:
        from transformers import AutoConfig, AutoTokenizer

        if _has_tokenizer(job.path):
            tokens = list(AutoTokenizer.from_pretrained(job.path, local_files_only=True)(text)["input_ids"])
        else:
            size = AutoConfig.from_pretrained(job.path, local_files_only=True).get_text_config(decoder=True).vocab_size
            tokens = [byte % size for byte in text.encode()]
    else:
        tokens = [byte % int(job.config["vocab_size"]) for byte in text.encode()]
    if not tokens:
        raise ValueError("the prompt is empty")
    return tokens


def detokenizer(job: ModelJob) -> Callable[[list[int]], str] | None:
    """A function from token ids to text, or None if the model has no tokenizer."""
    if not job.path or not _has_tokenizer(job.path):
        return None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job.path, local_files_only=True)
    return lambda tokens: str(tokenizer.decode(tokens))


def requests(model: ModelJob, prompts: list[list[int]], first_room: int) -> list[RequestJob]:
    """One request per prompt, rooms numbered from `first_room`."""
    return [
        RequestJob(id=f"{model.kind}-{index}", model=model.name, room=first_room + index, prompt=prompt)
        for index, prompt in enumerate(prompts)
    ]


def _has_tokenizer(folder: str) -> bool:
    return any((Path(folder) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
