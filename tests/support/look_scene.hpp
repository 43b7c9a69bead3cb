#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/os/diagnosis/look_taker.hpp"
#include "launcher/os/diagnosis/worker_view.hpp"
#include "launcher/os/io/child_end.hpp"
#include "launcher/os/io/shared_page.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "launcher/os/worker/worker_channel.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/tracing.hpp"

/// Real workers, started as their agent starts them, and somebody who looks at them.
namespace torchup::test {

using namespace std::chrono_literals;

inline TimePoint now() { return std::chrono::steady_clock::now(); }

/// In front of programs.
inline const std::string bare = R"(
import os, sys, time
worker = sys.modules["torchup_worker"]
fd, numbers = worker.page.fd, worker.page.numbers
def ready():
    os.write(1, b"ready\n")
)";
/// And torch as far as the hook looks at it, with one group of two ranks, and the helper thread.
inline const std::string groups = bare + R"(
import types
class Group:
    group_desc = "default_pg"
    sequence = 7
    def _get_sequence_number_for_group(self):
        return self.sequence

group = Group()
world = types.SimpleNamespace(pg_map={group: ("gloo", None)}, pg_names={group: "0"}, pg_group_ranks={group: {0: 0, 1: 1}})
retired = False
created_ns = time.time_ns()

def dump(*_):
    return ('{"entries":[{"collective_seq_id":%d,"p2p_seq_id":0,"is_p2p":false,"process_group":["0","default_pg"],'
            '"profiling_name":"gloo:all_reduce","input_sizes":[[4, 5]],"input_dtypes":["Float"],"time_created_ns":%d,'
            '"retired":%s}]}' % (group.sequence, created_ns, "true" if retired else "false")).encode()

sys.modules["torch.distributed.distributed_c10d"] = types.SimpleNamespace(_world=world)
sys.modules["torch._C"] = types.SimpleNamespace(_distributed_c10d=types.SimpleNamespace(_dump_fr_trace_json=dump))
worker.load("torchup_loaded").start_groups()
while not numbers[33]:
    time.sleep(0.001)
)";

/// A worker, started as its agent starts it, and killed at the end.
class TestWorker {
 public:
  TestWorker(asio::io_context& loop, std::optional<LookTaker>& taker, int local_rank, std::vector<std::string> words,
             const std::string& hook, const std::string& error_file)
      : local_rank_{local_rank}, error_file_{error_file}, page_{SharedPage::make().value()} {
    auto pair = make_channel_pair().value();
    int out[2];
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    out_.reset(out[0]);
    ChildRequest request;
    request.executable = words.front();
    request.arguments = std::move(words);
    request.environment = {"PATH=" + std::string{std::getenv("PATH")}, "PYTHONPATH=" + hook,
                           "TORCHELASTIC_ERROR_FILE=" + error_file};
    request.in.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    request.out.reset(out[1]);
    request.page = page_.fd();
    request.page_address = page_.address(page_descriptor);
    request.channel = std::move(pair.theirs);
    request.channel_address = {channel_descriptor, pair.inode, 0};
    child_ = start_child(request).value();
    WorkerChannel::Listener listener;
    listener.heard = [&taker, local_rank](const WorkerWord& word) {
      const auto* const looked = std::get_if<WorkerLooked>(&word);
      if (looked && taker) taker->heard(LocalRank{local_rank}, *looked);
    };
    listener.ended = [](const ChannelEnd&) {};
    channel_.emplace(loop, std::move(pair.ours), std::move(listener));
  }
  TestWorker(const TestWorker&) = delete;
  TestWorker& operator=(const TestWorker&) = delete;
  ~TestWorker() {
    ::kill(-child_.pid, SIGKILL);
    static_cast<void>(reap_child(child_.pid));
  }

  void await_ready() {
    pollfd place{out_.get(), POLLIN, 0};
    REQUIRE(::poll(&place, 1, 120'000) == 1);
    char text[6];
    REQUIRE(::read(out_.get(), text, sizeof text) == 6);
  }
  [[nodiscard]] pid_t pid() const { return child_.pid; }
  [[nodiscard]] bool lives() const {
    pollfd place{child_.pidfd.get(), POLLIN, 0};
    return ::poll(&place, 1, 0) == 0;
  }
  [[nodiscard]] int page() const { return page_.fd(); }
  [[nodiscard]] LookedAt looked_at() {
    LookedAt looked;
    looked.rank = Rank{10 + local_rank_};
    looked.local_rank = LocalRank{local_rank_};
    looked.pid = pid();
    looked.page.reset(::fcntl(page_.fd(), F_DUPFD_CLOEXEC, 0));
    looked.error_file = error_file_;
    looked.ask = [this](const LookWanted& question) {
      ++questions;
      if (question.in_passing) ++questions_in_passing;
      static_cast<void>(channel_->say(question));
    };
    return looked;
  }
  int questions = 0;
  int questions_in_passing = 0;

 private:
  int local_rank_;
  std::string error_file_;
  SharedPage page_;
  ChildProcess child_;
  UniqueFd out_;
  std::optional<WorkerChannel> channel_;
};

class LookScene {
 public:
  LookScene() {
    std::filesystem::create_directory(hook_);
    for (const auto& entry : std::filesystem::directory_iterator{TORCHUP_TEST_HOOK}) {
      if (entry.path().extension() == ".py") std::filesystem::copy(entry.path(), hook_);
    }
    LookTaker::Listener listener;
    listener.taken = [this](LookTaken look) { taken = std::move(look); };
    listener.arrived = [this](ArrivalsTaken answers) { arrived = std::move(answers); };
    taker.emplace(loop, std::move(listener), TORCHUP_PROGRAM);
  }

  TestWorker& start(std::vector<std::string> words, bool hook = true) {
    const int local_rank = static_cast<int>(workers.size());
    return workers.emplace_back(loop, taker, local_rank, std::move(words), hook ? hook_.string() : "",
                                (folder_.path / fmt::format("error_{}", local_rank)).string());
  }
  /// A program in Python that says `ready()`.
  TestWorker& python(const std::string& text, const std::string& in_front = groups) {
    TestWorker& worker = start({TORCHUP_TEST_PYTHON, "-c", in_front + text});
    worker.await_ready();
    return worker;
  }
  /// The same, of one that sleeps for good: its stack does not change any more.
  TestWorker& sleeper(const std::string& text, const std::string& in_front = groups) {
    TestWorker& worker = python(text, in_front);
    until([&worker] {
      const std::string text_now = kernel_text(read_kernel_view(worker.pid()), own_processor());
      return text_now == "sleeping in clock_nanosleep" || text_now == "sleeping in select";  // before Python 3.11
    });
    return worker;
  }
  LookOrder order(bool asked) {
    LookOrder order{++number_, asked, false, {}};
    for (TestWorker& worker : workers) order.workers.push_back(worker.looked_at());
    return order;
  }
  template <class Condition>
  void until(Condition condition) {
    const TimePoint end = now() + 120s;
    while (!condition() && now() < end) {
      loop.restart();
      loop.run_for(2ms);
    }
    REQUIRE(condition());
  }
  LookTaken look(bool asked = false) {
    taken.reset();
    REQUIRE(taker->take(order(asked)).has_value());
    until([this] { return taken.has_value(); });
    CHECK(taken->number == number_);
    REQUIRE(taken->looks.size() == workers.size());
    REQUIRE(taken->stacks.size() == workers.size());
    return *taken;
  }

  asio::io_context loop{1};
  std::optional<LookTaker> taker;
  std::list<TestWorker> workers;
  std::optional<LookTaken> taken;
  std::optional<ArrivalsTaken> arrived;

 private:
  const test::TemporaryFolder folder_;
  const std::filesystem::path hook_ = folder_.path / "hook";
  std::uint64_t number_ = 0;
};

inline bool stands_in(const RankLook& look, const std::string& function) {
  return std::ranges::find(look.frames, function, &StackFrame::function) != look.frames.end();
}

inline const std::string waits = R"(
def wait_for_all():
    ready()
    time.sleep(10000)
wait_for_all()
)";

}  // namespace torchup::test
