"""examples/monitoring and what processes tell, by the real promtool and Prometheus.

usage: run_case.py monitoring_test.py CASE METRICS_SAMPLE TORCHUPD
"""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from torchupd import Torchupd
from waiting import until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "monitoring"
SUFFIXES = re.compile("_(bucket|sum|count)$")
SAMPLE, TORCHUPD = sys.argv[1:3] if len(sys.argv) > 2 else (None, None)


def promtool(*arguments, folder=None, text=None):
    return subprocess.run(["promtool", *arguments], cwd=folder, input=text, capture_output=True, text=True, timeout=100)


def sample(*arguments):
    return subprocess.run([SAMPLE, *arguments], check=True, capture_output=True, text=True).stdout


def table():
    """Of every metric that a process of ours tells: name, type, labels."""
    lines = [line.split(" ") for line in sample("--table").splitlines()]
    return {name: (kind, set(filter(None, labels.split(",")))) for name, kind, labels in lines}


def told_names(text):
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


def metrics_in(expression):
    words = re.findall(r"\b(?:torchup|process)_\w+", re.sub(r'"[^"]*"', "", expression))
    return {SUFFIXES.sub("", word) if "_turn_seconds" in word else word for word in words}


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


class Monitoring(unittest.TestCase):
    def setUp(self):
        for program in "promtool", "prometheus":
            if not shutil.which(program):
                self.skipTest(f"{program} is not installed (Debian's package prometheus)")
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def assert_silent(self, text):
        checked = promtool("check", "metrics", text=text)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))

    def copy(self):
        return Path(shutil.copytree(EXAMPLES, self.folder / "monitoring"))

    def test_check_metrics_is_silent_on_every_metric(self):
        self.assert_silent(sample())

    def test_check_metrics_would_speak(self):
        bad = sample().replace("torchup_job_incidents_total", "torchup_job_incidents")
        self.assertNotEqual(promtool("check", "metrics", text=bad).returncode, 0)

    def test_a_daemon_tells_what_the_table_says(self):
        began = time.time()
        daemon = Torchupd(TORCHUPD)
        self.addCleanup(daemon.kill)
        for _ in range(2):
            text = get(f"http://{daemon.endpoint}/metrics")
            self.assert_silent(text)
        self.assertLessEqual(told_names(text), table().keys())
        for name in "torchup_build_info", "process_open_fds", "torchup_loop_turn_seconds", "torchup_store_requests_total":
            self.assertIn(name, told_names(text))
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        self.assertGreater(float(values["process_resident_memory_bytes"]), 1e6)
        self.assertLess(abs(float(values["process_start_time_seconds"]) - began), 100)
        open_there = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        self.assertLessEqual(abs(float(values["process_open_fds"]) - open_there), 2)  # a connection comes and goes
        self.assertGreater(float(values["torchup_loop_turn_seconds_count"]), 0)

    def test_configuration_and_rules(self):
        checked = promtool("check", "config", "prometheus.yml", folder=EXAMPLES)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        checked = promtool("check", "rules", "alerts.yml", folder=EXAMPLES)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertIn("6 rules found", checked.stdout)

    def test_rules_fire_when_they_should(self):
        checked = promtool("test", "rules", "alerts_test.yml", folder=EXAMPLES)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_a_rule_that_never_fires_or_always_does_is_noticed(self):
        folder = self.copy()
        rules = (folder / "alerts.yml").read_text()
        alerts = re.findall(r"- alert: (\w+)", rules)
        self.assertEqual(len(alerts), 6)
        for alert in alerts:
            for other in "vector(0) > 1", "vector(1)":
                with self.subTest(alert=alert, expr=other):
                    mutant, count = re.subn(rf"(- alert: {alert}\n    expr: ).*?(?=\n    for:)", rf"\g<1>{other}", rules,
                                            flags=re.DOTALL)
                    self.assertEqual(count, 1)
                    (folder / "alerts.yml").write_text(mutant)
                    self.assertEqual(promtool("check", "rules", "alerts.yml", folder=folder).returncode, 0)
                    self.assertNotEqual(promtool("test", "rules", "alerts_test.yml", folder=folder).returncode, 0)

    def test_rules_and_dashboard_speak_of_what_there_is(self):
        known = table()
        for expression in self.rule_expressions() + self.dashboard_expressions():
            with self.subTest(expression):
                metrics = metrics_in(expression)
                self.assertTrue(metrics or "up{" in expression)
                self.assertLessEqual(metrics, known.keys())

    def test_dashboard_shows_every_metric(self):
        shown = set().union(*map(metrics_in, self.dashboard_expressions()))
        self.assertEqual(table().keys() - shown, set())

    def test_prometheus_evaluates_every_expression(self):
        url = self.prometheus(self.exporter())
        until(lambda: self.query(url, "count_over_time(torchup_agents[1m]) > 2"), "three scrapes")
        for expression in self.dashboard_expressions():
            for name, value in ("run_id", ".*"), ("instance", ".*"), ("__rate_interval", "1m"):
                expression = expression.replace("$" + name, value)
            with self.subTest(expression):
                self.assertTrue(self.query(url, expression), "nothing comes of it")
        for expression in self.rule_expressions():
            with self.subTest(expression):
                self.query(url, expression)

    @staticmethod
    def rule_expressions():
        rules = (EXAMPLES / "alerts.yml").read_text()
        found = re.findall(r"\n    expr: (?:>-\n)?(.*?)(?=\n    for:)", rules, re.DOTALL)
        return [" ".join(expression.split()) for expression in found]

    @staticmethod
    def dashboard_expressions():
        dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
        return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]

    def exporter(self):
        """Serves the sample; its address."""
        body = sample().encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"127.0.0.1:{server.server_port}"

    def prometheus(self, target):
        """A Prometheus with our rules that scrapes `target`; its URL."""
        folder = self.copy()
        config = (folder / "prometheus.yml").read_text().replace("localhost:29400", target)
        config = config.replace("scrape_interval: 15s", "scrape_interval: 1s")
        (folder / "prometheus.yml").write_text(config)
        log = self.folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", "--web.listen-address=127.0.0.1:0",
                                        f"--storage.tsdb.path={self.folder}/data"], stdout=out, stderr=out)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def address():
            self.assertIsNone(process.poll(), log.read_text())
            return re.search(r'msg="Listening on" address=(\S+)', log.read_text())

        return f"http://{until(address, 'Prometheus listens')[1]}"

    def query(self, url, expression):
        """What comes of it now."""
        try:
            answer = get(f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        except urllib.error.HTTPError as refused:
            if refused.code == 503:  # it has just begun
                return []
            self.fail(f"{expression}: {refused.read().decode()}")
        return json.loads(answer)["data"]["result"]


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
