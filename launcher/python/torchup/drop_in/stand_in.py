"""torchup where torch.distributed.run is called; run as a program, torchup where the command torchrun is. It knows
nothing of the package around it: any Python may load it by its path."""

import os
import signal
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.join(HERE, "bin")
FOLDERS = {"PATH": BIN, "PYTHONPATH": os.path.join(HERE, "site")}
PROGRAM, PYTHON = "TORCHUP_DROP_IN", "TORCHUP_DROP_IN_PYTHON"  # the variables with torchup's path, and with our Python
CALLER = "TORCHUP_CALLER"  # the one with the Python that starts torchup, which keeps it from the workers
NAME = "torchrun"  # under which torchup is started: what it does is to be what torchrun does


def dropped_in(environment, program):
    """The environment in which torchup, that `program`, stands in for torchrun."""
    environment = given_back(environment)
    for name, folder in FOLDERS.items():
        before = environment.get(name, os.defpath if name == "PATH" else "")
        environment[name] = f"{folder}:{before}" if before else folder
    return {**environment, PROGRAM: program, PYTHON: sys.executable}


def given_back(environment):
    """The environment as it is without us."""
    environment = {name: value for name, value in environment.items() if name not in (PROGRAM, PYTHON)}
    for name, folder in FOLDERS.items():
        if folder not in environment.get(name, "").split(":"):
            continue
        environment[name] = ":".join(entry for entry in environment[name].split(":") if entry != folder)
        if not environment[name]:
            del environment[name]
    return environment


def for_torchup(environment):
    return {**given_back(environment), CALLER: sys.executable}


def become_torchup(program, words):
    """torchup in the place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, [NAME, *words], for_torchup(os.environ))
    except OSError as error:
        sys.exit(f"torchup.drop_in: {program}: {error.strerror}")


class Job:
    """torchup as a child of this process: what reaches us by signals reaches it. It has a process group of its own, so
    that nothing reaches it twice: Ctrl-C twice kills."""

    PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                 signal.SIGWINCH)

    def __init__(self):
        self.process = None
        self.early = []  # signals from before there is a child

    def run(self, program, words, environment):
        """The exit code, as a shell shows it. In another thread than the main one signals stay the caller's own."""
        before = self.listen() if threading.current_thread() is threading.main_thread() else {}
        try:
            command = [sys.executable, "-S", os.path.join(HERE, "child.py"), str(os.getpid()), program, NAME, *words]
            sys.stdout.flush()
            sys.stderr.flush()
            self.process = subprocess.Popen(command, env=for_torchup(environment))
            for number in self.early:
                self.process.send_signal(number)
            status = self.process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
        return status if status >= 0 else 128 - status

    def listen(self):
        handlers = {**dict.fromkeys(self.PASSED_ON, self.pass_on), signal.SIGTSTP: self.stop}
        kept = [number for number in (signal.SIGHUP, signal.SIGTSTP) if signal.getsignal(number) == signal.SIG_IGN]
        return {number: signal.signal(number, handler) for number, handler in handlers.items() if number not in kept}

    def pass_on(self, number, _frame=None):
        if self.process is None:
            self.early.append(number)
        else:
            self.process.send_signal(number)

    def stop(self, number, _frame):
        self.pass_on(number)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.pass_on(signal.SIGCONT)


def run_torchup(program, words, environment):
    status = Job().run(program, [str(word) for word in words], environment)
    if status != 0:
        raise SystemExit(status)


def words_of(namespace, parser, environment):
    """The command line that says what the namespace says: every option whose value is not the parser's default. That
    may come from a PET_ variable, which torchup reads too: where the namespace has nothing in its place, it goes."""
    words = []
    for action in parser._actions:
        value = getattr(namespace, action.dest, action.default)
        if not action.option_strings or value == action.default:
            continue
        name = max(action.option_strings, key=len)
        if value is None or value is False:
            environment.pop(f"PET_{action.dest.upper()}", None)
        elif action.nargs == 0:
            words.append(name)
        elif isinstance(value, (list, tuple)):
            words.append(f"{name}={','.join(str(item).replace(',', ',,') for item in value)}")
        else:
            words.append(f"{name}={value}")
    # torch.distributed.launch's namespace, whose workers are given their local rank as a word.
    legacy = [] if getattr(namespace, "use_env", True) else ["--local-rank=${local_rank}"]
    return [*words, namespace.training_script, *legacy, *namespace.training_script_args]


class Loader:
    """Of torch.distributed.run: torch's own module with our `run` and `main`; what `python -m` runs is torchup."""

    def __init__(self, loader):
        self.loader = loader
        self.program = os.environ[PROGRAM]

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)

        def run(args):
            environment = dict(os.environ)
            run_torchup(self.program, words_of(args, module.get_args_parser(), environment), environment)

        def main(args=None):
            if args is None and os.path.basename(sys.argv[0]) == "torchrun":  # torch's own command
                self.begin()
            run_torchup(self.program, sys.argv[1:] if args is None else args, dict(os.environ))

        module.run, module.main = run, main

    def get_code(self, _name):
        return compile("__loader__.begin()", "<torchup.drop_in>", "exec")

    def begin(self):
        become_torchup(self.program, sys.argv[1:])


if __name__ == "__main__":
    become_torchup(os.environ[PROGRAM], sys.argv[1:])
