"""What the cases of the status page share: a browser, and a server whose job they script."""

import unittest

from browser import Browser, Refused, needed, until
from scripted_server import ScriptedServer

CONNECTED = "return document.querySelector('main').dataset.connected"


class PageCase(unittest.TestCase):
    def setUp(self):
        needed()
        self.browser = Browser()
        self.addCleanup(self.browser.close)

    def served(self, *jobs, **options):
        server = ScriptedServer(*jobs, **options)
        self.addCleanup(server.stop)
        return server

    def opened(self, path, *jobs, **options):
        """The page at that path, connected."""
        server = self.served(*jobs, **options)
        self.browser.open(server.url(path))
        self.until_connected()
        return server

    def until_connected(self, state="true"):
        self.browser.until(f"{CONNECTED} === '{state}'")

    def cell(self, rank, name):
        return self.browser.attribute(f"#ranks [data-rank='{rank}']", name)

    def until_cell(self, rank, state):
        until(lambda: self.cell(rank, "data-state") == state, f"rank {rank} is {state}")

    def assert_quiet(self):
        """Nothing was refused by the policy, thrown or asked for elsewhere."""
        self.assertEqual(self.browser.complaints(), [])
        self.assertFalse(self.browser.run("return Boolean(window.harmed)"))
        with self.assertRaises(Refused):  # no alert is open
            self.browser.ask("GET", "/alert/text")
