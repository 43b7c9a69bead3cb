#include "launcher/core/fan_out/remote_command.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using Words = std::vector<std::string>;

TEST_CASE("a command is split as a shell splits it", "[unit][fan_out]") {
  REQUIRE(split_words("ssh -p 2222").value() == Words{"ssh", "-p", "2222"});
  REQUIRE(split_words("  a\t'b c' \"d e\" f\\ g ''").value() == Words{"a", "b c", "d e", "f g", ""});
  REQUIRE(split_words(R"("a\"b\\c\d" 'e\f' x'y'"z")").value() == Words{R"(a"b\c\d)", R"(e\f)", "xyz"});
  REQUIRE(split_words("").has_error());
  REQUIRE(split_words(" \t").has_error());
  REQUIRE(split_words("ssh 'half").has_error());
  REQUIRE(split_words("ssh \"half").has_error());
}

TEST_CASE("the host's name goes where it is wanted", "[unit][fan_out]") {
  REQUIRE(remote_command({"ssh", "-T"}, {"me@gpu7"}, "/opt/torchup") ==
          Words{"ssh", "-T", "me@gpu7", "/opt/torchup", "--link"});
  REQUIRE(remote_command({"docker", "exec", "-i", "job-{host}-{host}"}, {"7"}, "torchup") ==
          Words{"docker", "exec", "-i", "job-7-7", "torchup", "--link"});
  REQUIRE(remote_command({"x", "{host}"}, {"{host}"}, "t") == Words{"x", "{host}", "t", "--link"});
}

TEST_CASE("the far end of a link knows whether a command is between", "[unit][fan_out]") {
  REQUIRE(read_link_word("--link") == LinkStart{});
  REQUIRE(local_command("/opt/torchup", "gpu7") == Words{"/opt/torchup", "--link=gpu7"});
  REQUIRE(read_link_word(local_command("t", "gpu7").back()) == LinkStart{.by_command = false, .beside = "gpu7"});
  REQUIRE(read_link_word(local_command("t", "").back()) == LinkStart{.by_command = false, .beside = ""});
  for (const char* other : {"", "--lin", "--links", "link", "--link7"}) REQUIRE_FALSE(read_link_word(other));
}

TEST_CASE("words that no shell changes", "[unit][fan_out]") {
  for (const char* safe : {"/opt/torchup-1.2/bin/torchup", "a_b,c:d@e%f=g+h"}) REQUIRE(is_safe_word(safe));
  for (const char* unsafe : {"", "a b", "a'b", "$HOME/torchup", "~/torchup", "a;b", "-x", "a*", "a\nb", "\xc3\xa4"}) {
    REQUIRE_FALSE(is_safe_word(unsafe));
  }
}

TEST_CASE("which host is this one", "[unit][fan_out]") {
  for (const char* here : {"localhost", "127.0.0.1", "::1", "login.site", "login"}) {
    REQUIRE(is_this_host({here}, "login.site"));
  }
  for (const char* there : {"gpu7", "me@localhost", "login2", "site", "10.0.0.1"}) {
    REQUIRE_FALSE(is_this_host({there}, "login.site"));
  }
  REQUIRE(name_of_host("me@gpu7") == "gpu7");
  REQUIRE(name_of_host("gpu7") == "gpu7");
}

TEST_CASE("what a command's end means", "[unit][fan_out]") {
  const Words command{"ssh", "gpu7", "/opt/torchup", "--link"};
  REQUIRE(why_broken("", 255, false, command) == "ssh ended with 255");
  REQUIRE(why_broken("", 137, true, command) == "ssh was ended by SIGKILL");
  REQUIRE(why_broken("", 127, false, command) == "no torchup at /opt/torchup there; --remote-torchup names another");
  REQUIRE(why_broken("", 127, true, command) == "ssh ended with 127");
  REQUIRE(why_broken("", 126, false, command).starts_with("/opt/torchup cannot be executed there"));
  REQUIRE(why_broken("it was silent for 15 s", {}, true, command) == "the link is broken: it was silent for 15 s");
  REQUIRE(why_broken("", {}, true, command) == "the link has ended");
}
