"""The reference process: what every byte and token should be, from code that knows nothing of kvrooms.

It is run as a script by its path and imports torch, transformers and numpy only. From the job it takes values alone
(configuration, seed, prompts, chunk and page sizes); building the model, the chunked prefill, the layout of the bytes
and the generation are written here a second time, on purpose and by another way: K and V are read back from the
finished cache layer after each chunk, where the prefill process catches them on their way in.

Input: one line of JSON on standard input, which then stays open; when it closes, the parent is gone and so is this
process. Output: one line of JSON per request, and per request a file of named byte arrays, `[items, bytes]`.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import os
import sys
import threading
from typing import Any

import numpy as np
import torch
import transformers


def build_model(spec: dict[str, Any]) -> Any:
    """The model that `spec` describes: a local folder, or random weights from a seed with some of them rescaled."""
    if spec["path"]:
        model = transformers.AutoModelForCausalLM.from_pretrained(spec["path"], dtype="auto", local_files_only=True)
        return model.eval()
    settings = {key: value for key, value in spec["config"].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(spec["config"]["model_type"], **settings)
    torch.manual_seed(spec["seed"])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        for rule in spec["scales"]:
            if fnmatch.fnmatchcase(name, rule["pattern"]):
                parameter.data = parameter.data * rule["factor"] + rule["offset"]
    return model.eval()


class Run:
    """One request: the model's own cache, and the K and V of every token collected beside it."""

    def __init__(self, model: Any, spec: dict[str, Any]) -> None:
        self.model = model
        self.spec = spec
        self.cache = transformers.DynamicCache(config=model.config)
        self.keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.collected: dict[tuple[int, str], list[torch.Tensor]] = {}

    def call(self, tokens: list[int]) -> torch.Tensor:
        """One forward call; the logits of the last token."""
        options = {self.keyword: self.cache, "use_cache": True, "logits_to_keep": 1}
        logits: torch.Tensor = self.model(torch.tensor(tokens).reshape(1, -1), **options).logits[0, -1]
        return logits

    def collect(self, count: int) -> None:
        """Take the last `count` tokens' K and V from each attention layer."""
        for index, layer in enumerate(self.cache.layers):
            if isinstance(layer, transformers.cache_utils.DynamicLayer):
                for role, tensor in (("k", layer.keys), ("v", layer.values)):
                    if tensor.shape[2] < count:
                        raise ValueError(f"a chunk of {count} tokens does not fit the window of layer {index}")
                    newest = tensor[0, :, tensor.shape[2] - count :].permute(1, 0, 2)
                    self.collected.setdefault((index, role), []).append(newest.clone())

    def prefill(self, prompt: list[int]) -> tuple[int, float]:
        """Run the prompt by the job's chunks; the first token and its log-probability."""
        logits = None
        for start in range(0, len(prompt), self.spec["chunk"]):
            chunk = prompt[start : start + self.spec["chunk"]]
            pieces = [[token] for token in chunk] if self.spec["stepwise"] and start > 0 else [chunk]
            for piece in pieces:
                logits = self.call(piece)
            self.collect(len(chunk))
        assert logits is not None
        return choose(logits)

    def expected(self, token: int, logprob: float) -> dict[str, np.ndarray[Any, Any]]:
        """Every byte that decode is owed, right after the prefill."""
        size = self.spec["page_size"]
        parts: dict[str, torch.Tensor] = {
            "aux/first_token": torch.tensor([[token]]),
            "aux/logprob": torch.tensor([[logprob]], dtype=torch.float32),
        }
        layers = self.cache.layers
        windows = [layer.sliding_window for layer in layers if getattr(layer, "is_sliding", False)]
        for (index, role), chunks in self.collected.items():
            rows = torch.cat(chunks)
            name, first = "kv", 0
            if getattr(layers[index], "is_sliding", False):
                name, first = "swa", max(0, rows.shape[0] - max(windows) + 1) // size
            pages = -(-rows.shape[0] // size)
            padded = torch.zeros((pages * size, *rows.shape[1:]), dtype=rows.dtype)
            padded[: rows.shape[0]] = rows
            parts[f"{name}/{index}/{role}"] = padded.reshape(pages, size, *rows.shape[1:])[first:]
        for index, layer in enumerate(layers):
            for kind, states in (("conv", "conv_states"), ("recurrent", "recurrent_states")):
                for number, state in getattr(layer, states, {}).items():
                    if state is not None:
                        parts[f"{kind}/{index}/{kind if number == 0 else f'{kind}{number}'}"] = state
        return {
            name: np.frombuffer(bytes(part.clone().contiguous().view(torch.uint8).numpy()), dtype=np.uint8).reshape(
                part.shape[0], -1
            )
            for name, part in parts.items()
        }

    def generate(self, token: int, logprob: float) -> tuple[list[int], list[float]]:
        """Greedy continuation, `token` included."""
        tokens, logprobs = [token], [logprob]
        while len(tokens) < self.spec["new_tokens"] and tokens[-1] not in self.spec["stop"]:
            token, logprob = choose(self.call([tokens[-1]]))
            tokens.append(token)
            logprobs.append(logprob)
        return tokens, logprobs


def choose(logits: torch.Tensor) -> tuple[int, float]:
    """The most likely token and its natural log-probability."""
    token = int(torch.argmax(logits))
    return token, float(logits.float().log_softmax(dim=-1)[token])


def serve(job: dict[str, Any], output: int) -> None:
    """Answer every request of the job on the file descriptor `output`."""
    for spec in job["models"]:
        model = build_model(spec)
        for request in job["requests"]:
            if request["model"] != spec["name"]:
                continue
            run = Run(model, spec)
            with torch.inference_mode():
                first, logprob = run.prefill(request["prompt"])
                path = os.path.join(job["folder"], f"{request['id']}.reference.npz")  # noqa: PTH118
                with open(path, "wb") as file:  # noqa: PTH123
                    np.savez(file, **run.expected(first, logprob))  # type: ignore[arg-type]
                tokens, logprobs = run.generate(first, logprob)
            foreign = sorted(name for name in sys.modules if name.partition(".")[0] == "kvrooms")
            answer = {
                "event": "reference",
                "request": request["id"],
                "tokens": tokens,
                "logprobs": logprobs,
                "foreign": foreign,
            }
            os.write(output, json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Read the job, answer it, leave."""
    output = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    torch.set_num_threads(1)
    job = json.loads(sys.stdin.readline())

    def follow_parent() -> None:
        while os.read(0, 4096):
            pass
        os._exit(3)

    threading.Thread(target=follow_parent, daemon=True).start()
    serve(job, output)


if __name__ == "__main__":
    main()
