"""The status page in the real Chromium: what is on it, and how it is used. A scripted server stands for the programs, so
that each moment comes when the test wants it."""

import json
import unittest

from browser import until
from page_case import PageCase
from scripted_server import LEDGER, job, node, utc

READABLE = 4.5  # WCAG 2.1, 1.4.3


class Job(PageCase):
    def test_what_is_on_it(self):
        nodes = {"n0": node("node0", 0, "rw-s"), "n1": node("node1", 4, "hdxt", group_rank=1),
                 "n2": node("node2", 8, "?", group_rank=2)}
        server = self.opened("/jobs/a1", job(nodes=nodes))
        self.browser.until_text("#legend", "running")
        states = ["running", "waiting", "not_started", "started", "hung", "exited", "failed", "ended", "unknown"]
        self.assertEqual(self.browser.attributes("#ranks [role=gridcell]", "data-state"), states)
        self.assertEqual(self.browser.texts("#ranks [role=gridcell]"), list("rw-shdxt?"))
        self.assertEqual(self.browser.attributes("#ranks [role=gridcell]", "data-rank"), [str(rank) for rank in range(9)])
        self.assertEqual(self.cell(0, "aria-label"), "rank 0, node0, running, step 41200")
        self.assertEqual(self.browser.run("return document.title"), "torchup: a1 running")
        self.assertIn("a1", self.browser.text("h1"))
        self.assertIn("41200", self.browser.text("#rate"))
        self.assertIn("3.10 steps/s", self.browser.text("#rate"))
        spent = [name for name in LEDGER if name not in ("rank_seconds", "basis")]
        self.assertEqual(self.browser.attributes("#ledger tr", "data-spent"), spent)
        self.assertIn("90.0 % useful", self.browser.text("#spent"))
        # The worst node comes first, whatever its place in the job.
        self.assertEqual(self.browser.attributes("#nodes tr[data-node]", "data-node"), ["n1", "n2", "n0"])
        server.change("a1", {"nodes": {"n0": {"state": "silent", "ranks": "?xxx"}, "n1": {"ranks": "rrrr"}}})
        until(lambda: self.browser.attributes("#nodes tr[data-node]", "data-node") == ["n0", "n2", "n1"], "a new order")
        self.browser.until_text("#server", "MiB")
        self.assert_quiet()

    def test_changes_as_they_come(self):
        server = self.opened("/jobs/a1", job())
        self.until_cell(3, "running")
        self.browser.run("window.cell = document.querySelector('[data-rank=\"3\"]')")
        server.change("a1", {"nodes": {"n0": {"ranks": "rrrx", "step": 41201}}, "step": {"max": 41201},
                             "phase": "restarting"})
        self.until_cell(3, "failed")
        self.assertEqual(self.cell(0, "aria-label"), "rank 0, node0, running, step 41201")
        self.assertTrue(self.browser.run("return window.cell === document.querySelector('[data-rank=\"3\"]')"))
        self.assertEqual(self.browser.run("return document.title"), "torchup: a1 restarting")
        # null takes away (RFC 7386); a node comes.
        server.change("a1", {"nodes": {"n1": None, "n2": node("node2", 4, "ss", group_rank=1)}, "step": None})
        until(lambda: self.browser.count("#ranks [role=gridcell]") == 6, "six ranks")
        self.assertEqual(self.cell(5, "data-state"), "started")
        self.assertIn("no step reported", self.browser.text("#rate"))
        server.change("a1", {"ended": utc(1_700_000_700), "phase": "ended",
                             "verdict": {"exit_code": 1, "reason": "rank 3 failed"}})
        self.browser.until_text("#verdict", "Ended with 1: rank 3 failed")
        self.assertFalse(self.browser.shown("#orders"))

    def test_events_and_attempts(self):
        server = self.served(job())
        server.happen("a1", "round_formed", round=0, world_size=8, nodes=2)
        server.happen("a1", "restarting", reason="rank 3 failed", restarts_left=2)
        self.browser.open(server.url("/jobs/a1"))
        until(lambda: self.browser.count("#events li") == 2, "what was before")
        server.happen("a1", "round_formed", round=1, world_size=8, nodes=2)
        last = server.happen("a1", "warning", text="low on shared memory")
        until(lambda: self.browser.count("#events li") == 4, "what comes")
        self.assertEqual(self.browser.attributes("#events li", "data-seq"), ["1", "2", "3", "4"])
        self.assertEqual(self.browser.attributes("#events li", "data-event"),
                         ["round_formed", "restarting", "round_formed", "warning"])
        self.assertIn("low on shared memory", self.browser.text(f"#events li[data-seq='{last}']"))
        self.assertEqual(self.browser.attributes("#attempts tr[data-attempt]", "data-attempt"), ["1", "0"])
        self.assertIn("rank 3 failed", self.browser.text("#attempts tr[data-attempt='0']"))
        for _ in range(600):
            last = server.happen("a1", "notice", text="something")
        until(lambda: self.browser.attribute("#events li:last-child", "data-seq") == str(last), "the last one")
        self.assertEqual(self.browser.count("#events li"), 500)
        self.assertEqual(self.browser.count("#attempts tr[data-attempt]"), 2)  # more is remembered than is shown

    def test_an_incident_with_its_last_lines(self):
        incident = {"seq": 7, "time": utc(1_700_000_100), "host": "node1", "summary": "rank 5 on node1: exit code 3",
                    "evidence": {"last_lines": ["loss nan", "ValueError: bad"], "traceback": ""}}
        server = self.opened("/jobs/a1", job(incidents=[incident]))
        self.browser.until("return document.querySelector('#incidents article')")
        self.assertEqual(self.browser.attribute("#incidents article", "data-incident"), "7")
        self.assertIn("loss nan\nValueError: bad", self.browser.text("#incidents article pre"))
        server.change("a1", {"incidents": [{"seq": 9, "summary": "rank 5 on node1: exit code 3", "withheld": True}]})
        self.browser.until("return document.querySelector('#incidents [data-incident=\"9\"]')")
        self.assertIn("withheld", self.browser.text("#incidents article"))
        self.assertEqual(self.browser.count("#incidents pre"), 0)

    def test_a_line_of_the_rate(self):
        server = self.served(job())
        for step in range(1, 4):
            server.happen("a1", "progress", step_min=step, step_max=step, steps_per_second=float(step), ranks=[])
        self.browser.open(server.url("/jobs/a1"))
        line = "return document.querySelector('#rate polyline').points.numberOfItems"
        until(lambda: self.browser.run(line) == 4, "a point for each")  # and one for now
        self.assertIn("least 1.00, most 3.10", self.browser.label("#rate svg"))

    def test_why_it_is_empty(self):
        self.opened("/jobs/a1", job(nodes={"n0": {"host": "node0", "state": "ready"}}, phase="waiting for nodes",
                                    round=0, world_size=0, step=None, ledger=None,
                                    waits_for="1 of 2 nodes: node0; not heard of: node1"))
        self.browser.until_text("#no-rank", "not heard of: node1")
        self.assertEqual(self.browser.count("#ranks [role=gridcell]"), 0)

    def test_a_job_that_is_not_there(self):
        server = self.served(job())
        self.browser.open(server.url("/jobs/b2"))
        self.browser.until_text("#banner", "there is no job 'b2'")
        server.jobs["b2"] = job("b2")
        server.events["b2"] = []
        self.until_connected()

    def test_every_text_can_be_read(self):
        nodes = {"n0": node("node0", 0, "rw-s"),
                 "n1": node("node1", 4, "hdxt?", group_rank=1, state="silent", reason="for 3 s")}
        incident = {"seq": 1, "summary": "rank 5 failed", "last_lines": ["a line"], "withheld": True}
        server = self.opened("/jobs/a1", job(nodes=nodes, incidents=[incident], waits_for="node2"))
        server.happen("a1", "round_formed", round=1, world_size=9, nodes=2)
        self.browser.until("return document.querySelector('#attempts td')")
        server.refuses["/v1/jobs/a1/restart"] = (409, "it ends already")
        for scheme in "light", "dark":
            with self.subTest(scheme):
                self.browser.colours(scheme)
                self.assertEqual([each for each in self.browser.contrasts() if each[0] < READABLE], [])
        self.assertGreater(len(self.browser.contrasts()), 60)
        grounds = "return getComputedStyle(document.body).backgroundColor"
        dark = self.browser.run(grounds)
        self.browser.click("[data-order=restart]")
        self.assertEqual([each for each in self.browser.contrasts() if each[0] < READABLE], [])
        self.browser.click("[data-answer=yes]")
        self.browser.until_text("#answer", "it ends already")
        server.stop()
        self.until_connected("false")
        for scheme in "dark", "light":  # the banner and what was refused
            self.browser.colours(scheme)
            self.assertEqual([each for each in self.browser.contrasts() if each[0] < READABLE], [])
        self.assertNotEqual(self.browser.run(grounds), dark)


class Keyboard(PageCase):
    def test_the_grid_is_one_tab_stop(self):
        server = self.opened("/jobs/a1", job())
        self.until_cell(7, "running")
        self.assertEqual(self.browser.role("#ranks"), "grid")
        self.assertEqual(self.browser.role("#ranks [data-rank='0']"), "gridcell")
        self.assertEqual(self.browser.role("#ranks > div"), "row")
        self.assertEqual(self.browser.label("#ranks [data-rank='5']"), "rank 5, node1, running, step 41200")
        self.assertEqual(self.browser.role("#events"), "log")
        self.assertEqual(self.browser.attributes("#ranks [tabindex='0']", "data-rank"), ["0"])
        self.browser.run("document.querySelector('[data-order=restart]').focus()")
        self.browser.press("Tab")
        for keys, rank in [([], 0), (["ArrowRight"], 1), (["ArrowDown"], 5), (["ArrowRight"], 6), (["End"], 7),
                           (["ArrowRight"], 7), (["Home"], 4), (["ArrowLeft"], 3), (["ArrowUp"], 3),
                           (["Control", "End"], 7), (["Control", "Home"], 0), (["PageDown"], 4), (["PageUp"], 0),
                           (["ArrowRight"], 1)]:
            if keys:
                self.browser.press(*keys)
            self.assertEqual(self.browser.focused("data-rank"), str(rank), keys)
            self.assertEqual(self.browser.attributes("#ranks [tabindex='0']", "data-rank"), [str(rank)])
        self.assertIn("rank 1, node0, running", self.browser.text("#detail"))
        # The focus stays where it is while the job changes, and while the grid is made anew.
        server.change("a1", {"nodes": {"n0": {"ranks": "rhrr"}}})
        self.browser.until_text("#detail", "rank 1, node0, hung")
        server.change("a1", {"nodes": {"n2": node("node2", 8, "ss", group_rank=2)}})
        until(lambda: self.browser.count("#ranks [role=gridcell]") == 10, "ten ranks")
        self.assertEqual(self.browser.focused("data-rank"), "1")
        self.browser.press("Shift", "Tab")
        self.assertEqual(self.browser.focused("data-order"), "restart")
        self.browser.press("Tab")
        self.assertEqual(self.browser.focused("data-rank"), "1")
        self.browser.press("Tab")
        self.assertIsNone(self.browser.focused("data-rank"))  # and out by one more

    def test_orders_after_a_question(self):
        server = self.opened("/jobs/a1", job())
        self.until_cell(7, "running")
        self.browser.run("document.querySelector('[data-order=stop]').focus()")
        self.browser.press("Enter")
        self.assertIn("Stop job a1", self.browser.text("#asked"))
        self.assertEqual(self.browser.focused("data-answer"), "no")
        self.browser.press("Escape")
        self.assertFalse(self.browser.shown("#question"))
        self.assertEqual(self.browser.focused("data-order"), "stop")
        self.browser.press("Enter")
        self.browser.press("Enter")  # on "No"
        self.assertFalse(self.browser.shown("#question"))
        self.assertEqual([each for each in server.requests if each[0] == "POST"], [])
        self.browser.press("Enter")
        self.browser.click("#choices input[name=save]")
        self.browser.click("[data-answer=yes]")
        self.browser.until_text("#answer", "Accepted")
        (_, _, headers, body), = server.asked("POST", "/v1/jobs/a1/stop")
        self.assertEqual(json.loads(body), {"save": True, "now": False})
        self.assertEqual(headers["content-type"], "application/json")
        server.change("a1", {"nodes": {"n1": {"state": "drained"}}})
        for verb, row in ("drain", "n0"), ("undrain", "n1"):
            button = f"#nodes [data-node={row}] [data-order={verb}]"
            self.browser.until("return document.querySelector(arguments[0])", button)
            self.browser.click(button)
            self.browser.click("[data-answer=yes]")
            until(lambda: server.asked("POST", f"/v1/jobs/a1/nodes/{row}/{verb}"), f"{verb} of {row}")
        server.refuses["/v1/jobs/a1/restart"] = (409, "the job is stopping")
        self.browser.click("[data-order=restart]")
        self.browser.click("[data-answer=yes]")
        self.browser.until_text("#answer", "Not done: the job is stopping")

    def test_who_may_only_read_has_no_buttons(self):
        self.opened("/jobs/a1", job(), right="read")
        self.until_cell(7, "running")
        self.assertFalse(self.browser.shown("#orders"))
        self.assertEqual(self.browser.count("#nodes [data-order]"), 0)


class All(PageCase):
    def test_rows_of_all_jobs(self):
        server = self.opened("/", job("a1"), job("b2", phase="waiting for nodes", step=None))
        until(lambda: self.browser.count("#jobs a[data-run-id]") == 2, "two jobs")
        row = self.browser.texts("#jobs tbody tr:first-child td")
        self.assertEqual(row[:7] + row[8:], ["a1", "running", "1:2", "8", "41200", "3.10", "1", "train.py"])
        self.assertTrue(row[7].startswith("10:0"), row)
        self.browser.run("document.querySelector('[data-run-id=b2]').focus()")
        rows = server.rows()
        rows["jobs"][1]["phase"] = "running"
        server.tell(None, "change", {"jobs": rows["jobs"]})
        self.browser.until_text("#jobs tbody tr:nth-child(2) td:nth-child(2)", "running")
        self.assertEqual(self.browser.focused("data-run-id"), "b2")
        server.tell(None, "change", {"jobs": rows["jobs"][:1]})
        until(lambda: self.browser.count("#jobs a[data-run-id]") == 1, "one job")
        self.assert_quiet()

    def test_why_there_is_none(self):
        self.opened("/")
        self.browser.until_text("#no-job", "no job yet; start one with")
        self.assertFalse(self.browser.shown("#jobs"))


class Size(PageCase):
    def test_a_nodes_cells_are_one_line_below_its_name(self):
        self.opened("/jobs/a1", job(nodes={"n0": node("node0", 0, "rrrrrrrr"), "n1": node("a-name-longer-than-its-cell", 8, "r", group_rank=1)}))
        self.until_cell(8, "running")
        lines = self.browser.run("return [...document.querySelectorAll('#ranks [role=row]')].map((row) => "
                                 "[...row.children].map((each) => Math.round(each.getBoundingClientRect().top / 10)))")
        for header, *cells in lines:
            self.assertEqual(len(set(cells)), 1, lines)
            self.assertGreater(cells[0], header)

    def test_a_thousand_ranks_each_second(self):
        server = self.opened("/jobs/a1", job(nodes={"n0": node("node0", 0, "rrrrrrrr")}))
        self.until_cell(7, "running")
        nodes = {f"n{at}": node(f"node{at}", 8 * at, "rrrrrrrr", group_rank=at) for at in range(125)}
        server.change("a1", {"nodes": nodes})
        until(lambda: self.browser.count("#ranks [data-rank]") == 1000, "a thousand ranks")
        for second in range(1, 6):
            letter, state = ("w", "waiting") if second % 2 else ("r", "running")
            changed = {"ranks": "rrrrrrr" + letter, "step": 41200 + second}
            server.change("a1", {"nodes": {f"n{at}": changed for at in range(125)}})
            until(lambda: self.cell(999, "data-state") == state, f"rank 999 is {state}")
        self.assertEqual(self.cell(999, "aria-label"), "rank 999, node124, waiting in a collective, step 41205")
        self.assertEqual(self.browser.count("#ranks [data-state=waiting]"), 125)

    def test_beyond_4096_ranks_cells_are_nodes(self):
        nodes = {f"n{at}": node(f"node{at}", 8 * at, "rrrrrrrr", group_rank=at) for at in range(512)}
        server = self.opened("/jobs/a1", job(nodes=nodes))
        until(lambda: self.browser.count("#ranks [data-rank]") == 4096, "4,096 ranks")
        server.change("a1", {"nodes": {"n512": node("node512", 4096, "rxwh", group_rank=512)}})
        until(lambda: self.browser.count("#ranks [role=gridcell][data-node]") == 513, "513 nodes")
        self.assertEqual(self.browser.count("#ranks [data-rank]"), 0)
        worst = "#ranks [data-node=n512]"
        self.assertEqual(self.browser.attribute(worst, "data-state"), "failed")
        self.assertEqual(self.browser.attribute(worst, "aria-label"),
                         "node512, 4 ranks from 4096, worst failed, step 41200")
        self.assertEqual(self.browser.count("#nodes tr[data-node]"), 512)
        self.assertIn("1 more", self.browser.text("#more-nodes"))


if __name__ == "__main__":
    unittest.main()
