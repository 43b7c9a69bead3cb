#include "launcher/core/options/output_plan.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

OutputPlan plan_of(OutputOptions options, int workers = 2) {
  auto plan = make_output_plan(options, workers, "trainer", "vm", "job");
  REQUIRE(plan.has_value());
  return *plan;
}

std::string refusal(OutputOptions options) {
  const auto plan = make_output_plan(options, 2, "trainer", "vm", "job");
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().code == make_error_code(errc::bad_value));
  return plan.error().message();
}

constexpr StreamRoute console_only{.to_file = false, .to_console = true, .teed = false};
constexpr StreamRoute file_only{.to_file = true, .to_console = false, .teed = false};
constexpr StreamRoute both{.to_file = true, .to_console = true, .teed = true};
constexpr StreamRoute nowhere{.to_file = false, .to_console = false, .teed = false};

}  // namespace

TEST_CASE("streams go to the console unless redirected or teed", "[unit][output]") {
  CHECK(plan_of({}).workers[1] == WorkerRoutes{console_only, console_only});
  CHECK(plan_of({.redirects = "1"}).workers[1] == WorkerRoutes{file_only, console_only});
  CHECK(plan_of({.redirects = "2"}).workers[0] == WorkerRoutes{console_only, file_only});
  CHECK(plan_of({.redirects = "3", .tee = "2"}).workers[0] == WorkerRoutes{file_only, both});
}

TEST_CASE("a map names local ranks, the last value counts, others mean 0", "[unit][output]") {
  const auto plan = plan_of({.redirects = "0:1,12:3,0:2,99:1", .tee = "1:1"}, 13);
  CHECK(plan.workers[0] == WorkerRoutes{console_only, file_only});
  CHECK(plan.workers[1] == WorkerRoutes{both, console_only});
  CHECK(plan.workers[2] == WorkerRoutes{console_only, console_only});
  CHECK(plan.workers[12] == WorkerRoutes{file_only, file_only});
}

TEST_CASE("a malformed map is refused in torchrun's words", "[unit][output]") {
  const auto text = GENERATE(as<std::string>{}, "4", "", "a", "0:4", "0:1,", "0", "-1:2", ":1", "1:", "0:1;1:1");
  if (text == "0") return;  // fine, and stands here to show that the list is not refused as a whole
  CHECK(refusal({.redirects = text}) == text + R"( does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>)");
  CHECK(refusal({.tee = text}) == text + R"( does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>)");
}

TEST_CASE("the rank filter hides teed streams and loses the others", "[unit][output]") {
  const auto plan = plan_of({.redirects = "2", .tee = "1", .local_ranks_filter = " 1,7"});
  CHECK(plan.workers[0] == WorkerRoutes{StreamRoute{true, false, true}, file_only});
  CHECK(plan.workers[1] == WorkerRoutes{both, file_only});
  CHECK(plan_of({.local_ranks_filter = "1"}).workers[0] == WorkerRoutes{nowhere, nowhere});
  for (const char* bad : {"a", ",", "0,,1", "0,"})
    CHECK(refusal({.local_ranks_filter = bad}) ==
          "--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2");
}

TEST_CASE("with the null device as log directory everything goes to the console", "[unit][output]") {
  const auto plan = plan_of({.log_dir = "/dev/null", .redirects = "3", .tee = "1", .local_ranks_filter = "1"});
  CHECK_FALSE(plan.has_files());
  CHECK(plan.workers[0] == WorkerRoutes{console_only, console_only});
  CHECK(refusal({.log_dir = "/dev/null", .duplicate_stderr_filters = {"x"}})
            .starts_with("[Errno 20] Not a directory: '/dev/null/filtered_stderr.log'"));
}

TEST_CASE("line prefixes", "[unit][output]") {
  const auto prefix = [](const std::string& text) {
    return line_prefix(plan_of({.line_prefix_template = text}), Rank{13}, LocalRank{5});
  };
  CHECK(prefix("") == "[trainer5]:");
  CHECK(prefix("[rank${rank}]: ") == "[rank13]: ");
  CHECK(prefix("$hostname/$local_rank/$role_name") == "vm/5/trainer");
  CHECK(prefix("$$rank ${nosuch} $nosuch $ ${rank ${} $1") == "$rank ${nosuch} $nosuch $ ${rank ${} $1");
  CHECK(prefix("$ranks ${rank}s") == "$ranks 13s");
  const auto plan = plan_of({});
  CHECK(terminal_line_prefix(plan, Rank{13}, LocalRank{5}, false) == "[vm:13] ");
  CHECK(terminal_line_prefix(plan, Rank{0}, LocalRank{0}, true) !=
        terminal_line_prefix(plan, Rank{1}, LocalRank{1}, true));
  CHECK(terminal_line_prefix(plan_of({.line_prefix_template = "$rank>"}), Rank{13}, LocalRank{5}, true) == "13>");
}

TEST_CASE("attempts are named apart", "[unit][output]") {
  CHECK(attempt_name(0, 0, Round{0}) == "attempt_0");
  CHECK(attempt_name(2, 0, Round{7}) == "attempt_2");
  CHECK(attempt_name(2, 1, Round{7}) == "attempt_2.r7");
}
