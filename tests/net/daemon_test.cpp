#include "rendezvous/net/daemon/daemon.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/net/io/log.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

/// What a daemon has kept of its first job.
std::string state_in(const test::TemporaryFolder& folder) {
  std::ifstream file{folder.path / "job-0.state", std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

}  // namespace

TEST_CASE("a daemon that ends by a fault of its own leaves its jobs as a kill would", "[net][daemon]") {
  const bool fault = GENERATE(true, false);
  const test::TemporaryFolder folder;
  Log log{{.program = "torchupd", .write = [](const std::string&) {}}};
  asio::io_context agents;
  std::optional<tcp::socket> agent;
  {
    asio::io_context loop;
    DaemonSettings settings;
    settings.bind = "127.0.0.1";
    settings.port = Port{0};
    settings.state_dir = folder.path.string();
    Daemon daemon{loop, settings, log};
    REQUIRE_FALSE(daemon.start().has_value());
    const std::string address = daemon.address();
    agent.emplace(agents);
    agent->connect({asio::ip::address_v4::loopback(),
                    static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)))});
    Join join;
    join.node = NodeId{"a_1_0"};
    join.host = "a";
    join.terms.min_nodes = 1;
    join.terms.max_nodes = 1;
    const std::string words =
        std::string{agent_preface} + encode(AgentFrame{Hello{.run_id = RunId{"job"}}}) + encode(AgentFrame{join});
    asio::write(*agent, asio::buffer(words));
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (state_in(folder).empty()) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      loop.run_one_for(10ms);
      loop.restart();
    }
    if (fault) {
      asio::post(loop, [] { throw std::runtime_error{"out of the loop"}; });
      REQUIRE_THROWS_AS(loop.run_for(10s), std::runtime_error);
    } else {
      daemon.end();
    }
  }
  const auto saved = decode_job(state_in(folder));
  REQUIRE(saved.has_value());
  REQUIRE(saved->snapshot.members.size() == 1);
  REQUIRE_FALSE(saved->snapshot.verdict.has_value());
}
