// Looks at workers that write what they like, and at many; and looks that nobody waits for.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "tests/support/look_scene.hpp"

using namespace torchup;
using namespace torchup::test;

TEST_CASE("rubbish in sheet, page and answers harms nobody", "[process][diagnosis]") {
  LookScene scene;
  scene.sleeper(waits);
  SECTION("the sheet never rests, and is no stack") {
    scene.python(R"(
import threading
def write():
    at = 0
    while True:
        at += 1
        os.pwrite(fd, b"\xff\x1b[2J\n  File \"" + os.urandom(3000) + b"\", line 99999999999 in \xff\n", 4096 + at % 9000)
        os.lseek(fd, 4096 + at % 300000, 0)
threading.Thread(target=write).start()
ready()
)");
  }
  SECTION("frames that have no end") {
    scene.python(R"(
import threading
text = b"Thread 0x0000000000000001 (most recent call first):\n" + b'  File "x", line 1 in y\n' * 20000
def write():
    while True:
        os.pwrite(fd, text[:262144], 4096)
threading.Thread(target=write).start()
ready()
)");
  }
  SECTION("answers that are none") {
    const std::string answer =
        GENERATE(as<std::string>{}, "os.urandom(262144)", "b'[' * 262144",
                 "b'{\"groups\":[' + b'{\"name\":\"g\",\"ranks\":\"0-999999999\",\"number\":1e999},' * 5000 + b'{}]}'");
    scene.python(R"(
import socket, threading
end = socket.socket(fileno=os.dup(worker.channel))
numbers[33] = threading.get_native_id()
ready()
while True:
    number = (end.recv(65536) or time.sleep(10000)).split(b"=")[1].strip()  # our end is closed
    os.pwrite(fd, ()" +
                     answer + R"()[:262144], 266240)
    end.send(b"looked\nnumber=99\nlength=3\n")
    for _ in range(3):
        end.send(b"looked\nnumber=%s\nlength=262144\n" % number)
    end.send(b"looked\nnumber=x\n")
)",
                 bare);
  }
  LookTaken taken = scene.look();
  // Beside one that computes without end an answer may come too late, but not each time.
  for (int again = 0; again < 20 && !taken.looks[0].groups_known; ++again) taken = scene.look();
  CHECK(stands_in(taken.looks[0], "wait_for_all"));
  CHECK(taken.looks[0].groups_known);
  const RankLook& odd = taken.looks[1];
  CHECK(odd.seen);
  CHECK(odd.frames.size() <= look_frames_max);
  CHECK(encode_look(fitted(odd)).size() <= look_bytes_max);
  CHECK(decode_look(encode_look(fitted(odd))).has_value());
  for (const PythonThread& thread : taken.stacks[1].python.threads) CHECK(thread.frames.size() <= python_frames_max);
}

TEST_CASE("an error file that nobody will ever write keeps no look waiting", "[process][diagnosis]") {
  LookScene scene;
  scene.sleeper(R"(
numbers[34] = time.monotonic_ns()
os.mkfifo(os.environ["TORCHELASTIC_ERROR_FILE"])
)" + waits);
  const RankLook look = scene.look().looks[0];
  CHECK(look.raised_ns);
  CHECK_FALSE(look.raised_consequence);
}

TEST_CASE("what a crash has left is read, and stays for the incident's record", "[process][diagnosis]") {
  LookScene scene;
  // It still writes its core file, say.
  const TestWorker& worker = scene.sleeper(R"(
os.write(fd, b'Fatal Python error: Segmentation fault\n\nCurrent thread 0x0000000000000001 (most recent call first):\n')
os.write(fd, b'  File "a.py", line 7 in crashes\n')
)" + waits);
  const LookTaken taken = scene.look();
  REQUIRE_FALSE(taken.looks[0].frames.empty());
  CHECK(taken.looks[0].frames[0].function == "crashes");
  CHECK(taken.stacks[0].python.fault == "Segmentation fault");
  CHECK(read_sheet(worker.page()).find("Segmentation fault") != std::string::npos);
}

TEST_CASE("a page that names processes, threads and signals of others leads nowhere", "[process][diagnosis]") {
  LookScene scene;
  const TestWorker& worker = scene.sleeper(R"(
numbers[34:40] = memoryview(b"\xff" * 48).cast("q")
numbers[1], numbers[32], numbers[33] = 1, 9, 1
ready()
time.sleep(10000)
)",
                                           bare);  // the helper thread would say again which signal it is
  const std::string kernel = kernel_text(read_kernel_view(worker.pid()), own_processor());
  const RankLook look = scene.look().looks[0];
  CHECK(look.kernel == kernel);
  CHECK(look.frames.empty());
  CHECK(worker.lives());
}

TEST_CASE("a helper that still runs is waited for, though it writes nothing for a while", "[process][diagnosis]") {
  LookScene scene;
  scene.python(R"(
import signal, threading
def busy():
    numbers[33] = threading.get_native_id()
    while True:
        pass
def write(*_):
    os.write(fd, b'Current thread 0x0000000000000001 (most recent call first):\n  File "a.py", line 1 in helper\n')
    os.write(fd, b'\nThread 0x0000000000000002 (most recent call first):\n  File "a.py", line 2 in another\n')
    time.sleep(0.05)
    os.write(fd, b'\nThread 0x0000000000000003 (most recent call first):\n  File "a.py", line 3 in main\n')
signal.signal(45, write)
threading.Thread(target=busy, daemon=True).start()
while not numbers[33]:
    time.sleep(0.001)
numbers[32] = 45
ready()
while True:
    time.sleep(0.005)  # a handler runs between two of these
)",
               bare);
  LookTaken taken = scene.look(true);
  // On a busy machine the writer may take longer than a look waits.
  scene.until([&] { return taken.stacks[0].python.threads.size() == 3 || (taken = scene.look(true), false); });
  CHECK(stands_in(taken.looks[0], "main"));
}

TEST_CASE("stragglers are found by answers alone", "[process][diagnosis]") {
  const TimePoint begin = now();
  LookScene scene;
  scene.sleeper(waits);
  TestWorker& plain = scene.start({"/bin/sleep", "10000"});
  REQUIRE(scene.taker->take_arrivals(scene.order(false)).has_value());
  scene.until([&] { return scene.arrived.has_value(); });
  CHECK(scene.arrived->number == 1);
  REQUIRE(scene.arrived->ranks.size() == 1);
  CHECK(scene.arrived->ranks[0].rank == Rank{10});
  REQUIRE(scene.arrived->ranks[0].arrivals.size() == 1);
  CHECK(scene.arrived->ranks[0].arrivals[0].call.number == 7);
  // By the monotonic clock, whatever the recorder goes by.
  const TimePoint arrived{std::chrono::nanoseconds{scene.arrived->ranks[0].arrivals[0].call.created_ns}};
  CHECK(arrived > begin - 1s);  // clocks are slewed
  CHECK(arrived < now() + 1s);
  CHECK(plain.questions == 0);
  TestWorker& asked = scene.workers.front();
  CHECK(asked.questions_in_passing == asked.questions);
  static_cast<void>(scene.look(true));
  CHECK(asked.questions_in_passing < asked.questions);  // where something is wrong, all is to be told
}

TEST_CASE("looks wait in a line that has an end", "[process][diagnosis]") {
  LookScene scene;
  scene.sleeper(waits);
  std::size_t accepted = 0;
  while (accepted <= looks_waiting_max + 1) {
    const auto taken = scene.taker->take(scene.order(false));
    if (!taken) {
      CHECK(taken.error().code == errc::limit_exceeded);
      break;
    }
    ++accepted;
  }
  CHECK(accepted >= looks_waiting_max);
  CHECK(accepted <= looks_waiting_max + 1);  // one of them under way
}

TEST_CASE("a look that nobody waits for any more ends at once", "[process][diagnosis]") {
  LookScene scene;
  TestWorker& worker = scene.sleeper(waits);
  REQUIRE(scene.taker->take(scene.order(false)).has_value());
  scene.until([&] { return worker.questions > 0; });
  scene.taker.reset();
  scene.loop.restart();
  scene.loop.run_for(1ms);
  CHECK_FALSE(scene.taken);
}

TEST_CASE("of many workers all are seen, and some with their native stacks", "[process][diagnosis]") {
  LookScene scene;
  for (int i = 0; i < 256; ++i) scene.start({"/bin/sleep", "10000"}, false);
  const LookTaken taken = scene.look();
  CHECK(std::ranges::all_of(taken.looks, &RankLook::seen));
  if (!has_native_stacks()) return;
  const auto native = std::ranges::count_if(taken.looks, [](const RankLook& look) { return !look.native.empty(); });
  CHECK(native > 0);
  CHECK(native <= static_cast<std::ptrdiff_t>(native_threads_max));
}
