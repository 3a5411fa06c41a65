"""Records of K5 to K12: completions, names, leaks, restarts, queues and sockets."""

from __future__ import annotations

from typing import Any

from harness.bugs.record import Bug

_SGLANG = "https://github.com/sgl-project/sglang/pull/"
_SGLANG_ISSUE = "https://github.com/sgl-project/sglang/issues/"
_VLLM = "https://github.com/vllm-project/vllm/pull/"
_VLLM_ISSUE = "https://github.com/vllm-project/vllm/issues/"
_TRT = "https://github.com/NVIDIA/TensorRT-LLM/pull/"
_DP: dict[str, Any] = {"topology.prefill_dp": 2}
_CHOSEN: dict[str, Any] = {**_DP, "workload.dp_routing": "least-open"}
_RESTART: dict[str, Any] = {
    "workload.requests": 1000, "workload.duration_s": 120.0, "workload.arrival": "fixed", "workload.rate_per_s": 500.0,
    "workload.concurrency": 64, "engine.slots": 64,
}  # fmt: skip
"""About half of the requests come after the node is back, however long that takes here."""

K5 = (
    Bug(
        id="vllm-43226", kind="K5", url=_VLLM_ISSUE + "43226", seen="the whole engine dies",
        mechanism="a completion comes for a request that the scheduler has forgotten, and an assertion forbids that",
        mutants=("strict_status",), faults=("abort:state=writing,fraction=0.1",), anomaly="crash",
    ),
    Bug(
        id="vllm-51786", kind="K5", url=_VLLM_ISSUE + "51786", seen="crash", mechanism="two connectors report one request",
        mutants=("strict_duplicate",), faults=("duplicate:message=status,fraction=0.1",), anomaly="crash",
    ),
    Bug(
        id="vllm-57570", kind="K5", url=_VLLM + "57570", seen="crash when a handshake fails",
        mechanism="a failure is reported for a request that was removed",
        mutants=("strict_status",), faults=("fail:when=before,fraction=0.5", "abort:state=exchange,fraction=0.2"), anomaly="crash",
    ),
    Bug(
        id="vllm-25067", kind="K5", url=_VLLM + "25067", seen="KeyError kills the prefill worker",
        mechanism="an abort at the instant of completion finds the request gone",
        mutants=("strict_abort",), faults=("abort:state=sent,fraction=0.2",), anomaly="crash",
    ),
    Bug(
        id="vllm-29906", kind="K5", url=_VLLM + "29906", seen="the pool is exhausted by router time-outs",
        mechanism="an abort of what has just finished is ignored, and what was kept for the peer stays",
        mutants=("abort_unanswered",), faults=("fail:when=silent,fraction=0.05,count=8",), anomaly="leak",
    ),
    Bug(
        id="dynamo-6734", kind="K5", url="https://github.com/ai-dynamo/dynamo/issues/6734", seen="decode panics",
        mechanism="one id is inserted twice", mutants=("insert_asserts",), faults=("duplicate:message=request,fraction=0.2,ms=0",), anomaly="crash",
        note="the issue does not confirm the cause",
    ),
    Bug(
        id="sglang-36926", kind="K5", url=_SGLANG + "36926", seen="16,384 tokens missing from the pool",
        mechanism="the late result of an aborted request is dropped, and nobody else frees what it holds",
        mutants=("late_result_dropped",), faults=("abort:side=decode,fraction=0.2,ms=20", "hold-write:ms=20"), anomaly="leak",
    ),
)  # fmt: skip

K6 = (
    Bug(
        id="sglang-40125", kind="K6", url=_SGLANG_ISSUE + "40125", seen="both engine schedulers exit",
        mechanism="a second live request with one room clears the first one's state, and its next poll fails",
        mutants=("duplicate_clears",), faults=("duplicate-room:fraction=0.1",), anomaly="crash",
    ),
    Bug(
        id="sglang-27643", kind="K6", url=_SGLANG_ISSUE + "27643", seen="prefill's scheduler dies with a KeyError",
        mechanism="as sglang-40125, on prefill's side",
        mutants=("duplicate_is_fatal",), faults=("duplicate-room:fraction=0.1",), anomaly="crash",
    ),
    Bug(
        id="mooncake-1400", kind="K6", url="https://github.com/kvcache-ai/Mooncake/issues/1400", seen="prefill's schedulers die in production",
        mechanism="as sglang-27643, rarely",
        mutants=("duplicate_is_fatal",), faults=("duplicate-room:fraction=0.005",), anomaly="crash",
    ),
    Bug(
        id="sglang-24223", kind="K6", url=_SGLANG + "24223", seen="n=4: wrong results or hang",
        mechanism="the samples of one request share a room, and each is served as if it had its own",
        guards="hardened,-refuse_duplicate,-remember_rooms", faults=("duplicate-room:fraction=0.3",), anomaly="not-refused",
        note="two requests with one room stand for the samples",
    ),
    Bug(
        id="ray-63741", kind="K6", url="https://github.com/ray-project/ray/pull/63741", seen="KV of one request in another",
        mechanism="requests without an id all get one room",
        guards="hardened,-refuse_duplicate,-remember_rooms", faults=("duplicate-room:fraction=1",), anomaly="not-refused",
    ),
    Bug(
        id="sglang-22901", kind="K6", url=_SGLANG + "22901", seen="decode waits at the wrong prefill rank",
        mechanism="decode derives the rank from the room, the router had chosen another",
        guards="hardened,-named_dp_rank", anomaly="hang", changes=_CHOSEN,
    ),
    Bug(
        id="dynamo-9248", kind="K6", url="https://github.com/ai-dynamo/dynamo/pull/9248", seen="transfers do not match",
        mechanism="as sglang-22901: a random room and an explicit rank",
        guards="hardened,-named_dp_rank", anomaly="hang", changes={**_CHOSEN, "workload.concurrency": 8},
    ),
    Bug(
        id="sglang-29725", kind="K6", url=_SGLANG_ISSUE + "29725", seen="about half of the requests fail",
        mechanism="decode asks rank 0 only", mutants=("rank_zero",), anomaly="hang", changes=_DP,
    ),
)  # fmt: skip

_RANKS: dict[str, Any] = {"topology.prefill_tp": 2, "topology.decode_tp": 2, "limits.start_timeout_s": 240.0}
_FEW: dict[str, Any] = {**_RANKS, "workload.concurrency": 2, "workload.warmup": 0}
"""So few requests in flight that queues run empty all the time."""
K7 = (
    Bug(
        id="sglang-36893", kind="K7", url=_SGLANG + "36893", seen="no progress any more on long runs",
        mechanism="poll reductions and request broadcasts enter different collective rounds on different ranks",
        mutants=("skipped_reduction",), anomaly="hang", changes=_FEW,
        note="a second collective of each iteration stands for the broadcast",
    ),
    Bug(
        id="sglang-36928", kind="K7", url=_SGLANG + "36928", seen="hang",
        mechanism="how many reductions a rank makes depends on its own queue",
        mutants=("skipped_reduction",), faults=("burst:every_s=0.5,size=100",), anomaly="hang", changes=_FEW,
    ),
    Bug(
        id="sglang-37909", kind="K7", url=_SGLANG + "37909", seen="gloo size mismatch, or hang",
        mechanism="ranks see an abort at different iterations and poll different requests",
        mutants=("votes_by_place",), faults=("abort:fraction=0.3",), anomaly="outcome-mismatch", changes=_RANKS,
        note="lists have one size here, so that the mismatch shows in what becomes of the requests",
    ),
    Bug(
        id="sglang-das-106", kind="K7", url="https://github.com/HYGON-AI/sglang-das/pull/106", seen="a replica hangs",
        mechanism="a blocking send on one rank and skipped rounds on others",
        mutants=("skipped_reduction",), faults=("hold-write:fraction=0.2,ms=30",), anomaly="hang", changes=_FEW,
        note="a write that takes long stands for the send that blocks",
    ),
)  # fmt: skip

K8 = (
    Bug(
        id="sglang-17483", kind="K8", url=_SGLANG + "17483", seen="slots run out after aborts",
        mechanism="an abort takes the request out of its queue and keeps its slot",
        mutants=("abort_keeps_slot",), faults=("abort:state=exchange,fraction=0.05",), anomaly="leak",
    ),
    Bug(
        id="sglang-9817", kind="K8", url=_SGLANG + "9817", seen="decode's KV leaks",
        mechanism="an abort of a request whose transfer is done frees nothing",
        mutants=("ready_abort_keeps_pages",), faults=("abort:state=status,fraction=0.2",), anomaly="leak",
        changes={"engine.poll_interval_ms": 10.0},
    ),
    Bug(
        id="vllm-46283", kind="K8", url=_VLLM_ISSUE + "46283", seen="the pool is exhausted after a peer's crash",
        mechanism="blocks are held for a completion that the dead peer never sends",
        guards="hardened,-repeat_abort", mutants=("hold_for_the_dead",), faults=("abort:fraction=0.3,ms=20", "hold-write:ms=30", "kill:every_s=1,count=1"),
        anomaly="leak", changes=_RESTART,
    ),
    Bug(
        id="trtllm-5820", kind="K8", url="https://github.com/NVIDIA/TensorRT-LLM/issues/5820", seen="prefill hangs under overload",
        mechanism="failed requests stay among those in transmission",
        mutants=("failed_keeps_lease",), faults=("fail:when=before,fraction=0.05",), anomaly="leak",
    ),
    Bug(
        id="dynamo-7489", kind="K8", url="https://github.com/ai-dynamo/dynamo/pull/7489", seen="prefill does not answer any more",
        mechanism="a client's disconnect tears down the connection under transfers that use it",
        mutants=("cancel_closes_channel",), faults=("abort:fraction=0.1,ms=20", "hold-write:ms=20"), anomaly="abort",
    ),
    Bug(
        id="lmcache-1339", kind="K8", url="https://github.com/LMCache/LMCache/issues/1339", seen="decode fails after about a hundred requests",
        mechanism="now and then a receive buffer is not given back", mutants=("pages_never_freed",), anomaly="leak",
        note="the issue does not confirm the cause",
    ),
    Bug(
        id="vllm-43742", kind="K8", url=_VLLM + "43742", seen="blocks leak at any passing error",
        mechanism="the count of users goes down only where all goes well",
        mutants=("failed_keeps_lease",), faults=("fail:when=during,fraction=0.02",), anomaly="leak",
    ),
)  # fmt: skip

K9 = (
    Bug(
        id="sglang-13231", kind="K9", url=_SGLANG + "13231", seen="decode reads KV before it is there",
        mechanism="a TCP transport says done when the bytes have left",
        guards="sglang-0.5.20", anomaly="foreign-kv",
        changes={"transport.name": "tcp", "transport.reorder": "room_first", "transport.late_fraction": 0.2, "transport.delay_us": 3000.0},
        hosted={},
    ),
    Bug(
        id="vllm-44238", kind="K9", url=_VLLM_ISSUE + "44238", seen="what arrived is not what was sent, though the call returned success",
        mechanism="the return of a write does not mean that the peer sees it, and blocks come in any order",
        guards="sglang-0.5.20", anomaly="foreign-kv", changes={"transport.reorder": "random", "transport.late_fraction": 0.3},
    ),
    Bug(
        id="sglang-25699", kind="K9", url=_SGLANG + "25699", seen="every request of a dense model hangs",
        mechanism="the sender leaves the row out where the receiver waits for it", mutants=("no_row",), anomaly="hang",
    ),
    Bug(
        id="sglang-18939", kind="K9", url=_SGLANG + "18939", seen="decode waits for ever",
        mechanism="one part of the state is not sent", mutants=("last_layer_missing",), anomaly="hang",
    ),
    Bug(
        id="sglang-38586", kind="K9", url=_SGLANG_ISSUE + "38586", seen="a canary finds a slot all zero after the transfer",
        mechanism="data did not land though the status says so",
        guards="sglang-0.5.20", mutants=("kv_not_sent",), anomaly="foreign-kv", changes={"transport.late_fraction": 0.0},
    ),
    Bug(
        id="vllm-43620", kind="K9", url=_VLLM + "43620", seen="hang with many waiters",
        mechanism="one notification wakes one waiter, and it may be the wrong one",
        mutants=("lost_wakeup",), anomaly="hang", changes={"engine.poll_interval_ms": 5.0},
    ),
)  # fmt: skip

K10 = (
    Bug(
        id="sglang-6263", kind="K10", url=_SGLANG + "6263", seen="a dead node takes its peers' requests along",
        mechanism="nobody notices that a peer is dead",
        mutants=("ignore_peer_loss",), faults=("hold-write:ms=20", "kill:every_s=1,count=1"), anomaly="hang", changes=_RESTART,
    ),
    Bug(
        id="sglang-13054", kind="K10", url=_SGLANG_ISSUE + "13054", seen="every later request fails",
        mechanism="one failure puts the peer on a list for ever",
        mutants=("blacklist",), faults=("fail:when=before,count=1,fraction=0.1",), anomaly="abort",
    ),
    Bug(
        id="sglang-36029", kind="K10", url=_SGLANG + "36029", seen="every request after a restart fails",
        mechanism="what is known of a peer is kept by its address, and outlives it",
        mutants=("stale_channel",), faults=("kill:node=decode,every_s=1,count=1",), anomaly="hang", changes=_RESTART,
        note="decode is restarted here, and prefill keeps what it knew",
    ),
    Bug(
        id="nixl-795", kind="K10", url="https://github.com/ai-dynamo/nixl/issues/795", seen="hang after prefill ran out of memory and came back",
        mechanism="as sglang-6263: this backend has no heartbeat",
        mutants=("ignore_peer_loss",), faults=("hold-write:ms=20,where=row", "kill:every_s=1,count=1,for_ms=500"), anomaly="hang", changes=_RESTART,
    ),
    Bug(
        id="sglang-12779", kind="K10", url=_SGLANG_ISSUE + "12779", seen="decode is killed from outside: its health check waits",
        mechanism="requests of the dead prefill are not failed",
        mutants=("ignore_peer_loss",), faults=("hold-write:ms=40", "kill:every_s=1,count=1"), anomaly="hang", changes=_RESTART,
    ),
    Bug(
        id="sglang-21680", kind="K10", url=_SGLANG_ISSUE + "21680", seen="AttributeError kills decode",
        mechanism="a request is cleared and stays in a queue",
        mutants=("cancelled_stays_queued",), faults=("abort:state=queued,fraction=0.2",), anomaly="crash",
        changes={"engine.slots": 8, "workload.concurrency": 32},
    ),
)  # fmt: skip

K11 = (
    Bug(
        id="dynamo-1074", kind="K11", url="https://github.com/ai-dynamo/dynamo/issues/1074", seen="requests stay in the prefill queue for ever",
        mechanism="one dead request at the head stops the queue",
        mutants=("dead_head_blocks",), faults=("abort:fraction=0.2,ms=20", "hold-write:ms=10"), anomaly="hang", changes={"engine.prefill_slots": 4},
        note="the issue does not establish the cause; this is the reading that its trigger suggests",
    ),
    Bug(
        id="sglang-29957", kind="K11", url=_SGLANG_ISSUE + "29957", seen="permanent deadlock, very rarely",
        mechanism="a socket stops delivering, and nobody notices", mutants=("mute_push",), anomaly="hang",
        note="the cause is what the reporter found later (libzmq-4917)",
    ),
    Bug(
        id="libzmq-4917", kind="K11", url="https://github.com/zeromq/libzmq/issues/4917", seen="one rank blocks for ever",
        mechanism="a PUSH socket stops delivering", mutants=("mute_push",), anomaly="hang", changes={"transport.name": "tcp"},
    ),
    Bug(
        id="kvcached-327", kind="K11", url="https://github.com/ovg-project/kvcached/pull/327", seen="hang",
        mechanism="the two ends derive different ids for one request", mutants=("other_id",), anomaly="hang",
    ),
)  # fmt: skip

K12 = (
    Bug(
        id="sglang-31306", kind="K12", url=_SGLANG + "31306", seen="hang after a peer's death",
        mechanism="a socket option leaves the socket mute after its peer has gone, and it is used again for the next",
        mutants=("mute_after_restart",), faults=("kill:node=decode,every_s=1,count=1",), anomaly="hang", changes=_RESTART,
    ),
    Bug(
        id="sglang-27796", kind="K12", url=_SGLANG + "27796", seen="messages go to a stale socket",
        mechanism="sockets are kept by endpoint, and a restarted peer has the same",
        mutants=("mute_after_restart",), faults=("kill:node=decode,every_s=1,count=1,for_ms=300",), anomaly="hang", changes=_RESTART,
    ),
    Bug(
        id="trtllm-18194", kind="K12", url=_TRT + "18194", seen="peers read garbled messages",
        mechanism="two threads send on one socket, and their frames mix", mutants=("interleaved_sends",), anomaly="hang",
        note="the frames are mixed on purpose, by one thread: no race is needed to show what becomes of them",
    ),
    Bug(
        id="mooncake-1466", kind="K12", url="https://github.com/kvcache-ai/Mooncake/pull/1466", seen="instability under pressure",
        mechanism="one socket is used by several threads", mutants=("interleaved_sends",), anomaly="hang", changes={"workload.concurrency": 128},
    ),
)  # fmt: skip
