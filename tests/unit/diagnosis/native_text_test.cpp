#include "launcher/core/diagnosis/native_text.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "rendezvous/core/diagnosis/rank_look.hpp"

using namespace torchup;

namespace {

NativeThread example() {
  NativeThread thread;
  thread.process = 4242;
  thread.thread = 4243;
  thread.name = "pt_main, thread";
  thread.frames = {"pthread_cond_wait (libc.so.6)", "c10d::Work::wait (libtorch_cpu.so)"};
  return thread;
}

std::string repeated(const std::string& line, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += line;
  return text;
}

std::string name(const char* function) { return native_frame_text(function, "", 1); }

}  // namespace

TEST_CASE("native threads come back from their text", "[unit][native_text]") {
  CHECK(to_text(example()) ==
        "thread 4243 of process 4242, pt_main, thread\n"
        "  pthread_cond_wait (libc.so.6)\n"
        "  c10d::Work::wait (libtorch_cpu.so)\n");
  NativeThread cut = example(), refused = example();
  cut.cut = true;
  refused.frames.clear();
  refused.problem = "process 7 traces it already";
  CHECK(to_text(refused).ends_with("\n  !process 7 traces it already\n"));
  CHECK(parse_native_text(to_text(example()) + to_text(cut) + to_text(refused)) ==
        std::vector{example(), cut, refused});
}

TEST_CASE("a native stack of a stranger has its limits", "[unit][native_text]") {
  const std::string head = "thread 1 of process 1, x\n";
  CHECK(parse_native_text(repeated(head, native_threads_max + 1)).size() == native_threads_max);
  const auto most = parse_native_text(head + repeated("  f\n", native_frames_max));
  CHECK_FALSE(most[0].cut);
  const auto more = parse_native_text(head + repeated("  f\n", native_frames_max + 1));
  CHECK(more[0].cut);
  CHECK(more[0].frames.size() == native_frames_max);
  CHECK(parse_native_text(head + "  " + std::string(1000, 'f') + "\n")[0].frames[0].size() == look_native_bytes_max);
  for (const char* none : {"", "thread", "thread 1 of process 1, x", "thread -1 of process 1, x\n",
                           "thread 99999999999999999999 of process 1, x\n", "  f\n", "\xff\n"}) {
    CHECK(parse_native_text(none).empty());
  }
}

TEST_CASE("functions are told without what takes lines", "[unit][native_text]") {
  CHECK(native_frame_text("read", "/lib/x86_64-linux-gnu/libc.so.6", 1) == "read (libc.so.6)");
  CHECK(native_frame_text("", "/lib/libcuda.so.1", 0x7f00) == "0x7f00 (libcuda.so.1)");
  CHECK(name("c10d::ProcessGroupGloo::allreduce(std::vector<at::Tensor>&, c10d::Options const&)") ==
        "c10d::ProcessGroupGloo::allreduce");
  CHECK(name("std::vector<std::pair<int, int>, std::allocator<int> >::push_back(int&&)") ==
        "std::vector<…>::push_back");
  CHECK(name("(anonymous namespace)::Loader::wait_for(int) const") == "(anonymous namespace)::Loader::wait_for const");
  CHECK(name("a::operator()(int) const") == "a::operator() const");
  CHECK(name("std::ostream& operator<< <char>(std::ostream&, char)") == "std::ostream& operator<< <…>");
  CHECK(name("A::operator->()") == "A::operator->");
  CHECK(name("f<(Kind)3>(int)") == "f<…>");
  CHECK(name(">>)(((<<<") == ">>)");
  CHECK(name("f\x1b[2J\n") == "f\\x1b[2J\\n");
  CHECK(native_frame_text(std::string(10'000, 'f'), std::string(10'000, 'm'), 1).size() <= look_native_bytes_max);
}

TEST_CASE("who may not trace is told what would let it", "[unit][native_text]") {
  const std::string asks = "ptrace is refused: ";
  CHECK(refusal_text({.tracer = 7}) == "process 7 traces it already");
  CHECK(refusal_text({.yama_scope = 1}) ==
        asks + "kernel.yama.ptrace_scope is 1 (needs CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0)");
  CHECK(refusal_text({.yama_scope = 3}) == asks + "kernel.yama.ptrace_scope is 3, until the machine's next start");
  CHECK(refusal_text({.own_user = false}) == asks + "it runs as another user (needs CAP_SYS_PTRACE)");
  CHECK(refusal_text({.filtered = true}) == asks + "a seccomp filter (container: --cap-add=SYS_PTRACE)");
  CHECK(refusal_text({}) == asks + "needs CAP_SYS_PTRACE (container: --cap-add=SYS_PTRACE)");
}

TEST_CASE("a file's name of escapes leaves a frame within its limit", "[unit][diagnosis]") {
  const std::string frame = native_frame_text("f", std::string(64, '\0'), 0);
  CHECK(frame.size() <= look_native_bytes_max);
  CHECK(frame.starts_with("f (\\x00"));
}
