"""Running a model: chunks of a prompt, and greedy generation.

A hybrid's prompt is fed chunk by chunk with one peculiarity. The CPU implementation of Mamba's scan in transformers
starts from an all-zero recurrent state whenever it is given more than one token, so a second chunk in one call would
forget the first. Only its one-token path continues a state. Therefore the tokens of every chunk but the first are fed
one at a time (`stepwise`). The result equals a whole prefill up to rounding, but not bit by bit, which is why the
reference follows the same chunks.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch


def forward(model: Any, cache: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Feed `tokens` behind what `cache` holds, in one call; the last token's logits, `[vocabulary]`."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    output = model(torch.tensor([list(tokens)]), use_cache=True, logits_to_keep=1, **{name: cache})
    logits: torch.Tensor = output.logits[0, -1]
    return logits


def feed(model: Any, cache: Any, tokens: Sequence[int], *, stepwise: bool) -> torch.Tensor:
    """Feed one chunk of a prompt; the last token's logits, `[vocabulary]`."""
    if not stepwise:
        return forward(model, cache, tokens)
    logits = forward(model, cache, tokens[:1])
    for token in tokens[1:]:
        logits = forward(model, cache, [token])
    return logits


def pick(logits: torch.Tensor) -> tuple[int, float]:
    """The most likely token and its natural log-probability."""
    token = int(logits.argmax())
    return token, float(torch.log_softmax(logits.float(), dim=-1)[token])


def greedy(
    model: Any, cache: Any, first: int, logprob: float, count: int, stop: Sequence[int] = ()
) -> tuple[list[int], list[float]]:
    """Up to `count` tokens and their log-probabilities, `first` (already chosen) included; ends after a `stop` token.

    A token outside the vocabulary ends the generation: a damaged first token must not raise.
    """
    tokens, logprobs = [first], [logprob]
    size = model.get_input_embeddings().weight.shape[0]
    while len(tokens) < count and tokens[-1] not in stop and 0 <= tokens[-1] < size:
        token, value = pick(forward(model, cache, tokens[-1:]))
        tokens.append(token)
        logprobs.append(value)
    return tokens, logprobs
