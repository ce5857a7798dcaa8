"""One side's host memory, in the buffers that SGLang's KVArgs describe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[np.uint8]


class Memory:
    """The buffers of one side of a `Shape` (as JSON), split as a model's memory pools split them.

    KV pages lie in K and V buffers of one or two layers where the sizes allow it, else in one buffer as MLA has it. An
    aux slot is the suite's bytes and, in a buffer of its own, the room's number: SGLang's metadata buffers hold it too.
    """

    page_size = 16

    def __init__(self, side: str, shape: dict[str, Any]) -> None:
        pages, slots = shape[f"{side}_pages"], shape[f"{side}_aux_slots"]
        components = [(part["owed"], part["item_bytes"], part[f"{side}_items"]) for part in shape["state"]]
        # With K and V every component is split in two as well.
        self.is_mla = shape["page_bytes"] % 2 != 0 or any(size % 2 for _, size, _ in components)
        split = 1 if self.is_mla else 4 if shape["page_bytes"] % 4 == 0 else 2
        self.kv = _buffers(shape["page_bytes"], pages, split) if shape["page_bytes"] else []
        self.aux = _buffers(shape["aux_bytes"], slots, 1)
        self.rooms = np.zeros((slots, 8), dtype=np.int64)
        self.state = [_buffers(size, items, 1 if self.is_mla else 2) for _, size, items in components]
        self.owed = [owed for owed, _, _ in components]

    def mark(self, slot: int, room: int) -> None:
        """Write a room's number into an aux slot, as the scheduler does before it sends it and when it hands it out."""
        if 0 <= slot < len(self.rooms):
            self.rooms[slot, 0] = room

    def marked(self, slot: int) -> int:
        """The room's number in an aux slot."""
        return int(self.rooms[slot, 0])

    def item(self, kind: str, index: int, component: int, data: bytes | None) -> bytes:
        """Read one item, or write it first."""
        buffers = {"kv": self.kv, "aux": self.aux}.get(kind) or self.state[component]
        if data is not None:
            at = 0
            for buffer in buffers:
                size = buffer.shape[1]
                buffer[index] = np.frombuffer(data[at : at + size], dtype=np.uint8)
                at += size
        return b"".join(buffer[index].tobytes() for buffer in buffers)

    def regions(self) -> list[tuple[int, int, str]]:
        """First address, end and content of every buffer."""
        named = [("KV pages", self.kv), ("aux", [*self.aux, self.rooms])]
        named += [(f"state component {number}", part) for number, part in enumerate(self.state)]
        return [(array.ctypes.data, array.ctypes.data + array.nbytes, what) for what, part in named for array in part]

    def kv_args(self, base: Any) -> Any:
        """SGLang's KVArgs of this memory; `base` is the module that defines it."""
        args = base.KVArgs()
        args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens = _describe(self.kv)
        args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = _describe([*self.aux, self.rooms])
        parts = [_describe(part) for part in self.state]
        args.state_data_ptrs, args.state_data_lens, args.state_item_lens = (
            [part[n] for part in parts] for n in range(3)
        )
        kinds = {"always": base.StateType.MAMBA, "when_indexed": base.StateType.SWA}
        args.state_types = [kinds[owed] for owed in self.owed]
        args.state_layer_ids = [[number] * len(part) for number, part in enumerate(self.state)]
        args.kv_layer_ids = [n % max(len(self.kv) // 2, 1) for n in range(len(self.kv))]
        args.kv_data_mem_kinds = ["VRAM"] * len(self.kv)
        for name in ("state_dim_per_tensor", "state_slice_outer_counts", "state_conv_shard_groups"):
            setattr(args, name, [[] for _ in self.state])
        args.page_size, args.kv_cache_dtype_str = self.page_size, "auto"
        args.kv_head_num = args.total_kv_head_num = 1
        args.engine_rank = args.gpu_id = args.system_dp_rank = args.pp_rank = args.prefill_start_layer = 0
        args.ib_device = args.prefill_end_layer = args.mla_compression_ratios = args.swa_kv_cache_layout = None
        args.is_hybrid_mla_backend, args.ib_traffic_class, args.num_draft_entries = False, "", 0
        args.rust_http_port = None
        return args


def _buffers(item_bytes: int, items: int, split: int) -> list[Buffer]:
    return [np.zeros((items, item_bytes // split), dtype=np.uint8) for _ in range(split)]


def _describe(buffers: list[Any]) -> tuple[list[int], list[int], list[int]]:
    """Addresses, lengths, and bytes of one item."""
    return (
        [buffer.ctypes.data for buffer in buffers],
        [buffer.nbytes for buffer in buffers],
        [buffer[0].nbytes for buffer in buffers],
    )
