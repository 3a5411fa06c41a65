"""Names of the small changes of the reference that model known bugs; the changes are in `decode_node.mutants` and `prefill_stub.mutants`."""

from __future__ import annotations

from collections.abc import Mapping

PREFILL: Mapping[str, str] = {
    "success_on_failure": "a transfer that failed is reported as Success",
    "ack_without_drain": "an abort is acknowledged while the room's write is still under way",
    "fails_early": "a failed transfer is reported as over while the rest of it is still under way",
    "source_timer": "prefill's slot and pages are given back while the transfer still reads from them",
    "cancel_frees_source": "a client's abort gives prefill's slot and pages back while the transfer still reads from them",
    "strict_completion": "the completion of a transfer whose request is gone is a fatal error",
    "deaf_to_abort": "an abort is a message that prefill does not know",
    "abort_is_fatal": "an abort is a fatal error",
    "abort_unanswered": "an abort for a room that is over is not answered",
    "strict_abort": "an abort for a room that is over is a fatal error",
    "waiting_abort_leaks": "an abort in the waiting queue is seen only after the request has taken a slot, which nobody gives back",
    "failure_sends_nothing": "a transfer that fails sends no status",
    "late_result_dropped": "the result of an aborted request's transfer is dropped, and with it what the request holds",
    "failed_keeps_lease": "a failed transfer keeps prefill's slot",
    "cancel_closes_channel": "a client's abort in mid-transfer tears down the connection that all requests share",
    "no_row": "the row of a request without optional fields is not sent",
    "last_layer_missing": "the last layer's pages are not sent",
    "kv_not_sent": "now and then the pages are not sent, and Success is",
    "blacklist": "after one failed transfer every later one to that node fails",
    "stale_channel": "a decode node that was started again is still written to where its predecessor was",
    "duplicate_is_fatal": "a second request with a live room clears the first one's state, whose next lookup fails",
    "dead_head_blocks": "an aborted request at the head of the waiting queue stops the queue",
    "other_id": "status messages name the room by an id that decode does not know",
    "mute_push": "after a while nothing that is sent to decode gets there",
    "mute_after_restart": "nothing that is sent to a decode node that was started again gets there",
    "interleaved_sends": "two threads send on one socket, and now and then their frames mix",
}
"""At prefill."""

DECODE: Mapping[str, str] = {
    "no_timeout": "a transfer has no time-out",
    "ignore_failed": "Failed is logged and nothing else",
    "abort_wrong_key": "an abort names the request by decode's own id",
    "strict_status": "a status for a request that is gone is a fatal error",
    "strict_duplicate": "a second Success is a fatal error",
    "insert_asserts": "a second request of one id is a fatal error",
    "duplicate_clears": "a second request with a live room clears the first one's state, whose next lookup fails",
    "rank_zero": "decode always asks the prefill instance's DP rank 0",
    "abort_keeps_slot": "an abort in the queue takes the request out and keeps its slot",
    "ready_abort_keeps_pages": "an abort of a request whose transfer is done keeps its slot and pages",
    "hold_for_the_dead": "what is held for a writer stays held when the writer has died",
    "pages_never_freed": "now and then a request's slot and pages are never given back",
    "lost_wakeup": "of statuses that come together only the last wakes its request",
    "ignore_peer_loss": "nobody notices that a prefill node has died",
    "cancelled_stays_queued": "an aborted request is cleared and stays in the queue",
    "votes_by_place": "decode ranks reduce their poll results by place in their own queue, not by request",
    "fails_alone": "a decode rank that hears of a failure ends the request by itself, and rank 0 waits for its vote",
    "skipped_reduction": "a decode rank whose queue is empty leaves a collective out that the others take part in",
}
"""At decode."""

MUTANTS: Mapping[str, str] = {**PREFILL, **DECODE}
