"""A worker that can outlive its round, in plain Python: it speaks the channel (rendezvous/base/worker_channel.hpp) by hand.

usage: keep_worker.py NOTES [WORD ...]     until the file NOTES.done is there

Appends a line to NOTES for all that happens to it: WHAT LOCAL_RANK PID RANK WORLD_SIZE RESTART_COUNT. A word is for all
workers, `word=N` for the one with local rank N; `first:word` is for processes that have not been restarted.

    plain          says nothing, as any program
    commits        has ended a step by its page before it parks
    never_parks    hears that the round is over, and does nothing
    closes, garbage, floods, leaves, parks_alone      what it does with its channel at once
    closes_parked  closes it when it has parked
    raises         has raised something
    raises_after=N the same, when local rank N is dead (N is for all others)
    child          has a child that holds its descriptors
    leaves_child   has started a process in a session of its own, whose parent has ended
"""

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from worker_memory import OwnPage  # noqa: E402

NOTES, WORDS = sys.argv[1], sys.argv[2:]
LOCAL_RANK = int(os.environ["LOCAL_RANK"])
FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def told(word):
    wanted = [word, f"{word}={LOCAL_RANK}"]
    return any(each in wanted or (FIRST and each in ["first:" + want for want in wanted]) for each in WORDS)


def note(what):
    place = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    line = " ".join([what, str(LOCAL_RANK), str(os.getpid()), *place]) + "\n"
    file = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def enter():
    print(f"here is rank {os.environ['RANK']}", flush=True)
    note("round")


def open_channel():
    version, fd, inode, pid = (int(field) for field in os.environ.pop("TORCHUP_WORKER_CHANNEL").split(":"))
    assert (version, pid, os.fstat(fd).st_ino) == (1, os.getpid(), inode)
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def pid_of(local_rank):
    with open(NOTES) as file:
        lines = [line.split() for line in file]
    return next((int(pid) for what, rank, pid, *_ in reversed(lines) if (what, rank) == ("round", str(local_rank))), None)


def wait_for_all():
    while not all(map(pid_of, range(int(os.environ["LOCAL_WORLD_SIZE"])))):
        time.sleep(0.005)


def wait_for_end_of(local_rank):
    while not pid_of(local_rank):
        time.sleep(0.005)
    try:
        pidfd = os.pidfd_open(pid_of(local_rank))
    except ProcessLookupError:
        return  # it has ended by now
    select.select([pidfd], [], [])
    os.close(pidfd)


def wait_until_heard(channel):
    while struct.unpack("i", fcntl.ioctl(channel, termios.TIOCOUTQ, b"\0" * 4))[0]:
        time.sleep(0.002)


def serve(channel):
    say = lambda text: channel.send(text.encode())  # noqa: E731
    say("stay\n")
    if told("leaves"):
        say("leave\n")
    if told("parks_alone"):
        say("parked\nstep=1\n")
    if told("garbage"):
        say("this is no packet")
    wait_until_heard(channel)  # what the test does next comes after it
    enter()
    if told("raises"):
        wait_for_all()  # until then nobody else stays, and it is blamed at once
        say("raised\ntext=ValueError: of my own\n")
    for word in WORDS:
        kind, _, other = word.partition("=")
        if kind == "raises_after" and int(other) != LOCAL_RANK and FIRST:
            wait_for_end_of(int(other))
            say("raised\ntext=RuntimeError: Connection closed by peer\n")
    while not os.path.exists(NOTES + ".done"):
        if told("floods"):
            for _ in range(100):
                say("stay\n")
        if not select.select([channel], [], [], 0.01)[0]:
            continue
        verb, *lines = channel.recv(1 << 16).decode().splitlines() or [""]
        if verb == "abort":
            note("over")
            if told("commits"):
                OwnPage().beat()
            if not told("never_parks"):
                say("parked\nstep=7\n")
                note("parked")
            if told("closes_parked"):
                return channel.close()
        elif verb == "place":
            os.environ.update(line.split("=", 1) for line in lines)
            enter()
        elif verb == "cause":
            note("cause")
            sys.exit(3)
        elif not verb:
            return


def main():
    if told("child"):
        child = subprocess.Popen(["sleep", "1000"], pass_fds=[3, 4])
        with open(f"{NOTES}.child{os.getpid()}", "w") as file:
            file.write(str(child.pid))
    if told("leaves_child"):
        script = f"setsid sleep 1000 >/dev/null 2>&1 & echo $! >{NOTES}.child{os.getpid()}"
        subprocess.run(["sh", "-c", script])
    channel = open_channel()
    if told("closes") or told("plain"):
        if told("closes"):
            channel.close()
        enter()
    else:
        serve(channel)
    while not os.path.exists(NOTES + ".done"):
        time.sleep(0.01)


main()
