"""Files and pages from canned results."""

import csv
import json
import re
import sys

import pytest

from harness.sweep import grid, outputs
from harness.sweep.folder import SweepFolder
from harness.sweep.grid import Axis
from harness.sweep.outputs import write_all
from harness.sweep.plan import Plan
from harness.sweep.stats import summaries
from harness.sweep.sweep import findings, to_object
from harness.sweep.table import percent
from harness.sweep.views import lines, trends

from .canned import aborted, results, run, short

CONCURRENCY, SLOTS = Axis("workload.concurrency", [1, 8, 64]), Axis("engine.slots", [4, 16])
AXES = [CONCURRENCY, SLOTS]


def made(axes, make):
    cells = grid.cells(axes)
    runs = [run(cell, repeat, make(cell, repeat)) for cell in cells for repeat in (1, 2, 3)]
    return summaries(cells, runs)


def rising(cell, repeat):
    """False aborts rise with concurrency and not with slots; the rate levels off."""
    load = cell["workload.concurrency"]
    return aborted(
        5 * {1: 0, 8: 4, 64: 12}[load] + repeat, rate_per_s={1: 500, 8: 2900, 64: 3000}[load] + 10.0 * repeat
    )


def sweep_folder(tmp_path, axes):
    plan = Plan(tree={}, changes={"guards": "sglang-0.5.12", "transport.name": "tcp"}, axes=axes, run_s=1.0, repeats=3)
    return SweepFolder.create(tmp_path, "sweep", plan, ["handoff", "sweep", "<b>"], 1), plan


def page(tmp_path, axes, cells, left=0):
    folder, plan = sweep_folder(tmp_path, axes)
    paths, note = write_all(folder, cells, {"manifest": folder.manifest, "plan": plan, "left": left})
    assert note == ""
    assert {path.name for path in paths} == {"sweep.csv", "sweep.parquet", "sweep.html"}
    return (folder.path / "sweep.html").read_text(), folder


def test_a_page_stands_alone_and_says_what_a_stranger_must_know(tmp_path):
    text, folder = page(tmp_path, AXES, made(AXES, rising))
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert not re.findall(r"url\((?!#)", text)
    assert text.count("<svg") == 4
    for said in (
        "What was varied",
        "What was held",
        "How to read it",
        "sglang-0.5.12",
        "interleaving more than contention",
        "torch",
        "knee ",
    ):
        assert said in text, said
    assert "handoff sweep &#39;&lt;b&gt;&#39;" in text
    assert "&lt;b&gt;" in text
    assert str(folder.manifest["machine"]["cores"]) in text


def test_colours_come_from_the_page_so_that_dark_pages_are_readable(tmp_path):
    text, _ = page(tmp_path, AXES, made(AXES, rising))
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--s0)" in drawn
    assert not re.findall(r"(?:fill|stroke): ?#(?!fff)", drawn)


def test_cells_that_are_missing_unknown_or_failed_are_shown_as_such(tmp_path):
    cells = made(AXES, rising)[:-1]
    cells[0] = summaries([cells[0].values], [run(cells[0].values, 1, short(1))])[0]
    cells[1] = summaries([cells[1].values], [run(cells[1].values, error="decode-0 ended")])[0]
    text, _ = page(tmp_path, AXES, cells, left=3)
    assert "3 runs are missing" in text
    assert 'class="none"' in text
    assert re.search(r'<td[^>]*class="unknown', text)
    assert re.search(r'<td[^>]*class="failed', text)
    assert "decode-0 ended" in text


@pytest.mark.parametrize(
    "axes",
    [
        [Axis("guards", ["hardened", "sglang-0.5.12"])],
        [Axis("workload.concurrency", [4])],
        [Axis("engine.slots", [4, 16])],
        [CONCURRENCY, SLOTS, Axis("transport.ack", [True, False])],
        [Axis("seed", list(range(30))), Axis("guards", ["hardened", "sglang-0.5.8"])],
    ],
)
def test_any_grid_gives_a_page(tmp_path, axes):
    text, _ = page(tmp_path, axes, made(axes, lambda cell, repeat: results()))
    assert "Every cell" in text


def test_a_page_without_a_single_result(tmp_path):
    cells = summaries([{"engine.slots": 4}], [run({"engine.slots": 4}, error="no")])
    assert "failed" in page(tmp_path, [Axis("engine.slots", [4])], cells)[0]


def test_the_table_files_agree(tmp_path):
    pl = pytest.importorskip("polars")
    cells = made(AXES, rising)
    _, folder = page(tmp_path, AXES, cells)
    frame = pl.read_parquet(folder.path / "sweep.parquet")
    with (folder.path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert frame.height == len(rows) == 6
    assert frame.columns == list(rows[0])
    assert frame["false_abort_count"].to_list() == [int(row["false_abort_count"]) for row in rows]
    assert frame["workload.concurrency"].to_list() == [cell.values["workload.concurrency"] for cell in cells]


def test_without_the_extra_one_line_says_what_is_left_out(tmp_path, monkeypatch):
    for module in ("polars", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)
    folder, plan = sweep_folder(tmp_path, AXES)
    paths, note = write_all(folder, made(AXES, rising), {"manifest": folder.manifest, "plan": plan, "left": 0})
    assert [path.name for path in paths] == ["sweep.csv"]
    assert note.startswith("left out: sweep.parquet and sweep.html, for want of matplotlib, polars; pip install")
    assert "\n" not in note
    assert outputs.missing() == {"sweep.parquet": ["polars"], "sweep.html": ["matplotlib"]}


def test_the_object_of_json(tmp_path):
    folder, plan = sweep_folder(tmp_path, AXES)
    found = json.loads(json.dumps(to_object(folder, plan, made(AXES, rising), 0), allow_nan=False))
    assert len(found["cells"]) == 6
    assert found["cells"][0].keys() >= results().keys()
    assert [knee["engine.slots"] for knee in found["knees"]] == [4, 16]


def test_what_moved_the_false_aborts_is_said_with_no_more_than_the_intervals_bear(tmp_path):
    _, plan = sweep_folder(tmp_path, AXES)
    rise, level = (trend.text for trend in trends(made(AXES, rising), AXES))
    assert rise.startswith("concurrency: false aborts rise with it, from 0.2 %")
    assert level.startswith("slots: no effect on the false-abort rate beyond chance")
    texts = findings(plan, made(AXES, rising))
    assert any(text.startswith("knee (slots 4): concurrency 8") or "knee (slots 4)" in text for text in texts)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({1: 60, 8: 20, 64: 2}, "false aborts fall with it"),
        ({1: 2, 8: 60, 64: 20}, "neither rising nor falling throughout"),
        ({1: 10, 8: 11, 64: 12}, "no effect on the false-abort rate beyond chance"),
        ({1: 0, 8: 0, 64: 0}, "no false abort at any value"),
    ],
)
def test_trends(counts, said):
    cells = made([CONCURRENCY], lambda cell, repeat: aborted(counts[cell["workload.concurrency"]]))
    assert said in trends(cells, [CONCURRENCY])[0].text


def test_only_a_load_has_a_knee():
    def level(cell, repeat):
        return results(rate_per_s=1000.0)

    assert lines(made([CONCURRENCY], level), CONCURRENCY)[0].knee is not None
    assert lines(made([SLOTS], level), SLOTS)[0].knee is None


def test_shares_in_words():
    (cell,) = summaries([{}], [run({}, 1, aborted(0))])
    assert percent(cell.false_aborts) == "0 (< 0.3 %)"
    (cell,) = summaries([{}], [run({}, 1, aborted(10))])
    assert percent(cell.false_aborts) == "1 % (0.54 to 1.8)"
