#include "launcher/core/record/termination_text.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

#include "launcher/core/text/text.hpp"

using namespace torchup;
using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;

namespace {

WorkerFailure failure(int rank, int exit_code, std::string message = "") {
  WorkerFailure made;
  made.rank = Rank{rank};
  made.local_rank = LocalRank{rank % 2};
  made.exit_code = exit_code;
  made.pid = 100 + rank;
  made.host = rank < 2 ? "node0" : "node1";
  made.message = std::move(message);
  if (!made.message.empty()) made.error_file = "/errors/" + std::to_string(rank);
  return made;
}

Verdict failed(std::vector<WorkerFailure> failures) {
  return {1, "rank 1 failed with exit code 7", std::move(failures)};
}

/// Of the first failure.
Incident incident(std::vector<WorkerFailure> failures, std::vector<std::string> last_lines = {}) {
  Incident made;
  made.host = failures.front().host;
  add_backtraces(made.evidence, failures.front(), last_lines);
  made.evidence.last_lines = std::move(last_lines);
  made.failures = std::move(failures);
  return made;
}

/// What must be so whatever it is made from.
std::string checked(std::string text) {
  CHECK(text.size() <= termination_bytes_max);
  CHECK(text.ends_with('\n'));
  CHECK(std::ranges::none_of(text, [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f; }));
  for (std::string_view rest = text; !rest.empty();) {
    const Character character = first_character(rest);
    REQUIRE(character.valid);
    rest.remove_prefix(character.length);
  }
  return text;
}

std::string text_of(const Incident& of, int exit_code = 1) {
  return checked(termination_text(exit_code, failed(of.failures), &of));
}

}  // namespace

TEST_CASE("a container tells of its end as the incident does", "[unit][termination]") {
  const Incident of = incident({failure(1, 7)}, {"step 7", "boom"});
  CHECK(text_of(of) ==
        "torchup ended with 1: rank 1 failed with exit code 7\n"
        "rank 1 (local rank 1, pid 101) on node0: exit code 7\n"
        "its last lines:\nstep 7\nboom\n");
  CHECK_THAT(text_of(of, 7), StartsWith("torchup ended with 7: "));  // --propagate-exit-code
  Incident hinted = of;
  hinted.failures.front().message = default_failure_message(7, 101);
  CHECK(text_of(hinted) == text_of(of));
  hinted.failures.front().message = "No such file or directory";  // it could not be started
  CHECK_THAT(text_of(hinted), Contains(" exit code 7\nNo such file or directory\nits last lines:\n"));
}

TEST_CASE("where nobody failed the verdict is all there is to tell", "[unit][termination]") {
  const Verdict stopped{143, "got SIGTERM", {}};
  CHECK(checked(termination_text(143, stopped, nullptr)) == "torchup ended with 143: got SIGTERM\n");
  const Incident of = incident({failure(0, -SIGTERM)});  // which the stop has brought about
  CHECK(checked(termination_text(143, stopped, &of)) == "torchup ended with 143: got SIGTERM\n");
}

TEST_CASE("of a traceback the end is told, of another message the beginning", "[unit][termination]") {
  std::string traceback = "Traceback (most recent call last):\n";
  for (int i = 0; i < 100; ++i) traceback += "  File \"t.py\", line " + std::to_string(i) + ", in f\n";
  traceback += "ValueError: bad";
  const std::string python = text_of(incident({failure(1, 1, traceback)}));
  CHECK_THAT(python, StartsWith("torchup ended with 1: ") && Contains(": exit code 1: ValueError: bad\n") &&
                         EndsWith("line 99, in f\nValueError: bad\n"));
  CHECK(python.find("Traceback") == std::string::npos);
  std::string native = "std::out_of_range: vector";
  for (int i = 0; i < 100; ++i) native += "\n#" + std::to_string(i) + " 0x1234 in f(int)";
  const std::string other = text_of(incident({failure(1, 1, native)}));
  CHECK_THAT(other, Contains("\nstd::out_of_range: vector\n#0 0x1234 in f(int)\n"));
  CHECK(other.find("#99") == std::string::npos);
}

TEST_CASE("of a message that is one long line the beginning is told", "[unit][termination]") {
  const std::string cut = "\n" + std::string(termination_part_bytes_max - 1, 'm') + "\n";
  const std::string line(2 * termination_part_bytes_max, 'm');
  CHECK_THAT(text_of(incident({failure(1, 7, line)}, {"last"})), Contains(cut) && EndsWith("\nlast\n"));
  const std::string traceback = "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n" + line;
  CHECK_THAT(text_of(incident({failure(1, 1, traceback)})), EndsWith(cut));
}

TEST_CASE("each part leaves the others room, and whole lines and characters stand there", "[unit][termination]") {
  const std::string line(termination_bytes_max, 'x');
  Incident of = incident({failure(1, 7)}, {"first", line, "newest"});
  CHECK_THAT(text_of(of), EndsWith("\nits last lines:\nnewest\n"));
  const std::size_t head = text_of(of).size() - 7;
  of.evidence.last_lines = {std::string(termination_bytes_max - head - 1, 'y')};
  CHECK(text_of(of).size() == termination_bytes_max);
  of.evidence.last_lines.front() += 'y';
  CHECK(text_of(of).size() == head);
  for (std::size_t more = 0; more < 4; ++more) {  // a reason that ends within a character
    Verdict verdict = failed(of.failures);
    verdict.reason = std::string(termination_part_bytes_max - 24 + more, 'r') + "€€€€";
    const std::string text = checked(termination_text(1, verdict, &of));
    const std::size_t first = text.find('\n');
    CHECK(first <= termination_part_bytes_max);
    CHECK(first > termination_part_bytes_max - 3);
  }
}

TEST_CASE("all parts at their limits are less than all", "[unit][termination]") {
  std::string message;
  for (int i = 0; i < 1'000; ++i) message += "m" + std::to_string(i) + "\n";
  WorkerFailure cause = failure(1, 7, message);
  cause.host = std::string(5'000, 'h');
  std::vector<std::string> last;
  for (int i = 0; i < 1'000; ++i) last.push_back("l" + std::to_string(i));
  Incident of = incident({cause}, last);
  of.evidence.traceback.clear();
  Verdict verdict = failed(of.failures);
  verdict.reason = std::string(5'000, 'r');
  const std::string text = checked(termination_text(1, verdict, &of));
  CHECK(text.size() > termination_bytes_max - 8);
  CHECK_THAT(text, EndsWith("\nl998\nl999\n"));
}

TEST_CASE("nothing of a stranger's steers who reads it", "[unit][termination]") {
  WorkerFailure cause = failure(1, 7, "\x1b[2Jm\xff\u202e\u0085\ttab");
  cause.host = "no\nde\r";
  const std::string text = text_of(incident({cause}, {"\x1b]0;x\a", "\xe2\x82", std::string("a\0b", 3)}));
  CHECK_THAT(text, Contains("\\x1b[2Jm\\xff\\u202e\\x85\\ttab\n") && Contains(" on no\\nde\\r: "));
}

TEST_CASE("the root cause may be another node's", "[unit][termination]") {
  const Incident own = incident({failure(3, -SIGTERM)}, {"mine"});
  const Verdict verdict = failed({failure(1, 7, "theirs")});
  const std::string text = checked(termination_text(1, verdict, &own));
  CHECK_THAT(text, Contains("\nrank 1 (local rank 1, pid 101) on node0: exit code 7: theirs\n"));
  CHECK(text.find("mine") == std::string::npos);
  CHECK(checked(termination_text(1, verdict, nullptr)) == text);
}
