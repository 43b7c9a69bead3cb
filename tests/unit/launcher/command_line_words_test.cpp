#include "launcher/core/options/command_line_words.hpp"

#include <catch2/catch.hpp>

namespace torchup {
namespace {

using Words = std::vector<std::string>;

SplitCommandLine split(const Words& words) {
  SplitCommandLine result;
  REQUIRE(split_command_line(words, result) == std::nullopt);
  return result;
}

std::string error_of(const Words& words) {
  SplitCommandLine result;
  return split_command_line(words, result).value_or("none");
}

}  // namespace

TEST_CASE("the program is the first word that is neither option nor value", "[unit][options]") {
  const auto line = split({"--nnodes", "2", "--standalone", "--role=x", "s.py", "--nnodes", "3", "-m"});
  REQUIRE(line.options == Words{"--nnodes", "2", "--standalone", "--role", "x"});
  REQUIRE(line.program == Words{"s.py", "--nnodes", "3", "-m"});
  REQUIRE(split({"--nproc_per_node", "2", "s.py"}).options == Words{"--nproc_per_node", "2"});
  REQUIRE(!split({"--standalone"}).has_program);
  REQUIRE(split({"", "x"}).program == Words{"", "x"});
  REQUIRE(split({"-", "x"}).program == Words{"-", "x"});
  REQUIRE(split({"-5", "x"}).program == Words{"-5", "x"});
  REQUIRE(split({"a b"}).program == Words{"a b"});
  REQUIRE(split({"--no such option"}).program == Words{"--no such option"});
}

TEST_CASE("one -- goes, before the program or else directly behind it", "[unit][options]") {
  REQUIRE(split({"--nnodes", "1", "--", "s.py", "--x"}).program == Words{"s.py", "--x"});
  REQUIRE(split({"s.py", "--", "--x", "--", "y"}).program == Words{"s.py", "--x", "--", "y"});
  REQUIRE(split({"--", "s.py", "--", "x"}).program == Words{"s.py", "--", "x"});
  REQUIRE(split({"--", "-m"}).program == Words{"-m"});
}

TEST_CASE("short options: attached, separate, with =, in a cluster", "[unit][options]") {
  for (const Words& words : {Words{"-r3", "s"}, Words{"-r", "3", "s"}, Words{"-r=3", "s"}}) {
    REQUIRE(split(words).options == Words{"-r", "3"});
    REQUIRE(split(words).program == Words{"s"});
  }
  REQUIRE(split({"-mr3", "s"}).options == Words{"-m", "-r", "3"});
  REQUIRE(error_of({"-mpkg", "s"}) == "argument -m/--module: ignored explicit argument 'pkg'");
}

TEST_CASE("a value that begins with - must be attached", "[unit][options]") {
  REQUIRE(error_of({"--role", "-x", "s"}) == "argument --role: expected one argument");
  REQUIRE(error_of({"--role"}) == "argument --role: expected one argument");
  REQUIRE(split({"--role=-x", "s"}).options == Words{"--role", "-x"});
  REQUIRE(split({"--role=", "s"}).options == Words{"--role", ""});
  REQUIRE(split({"--master-port", "-1", "s"}).options == Words{"--master-port", "-1"});
  REQUIRE(error_of({"--standalone=1", "s"}) == "argument --standalone: ignored explicit argument '1'");
}

TEST_CASE("unknown options stay for the parser, which names them", "[unit][options]") {
  const auto line = split({"--bogus", "s.py"});
  REQUIRE(line.options == Words{"--bogus"});
  REQUIRE(line.program == Words{"s.py"});
}

}  // namespace torchup
