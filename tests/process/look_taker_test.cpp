// Looks at real workers, as their agent takes them: those that wait, get on, raise, stand still.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "launcher/os/diagnosis/worker_view.hpp"
#include "launcher/os/io/read_text.hpp"
#include "tests/support/look_scene.hpp"

using namespace torchup;
using namespace torchup::test;

TEST_CASE("a worker that waits for others is seen with stack and groups", "[process][diagnosis]") {
  LookScene scene;
  const TestWorker& worker = scene.sleeper(waits);
  const LookTaken taken = scene.look();
  const RankLook& look = taken.looks[0];
  CHECK(look.rank == Rank{10});
  CHECK(look.local_rank == LocalRank{0});
  CHECK(look.pid == worker.pid());
  CHECK(look.seen);
  CHECK(look.state == 'S');
  CHECK(look.kernel.starts_with("sleeping in "));
  REQUIRE_FALSE(look.frames.empty());
  CHECK(look.frames[0].function == "wait_for_all");
  CHECK_FALSE(look.moving);
  CHECK_FALSE(look.progressed);
  CHECK_FALSE(look.debugged);
  CHECK_FALSE(look.raised_ns);
  REQUIRE(look.groups_known);
  CHECK(look.groups == std::vector{GroupPosition{"0", "default_pg", parse_rank_set("0-1").value(), 7}});
  REQUIRE(look.collectives.size() == 1);
  CHECK(look.collectives[0].number == 7);
  CHECK(look.collectives[0].elements == 20);
  CHECK_FALSE(look.collectives[0].finished);
  CHECK(look.native.empty());  // it is no culprit
  CHECK(taken.stacks[0].rank == Rank{10});
  CHECK(taken.stacks[0].helper_wrote);
  CHECK(taken.stacks[0].python.threads.size() == 2);

  const LookTaken asked = scene.look(true);
  CHECK(asked.looks[0].frames == look.frames);
  CHECK(asked.looks[0].groups == look.groups);
}

TEST_CASE("a worker that gets on between the two moments is seen to", "[process][diagnosis]") {
  LookScene scene;
  SECTION("it computes") {
    scene.python("ready()\nwhile True: pass\n");
    const RankLook look = scene.look().looks[0];
    CHECK(look.moving);
    CHECK_FALSE(look.progressed);
  }
  SECTION("its groups do") {
    scene.python("ready()\nwhile True:\n  time.sleep(0.3)\n  group.sequence += 1\n");
    CHECK(scene.look().looks[0].progressed);
  }
  SECTION("its steps do") {
    scene.python(R"(
ready()
while True:
    time.sleep(0.3)
    beat = numbers[2] + 1
    for at, value in enumerate((beat, 40 + beat, 1, 1, 0)):
        numbers[8 + beat % 2 * 8 + at] = value
    numbers[2] = beat
)");
    const RankLook look = scene.look().looks[0];
    CHECK(look.progressed);
    CHECK(look.beats > 0);
    CHECK(look.step == 40 + static_cast<std::int64_t>(look.beats));
  }
}

TEST_CASE("a worker that raised is told, and whether another's end was the reason", "[process][diagnosis]") {
  LookScene scene;
  const bool consequence = GENERATE(true, false);
  const std::string text = consequence ? "ConnectionError('Connection reset by peer')" : "ValueError('bad data')";
  scene.python(R"(
import threading
threading.Thread(target=time.sleep, args=(10000,)).start()
sys.stderr = open(os.devnull, "w")
def after():
    while not (numbers[34] and os.path.exists(os.environ["TORCHELASTIC_ERROR_FILE"])):
        time.sleep(0.001)
    ready()
threading.Thread(target=after).start()
raise )" + text +
               "\n");
  const RankLook look = scene.look().looks[0];
  CHECK(look.raised_ns);
  CHECK(look.raised_consequence == consequence);
}

TEST_CASE("a worker that holds the interpreter's lock in C shows both stacks", "[process][diagnosis]") {
  LookScene scene;
  TestWorker& worker = scene.sleeper(R"(
import ctypes
def hold():
    ctypes.PyDLL(None).sleep(10000)
retired = True
ready()
hold()
)");
  const RankLook look = scene.look().looks[0];
  CHECK(stands_in(look, "hold"));
  CHECK_FALSE(look.groups_known);
  CHECK_FALSE(look.moving);
  CHECK_FALSE(look.traced);
  CHECK(worker.questions == 1);  // it has not answered the first
  static_cast<void>(scene.look());
  CHECK(worker.questions == 1);  // and owes that answer still
  if (!has_native_stacks()) return;
  REQUIRE_FALSE(look.native.empty());
  CHECK(look.native[0].find("nanosleep") != std::string::npos);
}

TEST_CASE("a stopped worker is not asked, and stays stopped", "[process][diagnosis]") {
  LookScene scene;
  TestWorker& worker = scene.sleeper(waits);
  ::kill(worker.pid(), SIGSTOP);
  scene.until([&] { return read_kernel_view(worker.pid()).state == 'T'; });
  const LookTaken taken = scene.look();
  CHECK(taken.looks[0].state == 'T');
  CHECK(taken.looks[0].frames.empty());
  CHECK(worker.questions == 0);
  CHECK(read_kernel_view(worker.pid()).state == 'T');
  const auto helper = read_hook(worker.page())->helper;
  const std::string status = read_text(fmt::format("/proc/{}/task/{}/status", worker.pid(), helper));
  CHECK(status.find("\nSigPnd:\t0000000000000000\n") != std::string::npos);  // none waits for it to go on
  if (has_native_stacks()) CHECK(taken.looks[0].native.size() > 1);
  ::kill(worker.pid(), SIGCONT);
  CHECK(scene.look(true).looks[0].frames[0].function == "wait_for_all");
}

TEST_CASE("a worker without a hook is seen by its kernel, and by a person with its native stack",
          "[process][diagnosis]") {
  LookScene scene;
  const TestWorker& plain = scene.start({"/bin/sleep", "10000"});
  scene.until([&] { return read_kernel_view(plain.pid()).call.has_value(); });
  const LookTaken taken = scene.look(true);
  CHECK(taken.looks[0].state == 'S');
  CHECK(taken.looks[0].kernel.starts_with("sleeping in clock_nanosleep"));
  CHECK_FALSE(taken.looks[0].groups_known);
  CHECK(taken.stacks[0].python.threads.empty());
  if (!has_native_stacks()) return;
  REQUIRE_FALSE(taken.looks[0].native.empty());
  CHECK(taken.looks[0].native[0].find("nanosleep") != std::string::npos);
  CHECK(taken.stacks[0].native.size() == 1);
}

TEST_CASE("a program that a worker has become is not killed by the question", "[process][diagnosis]") {
  LookScene scene;
  TestWorker& worker = scene.start(
      {TORCHUP_TEST_PYTHON, "-c", groups + "os.execv('/bin/sh', ['sh', '-c', 'echo ready; sleep 10000; :'])\n"});
  worker.await_ready();
  REQUIRE(read_hook(worker.page())->signal > 0);
  const RankLook look = scene.look().looks[0];
  CHECK(look.seen);
  CHECK(look.frames.empty());
  CHECK_FALSE(look.groups_known);
  CHECK(worker.lives());
}

TEST_CASE("a shell between agent and program is seen through", "[process][diagnosis]") {
  LookScene scene;
  TestWorker& worker = scene.start({"/bin/sh", "-c", "\"$0\" -c \"$1\"; :", TORCHUP_TEST_PYTHON, groups + waits});
  worker.await_ready();
  const RankLook look = scene.look().looks[0];
  CHECK(look.pid == worker.pid());
  CHECK(stands_in(look, "wait_for_all"));
  CHECK(look.groups_known);
  CHECK(look.kernel.find("wait4") == std::string::npos);
}
