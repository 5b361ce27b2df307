#!/usr/bin/env python3
"""Opens pages of --html in headless Chromium and uses them as a reader does.

    check_html.py --command build/dev/tools/cachalot [--pictures FOLDER] [--only NAME] [--write-shapes]

Each check is a function test_*, which gets a Context. Without a Chromium it skips with a message. The shapes of pages are in
shapes.json; --write-shapes writes them anew, after a look at the pages (--pictures).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import typing

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser
import training

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTILE = "</script><img src=x onerror=\"window.wasExecuted = true\">/model.py"
SHARED = "window.cachalotReport.shared"
SERVER = ["--engine", "vllm", "--by", "arithmetic", "--model", ROOT / "data" / "serving" / "models" / "qwen3-8b.json", "--gpu", "h100"]
SHAPES = pathlib.Path(__file__).parent / "shapes.json"
# By name: the width of the window, and whether it is dark.
VIEWS = {"light": (1280, False), "dark": (1280, True), "telephone": (390, False)}
# Parts of a page whose places and widths do not depend on the fonts of a machine.
PARTS = ".top, #verdict, #figures, .figure, main > section.card, #tables > section.card, .chart, .overview, .map, .flame, .remedies > li"


class Context(typing.NamedTuple):
    chromium: browser.Browser
    folder: pathlib.Path
    command: str
    pictures: pathlib.Path | None
    writes_shapes: bool = False

    def cachalot(self, *arguments: object, cwd: pathlib.Path | None = None, code: int = 0) -> str:
        done = subprocess.run([self.command, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd)
        assert done.returncode == code, done.stderr
        return done.stdout

    def page(self, events: int = 6000, dark: bool = False, **options: typing.Any) -> browser.Page:
        """Returns the page of a training, which is written once."""
        name = "_".join(["training", str(events), *sorted(options)])
        html = self.folder / f"{name}.html"
        if not html.exists():
            snapshot = self.snapshot(events, **options)
            self.cachalot("snapshot", "--html", html, snapshot)
        return self.chromium.open(html, dark)

    def snapshot(self, events: int = 6000, **options: typing.Any) -> pathlib.Path:
        path = self.folder / ("_".join(["training", str(events), *sorted(options)]) + ".pickle")
        if not path.exists():
            training.write_snapshot(path, events, **options)
        return path

    @property
    def program(self) -> pathlib.Path | None:
        """A program to simulate; None in a build without the simulator."""
        path = pathlib.Path(self.command).resolve().parents[1] / "tests" / "allocating_program"
        return path if path.exists() else None

    def picture(self, page: browser.Page, name: str, whole: bool = True) -> None:
        if self.pictures:
            self.pictures.mkdir(parents=True, exist_ok=True)
            page.screenshot(self.pictures / f"{name}.png", whole)


def middle(box: dict[str, float]) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def view_of(page: browser.Page) -> list[float]:
    return typing.cast("list[float]", page.evaluate(f"{SHARED}.view"))


def assert_quiet(page: browser.Page) -> None:
    assert page.requests() == [], page.requests()
    assert page.complaints() == [], page.complaints()


def test_a_page_shows_the_figures_of_the_command(context: Context) -> None:
    page = context.page()
    figures = json.loads(context.cachalot("snapshot", "--json", context.snapshot()))["devices"][0]
    end = page.evaluate(f"(() => {{ const s = {SHARED}; const p = s.pyramid; const at = p.at(s.run.events); let sum = 0;"
                        " for (let i = 0; i < p.categories; ++i) sum += at[i]; return [sum, at[p.allocated(0)], at[p.reserved(0)]]; })()")
    assert end == [figures["requested_bytes"], figures["allocated_bytes"], figures["reserved_bytes"]], (end, figures)
    assert page.evaluate("document.title").startswith(str(context.snapshot()))
    assert page.evaluate("document.querySelectorAll('#figures .figure').length") >= 6
    context.picture(page, "light")
    assert_quiet(page)


def test_the_page_heap_is_that_of_replay(context: Context) -> None:
    page = context.page()
    trace = context.folder / "trace.csv"
    lives = page.evaluate(f"(() => {{ const r = {SHARED}.run; const steps = []; for (let i = 0; i < r.count; ++i) {{ steps.push([r.begin[i], 1, i, r.bytesOf(i)]);"
                          " if (r.end[i] !== NEVER) steps.push([r.end[i], 0, i, 0]); } return steps.sort((a, b) => a[0] - b[0] || a[1] - b[1]); })()")
    trace.write_text("".join(f"a,{i},{size},0\n" if begins else f"f,{i}\n" for _, begins, i, size in lives))
    expected = json.loads(context.cachalot("replay", "--config", "heap:pages", "--json", trace))["peak_reserved_bytes"]
    found = page.evaluate(f"{SHARED}.pyramid.reservedPeaks[1].bytes")
    # The page follows the replay with a change tracker, and then the allocator takes other paths to nearly the same place.
    assert abs(found - expected) <= 0.02 * expected, (found, expected)


def test_every_moment_of_the_charts_is_exact(context: Context) -> None:
    page = context.page()
    differs = page.evaluate(f"""(() => {{
      const {{run, pyramid}} = {SHARED};
      for (let moment = 0; moment <= run.events; moment += 37) {{
        const sums = new Float64Array(pyramid.width);
        for (const each of run.liveAt(moment)) sums[run.category[each]] += run.bytesOf(each);
        const state = pyramid.at(moment);
        for (let i = 0; i < pyramid.categories; ++i) if (sums[i] !== state[i]) return `category ${{i}} at ${{moment}}: ${{sums[i]}}, ${{state[i]}}`;
        run.layouts.forEach((_, layout) => run.rangesAt(layout, moment).reduce((sum, range) => sum + range.bytes, 0) === state[pyramid.reserved(layout)] || layout > 0 || (sums.bad = moment));
        if (sums.bad) return `reserved at ${{moment}}`;
      }}
      return '';
    }})()""")
    assert differs == "", differs


def test_blocks_lie_in_segments_and_do_not_overlap(context: Context) -> None:
    page = context.page()
    trouble = page.evaluate(f"""(() => {{
      const shared = {SHARED}, page = window.cachalotReport;
      for (const moment of [0, 1000, shared.pyramid.peakMoment, shared.run.events]) {{
        shared.live = shared.run.liveAt(moment).slice();
        shared.moment = moment;
        for (const map of page.maps.maps) {{
          map.place();
          const blocks = [...shared.live].map((each) => map.blockOf(each)).filter((block) => block.address !== 0).sort((a, b) => a.address - b.address);
          for (let i = 0; i < blocks.length; ++i) {{
            if (map.offsetOf(blocks[i].address) < 0 || map.offsetOf(blocks[i].address + blocks[i].bytes - 1) < 0) return `layout ${{map.layout}}: outside of segments at ${{moment}}`;
            if (i > 0 && blocks[i - 1].address + blocks[i - 1].bytes > blocks[i].address) return `layout ${{map.layout}}: overlap at ${{moment}}`;
          }}
        }}
      }}
      return '';
    }})()""")
    assert trouble == "", trouble


def test_the_wheel_and_the_brush_zoom_and_shift_pans(context: Context) -> None:
    page = context.page()
    whole = view_of(page)
    x, y = middle(page.box("#timeline"))
    page.wheel(x, y, -240)
    near = view_of(page)
    assert near[1] - near[0] < 0.6 * (whole[1] - whole[0]), near
    page.drag((x - 100, y), (x + 100, y))
    nearer = view_of(page)
    assert nearer[1] - nearer[0] < 0.3 * (near[1] - near[0]), nearer
    page.drag((x - 100, y), (x + 100, y), modifiers=8)
    panned = view_of(page)
    assert panned[0] < nearer[0] and abs((panned[1] - panned[0]) - (nearer[1] - nearer[0])) < 1, (nearer, panned)
    box = page.box("#overview")
    page.drag((box["x"] + 0.1 * box["width"], middle(box)[1]), (box["x"] + 0.4 * box["width"], middle(box)[1]))
    part = [each / whole[1] for each in view_of(page)]
    assert part[0] < 0.5 and 0.2 < part[1] - part[0] < 0.45 or part[1] - part[0] < 0.3, part
    assert_quiet(page)


def test_keys_reach_everything(context: Context) -> None:
    page = context.page()
    whole = view_of(page)
    page.key("+")
    zoomed = view_of(page)
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    page.key("ArrowRight")
    assert view_of(page)[0] > zoomed[0]
    page.key("-")
    page.key("0")
    assert view_of(page) == whole
    page.key("p")
    moment = page.evaluate(f"{SHARED}.moment")
    assert moment == page.evaluate(f"{SHARED}.pyramid.peakMoment")
    page.key("ArrowRight", shift=True)
    assert page.evaluate(f"{SHARED}.moment") == moment + 1
    page.key("o")
    assert page.evaluate(f"{SHARED}.moment") == page.evaluate(f"{SHARED}.run.ooms[0][0]")
    page.key("p")
    assert page.evaluate(f"{SHARED}.moment") == moment
    page.key("?")
    assert page.evaluate("document.getElementById('keys').open")
    page.evaluate("document.getElementById('keys').close()")
    page.key("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.key("Escape")
    unnamed = page.evaluate("[...document.querySelectorAll('button, input, select, [tabindex]')].filter((each) => !(each.textContent.trim() || each.labels?.length ||"
                            " each.getAttribute('aria-label'))).map((each) => each.outerHTML)")
    assert unnamed == [], unnamed
    page.evaluate("document.querySelector('#maps canvas').focus()")
    page.key("ArrowRight")
    assert "requested" in page.evaluate("document.querySelector('#maps .readout').textContent")
    page.evaluate("document.getElementById('flame').focus()")
    page.key("ArrowDown")
    page.key("Enter")
    assert "of live memory" in page.evaluate("document.getElementById('flame-text').textContent")
    assert_quiet(page)


def test_a_moment_is_chosen_with_the_slider_and_in_the_chart(context: Context) -> None:
    page = context.page()
    title = page.evaluate("document.querySelector('.map h3').textContent")
    page.evaluate("(() => { const slider = document.getElementById('moment'); slider.value = 40; slider.dispatchEvent(new Event('input')); })()")
    page.frames(3)
    assert page.evaluate("document.querySelector('.map h3').textContent") != title
    assert "event 40," in page.evaluate("document.getElementById('moment-text').textContent")
    x, y = middle(page.box("#timeline"))
    page.click(x, y)
    page.frames(3)
    chosen = page.evaluate(f"{SHARED}.moment / {SHARED}.run.events")
    assert 0.4 < chosen < 0.6, chosen
    assert_quiet(page)


def test_a_search_dims_what_does_not_match(context: Context) -> None:
    page = context.page()
    rows = page.evaluate("document.querySelectorAll('#sites tbody tr').length")
    page.press("#search")
    page.call("Input.insertText", {"text": "attention"})
    page.wait_for(f"{SHARED}.matches !== null")
    found = page.evaluate("[...document.querySelectorAll('#sites tbody tr')].map((row) => row.textContent)")
    assert 0 < len(found) < rows and all("attention" in each for each in found), found
    assert 0 < page.evaluate(f"{SHARED}.pyramid.maxima[{SHARED}.pyramid.matching]") < page.evaluate(f"{SHARED}.pyramid.peakTotal")
    context.picture(page, "search")
    page.key("Escape")
    page.wait_for(f"{SHARED}.matches === null")
    assert_quiet(page)


def test_columns_sort(context: Context) -> None:
    page = context.page()
    page.press("#sites th:nth-child(4) button")
    counts = page.evaluate("[...document.querySelectorAll('#sites tbody tr')].map((row) => Number(row.children[3].textContent.replaceAll(',', '')))")
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 1, counts
    page.press("#sites th:nth-child(4) button")
    assert page.evaluate("document.querySelectorAll('#sites th')[3].getAttribute('aria-sort')") == "ascending"


def test_dark_light_and_paper(context: Context) -> None:
    page = context.page(dark=True)
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    context.picture(page, "dark")
    page.press("#theme")
    light = page.evaluate(color)
    assert dark != light and page.evaluate("document.documentElement.dataset.theme") == "light"
    page.key("t")
    page.call("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.evaluate("getComputedStyle(document.querySelector('.hint')).display") == "none"
    page.call("Emulation.setEmulatedMedia", {"media": ""})
    printed = page.pdf()
    assert printed.startswith(b"%PDF") and len(printed) > 20000, len(printed)
    if context.pictures:
        (context.pictures / "page.pdf").write_bytes(printed)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert_quiet(page)


def test_the_axis_may_be_time(context: Context) -> None:
    page = context.page()
    page.press("#by-time")
    longest = page.evaluate("window.cachalotReport.timeline.chart.scales.x.max")
    assert abs(longest - page.evaluate(f"{SHARED}.run.timeAt({SHARED}.run.events)") / 1e6) < 1e-6
    x, y = middle(page.box("#timeline"))
    page.wheel(x, y, -240)
    assert view_of(page)[0] > 0
    assert_quiet(page)


def test_texts_of_a_file_stay_texts(context: Context) -> None:
    snapshot = training.Training(600, file=HOSTILE).record()
    snapshot["device_traces"][0][0]["frames"] = [training.frame(HOSTILE, 1, HOSTILE)] * 3
    path = context.folder / "hostile.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    html = context.folder / "hostile.html"
    context.cachalot("snapshot", "--html", html, path)
    assert "onerror" not in html.read_text()
    page = context.chromium.open(html)
    page.frames(5)
    assert page.evaluate("document.images.length") == 0 and page.evaluate("window.wasExecuted") is None
    assert "onerror" in page.evaluate("document.getElementById('sites').textContent")
    assert_quiet(page)
    # The policy itself holds, too: what is put into the page cannot run, and cannot load.
    blocked = page.evaluate("(() => { try { document.body.innerHTML = '<b>'; return false; } catch { return true; } })()")
    assert blocked


def test_two_runs_are_chosen_by_name(context: Context) -> None:
    html = context.folder / "two.html"
    context.cachalot("snapshot", "--html", html, context.snapshot(), context.snapshot(3000, growth=1.5))
    page = context.chromium.open(html)
    events = page.evaluate(f"{SHARED}.run.events")
    page.evaluate("(() => { const run = document.getElementById('run'); run.value = '1'; run.dispatchEvent(new Event('change')); })()")
    page.frames(3)
    assert page.evaluate(f"{SHARED}.run.events") != events
    assert_quiet(page)


def test_a_snapshot_without_history_has_its_map(context: Context) -> None:
    snapshot = training.Training(600).record()
    snapshot["device_traces"] = [[]]
    path = context.folder / "state.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    html = context.folder / "state.html"
    context.cachalot("snapshot", "--html", html, path)
    page = context.chromium.open(html)
    assert page.evaluate(f"{SHARED}.live.length") > 0
    assert "reserved" in page.evaluate("document.querySelector('.map h3').textContent")
    assert_quiet(page)


def test_explain_has_its_verdict_on_top(context: Context) -> None:
    html = context.folder / "explained.html"
    context.cachalot("explain", "--html", html, "--memory", "1GiB", context.snapshot())
    told = json.loads(context.cachalot("explain", "--json", "--memory", "1GiB", context.snapshot()))["devices"][0]
    page = context.chromium.open(html)
    assert page.evaluate("document.querySelector('#verdict h2').textContent") == told["verdict"]["text"], told
    settings = page.evaluate("[...document.querySelectorAll('.remedies code')].map((each) => each.textContent)")
    assert settings == [each["setting"] for each in told["remedies"]], (settings, told["remedies"])
    context.picture(page, "explain")
    assert_quiet(page)


def test_headings_are_sentences_and_identifiers_stay(context: Context) -> None:
    html = context.folder / "peak.html"
    snapshot = ROOT / "data" / "snapshots" / "torch-2.11" / "transformer_stages.pickle.gz"
    context.cachalot("explain", "--html", html, snapshot)
    page = context.chromium.open(html)
    heading = page.evaluate("document.querySelector('#verdict h2').textContent")
    assert heading == "At its peak the program used 95.13 MiB (40.0 % gradients); memory did not run out", heading
    for text, shown in (
        ("set heap:pages", "Set heap:pages"),
        ("expandable_segments:True", "expandable_segments:True"),
        ("heap:pages,remap_slack:0.1", "heap:pages,remap_slack:0.1"),
        ("cachalot's page heap", "cachalot's page heap"),
    ):
        assert page.evaluate(f"asSentence({json.dumps(text)})") == shown, text
    assert_quiet(page)


def test_a_legend_breaks_between_its_groups(context: Context) -> None:
    page = context.page()
    page.evaluate("document.getElementById('legend').style.width = '40rem'")
    lines = page.evaluate(
        "[...document.querySelectorAll('#legend .keys')].map((keys) => [...new Set([...keys.children].map((key) => Math.round(key.getBoundingClientRect().bottom)))])"
    )
    assert len(lines) == 2 and len(lines[0]) == len(lines[1]) == 1 and lines[0] != lines[1], lines


def test_advise_has_its_table_beside_the_history(context: Context) -> None:
    html = context.folder / "advice.html"
    context.cachalot("advise", "--no-times", "--html", html, context.snapshot())
    told = json.loads(context.cachalot("advise", "--no-times", "--json", context.snapshot()))
    page = context.chromium.open(html)
    rows = page.evaluate("document.querySelectorAll('#tables tbody tr').length")
    assert rows == len(told["policies"]), (rows, told)
    assert page.evaluate(f"{SHARED}.run.count") > 0
    context.picture(page, "advise")
    assert_quiet(page)


def test_reports_are_tables(context: Context) -> None:
    trace = ROOT / "data" / "traces" / "gpt2_fp32.csv.gz"
    commands: dict[str, list[object]] = {"compare": [trace], "check": ["--max-peak", "1TiB", trace], "fit": SERVER}
    if context.program:
        commands["simulate"] = [context.program, 4, 64, 2]
    for command, arguments in commands.items():
        html = context.folder / f"{command}.html"
        context.cachalot(command, "--html", html, *arguments)
        page = context.chromium.open(html)
        shown = page.evaluate("document.getElementById('tables').innerText")
        assert {"compare": "page heap", "check": "12.91 GiB", "simulate": "context", "fit": "longest context"}[command] in shown, shown
        assert "undefined" not in shown and "NaN" not in shown, shown
        context.picture(page, command)
        assert_quiet(page)


def test_diff_shows_both_runs(context: Context) -> None:
    html = context.folder / "diff.html"
    context.cachalot("diff", "--html", html, context.snapshot(), context.snapshot(3000, growth=1.5))
    page = context.chromium.open(html)
    assert page.evaluate("document.getElementById('comparison-chart').querySelectorAll('canvas').length") == 1
    assert "attention" in page.evaluate("document.getElementById('tables').textContent")
    context.picture(page, "diff")
    assert_quiet(page)


def test_top_draws_its_samples(context: Context) -> None:
    # This process's page, as docs/reference/statistics_page.md has it: one device that holds 3 GiB, of which 2 are allocated.
    size = 512 + 352 + 64 * 128
    header = struct.pack("<8s4I4Qq16s256sQQqqQq", b"cachalot", 1, 512, size - 512, 1, size, os.getpid(), 0, 0, 0, b"1", b"train", 0, 2, 0, 0, 1, 0)
    device = struct.pack("<iIII16s64s5Q", 0, 1, 0, 0, b"", b"GPU", 80 << 30, 2**64 - 1, 2**64 - 1, 3 << 30, 2 << 30)
    folder = context.folder / "live"
    folder.mkdir()
    (folder / f"cachalot.{os.getpid()}.0").write_bytes((header.ljust(512, b"\0") + device).ljust(size, b"\0"))
    html = context.folder / "top.html"
    context.cachalot("top", "--directory", folder, "--quiet", "--count", 4, "--interval", 0.1, "--html", html)
    page = context.chromium.open(html)
    assert page.evaluate("document.querySelectorAll('#tables .chart canvas').length") == 1
    shown = page.evaluate("document.getElementById('tables').innerText")
    assert "3.00 GiB" in shown and "5 rows" in shown and "NaN" not in shown and "undefined" not in shown, shown
    context.picture(page, "top")
    page.key("t")  # the chart is drawn anew
    assert page.evaluate("document.querySelectorAll('#tables .chart canvas').length") == 1
    assert_quiet(page)


def test_a_trace_has_no_empty_parts(context: Context) -> None:
    html = context.folder / "trace.html"
    context.cachalot("check", "--html", html, "--max-peak", "1GiB", ROOT / "data" / "traces" / "gpt2_fp32.csv.gz", code=1)
    page = context.chromium.open(html)
    shown = page.evaluate("document.body.innerText")
    for absent in ("unknown", "Flame graph", "Lines of the program", "1 rows", "1 call stacks", " ms"):
        assert absent not in shown, absent
    assert "call stacks were not recorded" in shown and "1 row" in shown, shown
    assert page.evaluate("countOf(1, 'call stack')") == "1 call stack" and page.evaluate("countOf(1200, 'row')") == "1,200 rows"
    assert page.evaluate("document.getElementById('verdict').classList.contains('bad')")
    assert page.evaluate("bytesText(6.625 * 2 ** 20)") == "6.62 MiB", "not as the command writes it"
    assert_quiet(page)


# A telephone shows what a number is of without a move sideways.
def test_a_narrow_window_shows_each_subject(context: Context) -> None:
    snapshot, trace = context.snapshot(), ROOT / "data" / "traces" / "gpt2_varlen.csv.gz"
    commands: dict[str, list[object]] = {"explain": ["--memory", "1GiB", snapshot], "snapshot": [snapshot], "advise": ["--no-times", snapshot],
                                         "diff": [snapshot, context.snapshot(3000, growth=1.5)], "compare": [trace], "check": ["--max-peak", "1TiB", trace],
                                         "fit": [*SERVER, "--gpu", "t4", "--vary", "batch=1,64"]}
    if context.program:
        commands["simulate"] = [context.program, 4, 64, 2]
    for command, arguments in commands.items():
        html = context.folder / f"narrow_{command}.html"
        context.cachalot(command, "--html", html, *arguments)
        page = context.chromium.open(html, width=390)
        page.frames(3)
        outside = page.evaluate("""[...document.querySelectorAll('main *, .top *')].filter((each) => {
          const box = each.getBoundingClientRect();
          return box.width > 1 && (box.right > innerWidth + 1 || each.matches('.scroll') && each.scrollWidth > each.clientWidth);
        }).map((each) => each.outerHTML.slice(0, 120))""")
        assert outside == [] and page.evaluate("document.documentElement.scrollWidth") == 390, (command, outside)
        rows = page.evaluate("[...document.querySelectorAll('.data tbody tr')].map((row) => row.firstElementChild && [...row.children].filter((cell) => cell.matches('.subject')).length)")
        assert rows and set(rows) == {1}, (command, rows)
        context.picture(page, f"narrow_{command}")
        assert_quiet(page)


def shape_of(page: browser.Page, width: int) -> dict[str, typing.Any]:
    """Returns where the parts of a page are, the colours that its style gives, and a summary of each part's pixels."""
    page.resize(width, page.evaluate("document.documentElement.scrollHeight"))  # all of it is drawn
    time.sleep(0.2)
    page.frames(4)
    shape = page.evaluate(f"""(() => {{
      const color = (selector, property) => getComputedStyle(document.querySelector(selector))[property];
      const parts = [...document.querySelectorAll({json.dumps(PARTS)})].filter((each) => each.offsetWidth > 0);
      return {{
        width: document.documentElement.scrollWidth,
        colors: {{
          categories: theme.categories.join(' '), ground: color('body', 'backgroundColor'), paper: color('.card', 'backgroundColor'), ink: color('h1', 'color'),
          whale: color('.whale', 'color'), verdict: color('#verdict', 'borderLeftColor'), soft: color('#subtitle', 'color'),
        }},
        parts: parts.map((each) => {{
          const box = each.getBoundingClientRect();
          return [each.id || each.className || each.localName, ...[box.x, box.y, box.width, box.height].map(Math.round)];
        }}),
      }};
    }})()""")
    scale = 0.25
    picture = page.picture(scale)
    shape["parts"] = [[name, x, wide, high, *picture.summary(x * scale, y * scale, (x + wide) * scale, (y + high) * scale)] for name, x, y, wide, high in shape["parts"]]
    return typing.cast("dict[str, typing.Any]", shape)


def differences(found: dict[str, typing.Any], stored: dict[str, typing.Any]) -> list[str]:
    """Returns what differs by more than fonts do: they change heights, and little of the colours."""
    if [part[0] for part in found["parts"]] != [part[0] for part in stored["parts"]]:
        return [f"the parts are {[part[0] for part in found['parts']]}, not {[part[0] for part in stored['parts']]}"]
    differs = [f"{key} is {found[key]}, not {stored[key]}" for key in ("width", "colors") if found[key] != stored[key]]
    for (name, *now), (_, *then) in zip(found["parts"], stored["parts"]):
        if any(abs(now[i] - then[i]) > 4 for i in (0, 1)):
            differs.append(f"{name}: left and width are {now[:2]}, not {then[:2]}")
        if abs(now[2] - then[2]) > 24 + 0.3 * then[2]:
            differs.append(f"{name}: its height is {now[2]}, not {then[2]}")
        if any(abs(a - b) > 14 for a, b in zip(now[3:6], then[3:6])):
            differs.append(f"{name}: its mean colour is {now[3:6]}, not {then[3:6]}")
        if abs(now[6] - then[6]) > 4 + 0.2 * then[6]:
            differs.append(f"{name}: {now[6]} % of it have a colour, not {then[6]} %")
    return differs


def test_pages_look_as_they_did(context: Context) -> None:
    pages = {"explain": context.folder / "shape_explain.html"}
    context.cachalot("explain", "--html", pages["explain"], "--memory", "1GiB", context.snapshot().name, cwd=context.folder)
    if context.program:
        pages["simulate"] = context.folder / "shape_simulate.html"
        context.cachalot("simulate", "--gpu", "t4", "--html", pages["simulate"], "tests/allocating_program", 4, 64, 2, cwd=context.program.parents[1])
    found = {}
    for name, html in pages.items():
        for view, (width, dark) in VIEWS.items():
            page = context.chromium.open(html, dark, width)
            found[f"{name} {view}"] = shape_of(page, width)
            context.picture(page, f"{name}_{view}")
            assert_quiet(page)
    if context.writes_shapes:
        assert context.program, "the shapes need a build with the simulator"
        SHAPES.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(shape, separators=(',', ':'))}" for name, shape in found.items()) + "\n}\n")
    stored = json.loads(SHAPES.read_text())
    differs = [f"{name}: {each}" for name, shape in found.items() for each in differences(shape, stored[name])]
    assert not differs, "\n".join(["if it is meant, --write-shapes:", *differs])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--write-shapes", action="store_true")
    arguments = parser.parse_args()
    chromium = browser.find_chromium()
    if chromium is None:
        print("skipped: there is no Chromium on PATH; the Debian package is chromium")
        return 0
    tests = [each for name, each in globals().items() if name.startswith("test_") and arguments.only in name]
    failures = 0
    with tempfile.TemporaryDirectory(prefix="cachalot-pages-") as folder, browser.Browser(chromium) as started:
        context = Context(started, pathlib.Path(folder), str(pathlib.Path(arguments.command).resolve()), arguments.pictures, arguments.write_shapes)
        for test in tests:
            try:
                test(context)
                print(f"ok   {test.__name__}", flush=True)
            except Exception:  # whatever it is: the other checks go on
                failures += 1
                print(f"FAIL {test.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(tests) - failures} of {len(tests)} checks passed")
    return 1 if failures or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
