"""A host tier for vLLM's OffloadingConnector on a machine without a GPU.

vLLM's own specification refuses the CPU as a device, since its copies are CUDA's. Here the copies are the CPU's, from
one buffer into another, and everything else is vLLM's: what is stored and loaded when, the order of eviction, metrics
and KV events. `lab_gbps` in the connector's extra configuration makes a copy as slow as a link of so many gigabytes a
second would.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostTierWorker(OffloadingWorker):
    """Copies blocks between two buffers, at once."""

    def __init__(self, kv_caches: Any, blocks: int, gbps: float) -> None:
        self._device = [tensor.tensor for tensor in kv_caches.tensors]
        self._host = [torch.empty((blocks, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in self._device]
        self._gbps = gbps
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, self._device, self._host)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, self._host, self._device)

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: Any) -> None:
        """Nothing is ever under way: a copy is done when it was submitted."""

    def _copy(self, job_id: int, source: Any, target: Any, from_: list[torch.Tensor], to: list[torch.Tensor]) -> bool:
        began, moved = time.perf_counter(), 0
        read = torch.as_tensor(source.block_ids, dtype=torch.long)
        written = torch.as_tensor(target.block_ids, dtype=torch.long)
        for here, there in zip(from_, to, strict=True):
            there[written] = here[read]
            moved += here[0].numel() * here.element_size() * len(read)
        if self._gbps:
            time.sleep(moved / self._gbps / 1e9)
        self._done.append(TransferResult(job_id, True, moved, time.perf_counter() - began))
        return True


class HostTierSpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> HostTierWorker:
        if self._worker is None:
            gbps = float(self.extra_config.get("lab_gbps", 0))
            self._worker = HostTierWorker(kv_caches, self.num_chunks, gbps)
        return self._worker
