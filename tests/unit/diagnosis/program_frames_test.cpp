#include "rendezvous/core/diagnosis/program_frames.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace torchup;

namespace {

StackFrame in_file(const std::string& file) { return {.function = "f", .file = file, .line = 1}; }

}  // namespace

TEST_CASE("the program's own code is what is neither Python's nor installed", "[unit][diagnosis]") {
  for (const std::string file : {"train.py", "/home/user/train.py", "/srv/lib/python/train.py",
                                 "/srv/lib/pythonic/a.py", "<string>", "<stdin>", "???", ""}) {
    CAPTURE(file);
    CHECK(is_of_program(in_file(file)));
  }
  for (const std::string file :
       {"/usr/lib/python3.11/queue.py", "/usr/lib64/python3.9/queue.py", "/opt/conda/lib/python3.12/asyncio/events.py",
        "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py",
        "/usr/lib/python3/dist-packages/yaml/reader.py", "...hidden/site-packages/torch/x.py", "<frozen runpy>"}) {
    CAPTURE(file);
    CHECK_FALSE(is_of_program(in_file(file)));
  }
}

TEST_CASE("the innermost frame of the program is among those that are kept", "[unit][diagnosis]") {
  const StackFrame library = in_file("/usr/lib/python3.11/queue.py");
  const StackFrame own = in_file("train.py"), outer = in_file("main.py");
  std::vector<StackFrame> frames(8, library);
  frames.insert(frames.end(), {own, outer});
  SECTION("behind libraries' it takes the last place") {
    keep_frames(frames, 6);
    CHECK(frames == std::vector{library, library, library, library, library, own});
  }
  SECTION("also where there is room for one") {
    keep_frames(frames, 1);
    CHECK(frames == std::vector{own});
  }
  SECTION("where it is the last that is kept") {
    keep_frames(frames, 9);
    REQUIRE(frames.size() == 9);
    CHECK(frames.back() == own);
  }
  SECTION("where there is room for all") {
    auto all = frames;
    keep_frames(all, 10);
    CHECK(all == frames);
  }
  SECTION("where there is room for none") {
    keep_frames(frames, 0);
    CHECK(frames.empty());
  }
}

TEST_CASE("what libraries run alone is cut at its end", "[unit][diagnosis]") {
  std::vector<StackFrame> frames;
  for (int line = 1; line <= 9; ++line)
    frames.push_back({.function = "f", .file = "/v/site-packages/a.py", .line = line});
  keep_frames(frames, 3);
  REQUIRE(frames.size() == 3);
  CHECK(frames.back().line == 3);
}
