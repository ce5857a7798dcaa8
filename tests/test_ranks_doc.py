"""What docs/ranks.md says to callers: its example, chunks that end inside a page, and instances that nobody named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kvrooms import Buffer, DecodeEngine, InvalidArgument, Memory, PrefillEngine, Status
from kvrooms.protocol.failure import Reason

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(60)]
PAGE = 16


def side() -> tuple[np.ndarray, Memory]:
    kv = np.zeros((8, PAGE, 4), np.uint8)
    return kv, Memory(PAGE, [Buffer(0, "kv", kv)])


def test_the_example_runs() -> None:
    text = (Path(__file__).parent.parent / "docs" / "ranks.md").read_text(encoding="utf-8")
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "import torch" in code]
    exec(compile(code, "docs/ranks.md", "exec"), {})


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 24])
def test_a_page_is_kept_back_until_a_chunk_has_filled_it(chunk: int) -> None:
    """A prompt of 40 tokens, computed in chunks: only whole pages are sent, and the last page as it is."""
    tokens, pages = 40, [5, 2, 7]
    (kv, sends), (landed, receives) = side(), side()
    with PrefillEngine(sends, name="p") as prefill, DecodeEngine(receives, name="d") as decode:
        room, sender = decode.open(1, bootstrap=prefill.bootstrap, pages=[1, 3, 4]), prefill.open(1, pages=3)
        sent = 0
        for first in range(0, tokens, chunk):
            done = min(first + chunk, tokens)
            for token in range(first, done):
                kv[pages[token // PAGE], token % PAGE] = token + 1
            whole = len(pages) if done == tokens else done // PAGE
            sender.send(pages[sent:whole])
            sent = whole
        assert room.wait(30) is Status.DONE, room.failure
    assert landed[[1, 3, 4]].reshape(-1, 4)[:, 0].tolist() == [*range(1, tokens + 1), *[0] * 8]


def test_a_page_that_was_sent_too_early_cannot_be_sent_again() -> None:
    _, sends = side()
    with PrefillEngine(sends, name="p") as prefill, prefill.open(1, pages=3) as sender:
        sender.send([5, 2])  # 24 tokens: page 2 is half full
        with pytest.raises(InvalidArgument):
            sender.send([2, 7])


def test_a_room_for_one_of_several_instances_fails_in_the_registrys_words() -> None:
    (_, one), (_, other), (_, receives) = side(), side(), side()
    with (
        PrefillEngine(one, name="p") as prefill,
        PrefillEngine(other, name="q", registry=prefill.bootstrap),
        DecodeEngine(receives, name="d") as decode,
        decode.open(1, bootstrap=prefill.bootstrap, pages=[3], bootstrap_timeout_s=1) as room,
    ):
        assert room.wait(30) is Status.FAILED
        assert room.failure.reason is Reason.DEADLINE_BOOTSTRAP
        assert "2 instances are registered; name one of: p, q" in room.failure.detail
