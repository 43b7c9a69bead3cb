#include "launcher/core/diagnosis/python_stack.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "rendezvous/base/worker_page.hpp"

using namespace torchup;

namespace {

/// Python 3.11 and 3.13 wrote this; 3.8 and 3.9 do, with other lines in threading.py. The helper was asked.
const std::string asked = R"(Current thread 0x00007f90240976c0 (most recent call first):
  File "/run/hook/torchup_groups.py", line 142 in _next

Thread 0x00007f90248986c0 (most recent call first):
  File "/home/user/loader.py", line 4 in read_shard
  File "/home/user/loader.py", line 6 in <lambda>
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f90255fdb80 (most recent call first):
  File "/home/user/data.py", line 88 in read_shard
  File "/home/user/train.py", line 41 in main
  File "/home/user/train.py", line 60 in <module>
)";

std::string thread_text(const std::string& frames) {
  return "Thread 0x00007f90255fdb80 (most recent call first):\n" + frames;
}

std::string repeated(const std::string& line, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += line;
  return text;
}

StackFrame frame(std::string function, std::string file, int line) {
  return {std::move(function), std::move(file), line};
}

std::vector<StackFrame> frames_of(const std::string& lines) {
  const PythonStack stack = parse_python_stack(thread_text(lines));
  REQUIRE(stack.threads.size() == 1);
  return stack.threads[0].frames;
}

}  // namespace

TEST_CASE("threads and frames come from faulthandler's text", "[unit][python_stack]") {
  const PythonStack stack = parse_python_stack(asked);
  REQUIRE(stack.threads.size() == 3);
  CHECK_FALSE(stack.cut);
  CHECK(stack.fault.empty());
  CHECK(stack.threads[0].current);
  CHECK(stack.threads[0].ident == 0x7f90240976c0);
  CHECK_FALSE(stack.threads[2].current);
  CHECK(stack.threads[1].frames[1] == frame("<lambda>", "/home/user/loader.py", 6));
  CHECK(stack.threads[2].frames == std::vector{frame("read_shard", "/home/user/data.py", 88),
                                               frame("main", "/home/user/train.py", 41),
                                               frame("<module>", "/home/user/train.py", 60)});
}

TEST_CASE("the main thread is the last that is not the helper's", "[unit][python_stack]") {
  const PythonStack stack = parse_python_stack(asked);
  CHECK(main_thread(stack, true) == &stack.threads[2]);
  SECTION("also where the helper is the last") {
    PythonStack turned = stack;
    std::swap(turned.threads[0], turned.threads[2]);
    CHECK(main_thread(turned, true) == &turned.threads[1]);
    CHECK(main_thread(turned, false) == &turned.threads[2]);
  }
  SECTION("who was asked itself is the current one, and may be the main thread") {
    const PythonStack own =
        parse_python_stack("Current thread 0x1 (most recent call first):\n  File \"a\", line 1 in f\n");
    CHECK(main_thread(own, false) == &own.threads[0]);
    CHECK(main_thread(own, true) == nullptr);
  }
  SECTION("who crashed is the current one, whoever had been asked before") {
    const PythonStack crash = parse_python_stack(
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        "  File \"a\", line 1 in f\n");
    CHECK(main_thread(crash, true) == &crash.threads[0]);
  }
  SECTION("where threads are missing it is one of them") {
    CHECK(main_thread(parse_python_stack(asked + "...\n"), true) == nullptr);
    CHECK(main_thread(parse_python_stack(asked.substr(0, asked.size() - 1)), true) == nullptr);
    CHECK(main_thread({}, true) == nullptr);
  }
}

TEST_CASE("what newer Pythons write is read", "[unit][python_stack]") {
  // 3.11 and newer
  CHECK(frames_of("  Garbage-collecting\n  File \"/a.py\", line 3 in __del__\n") ==
        std::vector{frame("__del__", "/a.py", 3)});
  // 3.13: a thread that runs no Python
  CHECK(frames_of("  <no Python frame>\n").empty());
  // 3.14: with its name, and behind a crash the stack of C functions
  const PythonStack newest = parse_python_stack(
      "Fatal Python error: Aborted\n\n"
      "Current thread 0x00007f1e59c97b80 [pt_main (x)] (most recent call first):\n"
      "  File \"/a.py\", line 3 in f\n"
      "\n"
      "Current thread's C stack trace (most recent call first):\n"
      "  Binary file \"/usr/bin/python3\", at _Py_DumpStack+0x48 [0x5d3f]\n"
      "\n"
      "Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)\n");
  REQUIRE(newest.threads.size() == 1);
  CHECK(newest.fault == "Aborted");
  CHECK(newest.threads[0].ident == 0x7f1e59c97b80);
  CHECK(newest.threads[0].frames == std::vector{frame("f", "/a.py", 3)});
}

TEST_CASE("one thread alone has another headline", "[unit][python_stack]") {
  const PythonStack stack =
      parse_python_stack("Stack (most recent call first):\n  File \"fh.py\", line 12 in <module>\n");
  REQUIRE(stack.threads.size() == 1);
  CHECK(stack.threads[0].current);
  CHECK(stack.threads[0].frames == std::vector{frame("<module>", "fh.py", 12)});
}

TEST_CASE("a crash behind an answer is what counts", "[unit][python_stack]") {
  const PythonStack stack =
      parse_python_stack(asked +
                         "Fatal Python error: Segmentation fault\n\nCurrent thread 0x2 (most recent call first):\n"
                         "  File \"/a.py\", line 9 in f\n\nExtension modules: torch._C (total: 1)\n");
  CHECK(stack.fault == "Segmentation fault");
  REQUIRE(stack.threads.size() == 1);
  CHECK(stack.threads[0].frames == std::vector{frame("f", "/a.py", 9)});
}

TEST_CASE("names hold what they like", "[unit][python_stack]") {
  CHECK(frames_of("  File \"<string>\\x1b[2J odd\\x0a \"quoted\", line 3 in x\", line 2 in made\n") ==
        std::vector{frame("made", "<string>\\x1b[2J odd\\x0a \"quoted\", line 3 in x", 2)});
  CHECK(frames_of("  File ???, line ??? in ???\n") == std::vector{frame("???", "???", 0)});
  CHECK(frame_text(frame("f\x1b[2J\n", "/x/\xff.py", 3)) == "\\xff.py:3 f\\x1b[2J\\n");
  CHECK(frame_text(frame("main", "/home/user/train.py", 41)) == "train.py:41 main");
  CHECK(frame_text(frame("main", "train.py", 41)) == "train.py:41 main");
}

TEST_CASE("rubbish between the lines is passed over", "[unit][python_stack]") {
  const std::string good = "  File \"/a.py\", line 3 in f\n";
  for (const std::string& bad :
       {std::string{"  File \"/a.py\", line 99999999999 in f\n"}, std::string{"  File \"/a.py\", line -1 in f\n"},
        std::string{"  File \"/a.py\", line 3\n"}, std::string{"  File \"/a.py\" in f\n"}, std::string{"  File \n"},
        std::string{"  \xff\xff\n"}, std::string{"  \x1b[2J\n"}, std::string{"  File \"/a.py\", line 3x in f\n"}}) {
    CHECK(frames_of(bad + good) == std::vector{frame("f", "/a.py", 3)});
  }
  // Another headline ends the thread.
  CHECK(frames_of("rubbish\n" + good).empty());
  CHECK(parse_python_stack("Thread 0x (most recent call first):\n" + good).threads.empty());
  CHECK(parse_python_stack("Thread 0x11111111111111111 (most recent call first):\n" + good).threads.empty());
  CHECK(parse_python_stack("Thread 0x1 (most recent call last):\n" + good).threads.empty());
  CHECK(parse_python_stack(good).threads.empty());
}

TEST_CASE("a sheet ends where it was wiped", "[unit][python_stack]") {
  std::string sheet = asked;
  sheet.resize(worker_sheet_bytes, '\0');
  CHECK(parse_python_stack(sheet) == parse_python_stack(asked));
  sheet[asked.size() - 4] = '\0';  // a line that is not yet whole
  CHECK(parse_python_stack(sheet).cut);
  CHECK(parse_python_stack(sheet).threads[2].frames.size() == 2);
}

TEST_CASE("a sheet has its limits", "[unit][python_stack]") {
  const std::string head = thread_text("");
  const std::string line = "  File \"/a.py\", line 3 in f\n";
  SECTION("threads") {
    CHECK_FALSE(parse_python_stack(repeated(head, python_threads_max)).cut);
    const PythonStack more = parse_python_stack(repeated(head, python_threads_max + 1) + line);
    CHECK(more.threads.size() == python_threads_max);
    CHECK(more.cut);
    CHECK(more.threads.back().frames.empty());  // that frame is another's
  }
  SECTION("frames") {
    CHECK_FALSE(parse_python_stack(head + repeated(line, python_frames_max)).threads[0].cut);
    const PythonStack more = parse_python_stack(head + repeated(line, python_frames_max + 1));
    CHECK(more.threads[0].frames.size() == python_frames_max);
    CHECK(more.threads[0].cut);
    CHECK_FALSE(more.cut);
    CHECK(parse_python_stack(head + line + "  ...\n").threads[0].cut);
  }
  SECTION("texts, of which a file's end counts") {
    const std::string longest(look_function_bytes_max, 'f');
    const std::string path = "/" + std::string(look_file_bytes_max - 6, 'd') + "/x.py";
    CHECK(frames_of("  File \"" + path + "\", line 3 in " + longest + "\n") == std::vector{frame(longest, path, 3)});
    const auto cut = frames_of("  File \"/1" + path + "\", line 3 in " + longest + "g\n");
    CHECK(cut[0].function == longest);
    CHECK(cut[0].file.size() == look_file_bytes_max);
    CHECK(cut[0].file.starts_with("...d"));
    CHECK(cut[0].file.ends_with("/x.py"));
    CHECK(parse_python_stack("Fatal Python error: " + std::string(1000, 'x') + "\n").fault.size() ==
          python_fault_bytes_max);
  }
  SECTION("bytes") {
    const std::string filled = repeated("\n", worker_sheet_bytes);
    CHECK(parse_python_stack(filled).cut);  // more did not fit
    CHECK_FALSE(parse_python_stack(filled.substr(1)).cut);
    CHECK(parse_python_stack(filled + asked).threads.empty());
  }
}

TEST_CASE("six frames are told, without what wraps functions of torch", "[unit][python_stack]") {
  std::vector<StackFrame> frames = {frame("all_reduce", "/t/torch/distributed/distributed_c10d.py", 4181),
                                    frame("wrapper", "/t/torch/distributed/c10d_logger.py", 83),
                                    frame("decorate_context", "/t/torch/utils/_contextlib.py", 120),
                                    frame("main", "train.py", 57)};
  CHECK(told_frames(frames) == std::vector{frames[0], frames[3]});
  frames.resize(2);
  for (int line = 1; line <= 6; ++line) frames.push_back(frame("f", "train.py", line));
  const auto told = told_frames(frames);
  REQUIRE(told.size() == told_frames_max);
  CHECK(told.back() == frame("f", "train.py", 5));
}

TEST_CASE("a program that waits in a library is told of by its own line", "[unit][python_stack]") {
  std::vector<StackFrame> frames(9, frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113));
  frames.push_back(frame("main", "train.py", 57));
  const auto told = told_frames(frames);
  REQUIRE(told.size() == told_frames_max);
  CHECK(told[4] == frames[0]);
  CHECK(told.back() == frames.back());
}

TEST_CASE("a debugger is known by its files", "[unit][python_stack]") {
  const auto debugged = [](const std::string& file, bool in_main) {
    PythonStack stack;
    stack.threads.resize(2);
    stack.threads[in_main ? 1 : 0].frames = {frame("cmdloop", file, 1)};
    return is_debugged(stack, &stack.threads[1]);
  };
  for (const bool in_main : {false, true}) {
    CHECK(debugged("/usr/lib/python3.11/pdb.py", in_main));
    CHECK(debugged("/usr/lib/python3.11/bdb.py", in_main));
    CHECK(debugged("/s/debugpy/_vendored/pydevd/pydevd.py", in_main) == in_main);
    CHECK(debugged("/s/debugpy/server/api.py", in_main) == in_main);
    CHECK(debugged("/s/_pydevd_bundle/pydevd_comm.py", in_main) == in_main);
    CHECK_FALSE(debugged("/home/user/proteins/pdb.py", in_main));
    CHECK_FALSE(debugged("/home/user/debugpy.py", in_main));
    CHECK_FALSE(debugged("pdb.py", in_main));
  }
  CHECK_FALSE(is_debugged({}, nullptr));
}

TEST_CASE("no sheet, however spoilt, leaves the limits", "[unit][python_stack]") {
  std::mt19937 random{7};
  for (int round = 0; round < 2000; ++round) {
    std::string sheet = asked + "Fatal Python error: x\n\n" + asked;
    for (auto i = random() % 40; i > 0; --i) {
      const std::size_t at = random() % sheet.size();
      switch (random() % 4) {
        case 0:
          sheet[at] = static_cast<char>(random());
          break;
        case 1:
          sheet.erase(at, random() % 30);
          break;
        case 2:
          sheet.insert(at, sheet.substr(random() % sheet.size(), random() % 60));
          break;
        default:
          sheet[at] = "\n \"\xff\x1b"[random() % 5];
      }
      if (sheet.empty()) sheet = "x";
    }
    const PythonStack stack = parse_python_stack(sheet);
    REQUIRE(stack.threads.size() <= python_threads_max);
    for (const PythonThread& thread : stack.threads) {
      REQUIRE(thread.frames.size() <= python_frames_max);
      for (const StackFrame& each : thread.frames) {
        REQUIRE(each.line >= 0);
        REQUIRE(each.file.size() <= look_file_bytes_max);
        REQUIRE(each.function.size() <= look_function_bytes_max);
        REQUIRE(frame_text(each).find_first_of("\n\x1b") == std::string::npos);
      }
    }
  }
}

TEST_CASE("a crash is told by its fault and the thread in which it was", "[unit][python_stack]") {
  const std::string crash =
      "Fatal Python error: Segmentation fault\n\n" + thread_text("  File \"/a/other.py\", line 1 in waits\n") +
      "\nCurrent thread 0x00007f90240976c0 (most recent call first):\n"
      "  File \"/a/train.py\", line 41 in main\x1b\n  File \"/a/train.py\", line 60 in <module>\n";
  CHECK(crash_lines(parse_python_stack(crash)) ==
        std::vector<std::string>{"Segmentation fault", "/a/train.py:41 main\\x1b", "/a/train.py:60 <module>"});
  CHECK(crash_lines(parse_python_stack("Fatal Python error: Bus error\n\n")) == std::vector<std::string>{"Bus error"});
  CHECK(crash_lines(parse_python_stack(asked)).empty());
  CHECK(crash_lines(parse_python_stack("")).empty());
}
