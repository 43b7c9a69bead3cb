#include "rendezvous/core/text/endpoint_list.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("endpoints are read as a list", "[unit][endpoint]") {
  using Endpoints = std::vector<Endpoint>;
  REQUIRE(*parse_endpoints("") == Endpoints{{"localhost", c10d_default_port}});
  REQUIRE(*parse_endpoints("a, b:1,[2001:db8::1]:2", etcd_default_port) ==
          Endpoints{{"a", etcd_default_port}, {"b", Port{1}}, {"2001:db8::1", Port{2}}});
  REQUIRE(*parse_endpoints("b:1,a,b:1") == Endpoints{{"b", Port{1}}, {"a", c10d_default_port}});
  REQUIRE(parse_endpoints("a,b,c,d,e,f,g,h")->size() == endpoints_max);
  REQUIRE(parse_endpoints("a,b,c,d,e,f,g,h,i").error().code == make_error_code(errc::limit_exceeded));
}

TEST_CASE("what is no list of endpoints is refused with the thing and the reason", "[unit][endpoint]") {
  const auto refusal = [](std::string_view text) {
    const auto endpoints = parse_endpoints(text);
    return endpoints ? std::string{"taken"} : endpoints.error().context;
  };
  for (const char* text : {",", "a,,b", "a,", ",a", "a, ,b"})
    REQUIRE(refusal(text).find("has nothing at place") != std::string::npos);
  for (const char* text : {"a:1:2", "b,a:1:2", "[::1]:1:2", "10.0.0.1:1:2"}) {
    REQUIRE(refusal(text).find("has two ports") != std::string::npos);
  }
  REQUIRE(refusal("a,2001:db8::1").find("without brackets") != std::string::npos);
  REQUIRE(refusal("a,b:99999").find("port number") != std::string::npos);
}
