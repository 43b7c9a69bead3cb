// In which order those hear of what happens who want to.

#include "launcher/os/agent/job_record.hpp"

#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/os/agent/from_plan.hpp"

using namespace torchup;

TEST_CASE("who looks on hears of an event before the hook's failure over it", "[process][record]") {
  asio::io_context loop{1};
  LaunchConfig config;
  config.output.on_event = {"true", {"notice"}};
  Output output{loop, output_plan(config, "node"), [](EventBody) {}};
  JobRecord job{loop, config, "node", 1, output};
  std::vector<std::string> heard;
  JobRecord::Onlooker onlooker;
  onlooker.happened = [&](const LaunchEvent& event, std::string_view) { heard.push_back(event_name(event.body)); };
  job.set_onlooker(std::move(onlooker));
  // Of the first the hook is told, and so many wait: the last one is one too many.
  const std::size_t count = 1 + hook_waiting_max + 1;
  for (std::size_t i = 0; i < count; ++i) job.record(event::Notice{"so it is", LogLevel::debug});
  std::vector<std::string> expected(count, "notice");
  expected.emplace_back("hook_failed");
  CHECK(heard == expected);
  CHECK(::waitpid(-1, nullptr, 0) > 0);
}
