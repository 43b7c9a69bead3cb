#include "launcher/core/options/rendezvous_conf.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

std::string refusal(std::string_view text) { return read_c10d_conf(text).error().context; }

}  // namespace

TEST_CASE("the rendezvous configuration is read as torchrun reads it", "[unit][plan]") {
  const auto conf = read_c10d_conf(" join_timeout = 5,last_call_timeout=1 , unknown=x,is_host=YES, store_type=TCP");
  REQUIRE(*conf == RendezvousConf{.is_host = true, .join_timeout = 5s, .last_call = 1s, .lease = {}});
  REQUIRE(*read_c10d_conf("  ") == RendezvousConf{});
  REQUIRE(read_c10d_conf("join_timeout=1,join_timeout=2")->join_timeout == 2s);
  REQUIRE(read_static_conf("timeout=7, join_timeout=x")->join_timeout == 7s);
}

TEST_CASE("values of keys without effect are checked all the same", "[unit][plan]") {
  REQUIRE(refusal("cas_backoff_max_seconds=-1.0") == "cas_backoff_max_seconds (-1.0) must be finite and non-negative.");
  REQUIRE(refusal("cas_backoff_max_seconds=inf").find("must be finite") != std::string::npos);
  REQUIRE(refusal("cas_backoff_max_seconds=nan").find("must be finite") != std::string::npos);
  REQUIRE(refusal("cas_backoff_max_seconds=x") == "cas_backoff_max_seconds('x') is not a valid float value.");
  REQUIRE(read_c10d_conf("cas_backoff_max_seconds=0.5").has_value());
  REQUIRE(refusal("close_timeout=0") == "The close timeout (0:00:00) must be positive.");
  REQUIRE(refusal("heartbeat_timeout=-3") == "The heartbeat timeout (-3 s) must be positive.");
  REQUIRE(refusal("read_timeout=0") == "The read timeout must be a positive integer.");
  REQUIRE(refusal("read_timeout=1.5").find("'read_timeout' does not represent a valid integer") != std::string::npos);
  REQUIRE(refusal("store_type=redis").find("Invalid store type") == 0);
  REQUIRE(refusal("store_type=file").find("not supported") != std::string::npos);
}

TEST_CASE("keep-alives give the lease, within what a clock can hold", "[unit][plan]") {
  REQUIRE(read_c10d_conf("keep_alive_interval=2")->lease == 6s);
  REQUIRE(read_c10d_conf("keep_alive_max_attempt=2")->lease == 10s);
  REQUIRE(read_c10d_conf("keep_alive_interval=999999999999,keep_alive_max_attempt=1000000")->lease == longest_time);
  REQUIRE(refusal("keep_alive_max_attempt=1000001").find("from 1 to 1000000") != std::string::npos);
  REQUIRE(refusal("keep_alive_max_attempt=0").find("from 1 to 1000000") != std::string::npos);
  REQUIRE(read_static_conf("timeout=0").has_error());
}
