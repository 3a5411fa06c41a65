"""Records of K1 to K4: wrong data and ends that nobody hears of."""

from __future__ import annotations

from typing import Any

from harness.bugs.record import Bug

_SGLANG = "https://github.com/sgl-project/sglang/pull/"
_SGLANG_ISSUE = "https://github.com/sgl-project/sglang/issues/"
_VLLM = "https://github.com/vllm-project/vllm/pull/"
_VLLM_ISSUE = "https://github.com/vllm-project/vllm/issues/"
_TRT = "https://github.com/NVIDIA/TensorRT-LLM/pull/"

_STALE: dict[str, Any] = {"transport.name": "tcp", "transport.late_fraction": 0.2, "transport.delay_us": 3000.0}
_TINY: dict[str, Any] = {"engine.page_policy": "lifo", "engine.poll_interval_ms": 3.0}
_GIVEN_UP: dict[str, Any] = {"workload.abort_fraction": 0.2, "workload.hold_ms": 40.0}
_ABORTS = ("abort:fraction=0.2,ms=30", "hold-write:ms=30,where=kv")
_UNCHECKED: dict[str, Any] = {"transport.late_fraction": 0.0}
"""No room check and no race: what is wrong then comes of the mutant."""
_PATIENT: dict[str, Any] = {"limits.start_timeout_s": 240.0}
"""Many processes on few cores need long to start."""
_RANKS: dict[str, Any] = {**_PATIENT, "topology.prefill_tp": 2, "topology.decode_tp": 2}
_STAGES: dict[str, Any] = {
    **_PATIENT, "topology.prefill_pp": 4, "engine.layers": 4, "engine.slots": 64, "workload.concurrency": 64, "transport.late_fraction": 0.1,
}  # fmt: skip
_WRITERS: dict[str, Any] = {**_PATIENT, "topology.prefill_tp": 4, "transport.ack": True, "transport.late_fraction": 0.1}
"""Four ranks write each page; done means visible, so that nothing but the ranks that were not waited for is late."""

K1 = (
    Bug(
        id="sglang-17259", kind="K1", url=_SGLANG_ISSUE + "17259", seen="silent wrong first token",
        mechanism="nothing says whose bytes a slot holds, so a reused slot's old row is taken for the new request's",
        guards="sglang-0.5.8", anomaly="misdelivery", changes=_STALE,
        hosted={},
    ),
    Bug(
        id="sglang-17430", kind="K1", url=_SGLANG + "17430", seen="requests aborted as corrupt",
        mechanism="the room check takes 0 for `not written yet`, and nobody puts the 0 there",
        guards="sglang-0.5.9", anomaly="false-abort", changes=_STALE,
        hosted={},
    ),
    Bug(
        id="sglang-27374", kind="K1", url=_SGLANG + "27374", seen="about 3 % of requests aborted with HTTP 500",
        mechanism="a freed slot keeps its room; the next owner's poll finds it before its own row has come",
        guards="hardened,-clear_on_free", anomaly="false-abort", changes=_STALE,
        hosted={},
    ),
    Bug(
        id="sglang-22716", kind="K1", url=_SGLANG_ISSUE + "22716", seen="2 to 5 % of requests aborted with four pipeline ranks",
        mechanism="every pipeline rank writes the whole row; a slow one writes after the slot has its next owner",
        guards="sglang-0.5.20", anomaly="misdelivery", changes=_STAGES,
        note="what the stages before the last send is a placeholder here, see docs/topology.md; releases show it as aborts, too",
    ),
    Bug(
        id="sglang-38704", kind="K1", url=_SGLANG + "38704", seen="silent garbage",
        mechanism="a request that prefill refused is handed off as if it were valid, with less KV than the prompt has",
        guards="sglang-0.5.20", mutants=("success_on_failure",), faults=("fail:when=short,fraction=0.02",), anomaly="foreign-kv", changes=_UNCHECKED,
    ),
)  # fmt: skip

K2 = (
    Bug(
        id="sglang-24527", kind="K2", url=_SGLANG_ISSUE + "24527", seen="silent wrong output after aborts",
        mechanism="an abort gives pages back while a transfer into them runs",
        guards="sglang-0.5.12", faults=_ABORTS, changes=_TINY, anomaly="foreign-kv",
        hosted=_GIVEN_UP,
    ),
    Bug(
        id="sglang-27372", kind="K2", url=_SGLANG + "27372", seen="silent wrong output, rarely",
        mechanism="the abort stops what was not issued yet; the transfer call that is in progress still lands",
        guards="sglang-0.5.13", faults=("abort:state=writing,fraction=0.2", "hold-write:ms=30"), changes=_TINY, anomaly="foreign-write",
        hosted=_GIVEN_UP,
    ),
    Bug(
        id="sglang-35049", kind="K2", url=_SGLANG + "35049", seen="pages of an aborted request in two hands",
        mechanism="release is not held back until the writer drained",
        guards="hardened,-drain_on_abort", faults=("abort:state=writing,fraction=0.2", "hold-write:ms=60"),
        changes={**_TINY, "engine.slots": 8, "workload.concurrency": 16}, anomaly="foreign-write",
        hosted=_GIVEN_UP,
    ),
    Bug(
        id="sglang-37077", kind="K2", url=_SGLANG + "37077", seen="silent wrong output (another backend)",
        mechanism="nobody counts outstanding writes, so the abort is acknowledged while some are under way",
        mutants=("ack_without_drain",), faults=_ABORTS, changes=_TINY, anomaly="foreign-write",
    ),
    Bug(
        id="sglang-31357", kind="K2", url=_SGLANG + "31357", seen="silent wrong output after a failed transfer",
        mechanism="a failure is made terminal while sibling parts of the transfer still run",
        mutants=("fails_early",), faults=("fail:when=during,fraction=0.2", "hold-write:ms=30"), changes=_TINY, anomaly="foreign-write",
    ),
    Bug(
        id="trtllm-19545", kind="K2", url=_TRT + "19545", seen="later requests get poisoned blocks",
        mechanism="a success message is taken for proof of the bytes; the write was short",
        guards="sglang-0.5.20", mutants=("success_on_failure",), faults=("fail:when=short,fraction=0.05",), anomaly="foreign-kv",
        changes={"transport.late_fraction": 0.0, "transport.ack": True},
        note="the reuse tree is left out: here the request itself gets the short write",
    ),
    Bug(
        id="nixl-2067", kind="K2", url="https://github.com/ai-dynamo/nixl/issues/2067", seen="late remote access after a handle's release",
        mechanism="releasing a transfer's handle does not stop it, and the release is taken for the end",
        mutants=("ack_without_drain",), faults=("abort:fraction=0.3,ms=10",), anomaly="foreign-write",
        changes={"transport.late_fraction": 0.5, "transport.delay_us": 20_000.0, "transport.ack": True, **_TINY},
    ),
    Bug(
        id="sglang-32564", kind="K2", url=_SGLANG + "32564", seen="slightly wrong answers after time-outs",
        mechanism="a time-out frees pages and does not cancel the transfer",
        guards="sglang-0.5.12", faults=("hold-write:ms=4000,fraction=0.2",), changes={**_TINY, "limits.transfer_timeout_s": 1.0}, anomaly="foreign-write",
    ),
    Bug(
        id="sglang-36610", kind="K2", url=_SGLANG + "36610", seen="silent wrong output on 2P1D with a barrier in the transfer",
        mechanism="as sglang-35049, with two prefill nodes",
        guards="hardened,-drain_on_abort", faults=("abort:state=writing,fraction=0.2", "hold-write:ms=40"), anomaly="foreign-write",
        changes={**_TINY, "topology.prefill": 2},
        hosted=_GIVEN_UP,
    ),
)  # fmt: skip

K3 = (
    Bug(
        id="vllm-21570", kind="K3", url=_VLLM_ISSUE + "21570", seen="wrong output with many queued requests",
        mechanism="prefill's timer gives its blocks back; they are read later, with somebody else's data in them",
        guards="sglang-0.5.8", mutants=("source_timer",), faults=("hold-write:ms=20",), anomaly="misdelivery", changes=_UNCHECKED,
        note="a transfer that reads its source late stands for decode's pull",
    ),
    Bug(
        id="vllm-52234", kind="K3", url=_VLLM_ISSUE + "52234", seen="HTTP 200 with garbage, once another prompt's answer",
        mechanism="a failed receive is reported as done, and what was there before is used",
        guards="sglang-0.5.8", mutants=("success_on_failure",), faults=("fail:when=before,fraction=0.05",), anomaly="misdelivery", changes=_UNCHECKED,
    ),
    Bug(
        id="trtllm-12540", kind="K3", url="https://github.com/NVIDIA/TensorRT-LLM/issues/12540", seen="missing sequences, crash or hang on cancellation",
        mechanism="a cancelled request's sequence is removed while the send still reads it",
        guards="sglang-0.5.8", mutants=("cancel_frees_source",), faults=("abort:side=prefill,fraction=0.3,ms=30", "hold-write:ms=120"),
        anomaly="misdelivery", changes=_UNCHECKED, note="shown as the wrong data that it leads to, not as a crash",
    ),
    Bug(
        id="vllm-ascend-5726", kind="K3", url="https://github.com/vllm-project/vllm-ascend/pull/5726", seen="prefill's scheduler dies",
        mechanism="blocks are freed by force, then the completion of their transfer comes and finds no request",
        mutants=("strict_completion",), faults=("abort:side=prefill,fraction=0.3,ms=30", "hold-write:ms=120"), anomaly="crash",
    ),
    Bug(
        id="aibrix-1772", kind="K3", url="https://github.com/vllm-project/aibrix/issues/1772", seen="decode read blocks that may have expired; only a warning",
        mechanism="as vllm-21570, under bursts",
        guards="sglang-0.5.8", mutants=("source_timer",), faults=("hold-write:ms=20", "burst:size=100,every_s=0.5"), anomaly="misdelivery", changes=_UNCHECKED,
    ),
)  # fmt: skip

K4 = (
    Bug(
        id="sglang-28651", kind="K4", url=_SGLANG + "28651", seen="decode waits 300 s for requests that prefill gave up",
        mechanism="an abort at prefill stays there",
        guards="hardened,-notify_failed,-remember_rooms", faults=("abort:side=prefill,state=queued,fraction=0.05",), anomaly="hang",
    ),
    Bug(
        id="sglang-28236", kind="K4", url=_SGLANG + "28236", seen="prefill's slots run out",
        mechanism="an abort is not seen in the waiting queue between bootstrap and transfer",
        mutants=("waiting_abort_leaks",), faults=("abort:side=decode,fraction=0.3,ms=10", "hold-write:ms=10"), anomaly="leak",
        changes={"engine.prefill_slots": 8},
    ),
    Bug(
        id="sglang-31876", kind="K4", url=_SGLANG + "31876", seen="an aborted room never fails on prefill",
        mechanism="one backend's control thread does not know the abort message",
        mutants=("deaf_to_abort",), faults=("orphan-room:fraction=0.02,count=8",), anomaly="leak",
    ),
    Bug(
        id="sglang-30352", kind="K4", url=_SGLANG + "30352", seen="prefill's control thread dies",
        mechanism="an abort meets an assertion in a backend that does not know it",
        mutants=("abort_is_fatal",), faults=("abort:state=writing,fraction=0.1",), anomaly="crash",
    ),
    Bug(
        id="sglang-30551", kind="K4", url=_SGLANG + "30551", seen="one rank says 500, another 400, or decode waits",
        mechanism="the reason of a failure is known on one rank only", mutants=("fails_alone",), faults=("fail:when=before,fraction=0.02",), anomaly="hang", changes=_RANKS,
    ),
    Bug(
        id="sglang-30233", kind="K4", url=_SGLANG_ISSUE + "30233", seen="silent garbage for a request over prefill's limit",
        mechanism="prefill refuses the input, sends what little it has, and does not say so",
        guards="sglang-0.5.20", mutants=("success_on_failure",), faults=("fail:when=short,fraction=0.01",), anomaly="foreign-kv",
        changes={"engine.pages_per_request": 8, "transport.late_fraction": 0.0},
    ),
    Bug(
        id="vllm-35943", kind="K4", url=_VLLM_ISSUE + "35943", seen="decode requests never leave the wait state",
        mechanism="the receiver's expiry is never set",
        mutants=("no_timeout",), faults=("drop:message=status,fraction=0.002",), anomaly="hang",
    ),
    Bug(
        id="vllm-50754", kind="K4", url=_VLLM + "50754", seen="decode counts towards a total that it never reaches",
        mechanism="a write that fails to post sends no message",
        mutants=("failure_sends_nothing",), faults=("fail:when=before,fraction=0.02",), anomaly="hang",
    ),
    Bug(
        id="vllm-41269", kind="K4", url=_VLLM + "41269", seen="prefill's blocks stranded for 480 s",
        mechanism="decode refuses before it admits, and then has nothing to release by",
        guards="hardened,-notify_unadmitted", faults=("burst:size=300,every_s=0.3",), anomaly="leak",
        changes={"engine.queue_max": 64, "limits.request_timeout_s": 20.0},
        note="prefill holds the open room here, not yet its blocks",
    ),
    Bug(
        id="vllm-36958", kind="K4", url=_VLLM + "36958", seen="prefill's blocks never freed",
        mechanism="a notification names the request by the sender's own id",
        mutants=("abort_wrong_key",), faults=("orphan-room:fraction=0.02,count=8",), anomaly="leak",
        note="ranks are left out: the abort is what bears the wrong name, and decode's slot is what stays",
    ),
    Bug(
        id="vllm-55870", kind="K4", url=_VLLM_ISSUE + "55870", seen="the client waits for its own time-out",
        mechanism="failures are logged and the request is not failed",
        mutants=("ignore_failed", "no_timeout"), faults=("fail:when=before,fraction=0.002",), anomaly="hang",
    ),
    Bug(
        id="vllm-ascend-8810", kind="K4", url="https://github.com/vllm-project/vllm-ascend/issues/8810", seen="wrong output or deadlock",
        mechanism="the rank that sends the last layer says done for all",
        guards="sglang-0.5.20,+last_stage_aux,-await_all_ranks", anomaly="foreign-kv", changes=_WRITERS,
    ),
)  # fmt: skip
