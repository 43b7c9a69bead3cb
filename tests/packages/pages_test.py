"""The pages are true of what is here: exit codes, messages, options of commands, paths, links, rooms, version.

usage: pages_test.py TORCHUP TORCHUPD TORCHUPCTL [unittest options]
"""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import unittest
from pathlib import Path

TORCHUP, TORCHUPD, TORCHUPCTL = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
ROOT = Path(__file__).resolve().parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text()
         for path in [*ROOT.glob("*.md"), *(ROOT / "examples/python").glob("*.md"),
                      *itertools.chain(*((ROOT / house).glob("*.md") for house in ("launcher", "rendezvous", "worker_runtime")))]}
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*\w")
COMMAND = re.compile(r"[+-]?(?:(?:srun|mpirun) .*)?(?:torchup(?:d|ctl)?|torchrun|scripts/\w+|\S*/bin/torchup(?:d|ctl)?)(?: |$)")
PATH = re.compile(r"`((?:launcher|rendezvous|worker_runtime|tests|examples|cmake|scripts)/[\w./]*)`")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def help_of(*words):
    return subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout


def options_of(text):
    """Each option that a help tells of, in all its spellings, and whether a value follows it."""
    options = {}
    for names, value in re.findall(r"^  ((?:-\w, ?|-\w,)?--[\w,-]+)(?:[ =](\S+))?", text, re.M):
        options.update(dict.fromkeys(names.replace(" ", "").split(","), bool(value)))
    return options


VERBS = re.findall(r"^  ([a-z]+) .*\.$", help_of(TORCHUPCTL), re.M)
OPTIONS = {"torchup": options_of(help_of(TORCHUP)), "torchupd": options_of(help_of(TORCHUPD)),
           "torchupctl": options_of("".join(help_of(TORCHUPCTL, verb) for verb in VERBS))}
OPTIONS["torchrun"] = OPTIONS["torchup"]  # of which it knows fewer
OTHERS = {"--kill-on-bad-exit",  # srun's
          "--link",  # what a host of --hosts is started with: no option
          "--nproc-per"}  # torchrun completes it, we do not


def commands():
    """Page, words of each line in a block of commands."""
    for page, text in PAGES.items():
        for language, block in FENCED.findall(text):
            if language not in ("", "sh", "diff"):
                continue
            for line in block.replace("\\\n", "").splitlines():
                if line.startswith("command: ["):
                    yield page, json.loads(re.search(r"\[.*?\]", line)[0])
                elif COMMAND.match(line):
                    yield page, shlex.split(line.lstrip("+-"), comments=True)


def own_options(words):
    """Of a command line: the program of ours, and the options before what that starts."""
    at = next(at for at, word in enumerate(words) if Path(word).name in OPTIONS or word.startswith("scripts/"))
    program, rest = words[at], iter(words[at + 1:])
    known = OPTIONS.get(Path(program).name)
    if Path(program).name == "torchupctl":  # verb and job stand among them
        return "torchupctl", [word.partition("=")[0] for word in rest if word.startswith("-")]
    if known is None:
        return program, [word.partition("=")[0] for word in itertools.takewhile(lambda word: "/" not in word, rest)
                         if word.startswith("--")]
    found = []
    for word in rest:
        if not word.startswith("-"):
            break
        name = word.partition("=")[0]
        found.append(name)
        if known.get(name) and "=" not in word:
            next(rest, None)
    return Path(program).name, found


def anchors(text):
    """As forges make them of headings."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


class Pages(unittest.TestCase):
    def test_exit_codes_are_those_of_the_code(self):
        told = dict(re.findall(r"^  (\d+(?:\+n)?) +(.+)$", help_of(TORCHUP).partition("Exit codes:")[2], re.M))
        section = PAGES["launcher/README.md"].partition("## Exit codes\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (\d+(?:\+n)?) \| (.+?) \| .*\|$", section, re.M)
        self.assertEqual(rows, list(told.items()))
        source = (ROOT / "rendezvous/base/exit_codes.hpp").read_text()
        numbers = re.findall(r"inline constexpr int \w+ = (\d+);", source)
        numbers += re.findall(r"requeue_code = (\d+);", (ROOT / "launcher/core/record/launch_event.hpp").read_text())
        self.assertGreaterEqual(len(numbers), 8)
        self.assertEqual(set(told), {"0", *("128+n" if int(number) > 128 else number for number in numbers)})

    def test_the_daemons_exit_codes_are_those_of_its_help(self):
        told = set(re.findall(r"^  (\d+) ", help_of(TORCHUPD).partition("Exit codes")[2], re.M))
        self.assertGreaterEqual(len(told), 5)
        row = re.search(r"^\| `torchupd` \| (.+) \|$", PAGES["launcher/README.md"], re.M)[1]
        ends = re.search(r"^It ends with (.+)$", PAGES["rendezvous/README.md"], re.M)[1]
        for where in row, ends:
            self.assertEqual(set(re.findall(r"\b\d+\b", where)), told, where)

    def test_exit_codes_of_torchupctl_are_those_of_its_help(self):
        told = re.findall(r"^  (\d+) ", help_of(TORCHUPCTL).partition("Exit codes")[2], re.M)
        line = re.search(r"^Exit codes: (.+?); `wait` else", PAGES["rendezvous/OPERATIONS.md"], re.M)[1]
        self.assertEqual(re.findall(r"(?:^|, )(\d+) ", line), told)

    def test_limits_of_the_daemon_are_all_told(self):
        section = PAGES["rendezvous/README.md"].partition("## Limits\n")[2].partition("\n## ")[0]
        limits = {name for name in OPTIONS["torchupd"] if name.startswith("--max-")} | {"--grace"}
        self.assertGreater(len(limits), 10)
        self.assertEqual({name for name in OPTION.findall(section) if name != "--help"}, limits)

    def test_the_first_screen_is_one(self):
        """80 columns, 40 lines, but for what a program prints: what it is, install, the first job, numbers, a failure."""
        screen = PAGES["README.md"].partition("\n| beyond times")[0].splitlines()
        self.assertLessEqual(len(screen), 40)
        for line in screen:
            self.assertTrue(len(line) <= 80 or line.startswith("torchup: "), line)
        text = "\n".join(screen)
        for part in ("pip install ", "\n-torchrun ", "\n+torchup ", " | torchrun | torchup |", "torchup: What went wrong: ",
                     "(#install)", "(#exit-codes)", "(launcher/README.md#what-messages-mean)", "(examples/python/README.md)"):
            self.assertIn(part, text)

    def test_both_outputs_of_a_failure_are_counted_as_they_are(self):
        page = PAGES["examples/python/README.md"]
        rows = {row: (int(first), int(second)) for row, first, second in
                re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|$", page, re.M)}
        outputs = [block.splitlines()[1:] for language, block in FENCED.findall(page) if language == "text"]
        self.assertEqual(rows["lines"], tuple(map(len, outputs)))
        cause = re.search(r'RuntimeError\("(.+)"\)', (ROOT / "examples/python/bad_batch.py").read_text())[1]
        first = tuple(next(number for number, line in enumerate(lines, 1) if cause in line) for lines in outputs)
        self.assertEqual(rows["the first that names the cause"], first)
        self.assertEqual(list(map(int, re.findall(r"(\d+) lines", PAGES["README.md"].partition("\n\n| beyond")[0]))),
                         list(rows["lines"]))

    def test_messages_are_those_of_the_code(self):
        sources = {}
        for path in itertools.chain((ROOT / "launcher").rglob("*.[ch]pp"), (ROOT / "rendezvous").rglob("*.[ch]pp")):
            sources[path] = re.sub(r'"\s*\n\s*"', "", path.read_text()).replace('\\"', '"')
        rows = re.findall(r"^\| (`.*?) \| ", PAGES["launcher/README.md"].partition("## What messages mean")[2], re.M)
        messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
        self.assertGreater(len(messages), 60)
        for message in messages:
            parts = [part for part in message.split("…") if len(part) > 2]
            self.assertGreater(sum(map(len, parts)), 7, message)
            said = any(all(part in text for part in parts) for text in sources.values())
            self.assertTrue(said, f"nothing says: {message}")

    def test_options_of_commands_exist(self):
        seen = set()
        for page, words in commands():
            program, options = own_options(words)
            seen.add(program)
            with self.subTest(page=page, words=words):
                if program in OPTIONS:
                    self.assertEqual([name for name in options if name not in OPTIONS[program]], [])
                else:
                    self.assertTrue(os.access(ROOT / program, os.X_OK))
                    known = {*OPTIONS["torchup"], *OPTION.findall(help_of(ROOT / program))}  # some hand options on
                    self.assertEqual([name for name in options if name not in known], [])
        self.assertLessEqual({"torchup", "torchupctl", "torchrun", "scripts/setup", "scripts/test", "scripts/two_nodes"}, seen)

    def test_options_in_the_text_exist(self):
        known = {*itertools.chain(*OPTIONS.values()), *OTHERS}
        for path in itertools.chain((ROOT / "scripts").rglob("*"), (ROOT / "examples").rglob("*.*")):
            if path.is_file() and path.suffix in ("", ".py", ".cpp"):
                known.update(OPTION.findall(path.read_text()))
        count = 0
        for page, text in PAGES.items():
            for span in re.findall(r"`([^`\n]+)`", FENCED.sub("", text)):
                words = span.split()
                if not (span.startswith("--") or words[0] in OPTIONS):
                    continue
                for name in OPTION.findall(span):
                    count += 1
                    with self.subTest(page=page, span=span):
                        self.assertTrue(name in known, f"there is no {name}")
        self.assertGreater(count, 100)

    def test_paths_exist(self):
        for page in "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "worker_runtime/README.md":
            for path in PATH.findall(PAGES[page]):
                with self.subTest(page=page, path=path):
                    self.assertTrue((ROOT / path).exists())

    def test_links_lead_somewhere(self):
        for page, text in PAGES.items():
            for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
                if target.startswith("https://"):
                    continue
                path, _, anchor = target.partition("#")
                with self.subTest(page=page, target=target):
                    file = (ROOT / page).parent / path if path else ROOT / page
                    self.assertTrue(file.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(file.read_text()))

    def test_rooms_stand_in_the_order_that_is_kept(self):
        kept = re.findall(r"^house (\S+) (.+)$", (ROOT / "tests/unit/layers_test.sh").read_text(), re.M)
        told = re.findall(r"^\| `([\w/]+)` \| (`[\w `]+`) \|$", PAGES["ARCHITECTURE.md"], re.M)
        self.assertEqual([(house, rooms.replace("`", "")) for house, rooms in told], kept)

    def test_changes_begin_with_this_version(self):
        version = re.search(r"^project\(torchup VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
        self.assertEqual(re.search(r"^## \[(.+?)\]", PAGES["CHANGELOG.md"], re.M)[1], version)


if __name__ == "__main__":
    unittest.main()
