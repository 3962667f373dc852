#!/usr/bin/python3
"""Timelines of plans: GetTimeline, the chart in the terminal, and the page for a browser, read by
an XML parser and, where one is installed, by Chromium."""
import html.parser
import os
import re
import shutil
import subprocess
import threading
import unittest
import xml.etree.ElementTree as xml

import grpc

import harness
from harness import Daemon, Session, text_tokens
from memferry.v1 import plan_pb2, training_pb2

SMALL = ["--seq-len", "32", "--effort", "estimate"]
SVG = "{http://www.w3.org/2000/svg}"
PAGE_BYTES_MAX = 2 << 20
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)


class Tags(html.parser.HTMLParser):
    """Every element is closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.links = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


def drawings(page):
    return [xml.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.S)]


class Report(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.plan = cls.daemon.json("plan", "tiny-llama", "--device-memory", "1MiB",
                                   *SMALL)["plan"]
        cls.path = os.path.join(harness.FOLDER, "plan.html")
        cls.daemon.cli("show", "plan", cls.plan["id"], "--html", cls.path)
        with open(cls.path, encoding="utf-8") as file:
            cls.page = file.read()

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def timeline(self, **more):
        return self.daemon.plans.GetTimeline(
            plan_pb2.GetTimelineRequest(id=self.plan["id"][:12], **more))

    # ---- the contract ----

    def test_every_task_is_in_a_span(self):
        timeline = self.timeline(columns=1500)
        self.assertEqual(sum(span.task_count for lane in timeline.lanes for span in lane.spans),
                         timeline.task_count)
        self.assertEqual(timeline.task_count, self.plan["prediction"]["task_count"])
        self.assertEqual([lane.lane for lane in timeline.lanes], ["compute", "h2d", "d2h", "cpu"])

    def test_spans_are_in_order_and_within_the_step(self):
        timeline = self.timeline()
        for lane in timeline.lanes:
            end = 0
            for span in lane.spans:
                self.assertGreaterEqual(span.start_ns, end)
                self.assertLessEqual(span.busy_ns, span.duration_ns * (1 + 1e-9))
                self.assertLess(span.unit, len(self.plan["units"]))
                self.assertGreaterEqual(span.unit, -1)
                end = span.start_ns + span.duration_ns * (1 - 1e-9)
            self.assertLessEqual(end, timeline.step_ns * (1 + 1e-9))
            self.assertAlmostEqual(sum(span.busy_ns for span in lane.spans), lane.busy_ns,
                                   delta=1e-6 * timeline.step_ns)

    def test_fewer_columns_fewer_spans(self):
        fine, coarse = self.timeline(columns=1500), self.timeline(columns=10)
        counts = [sum(len(lane.spans) for lane in one.lanes) for one in (fine, coarse)]
        self.assertLess(counts[1], counts[0] / 2)
        self.assertLessEqual(counts[1], 4 * 4 * 10)
        for a, b in zip(fine.lanes, coarse.lanes):
            self.assertAlmostEqual(a.busy_ns, b.busy_ns, delta=1e-6 * fine.step_ns)

    def test_memory_stays_within_what_is_reserved(self):
        timeline = self.timeline(columns=200)
        self.assertEqual(len(timeline.memory), 200)
        device = [sum(sample.device_bytes) for sample in timeline.memory]
        host = [sum(sample.host_bytes) for sample in timeline.memory]
        self.assertLessEqual(max(device), timeline.device_reserved_bytes)
        self.assertLessEqual(max(host), timeline.host_reserved_bytes)
        self.assertGreater(max(device), min(device), "activations come and go")
        # The peak that the plan tells by purpose is seen at some moment, where every byte placed
        # is in use then.
        told = sum(int(row["device_bytes"]) for row in self.plan["prediction"]["memory"])
        self.assertGreater(max(device), 0.8 * told)

    def test_stall_adds_up(self):
        timeline = self.timeline()
        stall = sum(cause.stall_ns for cause in timeline.stalls)
        busy = timeline.lanes[0].busy_ns
        self.assertAlmostEqual(stall + busy, timeline.step_ns, delta=1e-3 * timeline.step_ns)

    def test_what_is_refused(self):
        for request, code in (
                (plan_pb2.GetTimelineRequest(id=self.plan["id"], columns=1501),
                 grpc.StatusCode.INVALID_ARGUMENT),
                (plan_pb2.GetTimelineRequest(id=self.plan["id"], columns=-1),
                 grpc.StatusCode.INVALID_ARGUMENT),
                (plan_pb2.GetTimelineRequest(id="abcdef"), grpc.StatusCode.NOT_FOUND)):
            with self.assertRaises(grpc.RpcError) as caught:
                self.daemon.plans.GetTimeline(request)
            self.assertEqual(caught.exception.code(), code)

    # ---- the terminal ----

    def test_chart_in_the_terminal(self):
        for locale, full in (("C.UTF-8", "\u2588"), ("C", "@")):
            text = self.daemon.cli("show", "plan", self.plan["id"],
                                   environment={"LC_ALL": locale}).stdout
            self.assertIn(full, text)
            self.assertEqual(text.isascii(), locale == "C")
            for row in ("phase", "compute", "h2d", "d2h", "cpu", "device", "host"):
                self.assertRegex(text, rf"(?m)^  {row} ")
            self.assertIn("compute waits for", text)
            self.assertNotIn("\x1b", text)
            lanes = re.search(r"(?ms)^  phase.*?^  cpu[^\n]*", text).group().splitlines()
            self.assertEqual(len(lanes), 5)
            self.assertTrue(all(len(line) <= 100 for line in lanes), lanes)
            self.assertEqual(re.sub(r"(.)\1*", r"\1", lanes[0].split()[1]).count("F"), 1)

    # ---- the page ----

    def test_page_is_whole_and_alone(self):
        tags = Tags(self.page)
        self.assertEqual([tag for tag in tags.open if tag != "meta"], [])
        self.assertEqual(tags.links, [])
        self.assertNotIn("<script", self.page)
        self.assertNotRegex(self.page.replace("http://www.w3.org/2000/svg", ""),
                            r"https?:|url\(|@import")
        self.assertLess(len(self.page), PAGE_BYTES_MAX)

    def test_drawings_are_well_formed(self):
        lanes, device, host = drawings(self.page)
        spans = sum(len(lane.spans) for lane in self.timeline(columns=600).lanes)
        rects = lanes.findall(f".//{SVG}rect")
        self.assertEqual(len(rects), spans)
        for rect in rects:
            title = rect.find(f"{SVG}title").text
            self.assertRegex(title, r"start .*, takes ")
            x, width = float(rect.get("x")), float(rect.get("width"))
            self.assertGreaterEqual(x, 70)
            self.assertLessEqual(x + width, 1140.5)
        for memory in (device, host):
            areas = [path for path in memory.iter(f"{SVG}path")
                     if path.get("class").startswith("p")]
            self.assertGreater(len(areas), 1)
            for area in areas:
                self.assertNotIn("nan", area.get("d"))
                self.assertTrue(area.get("d").endswith("Z"))

    def test_page_holds_all_decisions(self):
        for unit in self.plan["units"]:
            self.assertIn(f"<td>{unit['name']}</td>", self.page)
        for word in ("bound", "gap", "Why compute waits", "in all"):
            self.assertIn(word, self.page)

    def test_page_to_standard_output(self):
        result = self.daemon.cli("show", "plan", self.plan["id"], "--html", "-")
        self.assertEqual(result.stdout, self.page)

    def test_file_that_cannot_be_written(self):
        for path in ("/nowhere/plan.html", "/dev/full"):
            result = self.daemon.cli("show", "plan", self.plan["id"], "--html", path, code=1)
            self.assertIn("cannot write " + path, result.stderr)
        self.assertTrue(os.path.exists("/dev/full"))

    def test_session_predicted_and_measured(self):
        session = Session(self.daemon, micro_batch=1, seq_len=32, budget=1 << 20)
        ask = training_pb2.GetSessionTimelineRequest(session_id=session.id, columns=300)
        going = threading.Event()
        done = threading.Event()

        def train():
            while not done.is_set():
                session.step(text_tokens(32))
                going.set()

        thread = threading.Thread(target=train)
        thread.start()
        try:
            self.assertTrue(going.wait(60))
            # Between two steps the last graph may be one that has next to nothing to do.
            for _ in range(100):
                answer = self.daemon.training.GetSessionTimeline(ask, timeout=60)
                if sum(lane.busy_ns for lane in answer.measured.lanes) > 0:
                    break
            page = self.daemon.cli("show", "session", session.id, "--html", "-").stdout
        finally:
            done.set()
            thread.join()
        self.assertEqual(answer.plan_id, session.session.plan_id)
        for side in (answer.predicted, answer.measured):
            self.assertEqual(sum(span.task_count for lane in side.lanes for span in lane.spans),
                             side.task_count)
            self.assertEqual(side.step_ns, answer.measured.step_ns)
            # The last graph may be an update alone: the norm, on whatever lane has gradients.
            self.assertGreater(sum(lane.busy_ns for lane in side.lanes), 0)
        self.assertEqual(answer.predicted.task_count, answer.measured.task_count)
        self.assertEqual(len(drawings(page)), 5)
        self.assertIn("last work as measured", page)
        session.close()
        with self.assertRaises(grpc.RpcError) as caught:
            self.daemon.training.GetSessionTimeline(ask, timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.daemon.cli("show", "profile", "tiny-llama", "--html", "-", code=2)

    def test_large_graph(self):
        """Tens of thousands of tasks make neither a large answer nor a large page."""
        plan = self.daemon.json("plan", "llama-3-8b", "--hardware", "rtx-4090", "--seq-len", "512",
                                "--accumulation", "16", "--strategy", "stream")["plan"]
        self.assertGreater(plan["prediction"]["task_count"], 50000)
        timeline = self.daemon.plans.GetTimeline(
            plan_pb2.GetTimelineRequest(id=plan["id"], columns=1500))
        self.assertLess(timeline.ByteSize(), 2 << 20)
        self.assertEqual(timeline.task_count, sum(
            span.task_count for lane in timeline.lanes for span in lane.spans))
        page = self.daemon.cli("show", "plan", plan["id"], "--html", "-").stdout
        self.assertLess(len(page), PAGE_BYTES_MAX)
        lanes = drawings(page)[0]
        pale = [rect for rect in lanes.iter(f"{SVG}rect") if rect.get("fill-opacity")]
        self.assertTrue(pale)
        self.assertTrue(all(" more, busy " in rect.find(f"{SVG}title").text for rect in pale))

    @unittest.skipIf(BROWSER is None, "no Chromium is installed")
    def test_page_in_a_browser(self):
        result = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             "--user-data-dir=" + os.path.join(harness.FOLDER, "browser"), "--dump-dom",
             "file://" + self.path], capture_output=True, text=True, timeout=120, check=True)
        self.assertEqual(result.stdout.count("<rect"), self.page.count("<rect"))
        self.assertEqual(result.stdout.count("<svg"), 3)
        self.assertEqual(result.stdout.count("<tr"), self.page.count("<tr"))
        self.assertNotRegex(result.stderr, r":CONSOLE|Uncaught")


if __name__ == "__main__":
    harness.main()
