// The template process with short limits: what becomes of one that does not answer.
#include "launcher/os/worker/template_process.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "launcher/os/io/child_end.hpp"
#include "launcher/os/machine/descendants.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// A template over modules of our own, and a count of what it asks of others.
class Scene {
 public:
  explicit Scene(const std::string& module_text, TemplateProcess::Settings settings = {}) {
    become_subreaper();
    std::filesystem::create_directories(folder_);
    std::ofstream{folder_ / "module_of_ours.py"} << module_text;
    std::ofstream{folder_ / "program.py"} << "import sys; sys.exit(7 if 'module_of_ours' in sys.modules else 8)\n";
    settings.modules = {"module_of_ours"};
    settings.program.executable = TORCHUP_TEST_PYTHON;
    settings.program.python = true;
    settings.program.command = {settings.program.executable, "-u", folder_ / "program.py"};
    settings.program.arguments_at = 3;
    settings.environment =
        std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"PYTHONPATH=" + folder_.string()});
    TemplateProcess::Hooks hooks;
    hooks.record = [this](EventBody event) { events.push_back(to_text(event)->text); };
    hooks.settled = [this] { settled = true; };
    hooks.reaped = [] {};
    hooks.exec = [this](ChildRequest request, TemplateProcess::Handler handler) {
      ++executed;
      spawner_.start(std::move(request), std::move(handler));
    };
    hooks.streams = []() -> Result<std::array<UniqueFd, 2>> {
      return std::array{UniqueFd{::dup(1)}, UniqueFd{::dup(2)}};
    };
    hooks.next_cgroup = [] { return -1; };
    command_ = settings.program.command;
    process.emplace(loop, std::move(settings), std::move(hooks));
    process->begin();
  }
  ~Scene() {
    process->end();
    static_cast<void>(kill_descendants(10s));
    std::filesystem::remove_all(folder_);
  }

  void order() {
    ChildRequest request;
    request.executable = command_.front();
    request.arguments = command_;
    request.environment = {"RANK=0", "PYTHONPATH=" + folder_.string()};
    process->start(std::move(request), [this](Result<ChildProcess> child) {
      if (!child) {
        REQUIRE(child.error().code == boost::system::errc::operation_canceled);
        ++cancelled;
        return;
      }
      pollfd ended{child->pidfd.get(), POLLIN, 0};
      REQUIRE(::poll(&ended, 1, 60'000) == 1);  // short programs: the loop may wait
      exit_codes.push_back(reap_child(child->pid));
    });
  }

  template <class Condition>
  void until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      loop.restart();
      loop.run_for(5ms);
    }
    REQUIRE(condition());
  }

  asio::io_context loop{1};
  std::vector<std::string> events;
  std::vector<int> exit_codes;
  bool settled = false;
  int executed = 0;
  int cancelled = 0;
  std::optional<TemplateProcess> process;

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("template_test_" + std::to_string(::getpid()));
  Spawner spawner_{loop};
  std::vector<std::string> command_;
};

}  // namespace

TEST_CASE("workers are forked from the template, in the order of their starts", "[process][preload]") {
  Scene scene{""};
  REQUIRE(scene.process->is_loading());
  scene.until([&] { return scene.settled; });
  for (int i = 0; i < 3; ++i) scene.order();
  scene.until([&] { return scene.exit_codes.size() == 3; });
  CHECK(scene.exit_codes == std::vector{7, 7, 7});
  CHECK(scene.executed == 0);
  CHECK(scene.process->known().size() == 1);
}

TEST_CASE("whoever has no worker when the attempt is cancelled gets none, and the next attempt does",
          "[process][preload]") {
  Scene scene{""};
  scene.until([&] { return scene.settled; });
  for (int i = 0; i < 3; ++i) scene.order();
  scene.process->attempt_cancelled();
  scene.until([&] { return scene.cancelled == 3; });
  CHECK(scene.exit_codes.empty());
  scene.order();
  scene.until([&] { return scene.exit_codes.size() == 1; });
  CHECK(scene.exit_codes == std::vector{7});
  CHECK(scene.executed == 0);
  // Nor does one that was being made then stay, in the cgroup of an attempt that is over.
  scene.until([&] { return descendants().size() == 1; });
}

TEST_CASE("imports that take too long end with the template", "[process][preload]") {
  TemplateProcess::Settings settings;
  settings.import_limit = 300ms;
  Scene scene{"import time; time.sleep(100)", settings};
  scene.until([&] { return scene.settled; });
  REQUIRE(scene.events.size() == 1);
  CHECK(scene.events.front().starts_with("--preload: the import of "));
  scene.order();
  scene.until([&] { return scene.exit_codes.size() == 1; });
  CHECK(scene.exit_codes == std::vector{8});
  CHECK(scene.executed == 1);
  scene.until([&] { return scene.process->known().empty(); });
}

TEST_CASE("a template that does not fork in time is ended, and workers start without it", "[process][preload]") {
  TemplateProcess::Settings settings;
  settings.fork_limit = 1s;
  Scene scene{"", settings};
  scene.until([&] { return scene.settled; });
  ::kill(scene.process->known().at(0), SIGSTOP);
  scene.order();
  scene.order();
  scene.until([&] { return scene.exit_codes.size() == 2; });
  CHECK(scene.exit_codes == std::vector{8, 8});
  scene.until([&] { return scene.events.size() == 2; });
  CHECK(scene.events.back() ==
        "--preload: the process with the imports does not answer; a further attempt gets another one");
}

TEST_CASE("a template that may not make processes is not asked again and again", "[process][preload]") {
  const auto scene_with = [](const char* who) {
    return fmt::format(
        "import os, errno\n"
        "fork, here, forks = os.fork, os.getpid(), []\n"
        "def limited():\n"
        "    forks.append(0)\n"
        "    if os.getpid() {} here and len(forks) > 1: raise BlockingIOError(errno.EAGAIN, 'too many')\n"
        "    return fork()\n"
        "os.fork = limited\n",
        who);
  };
  // The template's own forks, but for the trial child's; then those of its children.
  const std::string module_text = scene_with(GENERATE("==", "!="));
  Scene scene{module_text};
  scene.until([&] { return scene.settled; });
  for (int i = 0; i < 3; ++i) scene.order();
  scene.until([&] { return scene.exit_codes.size() == 3; });
  CHECK(scene.exit_codes == std::vector{8, 8, 8});
  CHECK(scene.process->known().size() == 1);
  CHECK(std::ranges::count_if(scene.events, [](const std::string& text) {
          return text.find("started without it") != std::string::npos;
        }) == 1);
}

TEST_CASE("a parked process that does not start in time has a successor", "[process][preload]") {
  TemplateProcess::Settings settings;
  settings.fork_limit = 1s;
  settings.pause = 1ms;
  settings.spare = 1;
  Scene scene{"", settings};
  scene.until([&] { return scene.settled; });
  scene.process->attempt_runs();
  scene.until([&] { return scene.process->known().size() == 2 && state_letter(scene.process->known().back()) == 'S'; });
  scene.loop.run_for(100ms);
  ::kill(scene.process->known().back(), SIGSTOP);
  scene.order();
  scene.until([&] { return scene.exit_codes.size() == 1; });
  CHECK(scene.exit_codes == std::vector{7});
  CHECK(scene.executed == 0);
}

namespace {

/// Once in all, whatever the number of templates.
const std::string stands_still_once =
    "import os, signal\n"
    "forks = []\n"
    "def stand_still():\n"
    "    if os.path.exists(__file__ + '.once'): return\n"
    "    open(__file__ + '.once', 'w').close()\n"
    "    os.kill(os.getpid(), signal.SIGSTOP)\n";
const std::string between_stands_still =
    "os.register_at_fork(before=lambda: forks.append(0), after_in_child=lambda: len(forks) > 1 and stand_still())\n";

}  // namespace

TEST_CASE("a forked process that stands still before it parks keeps no worker waiting", "[process][preload]") {
  // The process itself as it parks, or the one between it and the template.
  const std::string where = GENERATE(std::string{"os.setsid = stand_still\n"}, between_stands_still);
  TemplateProcess::Settings settings;
  settings.fork_limit = 1s;
  settings.pause = 1ms;
  settings.spare = 1;
  Scene scene{stands_still_once + where, settings};
  scene.until([&] { return scene.settled; });
  scene.order();
  const bool alone = GENERATE(false, true);
  if (alone) {
    scene.until([] { return std::ranges::count(descendants(), 'T', state_letter) == 1; });
    ::kill(scene.process->known().at(0), SIGKILL);
  }
  scene.until([&] { return scene.exit_codes.size() == 1; });
  CHECK(scene.exit_codes == std::vector{8});
  scene.until([&] { return scene.events.size() == 2; });
  CHECK(scene.events.back() ==
        fmt::format("--preload: the process with the imports {}; a further attempt gets another one",
                    alone ? "was ended by SIGKILL" : "does not answer"));
  // Nor does it count against the next template.
  scene.process->attempt_runs();
  scene.until([&] { return scene.process->known().size() == 2; });
  scene.loop.restart();
  scene.loop.run_for(1200ms);
  scene.order();
  scene.until([&] { return scene.exit_codes.size() == 2; });
  CHECK(scene.exit_codes == std::vector{8, 7});
  CHECK(scene.executed == 1);
}

TEST_CASE("a template is not ended for what another one has left behind", "[process][preload]") {
  TemplateProcess::Settings settings;
  settings.fork_limit = 1s;
  settings.pause = 1ms;
  settings.spare = 1;
  Scene scene{stands_still_once + between_stands_still, settings};
  scene.until([&] { return scene.settled; });
  scene.order();
  scene.until([] { return std::ranges::count(descendants(), 'T', state_letter) == 1; });
  ::kill(scene.process->known().at(0), SIGKILL);
  scene.process->attempt_cancelled();
  scene.until([&] { return scene.events.size() == 2; });
  scene.process->attempt_runs();
  scene.until([&] { return scene.process->known().size() == 2; });
  scene.loop.restart();
  scene.loop.run_for(1500ms);
  CHECK(scene.process->known().size() == 2);
  CHECK(scene.events.size() == 3);
  scene.order();
  scene.until([&] { return scene.exit_codes.size() == 1; });
  CHECK(scene.exit_codes == std::vector{7});
}

namespace {

/// Of all processes that are forked from one template only `most` are ever made.
std::string limited_to(int most) {
  return fmt::format(
      "import errno, mmap, os, time\n"
      "fork, here, made = os.fork, os.getpid(), mmap.mmap(-1, 1)\n"
      "def limited():\n"
      "    if os.getpid() == here: return fork()\n"
      "    if made[0] == {}:\n"
      "        time.sleep(0.1)\n"
      "        raise BlockingIOError(errno.EAGAIN, 'too many')\n"
      "    made[0] += 1\n"
      "    return fork()\n"
      "os.fork = limited\n",
      most);
}

}  // namespace

TEST_CASE("those that park after their workers were executed do not stay", "[process][preload]") {
  Scene scene{limited_to(2) + "setsid = os.setsid\ndef late(): time.sleep(0.3); setsid()\nos.setsid = late\n"};
  scene.until([&] { return scene.settled; });
  for (int i = 0; i < 4; ++i) scene.order();
  scene.until([&] { return scene.exit_codes.size() == 4; });
  REQUIRE(scene.executed == 4);
  scene.process->attempt_runs();
  scene.until([&] { return descendants().size() == 1 && scene.process->known().size() == 1; });
}

TEST_CASE("what is parked is taken, though more could not be made", "[process][preload]") {
  TemplateProcess::Settings settings;
  settings.pause = 1ms;
  settings.spare = 4;
  Scene scene{limited_to(2), settings};
  scene.until([&] { return scene.settled; });
  scene.process->attempt_runs();
  scene.until(
      [&] { return !scene.events.empty() && scene.events.back().find("started without it") != std::string::npos; });
  scene.loop.restart();
  scene.loop.run_for(500ms);
  REQUIRE(scene.process->known().size() == 3);
  for (int i = 0; i < 3; ++i) scene.order();
  scene.until([&] { return scene.exit_codes.size() == 3; });
  CHECK(scene.exit_codes == std::vector{7, 7, 8});
}

TEST_CASE("a template that a sweep ends before its pid is known has a successor", "[process][preload]") {
  TemplateProcess::Settings settings;
  settings.pause = 1ms;
  settings.spare = 1;
  Scene scene{"", settings};
  while (descendants().empty()) {
  }
  REQUIRE(scene.process->known().empty());
  for (const pid_t pid : descendants()) ::kill(pid, SIGKILL);
  while (!descendants().empty()) {
  }
  scene.until([&] { return scene.settled; });
  CHECK(scene.events.back() ==
        "--preload: the process with the imports was ended by SIGKILL; a further attempt gets another one");
  scene.process->attempt_runs();
  scene.until([&] { return scene.process->known().size() == 2; });
  scene.order();
  scene.until([&] { return scene.exit_codes.size() == 1; });
  CHECK(scene.exit_codes == std::vector{7});
}
