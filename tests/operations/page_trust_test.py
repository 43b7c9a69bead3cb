"""The status page in the real Chromium: what it does when the server goes and comes, for whom it lets in, and that nothing
that strangers wrote is more than text to it."""

import json
import tempfile
import unittest
from pathlib import Path

from browser import until
from page_case import PageCase
from scripted_server import job, node, page, utc

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Connection(PageCase):
    def test_it_reconnects_with_what_it_missed(self):
        server = self.opened("/jobs/a1", job())
        server.happen("a1", "notice", text="one")
        until(lambda: self.browser.count("#events li") == 1, "one event")
        self.assertFalse(self.browser.shown("#banner"))
        server.stop()
        self.until_connected("false")
        self.assertTrue(self.browser.shown("#banner"))
        self.assertEqual(self.browser.count("#ranks [role=gridcell]"), 8)  # what was seen last is still there
        server.happen("a1", "notice", text="two")
        server.change("a1", {"nodes": {"n0": {"ranks": "xrrr"}}})
        server.start()
        self.until_connected()
        self.until_cell(0, "failed")
        self.assertFalse(self.browser.shown("#banner"))
        until(lambda: self.browser.attributes("#events li", "data-seq") == ["1", "2"], "each event once")
        self.assertEqual(server.asked("GET", "/v1/jobs/a1/stream")[-1][2]["last-event-id"], "1")
        self.assertEqual(len(server.asked("GET", "/v1/jobs/a1/events")), 1)

    def test_it_waits_longer_each_time(self):
        server = self.served(job())
        server.refuses["/v1/jobs"] = (503, "too many streams")
        # Time as the page sees it: what it waits for comes at once, and is noted.
        self.browser.command("Page.addScriptToEvaluateOnNewDocument", source="""
            window.waits = [];
            const real = setTimeout;
            window.setTimeout = (done, wait, ...more) => {
              window.waits.push(wait);
              return real(done, Math.min(wait, 20), ...more);
            };""")
        self.browser.open(server.url("/jobs/a1"))
        waits = self.browser.until("""
            const waits = window.waits.filter((each) => [500, 1000, 2000, 4000, 5000].includes(each));
            return waits.length >= 6 && waits""")
        self.assertEqual(waits[:6], [500, 1000, 2000, 4000, 5000, 5000])
        self.assertIn("too many streams", self.browser.text("#banner"))

    def test_a_gap_is_counted_and_what_follows_is_shown(self):
        server = self.opened("/jobs/a1", job())
        server.happen("a1", "notice", text="one")
        server.happen("a1", "notice", told=False, text="lost")
        server.gap("a1", 1)
        server.happen("a1", "notice", text="three")
        server.change("a1", {"nodes": {"n1": {"ranks": "rrrx"}}})
        self.until_cell(7, "failed")
        self.browser.until_text("#lost", "1 earlier event could not be kept")
        self.assertEqual(self.browser.attribute("#events li:last-child", "data-seq"), "3")
        # Where too much is gone for changes, the whole comes again.
        server.change("a1", {"nodes": {"n1": {"ranks": "hhhh"}}}, told=False)
        server.snapshot("a1")
        self.until_cell(7, "hung")
        self.assertEqual(server.opened, 1)

    def test_time_goes_on_while_nothing_changes(self):
        self.opened("/jobs/a1", job())
        self.browser.until_text("#summary", "up 10:0")
        seen = self.browser.text("#summary")
        until(lambda: self.browser.text("#summary") != seen, "a second")

    def test_the_token_of_the_address(self):
        server = self.served(job(), token="s3cret")
        self.browser.open(server.url("/jobs/a1#token=s3cret"))
        self.until_connected()
        self.assertEqual(self.browser.run("return location.href"), server.url("/jobs/a1"))
        self.assertNotIn("s3cret", self.browser.run("return document.documentElement.outerHTML"))
        for method, path, headers, _ in server.requests:
            self.assertNotIn("s3cret", path)
            self.assertNotIn("cookie", headers)
            if path.startswith("/v1/"):
                self.assertEqual(headers.get("authorization"), "Bearer s3cret", (method, path))
        self.browser.ask("POST", "/refresh", {})  # it is kept for this window
        self.until_connected()

    def test_it_asks_for_a_token(self):
        server = self.served(job(), token="s3cret")
        self.browser.open(server.url("/jobs/a1#token=wrong"))
        self.browser.until("return document.querySelector('#login').checkVisibility()")
        self.assertIn("the token is missing or wrong", self.browser.text("#refused"))
        asked = len(server.requests)
        self.browser.write("#token", "alsowrong\ue007")
        until(lambda: len(server.requests) > asked and self.browser.shown("#login"), "it asks again")
        self.browser.write("#token", "s3cret\ue007")
        self.until_connected()
        self.assertFalse(self.browser.shown("#login"))
        self.assertEqual(self.browser.count("#ranks [role=gridcell]") or
                         self.browser.until("return document.querySelectorAll('#ranks [role=gridcell]').length"), 8)


class Strangers(PageCase):
    def hostile_job(self):
        nodes = {HOSTILE: node(HOSTILE, 0, "rx", state="silent", reason=HOSTILE),
                 "__proto__": node("constructor", 2, "r<", group_rank=1)}
        incident = {"seq": 1, "host": HOSTILE, "summary": HOSTILE, "traceback": HOSTILE,
                    "last_lines": [HOSTILE, "\x1b[31m\ufffd"]}
        return job(HOSTILE, nodes=nodes, incidents=[incident], name=HOSTILE, phase=HOSTILE, last=HOSTILE,
                   waits_for=HOSTILE, master=HOSTILE)

    def test_markup_of_theirs_is_text(self):
        server = self.served(self.hostile_job())
        for event in "warning", "worker_exited", "job_ended", HOSTILE, "constructor", "__proto__":
            server.happen(HOSTILE, event, text=HOSTILE, message=HOSTILE, reason=HOSTILE, rank=HOSTILE)
        for value in {"toString": 1}, [HOSTILE], None, 7:
            for event in "warning", "round_formed", "restarting", "progress", "incident_recorded":
                server.happen(HOSTILE, event, text=value, reason=value, round=value, summary=value, host=value,
                              ranks=value)
        self.browser.open(server.url("/jobs/%3C%2Fscript%3E%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"))
        until(lambda: self.browser.count("#events li") == 26, "all events")
        for selector in "h1", "#summary", "#nodes", "#incidents h3", "#incidents pre", "#events", "#ranks":
            self.assertIn(HOSTILE, self.browser.text(selector), selector)
        self.assertIn(HOSTILE, self.browser.run("return document.title"))
        self.assertEqual(self.browser.count("img"), 0)
        self.assertEqual(self.browser.texts("#ranks [data-rank]"), ["r", "x", "r", "<"])
        self.assertEqual(self.cell(3, "data-state"), "unknown")
        server.change(HOSTILE, json.loads('{"nodes": {"__proto__": {"state": "gone", "harmed": 1}}}'))
        self.browser.until("return document.querySelector('[data-node-state=gone]')")
        self.assertFalse(self.browser.run("return 'harmed' in {}"))
        self.browser.click("[data-order=stop]")
        self.assertIn(HOSTILE, self.browser.text("#asked"))
        self.browser.click("[data-answer=yes]")
        self.browser.until_text("#answer", "Accepted")
        self.assert_quiet()
        for url in self.browser.requested():
            self.assertTrue(url.startswith(server.url("/")), url)

    def test_in_a_list_of_jobs_too(self):
        server = self.opened("/", self.hostile_job(), job("a/b <c> \u00e4\u4e16"))
        until(lambda: self.browser.count("#jobs a[data-run-id]") == 2, "two jobs")
        self.assertEqual(self.browser.attributes("#jobs a", "data-run-id"), [HOSTILE, "a/b <c> \u00e4\u4e16"])
        self.assertEqual(self.browser.count("img"), 0)
        self.browser.click("#jobs tr:nth-child(2) a")
        self.until_connected()
        self.browser.until_text("h1", "a/b <c> \u00e4\u4e16")
        self.assertEqual(len(server.asked("GET", "/v1/jobs/a%2Fb%20%3Cc%3E%20%C3%A4%E4%B8%96/stream")), 1)
        self.assert_quiet()

    def test_a_script_of_theirs_would_not_run(self):
        # What makes the others more than luck: the policy holds even where markup would get in.
        self.opened("/jobs/a1", job())
        self.until_cell(7, "running")
        self.browser.run("""document.querySelector('footer').innerHTML = '<img src=x onerror="window.harmed=1">';
                            const script = document.createElement('script');
                            script.textContent = 'window.harmed = 2';
                            document.body.append(script);
                            const style = document.createElement('style');
                            style.textContent = 'body { color: red }';
                            document.body.append(style);""")
        until(lambda: len(self.browser.complaints()) > 0, "the policy's complaint")
        self.assertIsNone(self.browser.run("return window.harmed ?? null"))
        self.assertNotEqual(self.browser.run("return getComputedStyle(document.body).color"), "rgb(255, 0, 0)")


class Report(PageCase):
    def test_it_needs_no_server(self):
        told = job(incidents=[{"seq": 3, "summary": "rank 3 failed", "last_lines": [HOSTILE]}], phase="ended",
                   ended=utc(1_700_000_600), verdict={"exit_code": 1, "reason": HOSTILE})
        events = [{"event": "round_completed", "round": 0, "world_size": 8},
                  {"event": "progress", "steps_per_second": 2.5}, {"event": "progress", "steps_per_second": 3.5},
                  {"event": "job_ended", "exit_code": 1, "reason": HOSTILE}]
        events = [{"seq": at, "time": utc(1_700_000_000 + 30 * at), "host": "node0"} | event
                  for at, event in enumerate(events, 1)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "report.html")
            file.write_text(page("fixed", json.dumps({"snapshot": told, "events": events, "lost": 0})))
            self.browser.open(file.as_uri())
            until(lambda: self.browser.count("#events li") == 4, "its events")
            self.assertEqual(self.browser.count("#ranks [role=gridcell]"), 8)
            self.assertIn(HOSTILE, self.browser.text("#incidents pre"))
            self.assertIn(HOSTILE, self.browser.text("#verdict"))
            self.assertIn("least 2.50, most 3.50", self.browser.label("#rate svg"))
            self.assertIn(HOSTILE, self.browser.text("#attempts tr[data-attempt='0']"))
            self.assertFalse(self.browser.shown("#orders"))
            self.assertFalse(self.browser.shown("#banner"))
            self.assertEqual(self.browser.count("img"), 0)
            self.assertEqual(self.browser.requested(), [file.as_uri()])
            self.assert_quiet()

    def test_all_events_of_it_count(self):
        """A page that follows a job keeps fewer of them."""
        events = [{"event": "round_completed", "round": 0, "world_size": 8}, *[{"event": "notice"}] * 5000]
        events = [{"seq": at, "time": utc(1_700_000_000 + at), "host": "node0"} | each for at, each in enumerate(events, 1)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "report.html")
            file.write_text(page("fixed", json.dumps({"snapshot": job(), "events": events, "lost": 0})))
            self.browser.open(file.as_uri())
            until(lambda: self.browser.count("#events li") == 500, "its events")
            self.assertEqual(self.browser.count("#attempts tr[data-attempt='0']"), 1)


if __name__ == "__main__":
    unittest.main()
