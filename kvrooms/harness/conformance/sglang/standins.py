"""What the driver puts in place of the parts of the engine that SGLang's disaggregation modules import.

Run for real, from the wheel: everything under `sglang.srt.disaggregation.{base,common,nixl}`, its `utils`, and what
they use of `sglang.srt.environ`, `sglang.srt.utils.network` and `sglang.srt.observability.trace`.

Stand-ins, because the real modules import the model executor, CUDA kernels or the process groups of torch:

| module | stands in for |
|---|---|
| `sglang`, `sglang.srt` and other packages on the way | their `__init__` is not run |
| `sglang.srt.server_args`, `sglang.srt.runtime_context` | the settings of one engine: one rank, one process |
| `sglang.srt.distributed`, `...parallel_state`, `...layers.dp_attention` | the ranks: this process is rank 0 of 1 |
| `sglang.srt.utils`, `...utils.common` | a few helpers of one line each |
| `sglang.srt.configs.model_config`, `...mem_cache.page_interleave` | names imported, never called by the NIXL classes |

And one of NIXL: SGLang registers and addresses VRAM; the agent here reads "VRAM" as host memory.
"""

from __future__ import annotations

import logging
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Packages whose path is real and whose own code is not run.
_HOLLOW = (
    "sglang",
    "sglang.srt",
    "sglang.srt.configs",
    "sglang.srt.debug_utils",
    "sglang.srt.disaggregation",
    "sglang.srt.distributed",
    "sglang.srt.layers",
    "sglang.srt.mem_cache",
    "sglang.srt.observability",
    "sglang.srt.utils",
)


class Bag:
    """Named values; the driver's answer to `get_parallel()` and its like."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def install(package: Path, dependencies: Path) -> None:
    """Makes `sglang.srt.disaggregation.nixl` importable from the unpacked wheel; once, before anything imports it."""
    sys.path.append(str(dependencies))
    for name in _HOLLOW:
        module = types.ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")))]
        _put(name, module)
    _engine(_settings())
    _helpers()
    _memory()
    logging.Logger.warning_once = logging.Logger.warning  # type: ignore[attr-defined]


def bootstrap_at(port: int) -> None:
    """Where the prefill registers: the port of its bootstrap server on 127.0.0.1."""
    sys.modules["sglang.srt.server_args"].settings.disaggregation_bootstrap_port = port


def _settings() -> Bag:
    """The settings of an engine of one rank, by every name that a version asks for."""
    return Bag(
        host="127.0.0.1",
        port=0,
        disaggregation_bootstrap_port=0,
        disaggregation_decode_allocation_policy="early",
        disaggregation_transfer_backend="nixl",
        dist_init_addr=None,
        nnodes=1,
        enable_dp_attention=False,
        enable_hisparse=False,
        enable_pd_role_switch=False,
        enable_trace=False,
        enable_kv_cache_sharding=False,
        enable_dsa_cache_layer_split=False,
        enable_cp_tp_group_sharing=False,
        load_balance_method="follow_bootstrap_room",
        kv_cache_dtype="auto",
        chunked_prefill_size=8192,
        max_prefill_tokens=16384,
        speculative_algorithm=None,
        device="cpu",
        **{f"{group}_size": 1 for group in ("tp", "pp", "dp", "dcp", "attn_tp", "attn_cp", "attn_dp", "attn_dcp")},
        **{f"{group}_rank": 0 for group in ("tp", "pp", "dp", "dcp", "attn_tp", "attn_cp", "attn_dp", "attn_dcp")},
        num_dp_ranks=1,
        pp_group=Bag(rank_in_group=0, world_size=1),
        world_group=Bag(rank_in_group=0, world_size=1),
    )


def _engine(settings: Bag) -> None:
    """Settings, ranks and process groups."""
    _put("sglang.srt.server_args", _module(ServerArgs=Bag, settings=settings))
    contexts = (
        "device",
        "disagg",
        "observability",
        "parallel",
        "schedule",
        "serving",
        "spec",
        "resources",
        "server_args",
    )
    _put(
        "sglang.srt.runtime_context",
        _module(
            **{f"get_{name}": _constant(settings) for name in contexts},
            linear_attn_tp_size=_constant(1),
            max_prefill_buffer_tokens=_constant(0),
        ),
    )
    groups = {"get_pp_group": _constant(Bag(rank_in_group=0)), "get_world_group": _constant(Bag(rank_in_group=0))}
    vars(sys.modules["sglang.srt.distributed"]).update(groups)
    _put("sglang.srt.distributed.parallel_state", _module(GroupCoordinator=Bag, **groups))
    attention = {
        f"get_attention_{group}_{what}": _constant(1 if what == "size" else 0)
        for group in ("tp", "cp", "dp")
        for what in ("rank", "size")
    }
    _put("sglang.srt.layers.dp_attention", _module(**attention))
    _put("sglang.srt.mem_cache.page_interleave", _module(get_kv_shard_group=_never("get_kv_shard_group")))
    _put(
        "sglang.srt.configs.model_config",
        _module(
            get_dsa_mtp_topk_width=_never("get_dsa_mtp_topk_width"),
            is_deepseek_dsa=_never("is_deepseek_dsa"),
        ),
    )


def _helpers() -> None:
    """The one-line helpers of `sglang.srt.utils` that the modules call."""
    helpers: dict[str, Callable[..., Any]] = {
        "is_npu": _constant(value=False),
        "get_int_env_var": lambda name, default=0: int(os.environ.get(name) or default),
        "ceil_align": lambda number, step: -(-number // step) * step,
        "run_with_deadline": lambda action, **_: action(),  # the suite watches the driver as a whole
        **{name: _never(name) for name in ("create_device_event", "create_device_stream")},
        "device_stream_context": _never("device_stream_context"),
    }
    vars(sys.modules["sglang.srt.utils"]).update(helpers)
    _put("sglang.srt.utils.common", _module(**helpers))


def _memory() -> None:
    """Every NIXL agent of this process takes "VRAM" to mean host memory; nothing else of it is changed."""
    import nixl._api as api

    create = api.nixl_agent.__init__

    def create_on_host(agent: Any, *arguments: Any, **named: Any) -> None:
        create(agent, *arguments, **named)
        agent.nixl_mems["VRAM"] = agent.nixl_mems["DRAM"]

    api.nixl_agent.__init__ = create_on_host


def _put(name: str, module: types.ModuleType) -> None:
    module.__name__ = name
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def _module(**names: Any) -> types.ModuleType:
    module = types.ModuleType("")
    vars(module).update(names)
    return module


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _never(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} is not part of the stand-in engine")

    return call
