"""The tables of rendezvous/OPERATIONS.md (and of events, of launcher/RECORDS.md) are what the programs say.

usage: tables_test.py TORCHUPCTL METRICS_SAMPLE TORCHUPD [name of a test ...]
"""

import json
import os
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from torchupd import Torchupd

TORCHUPCTL, SAMPLE, TORCHUPD = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
SOURCE = Path(__file__).resolve().parents[2]
OPERATIONS = (SOURCE / "rendezvous/OPERATIONS.md").read_text()
RECORDS = (SOURCE / "launcher/RECORDS.md").read_text()
RIGHTS = {"none": "open", "read": "read", "control": "control"}


def ran(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def rows(text, heading):
    """The cells of each table of that section."""
    section = re.split(r"^## ", text, flags=re.M)
    section, = (part for part in section if part.startswith(heading))
    tables = re.findall(r"^\|.*\n\|[ -|]*\n((?:\|.*\n)+)", section, re.M)
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for table in tables for line in table.splitlines()]


def code(cell):
    return re.findall("`([^`]*)`", cell)


def sentence(text):
    return text[0].lower() + text[1:].rstrip(".")


class Tables(unittest.TestCase):
    maxDiff = None

    def options(self, *verb):
        text = ran(TORCHUPCTL, *verb, "--help")
        return set(re.findall(r"^  +(?:-\w,\s*)?--([\w-]+)", text, re.M))

    def test_verbs(self):
        told = {}
        for head, options, does in rows(OPERATIONS, "torchupctl"):
            name, _, operands = code(head)[0].partition(" ")
            told[name] = (operands, {word.split()[0][2:] for word in code(options) if word.startswith("--")}, sentence(does))
        known = {}
        common = self.options()
        for name, operands, does in re.findall(r"^  ([a-z]+) ((?:\[?[A-Z]\S*)?) *  (\S.*)$", ran(TORCHUPCTL, "--help"), re.M):
            known[name] = (operands, self.options(name) - common, sentence(does))
        self.assertGreater(len(known), 10)
        self.assertEqual(told, known)

    def test_exit_codes(self):
        told = re.search(r"^Exit codes: .*$", OPERATIONS, re.M).group()
        known = re.search(r"(?s)^Exit codes?:.*", ran(TORCHUPCTL, "--help"), re.M).group()
        self.assertEqual(set(re.findall(r"\b\d+\b", told)), set(re.findall(r"\b\d+\b", known)), known)

    def test_metrics(self):
        told = {code(name)[0]: (kind, set(code(labels))) for name, kind, labels, _ in rows(OPERATIONS, "Metrics")}
        known = {}
        for line in ran(SAMPLE, "--table").splitlines():
            name, kind, labels = line.split(" ")
            known[name] = (kind, set(filter(None, labels.split(","))))
        self.assertEqual(told, known)

    def test_events(self):
        told = {}
        for names, _, fields in rows(OPERATIONS, "Events") + rows(RECORDS, "Events"):
            words = set(code(fields)) | ({"rank", "local_rank", "pid"} if "*worker*" in fields else set())
            for name in code(names):
                told[name] = told.get(name, set()) | words
        schema = json.loads(ran(TORCHUPCTL, "events", "--schema"))
        self.assertEqual(told.keys(), set(schema["properties"]["event"]["enum"]))
        for rule in schema["allOf"]:
            name = rule["if"]["properties"]["event"]["const"]
            self.assertEqual(rule["then"]["properties"].keys() - told[name], set(), name)

    def test_routes(self):
        told = [(method, code(path)[0], right) for method, path, right, _ in rows(OPERATIONS, "Routes")]
        source = (SOURCE / "rendezvous/core/ops/ops_route.cpp").read_text()
        known = re.findall(r'Pattern\{"(\w+)", "([^"]+)", OpsRoute::\w+, Right::(\w+)\}', source)
        self.assertEqual(told, [(method, path, RIGHTS[right]) for method, path, right in known])

    def test_rights(self):
        """Who comes from this machine without a token has the right to read."""
        daemon = Torchupd(TORCHUPD, "--bind", "127.0.0.1", stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.end)
        for method, path, right, _ in rows(OPERATIONS, "Routes"):
            with self.subTest(path):
                request = urllib.request.Request(f"http://{daemon.endpoint}{code(path)[0].replace('{rank}', '0')}", method=method,
                                                 headers={"Content-Type": "application/json"},
                                                 data=b"{}" if method == "POST" else None)
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        status = answer.status
                except urllib.error.HTTPError as error:
                    status = error.code
                    error.close()
                job = "{job}" in path and right != "open"
                self.assertEqual(status, 403 if right == "control" else 404 if job else 200)

    def test_what_is_withheld(self):
        source = (SOURCE / "rendezvous/core/ops/withheld.cpp").read_text()
        known = re.search(r"names\{([^}]*)\}", source).group(1)
        told = re.search(r"^\* Who may only read gets no (.*?), wherever", OPERATIONS, re.M).group(1)
        self.assertEqual(sorted(code(told)), sorted(re.findall('"([^"]+)"', known)))

    def test_parts_of_the_ledger(self):
        source = (SOURCE / "rendezvous/core/link/node_report.hpp").read_text()
        known = re.search(r"spent_words\{([^}]*)\}", source).group(1)
        self.assertEqual([code(part)[0] for part, _ in rows(OPERATIONS, "The ledger")], re.findall('"([^"]+)"', known))

    def test_parts_of_the_page(self):
        page = (SOURCE / "rendezvous/net/ops/status_page.html").read_text()
        for names, _ in rows(OPERATIONS, "The page"):
            for name in code(names):
                self.assertIn(f'id="{name[1:]}"', page)


if __name__ == "__main__":
    unittest.main()
