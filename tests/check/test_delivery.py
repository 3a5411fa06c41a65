"""Rows, pages, tokens and outcomes: what must be flagged and what must not."""

import pytest

from harness.history.event import HIDDEN_MASK, LOGPROB_MASK, REQUIRED_MASK, NodeEvent, Phase, Reason, Verb

from .builder import CLEARED, History, counts, kv, tag, tags


def only(h: History, name: str, **change: object) -> dict[str, int]:
    """Finish, require that `name` is the one anomaly, found once, and return its detail."""
    report = h.finish().check(**change)
    assert counts(report) == {name: 1}
    assert report.verdict == "invalid"
    anomaly = report.anomalies[0]
    assert 1 <= len(anomaly.witnesses[0]) <= 12
    return anomaly.detail


def clean(h: History, **change: object):
    """Finish, require that nothing is found, and return the report."""
    report = h.finish().check(**change)
    assert counts(report) == {}
    assert report.verdict == "valid", (report.notes, report.not_checked, report.coverage)
    return report


def test_a_healthy_run_is_valid(h):
    report = clean(h)
    assert (report.requests, report.committed, report.wrong_data) == (2, 2, 0)
    assert {anomaly.count for anomaly in report.unseen} == {0}


def test_lost(h):
    h.begun(3).landed().sent().status().commit().free()
    only(h, "lost")


def test_an_unknown_end_is_not_lost(h):
    h.begun(3).landed().free().info(Reason.INTERRUPTED)
    h.begun(4).landed().free().info(Reason.NODE_EXIT)
    clean(h)


def test_what_is_open_when_a_history_is_cut_off_is_not_lost(h):
    h.begun(3)
    report = h.check()
    assert (counts(report), report.verdict, report.complete) == ({}, "unknown", False)
    assert any("1 hand-offs were open" in note for note in report.notes)


def test_two_ends_are_a_duplicate(h):
    h.handoff(3).ok()
    only(h, "duplicate")


def test_two_commits_are_a_duplicate(h):
    h.begun(3).landed().sent().status().commit().commit().free().ok()
    only(h, "duplicate")


def test_two_ends_and_two_commits_are_one_duplicate(h):
    h.begun(3).landed().sent().status().commit().commit().free().ok().ok()
    only(h, "duplicate")


def test_the_same_index_under_two_rooms_is_no_duplicate(h):
    h.handoff(3)
    h.handoff(4)
    clean(h)


def test_success_without_commit(h):
    h.begun(3).landed().sent().status().free().ok()
    assert only(h, "outcome-mismatch") == {"told of success without a commit": 1}


def test_failure_after_commit(h):
    h.begun(3).landed().sent().status().commit().free().fail(Reason.PREFILL_FAILED)
    assert only(h, "outcome-mismatch") == {"told of failure after a commit": 1}


def test_not_knowing_after_a_commit_is_no_mismatch(h):
    h.begun(3).landed().sent().status().commit().free().info(Reason.NODE_EXIT)
    clean(h)


def test_the_previous_owners_row(h):
    h.handoff(3, slot=0, row=tags(2))
    detail = only(h, "misdelivery")
    assert detail == {"output_ids": 1, "cached_tokens": 1, "previous owner of the slot": 2}


def test_the_row_of_a_request_in_another_slot(h):
    h.handoff(3, slot=0, row=tags(1))
    assert only(h, "misdelivery") == {"output_ids": 1, "cached_tokens": 1, "another request": 2}


def test_a_row_that_nobody_made(h):
    h.handoff(3, row=CLEARED)
    assert only(h, "misdelivery") == {"output_ids": 1, "cached_tokens": 1, "unknown": 2}


def test_one_consumed_field_that_is_the_previous_owners(h):
    h.handoff(3, mask=0b01, row=tags(2))
    assert only(h, "misdelivery") == {"output_ids": 1, "previous owner of the slot": 1}


def test_a_row_made_later_has_no_part_in_an_earlier_read(h):
    h.handoff(3, row=tags(4))
    h.handoff(4)
    assert only(h, "misdelivery")["unknown"] == 2


@pytest.mark.parametrize("other", [tag(2, 1), 99], ids=["another's", "nobody's"])
def test_a_foreign_field_beside_an_own_one_is_torn(h, other):
    h.handoff(3, row=[tag(3, 0), other, *CLEARED[2:]])
    assert only(h, "torn")["cached_tokens"] == 1


def test_two_foreign_authors_are_torn(h):
    h.handoff(3, row=[tag(1, 0), tag(2, 1), *CLEARED[2:]])
    assert only(h, "torn") == {
        "output_ids": 1,
        "cached_tokens": 1,
        "another request": 1,
        "previous owner of the slot": 1,
    }


def test_a_foreign_author_beside_nobody_is_torn(h):
    h.handoff(3, row=[tag(1, 0), 99, *CLEARED[2:]])
    assert only(h, "torn")["unknown"] == 1


def test_an_optional_field_that_was_asked_for_counts_as_the_row(h):
    mask = REQUIRED_MASK | LOGPROB_MASK
    h.request(3, mask=mask).invoke().alloc().made().landed().sent().status().commit(
        row=[*tags(3, mask)[:2], *CLEARED[2:]]
    ).free().ok()
    detail = only(h, "torn")
    # The previous owner cleared these fields, too; a cleared field names nobody.
    assert (detail["output_token_logprobs_val"], detail["unknown"]) == (1, 4)


def test_an_inherited_optional_field(h):
    row = [*tags(3)[:6], 11, 12, 13]
    h.handoff(3, mask=REQUIRED_MASK | HIDDEN_MASK, row=row)
    names = ("output_topk_p", "output_topk_index", "output_hidden_states")
    assert only(h, "stale-field") == dict.fromkeys(names, 1)


def test_a_cleared_optional_field_may_be_consumed(h):
    h.handoff(3, mask=REQUIRED_MASK | HIDDEN_MASK)
    clean(h)


def test_what_is_not_consumed_is_only_counted(h):
    h.handoff(3, row=[*tags(3)[:8], 13])
    assert clean(h).unconsumed_stale_fields == {"output_hidden_states": 1}


def test_the_client_got_another_token(h):
    h.begun(3).landed().sent(value=17).status().commit().free().ok(value=18)
    only(h, "wrong-token")


def test_tokens_are_31_bits(h):
    h.begun(3).landed().sent(value=2**31 + 17).status().commit().free().ok(value=17)
    clean(h)


def test_a_wrong_token_of_a_wrong_row_is_counted_once(h):
    h.begun(3).landed().sent(value=17).status().commit(row=tags(2)).free().ok(value=18)
    only(h, "misdelivery")


def test_a_token_that_prefill_did_not_tell_is_not_compared(h):
    h.begun(3).landed().status().commit().free().ok(value=18)
    clean(h)


def test_the_token_is_told_with_the_success(h):
    request = h.begun(3)
    h.prefill().event(Verb.SENT, 3, code=0)
    request.landed().sent(value=17).status().commit().free().ok(value=17)
    clean(h)


def test_a_row_that_was_never_made(h):
    h.request(3).invoke().alloc().landed().sent().status().commit().free().ok()
    only(h, "phantom")


def test_no_phantom_where_the_history_is_cut_off(h):
    h.request(3).invoke().alloc().landed().sent().status().commit().free().ok()
    report = h.check()
    assert counts(report) == {}
    assert any("1 rows were committed" in note for note in report.notes)


def test_foreign_pages(h):
    request = h.begun(3).landed().sent().status().kv_page(room=2).kv_page(room=2)
    request.commit(pages=kv(2)).free().ok()
    assert only(h, "foreign-kv") == {"foreign pages": 1}


def test_incomplete_pages(h):
    request = h.begun(3).landed().sent().status().kv_page(room=0).kv_page(room=3, torn=True)
    request.commit(pages=5).free().ok()
    assert only(h, "foreign-kv") == {"incomplete pages": 1}


def test_a_wrong_digest_alone(h):
    h.handoff(3, pages=5)
    assert only(h, "foreign-kv") == {"no page recorded": 1}


def test_pages_seen_wrong_before_the_right_ones_came(h):
    h.begun(3).status().poll().kv_page(room=2).landed().sent().commit().free().ok()
    clean(h)


def test_wrong_row_and_wrong_pages_are_one_wrong_handoff(h):
    h.handoff(3, row=tags(2), pages=kv(2))
    report = h.finish().check()
    assert counts(report) == {"misdelivery": 1, "foreign-kv": 1}
    assert report.wrong_data == 1
    assert report.unconsumed_stale_fields == {}


def test_a_row_that_changed_under_its_reader(h):
    request = h.begun(3).landed().sent().status().commit().free()
    request.use(fields=0b11, row=[tag(3, 0), tag(4, 1), *CLEARED[2:]]).ok()
    assert only(h, "changed-after-commit") == {"cached_tokens": 1}


def test_a_row_read_again_unchanged(h):
    h.begun(3).landed().sent().status().commit().free().use(fields=0b01).use(fields=0b10).ok()
    clean(h)


def test_a_change_in_what_is_not_read_again(h):
    request = h.begun(3).landed().sent().status().commit().free()
    request.use(fields=0b01, row=[tag(3, 0), tag(4, 1), *CLEARED[2:]]).ok()
    clean(h)


def test_handoffs_of_the_warm_up_are_checked(tmp_path):
    h = History(tmp_path / "h")
    h.phase(Phase.WARMUP)
    h.handoff(3, slot=0, row=tags(9))
    h.node(NodeEvent.UP).phase(Phase.LOAD).healthy(1, 2)
    report = h.finish().check()
    assert counts(report) == {"misdelivery": 1}
