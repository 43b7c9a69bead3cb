#include "launcher/core/text/line_splitter.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

using Form = LineRules::Form;

struct Shown {
  LineSplitter splitter;
  std::string console;
  std::string duplicates;
  TimePoint now{};

  explicit Shown(LineRules rules) : splitter{std::move(rules)} {}
  Shown& feed(std::string_view bytes) {
    splitter.feed(bytes, now, console, duplicates);
    return *this;
  }
  std::string finish() {
    splitter.finish(console, duplicates);
    return console;
  }
};

/// Every way to cut `bytes` in two, and byte by byte: the result may not depend on it.
void check_any_cut(const LineRules& rules, std::string_view bytes, const std::string& expected) {
  for (std::size_t at = 0; at <= bytes.size(); ++at) {
    INFO("cut at " << at);
    CHECK(Shown{rules}.feed(bytes.substr(0, at)).feed(bytes.substr(at)).finish() == expected);
  }
  Shown shown{rules};
  for (const char c : bytes) shown.feed({&c, 1});
  CHECK(shown.finish() == expected);
}

const LineRules prefixed{.form = Form::prefixed, .prefix = "[r0]:"};
const LineRules whole{.form = Form::whole_lines};

}  // namespace

TEST_CASE("as is: bytes pass at once", "[unit][output]") {
  Shown shown{LineRules{}};
  CHECK(shown.feed("a\r\xff").console == "a\r\xff");
}

TEST_CASE("prefixed: one prefix per line however it was written", "[unit][output]") {
  check_any_cut(prefixed, "abc\n\ndef\n", "[r0]:abc\n[r0]:\n[r0]:def\n");
  check_any_cut(prefixed, "abc", "[r0]:abc\n");
  check_any_cut(prefixed, "", "");
  Shown shown{prefixed};
  CHECK(shown.feed("abc").console.empty());
  CHECK(shown.feed("def\n").console == "[r0]:abcdef\n");
}

TEST_CASE("prefixed: CR and CR LF end lines, VT and FF do not", "[unit][output]") {
  check_any_cut(prefixed, "a\r\nb\rc\v\f\n", "[r0]:a\n[r0]:b\n[r0]:c\v\f\n");
  check_any_cut(prefixed, "\r 1%\r 2%\n", "[r0]:\n[r0]: 1%\n[r0]: 2%\n");
  check_any_cut(prefixed, "a\r\r\n\n", "[r0]:a\n[r0]:\n[r0]:\n");
}

TEST_CASE("prefixed: NUL passes, bytes that are not UTF-8 become U+FFFD", "[unit][output]") {
  using namespace std::string_view_literals;
  check_any_cut(prefixed, "a\0b\n"sv, std::string{"[r0]:a\0b\n"sv});
  check_any_cut(prefixed, "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n", "[r0]:\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n");
  // What Python's decoder makes of them: a truncated character is one, an impossible byte is one each.
  check_any_cut(prefixed, "\xff\xfe x\xe2\x82 \xed\xa0\x80\n", "[r0]:\uFFFD\uFFFD x\uFFFD \uFFFD\uFFFD\uFFFD\n");
}

TEST_CASE("prefixed: filters choose whole lines, with the plain prefix", "[unit][output]") {
  Shown shown{{.form = Form::prefixed, .prefix = "<colour>", .duplicate_prefix = "[r0]:", .filters = {"apple", "B"}}};
  shown.feed("an ap").feed("ple\nnone\nA b\nABC").finish();
  CHECK(shown.duplicates == "[r0]:an apple\n[r0]:ABC\n");
  CHECK(shown.console == "<colour>an apple\n<colour>none\n<colour>A b\n<colour>ABC\n");
}

TEST_CASE("whole lines: bytes unchanged, nothing before the line is complete", "[unit][output]") {
  for (const char* text : {"abc\ndef\n", "a\r\nb\rc", "\r 1%\r 2%\n", "\xff\xc3", "a\r\r\r\nb\r"})
    check_any_cut(whole, text, text);
  Shown shown{whole};
  CHECK(shown.feed("ab").console.empty());
  CHECK(shown.feed("c\nde").console == "abc\n");
  CHECK(shown.feed("f\r").console == "abc\n");  // CR LF must not be torn
  CHECK(shown.feed("gh").console == "abc\ndef\r");
  CHECK(shown.feed("\n").console == "abc\ndef\rgh\n");
}

TEST_CASE("a line of the greatest length is whole, one byte more comes in pieces", "[unit][output]") {
  const LineRules rules = GENERATE(prefixed, whole);
  const std::string prefix = rules.prefix;
  const std::string longest(console_line_bytes_max, 'x');
  Shown fits{rules};
  fits.feed(longest);
  CHECK(fits.console.empty());
  CHECK_FALSE(fits.splitter.mid_line());
  CHECK(fits.feed("\n").console == prefix + longest + "\n");

  Shown pieces{rules};
  pieces.feed(longest).feed("y");
  CHECK(pieces.console == prefix + longest + "y");
  CHECK(pieces.splitter.mid_line());
  pieces.feed("z\nnext\n");
  CHECK(pieces.console == prefix + longest + "yz\n" + prefix + "next\n");
  CHECK_FALSE(pieces.splitter.mid_line());
}

TEST_CASE("a piece never ends within a character", "[unit][output]") {
  const std::string longest(console_line_bytes_max, 'x');
  Shown shown{prefixed};
  shown.feed(longest + "\xe2\x82").feed("\xac\n");
  CHECK(shown.console == "[r0]:" + longest + "\xe2\x82\xac\n");
}

TEST_CASE("an over-long line that stands still is ended for the others' sake", "[unit][output]") {
  Shown shown{prefixed};
  const std::string begun(console_line_bytes_max + 1, 'x');
  shown.feed(begun);
  shown.splitter.break_line(shown.console);
  CHECK_FALSE(shown.splitter.mid_line());
  shown.feed("rest\n");
  CHECK(shown.console == "[r0]:" + begun + "\n[r0]:rest\n");
}

TEST_CASE("on a terminal an over-long line is cut with a mark", "[unit][output]") {
  LineRules rules = GENERATE(prefixed, whole);
  rules.terminal = true;
  const std::string begin(console_line_bytes_max, 'x');
  Shown shown{rules};
  shown.feed(begin + "12345").feed("67890").feed("abc\nnext\n");
  CHECK_FALSE(shown.splitter.mid_line());
  CHECK(shown.console ==
        rules.prefix + begin + " ... [13 bytes of this line are not shown]\n" + rules.prefix + "next\n");
}

TEST_CASE("on a terminal a progress bar is redrawn once a second, its end always shown", "[unit][output]") {
  Shown shown{{.form = Form::prefixed, .prefix = ">", .terminal = true}};
  shown.feed("\r 1%");
  shown.feed("\r 2%");
  shown.now += 500ms;
  shown.feed("\r 3%");
  shown.now += 500ms;
  shown.feed("\r 4%\r 5%");
  shown.feed("\r100%\n");
  CHECK(shown.console == "> 1%\n> 3%\n>100%\n");
}

TEST_CASE("the tail holds the last lines of both streams", "[unit][output]") {
  OutputTail tail;
  CHECK(tail.lines().empty());
  for (int line = 0; line < 30; ++line) tail.feed(OutputTail::Stream::out, "line " + std::to_string(line) + "\n");
  CHECK(tail.lines().size() == tail_lines_max);
  CHECK(tail.lines().front() == "line 10");
  tail.feed(OutputTail::Stream::err, "Trace");
  tail.feed(OutputTail::Stream::out, "\r 1%\r 2%\n\n");
  tail.feed(OutputTail::Stream::err, "back\r\nopen \xff");
  const auto lines = tail.lines();
  CHECK(lines.size() == tail_lines_max);
  CHECK(std::vector<std::string>(lines.end() - 4, lines.end()) ==
        std::vector<std::string>{" 2%", "", "Traceback", "open \uFFFD"});
}

TEST_CASE("the tail of endless output has a limit", "[unit][output]") {
  OutputTail tail;
  for (int chunk = 0; chunk < 100; ++chunk) tail.feed(OutputTail::Stream::out, std::string(50'000, 'x'));
  std::size_t bytes = 0;
  for (const auto& line : tail.lines()) bytes += line.size();
  CHECK(bytes == tail_bytes_max);
}

TEST_CASE("each stream's last bytes are remembered as they were written", "[unit][output]") {
  using Stream = OutputTail::Stream;
  OutputTail tail;
  tail.feed(Stream::out, "one\ntw");
  tail.feed(Stream::err, "bad\r\n\xff");
  tail.feed(Stream::out, "o\nthree");
  CHECK(tail.of(Stream::out).bytes == "one\ntwo\nthree");
  CHECK(tail.of(Stream::out).end == 13);
  CHECK(tail.of(Stream::err).bytes == "bad\r\n\xff");
  CHECK(tail.of(Stream::err).end == 6);
}

TEST_CASE("what is remembered of a stream has no hole and ends with its newest byte", "[unit][output]") {
  using Stream = OutputTail::Stream;
  OutputTail tail;
  std::string whole[2];
  std::uint32_t chance = 1;
  for (int turn = 0; turn < 3000; ++turn) {
    chance = chance * 1664525 + 1013904223;
    const std::size_t index = (chance >> 8) % 2;
    const std::size_t size = (chance >> 12) % 64 == 0 ? 40'000 : (chance >> 16) % 400;
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>('a' + (whole[index].size() + i) % 23);
    if ((chance >> 28) % 2 == 0 && !bytes.empty()) bytes[bytes.size() / 2] = '\n';
    whole[index] += bytes;
    tail.feed(index == 0 ? Stream::out : Stream::err, bytes);
    for (const std::size_t each : {0U, 1U}) {
      const auto kept = tail.of(each == 0 ? Stream::out : Stream::err);
      REQUIRE(kept.end == whole[each].size());
      REQUIRE(whole[each].ends_with(kept.bytes));
      REQUIRE(kept.bytes.size() <= 4 * tail_bytes_max);
    }
  }
}
